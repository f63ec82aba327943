//! Tests every way in which a service can answer later, over real sockets, on every mechanism.

mod budget;
mod faults;
mod seam;
mod service;
mod stores;
mod transfer;

use super::{blocking::Blocking, event::Engine, resolver::silence};
use crate::{
    config::Discipline,
    engine::control::{Inbox, Remote},
    protocol::rules::Rules,
    service::worker_state::WorkerState,
    settings::Settings,
    stats::scoreboard::Scoreboard,
    transport::{listener, queue::Queues},
};
use pollux_event::{
    Mechanism, MechanismSpec,
    registry::{self, Visitor, with_mechanism},
};
use pollux_testkit::{http::Client, wait_until, wait_until_stalled};
use service::Tester;
use std::{
    io::{Read, Write},
    net::{Shutdown, SocketAddr, TcpListener},
    os::unix::net::{UnixListener, UnixStream},
    sync::{Arc, Mutex, PoisonError},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

/// An engine that runs on a thread.
struct TestEngine {
    address: SocketAddr,
    name: String,
    stop: Stop,
    thread: Option<JoinHandle<()>>,
}

/// The ways to stop an engine.
enum Stop {
    Remote(Remote),
    Scoreboard(Arc<Scoreboard>),
}

struct Start {
    spec: MechanismSpec,
    config: Settings,
    service: Tester,
    listener: std::os::fd::OwnedFd,
    inbox: Inbox,
}

impl Visitor for Start {
    type Output = ();

    fn visit<M: Mechanism>(self) {
        let rules = Arc::new(Rules::new(&self.config));
        Engine::<M, _>::new(
            &self.config,
            &self.spec.options(),
            self.service,
            (rules, WorkerState::new(None)),
            (vec![self.listener], 1000),
            self.inbox,
        )
        .unwrap()
        .run()
        .unwrap();
    }
}

impl TestEngine {
    fn start(spec: &MechanismSpec, interest: Discipline, service: Tester) -> Self {
        let mut config = Settings::new(".");
        config.interest = interest;
        config.limits.body = u64::MAX;
        let listener = listener::tcp("127.0.0.1:0".parse().unwrap(), 64, false).unwrap();
        let crate::config::Listen::Tcp(address) = listener::address_of(&listener).unwrap() else {
            panic!("a TCP address")
        };
        let (remote, far_end, shared) = Remote::pair().unwrap();
        let inbox = Inbox::new(far_end, shared);
        let name = format!("{spec}, {interest:?}");
        let start = Start { spec: spec.clone(), config, service, listener, inbox };
        let thread = thread::Builder::new().name(name.clone());
        let thread = thread
            .spawn(move || {
                let mechanism = start.spec.name.clone();
                with_mechanism(&mechanism, start).unwrap();
            })
            .unwrap();
        Self { address, name, stop: Stop::Remote(remote), thread: Some(thread) }
    }

    /// Starts the engine that serves one connection after the other.
    fn start_blocking(service: Tester) -> Self {
        let mut config = Settings::new(".");
        config.limits.body = u64::MAX;
        let (queues, _) =
            Queues::open(&config.listen, config.backlog, config.way_to_accept(), 1).unwrap();
        let crate::config::Listen::Tcp(address) = queues.addresses().unwrap()[0] else {
            panic!("a TCP address")
        };
        let scoreboard = Arc::new(Scoreboard::new(1).unwrap());
        let slot = scoreboard.claim_slot().unwrap();
        let thread = thread::spawn(move || {
            let own = (Arc::new(Rules::new(&config)), WorkerState::new(None));
            let before = pollux_sys::counters();
            let mut engine = Blocking::new(&config, service, own, slot, before);
            engine.prepare(queues.of(0)).unwrap();
            while let Some(socket) = engine.accept(queues.of(0)).unwrap() {
                engine.serve(socket);
            }
        });
        Self {
            address,
            name: "blocking".into(),
            stop: Stop::Scoreboard(scoreboard),
            thread: Some(thread),
        }
    }

    fn client(&self) -> Client {
        Client::connect(self.address)
    }

    /// Returns the status and the content of the response to a GET, chunked or not.
    fn get(&self, path: &str) -> String {
        let mut client = self.client();
        client.send(format!("GET {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n"));
        content(&client.read_to_end_or_reset())
    }
}

impl Drop for TestEngine {
    fn drop(&mut self) {
        match &self.stop {
            Stop::Remote(remote) => remote.stop(Duration::ZERO),
            Stop::Scoreboard(scoreboard) => scoreboard.stop(Duration::ZERO),
        }
        let outcome = self.thread.take().unwrap().join();
        assert!(outcome.is_ok() || thread::panicking(), "{}: the engine panicked", self.name);
    }
}

/// Returns the status and the content of a response, and whether it was cut.
fn content(reply: &[u8]) -> String {
    let text = String::from_utf8_lossy(reply);
    let (head, mut rest) =
        text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no head: {text:?}"));
    let status = &head[9..12];
    if !head.contains("Transfer-Encoding: chunked") {
        return format!("{status} {rest}");
    }
    let mut content = String::new();
    loop {
        let Some((size, more)) = rest.split_once("\r\n") else {
            return format!("{status} {content} (cut)");
        };
        let size = usize::from_str_radix(size, 16).unwrap();
        if size == 0 {
            return format!("{status} {content}");
        }
        content.push_str(&more[..size]);
        rest = &more[size + 2..];
    }
}

/// Echoes all input until its end, and sleeps for `pace` after each read. Returns the number of bytes.
fn echo(mut stream: impl Read + Write, pace: Duration) -> usize {
    let mut buffer = vec![0; 64 << 10];
    let mut all = 0;
    loop {
        match stream.read(&mut buffer) {
            Ok(0) | Err(_) => return all,
            Ok(count) => {
                all += count;
                if stream.write_all(&buffer[..count]).is_err() {
                    return all;
                }
            }
        }
        // A slow upstream server.
        thread::sleep(pace);
    }
}

/// Starts the servers that the tests' services dial: echo servers on TCP and at a path.
fn upstreams(directory: &std::path::Path) -> (SocketAddr, std::path::PathBuf) {
    let upstream = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = upstream.local_addr().unwrap();
    thread::spawn(move || {
        for stream in upstream.incoming() {
            thread::spawn(move || echo(stream.unwrap(), Duration::ZERO));
        }
    });
    let path = directory.join("echo");
    let unix = UnixListener::bind(&path).unwrap();
    thread::spawn(move || {
        for stream in unix.incoming() {
            thread::spawn(move || echo(stream.unwrap(), Duration::ZERO));
        }
    });
    (address, path)
}

/// Runs `test`, which uses one connection at a time, also on the blocking engine.
fn on_every_engine(test: impl Fn(&TestEngine) + Sync) {
    let directory = tempfile::tempdir().unwrap();
    let (address, path) = upstreams(directory.path());
    let running = TestEngine::start_blocking(Tester::new(address, path));
    thread::scope(|scope| {
        scope.spawn(|| test(&running));
        on_every_mechanism(&test);
    });
}

/// Runs `test` for each mechanism in each discipline, all at once, because the tests mostly wait.
fn on_every_mechanism(test: impl Fn(&TestEngine) + Sync) {
    let directory = tempfile::tempdir().unwrap();
    let (address, path) = upstreams(directory.path());
    // All tests share this process's descriptors, and select accepts only those below FD_SETSIZE: it runs
    // first, and one test runs at a time.
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let all = registry::ALL.iter().map(|description| description.name);
    let (first, rest): (Vec<_>, Vec<_>) = all.partition(|name| *name == "select");
    let mut tested = 0;
    for names in [first, rest] {
        thread::scope(|scope| {
            for name in names {
                let spec: MechanismSpec = name.parse().unwrap();
                if let Err(reason) = registry::probe(&spec) {
                    eprintln!("skipped: {spec}: {reason}");
                    continue;
                }
                for interest in [Discipline::Eager, Discipline::PerState] {
                    tested += 1;
                    let tester = Tester::new(address, path.clone());
                    let running = TestEngine::start(&spec, interest, tester);
                    let test = &test;
                    let thread = thread::Builder::new().name(running.name.clone());
                    thread.spawn_scoped(scope, move || test(&running)).unwrap();
                }
            }
        });
    }
    assert!(tested >= 8, "only {tested} could be tested");
}

static TURN: Mutex<()> = Mutex::new(());

#[test]
fn an_upstream_answers_for_the_application() {
    on_every_engine(|running| {
        for path in ["/echo/hello", "/unix/hello"] {
            for _ in 0..3 {
                assert_eq!(running.get(path), "200 hello", "{}", running.name);
            }
        }
        // Several requests on one connection, pipelined.
        let mut client = running.client();
        client
            .send("GET /echo/a HTTP/1.1\r\nHost: t\r\n\r\nGET /late/1 HTTP/1.1\r\nHost: t\r\n\r\n");
        client.send("GET /echo/b HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n");
        let all = client.read_to_end_or_reset();
        let text = String::from_utf8_lossy(&all);
        assert_eq!(text.matches("HTTP/1.1 200").count(), 3, "{}: {text}", running.name);
        let (a, late, b) = (text.find("\r\na\r\n"), text.find("late"), text.find("\r\nb\r\n"));
        assert!(a.is_some() && a < late && late < b, "{}: {text}", running.name);
    });
}

#[test]
fn alarms_come_neither_early_nor_never() {
    on_every_engine(|running| {
        let started_at = Instant::now();
        assert_eq!(running.get("/late/3"), "200 late", "{}", running.name);
        assert!(started_at.elapsed() >= Duration::from_millis(300), "{}", running.name);
        // A cancelled alarm causes no event.
        assert_eq!(running.get("/cancelled-alarm"), "200 second", "{}", running.name);
    });
}

#[test]
fn a_failed_dial_is_delivered_with_its_reason() {
    on_every_engine(|running| {
        assert!(running.get("/refused").starts_with("502"), "{}", running.name);
        assert!(running.get("/refused").contains("connection refused"), "{}", running.name);
        assert!(running.get("/no-socket").contains("entity not found"), "{}", running.name);
        let started_at = Instant::now();
        assert!(running.get("/unanswered").contains("timed out"), "{}", running.name);
        assert!(started_at.elapsed() >= Duration::from_millis(200), "{}", running.name);
    });
}

#[test]
fn a_stream_waits_for_its_reader_and_loses_nothing() {
    on_every_engine(|running| {
        let mut client = running.client();
        client.send("GET /stream/100 HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n");
        // The buffers fill before the client reads.
        wait_until_stalled(client.socket());
        let all = client.read_to_end_or_reset();
        assert!(all.ends_with(b"\r\n0\r\n\r\n"), "{}: {} bytes", running.name, all.len());
        assert_eq!(all.iter().filter(|byte| **byte == b'~').count(), 100 << 16, "{}", running.name);
        let most: usize = running.get("/most")[4..].parse().unwrap();
        assert!(most <= 3 << 16, "{}: {most} bytes were held at once", running.name);
    });
}

#[test]
fn an_upload_waits_for_its_taker_and_loses_nothing() {
    on_every_mechanism(|running| {
        let len = 4 << 20;
        let mut client = running.client();
        client.send(format!(
            "POST /upload HTTP/1.1\r\nHost: t\r\nConnection: close\r\nContent-Length: {len}\r\n\r\n"
        ));
        let mut writer = client.socket().try_clone().unwrap();
        let writing = thread::spawn(move || writer.write_all(&vec![b'~'; len]));
        let all = client.read_to_end_or_reset();
        writing.join().unwrap().unwrap();
        let bytes = all.iter().filter(|byte| **byte == b'~').count();
        assert_eq!(bytes, len, "{}: the echo of the upload", running.name);
        assert!(all.ends_with(b"0\r\n\r\n"), "{}", running.name);
        let most: usize = running.get("/most")[4..].parse().unwrap();
        assert!(most <= 3 << 16, "{}: {most} bytes were held at once", running.name);
    });
}

#[test]
fn many_waiting_exchanges_are_woken_by_one() {
    on_every_mechanism(|running| {
        let mut waiting: Vec<Client> = (0..40).map(|_| running.client()).collect();
        for client in &mut waiting {
            client.send("GET /wait HTTP/1.1\r\nHost: t\r\n\r\n");
        }
        let what = format!("40 exchanges that wait in {}", running.name);
        wait_until(&what, || running.get("/waiting") == "200 40");
        assert_eq!(running.get("/event"), "200 40", "{}", running.name);
        for client in &mut waiting {
            assert_eq!(client.reply().text(), "woken", "{}", running.name);
            assert_eq!(client.get("/most").status, 200, "{}", running.name);
        }
    });
}

#[test]
fn a_upstream_of_the_application_serves_many_exchanges() {
    on_every_mechanism(|running| {
        let mut clients: Vec<Client> = (0..20).map(|_| running.client()).collect();
        for _ in 0..5 {
            for client in &mut clients {
                client.send("GET /pooled HTTP/1.1\r\nHost: t\r\n\r\n".repeat(3));
            }
            for client in &mut clients {
                for _ in 0..3 {
                    assert_eq!(client.reply().text(), "pooled 112", "{}", running.name);
                }
            }
        }
    });
}

#[test]
fn an_exchange_whose_client_has_gone_is_notified() {
    on_every_mechanism(|running| {
        let mut reset = running.client();
        reset.send("GET /wait HTTP/1.1\r\nHost: t\r\n\r\n");
        let what = format!("an exchange that waits in {}", running.name);
        wait_until(&what, || running.get("/waiting") == "200 1");
        // A half-close is delivered as `ClientEnded`, and an exchange that waits may still answer.
        let mut half = running.client();
        half.send("GET /until-end HTTP/1.1\r\nHost: t\r\n\r\n");
        // Usually the exchange waits by now. If it does not, the end arrives together with the request.
        thread::sleep(Duration::from_millis(20));
        half.socket().shutdown(Shutdown::Write).unwrap();
        assert_eq!(half.reply().text(), "ended", "{}", running.name);
        assert!(half.is_closed(), "{}", running.name);
        socket2::SockRef::from(reset.socket()).set_linger(Some(Duration::ZERO)).unwrap();
        drop(reset);
        let what = format!("the end of an exchange in {}", running.name);
        wait_until(&what, || running.get("/gone") == "200 1");
        // If a client pipelines without end while its response is pending, the server does not read without
        // end, and the loop does not spin.
        let mut flood = running.client();
        flood.send("GET /late/5 HTTP/1.1\r\nHost: t\r\n\r\n");
        flood.send("GET /most HTTP/1.1\r\nHost: t\r\n\r\n".repeat(2000));
        for _ in 0..2001 {
            assert_eq!(flood.reply().status, 200, "{}", running.name);
        }
    });
}

#[test]
fn a_tunnel_carries_both_ways_until_both_have_ended() {
    on_every_mechanism(|running| {
        let mut client = running.client();
        client.send("GET /tunnel HTTP/1.1\r\nHost: t\r\n\r\nearly");
        let mut stream = client.socket().try_clone().unwrap();
        let head = b"HTTP/1.1 101 Switching Protocols\r\n\r\nearly";
        let mut seen = vec![0; head.len()];
        stream.read_exact(&mut seen).unwrap();
        assert_eq!(seen, head, "{}", running.name);
        stream.write_all(b"ping").unwrap();
        stream.read_exact(&mut seen[..4]).unwrap();
        assert_eq!(&seen[..4], b"ping", "{}", running.name);
        // Send more than all buffers hold, and then the end of the stream.
        let mut writer = stream.try_clone().unwrap();
        let writing = thread::spawn(move || {
            writer.write_all(&vec![b't'; 4 << 20]).unwrap();
            writer.shutdown(Shutdown::Write).unwrap();
        });
        wait_until_stalled(&stream);
        let mut all = Vec::new();
        stream.read_to_end(&mut all).unwrap();
        writing.join().unwrap();
        assert!(
            all.len() == 4 << 20 && all.iter().all(|byte| *byte == b't'),
            "{}: {}",
            running.name,
            all.len()
        );
        assert_eq!(running.get("/late/0"), "200 late", "{}", running.name);
    });
}

#[test]
fn names_are_resolved_beside_the_loop() {
    on_every_engine(|running| {
        assert_eq!(running.get("/resolve/127.0.0.7"), "200 127.0.0.7:80", "{}", running.name);
        let worker = running.get("/resolve/localhost");
        assert!(
            worker.contains("127.0.0.1:80") || worker.contains("[::1]:80"),
            "{}: {worker}",
            running.name
        );
        // A label longer than the limit (RFC 1035 §2.3.4), so that no name server, which may never
        // answer, receives a query.
        let none = running.get(&format!("/resolve/{}.invalid", "a".repeat(64)));
        assert!(none.contains("cannot be resolved"), "{}: {none}", running.name);
    });
}

/// A silent name server delays neither alarms nor a stop, not even in a blocking worker.
#[test]
fn a_silent_name_server_delays_no_other_client() {
    let directory = tempfile::tempdir().unwrap();
    let (address, path) = upstreams(directory.path());
    let running = TestEngine::start_blocking(Tester::new(address, path));
    let started_at = Instant::now();
    let mut client = running.client();
    client.send(format!("GET /resolve/{} HTTP/1.1\r\nHost: t\r\n\r\n", silence::NAME));
    // The test cannot observe when the lookup has begun, so it pauses. A pause that is too short
    // lets the test pass; it does not make it fail.
    thread::sleep(Duration::from_millis(200));
    drop(running);
    let took = started_at.elapsed();
    silence::end();
    assert!(took < silence::LONGEST, "the stop has waited for a name: {took:?}");
    assert!(client.read_to_end_or_reset().is_empty());
}

/// Control test of [`echo`]: it echoes, and counts.
#[test]
fn the_upstream_echoes() {
    let (near, far) = UnixStream::pair().unwrap();
    let thread = thread::spawn(move || echo(far, Duration::ZERO));
    (&near).write_all(b"abc").unwrap();
    near.shutdown(Shutdown::Write).unwrap();
    let mut all = String::new();
    (&near).read_to_string(&mut all).unwrap();
    assert_eq!((all.as_str(), thread.join().unwrap()), ("abc", 3));
}
