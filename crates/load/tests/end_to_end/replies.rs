//! Tests of requests as the server receives them, and of replies in all their forms.

use super::{Server, closed, open, run};
use pollux_load::target::Targets;
use pollux_testkit::write_slowly;
use std::{io::Write, time::Duration};

#[test]
fn a_reply_in_every_framing() {
    let forms: [(&str, u64); 5] = [
        ("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", 5),
        (
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n2\r\nlo\r\n0\r\n\r\n",
            5,
        ),
        ("HTTP/1.0 200 OK\r\n\r\nuntil the close", 15),
        ("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", 2),
        ("HTTP/1.1 204 No Content\r\n\r\n", 0),
    ];
    for (bytes, content) in forms {
        let server = Server::start(move |mut peer| {
            peer.request();
            peer.send(bytes);
        });
        let mut config = open(&server, 8);
        config.expect.length = Some(content);
        let report = run(&config);
        assert_eq!(report.requests.completed, 8, "{bytes:?}: {:?}", report.errors);
        assert_eq!(report.content_bytes, 8 * content);
        assert_eq!(report.bytes_received, 8 * bytes.len() as u64);
    }
}

#[test]
fn what_was_received_in_the_warm_up_is_not_counted() {
    let server = Server::good("hello");
    let mut config = open(&server, 20);
    config.warmup = Duration::from_millis(100);
    let report = run(&config);
    assert_eq!((server.counters.connections(), report.requests.completed), (40, 20));
    let reply = "HTTP/1.1 200 X\r\nContent-Length: 5\r\n\r\nhello";
    assert_eq!(report.bytes_received, 20 * reply.len() as u64);
    assert_eq!(report.content_bytes, 20 * 5);
}

/// Replies that a client must accept although few servers send them, and long replies, on kept
/// connections.
#[test]
fn odd_replies_are_replies() {
    let folded = "HTTP/1.1 200 OK\r\nX: a\r\n b\r\nContent-Length: 5\r\n\r\nhello".to_owned();
    let cookies = "Set-Cookie: a=b\r\n".repeat(300);
    let many = format!("HTTP/1.1 200 OK\r\n{cookies}Content-Length: 5\r\n\r\nhello");
    let long =
        format!("HTTP/1.1 200 OK\r\nX: {}\r\nContent-Length: 5\r\n\r\nhello", "y".repeat(100_000));
    let no_status = "HTTP/1.1 999 No\r\nContent-Length: 5\r\n\r\nhello".to_owned();
    for (bytes, status) in [(folded, 200), (many, 200), (long, 200), (no_status, 999)] {
        let server = Server::start(move |mut peer| {
            while peer.request().is_some() {
                peer.send(&bytes);
            }
        });
        let mut config = closed(&server, 2, 8);
        config.expect.statuses = vec![status..=status];
        config.expect.length = Some(5);
        let report = run(&config);
        assert_eq!(report.requests.completed, 8, "{:?}", report.bad_replies);
        assert_eq!((report.statuses[&status], report.connections.opened), (8, 2));
    }
}

#[test]
fn a_reply_in_single_bytes() {
    let server = Server::start(|mut peer| {
        while peer.request().is_some() {
            let bytes = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello".chunks(1);
            // The generator may have closed the connection; that is not an error of the server.
            let _ = write_slowly(&mut peer.stream, Duration::from_micros(200), bytes);
        }
    });
    let report = run(&closed(&server, 3, 9));
    assert_eq!((report.requests.completed, report.content_bytes), (9, 45));
}

#[test]
fn large_replies_share_the_loop() {
    const LEN: usize = 5 << 20;
    let content: &'static [u8] = vec![b'x'; LEN].leak();
    let server = Server::start(move |mut peer| {
        while peer.request().is_some() {
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {LEN}\r\n\r\n");
            let _ = peer.stream.write_all(head.as_bytes());
            let _ = peer.stream.write_all(content);
        }
    });
    let mut config = closed(&server, 3, 12);
    config.expect.length = Some(LEN as u64);
    let report = run(&config);
    assert_eq!((report.requests.completed, report.content_bytes), (12, 12 * LEN as u64));
    // A reply that takes several turns of the loop does not end its connection.
    assert_eq!((report.connections.opened, server.counters.connections()), (3, 3));
}

#[test]
fn a_request_that_asks_for_the_close_is_the_last_of_its_connection() {
    // The server does not repeat the option, and leaves the close to the generator.
    let server = Server::start(|mut peer| {
        peer.request();
        peer.reply(200, "x");
        peer.hang();
    });
    let mut config = closed(&server, 2, 10);
    config.request.headers = vec![("Connection".into(), "close".into())];
    let report = run(&config);
    assert_eq!((report.requests.completed, report.connections.opened), (10, 10));
    assert_eq!(server.counters.heads().len(), 10);
}

#[test]
fn head_has_no_content_whatever_its_length_says() {
    let server = Server::start(|mut peer| {
        while peer.request().is_some() {
            peer.send("HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n");
        }
    });
    let mut config = closed(&server, 2, 20);
    config.request.method = "HEAD".into();
    let report = run(&config);
    assert_eq!((report.requests.completed, report.content_bytes), (20, 0));
    assert!(server.counters.heads().iter().all(|head| head.starts_with("HEAD /x HTTP/1.1\r\n")));
}

