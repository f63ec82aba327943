//! Tests failing system calls of the loop: temporary failures are tolerated, lasting ones are reported, and
//! a stop is always noticed.

use super::{
    seam::{FaultAt, Worker, before_add, fail, hide_the_inbox},
    service::Tester,
};
use crate::stats::Counter;
use crate::{
    config::Discipline, engine::blocking::Blocking, protocol::rules::Rules,
    service::worker_state::WorkerState, settings::Settings, stats::scoreboard::Scoreboard,
    transport::queue::Queues,
};
use pollux_sys::Call;
use pollux_testkit::{
    growth_within,
    http::{Client, PATIENCE},
    wait_until,
};
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};
use std::{
    collections::BTreeMap,
    io::{Read, Write},
    net::TcpStream,
    num::NonZeroU32,
    sync::{Arc, mpsc},
    thread,
    time::{Duration, Instant},
};

/// Makes this thread's calls of the system call with this number fail with `errno` from now on.
fn forbid(call: i64, errno: i32) {
    let rules = BTreeMap::from([(call, Vec::new())]);
    let arch = std::env::consts::ARCH.try_into().expect("a known architecture");
    let filter: BpfProgram =
        SeccompFilter::new(rules, SeccompAction::Allow, SeccompAction::Errno(errno as u32), arch)
            .expect("a filter")
            .try_into()
            .expect("a program");
    seccompiler::apply_filter(&filter).expect("the filter is in force");
}

/// Regression: during a stop, a connection that failed like this was accepted again without end,
/// and the worker never ended.
#[test]
fn a_worker_that_may_not_accept_does_not_spin_and_notices_a_stop() {
    for errno in [libc::EPERM, libc::EACCES, libc::EOPNOTSUPP, libc::EMFILE, libc::ENOMEM] {
        let started_at = Instant::now();
        let worker = Worker::start(move || forbid(libc::SYS_accept4, errno));
        let _client = Client::connect(worker.address);
        // Long enough for a worker that spins to make very many calls.
        thread::sleep(Duration::from_millis(300));
        let statistics = worker.stop().unwrap().statistics;
        let calls = statistics.system_calls.of(Call::Accept);
        let most = 4 + started_at.elapsed().as_secs();
        assert!((1..=most).contains(&calls), "errno {errno}: {calls} calls of accept4");
        assert_eq!(statistics.count(Counter::Accepted), 0);
    }
}

#[test]
fn connections_that_died_before_they_were_accepted_end_nothing() {
    for errno in [libc::ECONNABORTED, libc::EPROTO, libc::ENETDOWN] {
        let worker = Worker::start(move || forbid(libc::SYS_accept4, errno));
        let _client = Client::connect(worker.address);
        let calls = || worker.statistics().system_calls.of(Call::Accept);
        wait_until(&format!("a call of accept4 that fails with {errno}"), || calls() >= 1);
        worker.stop().unwrap();
    }
}

/// Regression: the sockets for notifications stayed in the interest set and were reported at each further
/// wait.
#[test]
fn a_resolver_that_cannot_be_started_leaves_nothing_behind() {
    let worker = Worker::start(|| {
        forbid(libc::SYS_clone3, libc::EAGAIN);
        forbid(libc::SYS_clone, libc::EAGAIN);
    });
    for _ in 0..10 {
        let reply = Client::connect(worker.address).get("/resolve/localhost");
        assert!(reply.text().contains("no thread to resolve names"), "{}", reply.text());
    }
    let waits = || worker.statistics().count(Counter::Waits);
    let spun = growth_within(Duration::from_millis(300), waits);
    assert!(spun < 100, "{spun} waits: a busy loop");
    worker.stop().unwrap();
}

/// Regression: the first failure of this kind ended the worker.
#[test]
fn a_wait_that_fails_for_a_moment_is_tried_again() {
    for errno in [libc::ENOMEM, libc::EAGAIN, libc::EBUSY] {
        let worker = Worker::start(move || fail(FaultAt::Wait, 3, errno));
        assert_eq!(Client::connect(worker.address).get("/most").status, 200, "errno {errno}");
        worker.stop().unwrap();
    }
}

#[test]
fn a_wait_that_fails_for_good_ends_the_worker_with_its_reason() {
    let worker = Worker::start(|| fail(FaultAt::Wait, u32::MAX, libc::EBADF));
    let error = format!("{:#}", worker.stop().unwrap_err());
    assert!(error.contains("epoll_wait"), "{error}");
}

/// Sends a request. Returns whether any byte of a response arrives before the connection ends.
fn is_answered(worker: &Worker) -> bool {
    let mut stream = TcpStream::connect(worker.address).unwrap();
    stream.set_read_timeout(Some(pollux_testkit::http::PATIENCE)).unwrap();
    // A connection that the worker has closed already refuses it.
    let _ = stream.write_all(b"GET /most HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n");
    let mut answer = Vec::new();
    match stream.read_to_end(&mut answer) {
        Ok(_) => !answer.is_empty(),
        Err(error) => {
            let is_reset = error.kind() == std::io::ErrorKind::ConnectionReset;
            assert!(is_reset, "the connection neither answers nor ends: {error}");
            false
        }
    }
}

