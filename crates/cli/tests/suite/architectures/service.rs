//! The behaviour that all architectures have in common.

use super::{ALL, CONCURRENT, LAST, content, in_each, serve, site, stop};
use pollux_testkit::{
    http::Client,
    serve::{Serve, describe},
    stays_true, wait_until, wait_until_stalled,
};
use rustix::process::Signal;
use std::{
    fs,
    io::{Read, Write},
    net::{Shutdown, TcpStream},
    os::unix::net::UnixStream,
    path::Path,
    thread,
    time::{Duration, Instant},
};

const LARGE: usize = 6 << 20;

#[test]
fn all_serve_alike_and_count_alike() {
    let site = site(LARGE);
    in_each(&ALL, |architecture| {
        let mut server = serve(site.path(), architecture, &[]);
        let mut client = server.client();
        for _ in 0..3 {
            assert_eq!(client.get("/").text(), "hello");
        }
        client
            .send("GET /large HTTP/1.1\r\nHost: test\r\n\r\nGET / HTTP/1.1\r\nHost: test\r\n\r\n");
        wait_until_stalled(client.socket());
        assert!(client.reply().body == content(LARGE));
        assert_eq!(client.reply().text(), "hello");
        client.send("GET / HTTP/1.1\r\nHost: test\r\n\r\n".repeat(2_000));
        for _ in 0..2_000 {
            assert_eq!(client.reply().text(), "hello");
        }
        // The statistics include requests in flight as soon as the worker that serves them waits
        // again.
        server.wait_until("all to be counted", |now| {
            now["requests"] == 2_005 && now["connections"]["open"] == 1
        });
        let reply = client.request("GET", "/", &["Connection: close"]);
        assert_eq!(reply.text(), "hello");
        assert!(client.is_closed());
        let mut client = server.client();
        client.send("GET /large HTTP/1.1\r\nHost: test\r\n\r\n");
        client.socket().shutdown(Shutdown::Write).unwrap();
        assert!(client.reply().body == content(LARGE));
        assert!(client.is_closed());
        let last = stop(server);
        assert_eq!(last["requests"], 2_007, "{last}");
        let connections = &last["connections"];
        let counts = ["accepted", "closed", "open", "refused"].map(|name| &connections[name]);
        assert_eq!(counts, [2, 2, 0, 0], "{last}");
        assert!(last["bytes_sent"].as_u64() > Some(2 * LARGE as u64), "{last}");
        let calls = &last["system_calls"];
        assert!(calls["accept4"]["count"].as_u64() >= Some(2), "{last}");
        assert!(calls["recvfrom"]["count"].as_u64() > Some(4), "{last}");
    });
}

/// Many clients at a time, each with a new connection for each request: every request is answered and
/// counted.
#[test]
fn figures_are_whole_whichever_unit_served() {
    const CLIENTS: u64 = 8;
    const EACH: u64 = 12;
    let site = site(0);
    in_each(&ALL, |architecture| {
        let log = site.path().join(format!("log-{architecture}"));
        let server = serve(site.path(), architecture, &["--access-log", log.to_str().unwrap()]);
        let address = server.address().to_owned();
        thread::scope(|scope| {
            for _ in 0..CLIENTS {
                scope.spawn(|| {
                    for _ in 0..EACH {
                        let mut client = Client::connect(&address);
                        client.send(LAST);
                        assert_eq!(client.reply().text(), "hello");
                        assert!(client.is_closed());
                    }
                });
            }
        });
        let last = stop(server);
        assert_eq!(last["requests"], CLIENTS * EACH, "{last}");
        let connections = &last["connections"];
        assert_eq!(connections["accepted"], CLIENTS * EACH, "{last}");
        assert_eq!(connections["closed"], CLIENTS * EACH, "{last}");
        assert_eq!(last["log_lines_dropped"], 0, "{last}");
        let text = fs::read_to_string(log).unwrap();
        assert_eq!(text.lines().count() as u64, CLIENTS * EACH, "{text}");
        for line in text.lines() {
            assert!(line.starts_with("127.0.0.1 - - ["), "{line}");
            assert!(line.ends_with("\"GET / HTTP/1.1\" 200 5"), "{line}");
        }
    });
}