#[test]
fn a_large_body_is_sent_whole() {
    const LEN: usize = 3 << 20;
    let server = Server::start(|mut peer| {
        while let Some(head) = peer.request() {
            assert!(head.contains(&format!("Content-Length: {LEN}\r\n")), "{head}");
            let content = peer.content(LEN).unwrap_or_default();
            let is_whole = content.len() == LEN && content.iter().all(|&byte| byte == b'b');
            peer.reply(if is_whole { 200 } else { 500 }, "ok");
        }
    });
    let mut config = closed(&server, 2, 8);
    config.request.method = "PUT".into();
    config.request.body = vec![b'b'; LEN];
    assert_eq!(run(&config).requests.completed, 8);
    config.pace = open(&server, 1).pace;
    config.connections = None;
    config.requests_per_connection = Some(1);
    assert_eq!(run(&config).requests.completed, 8);
}

#[test]
fn a_refusal_before_the_body_was_sent_is_a_reply() {
    let server = Server::start(|mut peer| {
        peer.request();
        peer.reply(413, "too much");
        // Unread input would make the close a reset, which may overtake the reply.
        while peer.content(1 << 16).is_some() {}
    });
    let mut config = open(&server, 4);
    config.request.method = "POST".into();
    config.request.body = vec![b'b'; 4 << 20];
    config.expect.statuses = vec![413..=413];
    let report = run(&config);
    assert_eq!(report.requests.completed, 4, "{:?}", report.errors);
}

#[test]
fn fields_and_urls_arrive() {
    let server = Server::good("x");
    let mut config = open(&server, 300);
    let list = "/often 3\n/seldom?q=1\n";
    config.urls = Targets::parse_file(list, Some(&server.url("/"))).unwrap();
    config.request.headers = vec![("X-Test".into(), "a b".into())];
    config.pace = closed(&server, 1, 1).pace;
    config.connections = Some(2);
    config.requests_per_connection = None;
    assert_eq!(run(&config).requests.completed, 300);
    let heads = server.counters.heads();
    let often = heads.iter().filter(|head| head.starts_with("GET /often HTTP/1.1\r\n")).count();
    let seldom = heads.iter().filter(|head| head.starts_with("GET /seldom?q=1 ")).count();
    assert_eq!(often + seldom, 300);
    // 225 are expected, standard deviation 7.5; the seed is fixed.
    assert!((195..255).contains(&often), "{often}");
    let host = format!("\r\nHost: {}\r\n", server.address);
    assert!(heads.iter().all(|head| head.contains(&host) && head.contains("\r\nX-Test: a b\r\n")));
}

#[test]
fn each_way_to_close_is_what_the_server_sees() {
    use pollux_load::config::Closing;
    use std::io::Read;
    for closing in [Closing::AtOnce, Closing::Wait, Closing::Reset] {
        let server = Server::start(move |mut peer| {
            peer.request();
            peer.reply(200, "x");
            if closing == Closing::Wait {
                return; // the server's turn
            }
            let outcome = peer.stream.read(&mut [0; 8]);
            let expected = match closing {
                Closing::Reset => {
                    outcome.is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionReset)
                }
                _ => outcome.is_ok_and(|len| len == 0),
            };
            if expected {
                peer.stream.shutdown(std::net::Shutdown::Both).ok();
                CLOSED_AS_EXPECTED.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            }
        });
        let report = run(&{
            let mut config = open(&server, 10);
            config.closing = closing;
            config
        });
        assert_eq!(report.requests.completed, 10, "{closing:?}");
    }
    pollux_testkit::wait_until("20 connections that are closed as expected", || {
        CLOSED_AS_EXPECTED.load(std::sync::atomic::Ordering::SeqCst) >= 20
    });
}

static CLOSED_AS_EXPECTED: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);

/// Regression test: the generator once waited only after the last request that its own limit permits.
#[test]
fn a_server_that_limits_its_connections_closes_them_first() {
    use pollux_load::config::Closing;
    use std::{
        io::{ErrorKind, Read},
        sync::{Arc, Mutex},
    };
    let first = Arc::new(Mutex::new(None));
    let server = Server::start({
        let first = first.clone();
        move |mut peer| {
            peer.request();
            if peer.number == 1 {
                // Keeps the run going until the first connection has been examined.
                pollux_testkit::wait_until("the first connection", || {
                    first.lock().unwrap().is_some()
                });
            }
            peer.send("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 1\r\n\r\nx");
            if peer.number == 0 {
                // Nothing arrives, not even an end, until this server closes.
                peer.stream.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
                let received = peer.stream.read(&mut [0; 8]).map_err(|error| error.kind());
                *first.lock().unwrap() = Some(received);
            }
        }
    });
    let mut config = open(&server, 2);
    config.requests_per_connection = None;
    config.closing = Closing::Wait;
    assert_eq!(run(&config).requests.completed, 2);
    let received = first.lock().unwrap().take();
    assert_eq!(received, Some(Err(ErrorKind::WouldBlock)));
}

/// Regression test: the connections of the last replies were once closed by the generator, because the run was over.
#[test]
fn the_server_closes_the_last_connections_too() {
    use pollux_load::config::Closing;
    use std::{
        io::Read,
        sync::{
            Arc,
            atomic::{AtomicUsize, Ordering::SeqCst},
        },
    };
    let (waited, early) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let server = Server::start({
        let (waited, early) = (waited.clone(), early.clone());
        move |mut peer| {
            peer.request();
            peer.reply(200, "x");
            // Nothing arrives, not even an end, until this server closes.
            peer.stream.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
            let has_ended = peer.stream.read(&mut [0; 8]).is_ok();
            let count = if has_ended { &early } else { &waited };
            count.fetch_add(1, SeqCst);
        }
    });
    let mut config = closed(&server, 10, 10);
    config.requests_per_connection = Some(1);
    config.closing = Closing::Wait;
    let report = run(&config);
    assert_eq!(report.requests.completed, 10);
    pollux_testkit::wait_until("the end of ten connections", || {
        waited.load(SeqCst) + early.load(SeqCst) == 10
    });
    assert_eq!(early.load(SeqCst), 0, "closed by the generator");
}