/// A connection that cannot be read from or written to is closed once, and nothing else ends.
#[test]
fn a_socket_that_fails_ends_its_connection_and_nothing_else() {
    for (number, call) in [(libc::SYS_recvfrom, Call::Recv), (libc::SYS_sendto, Call::Send)] {
        for errno in [libc::ECONNRESET, libc::ENOMEM, libc::EIO, libc::EPIPE, libc::ETIMEDOUT] {
            let worker = Worker::start(move || forbid(number, errno));
            for _ in 0..3 {
                assert!(!is_answered(&worker), "{} fails with {errno}", call.name());
            }
            let statistics = worker.stop().unwrap().statistics;
            assert_eq!(statistics.count(Counter::Accepted), 3);
            assert_eq!(statistics.count(Counter::Closed), 3);
            let calls = statistics.system_calls.of(call);
            assert_eq!(calls, 3, "{} fails with {errno}", call.name());
        }
    }
}

/// EINTR indicates nothing about the socket: the call is repeated, even for a long time, and a stop is
/// noticed meanwhile.
#[test]
fn a_receive_that_is_interrupted_for_ever_does_not_hold_the_worker() {
    let worker = Worker::start(|| forbid(libc::SYS_recvfrom, libc::EINTR));
    let mut stream = TcpStream::connect(worker.address).unwrap();
    stream.write_all(b"GET /most HTTP/1.1\r\nHost: t\r\n\r\n").unwrap();
    wait_until("a second call of recvfrom", || worker.statistics().system_calls.of(Call::Recv) > 1);
    worker.stop().unwrap();
}

/// A client that cannot be added is refused, and a client whose interest cannot be changed is closed; the
/// next client is served.
#[test]
fn an_interest_that_cannot_be_set_ends_its_connection_and_nothing_else() {
    for errno in [libc::ENOMEM, libc::ENOSPC] {
        let worker = Worker::start(move || fail(FaultAt::Add, 1, errno));
        assert!(!is_answered(&worker), "add fails with {errno}");
        assert!(is_answered(&worker), "add has failed with {errno} before");
        let counts = worker.stop().unwrap().statistics.counts;
        assert_eq!((counts[Counter::Refused], counts[Counter::Accepted]), (1, 1));

        // With per-state interest, a connection registers for writing before each response.
        let mut config = Settings::new(".");
        config.interest = Discipline::PerState;
        let worker = Worker::start_with(config, move || fail(FaultAt::Modify, 1, errno));
        assert!(!is_answered(&worker), "modify fails with {errno}");
        assert!(is_answered(&worker), "modify has failed with {errno} before");
        let counts = worker.stop().unwrap().statistics.counts;
        assert_eq!((counts[Counter::Accepted], counts[Counter::Closed]), (2, 2));
    }
}

/// Regression: clients that connected during a stop were accepted while there was room. Those that the
/// mechanism refused, which occupy no room, were accepted without end.
#[test]
fn clients_that_connect_during_a_stop_do_not_delay_its_end() {
    const NEWCOMERS: usize = 50;
    for refused in [0, u32::MAX] {
        let mut config = Settings::new(".");
        // One accept for each event, so that there is a wait between two clients, in which the stop is
        // noticed.
        config.accept_limit = Some(NonZeroU32::MIN);
        let (says, go) = mpsc::channel();
        let open = move |_: &Settings, _: &Rules, address| {
            let mut newcomers = Vec::new();
            let mut is_first = true;
            // Each accepted client starts another one.
            before_add(move || {
                if std::mem::replace(&mut is_first, false) {
                    go.recv_timeout(PATIENCE).unwrap();
                }
                if newcomers.len() < NEWCOMERS {
                    newcomers.push(TcpStream::connect(address).unwrap());
                }
            });
            Tester::new(address, "/nonexistent".into())
        };
        let worker = Worker::serve(config, open, move || fail(FaultAt::Add, refused, libc::ENOMEM));
        let _first = TcpStream::connect(worker.address).unwrap();
        worker.begin_stop();
        says.send(()).unwrap();
        let counts = worker.stop().unwrap().statistics.counts;
        let all = counts[Counter::Accepted] + counts[Counter::Refused];
        assert!((1..5).contains(&all), "{counts:?}");
    }
}

/// Runs a blocking worker in whose thread these system calls fail, with `clients` waiting clients. Requests
/// a stop without grace when `may_stop` returns true. Returns the statistics of the worker, or the error
/// with which it ended.
fn blocking(
    clients: usize,
    calls: &'static [i64],
    errno: i32,
    may_stop: impl Fn(&Scoreboard) -> bool,
) -> std::io::Result<crate::Statistics> {
    blocking_on(Arc::new(Scoreboard::new(1).unwrap()), clients, calls, errno, may_stop)
}