#[test]
fn what_is_quiet_for_too_long_is_closed() {
    let site = site(0);
    in_each(&ALL, |architecture| {
        let server = serve(
            site.path(),
            architecture,
            // The header timeout is long enough for a client on a busy machine to connect and send.
            &["--keep-alive", "300ms", "--header-timeout", "3s"],
        );
        let started_at = Instant::now();
        let mut idle = server.client();
        assert_eq!(idle.get("/").text(), "hello");
        assert!(idle.is_closed());
        assert!(started_at.elapsed() >= Duration::from_millis(300));
        let started_at = Instant::now();
        let mut partial = server.client();
        partial.send("GET / HTTP/1.1\r\n");
        assert_eq!(partial.reply().status, 408);
        assert!(partial.is_closed());
        assert!(started_at.elapsed() >= Duration::from_secs(3));
        assert_eq!(stop(server)["connections"]["timed_out"], 2);
    });
}

/// An iterative server serves no other client while one client keeps it waiting, until a timeout. All
/// other architectures serve in the meantime: there the slow client has minutes.
#[test]
fn only_an_iterative_server_waits_for_a_slow_client() {
    let site = site(0);
    in_each(&ALL, |architecture| {
        let is_iterative = architecture == "iterative";
        let header = if is_iterative { "2s" } else { "300s" };
        let arguments = ["--header-timeout", header, "--grace", "1ms"];
        let server = serve(site.path(), architecture, &arguments);
        let started_at = Instant::now();
        let mut slow = server.client();
        slow.send("GET / HT");
        let mut other = server.client();
        other.send(LAST);
        if is_iterative {
            other.socket().set_read_timeout(Some(Duration::from_millis(500))).unwrap();
            let is_served = other.socket().peek(&mut [0; 1]).is_ok();
            // If this test was delayed, the time of the slow client may be over.
            let is_turn = started_at.elapsed() >= Duration::from_secs(2);
            assert!(!is_served || is_turn, "it served two at a time");
            // The other client is not lost: it is served when the time of the slow one is over.
            other.socket().set_read_timeout(Some(Duration::from_secs(30))).unwrap();
            assert_eq!(slow.reply().status, 408);
        }
        assert_eq!(other.reply().text(), "hello");
        stop(server);
    });
}

#[test]
fn a_client_that_no_unit_can_serve_yet_waits_and_is_not_lost() {
    let site = site(0);
    in_each(&["forking", "preforked", "threaded", "prethreaded"], |architecture| {
        let has_pool = architecture.starts_with("pre");
        let limit = if has_pool { "--pool" } else { "--max-connections" };
        let arguments = [limit, "2", "--idle-eviction", "off"];
        let server = serve(site.path(), architecture, &arguments);
        let mut held: Vec<_> = (0..2).map(|_| server.client()).collect();
        for client in &mut held {
            assert_eq!(client.get("/").text(), "hello");
        }
        let mut late: Vec<_> = (0..5).map(|_| server.client()).collect();
        for client in &mut late {
            client.send(LAST);
        }
        late[0].socket().set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        assert!(late[0].socket().read(&mut [0; 1]).is_err(), "{architecture}: a third one");
        late[0].socket().set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        if !has_pool {
            // With a pool, there may be room again before the acceptor has noticed that there was
            // none.
            wait_until("the message about the limit", || {
                server.stderr_text().contains("(Reported once.)")
            });
        }
        drop(held);
        for client in &mut late {
            assert_eq!(client.reply().text(), "hello", "{architecture}");
        }
        let stderr = server.stderr_text();
        let times = stderr.matches("(Reported once.)").count();
        assert_eq!(times, usize::from(!has_pool), "{stderr}");
        assert_eq!(stop(server)["requests"], 7, "{architecture}");
    });
}

/// Requests in flight are completed; later connections are refused, and not left in a queue that no
/// process serves.
#[test]
fn a_stop_ends_requests_in_flight_and_accepts_none() {
    let site = site(LARGE);
    in_each(&ALL, |architecture| {
        let mut server = serve(site.path(), architecture, &["--grace", "60s"]);
        let mut busy = server.client();
        busy.send("GET /large HTTP/1.1\r\nHost: test\r\n\r\n");
        busy.socket().read_exact(&mut [0; 100]).unwrap();
        server.signal(Signal::TERM);
        // An iterative server is busy: it looks at its queue after the current connection.
        if architecture != "iterative" {
            let started_at = Instant::now();
            while let Ok(socket) = TcpStream::connect(server.address()) {
                drop(socket);
                let late = started_at.elapsed() > Duration::from_secs(20);
                assert!(!late, "{architecture}: it still listens");
                // The pause is shorter than the start of a process, so that the queue is never found
                // empty.
                thread::sleep(Duration::from_millis(1));
            }
            assert!(server.is_running());
        }
        let mut rest = Vec::new();
        busy.socket().read_to_end(&mut rest).unwrap();
        assert!(content(LARGE).ends_with(&rest[rest.len() - LARGE / 2..]));
        let (status, last) = server.wait();
        assert!(status.success(), "{architecture}: {}", describe(status));
        assert_eq!(last["connections"]["open"], 0, "{architecture}: {last}");
    });
}

