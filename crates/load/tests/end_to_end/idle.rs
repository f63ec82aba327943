//! Tests of idle connections: held, re-opened, and abandoned with a reason.

use super::{Server, open, run, server::ServerConnection};
use pollux_load::{
    config::{IdleConfig, IdleKind},
    idle::{IdlePlan, IdlePool},
    target::RequestOptions,
    tls::TlsOptions,
};
use pollux_testkit::{own_file_tables, wait_until};
use pollux_tls::ClientTrust;
use std::{
    io::{Read, Write},
    net::Shutdown,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
        mpsc,
    },
    time::{Duration, Instant},
};

fn plan(server: &Server, count: usize, kind: IdleKind) -> IdlePlan {
    IdlePlan {
        config: IdleConfig { count, kind },
        destination: server.address,
        sources: None,
        url: server.url("/idle"),
        request: RequestOptions::default(),
        tls: Default::default(),
        timeout: Duration::from_secs(10),
        rate: None,
        cpus: Vec::new(),
        own_file_tables: Some(own_file_tables()),
    }
}

fn hold(plan: &IdlePlan, descriptors: u64) -> IdlePool {
    let mut pool = IdlePool::start(plan, descriptors).unwrap();
    assert!(pool.wait_until_held(&AtomicBool::new(false), |_| {}).unwrap());
    pool
}

/// Reads until the end of the stream.
fn swallow(peer: &mut ServerConnection) -> Vec<u8> {
    let mut bytes = Vec::new();
    let _ = peer.stream.read_to_end(&mut bytes);
    bytes
}

#[test]
fn each_kind_falls_silent_where_it_should() {
    for kind in [IdleKind::Connect, IdleKind::Partial, IdleKind::AfterRequest] {
        let silent = Arc::new(AtomicUsize::new(0));
        let server = Server::start({
            let silent = silent.clone();
            move |mut peer| {
                let expected = match kind {
                    IdleKind::Connect => swallow(&mut peer).is_empty(),
                    IdleKind::Partial => {
                        let bytes = String::from_utf8(swallow(&mut peer)).unwrap();
                        bytes.starts_with("GET /idle HTTP/1.1\r\nHost: ")
                            && bytes.ends_with("\r\n")
                            && !bytes.contains("\r\n\r\n")
                    }
                    IdleKind::AfterRequest => {
                        peer.request().unwrap();
                        peer.reply(200, "hello");
                        swallow(&mut peer).is_empty()
                    }
                    IdleKind::Subscribe => unreachable!("it has a test of its own"),
                };
                silent.fetch_add(usize::from(expected), SeqCst);
            }
        });
        let pool = hold(&plan(&server, 100, kind), 20_000);
        let report = pool.stop().unwrap();
        assert_eq!((report.held, report.opened, report.reopened), (100, 100, 0), "{kind:?}");
        wait_until("all 100 were silent", || silent.load(SeqCst) == 100);
    }
}

#[test]
fn subscribers_are_held_while_their_streams_are_open() {
    let server = Server::start(|mut peer| {
        peer.request().unwrap();
        let media_type = match peer.number {
            0 => return peer.reply(200, "no stream"),
            // Regression: a page whose end had not arrived once was a stream.
            1 => "text/html",
            _ => "text/event-stream; charset=utf-8",
        };
        peer.send(format!("HTTP/1.1 200 OK\r\nContent-Type: {media_type}\r\n"));
        peer.send("Transfer-Encoding: chunked\r\n\r\n6\r\n:hello\r\n");
        // Events arrive and are dropped.
        peer.send("7\r\ndata: x\r\n");
        swallow(&mut peer);
    });
    let pool = hold(&plan(&server, 20, IdleKind::Subscribe), 20_000);
    let report = pool.stop().unwrap();
    assert_eq!((report.held, report.opened), (20, 20));
    assert!(report.failed >= 2, "the two without a stream were connected again: {report:?}");
}

#[test]
fn what_the_server_drops_is_opened_again() {
    let drop_now = Arc::new(AtomicBool::new(false));
    let server = Server::start({
        let drop_now = drop_now.clone();
        move |mut peer| {
            // The first 20 are dropped when the test sets the flag.
            wait_until("the flag", || peer.number >= 20 || drop_now.load(SeqCst));
            if peer.number >= 20 {
                swallow(&mut peer);
            }
        }
    });
    let pool = hold(&plan(&server, 50, IdleKind::Connect), 20_000);
    drop_now.store(true, SeqCst);
    wait_until("20 connections that are opened again", || {
        let report = pool.report();
        report.reopened == 20 && report.held == 50
    });
    let report = pool.stop().unwrap();
    assert_eq!((report.dropped, report.opened), (20, 70));
    // The kernel has established the last ones before the server accepts them.
    wait_until("70 accepted connections", || server.counters.connections() == 70);
}

#[test]
fn a_server_that_closes_at_once_is_not_stormed() {
    let server = Server::start(drop);
    let mut pool = IdlePool::start(&plan(&server, 100, IdleKind::AfterRequest), 20_000).unwrap();
    // Long enough for a pool without pauses to make thousands of attempts.
    std::thread::sleep(Duration::from_millis(1500));
    let stop = AtomicBool::new(true);
    assert!(!pool.wait_until_held(&stop, |_| {}).unwrap());
    let report = pool.stop().unwrap();
    assert_eq!(report.held, 0);
    // Without a pause between them there would be thousands of attempts.
    assert!((1..1000).contains(&report.failed), "{report:?}");
}

