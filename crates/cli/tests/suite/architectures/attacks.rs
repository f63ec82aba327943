//! Clients that attack the server, or that behave badly by mistake.

use super::{ALL, CONCURRENT, content, in_each, serve, site, stop, tree};
use pollux_testkit::{
    becomes_true, http::PATIENCE, read_slowly, serve::Serve, wait_until, wait_until_stalled,
    write_slowly,
};
use std::{
    fs,
    io::{Read, Write},
    net::{Shutdown, TcpStream},
    thread,
    time::{Duration, Instant},
};

/// Checks that the server still serves other clients.
fn assert_serves(server: &Serve) {
    let reply = server.client().get("/");
    assert_eq!((reply.status, reply.text().as_str()), (200, "hello"));
}

/// Waits until no client is connected.
fn all_are_gone(server: &mut Serve) {
    server.wait_until("all to be gone", |s| s["connections"]["open"] == 0);
}

#[test]
fn slow_heads_are_cut_off_however_they_drip() {
    let site = site(0);
    in_each(&CONCURRENT, |architecture| {
        let mut server = serve(site.path(), architecture, &["--header-timeout", "3s"]);
        let started_at = Instant::now();
        let mut silent = server.client();
        let mut stuck = server.client();
        stuck.send("GET / HTT");
        let mut dripping = server.client();
        let dripper = dripping.socket().try_clone().unwrap();
        let drip = thread::spawn(move || {
            // 60 bytes would take 12 seconds.
            let head = b"GET / HTTP/1.1\r\nHost: test\r\nX-Slow: aaaaaaaaaaaaaaaaaaaaaaaaaaaa";
            write_slowly(dripper, Duration::from_millis(200), head.chunks(1))
        });
        assert_serves(&server);
        assert!(silent.is_closed(), "a client without a request gets no answer");
        assert_eq!(stuck.reply().status, 408);
        assert!(stuck.is_closed());
        assert_eq!(dripping.reply().status, 408);
        assert!(started_at.elapsed() > Duration::from_secs(3));
        drop(dripping);
        assert!(drip.join().unwrap().is_err(), "the dripping client could send everything");
        all_are_gone(&mut server);
        let last = stop(server);
        assert_eq!(last["connections"]["timed_out"], 3, "{last}");
    });
}

#[test]
fn a_reader_that_stops_reading_is_reset_and_a_slow_one_is_not() {
    let len = 24 << 20;
    let site = site(len);
    let whole = content(len);
    in_each(&CONCURRENT, |architecture| {
        let mut server = serve(site.path(), architecture, &["--send-timeout", "3s"]);
        let mut stopped = server.client();
        stopped.send("GET /large HTTP/1.1\r\nHost: test\r\n\r\n");
        // This client needs longer than the timeout for the whole file, but reads far more than 16 KiB
        // within the timeout.
        let mut slow = server.client();
        slow.send("GET /large HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n");
        let received = read_slowly(slow.socket(), Duration::from_millis(30), 200 << 10);
        let received = received.expect("a slow reader is served to the end");
        assert!(received.ends_with(&whole));
        server.wait_until("the stopped reader's end", |s| s["connections"]["timed_out"] == 1);
        let rest = stopped.read_to_end_or_reset();
        assert!(rest.len() < len, "all {} bytes came through", rest.len());
        assert_serves(&server);
        stop(server);
    });
}

#[test]
fn a_head_of_a_mebibyte_is_refused_and_the_refusal_can_be_read() {
    let site = site(0);
    in_each(&ALL, |architecture| {
        let mut server = serve(site.path(), architecture, &[]);
        for (head, status) in [
            ("GET / HTTP/1.1\r\nHost: test\r\nX: ", 431),
            ("GET /", 414),
            ("GET / HTTP/1.1\r\nHost: test\r\nX: y\r\n", 431),
        ] {
            let mut client = server.client();
            client.send(head);
            let filler = if head.ends_with("y\r\n") {
                b"Name: value\r\n".repeat(80_000)
            } else {
                vec![b'a'; 1 << 20]
            };
            // The client can write everything: the server continues to read after its refusal, so that
            // no reset arrives before the reply.
            client.send(filler);
            let reply = client.reply();
            assert_eq!(reply.status, status, "{head:?}");
            assert_eq!(reply.field("connection"), Some("close"));
            assert!(client.is_closed());
        }
        all_are_gone(&mut server);
        assert_serves(&server);
        stop(server);
    });
}