/// Regression: at a stop, the acceptor of the threads spun while all of them were busy and a connection waited.
#[test]
fn an_acceptor_without_room_rests_at_a_stop() {
    let (site, started_at) = (site(LARGE), Instant::now());
    let arguments = ["--max-connections", "1", "--grace", "60s"];
    let mut server = serve(site.path(), "threaded", &arguments);
    let mut busy = server.client();
    busy.send("GET /large HTTP/1.1\r\nHost: test\r\n\r\n");
    busy.socket().read_exact(&mut [0; 100]).unwrap();
    let mut waiting = server.client();
    waiting.send(LAST);
    server.wait_until("the acceptor to have no room", |counts| counts["accept_pauses"] != 0);
    server.signal_and_wait(Signal::TERM);
    // Each request for statistics takes a moment, in which the acceptor could spin.
    let mut pauses = 0;
    for _ in 0..20 {
        pauses = server.statistics()["accept_pauses"].as_u64().unwrap();
    }
    // The acceptor looks for an idle connection ten times a second.
    let most = 10 + started_at.elapsed().as_millis() as u64 / 50;
    assert!(pauses <= most, "{pauses} pauses, and not {most}");
    drop(busy);
    assert_eq!(waiting.reply().text(), "hello");
    assert!(server.wait().0.success());
}

/// Starts a server in a blocking architecture, with room for one connection at a time and with two
/// listeners. Returns it and the address of the second listener.
fn serve_one_at_a_time(directory: &Path, architecture: &str) -> (Serve, String) {
    let limit = match architecture {
        "preforked" | "prethreaded" => "--pool",
        _ => "--max-connections",
    };
    let listen = ["--listen", "127.0.0.1:0", "--grace", "60s", "--idle-eviction", "off"];
    let arguments = [&listen[..], &[limit, "1"]].concat();
    let server = serve(directory, architecture, &arguments);
    let second = server.listening()["addresses"][1].as_str().unwrap().to_owned();
    (server, second)
}

const BLOCKING: [&str; 5] = ["iterative", "forking", "preforked", "threaded", "prethreaded"];

/// A client at the second listener does not have to wait until the first listener has no clients.
#[test]
fn each_of_several_listeners_has_its_turn() {
    let site = site(0);
    in_each(&BLOCKING, |architecture| {
        let (server, second) = serve_one_at_a_time(site.path(), architecture);
        let mut held = server.client();
        assert_eq!(held.get("/").text(), "hello");
        // Each of these clients would occupy its worker, because it sends no request.
        let silent = [(); 3].map(|()| server.client());
        let mut other = Client::connect(&*second);
        other.send(LAST);
        drop(held);
        assert_eq!(other.reply().text(), "hello", "{architecture}");
        drop(silent);
        stop(server);
    });
}

/// A client that connects to one listener after the stop takes no place from a client that waited at
/// another listener.
#[test]
fn a_stop_accepts_clients_that_waited_at_each_listener() {
    let site = site(LARGE);
    in_each(&BLOCKING, |architecture| {
        let (mut server, second) = serve_one_at_a_time(site.path(), architecture);
        let mut held = server.client();
        assert_eq!(held.get("/").text(), "hello");
        let mut busy = server.client();
        busy.send("GET /large HTTP/1.1\r\nHost: test\r\n\r\n");
        let mut others = [(); 3].map(|()| Client::connect(&*second));
        others.iter_mut().for_each(|other| other.send(LAST));
        // The held connection is idle: it is closed, and then the server looks at the queues.
        server.signal(Signal::TERM);
        busy.socket().read_exact(&mut [0; 100]).unwrap();
        let mut late = [(); 3].map(|()| server.client());
        late.iter_mut().for_each(|late| late.send(LAST));
        drop(busy);
        for other in &mut others {
            assert_eq!(other.reply().text(), "hello", "{architecture}");
        }
        for late in &mut late {
            assert!(late.read_to_end_or_reset().is_empty(), "{architecture}: a late one");
        }
        let (status, _) = server.wait();
        assert!(status.success(), "{architecture}: {}", describe(status));
    });
}

