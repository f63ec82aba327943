//! The information that origins receive about clients with certificates.

use super::{
    peer::{Authority, exchange, exchange_until_end},
    *,
};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use rustls::HandshakeKind;

/// Starts a front end over TLS that requests certificates of `authority`.
fn front(authority: &Authority, server: &Identity, origin: &Origin, engine: &str) -> Fixture {
    let (chain, key) = (server.chain.clone(), server.key.clone());
    let settings = TlsConfig {
        certificates: vec![CertificateFiles { chain, key }],
        client_certificates: ClientCertificates::Optional(authority.file()),
        ..TlsConfig::default()
    };
    Fixture::new(&[&origin.url()], |config, _| {
        config.tls = Some(Arc::new(Tls::new(&settings).unwrap()));
        serve_with(config, engine);
    })
}

/// Starts an origin that answers with the fields about the client that it has received.
fn origin() -> Origin {
    Origin::start(|request| {
        let of_client = |line: &&str| {
            let name = line.split(':').next().unwrap_or_default().to_ascii_lowercase();
            name.replace('_', "-").starts_with("client-cert") || name == "x-forwarded-proto"
        };
        let lines: Vec<_> = request.head().lines().filter(of_client).map(str::to_owned).collect();
        let body = lines.join("\n");
        request.say(format!(
            "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        ));
        false
    })
}

#[test]
fn an_origin_gets_the_verified_certificate_and_no_forged_one() {
    let (authority, origin) = (Authority::new(), origin());
    let server = authority.identity("localhost");
    let shown = authority.identity("client.example");
    let field = format!("Client-Cert: :{}:", BASE64_STANDARD.encode(&shown.certificate));
    let forged = "Client-Cert: :Zm9yZ2Vk:\r\nclient_cert: x\r\nClient-Cert-Chain: :Zg==:\r\n";
    let request = format!("GET / HTTP/1.1\r\nHost: localhost\r\n{forged}Connection: close\r\n\r\n");
    on_every_engine(|engine| {
        let fixture = front(&authority, &server, &origin, engine);
        let with = authority.client(Some(&shown));
        for _ in 0..2 {
            let (reply, kind) = exchange(&with, fixture.address(), &request);
            let body = reply.split("\r\n\r\n").nth(1).unwrap();
            assert_eq!(body, format!("X-Forwarded-Proto: https\n{field}"), "{engine}");
            // A resumed session would have a certificate that may have expired since.
            assert_eq!(kind, HandshakeKind::Full, "{engine}");
        }
        let without = authority.client(None);
        let (reply, _) = exchange(&without, fixture.address(), &request);
        assert_eq!(reply.split("\r\n\r\n").nth(1).unwrap(), "X-Forwarded-Proto: https", "{engine}");
    });
}

/// A client of HTTP/1.0 detects the end of a response only by the end of the connection.
#[test]
fn a_cut_response_ends_without_close_notify() {
    let authority = Authority::new();
    let server = authority.identity("localhost");
    let origin = Origin::start(|request| {
        request.say("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n");
        if request.target() == "/whole" {
            request.say("0\r\n\r\n");
        }
        false
    });
    on_every_engine(|engine| {
        let fixture = front(&authority, &server, &origin, engine);
        let client = authority.client(None);
        for (path, expected) in [("/whole", true), ("/cut", false)] {
            let request = format!("GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n");
            let (reply, _, is_whole) = exchange_until_end(&client, fixture.address(), &request);
            assert!(reply.ends_with("hello"), "{engine}: {reply}");
            assert_eq!(is_whole, expected, "{engine}: {path}");
        }
    });
}
