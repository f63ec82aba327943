//! The same service on every mechanism of the registry, in both disciplines.

use super::Fixture;
use pollux_event::{Capabilities, MechanismSpec, registry};
use pollux_server::stats::Counter;
use pollux_server::{
    Settings,
    config::{Architecture, Discipline, MechanismChoice},
};
use pollux_testkit::{growth_within, http::Client, wait_until, wait_until_stalled};
use std::{
    io::Read,
    net::{Shutdown, TcpStream},
    num::NonZeroU32,
    sync::{LazyLock, Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

/// Returns every mechanism with each value of its own options.
fn specs() -> Vec<MechanismSpec> {
    let mut specs = Vec::new();
    for description in registry::ALL {
        specs.push(description.name.parse().unwrap());
        for (key, values, _) in description.own_options {
            for value in values.iter().skip(1) {
                specs.push(format!("{}:{key}={value}", description.name).parse().unwrap());
            }
        }
    }
    specs
}

/// The content of the large file.
static LARGE: LazyLock<Vec<u8>> =
    LazyLock::new(|| (0..6u32 << 20).map(|i| (i / 7) as u8).collect());

/// Lets only one of these tests run at a time, because together they would need too many descriptors.
static TURN: Mutex<()> = Mutex::new(());

/// Runs `test` for each mechanism in each discipline, all at once, because the tests mostly wait. Only
/// `select` is tested first: where unshare(2) is forbidden, all servers of this process share one file
/// table, and `select` can hold only descriptors below FD_SETSIZE.
fn on_every_mechanism(test: impl Fn(&dyn Fn(&dyn Fn(&mut Settings)) -> Fixture, &str) + Sync) {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let (first, rest): (Vec<_>, Vec<_>) = specs().into_iter().partition(|s| s.name == "select");
    let tested = all_at_once(first, &test) + all_at_once(rest, &test);
    // Every kernel since 2.6 has epoll.
    assert!(tested >= 4, "only {tested} could be tested");
}

fn all_at_once(
    specs: Vec<MechanismSpec>,
    test: &(impl Fn(&dyn Fn(&dyn Fn(&mut Settings)) -> Fixture, &str) + Sync),
) -> usize {
    let mut tested = 0;
    thread::scope(|scope| {
        for spec in specs {
            if let Err(reason) = registry::probe(&spec) {
                eprintln!("skipped: {spec}: {reason}");
                continue;
            }
            for interest in [Discipline::Eager, Discipline::PerState] {
                tested += 1;
                let spec = spec.clone();
                let name = format!("{spec}, {interest:?}");
                // The thread's name is in the message of a panic.
                let thread = thread::Builder::new().name(name.clone());
                let run = move || {
                    test(&|change| start(&spec, interest, change), &name);
                };
                thread.spawn_scoped(scope, run).unwrap();
            }
        }
    });
    tested
}

fn start(spec: &MechanismSpec, interest: Discipline, change: &dyn Fn(&mut Settings)) -> Fixture {
    let files: [(&str, &[u8]); 3] = [("index.html", b"hello"), ("empty", b""), ("large", &LARGE)];
    Fixture::new(&files, |config| {
        config.mechanism = MechanismChoice::Named(spec.clone());
        config.interest = interest;
        // No connection may time out only because the machine is busy.
        config.timeouts.keep_alive = Duration::from_secs(300);
        config.timeouts.header = Duration::from_secs(300);
        change(config);
    })
}

fn assert_large(body: &[u8], name: &str) {
    // Without the long list of numbers that `assert_eq!` would print.
    assert!(body == *LARGE, "{name}: {} of {} bytes, or wrong ones", body.len(), LARGE.len());
}

#[test]
fn serve_alike() {
    on_every_mechanism(|start, name| {
        let fixture = start(&|_| {});
        // Several requests on one connection, whole and in pieces.
        let mut client = fixture.client();
        for _ in 0..3 {
            assert_eq!(client.get("/").text(), "hello", "{name}");
        }
        assert_eq!(client.get("/empty").text(), "", "{name}");
        client.send_slowly(
            Duration::from_millis(2),
            ["GE", "T / HTTP/1.1\r\nHo", "st: test\r\n\r", "\n"],
        );
        assert_eq!(client.reply().text(), "hello", "{name}");
        // Large content, followed by a pipelined request that has to wait.
        client
            .send("GET /large HTTP/1.1\r\nHost: test\r\n\r\nGET / HTTP/1.1\r\nHost: test\r\n\r\n");
        wait_until_stalled(client.socket());
        client.send("GET /empty HTTP/1.1\r\nHost: test\r\n\r\n");
        assert_large(&client.reply().body, name);
        assert_eq!(client.reply().text(), "hello", "{name}");
        assert_eq!(client.reply().text(), "", "{name}");
        // More pipelined requests than fit into a receive buffer.
        client.send("GET / HTTP/1.1\r\nHost: test\r\n\r\n".repeat(2_000));
        for _ in 0..2_000 {
            assert_eq!(client.reply().text(), "hello", "{name}");
        }
        // The connection is closed at the client's request, and after the client half-closes it behind
        // a request.
        let reply = client.request("GET", "/", &["Connection: close"]);
        assert_eq!(reply.text(), "hello", "{name}");
        assert!(client.is_closed(), "{name}");
        let mut client = fixture.client();
        client.send("GET /large HTTP/1.1\r\nHost: test\r\n\r\n");
        client.socket().shutdown(Shutdown::Write).unwrap();
        assert_large(&client.reply().body, name);
        assert!(client.is_closed(), "{name}");
        let last = fixture.stop();
        assert_eq!(last.count(Counter::Requests), 2_010, "{name}");
        assert_eq!(
            (last.count(Counter::Accepted), last.count(Counter::TimedOut)),
            (2, 0),
            "{name}"
        );
    });
}

/// While a response cannot be sent, the server only records that input is available. It must not lose
/// an end of stream that follows the last request.
#[test]
fn see_the_end_that_came_while_they_were_sending() {
    on_every_mechanism(|start, name| {
        let fixture = start(&|_| {});
        let mut client = fixture.client();
        client.send("GET /large HTTP/1.1\r\nHost: test\r\n\r\n");
        client.socket().read_exact(&mut [0; 100]).unwrap();
        // The sockets' buffers fill up: then the server cannot send any more.
        wait_until_stalled(client.socket());
        client.send("GET / HTTP/1.1\r\nHost: test\r\n\r\n");
        client.socket().shutdown(Shutdown::Write).unwrap();
        // The events of the request and of the end of stream arrive, and the server must not act on
        // them: nothing shows that they have arrived.
        thread::sleep(Duration::from_millis(50));
        let mut rest = Vec::new();
        let end = client.socket().read_to_end(&mut rest);
        assert!(end.is_ok(), "{name}: no end after {} bytes: {end:?}", rest.len());
        assert!(rest.ends_with(b"\r\n\r\nhello"), "{name}: {} bytes", rest.len());
        assert_eq!(fixture.stop().count(Counter::Requests), 2, "{name}");
    });
}

/// Regression: connections with descriptors from FD_SETSIZE on were accepted and closed.
#[test]
fn select_lets_wait_whom_it_cannot_hold() {
    const CLIENTS: usize = 700;
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Err(reason) = pollux_testkit::with_descriptors(2 * CLIENTS as u64 + 200) {
        eprintln!("skipped: {reason}");
        return;
    }
    let fixture = start(&"select".parse().unwrap(), Discipline::Eager, &|_| {});
    // The server and the clients share the descriptors of this process, so that half as many
    // connections fit.
    let clients: Vec<Client> = (0..CLIENTS).map(|_| fixture.client()).collect();
    wait_until("a connection that does not fit", || {
        fixture.server.statistics().count(Counter::AcceptPauses) > 0
    });
    assert!(fixture.server.statistics().open() < 520);
    for mut client in clients {
        assert_eq!(client.get("/").text(), "hello");
    }
    let last = fixture.stop();
    assert_eq!((last.count(Counter::Accepted), last.count(Counter::Refused)), (CLIENTS as u64, 0));
}

#[test]
fn close_what_is_quiet_for_too_long() {
    on_every_mechanism(|start, name| {
        let fixture = start(&|config| {
            config.timeouts.keep_alive = Duration::from_millis(300);
            // Long enough for a client on a busy machine to connect and send.
            config.timeouts.header = Duration::from_secs(3);
        });
        let started_at = Instant::now();
        let mut silent = fixture.client();
        let mut idle = fixture.client();
        assert_eq!(idle.get("/").text(), "hello", "{name}");
        assert!(idle.is_closed(), "{name}");
        assert!(started_at.elapsed() >= Duration::from_millis(300), "{name}");
        assert!(silent.is_closed(), "{name}");
        assert!(started_at.elapsed() >= Duration::from_secs(3), "{name}");
        assert_eq!(fixture.stop().count(Counter::TimedOut), 2, "{name}");
    });
}

#[test]
fn accept_all_clients_whatever_the_limit() {
    const CLIENTS: usize = 40;
    on_every_mechanism(|start, name| {
        for limit in [NonZeroU32::new(1), NonZeroU32::new(10), None] {
            let fixture = start(&|config| config.accept_limit = limit);
            // All clients connect at once, so that one event reports several connections.
            let mut clients: Vec<Client> = (0..CLIENTS).map(|_| fixture.client()).collect();
            for client in &mut clients {
                assert_eq!(client.get("/").text(), "hello", "{name}, accept limit {limit:?}");
            }
            let statistics = fixture.server.statistics();
            assert_eq!(statistics.open(), CLIENTS as u64, "{name}");
            // The workers must not spin when they have nothing to do. (With epoll2 they do: that is
            // the finding about it.)
            let name_only = &fixture.server.mechanism().name;
            let capabilities = registry::find(name_only).unwrap().capabilities;
            if !capabilities.contains(Capabilities::SPURIOUS_WAKEUPS) {
                let waits = || fixture.server.statistics().count(Counter::Waits);
                let spun = growth_within(Duration::from_millis(100), waits);
                assert!(spun < 20, "{name}: {spun} waits with nothing to do");
            }
            drop(clients);
            fixture.stop();
        }
    });
}

/// Regression: level-triggered mechanisms reported the server's shutdown to the workers without end.
#[test]
fn end_when_the_server_is_dropped() {
    on_every_mechanism(|start, name| ends_when_dropped(start(&|_| {}), name));
    for architecture in [Architecture::Iterative, Architecture::Threaded, Architecture::Prethreaded]
    {
        let fixture = Fixture::new(&[("index.html", b"hello")], |config| {
            config.architecture = architecture;
        });
        ends_when_dropped(fixture, architecture.name());
    }
}

fn ends_when_dropped(fixture: Fixture, name: &str) {
    let address = fixture.address();
    let mut client = fixture.client();
    assert_eq!(client.get("/").text(), "hello", "{name}");
    drop(fixture);
    assert!(client.is_closed(), "{name}");
    wait_until(&format!("the end of {name}'s listener"), || TcpStream::connect(address).is_err());
}

#[test]
fn let_go_of_clients_that_vanish() {
    on_every_mechanism(|start, name| {
        let fixture = start(&|config| config.accept_limit = None);
        for request in ["", "GET / HT", "GET /large HTTP/1.1\r\nHost: test\r\n\r\n"] {
            let mut client = fixture.client();
            client.send(request);
            if request.len() > 20 {
                client.socket().read_exact(&mut [0; 10]).unwrap();
            }
        }
        wait_until(&format!("the end of {name}'s connections"), || {
            fixture.server.statistics().count(Counter::Closed) >= 3
        });
        assert_eq!(fixture.stop().count(Counter::TimedOut), 0, "{name}");
    });
}
