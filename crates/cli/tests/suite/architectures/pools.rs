//! How the workers of a pool get their connections.

use super::{LAST, in_each, serve, site, stop, tree};
use pollux_testkit::{http::Client, wait_until};
use std::{
    process::Command,
    thread,
    time::{Duration, Instant},
};

/// Waits for a time in which workers usually notice a stop, which nothing shows. If they have not, the
/// test shows less, and does not fail.
fn let_workers_notice_the_stop() {
    thread::sleep(Duration::from_millis(50));
}

const WAYS: [&str; 4] = ["blocking", "exclusive", "reuseport", "mutex"];

/// Runs `test` for both kinds of pool with every way to accept.
fn in_every_way(test: impl Fn(&'static str, &'static str) + Sync) {
    in_each(&["preforked", "prethreaded"], |architecture| {
        WAYS.iter().for_each(|way| test(architecture, way));
    });
}

#[test]
fn every_way_serves_all_clients() {
    let site = site(0);
    in_every_way(|architecture, way| {
        let server = serve(site.path(), architecture, &["--accept", way, "--pool", "4"]);
        let address = server.address().to_owned();
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..10 {
                        let mut client = Client::connect(&address);
                        client.send(LAST);
                        assert_eq!(client.reply().text(), "hello", "{architecture}, {way}");
                    }
                });
            }
        });
        let last = stop(server);
        assert_eq!(last["requests"], 80, "{architecture}, {way}: {last}");
        assert_eq!(last["connections"]["accepted"], 80, "{architecture}, {way}: {last}");
    });
}

/// All workers of the pool are busy at a stop: the clients that wait in the queue are served within
/// the grace period, and then the pool ends, with every way to accept.
#[test]
fn a_stop_is_heard_however_it_waits() {
    let site = site(0);
    in_every_way(|architecture, way| {
        // First, no worker is busy: all of them wait.
        let arguments = ["--accept", way, "--pool", "3", "--grace", "300s"];
        let server = serve(site.path(), architecture, &arguments);
        let started_at = Instant::now();
        stop(server);
        let took = started_at.elapsed();
        assert!(
            took < Duration::from_secs(30),
            "{architecture}, {way}: {took:?} to stop when idle"
        );
        let arguments = ["--accept", way, "--pool", "2", "--grace", "60s"];
        let mut server = serve(site.path(), architecture, &arguments);
        let mut held: Vec<_> = (0..2).map(|_| server.client()).collect();
        // With SO_REUSEPORT each worker has its own listener: which worker is busy depends on the
        // addresses and the kernel.
        if way != "reuseport" {
            for client in &mut held {
                client.send("POST / HTTP/1.1\r\nHost: test\r\nContent-Length: 1\r\n\r\n");
            }
            server.wait_until("both are busy", |now| now["connections"]["open"] == 2);
        }
        let mut late: Vec<_> = (0..3).map(|_| server.client()).collect();
        for client in &mut late {
            client.send("GET / HTTP/1.1\r\nHost: test\r\n\r\n");
        }
        server.signal(rustix::process::Signal::TERM);
        if way != "reuseport" {
            let_workers_notice_the_stop();
            for client in &mut held {
                client.send("x");
                assert_eq!(client.reply_to("POST").status, 405, "{architecture}, {way}");
            }
        }
        for client in &mut late {
            assert_eq!(client.reply().text(), "hello", "{architecture}, {way}");
        }
        // Both sides close: the server must not linger for a client.
        drop((held, late));
        assert!(server.wait().0.success());
    });
}