/// Neither the time limit of a reply nor a stop waits for the end of a server's output.
#[test]
fn a_server_that_never_stops_sending_holds_up_nothing() {
    for kind in [IdleKind::AfterRequest, IdleKind::Connect] {
        let server = Server::start(|mut peer| {
            let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
            let chunks = "1\r\nx\r\n".repeat(10_000);
            let mut sent = peer.stream.write_all(head.as_bytes());
            while sent.is_ok() {
                sent = peer.stream.write_all(chunks.as_bytes());
            }
        });
        let mut plan = plan(&server, 3, kind);
        if kind == IdleKind::AfterRequest {
            plan.timeout = Duration::from_millis(100);
        }
        let pool = IdlePool::start(&plan, 20_000).unwrap();
        wait_until("all three have come as far as they can", || {
            let report = pool.report();
            if kind == IdleKind::Connect { report.held == 3 } else { report.failed >= 3 }
        });
        let (done, stopped) = mpsc::channel();
        std::thread::spawn(move || done.send(pool.stop().unwrap()));
        let report = stopped.recv_timeout(Duration::from_secs(30)).expect("a stop is noticed");
        assert!(report.failed == 0 || kind == IdleKind::AfterRequest, "{report:?}");
    }
}

#[test]
fn several_file_tables_hold_more_than_one() {
    let server = Server::start(|mut peer| drop(swallow(&mut peer)));
    // As if the limit were 84: each table then has room for 20 connections.
    let pool = hold(&plan(&server, 50, IdleKind::Connect), 84);
    assert_eq!(pool.stop().unwrap().held, 50);
    wait_until("all 50 are accepted", || server.counters.connections() == 50);

    let error = IdlePool::start(&plan(&server, 1_000_000, IdleKind::Connect), 84).unwrap_err();
    assert!(error.to_string().contains("ulimit -Hn"), "{error}");

    // A program that has not promised that threads may have file tables of their own has one table for
    // all.
    let one_table = IdlePlan { own_file_tables: None, ..plan(&server, 50, IdleKind::Connect) };
    let error = IdlePool::start(&one_table, 84).unwrap_err();
    assert!(error.to_string().contains("own_file_tables"), "{error}");
    assert_eq!(hold(&one_table, 200).stop().unwrap().held, 50);
}

#[test]
fn connections_are_begun_at_the_given_rate() {
    let server = Server::good("x");
    let paced = IdlePlan { rate: Some(100.0), ..plan(&server, 31, IdleKind::Connect) };
    let started_at = Instant::now();
    // Two holders share the rate.
    let pool = hold(&paced, 84);
    let took = started_at.elapsed();
    assert!(took >= Duration::from_millis(290), "31 connections need 30 intervals: {took:?}");
    assert_eq!(pool.stop().unwrap().held, 31);
}

#[test]
fn idle_connections_are_held_during_a_run() {
    let server = Server::good("x");
    let mut config = open(&server, 40);
    config.idle = Some(IdleConfig { count: 30, kind: IdleKind::AfterRequest });
    let report = run(&config);
    assert_eq!(report.requests.completed, 40);
    assert_eq!((report.idle.wanted, report.idle.held, report.idle.failed), (30, 30, 0));
    assert_eq!(server.counters.connections(), 70);
}

/// Opens a TCP connection to the broadcast address: no host has it, on any network.
#[test]
fn what_keeps_from_connecting_is_named() {
    let server = Server::start(|_| {});
    let mut plan = plan(&server, 3, IdleKind::Connect);
    plan.destination = "255.255.255.255:80".parse().unwrap();
    let mut pool = IdlePool::start(&plan, 1000).unwrap();
    let error = pool.wait_until_held(&AtomicBool::new(false), |_| {}).unwrap_err().to_string();
    assert!(error.contains("unreachable") && error.contains("os error"), "{error}");
}

/// Regression test: such a connection once counted as held, although the server had closed it.
#[test]
fn a_close_that_comes_with_the_end_of_a_handshake_is_noticed() {
    let certificates = pollux_tls::self_signed(vec!["127.0.0.1".to_owned()]).unwrap();
    let settings = pollux_tls::ServerSettings::default().build(Arc::new(certificates)).unwrap();
    let server = Server::start(move |mut peer| {
        let mut handshake = pollux_tls::Handshake::server(settings.clone()).unwrap();
        let (mut input, mut output) = ([0; 4096], Vec::new());
        while output.is_empty() {
            let Ok(received @ 1..) = peer.stream.read(&mut input) else { return };
            handshake.advance(&input[..received], &mut output).unwrap();
        }
        // The first connection ends in the packet that completes its handshake.
        let is_first = peer.number == 0;
        rustix::net::sockopt::set_tcp_cork(&peer.stream, is_first).unwrap();
        peer.send(&output);
        if is_first {
            peer.stream.shutdown(Shutdown::Write).unwrap();
        }
        swallow(&mut peer);
    });
    let plan = IdlePlan {
        url: format!("https://{}/", server.address).parse().unwrap(),
        tls: TlsOptions { trust: ClientTrust::Anybody, ..TlsOptions::default() },
        ..plan(&server, 1, IdleKind::Connect)
    };
    let pool = IdlePool::start(&plan, 20_000).unwrap();
    wait_until("a second connection", || {
        let report = pool.report();
        report.reopened == 1 && report.held == 1
    });
    let report = pool.stop().unwrap();
    assert_eq!((report.dropped, report.opened), (1, 2));
}
