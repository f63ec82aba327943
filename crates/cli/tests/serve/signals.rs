//! Stopping, and asking how it goes.

use crate::{INDEX, assert_serves, content, serve, site};
use pollux_testkit::serve::describe;
use rustix::process::Signal;
use std::{
    io::Read,
    net::TcpStream,
    thread,
    time::{Duration, Instant},
};

#[test]
fn a_stop_lets_what_is_in_flight_end() {
    let len = 16 << 20;
    let site = site(len);
    for (signal, workers) in [(Signal::TERM, "1"), (Signal::INT, "3")] {
        let mut server = serve(site.path(), &["--grace", "30s", "--workers", workers]);
        let address = server.address().to_owned();
        let mut idle = server.client();
        assert_eq!(idle.get("/").text(), INDEX);
        let mut loading = server.client();
        loading.send("GET /large.bin HTTP/1.1\r\nHost: test\r\n\r\n");
        let mut start = [0; 1000];
        loading.socket().read_exact(&mut start).unwrap();
        server.signal(signal);
        assert!(idle.is_closed(), "an idle connection is closed at once");
        let started_at = Instant::now();
        while TcpStream::connect(&address).is_ok() {
            assert!(started_at.elapsed() < Duration::from_secs(20), "it still accepts");
            thread::sleep(Duration::from_millis(10));
        }
        assert!(server.is_running());
        assert!(loading.read_to_the_end().ends_with(&content(len)[len / 2..]));
        let (status, last) = server.wait();
        assert!(status.success(), "{}", describe(status));
        assert_eq!(last["requests"], 2, "{last}");
        assert_eq!(last["connections"]["open"], 0, "{last}");
    }
}

#[test]
fn the_grace_time_ends_and_a_second_signal_ends_it_at_once() {
    let site = site(16 << 20);
    for (grace, second) in [("1s", false), ("1h", true)] {
        let mut server = serve(site.path(), &["--grace", grace]);
        let mut stuck = server.client();
        stuck.send("GET /large.bin HTTP/1.1\r\nHost: test\r\n\r\n");
        stuck.socket().read_exact(&mut [0; 10]).unwrap();
        server.signal(Signal::TERM);
        if second {
            thread::sleep(Duration::from_millis(200));
            assert!(server.is_running());
            server.signal(Signal::TERM);
        }
        let (status, last) = server.wait();
        assert!(status.success(), "{}", describe(status));
        assert_eq!(last["connections"]["open"], 1, "{last}");
    }
}

#[test]
fn statistics_count_what_was_done() {
    let site = site(0);
    let mut server = serve(site.path(), &["--time-system-calls", "--mechanism", "epoll"]);
    let first = server.statistics();
    assert_eq!((&first["mechanism"], &first["requests"]), (&"epoll".into(), &0.into()));
    assert_serves(&server);
    let mut client = server.client();
    for _ in 0..9 {
        client.get("/");
    }
    drop(client);
    let then = server.wait_until("both to be gone", |s| s["connections"]["closed"] == 2);
    assert_eq!(then["requests"], 10);
    assert_eq!(then["connections"]["accepted"], 2);
    let calls = &then["system_calls"];
    assert_eq!(calls["sendto"]["count"], 10, "{calls}");
    assert!(calls["sendto"]["ns"].as_u64().unwrap() > 0, "{calls}");
    assert!(then["bytes_sent"].as_u64().unwrap() > 10 * INDEX.len() as u64);
    assert!(then["waits"].as_u64() > first["waits"].as_u64());
    server.stop();
}

#[test]
fn an_access_log_has_a_line_for_each_request() {
    let site = site(0);
    let log = site.path().join("access.log");
    let server = serve(site.path(), &["--access-log", log.to_str().unwrap(), "--workers", "2"]);
    assert_serves(&server);
    assert_eq!(server.client().get("/none").status, 404);
    let mut client = server.client();
    client.send("nonsense\r\n\r\n");
    client.read_to_the_end();
    let (status, _) = server.stop();
    assert!(status.success());
    let text = std::fs::read_to_string(&log).unwrap();
    let mut lines: Vec<_> = text
        .lines()
        .map(|line| {
            let (start, rest) = line.split_once(" [").unwrap();
            assert_eq!(start, "127.0.0.1 - -");
            rest.split_once("] ").unwrap().1
        })
        .collect();
    lines.sort_unstable();
    assert_eq!(lines[0].split(' ').nth(1), Some("400"), "{lines:?}");
    assert!(lines[1].starts_with("\"GET / HTTP/1.1\" 200 18"), "{lines:?}");
    assert!(lines[2].starts_with("\"GET /none HTTP/1.1\" 404 "), "{lines:?}");
    assert_eq!(lines.len(), 3);
}