/// As many connections as allowed are busy at a stop: the clients that wait in the queue are served
/// within the grace period. Regression: `threaded` left the queue as it was, and all clients in it
/// were reset at the end.
#[test]
fn a_stop_serves_clients_that_wait_for_a_place() {
    let site = site(0);
    in_each(&["threaded", "forking", "event"], |architecture| {
        let arguments = ["--max-connections", "2", "--grace", "60s"];
        let mut server = serve(site.path(), architecture, &arguments);
        let mut held: Vec<_> = (0..2).map(|_| server.client()).collect();
        for client in &mut held {
            client.send("POST / HTTP/1.1\r\nHost: test\r\nContent-Length: 1\r\n\r\n");
        }
        if architecture == "event" {
            // The event architecture accepts no more connections at a stop, but its idle connections make room
            // for waiting clients.
            for client in &mut held {
                client.send("x");
                assert_eq!(client.reply_to("POST").status, 405);
            }
        }
        server.wait_until("all places to be taken", |now| now["connections"]["open"] == 2);
        let mut late: Vec<_> = (0..2).map(|_| server.client()).collect();
        for client in &mut late {
            client.send("GET / HTTP/1.1\r\nHost: test\r\n\r\n");
        }
        server.signal(rustix::process::Signal::TERM);
        if architecture != "event" {
            let_workers_notice_the_stop();
            for client in &mut held {
                client.send("x");
                assert_eq!(client.reply_to("POST").status, 405, "{architecture}");
            }
        }
        for client in &mut late {
            assert_eq!(client.reply().text(), "hello", "{architecture}");
        }
        drop((held, late));
        assert!(server.wait().0.success());
    });
}

/// If a process is killed while it holds the lock, the lock is released.
#[test]
fn the_lock_outlives_its_holder() {
    let site = site(0);
    let server = serve(site.path(), "preforked", &["--accept", "mutex", "--pool", "4"]);
    for _ in 0..6 {
        // Any of the processes may be waiting for a connection. All are killed, so that one of them
        // held the lock.
        for number in tree::children(server.pid()) {
            let pid = rustix::process::Pid::from_raw(number as i32).unwrap();
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            wait_until("the end of the killed process", || !tree::is_alive(number));
            let mut client = server.client();
            client.send(LAST);
            assert_eq!(client.reply().text(), "hello");
        }
    }
    stop(server);
}

/// Only one worker waits for a connection at a time, and the others do not call accept.
#[test]
fn a_connection_wakes_one_of_them() {
    const CONNECTIONS: u64 = 60;
    let site = site(0);
    in_each(&["preforked", "prethreaded"], |architecture| {
        for way in ["blocking", "exclusive", "mutex"] {
            let server = serve(site.path(), architecture, &["--accept", way, "--pool", "16"]);
            for _ in 0..CONNECTIONS {
                let mut client = server.client();
                client.send(LAST);
                assert_eq!(client.reply().text(), "hello");
            }
            let last = stop(server);
            let count = |name: &str| last["system_calls"][name]["count"].as_u64().unwrap_or(0);
            // accept is called before each wait and after it, and once more by all workers at the
            // stop.
            let accepts = count("accept4");
            assert!(accepts <= 3 * CONNECTIONS + 64, "{architecture}, {way}: {accepts}: {last}");
        }
    });
}

#[test]
fn what_cannot_be_is_refused() {
    let site = site(0);
    for (arguments, word) in [
        (&["--accept", "mutex"][..], "no pool"),
        (&["--architecture", "forking", "--accept", "mutex"], "no pool"),
        (&["--architecture", "forking", "--pool", "3"], "no pool"),
        (&["--architecture", "preforked", "--accept", "thunder"], "exclusive"),
        (&["--architecture", "preforked", "--mechanism", "poll"], "--mechanism"),
        (
            &["--architecture", "preforked", "--accept", "blocking", "--listen", "127.0.0.1:0"],
            "one listener only",
        ),
        (
            &["--architecture", "prethreaded", "--accept", "reuseport", "--listen", "unix:/x"],
            "SO_REUSEPORT",
        ),
    ] {
        let output = Command::new("timeout")
            .args(["20", super::BINARY, "serve"])
            .arg(site.path())
            .args(["--listen", "127.0.0.1:0"])
            .args(arguments)
            .output()
            .unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {stderr}");
        assert!(stderr.contains(word), "{arguments:?}: no {word} in {stderr}");
    }
}
