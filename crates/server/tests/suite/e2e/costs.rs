//! Exact numbers of system calls.

use super::Fixture;
use pollux_server::stats::Counter;
use pollux_server::{
    Settings, Statistics,
    config::{Architecture, Discipline, LargeFile, MechanismChoice},
    settings::Realm,
};
use pollux_sys::{Call, Counters};
use pollux_testkit::wait_for;
use std::{
    fs::File,
    thread::sleep,
    time::{Duration, Instant, UNIX_EPOCH},
};

/// Sends `requests` GETs of `path` on one keep-alive connection, after a first GET. Returns the system
/// calls and the number of waits.
fn calls(fixture: &Fixture, path: &str, requests: usize) -> (Counters, u64) {
    let mut client = fixture.client();
    assert_eq!(client.get(path).status, 200);
    let before = fixture.server.statistics();
    for _ in 0..requests {
        assert_eq!(client.get(path).status, 200);
    }
    let after = fixture.server.statistics();
    assert_eq!(after.count(Counter::Requests) - before.count(Counter::Requests), requests as u64);
    (
        after.system_calls.since(&before.system_calls),
        after.count(Counter::Waits) - before.count(Counter::Waits),
    )
}

/// Gives the files an old modification time. A worker reads a file that has just changed again at the
/// next comparison with the disk, and that read would be counted.
fn make_old(config: &Settings, files: &[(&str, &[u8])]) {
    for (name, _) in files {
        let path = config.site.directory.as_ref().unwrap().join(name);
        let file = File::options().write(true).open(path).unwrap();
        file.set_modified(UNIX_EPOCH + Duration::from_secs(1_600_000_000)).unwrap();
    }
}

fn fixture(mechanism: &str, interest: Discipline, large_file: LargeFile) -> Fixture {
    let files: [(&str, &[u8]); 4] = [
        ("one", b"x"),
        ("six", &[b'y'; 6 << 10]),
        ("memory", &[b'z'; 100_000]),
        ("open", &[b'o'; 300_000]),
    ];
    Fixture::new(&files, |config| {
        make_old(config, &files);
        config.mechanism = MechanismChoice::Named(mechanism.parse().unwrap());
        config.interest = interest;
        config.large_file = large_file;
    })
}

/// The calls that a worker may make in addition: it compares the files of its cache with the disk,
/// twice a second, and receives the command that requests these statistics.
const NOT_OF_A_REQUEST: [Call; 3] = [Call::Stat, Call::Read, Call::Recvmsg];

fn assert_only(calls: &Counters, allowed: &[Call]) {
    for (call, count, _) in calls.iter() {
        let is_allowed = allowed.contains(&call) || NOT_OF_A_REQUEST.contains(&call);
        assert!(is_allowed, "{count} calls of {}", call.name());
    }
}

#[test]
fn a_keep_alive_request_is_one_receive_and_one_send() {
    const N: u64 = 300;
    let fixture = fixture("epoll-et", Discipline::Eager, LargeFile::MsgMore);
    for path in ["/one", "/six"] {
        let (calls, waits) = calls(&fixture, path, N as usize);
        assert_eq!(calls.of(Call::Recv), N, "{path}");
        assert_eq!(calls.of(Call::Send), N, "{path}");
        assert_eq!(calls.of(Call::EpollWait), waits, "{path}");
        // With a single client there is one wait for each request, and one for each reading of the
        // statistics; on a slow machine the timers wake the worker a few more times.
        assert!(waits <= N + N / 4 + 4, "{waits} waits for {N} requests of {path}");
        assert_only(&calls, &[Call::Recv, Call::Send, Call::EpollWait]);
    }
}

