//! How connections end: the client must be able to read a response that was sent before the end.

use super::{DISCIPLINES, TestServer};
use pollux_testkit::{conformance::Site, http::Client};
use std::{io::Read, net::Shutdown, num::NonZeroU32, time::Duration};

/// Reads to the end of the stream and returns the text; a reset is a failure.
fn read_all(client: &Client, what: &str) -> String {
    let mut bytes = Vec::new();
    let mut socket = client.socket();
    if let Err(error) = socket.read_to_end(&mut bytes) {
        panic!("{what}: {error} after {} bytes", bytes.len());
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

const GET: &str = "GET /digits HTTP/1.1\r\nHost: test\r\n\r\n";

/// RFC 9112 §9.6: the last response reaches a client that has already sent more.
#[test]
fn a_server_that_ends_a_kept_connection_does_not_reset_it() {
    let site = Site::make();
    for interest in DISCIPLINES {
        let server = TestServer::start(&site.root(), |config| {
            config.max_requests = NonZeroU32::new(3);
            config.interest = interest;
        });
        let interest = format!("{interest:?}");
        let mut client = server.client();
        client.send(GET.repeat(3));
        // The pauses are long enough for the server to close the connection, if it closes immediately.
        client.send_slowly(Duration::from_millis(50), [GET; 3]);
        let text = read_all(&client, &interest);
        assert_eq!(text.matches("HTTP/1.1 200 OK").count(), 3, "{interest}: {text}");
        assert_eq!(text.matches("Connection: close").count(), 1, "{interest}: {text}");
        // A refused CONNECT, followed by bytes that were meant for the tunnel.
        let mut client = server.client();
        client.send("CONNECT a:443 HTTP/1.1\r\nHost: a:443\r\n\r\n");
        client.send_slowly(Duration::from_millis(50), [[0x16, 3, 1, 2, 0, 1]]);
        assert!(read_all(&client, &interest).starts_with("HTTP/1.1 405 "), "{interest}");
    }
}

/// If a body never arrives, the server answers with 408; the answer to HEAD has no content.
#[test]
fn a_body_that_does_not_come_is_given_up() {
    let site = Site::make();
    // Long enough for a client on a busy machine to connect and send.
    let server = TestServer::start(&site.root(), |config| {
        config.timeouts.header = Duration::from_secs(3);
    });
    let cases = [
        ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nabc", true),
        ("HEAD / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nabc", false),
        ("GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabc", true),
        ("HEAD / HTTP/1.1\r\nHost", false),
    ];
    // All requests are sent at once, because each waits for the timeout.
    let clients = cases.map(|(request, _)| {
        let mut client = server.client();
        client.send(request);
        client
    });
    for (client, (request, has_content)) in clients.into_iter().zip(cases) {
        let text = read_all(&client, request);
        assert!(text.starts_with("HTTP/1.1 408 "), "{request:?}: {text}");
        assert_eq!(!text.ends_with("\r\n\r\n"), has_content, "{request:?}: {text}");
    }
}

/// The client half-closes after each byte of a request: the server answers if the request is complete,
/// and ends the connection in any case.
#[test]
fn a_half_close_anywhere_ends_the_connection() {
    let site = Site::make();
    let server = TestServer::start(&site.root(), |_| {});
    let request =
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n";
    for end in 0..=request.len() {
        let mut client = server.client();
        client.send(&request[..end]);
        client.socket().shutdown(Shutdown::Write).unwrap();
        let text = read_all(&client, request);
        assert_eq!(!text.is_empty(), end == request.len(), "{end}: {text}");
    }
}
