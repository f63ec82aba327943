//! Tunnels of clients that use TLS.

use super::*;
use pollux_testkit::tls::{TlsStream, Version};
use std::net::TcpStream;

const UPGRADE_REQUEST: &str =
    "GET /chat HTTP/1.1\r\nHost: t\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n";

/// Starts an origin without TLS that switches protocols and echoes.
fn echoing() -> Origin {
    Origin::start(|request| {
        request.say(
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: echo\r\nConnection: Upgrade\r\n\r\nwelcome",
        );
        let mut buffer = [0; 4096];
        while let Ok(received @ 1..) = request.reader().read(&mut buffer) {
            if !request.say(&buffer[..received]) {
                break;
            }
        }
        false
    })
}

#[test]
fn a_client_with_tls_has_a_tunnel() {
    let long: Vec<_> = (0..50_000_u32).map(|at| (at % 251) as u8).collect();
    on_every_engine(|engine| {
        let origin = echoing();
        let fixture = Fixture::new(&[&origin.url()], |config, _| {
            config.tls = Some(Arc::new(Tls::new(&TlsConfig::default()).unwrap()));
            serve_with(config, engine);
        });
        for version in [Version::Tls12, Version::Tls13] {
            let socket = TcpStream::connect(fixture.address()).unwrap();
            let mut client = TlsStream::new(socket, version);
            client.write_all(format!("{UPGRADE_REQUEST}early").as_bytes()).unwrap();
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                client.read_exact(&mut byte).unwrap();
                head.push(byte[0]);
            }
            assert!(head.starts_with(b"HTTP/1.1 101 "), "{engine}");
            let expect = |client: &mut TlsStream, wanted: &[u8]| {
                let mut got = vec![0; wanted.len()];
                client.read_exact(&mut got).unwrap();
                assert!(got == wanted, "{engine}, {version:?}: other bytes");
            };
            expect(&mut client, b"welcomeearly");
            for message in [b"ping".as_slice(), &long, b"pong"] {
                client.write_all(message).unwrap();
                expect(&mut client, message);
            }
            client.finish();
            // An end without close_notify would be an error.
            let mut rest = Vec::new();
            client.read_to_end(&mut rest).unwrap();
            assert!(rest.is_empty(), "{engine}");
        }
    });
}