/// After a correct password, further requests with it need no additional system call; the check of the
/// `Origin` field needs none either.
#[test]
fn passwords_and_origins_take_no_further_call() {
    const N: u64 = 100;
    let files: [(&str, &[u8]); 1] = [("one", b"x")];
    let directory = tempfile::tempdir().unwrap();
    let users = directory.path().join("users");
    // The password is `secret`.
    let user = "u:$2y$04$abcdefghijklmnopqrstuu2r9OfJnfCsdneAXAGHnS4UpFFP8WIrW\n";
    std::fs::write(&users, user).unwrap();
    let area = users.to_str().unwrap().parse().unwrap();
    let fixture = Fixture::new(&files, |config| {
        make_old(config, &files);
        config.auth = Some(Realm::open(&[area], "a", false).unwrap().into());
        config.site.rules.cors = Some("https://a.example,https://b.example".parse().unwrap());
    });
    let mut client = fixture.client();
    let mut get = || {
        let fields = ["Authorization: Basic dTpzZWNyZXQ=", "Origin: https://b.example"];
        let reply = client.request("GET", "/one", &fields);
        assert_eq!(reply.status, 200);
        let allowed = reply.field("access-control-allow-origin");
        assert_eq!(allowed, Some("https://b.example"));
    };
    get();
    let before = fixture.server.statistics();
    (0..N).for_each(|_| get());
    let calls = fixture.server.statistics().system_calls.since(&before.system_calls);
    assert_eq!((calls.of(Call::Recv), calls.of(Call::Send)), (N, N));
    assert_only(&calls, &[Call::Recv, Call::Send, Call::EpollWait]);
}

#[test]
fn pipelined_requests_share_both() {
    let fixture = fixture("epoll-et", Discipline::Eager, LargeFile::MsgMore);
    let mut client = fixture.client();
    client.get("/one");
    let before = fixture.server.statistics();
    client.send("GET /one HTTP/1.1\r\nHost: test\r\n\r\n".repeat(32));
    for _ in 0..32 {
        assert_eq!(client.reply().text(), "x");
    }
    let calls = fixture.server.statistics().system_calls.since(&before.system_calls);
    assert_eq!((calls.of(Call::Recv), calls.of(Call::Send)), (1, 1));
}

#[test]
fn longer_content_is_sent_from_where_it_is() {
    const N: u64 = 50;
    for (large_file, corks) in [(LargeFile::MsgMore, 0), (LargeFile::Cork, 2 * N)] {
        let fixture = fixture("epoll-et", Discipline::Eager, large_file);
        let (of_memory, _) = calls(&fixture, "/memory", N as usize);
        // If the client is slow, the content is sent in several parts.
        assert!(of_memory.of(Call::Sendmsg) >= N);
        assert_eq!(of_memory.of(Call::Sendfile), 0);
        assert_eq!(of_memory.of(Call::Setsockopt), 0);
        let (of_open, _) = calls(&fixture, "/open", N as usize);
        assert_eq!(of_open.of(Call::Send), N, "the heads");
        assert!(of_open.of(Call::Sendfile) >= N);
        assert!(of_open.of(Call::Setsockopt) >= corks);
        assert_eq!(of_open.of(Call::Setsockopt) == 0, corks == 0);
    }
}

#[test]
fn per_state_changes_interest_twice_a_request_and_waits_twice() {
    const N: u64 = 100;
    for mechanism in ["epoll", "epoll-et"] {
        let fixture = fixture(mechanism, Discipline::PerState, LargeFile::MsgMore);
        let (calls, waits) = calls(&fixture, "/one", N as usize);
        assert_eq!(calls.of(Call::EpollCtl), 2 * N, "{mechanism}");
        assert_eq!(calls.of(Call::Send), N, "{mechanism}");
        assert_eq!(calls.of(Call::Recv), N, "{mechanism}");
        assert!(waits >= 2 * N, "{waits} waits for {N} requests of {mechanism}");
    }
}

#[test]
fn a_connection_a_request_costs_five_calls_and_its_share_of_the_accepts() {
    const N: u64 = 100;
    let fixture = fixture("epoll-et", Discipline::Eager, LargeFile::MsgMore);
    let get = || fixture.client().request("GET", "/one", &["Connection: close"]);
    // The first connection is not kept alive either; otherwise its end would be counted among the N.
    get();
    let before = fixture.server.statistics();
    for _ in 0..N {
        assert_eq!(get().text(), "x");
    }
    let after = fixture.server.statistics();
    let calls = after.system_calls.since(&before.system_calls);
    for call in [Call::EpollCtl, Call::Recv, Call::Send, Call::Close] {
        assert_eq!(calls.of(call), N, "{}", call.name());
    }
    // accept4 is called on an edge-triggered listener until it returns EAGAIN.
    assert!((N..=2 * N).contains(&calls.of(Call::Accept)));
    assert_only(
        &calls,
        &[Call::EpollCtl, Call::Recv, Call::Send, Call::Close, Call::Accept, Call::EpollWait],
    );
}

/// Starts a server with threads, each of which serves one connection at a time.
fn threads() -> Fixture {
    let files: [(&str, &[u8]); 2] = [("one", b"x"), ("open", &[b'o'; 300_000])];
    Fixture::new(&files, |config| {
        make_old(config, &files);
        config.architecture = Architecture::Prethreaded;
    })
}