/// Returns the anonymous memory of all processes of the server in bytes.
fn resident(server: &Serve) -> u64 {
    let all = tree::children(server.pid()).into_iter().chain([server.pid()]);
    all.filter_map(|pid| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"))?;
        line.trim().trim_end_matches(" kB").parse::<u64>().ok()
    })
    .sum::<u64>()
        * 1024
}

#[test]
fn pipelined_requests_are_answered_in_order_in_bounded_memory() {
    let site = site(0);
    for name in ["a", "b", "c"] {
        fs::write(site.path().join(name), name.repeat(1000)).unwrap();
    }
    in_each(&ALL, |architecture| {
        // The responses are longer than all buffers of the kernel together.
        let requests = if architecture == "event" { 20_000 } else { 8_000 };
        let server = serve(site.path(), architecture, &[]);
        let mut client = server.client();
        assert_eq!(client.get("/a").status, 200);
        let before = resident(&server);
        let writer = client.socket().try_clone().unwrap();
        let writing = thread::spawn(move || {
            let all: Vec<u8> = (0..requests)
                .flat_map(|i| {
                    let name = ["a", "b", "c"][i % 3];
                    format!("GET /{name} HTTP/1.1\r\nHost: test\r\n\r\n").into_bytes()
                })
                .collect();
            (&writer).write_all(&all).expect("the server takes all requests in the end");
        });
        // While the client does not read, the server must stop reading too.
        wait_until_stalled(client.socket());
        let growth = resident(&server).saturating_sub(before);
        assert!(growth < 2 << 20, "{architecture}: one that does not read holds {growth} bytes");
        if architecture != "iterative" {
            assert_serves(&server);
        }
        for i in 0..requests {
            let reply = client.reply();
            let wanted = ["a", "b", "c"][i % 3].as_bytes()[0];
            assert_eq!((reply.status, reply.body.len(), reply.body[0]), (200, 1000, wanted), "{i}");
        }
        writing.join().unwrap();
        drop(client);
        let last = stop(server);
        let others = u64::from(architecture != "iterative");
        assert_eq!(last["requests"], requests as u64 + 1 + others);
    });
}

#[test]
fn resets_in_mid_response_leave_nothing_behind() {
    let site = site(8 << 20);
    in_each(&ALL, |architecture| {
        let mut server = serve(site.path(), architecture, &[]);
        let tasks = |server: &Serve| {
            let all = tree::children(server.pid()).into_iter().chain([server.pid()]);
            all.map(|pid| fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count))
                .sum::<usize>()
        };
        // The process that checked at the start whether connections can be served may still be ending.
        let units = if architecture == "preforked" { 8 } else { 0 };
        wait_until("the end of all processes but the units", || {
            tree::children(server.pid()).len() == units
        });
        let before = tasks(&server);
        for _ in 0..40 {
            let mut client = server.client();
            client.send("GET /large HTTP/1.1\r\nHost: test\r\n\r\n");
            (&mut client.socket()).take(1000).read_to_end(&mut Vec::new()).unwrap();
            // With unread data in the buffer, the close is a reset.
            drop(client);
        }
        server.wait_until("all to be gone", |s| {
            s["connections"]["open"] == 0 && s["connections"]["closed"] == 40
        });
        wait_until("the end of all threads and processes", || tasks(&server) == before);
        assert_serves(&server);
        stop(server);
    });
}

