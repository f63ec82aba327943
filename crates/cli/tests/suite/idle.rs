//! `pollux idle` as a program: its output, and its exit statuses.

use crate::load_server::Server;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use std::{
    io::{BufRead, BufReader, Write},
    net::TcpListener,
    process::{Command, Output, Stdio},
    sync::mpsc,
    thread,
};

fn pollux(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pollux"));
    command.args(arguments).stdin(Stdio::null());
    command
}

fn run(arguments: &[&str]) -> Output {
    pollux(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[test]
fn idle_holds_connections_and_reports() {
    let server = Server::good("hello");
    let address = server.address.to_string();
    let out = run(&[
        "idle",
        &address,
        "--connections",
        "40",
        "--kind",
        "after-request",
        "--duration",
        "300ms",
        "--json",
    ]);
    assert!(out.status.success(), "{}", text(&out.stderr));
    let lines: Vec<Value> =
        text(&out.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 2);
    assert_eq!((&lines[0]["event"], &lines[0]["held"]), (&"holding".into(), &40.into()));
    assert_eq!((&lines[1]["event"], &lines[1]["held"]), (&"statistics".into(), &40.into()));
    assert_eq!(lines[1]["interrupted"], false);
    assert_eq!(server.counters.heads().len(), 40);

    let out = run(&["idle", "127.0.0.1", "--connections", "1"]);
    assert_eq!(out.status.code(), Some(2));
    assert!(text(&out.stderr).contains("HOST:PORT"), "{}", text(&out.stderr));

    for (flag, value, part) in [("--timeout", "0s", "--timeout 0"), ("-z", "1e19", "100 years")] {
        let out = run(&["idle", &address, "--connections", "1", flag, value]);
        assert_eq!(out.status.code(), Some(2));
        assert!(text(&out.stderr).contains(part), "{}", text(&out.stderr));
    }
    for (server, flags, part) in [
        (format!("https://{address}/"), &["--cacert", "/no/such/file"][..], "/no/such/file"),
        (address.clone(), &["--insecure"], "--insecure is about TLS"),
    ] {
        let out = run(&[&["idle", &server, "-c", "1"], flags].concat());
        assert_eq!(out.status.code(), Some(2), "{}", text(&out.stderr));
        assert!(text(&out.stderr).contains(part), "{}", text(&out.stderr));
    }

    let url = format!("http://{address}/of/the/url");
    let kept = ["--kind", "after-request", "-c", "1", "-z", "100ms"];
    let out = run(&[&["idle", &url], &kept[..]].concat());
    assert!(out.status.success(), "{}", text(&out.stderr));
    assert!(server.counters.heads()[40].starts_with("GET /of/the/url HTTP/1.1\r\n"));
}

/// Ends `pollux idle` with three connections to a server that answers `answered` of them. If the
/// server has answered all, it closes them first, and is silent from then on.
fn idle_of_three(answered: usize) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (is_time, wait) = mpsc::channel();
    let serving = thread::spawn(move || {
        let mut streams: Vec<_> = (0..3).map(|_| listener.accept().unwrap().0).collect();
        for stream in streams.iter_mut().take(answered) {
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").unwrap();
        }
        let held: bool = wait.recv().unwrap();
        if held {
            streams.clear();
            // `pollux idle` has noticed the closing, and connects again.
            streams.push(listener.accept().unwrap().0);
        }
        (listener, streams)
    });
    let mut child = pollux(&["idle", &address, "--kind", "after-request", "-c", "3", "--json"])
        .args(["--timeout", "1h"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut next = || -> Value { serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap() };
    let holds = answered == 3;
    if holds {
        assert_eq!(next()["event"], "holding");
    }
    is_time.send(holds).unwrap();
    // `pollux idle` handles signals once all connections are established.
    let _server = serving.join().unwrap();
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    let statistics = next();
    assert_eq!(statistics["event"], "statistics");
    assert!(statistics["held"].as_u64().unwrap() < 3, "{statistics}");
    let out = child.wait_with_output().unwrap();
    let stderr = text(&out.stderr);
    assert_eq!(out.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("of 3 idle connections were open at the end"), "{stderr}");
}

#[test]
fn idle_that_is_stopped_while_it_fills_has_not_held_all() {
    idle_of_three(2);
}

#[test]
fn idle_whose_connections_were_lost_has_not_held_all() {
    idle_of_three(3);
}