/// Returns the statistics once they contain this many requests: a thread publishes its own just before
/// it waits.
fn figures(fixture: &Fixture, requests: u64) -> Statistics {
    let figures = wait_for(&format!("{requests} requests in the statistics"), || {
        let figures = fixture.server.statistics();
        (figures.count(Counter::Requests) >= requests).then_some(figures)
    });
    assert_eq!(figures.count(Counter::Requests), requests);
    figures
}

#[test]
fn a_thread_waits_for_a_brisk_client_in_recv_itself() {
    const FIRST: u64 = 16;
    const N: u64 = 1000;
    let fixture = threads();
    let mut client = fixture.client();
    let mut get = |requests| {
        for _ in 0..requests {
            assert_eq!(client.get("/one").text(), "x");
        }
    };
    get(FIRST);
    let before = figures(&fixture, FIRST);
    get(N);
    let calls = figures(&fixture, FIRST + N).system_calls.since(&before.system_calls);
    assert_eq!(calls.of(Call::Send), N);
    // On a slow machine the client sometimes pauses: then the thread calls ppoll, and one recv finds
    // no input.
    let slow = calls.of(Call::Poll);
    assert!(slow <= N / 10, "{calls:?}");
    assert!((N..=N + slow + 1).contains(&calls.of(Call::Recv)), "{calls:?}");
    assert!(calls.of(Call::Setsockopt) + calls.of(Call::Ioctl) <= 2, "{calls:?}");
    assert_only(&calls, &[Call::Recv, Call::Send, Call::Poll, Call::Setsockopt, Call::Ioctl]);
}

/// Regression: for each request the server opened the file, examined it and read it.
#[test]
fn a_kept_connection_with_a_thread_of_its_own_reads_a_file_once() {
    const N: u64 = 100;
    let fixture = Fixture::new(&[("one", b"x")], |config| {
        make_old(config, &[("one", b"x")]);
        config.architecture = Architecture::Threaded;
    });
    let mut client = fixture.client();
    assert_eq!(client.get("/one").text(), "x");
    let before = figures(&fixture, 1);
    // Positive control: the calls of the first request, which its thread makes, are counted.
    assert!(before.system_calls.of(Call::Open) > 0, "{before:?}");
    for _ in 0..N {
        assert_eq!(client.get("/one").text(), "x");
    }
    let calls = figures(&fixture, 1 + N).system_calls.since(&before.system_calls);
    assert_eq!((calls.of(Call::Open), calls.of(Call::Read)), (0, 0), "{calls:?}");
    assert_eq!(calls.of(Call::Send), N, "{calls:?}");
}

#[test]
fn a_client_that_is_no_longer_brisk_costs_one_wait() {
    let fixture = threads();
    let mut client = fixture.client();
    for _ in 0..100 {
        client.get("/one");
    }
    // The client is idle now: recv times out after 100 ms.
    let begun = Instant::now();
    let mut before = fixture.server.statistics();
    let mut still = 0;
    while still < 5 {
        assert!(begun.elapsed() < Duration::from_secs(60), "it never waits for long");
        // Long enough to show that no recv times out: there would be one every 100 ms.
        sleep(Duration::from_millis(200));
        let after = fixture.server.statistics();
        let calls = after.system_calls.since(&before.system_calls);
        still = if calls.of(Call::Recv) == 0 { still + 1 } else { 0 };
        before = after;
    }
    assert_eq!(client.get("/one").text(), "x");
}

#[test]
fn a_brisk_client_gets_long_files_too_and_a_stop_finds_it() {
    let fixture = threads();
    let mut client = fixture.client();
    for _ in 0..50 {
        client.get("/one");
    }
    for _ in 0..20 {
        assert_eq!(client.get("/open").body.len(), 300_000);
        assert_eq!(client.get("/one").text(), "x");
    }
    let mut other = fixture.client();
    for _ in 0..50 {
        other.get("/one");
    }
    // One client's thread waits in recv now, or has just done so; both clients are idle.
    let begun = Instant::now();
    let figures = fixture.server.stop(Duration::from_secs(60)).unwrap();
    assert!(begun.elapsed() < Duration::from_secs(30), "a stop was not heard");
    assert_eq!((figures.count(Counter::Requests), figures.open()), (140, 0));
    assert!(client.is_closed() && other.is_closed());
}
