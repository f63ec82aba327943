//! Stores that are not Redis, or that misbehave.

use super::*;
use std::{
    io::{Read, Write},
    net::TcpListener,
    thread,
    time::Instant,
};

/// Starts a server that reads some bytes from each connection, sends `reply` in pieces, and closes the
/// connection.
fn server(reply: &'static [u8]) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for stream in listener.incoming().take(64) {
            let Ok(mut stream) = stream else { return };
            let _ = stream.read(&mut [0; 4096]);
            for piece in reply.chunks(7) {
                if stream.write_all(piece).is_err() {
                    break;
                }
            }
        }
    });
    port
}

#[test]
fn nonsense_is_a_503_and_never_a_page() {
    for reply in [
        &b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n"[..],
        b"",
        b"*2\r\n$1\r\na\r\n",
        b"$5\r\nhello world, this is longer\r\n",
        b"*99999999\r\n",
        b"*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n",
        b":1\r\n:1\r\n",
        b"*1\r\n:1\r\n:1\r\n",
        b"*0\r\n+PONG\r\n",
        b"\0\0\0\0\0\0\0\0",
    ] {
        let store = format!("redis://127.0.0.1:{}", server(reply)).parse().unwrap();
        let fixture = Fixture::new("epoll-et", store, StoreConnections::default());
        for _ in 0..3 {
            let start = Instant::now();
            let answer = visit(&mut fixture.client());
            assert_eq!(answer.status, 503, "{:?}", String::from_utf8_lossy(reply));
            assert!(answer.field("retry-after").is_some());
            assert!(start.elapsed() < Duration::from_secs(15));
        }
        assert_eq!(fixture.client().get("/").text(), "static");
        fixture.stop();
    }
}

#[test]
fn a_name_that_is_none_is_a_503() {
    let store = "redis://no-such-host.invalid:1".parse().unwrap();
    let fixture = Fixture::new("epoll-et", store, StoreConnections::default());
    let answer = visit(&mut fixture.client());
    assert_eq!((answer.status, answer.field("retry-after")), (503, Some("1")));
    fixture.stop();
}