/// Does the same as [`blocking`], on a scoreboard for which a stop may have been requested already.
fn blocking_on(
    scoreboard: Arc<Scoreboard>,
    clients: usize,
    calls: &'static [i64],
    errno: i32,
    may_stop: impl Fn(&Scoreboard) -> bool,
) -> std::io::Result<crate::Statistics> {
    let config = Settings::new(".");
    let (queues, _) =
        Queues::open(&config.listen, config.backlog, config.way_to_accept(), 1).unwrap();
    let crate::config::Listen::Tcp(address) = queues.addresses().unwrap()[0] else {
        panic!("a TCP address")
    };
    let slot = scoreboard.claim_slot().unwrap();
    // Connect before the worker starts: the listener may be closed when the worker ends.
    let _clients: Vec<_> = (0..clients).map(|_| Client::connect(address)).collect();
    let worker = thread::spawn(move || -> std::io::Result<()> {
        let own = (Arc::new(Rules::new(&config)), WorkerState::new(None));
        let service = Tester::new(address, "/nonexistent".into());
        let before = pollux_sys::counters();
        let mut engine = Blocking::new(&config, service, own, slot, before);
        engine.prepare(queues.of(0))?;
        calls.iter().for_each(|&call| forbid(call, errno));
        while let Some(socket) = engine.accept(queues.of(0))? {
            engine.serve(socket);
        }
        engine.finish();
        Ok(())
    });
    wait_until("the end of the worker, or the state to stop it in", || {
        worker.is_finished() || may_stop(&scoreboard)
    });
    scoreboard.stop(Duration::ZERO);
    worker.join().unwrap().map(|()| scoreboard.statistics())
}

/// Regression: an unknown error was taken for an empty queue, so each wait reported the connection
/// again, without end.
#[test]
fn a_unit_that_may_not_accept_does_not_spin_and_hears_a_stop() {
    for errno in [libc::ENOSYS, libc::EIO, libc::EPERM, libc::EMFILE] {
        let started_at = Instant::now();
        let for_a_while = |_: &Scoreboard| started_at.elapsed() > Duration::from_millis(300);
        let statistics = blocking(1, &[libc::SYS_accept4], errno, for_a_while).unwrap();
        let calls = statistics.system_calls.of(Call::Accept);
        let most = 4 + started_at.elapsed().as_secs();
        assert!((1..=most).contains(&calls), "errno {errno}: {calls} calls of accept4");
        assert_eq!(statistics.count(Counter::Accepted), 0);
    }
}

/// Regression: the first connection at a stop that was already dead ended the worker's accepting,
/// although others waited behind it.
#[test]
fn at_a_stop_a_unit_accepts_all_that_wait_though_the_first_is_dead() {
    const CLIENTS: usize = 3;
    let scoreboard = Arc::new(Scoreboard::new(1).unwrap());
    scoreboard.stop(Duration::from_secs(600));
    let calls = &[libc::SYS_accept4];
    let statistics =
        blocking_on(scoreboard, CLIENTS, calls, libc::ECONNABORTED, |_: &Scoreboard| false)
            .unwrap();
    // One call before the stop was noticed, then one for each client that waited at that time, and no more.
    assert_eq!(statistics.system_calls.of(Call::Accept), 1 + CLIENTS as u64);
}

/// The system calls that epoll_wait(2) of the C library makes.
#[cfg(target_arch = "x86_64")]
const WAITS: &[i64] = &[libc::SYS_epoll_wait, libc::SYS_epoll_pwait];
#[cfg(not(target_arch = "x86_64"))]
const WAITS: &[i64] = &[libc::SYS_epoll_pwait];

/// Regression: the first failure of this kind ended the worker, and with it the server.
#[test]
fn a_unit_bears_a_wait_that_fails_for_a_moment_and_hears_a_stop() {
    let started_at = Instant::now();
    loop {
        let tried_at = Instant::now();
        let outcome = blocking(0, WAITS, libc::ENOMEM, |scoreboard| {
            scoreboard.statistics().count(Counter::Waits) >= 3
        });
        // Failures that last for some seconds may end the worker: then this machine was too slow for the
        // test.
        let was_too_slow = outcome.is_err() && tried_at.elapsed() > Duration::from_secs(4);
        if !was_too_slow || started_at.elapsed() > PATIENCE {
            assert!(outcome.unwrap().count(Counter::Waits) >= 3);
            return;
        }
    }
}

#[test]
fn a_wait_that_fails_for_good_ends_the_unit_with_its_reason() {
    let error = blocking(0, WAITS, libc::EBADF, |_| false).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EBADF));
}

/// Regression: behind thousands of queued signals, the inbox was reported seconds late. So statistics were
/// too old, and a stop took effect only when the load was over.
#[test]
fn a_worker_notices_commands_that_its_mechanism_does_not_report() {
    let worker = Worker::start(hide_the_inbox);
    let started_at = Instant::now();
    assert_eq!(worker.statistics().count(Counter::Requests), 0);
    assert_eq!(worker.stop().unwrap().statistics.count(Counter::Requests), 0);
    assert!(started_at.elapsed() < Duration::from_secs(8), "{:?}", started_at.elapsed());
}
