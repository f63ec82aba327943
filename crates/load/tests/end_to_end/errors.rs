//! Tests of each kind of failure of a request, and its name.

use super::{Server, closed, open, run};
use pollux_load::{config::Pace, schedule::Arrivals, target::Url};
use pollux_testkit::Port;
use std::{
    net::TcpListener,
    sync::atomic::AtomicBool,
    time::{Duration, Instant},
};

/// All of 12 requests end in this error, in both loops.
fn all_fail(server: &Server, kind: &str, change: impl Fn(&mut pollux_load::Config)) {
    let mut config = open(server, 12);
    change(&mut config);
    let report = run(&config);
    assert_eq!(report.errors[kind], 12, "open loop: {:?}", report.errors);

    let mut config = closed(server, 2, 12);
    change(&mut config);
    let report = run(&config);
    assert_eq!(report.errors[kind], 12, "closed loop: {:?}", report.errors);
}

#[test]
fn timeout() {
    let server = Server::start(|mut peer| peer.hang());
    all_fail(&server, "timeout", |config| config.timeout = Duration::from_millis(100));
}

#[test]
fn timeout_in_the_middle_of_a_reply() {
    let server = Server::start(|mut peer| {
        peer.request();
        peer.send("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf");
        peer.hang();
    });
    all_fail(&server, "timeout", |config| config.timeout = Duration::from_millis(100));
}

/// A server with a full backlog, and its URL: the kernel drops the handshakes of further connections.
fn full_backlog() -> (impl Sized, Url) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    rustix::net::listen(&listener, 0).unwrap();
    let address = listener.local_addr().unwrap();
    let fill: Vec<_> = (0..2)
        .map(|_| std::net::TcpStream::connect_timeout(&address, Duration::from_millis(200)))
        .collect();
    let url = format!("http://{address}/").parse().unwrap();
    ((listener, fill), url)
}

/// Regression test: every connection was once tried, 64 in each time limit.
#[test]
fn a_server_that_accepts_no_connection_is_given_up_soon() {
    let (_backlog, url) = full_backlog();
    let limit = Duration::from_secs(1);
    let config = pollux_load::Config {
        pace: Pace::Closed,
        connections: Some(640),
        connect_timeout: limit,
        ..pollux_load::Config::new(url, 1.0, limit)
    };
    let started_at = Instant::now();
    let error = pollux_load::run(&config, &AtomicBool::new(false)).unwrap_err().to_string();
    assert!(error.contains("none of 640 connections") && error.contains("timeout"), "{error}");
    // The others are given up together with the first 64.
    assert!(started_at.elapsed() < 5 * limit, "{:?}", started_at.elapsed());
}

#[test]
fn timeout_of_the_handshake() {
    let (_backlog, url) = full_backlog();
    let mut config = pollux_load::Config::new(url, 100.0, Duration::from_millis(50));
    config.connect_timeout = Duration::from_millis(150);
    config.max_lag = Duration::from_secs(3600);
    let report = run(&config);
    assert_eq!(report.errors["timeout"], 5, "{:?}", report.errors);
    assert_eq!((report.connections.failed, report.requests.sent), (5, 0));
}

/// Regression test: an interrupt while connections were being opened once gave a report of nothing, and success.
#[test]
fn an_interrupt_before_the_run_is_an_error() {
    let server = Server::good("x");
    for connections in [None, Some(2)] {
        let config = pollux_load::Config { connections, ..open(&server, 1) };
        let error = pollux_load::run(&config, &AtomicBool::new(true)).unwrap_err().to_string();
        assert!(error.contains("interrupted before the run began"), "{error}");
    }
}

#[test]
fn a_thread_that_cannot_be_started_is_an_error_of_the_run() {
    let server = Server::good("x");
    let mut config = open(&server, 12);
    config.threads = 2;
    let error = pollux_testkit::denied(libc::SYS_clone3, libc::EAGAIN, || {
        pollux_load::run(&config, &AtomicBool::new(false)).unwrap_err()
    });
    assert!(format!("{error:#}").starts_with("starting 2 threads: "), "{error:#}");
}

#[test]
fn refused() {
    let unused = Port::reserve();
    let mut config = open(&Server::good("x"), 12);
    let url = format!("http://{}/", unused.address()).parse().unwrap();
    config.urls = vec![(url, 1.0)];
    let report = run(&config);
    assert_eq!(report.errors["refused"], 12, "{:?}", report.errors);
    assert_eq!((report.requests.sent, report.connections.failed), (0, 12));

    // If standing connections cannot be opened, the run itself fails.
    config.connections = Some(3);
    let error = pollux_load::run(&config, &AtomicBool::new(false)).unwrap_err().to_string();
    assert!(error.contains("none of 3 connections") && error.contains("refused"), "{error}");
}

#[test]
fn reset() {
    let server = Server::start(|mut peer| {
        peer.request();
        peer.reset();
    });
    all_fail(&server, "reset", |_| {});
}

#[test]
fn closed_before_the_reply() {
    let server = Server::start(|mut peer| {
        peer.request();
    });
    all_fail(&server, "closed_early", |_| {});
}

#[test]
fn closed_in_the_middle_of_the_reply() {
    for start in ["HTTP/1.1 20", "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nshort"] {
        let server = Server::start(move |mut peer| {
            peer.request();
            peer.send(start);
        });
        all_fail(&server, "closed_early", |_| {});
    }
}

