//! Signals that stop the server, and signals that request statistics.

use super::{BINARY, INDEX, assert_serves, content, serve, site};
use pollux_testkit::{
    KillOnDrop, ended_within, http::Client, serve::describe, stays_true, wait_until,
};
use rustix::process::Signal;
use std::{
    io::{BufRead, BufReader, Read},
    net::TcpStream,
    process::{Command, Stdio},
    time::Duration,
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
        wait_until("the end of accepting", || TcpStream::connect(&address).is_err());
        assert!(server.is_running());
        assert!(loading.read_to_end_or_reset().ends_with(&content(len)[len / 2..]));
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
        server.signal_and_wait(Signal::TERM);
        if second {
            assert!(stays_true(Duration::from_millis(200), || server.is_running()));
            server.signal(Signal::TERM);
        }
        let (status, last) = server.wait();
        assert!(status.success(), "{}", describe(status));
        assert_eq!(last["connections"]["open"], 1, "{last}");
    }
}

/// Returns the address of a server from its standard error.
fn address_from(stderr: &mut impl BufRead) -> String {
    let mut line = String::new();
    while !line.contains("http://") {
        line.clear();
        assert!(stderr.read_line(&mut line).unwrap() > 0, "it does not say where it listens");
    }
    line.split("http://").nth(1).unwrap().split_whitespace().next().unwrap().to_owned()
}

/// Regression: the server waited for its log to be written for ever, and ignored all signals.
#[test]
fn an_access_log_without_a_reader_does_not_keep_a_server_from_ending() {
    let site = site(0);
    let mut command = Command::new(BINARY);
    command.arg("serve").arg(site.path()).args(["--listen", "127.0.0.1:0", "--access-log", "-"]);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut server = KillOnDrop(child);
    let mut stderr = BufReader::new(server.0.stderr.take().unwrap());
    let address = address_from(&mut stderr);
    // Far more bytes than a pipe holds.
    let mut client = Client::connect(address);
    for _ in 0..10 {
        let request = format!("GET /{} HTTP/1.1\r\nHost: test\r\n\r\n", "a".repeat(500));
        client.send(request.repeat(60));
        for _ in 0..60 {
            assert_eq!(client.reply().status, 404);
        }
    }
    let pid = rustix::process::Pid::from_child(&server.0);
    rustix::process::kill_process(pid, Signal::TERM).unwrap();
    let status = ended_within(Duration::from_secs(60), &mut server.0).expect("it ends");
    assert!(status.success(), "{}", describe(status));
    let mut rest = String::new();
    stderr.read_to_string(&mut rest).unwrap();
    assert!(rest.contains("its last lines are lost"), "{rest}");
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
fn a_hangup_opens_the_access_log_anew_and_ends_nothing() {
    let site = site(0);
    let log = site.path().join("access.log");
    let moved = site.path().join("access.log.1");
    let mut server = serve(site.path(), &["--access-log", log.to_str().unwrap()]);
    assert_eq!(server.client().get("/first").status, 404);
    std::fs::rename(&log, &moved).unwrap();
    server.signal(Signal::HUP);
    wait_until("the new log", || log.exists());
    assert_eq!(server.client().get("/second").status, 404);
    assert!(server.is_running());
    assert!(server.stop().0.success());
    let (old, new) = [moved, log].map(|path| std::fs::read_to_string(path).unwrap()).into();
    assert!(!old.contains("/second") && new.contains("/second"), "{old}then {new}");
    assert!(old.contains("/first") != new.contains("/first"), "once: {old}then {new}");
}

#[test]
fn a_hangup_without_an_access_log_is_reported() {
    let site = site(0);
    let mut server = serve(site.path(), &[]);
    server.signal(Signal::HUP);
    // Signals are handled one by one: the statistics are printed after the hang-up is handled.
    server.signal(Signal::HUP);
    server.wait_until("both to be taken", |_| true);
    assert_serves(&server);
    let stderr = server.stderr_text();
    assert!(server.stop().0.success());
    assert!(stderr.contains("no access log"), "{stderr}");
}

/// As in `pollux serve DIR 2>&1 | head -1`, and when a terminal is closed: the server's output, here
/// its statistics, the reply to a hang-up and a warning, is lost, and the server continues.
#[test]
fn a_lost_standard_error_ends_nothing() {
    let site = site(0);
    let child = Command::new(BINARY)
        .arg("serve")
        .arg(site.path())
        .args(["--listen", "127.0.0.1:0", "--access-log", "/dev/full"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut server = KillOnDrop(child);
    let address = address_from(&mut BufReader::new(server.0.stderr.take().unwrap()));
    let pid = rustix::process::Pid::from_child(&server.0);
    for signal in [Signal::USR1, Signal::HUP, Signal::USR1] {
        rustix::process::kill_process(pid, signal).unwrap();
        assert_eq!(Client::connect(&address).get("/").text(), INDEX, "after {signal:?}");
        let is_running = || server.0.try_wait().unwrap().is_none();
        assert!(stays_true(Duration::from_millis(100), is_running), "it has ended");
    }
    rustix::process::kill_process(pid, Signal::TERM).unwrap();
    let status = server.0.wait().unwrap();
    assert!(status.success(), "{}", describe(status));
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
    client.read_to_end_or_reset();
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
