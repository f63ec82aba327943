//! `pollux load`, `idle`, `push` and `subscribe` against `pollux serve` over TLS.

use pollux_testkit::serve::Serve;
use serde_json::Value;
use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    path::Path,
    process::{Command, Output, Stdio},
    sync::Arc,
    thread,
};
use tempfile::TempDir;

const POLLUX: &str = env!("CARGO_BIN_EXE_pollux");

/// Creates a site, and a certificate that is its own authority, in site.pem and site.key.
fn site() -> TempDir {
    let folder = TempDir::new().unwrap();
    fs::create_dir(folder.path().join("site")).unwrap();
    fs::write(folder.path().join("site/index.html"), "hello\n").unwrap();
    let output = Command::new("openssl")
        .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"])
        .args(["-days", "30", "-subj", "/CN=site", "-addext", "basicConstraints=critical,CA:FALSE"])
        .args(["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"])
        .args(["-keyout", "site.key", "-out", "site.pem"])
        .current_dir(folder.path())
        .output()
        .expect("openssl");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    folder
}

fn serve(folder: &Path, more: &[&str]) -> Serve {
    let path = |name: &str| folder.join(name).to_str().unwrap().to_owned();
    let (certificate, key) = (path("site.pem"), path("site.key"));
    let mut arguments = vec!["--tls-cert", &certificate, "--tls-key", &key];
    arguments.extend(more);
    Serve::start(POLLUX, &folder.join("site"), &arguments)
}

fn pollux(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(POLLUX);
    command.args(arguments).current_dir(folder).output().unwrap()
}

/// Makes a run of 20 requests whose validity does not depend on the load of the machine.
fn load(folder: &Path, url: &str, more: &[&str]) -> Value {
    let mut arguments = vec!["load", url, "--json", "-n", "20", "--rate", "200"];
    arguments.extend(["--max-lag", "1h", "--timeout", "60s", "--connect-timeout", "60s"]);
    arguments.extend(more);
    let output = pollux(folder, &arguments);
    let text = String::from_utf8_lossy(&output.stderr);
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {text}"))
}

fn url(server: &Serve, path: &str) -> String {
    format!("https://{}{path}", server.address())
}

#[test]
fn load_counts_full_and_resumed_handshakes() {
    let folder = site();
    let server = serve(folder.path(), &[]);
    let url = url(&server, "/");
    let trust = ["--cacert", "site.pem"];
    let report = load(folder.path(), &url, &[&trust[..], &["--hdr", "log"]].concat());
    assert_eq!(report["requests"]["completed"], 20, "{report}");
    assert_eq!(report["tls"]["handshakes"]["full"], 20, "{report}");
    assert_eq!(report["tls"]["handshakes"]["resumed"], 0);
    assert_eq!(report["tls"]["handshake_us"]["count"], 20);
    assert!(report["tls"]["handshakes_per_s"].as_f64().unwrap() > 0.0);
    let log = fs::read_to_string(folder.path().join("log")).unwrap();
    assert!(log.contains("Tag=handshake,"), "{log}");

    // One connection at a time: each uses the ticket of the one before.
    let one = ["--max-connections", "1", "--tls-resume"];
    let report = load(folder.path(), &url, &[&trust[..], &one].concat());
    assert_eq!(report["requests"]["completed"], 20, "{report}");
    assert_eq!(report["tls"]["handshakes"]["full"], 1, "{report}");
    assert_eq!(report["tls"]["handshakes"]["resumed"], 19, "{report}");

    // One connection for all requests, with the cipher that the server likes least.
    let one = ["-c", "1", "--insecure", "--expect-length", "6", "--tls-cipher", "aes-256-gcm"];
    let report = load(folder.path(), &url, &one);
    assert_eq!(report["requests"]["completed"], 20, "{report}");
    assert_eq!(report["tls"]["handshakes"]["full"], 1, "{report}");
}

#[test]
fn content_of_many_records_is_received() {
    let folder = site();
    let long: Vec<u8> = (0..700_000u32).map(|at| (at % 251) as u8).collect();
    fs::write(folder.path().join("site/long"), &long).unwrap();
    let server = serve(folder.path(), &[]);
    let url = url(&server, "/long");
    let report = load(folder.path(), &url, &["--insecure", "--expect-length", "700000"]);
    assert_eq!(report["requests"]["completed"], 20, "{report}");
    assert_eq!(report["content_bytes"], 20 * 700_000);
}

/// Starts a server that answers one request of each connection, ends TLS in the same packet, and leaves the end
/// of the TCP connection to the client.
fn server_that_ends_tls() -> SocketAddr {
    let certificates = pollux_tls::self_signed(vec!["127.0.0.1".to_owned()]).unwrap();
    let config = pollux_tls::ServerSettings::default().build(Arc::new(certificates)).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for socket in listener.incoming().map_while(Result::ok) {
            let tls = rustls::ServerConnection::new(config.clone()).unwrap();
            thread::spawn(move || answer_and_end(tls, socket));
        }
    });
    address
}

