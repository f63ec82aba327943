//! https origins: the verification of certificates, the use of connections, and the reports of
//! failures.

mod client_certificates;
mod early;
mod peer;
mod tunnels;

use super::*;
use peer::{Authority, Identity, TlsOrigin, echo};
use pollux_server::{
    config::{CertificateFiles, ClientCertificates, ClientTrust, TlsConfig},
    settings::{OriginTls, Tls},
    stats::Counter,
};
use pollux_testkit::origin::Origin;
use std::{
    io::{Read as _, Write as _},
    sync::mpsc::channel,
};

/// Starts a front end for `origins` that trusts only `authority`.
fn before(authority: &Authority, origins: &[&str], change: impl FnOnce(&mut Settings)) -> Fixture {
    Fixture::new(origins, |config, frontend| {
        frontend.tls = Some(OriginTls::new(&ClientTrust::File(authority.file())).unwrap());
        change(config);
    })
}

fn big() -> String {
    "0123456789abcdef".repeat(20_000)
}

#[test]
fn requests_bodies_and_tunnels_pass_on_every_engine() {
    let authority = Authority::new();
    let origin = TlsOrigin::start(&authority.identity("localhost"), |stream, head| {
        if !head.contains("Upgrade: echo") {
            return echo(stream, head);
        }
        stream
            .write_all(
                b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: echo\r\nConnection: Upgrade\r\n\r\n",
            )
            .unwrap();
        let mut buffer = [0; 4096];
        while let Ok(received @ 1..) = stream.read(&mut buffer) {
            stream.write_all(&buffer[..received]).unwrap();
        }
        false
    });
    on_every_engine(|engine| {
        let fixture =
            before(&authority, &[&origin.url("localhost")], |config| serve_with(config, engine));
        let mut client = fixture.client();
        for _ in 0..3 {
            assert_eq!(client.get("/x").text(), "ok", "{engine}");
        }
        let body = big();
        client.send(format!(
            "POST /x HTTP/1.1\r\nHost: t\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        ));
        assert!(client.reply().text() == format!("ok{body}"), "{engine}");
        client.send("GET /t HTTP/1.1\r\nHost: t\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n");
        assert_eq!(client.reply().status, 101, "{engine}");
        let mut got = [0; 4];
        for _ in 0..3 {
            client.send("ping");
            client.socket().read_exact(&mut got).unwrap();
            assert_eq!(&got, b"ping", "{engine}");
        }
        drop(client);
        let statistics = fixture.stop();
        let opened = statistics.count(Counter::OriginOpened);
        // If localhost is also ::1, on which this origin does not listen, that address may be tried
        // first.
        let refused = statistics.count(Counter::OriginFailures);
        assert!(opened == 1 && refused <= other_addresses(), "{engine}: {opened}, {refused}");
    });
    let handshakes = origin.handshakes.lock().unwrap();
    for (_, name, alpn) in &*handshakes {
        assert_eq!(name.as_deref(), Some("localhost"));
        assert_eq!(alpn.as_deref(), Some(&b"http/1.1"[..]));
    }
}

#[test]
fn another_pollux_is_an_origin_whose_sessions_are_resumed() {
    let authority = Authority::new();
    let identity = authority.identity("127.0.0.1");
    let site = tempfile::tempdir().unwrap();
    std::fs::write(site.path().join("big"), big()).unwrap();
    let mut config = Settings::new(site.path());
    let certificates = vec![CertificateFiles { chain: identity.chain, key: identity.key }];
    let settings = TlsConfig { certificates, ..TlsConfig::default() };
    config.tls = Some(Arc::new(Tls::new(&settings).unwrap()));
    let server = Server::start(config).unwrap();
    let Listen::Tcp(address) = server.addresses()[0] else { panic!() };
    let fixture = before(&authority, &[&format!("https://{address}")], |_| {});
    for _ in 0..3 {
        assert!(fixture.get("/big").text() == big());
    }
    fixture.stop();
    server.stop(Duration::from_secs(10)).unwrap();
}

#[test]
fn sessions_are_resumed() {
    let authority = Authority::new();
    let origin = TlsOrigin::start(&authority.identity("localhost"), |stream, _| {
        stream.write_all(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nend").unwrap();
        stream.conn.send_close_notify();
        stream.flush().unwrap();
        false
    });
    let fixture = before(&authority, &[&origin.url("localhost")], |_| {});
    for _ in 0..4 {
        assert_eq!(fixture.get("/").text(), "end");
    }
    let handshakes = origin.handshakes.lock().unwrap();
    let kinds: Vec<_> = handshakes.iter().map(|(kind, ..)| format!("{kind:?}")).collect();
    assert_eq!(kinds, ["Full", "Resumed", "Resumed", "Resumed"]);
}

/// Returns the number of localhost's addresses besides 127.0.0.1.
fn other_addresses() -> u64 {
    let all = pollux_sys::resolve("localhost", 0).expect("localhost has an address");
    all.iter().filter(|address| !address.is_ipv4()).count() as u64
}

/// Returns the status and the error type (RFC 9209) with which a front end for `origin` answers.
fn failure(authority: &Authority, origin: &str) -> (u16, String) {
    let fixture = before(authority, &[origin], |_| {});
    let reply = fixture.get("/");
    assert!(!reply.text().contains("secret"));
    error(&reply)
}

#[test]
fn certificates_that_are_not_valid_for_the_origin_are_refused() {
    let authority = Authority::new();
    let start = |identity: &Identity| {
        TlsOrigin::start(identity, |stream, _| {
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nsecret").is_ok()
        })
    };
    let bad = (502, "tls_certificate_error".to_owned());
    let other_name = start(&authority.identity("other.example"));
    assert_eq!(failure(&authority, &other_name.url("localhost")), bad);
    let expired = start(&authority.identity_until("localhost", 2020));
    assert_eq!(failure(&authority, &expired.url("localhost")), bad);
    let unknown = start(&Authority::new().identity("localhost"));
    assert_eq!(failure(&authority, &unknown.url("localhost")), bad);
    for origin in [other_name, expired, unknown] {
        assert!(origin.handshakes.lock().unwrap().is_empty(), "no request was sent");
    }
}

#[test]
fn an_origin_that_speaks_no_tls_is_named_so() {
    let authority = Authority::new();
    let plain =
        Origin::start(|request| request.say("HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nsecret"));
    let url = format!("https://localhost:{}", plain.address().port());
    // A ClientHello is not an HTTP request: `plain` waits for the end of a line, or answers with an
    // error.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let answers = format!("https://localhost:{}", listener.local_addr().unwrap().port());
    thread::spawn(move || {
        for mut socket in listener.incoming().flatten() {
            let _ = socket.read(&mut [0; 512]);
            let _ = socket.write_all(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n");
        }
    });
    assert_eq!(failure(&authority, &answers), (502, "tls_protocol_error".to_owned()));
    let fixture = Fixture::new(&[&url], |_, frontend| {
        frontend.tls = Some(OriginTls::new(&ClientTrust::File(authority.file())).unwrap());
        frontend.connect_timeout = Duration::from_millis(300);
    });
    let (status, error) = error(&fixture.get("/"));
    assert!([502, 504].contains(&status), "{status} {error}");
    assert!(["tls_protocol_error", "connection_timeout"].contains(&&*error), "{error}");
}

#[test]
fn an_alert_is_reported_with_its_number() {
    let authority = Authority::new();
    let identity = authority.identity("localhost");
    let site = tempfile::tempdir().unwrap();
    let mut config = Settings::new(site.path());
    let settings = TlsConfig {
        certificates: vec![CertificateFiles { chain: identity.chain, key: identity.key }],
        client_certificates: ClientCertificates::Required(authority.file()),
        ..TlsConfig::default()
    };
    config.tls = Some(Arc::new(Tls::new(&settings).unwrap()));
    let server = Server::start(config).unwrap();
    let Listen::Tcp(address) = server.addresses()[0] else { panic!() };
    let url = format!("https://localhost:{}", address.port());
    // The alert certificate_required: RFC 8446 §6.2.
    let expected = (502, "tls_alert_received; alert-id=116".to_owned());
    assert_eq!(failure(&authority, &url), expected);
    server.stop(Duration::from_secs(10)).unwrap();
}

/// A response that ends with its connection is complete only after close_notify: any device on the
/// path can close a connection.
#[test]
fn a_response_without_close_notify_is_incomplete() {
    let authority = Authority::new();
    let origin = TlsOrigin::start(&authority.identity("localhost"), |stream, head| {
        stream.write_all(b"HTTP/1.1 200 OK\r\n\r\nthe first half").unwrap();
        if head.starts_with("GET /whole ") {
            stream.conn.send_close_notify();
        }
        stream.flush().unwrap();
        false
    });
    on_every_engine(|engine| {
        let fixture =
            before(&authority, &[&origin.url("localhost")], |config| serve_with(config, engine));
        assert_eq!(fixture.get("/whole").text(), "the first half", "{engine}");
        let mut client = fixture.client();
        client.send("GET /cut HTTP/1.1\r\nHost: t\r\n\r\n");
        let all = String::from_utf8(client.read_to_end_or_reset()).unwrap();
        assert!(all.contains("the first half"), "{engine}: {all}");
        assert!(!all.ends_with("0\r\n\r\n"), "{engine}: a cut response looks whole: {all}");
    });
}

#[test]
fn an_origin_that_closes_idle_connections_costs_no_request() {
    let authority = Authority::new();
    let origin = TlsOrigin::start(&authority.identity("localhost"), |stream, head| {
        echo(stream, head);
        // The connection is closed without close_notify, as many servers do.
        false
    });
    let fixture = before(&authority, &[&origin.url("localhost")], |_| {});
    for _ in 0..5 {
        assert_eq!(fixture.get("/").text(), "ok");
    }
}

/// Regression: the origin got the end of the stream alone, which is an error for it.
#[test]
fn a_server_that_stops_says_so_to_its_origins() {
    let authority = Authority::new();
    let (sender, ends) = channel();
    let origin = TlsOrigin::start(&authority.identity("localhost"), move |stream, head| {
        echo(stream, head);
        let end = stream.read(&mut [0; 16]).map_err(|error| error.kind());
        sender.send(end).unwrap();
        false
    });
    let fixture = before(&authority, &[&origin.url("localhost")], |_| {});
    assert_eq!(fixture.get("/").text(), "ok");
    fixture.stop();
    assert_eq!(ends.recv_timeout(PATIENCE).unwrap(), Ok(0));
}

#[test]
fn settings_that_cannot_be_used_name_the_flag() {
    let missing = ClientTrust::File("/nonexistent/ca.pem".into());
    let error = format!("{:#}", OriginTls::new(&missing).unwrap_err());
    assert!(error.contains("--origin-ca") && error.contains("/nonexistent/ca.pem"), "{error}");
}

/// Regression: a reload did not notice that the file of the authorities had other ones.
#[test]
fn other_authorities_in_the_same_file_are_noticed() {
    let settings = |authorities: &[&Authority]| {
        let file = tempfile::NamedTempFile::new().unwrap();
        let read = |authority: &&Authority| std::fs::read_to_string(authority.file()).unwrap();
        let all: String = authorities.iter().map(read).collect();
        std::fs::write(file.path(), all).unwrap();
        let mut frontend = FrontendConfig::new(vec!["https://localhost".parse().unwrap()]);
        let trust = ClientTrust::File(file.path().to_owned());
        frontend.tls = Some(OriginTls::new(&trust).unwrap());
        let mut settings = Settings::new("");
        settings.frontend = Some(Arc::new(frontend));
        settings
    };
    let (one, other) = (Authority::new(), Authority::new());
    let both = settings(&[&one, &other]);
    assert!(!both.has_other_authorities(&settings(&[&other, &one])));
    assert!(both.has_other_authorities(&settings(&[&one])));
    assert!(settings(&[&one]).has_other_authorities(&settings(&[&other])));
    assert!(!both.has_other_authorities(&Settings::new("")));
}