/// A client that does not read delays the end no longer than the grace period; a second signal ends
/// the period.
#[test]
fn a_stop_ends_everything_when_its_time_is_over() {
    let site = site(LARGE);
    in_each(&ALL, |architecture| {
        for (grace, is_asked_twice) in [("300ms", false), ("1h", true)] {
            let mut server = serve(site.path(), architecture, &["--grace", grace]);
            let mut stuck = server.client();
            stuck.send("GET /large HTTP/1.1\r\nHost: test\r\n\r\n");
            stuck.socket().read_exact(&mut [0; 100]).unwrap();
            let started_at = Instant::now();
            server.signal_and_wait(Signal::TERM);
            if is_asked_twice {
                let is_waiting = stays_true(Duration::from_millis(100), || server.is_running());
                assert!(is_waiting, "{architecture}");
                server.signal(Signal::TERM);
            }
            let (status, _) = server.wait();
            assert!(status.success(), "{architecture}: {}", describe(status));
            assert!(started_at.elapsed() >= Duration::from_millis(100));
        }
    });
}

#[test]
fn the_access_log_is_opened_anew() {
    let site = site(0);
    in_each(&ALL, |architecture| {
        let log = site.path().join(format!("{architecture}.log"));
        let moved = site.path().join(format!("{architecture}.log.1"));
        let server = serve(site.path(), architecture, &["--access-log", log.to_str().unwrap()]);
        let get = |path: &str| {
            let mut client = server.client();
            client.send(LAST.replace("GET /", &format!("GET {path}")));
            assert_eq!(client.reply().status, 404);
            assert!(client.is_closed());
        };
        get("/first");
        // The line is passed to the log when the worker that served the request waits for the next
        // one, or ends.
        wait_until(&format!("the line in the log of {architecture}"), || {
            fs::read_to_string(&log).is_ok_and(|text| text.contains("/first"))
        });
        fs::rename(&log, &moved).unwrap();
        server.signal(Signal::HUP);
        wait_until(&format!("the new log of {architecture}"), || log.exists());
        get("/second");
        stop(server);
        let (old, new) = (fs::read_to_string(moved).unwrap(), fs::read_to_string(log).unwrap());
        assert!(old.contains("/first") && !old.contains("/second"), "{architecture}: {old}");
        assert!(new.contains("/second") && !new.contains("/first"), "{architecture}: {new}");
    });
}

#[test]
fn several_listeners_are_all_heard() {
    let site = site(0);
    in_each(&ALL, |architecture| {
        let path = site.path().join(format!("{architecture}.sock"));
        let unix = format!("unix:{}", path.display());
        let server =
            serve(site.path(), architecture, &["--listen", &unix, "--listen", "127.0.0.1:0"]);
        let addresses = server.listening()["addresses"].as_array().unwrap().clone();
        assert_eq!(addresses.len(), 3);
        for address in addresses.iter().filter_map(|address| address.as_str()) {
            let mut reply = String::new();
            if address.starts_with("unix:") {
                let mut stream = UnixStream::connect(&path).unwrap();
                stream.write_all(LAST.as_bytes()).unwrap();
                stream.read_to_string(&mut reply).unwrap();
            } else {
                let mut stream = TcpStream::connect(address).unwrap();
                stream.write_all(LAST.as_bytes()).unwrap();
                stream.read_to_string(&mut reply).unwrap();
            }
            assert!(reply.ends_with("\r\n\r\nhello"), "{architecture}, {address}: {reply}");
        }
        stop(server);
        assert!(!path.exists(), "the socket's file is removed at the end");
    });
}

/// The error is reported at the start, and no process stays behind.
#[test]
fn a_start_that_fails_says_why() {
    let site = site(0);
    in_each(&CONCURRENT, |architecture| {
        for (directory, arguments, word) in [
            (site.path().join("none"), &[][..], "none"),
            (site.path().to_owned(), &["--guestbook", "/g", "--store", "file:/"], "guestbook"),
            (site.path().to_owned(), &["--access-log", "/nonexistent/log"], "/nonexistent/log"),
        ] {
            let output = std::process::Command::new("timeout")
                .args(["20", super::BINARY, "serve"])
                .arg(directory)
                .args(["--listen", "127.0.0.1:0", "--architecture", architecture])
                .args(arguments)
                .output()
                .unwrap();
            let stderr = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(1), "{architecture}: {stderr}");
            assert!(stderr.contains(word), "{architecture}: no {word} in {stderr}");
        }
    });
}