#[test]
fn a_client_that_has_closed_its_side_still_gets_its_answer() {
    let len = 8 << 20;
    let site = site(len);
    let wanted = content(len);
    in_each(&ALL, |architecture| {
        let mut server = serve(site.path(), architecture, &[]);
        for (path, end) in [("/", &b"hello"[..]), ("/large", &wanted[..])] {
            let mut client = server.client();
            client.send(format!("GET {path} HTTP/1.1\r\nHost: test\r\n\r\n"));
            client.socket().shutdown(Shutdown::Write).unwrap();
            // The end of stream may arrive together with the request, or before or after the server
            // reads it.
            assert!(client.read_to_end_or_reset().ends_with(end), "{path}");
        }
        // An incomplete request can never be answered.
        let mut client = server.client();
        client.send("GET / HTT");
        client.socket().shutdown(Shutdown::Write).unwrap();
        assert!(client.is_closed());
        // This client sends no request at all.
        let client = server.client();
        client.socket().shutdown(Shutdown::Write).unwrap();
        server.wait_until("all to be gone", |s| {
            s["connections"]["open"] == 0 && s["connections"]["closed"] == 4
        });
        drop(client);
        stop(server);
    });
}

#[test]
fn a_request_body_is_read_past_and_a_long_one_is_refused() {
    let site = site(0);
    in_each(&ALL, |architecture| {
        let server = serve(site.path(), architecture, &[]);
        let mut client = server.client();
        client.send(
            "POST / HTTP/1.1\r\nHost: test\r\nContent-Length: 5\r\n\r\nGET /\
             POST / HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n\
             3\r\nabc\r\n0\r\n\r\n\
             GET / HTTP/1.1\r\nHost: test\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\nxy\
             GET / HTTP/1.1\r\nHost: test\r\n\r\n",
        );
        let statuses: Vec<u16> = (0..5).map(|_| client.reply().status).collect();
        assert_eq!(statuses, [405, 405, 100, 200, 200]);
        drop(client);
        let mut client = server.client();
        client.send("POST / HTTP/1.1\r\nHost: test\r\nContent-Length: 99999999\r\n\r\n");
        assert_eq!(client.reply().status, 413);
        drop(client);
        let mut client = server.client();
        client.send(
            "POST / HTTP/1.1\r\nHost: test\r\nContent-Length: 10\r\nExpect: 100-continue\r\n\r\n",
        );
        let reply = client.reply();
        assert_eq!((reply.status, reply.field("connection")), (405, Some("close")));
        stop(server);
    });
}

#[test]
fn garbage_is_refused_and_the_rest_of_it_not_obeyed() {
    let site = site(0);
    in_each(&ALL, |architecture| {
        let server = serve(site.path(), architecture, &[]);
        for garbage in [
            &b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"[..],
            b"GET / HTTP/1.1\nHost: test\n\n",
            b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
            b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n\
              0\r\n\r\n",
        ] {
            let mut client = server.client();
            client.send(garbage);
            client.send("GET / HTTP/1.1\r\nHost: test\r\n\r\n");
            let reply = client.reply();
            assert_eq!(reply.status, 400, "{:?}", garbage.escape_ascii().to_string());
            assert!(client.is_closed(), "{:?}", garbage.escape_ascii().to_string());
        }
        assert_serves(&server);
        stop(server);
    });
}

#[test]
fn a_client_that_never_closes_after_a_refusal_is_left_alone_in_the_end() {
    let site = site(0);
    in_each(&ALL, |architecture| {
        let mut server = serve(site.path(), architecture, &[]);
        let mut client = server.client();
        client.send("NONSENSE\r\n\r\n");
        assert_eq!(client.reply().status, 400);
        assert!(client.is_closed());
        let mut socket: &TcpStream = client.socket();
        // The client's side stays open and continues to send.
        let is_left_alone = becomes_true(PATIENCE, || socket.write_all(b"more").is_err());
        assert!(is_left_alone, "the server listens for ever");
        all_are_gone(&mut server);
        stop(server);
    });
}