fn answer_and_end(mut tls: rustls::ServerConnection, mut socket: TcpStream) -> Option<()> {
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        if tls.complete_io(&mut socket).ok()? == (0, 0) {
            return None;
        }
        // The reader reports an error if there is no more plaintext yet.
        let _ = tls.reader().read_to_end(&mut request);
    }
    tls.writer().write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx").ok()?;
    tls.send_close_notify();
    let mut records = Vec::new();
    while tls.wants_write() {
        tls.write_tls(&mut records).ok()?;
    }
    socket.write_all(&records).ok()?;
    socket.read_to_end(&mut request).ok()?;
    Some(())
}

/// Regression test: every other request was once sent after the server's close_notify, and not answered.
#[test]
fn no_request_follows_the_servers_end_of_tls() {
    let folder = TempDir::new().unwrap();
    let url = format!("https://{}/", server_that_ends_tls());
    let report = load(folder.path(), &url, &["--insecure", "-c", "1"]);
    assert_eq!(report["requests"]["completed"], 20, "{report}");
    assert_eq!(report["connections"]["opened"], 20, "{report}");
}

#[test]
fn a_certificate_that_is_not_trusted_is_explained() {
    let folder = site();
    let server = serve(folder.path(), &["--hub", "--hub-anonymous", "--hub-publish-anonymous"]);
    let url = url(&server, "/");
    let report = load(folder.path(), &url, &[]);
    assert_eq!(report["errors"]["tls"], 20, "{report}");
    let reason = report["tls"]["first_error"].as_str().unwrap();
    assert!(reason.contains("--cacert FILE") && reason.contains("--insecure"), "{reason}");
    for arguments in [
        &["load", &url, "-c", "1", "-n", "1"][..],
        &["push", &url, "--topic", "a", "--data", "b"],
        &["subscribe", &url, "--topic", "a"],
    ] {
        let output = pollux(folder.path(), arguments);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(text.contains("is not trusted") && text.contains("--insecure"), "{text}");
        assert_eq!(text.lines().count(), 1, "{text}");
    }
    // Flags without an effect are refused.
    let plain = url.replace("https", "http");
    let output = pollux(folder.path(), &["load", &plain, "--insecure"]);
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn a_server_that_requires_a_clients_certificate_is_named() {
    let folder = site();
    let authority = folder.path().join("site.pem");
    let server = serve(folder.path(), &["--tls-client-ca", authority.to_str().unwrap()]);
    let report = load(folder.path(), &url(&server, "/"), &["--insecure"]);
    assert_eq!(report["requests"]["failed"], 20, "{report}");
    // The server's close may overtake its alert in some connections.
    assert!(report["errors"]["tls"].as_u64() > Some(0), "{report}");
    let reason = report["tls"]["first_error"].as_str().unwrap();
    assert!(reason.contains("requires a certificate of the client"), "{reason}");
}

#[test]
fn idle_connections_are_held_over_tls() {
    let folder = site();
    let mut server = serve(folder.path(), &[]);
    let url = url(&server, "/");
    for kind in ["connect", "partial", "after-request"] {
        let arguments = ["idle", &url, "-c", "100", "--kind", kind, "--cacert", "site.pem"];
        let mut idle = Command::new(POLLUX)
            .args(arguments)
            .arg("--json")
            .current_dir(folder.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(idle.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let held: Value = serde_json::from_str(&line).unwrap();
        assert_eq!((&held["held"], &held["failed"]), (&100.into(), &0.into()), "{kind}: {held}");
        assert_eq!(held["tls"]["handshakes"]["full"], 100, "{kind}: {held}");
        assert!(held["tls"]["handshakes_per_s"].as_f64().unwrap() > 0.0, "{held}");
        assert!(held["tls"]["handshake_us"]["mean"].as_f64().unwrap() > 0.0, "{held}");
        idle.kill().unwrap();
        idle.wait().unwrap();
    }
    let statistics = server.statistics();
    assert_eq!(statistics["requests"], 100, "{statistics}");
}

#[test]
fn updates_are_pushed_and_read_over_tls() {
    let folder = site();
    let server = serve(folder.path(), &["--hub", "--hub-anonymous", "--hub-publish-anonymous"]);
    let url = url(&server, "/");
    let trust = ["--cacert", "site.pem"];
    for data in ["one", "two"] {
        let push = [&["push", &url, "--topic", "a", "--data", data][..], &trust].concat();
        assert!(pollux(folder.path(), &push).status.success());
    }
    let read = ["subscribe", &url, "--topic", "a", "--last-event-id", "earliest", "-n", "2"];
    let output = pollux(folder.path(), &[&read[..], &trust].concat());
    assert_eq!(String::from_utf8_lossy(&output.stdout), "one\ntwo\n");
}
