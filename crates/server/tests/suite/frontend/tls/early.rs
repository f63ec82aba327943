//! An origin that sends data right behind its handshake, before it has received a request.

use super::*;
use rustls::{
    ProtocolVersion, ServerConfig, ServerConnection,
    version::{TLS12, TLS13},
};
use std::net::{TcpListener, TcpStream};

/// More bytes than one record has, and than the buffer of a receive holds.
const EARLY: usize = 60_000;

/// Starts an origin that sends a response together with the last bytes of its handshake. TLS 1.3 allows
/// this before the client's Finished.
fn start(mut config: ServerConfig) -> String {
    config.send_half_rtt_data = true;
    let config = Arc::new(config);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("https://localhost:{}", listener.local_addr().unwrap().port());
    thread::spawn(move || {
        for socket in listener.incoming().flatten() {
            let connection = ServerConnection::new(Arc::clone(&config)).unwrap();
            // An error is the end of the connection by the front end.
            let _ = answer_early(connection, socket);
        }
    });
    url
}

fn answer_early(mut connection: ServerConnection, mut socket: TcpStream) -> std::io::Result<()> {
    let mut output = Vec::new();
    let mut has_answered = false;
    connection.set_buffer_limit(None);
    while connection.read_tls(&mut socket)? > 0 {
        connection.process_new_packets().map_err(std::io::Error::other)?;
        let is_tls13 = connection.protocol_version() == Some(ProtocolVersion::TLSv1_3);
        if !has_answered && (is_tls13 || !connection.is_handshaking()) {
            has_answered = true;
            let head =
                format!("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {EARLY}\r\n\r\n");
            connection.writer().write_all(head.as_bytes())?;
            connection.writer().write_all(&[b'e'; EARLY])?;
        }
        output.clear();
        while connection.wants_write() {
            connection.write_tls(&mut output)?;
        }
        // One call, so that the client receives as much as it asks for.
        socket.write_all(&output)?;
    }
    Ok(())
}

#[test]
fn early_data_of_an_origin_ends_no_worker() {
    let authority = Authority::new();
    for version in [&TLS13, &TLS12] {
        let url = start(authority.identity("localhost").server(version));
        for engine in ["epoll", "epoll-et"] {
            let fixture = before(&authority, &[&url], |config| serve_with(config, engine));
            for _ in 0..3 {
                let reply = fixture.get("/early");
                // The response of nobody's request may be refused or used, but no byte of it is lost.
                let is_whole = reply.status == 200 && reply.text().len() == EARLY;
                assert!(is_whole || reply.status == 502, "{engine}, {version:?}: {}", reply.status);
            }
            assert_eq!(fixture.get("/file").text(), "of the site");
            fixture.stop();
        }
    }
}