#[test]
fn a_reply_that_is_not_http() {
    let ok = "HTTP/1.1 200 OK\r\n";
    for (bytes, reason) in [
        ("SSH-2.0-OpenSSH_9.2p1\r\n".to_owned(), "the reply's status line is invalid"),
        (format!("{ok}Content-Length: 1\r\nContent-Length: 2\r\n\r\nxx"), "is given twice"),
        (format!("{ok}Content-Length: 2\r\n\r\ntoo long"), "more came than its framing announced"),
        (format!("{ok}Transfer-Encoding: chunked\r\n\r\nzz\r\n"), "invalid chunk size"),
    ] {
        let server = Server::start(move |mut peer| {
            peer.request();
            peer.send(&bytes);
            peer.hang();
        });
        all_fail(&server, "bad_reply", |_| {});
        let first = run(&open(&server, 2)).bad_replies.first_malformed.unwrap();
        assert!(first.contains(reason), "{first}");
    }
}

#[test]
fn an_unexpected_status() {
    let server = Server::start(|mut peer| {
        while peer.request().is_some() {
            peer.reply(503, "busy");
        }
    });
    all_fail(&server, "status", |_| {});
    let mut config = open(&server, 12);
    config.expect.statuses = vec![500..=599];
    let report = run(&config);
    assert_eq!((report.requests.completed, report.statuses[&503]), (12, 12));
    config.expect.statuses = vec![200..=299];
    let report = run(&config);
    assert_eq!((report.bad_replies.status, report.statuses[&503]), (12, 12));
    // Regression: 0 bytes of content were once received.
    assert_eq!(report.content_bytes, 12 * 4);
}

/// A complete reply leaves its connection usable, regardless of its status and its length.
#[test]
fn a_reply_that_was_not_expected_costs_no_connection() {
    let server = Server::start(|mut peer| {
        while peer.request().is_some() {
            peer.reply(404, "none");
        }
    });
    let mut config = closed(&server, 2, 12);
    assert_eq!(run(&config).bad_replies.status, 12);
    config.expect.statuses = vec![404..=404];
    config.expect.length = Some(5);
    assert_eq!(run(&config).bad_replies.length, 12);
    assert_eq!(server.counters.connections(), 4);
}

/// A failure without a kind of its own has the name that the system gives it.
#[test]
fn another_failure_is_named() {
    let server = Server::good("x");
    let mut config = open(&server, 3);
    // A connection to a broadcast address is impossible.
    config.urls = vec![("http://255.255.255.255/".parse().unwrap(), 1.0)];
    let report = run(&config);
    assert_eq!(report.errors["other"], 3, "{:?}", report.errors);
    let reason = report.first_other.unwrap();
    assert!(reason.contains("os error"), "{reason}");
    let mut config = closed(&server, 1, 3);
    config.urls = vec![("http://255.255.255.255/".parse().unwrap(), 1.0)];
    let error = pollux_load::run(&config, &AtomicBool::new(false)).unwrap_err().to_string();
    assert!(error.contains("os error"), "{error}");
}

/// Regression test: each connection that the system refused at once took a tenth of a second, so that a run with
/// more connections than ports seemed to hang.
#[test]
fn a_set_up_without_room_for_its_connections_does_not_hang() {
    let mut config = closed(&Server::good("x"), 900, 900);
    config.urls = vec![("http://255.255.255.255/".parse().unwrap(), 1.0)];
    let started_at = Instant::now();
    let error = pollux_load::run(&config, &AtomicBool::new(false)).unwrap_err().to_string();
    assert!(error.contains("none of 900 connections"), "{error}");
    assert!(started_at.elapsed() < Duration::from_secs(45), "{:?}", started_at.elapsed());
}

#[test]
fn an_unexpected_length() {
    let server = Server::good("hello");
    all_fail(&server, "bad_reply", |config| config.expect.length = Some(6));
    let mut config = open(&server, 12);
    config.expect.length = Some(5);
    assert_eq!(run(&config).requests.completed, 12);
    config.expect.length = Some(4);
    assert_eq!(run(&config).bad_replies.length, 12);
}

#[test]
fn a_kept_connection_that_the_server_closes_is_replaced() {
    // Each connection answers three requests and closes without announcing it.
    let server = Server::start(|mut peer| {
        for _ in 0..3 {
            if peer.request().is_some() {
                peer.reply(200, "x");
            }
        }
    });
    let mut config = open(&server, 30);
    config.connections = Some(1);
    config.requests_per_connection = None;
    let report = run(&config);
    // A close that is not seen in time costs the request that crosses it; after that, and after a close
    // that was seen, there is a new connection.
    assert_eq!(report.requests.completed + report.requests.failed, 30);
    assert!(report.requests.completed >= 22, "{:?} {:?}", report.requests, report.errors);
    assert!(server.counters.connections() >= 8);
}

#[test]
fn a_close_between_requests_is_counted() {
    let server = Server::start(|mut peer| {
        peer.request();
        peer.reply(200, "x");
        // The close comes after the reply, between two requests.
        std::thread::sleep(Duration::from_millis(20));
    });
    let mut config = open(&server, 12);
    config.pace = Pace::Open { rate_rps: 20.0, arrivals: Arrivals::Constant };
    config.connections = Some(4);
    config.requests_per_connection = None;
    let report = run(&config);
    assert!(report.connections.dropped_idle > 0, "{:?}", report.connections);
    assert!(report.requests.completed > 6, "{:?}", report.errors);
}

#[test]
fn a_closed_loop_goes_on_after_failures() {
    let server =
        Server::start(
            |mut peer| {
                if peer.number % 3 == 0 { peer.serve("x") } else { drop(peer.request()) }
            },
        );
    let report = run(&closed(&server, 4, 200));
    assert_eq!(report.requests.completed + report.requests.failed, 200);
    assert!(report.requests.completed > 100, "{:?}", report.requests);
}
