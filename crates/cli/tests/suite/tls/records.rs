//! Records after the handshake, honest and hostile: each connection gets its own bytes and no others,
//! and a record that no honest client sends ends the connection with the alert that states the reason.

use super::{
    peer::{End, Forger, Peer, config, drive},
    s_client, serve, site,
};
use pollux_testkit::serve::Serve;
use rustls::{AlertDescription, ContentType};
use std::{
    fs,
    io::Write as _,
    net::Ipv4Addr,
    path::Path,
    time::{Duration, Instant},
};

const LAST_REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
const DATA: ContentType = ContentType::ApplicationData;
const UNEXPECTED_MESSAGE: u8 = 10;
const BAD_RECORD_MAC: u8 = 20;
const RECORD_OVERFLOW: u8 = 22;
const DECODE_ERROR: u8 = 50;

/// Returns a connection that has received one response, and now sends records that the test makes.
fn forger(serve: &Serve) -> Forger {
    let mut peer = Peer::connect(serve.address());
    assert_eq!(peer.fetch("/"), b"hello\n");
    peer.into_forger()
}

fn assert_serves(serve: &Serve) {
    assert_eq!(Peer::connect(serve.address()).fetch("/"), b"hello\n");
}

const FILES: usize = 24;

/// Returns the content of a file. No two files have the same eight bytes at the same position.
fn content(file: usize) -> Vec<u8> {
    let len = [1, 100, 4_001, 16_384, 16_385, 70_000][file % 6] + file;
    (0..len as u64)
        .map(|at| {
            let mut mixed = (at / 8 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (file as u64) << 56;
            mixed = (mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            mixed.to_le_bytes()[(at % 8) as usize] ^ file as u8
        })
        .collect()
}

fn write_files(directory: &Path) {
    for file in 0..FILES {
        fs::write(directory.join(format!("site/f{file}")), content(file)).unwrap();
    }
}

/// Returns the next of a sequence of numbers, which is the same in every run.
fn random(state: &mut u64) -> usize {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 33) as usize
}

#[test]
fn every_connection_gets_its_own_bytes() {
    // The worker has expanded keys for fewer connections, so that keys are derived again all the time.
    const CONNECTIONS: usize = 120;
    let directory = site();
    write_files(directory.path());
    let contents: Vec<_> = (0..FILES).map(content).collect();
    for mechanism in ["epoll", "epoll-et", "select", "rtsig"] {
        let serve = serve(&directory, &["--mechanism", mechanism]);
        let config = config();
        let mut state = 1;
        let mut peers: Vec<_> = (0..CONNECTIONS)
            .map(|_| Peer::with(serve.address(), &config, "localhost", Ipv4Addr::LOCALHOST))
            .collect();
        for _ in 0..3 {
            let files: Vec<_> = peers.iter().map(|_| random(&mut state) % FILES).collect();
            for (peer, file) in peers.iter_mut().zip(&files) {
                if !peer.tls.is_handshaking() && random(&mut state).is_multiple_of(3) {
                    peer.tls.refresh_traffic_keys().unwrap();
                }
                peer.get(&format!("/f{file}"));
            }
            let piece = |_| (1 + random(&mut state) % 50, 1 + random(&mut state) % 9_000);
            drive(&mut peers, piece, |peer| peer.content().is_some());
            for (peer, &file) in peers.iter_mut().zip(&files) {
                let got = peer.content().unwrap_or_else(|| panic!("{mechanism}: {:?}", peer.end));
                assert!(got == contents[file], "{mechanism}: other bytes than those of f{file}");
                peer.received.clear();
            }
            // Some clients disconnect in the middle of a record, and the server uses their descriptors
            // for others.
            for peer in peers.iter_mut().step_by(7) {
                peer.get("/f5");
                peer.step(30, 0);
                *peer = Peer::with(serve.address(), &config, "localhost", Ipv4Addr::LOCALHOST);
            }
        }
    }
}

#[test]
fn a_request_may_come_in_records_of_one_byte() {
    let directory = site();
    let serve = serve(&directory, &[]);
    let mut forger = forger(&serve);
    let records: Vec<_> =
        LAST_REQUEST.iter().flat_map(|byte| forger.seal(DATA, &[*byte])).collect();
    forger.socket.write_all(&records).unwrap();
    let (data, alert) = forger.read_to_end();
    assert!(data.ends_with(b"hello\n"), "{}", String::from_utf8_lossy(&data));
    assert_eq!(alert, Some((1, 0)));
}

/// More bytes than a head may have; each byte is in its own record.
const FLOOD: usize = 200_000;

#[test]
fn a_flood_of_tiny_records_is_limited_like_any_head() {
    let directory = site();
    let serve = serve(&directory, &[]);
    let mut forger = forger(&serve);
    forger.send(DATA, b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Long: ");
    // The server answers during this loop, and then discards what still arrives.
    for _ in 0..FLOOD {
        if forger.seal_and_send(DATA, b"x").is_err() {
            break;
        }
    }
    let _ = forger.socket.shutdown(std::net::Shutdown::Write);
    let (data, _) = forger.read_to_end();
    let text = String::from_utf8_lossy(&data);
    assert!(text.starts_with("HTTP/1.1 431 "), "the server takes a head of {FLOOD} bytes: {text}");
    assert_serves(&serve);
}

#[test]
fn records_without_content_end_a_connection_after_32() {
    let directory = site();
    let serve = serve(&directory, &[]);
    let mut honest = forger(&serve);
    let records: Vec<_> = (0..32).flat_map(|_| honest.seal(DATA, b"")).collect();
    honest.socket.write_all(&records).unwrap();
    honest.send(DATA, LAST_REQUEST);
    let (data, alert) = honest.read_to_end();
    assert!(data.ends_with(b"hello\n"), "{}", String::from_utf8_lossy(&data));
    assert_eq!(alert, Some((1, 0)));

    let mut flood = forger(&serve);
    let records: Vec<_> = (0..33).flat_map(|_| flood.seal(DATA, b"")).collect();
    flood.socket.write_all(&records).unwrap();
    assert_eq!(flood.read_to_end(), (Vec::new(), Some((2, UNEXPECTED_MESSAGE))));
    assert_serves(&serve);
}

/// The request before the bad record is valid, and the connection ends after its response.
#[test]
fn a_bad_record_behind_a_request_harms_nobody_else() {
    let directory = site();
    for mechanism in ["epoll", "epoll-et", "select", "rtsig"] {
        let mut serve = serve(&directory, &["--mechanism", mechanism]);
        let mut other = Peer::connect(serve.address());
        assert_eq!(other.fetch("/"), b"hello\n");
        for _ in 0..5 {
            let mut forger = forger(&serve);
            let request = forger.seal(DATA, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
            let mut damaged = forger.seal(DATA, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
            *damaged.last_mut().unwrap() ^= 1;
            forger.socket.write_all(&[request, damaged].concat()).unwrap();
            let (_, alert) = forger.read_to_end();
            assert_eq!(alert, Some((2, BAD_RECORD_MAC)), "{mechanism}");
        }
        assert_eq!(other.fetch("/"), b"hello\n", "{mechanism}");
        assert!(!serve.stderr_text().contains("panicked"), "{}", serve.stderr_text());
        assert_eq!(serve.statistics()["workers"]["replaced"], 0, "{mechanism}");
    }
}

#[test]
fn malformed_records_end_a_connection_with_the_alert_that_says_why() {
    let directory = site();
    let serve = serve(&directory, &[]);
    type Forge = fn(&mut Forger) -> Vec<u8>;
    let cases: [(&str, u8, Forge); 9] = [
        ("too much plaintext", RECORD_OVERFLOW, |f| f.seal(DATA, &[b'x'; (1 << 14) + 1])),
        ("a length that no record has", RECORD_OVERFLOW, |_| vec![23, 3, 3, 0x41, 0x01]),
        ("a length shorter than a tag", BAD_RECORD_MAC, |_| vec![23, 3, 3, 0, 0]),
        ("an empty alert", UNEXPECTED_MESSAGE, |f| f.seal(ContentType::Alert, b"")),
        ("a long alert", DECODE_ERROR, |f| f.seal(ContentType::Alert, &[1, 0, 0])),
        ("an empty message", UNEXPECTED_MESSAGE, |f| f.seal(ContentType::Handshake, b"")),
        ("a second hello", UNEXPECTED_MESSAGE, |f| f.seal(ContentType::Handshake, &[1, 0, 0, 0])),
        ("a record in the clear", UNEXPECTED_MESSAGE, |_| vec![22, 3, 3, 0, 1, 0]),
        ("damage", BAD_RECORD_MAC, |f| {
            let mut record = f.seal(DATA, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
            *record.last_mut().unwrap() ^= 1;
            record
        }),
    ];
    for (what, expected, forge) in cases {
        let mut forger = forger(&serve);
        let record = forge(&mut forger);
        forger.socket.write_all(&record).unwrap();
        let (data, alert) = forger.read_to_end();
        assert_eq!((data.as_slice(), alert), (&b""[..], Some((2, expected))), "{what}");
    }
    assert_serves(&serve);
}

/// Both arrive in one segment, after which no event reports the end.
#[test]
fn a_request_with_close_notify_is_answered_at_once_and_ends_the_connection() {
    let directory = site();
    for architecture in ["event", "threaded", "prethreaded"] {
        let serve = serve(&directory, &["--architecture", architecture]);
        let mut forger = forger(&serve);
        let request = forger.seal(DATA, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
        let close = forger.seal(ContentType::Alert, &[1, 0]);
        let begun = Instant::now();
        forger.socket.write_all(&[request, close].concat()).unwrap();
        let (data, alert) = forger.read_to_end();
        assert!(data.ends_with(b"hello\n"), "{architecture}");
        assert_eq!(alert, Some((1, 0)), "{architecture}");
        // Otherwise the server would wait as long as an idle connection may stay open.
        assert!(begun.elapsed() < Duration::from_secs(4), "{architecture}");
    }
}

/// Regression: after a response that did not fit into the socket, or with `per-state`, a level-triggered mechanism left
/// the connection open until `--keep-alive`.
#[test]
fn close_notify_is_noticed_after_a_response_that_was_sent_later() {
    const LEN: usize = 8 << 20;
    let directory = site();
    fs::write(directory.path().join("site/long"), vec![7; LEN]).unwrap();
    let path = |path: &str| format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
    for (mechanism, interest) in [
        ("epoll", "eager"),
        ("epoll", "per-state"),
        ("epoll-et", "eager"),
        ("epoll-et", "per-state"),
        ("poll", "per-state"),
    ] {
        let serve = serve(&directory, &["--mechanism", mechanism, "--interest", interest]);
        for (path, len) in [(path("/long"), LEN), (path("/"), 6)] {
            let mut forger = forger(&serve);
            let request = forger.seal(DATA, path.as_bytes());
            let close = forger.seal(ContentType::Alert, &[1, 0]);
            let begun = Instant::now();
            forger.socket.write_all(&[request, close].concat()).unwrap();
            let (data, alert) = forger.read_to_end();
            let head = data.windows(4).position(|four| four == b"\r\n\r\n").unwrap() + 4;
            assert_eq!(data.len() - head, len, "{mechanism}, {interest}");
            assert_eq!(alert, Some((1, 0)), "{mechanism}, {interest}");
            // The default is 75 seconds.
            assert!(begun.elapsed() < Duration::from_secs(20), "{mechanism}, {interest}");
        }
    }
}

#[test]
fn a_fatal_alert_is_not_answered() {
    let directory = site();
    let serve = serve(&directory, &[]);
    let mut forger = forger(&serve);
    forger.send(ContentType::Alert, &[2, 40]);
    assert_eq!(forger.read_to_end(), (Vec::new(), None));
    assert_serves(&serve);
}

#[test]
fn key_updates_without_data_end_a_connection_after_32() {
    let directory = site();
    let serve = serve(&directory, &[]);
    let mut peer = Peer::connect(serve.address());
    assert_eq!(peer.fetch("/"), b"hello\n");
    for _ in 0..32 {
        peer.tls.refresh_traffic_keys().unwrap();
    }
    assert_eq!(peer.fetch("/"), b"hello\n");
    // The request has paid for one.
    for _ in 0..2 {
        peer.tls.refresh_traffic_keys().unwrap();
    }
    peer.run(|_| false);
    let alert = rustls::Error::AlertReceived(AlertDescription::UnexpectedMessage);
    assert_eq!(peer.end, Some(End::Failed(alert)));
    assert_serves(&serve);
}

#[test]
fn renegotiation_is_refused() {
    let directory = site();
    let serve = serve(&directory, &[]);
    let request = "GET / HTTP/1.1\nHost: localhost\n\n";
    let output =
        s_client(&directory, &serve, &["-tls1_2", "-crlf"], &[request, "R\n", request, request]);
    assert!(output.contains("RENEGOTIATING"), "{output}");
    assert_eq!(output.matches("HTTP/1.1 200 OK").count(), 1, "{output}");
    assert!(output.contains("no renegotiation"), "{output}");
    assert_serves(&serve);
}

#[test]
fn the_end_of_a_response_cannot_be_forged_by_cutting_it() {
    let directory = site();
    fs::write(directory.path().join("site/long"), vec![7; 30 << 20]).unwrap();
    let serve = serve(&directory, &[]);
    let mut whole = Peer::connect(serve.address());
    whole.send(LAST_REQUEST);
    whole.run(|_| false);
    assert_eq!((whole.content(), &whole.end), (Some(&b"hello\n"[..]), &Some(End::Closed)));

    let mut cut = Peer::connect(serve.address());
    cut.get("/long");
    cut.run(|peer| peer.received.len() > 100_000);
    drop(serve);
    cut.run(|_| false);
    assert!(matches!(cut.end, Some(End::Truncated | End::Reset)), "{:?}", cut.end);
    assert!(cut.content().is_none());
}

#[test]
fn a_client_that_says_it_is_done_is_answered_and_one_that_is_cut_is_not() {
    let directory = site();
    fs::write(directory.path().join("site/long"), vec![7; 3 << 20]).unwrap();
    let mut serve = serve(&directory, &[]);
    // close_notify ends the client's half; the response continues (RFC 8446 §6.1).
    let mut done = Peer::connect(serve.address());
    assert_eq!(done.fetch("/"), b"hello\n");
    done.get("/long");
    done.tls.send_close_notify();
    done.step(1 << 20, 0);
    done.run(|peer| peer.content().is_some());
    assert_eq!(done.content().map(<[u8]>::len), Some(3 << 20), "{:?}", done.end);
    done.run(|_| false);
    assert_eq!(done.end, Some(End::Closed));
    // A part of a record is not a request, and the connection does not wait for the rest.
    for sent in [1, 5, 20] {
        let mut cut = Peer::connect(serve.address());
        assert_eq!(cut.fetch("/"), b"hello\n");
        cut.get("/");
        cut.step(sent, 0);
        cut.cut();
        cut.run(|_| false);
        assert!(cut.received.is_empty() && cut.end.is_some(), "{sent}: {:?}", cut.end);
    }
    serve.wait_until("all to be gone", |s| s["connections"]["open"] == 0);
}
