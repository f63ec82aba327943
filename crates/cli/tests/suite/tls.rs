//! `pollux serve` over TLS as its users' programs see it: curl, and openssl s_client where it is there.

use pollux_testkit::serve::Serve;
use std::{
    fs,
    io::{Read as _, Write as _},
    net::TcpStream,
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};
use tempfile::TempDir;

const POLLUX: &str = env!("CARGO_BIN_EXE_pollux");

/// A site with a short page and a long file, and a certificate with its key.
fn site() -> TempDir {
    let folder = TempDir::new().unwrap();
    fs::create_dir(folder.path().join("site")).unwrap();
    fs::write(folder.path().join("site/index.html"), "hello\n").unwrap();
    fs::write(folder.path().join("site/big"), big()).unwrap();
    openssl(folder.path(), "a", "localhost");
    folder
}

fn big() -> Vec<u8> {
    (0..1_500_000u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect()
}

/// Writes NAME.pem and NAME.key.
pub(crate) fn openssl(folder: &Path, name: &str, host: &str) {
    let output = Command::new("openssl")
        .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"])
        .args(["-days", "30", "-subj", &format!("/CN={host}")])
        .args(["-addext", &format!("subjectAltName=DNS:{host},IP:127.0.0.1")])
        .args(["-keyout", &format!("{name}.key"), "-out", &format!("{name}.pem")])
        .current_dir(folder)
        .output()
        .expect("openssl");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Writes client.pem and client.key, signed by NAME.
fn client_certificate(folder: &Path, authority: &str) {
    let (ca, ca_key) = (format!("{authority}.pem"), format!("{authority}.key"));
    let request = ["req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"];
    let subject = ["-subj", "/CN=client.example", "-keyout", "client.key", "-out", "client.csr"];
    let sign = ["x509", "-req", "-in", "client.csr", "-days", "30", "-extfile", "client.ext"];
    let by = ["-CA", &ca, "-CAkey", &ca_key, "-CAcreateserial", "-out", "client.pem"];
    fs::write(folder.join("client.ext"), "basicConstraints=CA:FALSE\n").unwrap();
    for arguments in [[request.as_slice(), &subject].concat(), [sign.as_slice(), &by].concat()] {
        let output = Command::new("openssl").args(arguments).current_dir(folder).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}

fn serve(folder: &TempDir, arguments: &[&str]) -> Serve {
    let (cert, key) = (folder.path().join("a.pem"), folder.path().join("a.key"));
    let mut all = vec!["--tls-cert", cert.to_str().unwrap(), "--tls-key", key.to_str().unwrap()];
    all.extend(arguments);
    Serve::start(POLLUX, &folder.path().join("site"), &all)
}

/// What curl has on its standard output, for a URL of the server.
fn curl(folder: &TempDir, serve: &Serve, path: &str, arguments: &[&str]) -> Vec<u8> {
    let output = Command::new("curl")
        .args(["--silent", "--show-error", "--fail", "--max-time", "60", "--cacert", "a.pem"])
        .args(arguments)
        .arg(format!("https://{}{path}", serve.address()))
        .current_dir(folder.path())
        .output()
        .expect("curl");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

/// Has s_client send `input`, and returns all it says. `R` and the like at the beginning of a line are its
/// commands.
fn s_client(folder: &TempDir, serve: &Serve, arguments: &[&str], input: &[&str]) -> String {
    let mut child = Command::new("openssl")
        .args(["s_client", "-connect", serve.address(), "-CAfile", "a.pem"])
        .args(arguments)
        .current_dir(folder.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("openssl");
    let mut stdin = child.stdin.take().unwrap();
    for piece in input {
        // A line of its own in one read is what it takes for a command.
        std::thread::sleep(Duration::from_millis(400));
        if stdin.write_all(piece.as_bytes()).is_err() {
            break;
        }
    }
    std::thread::sleep(Duration::from_millis(400));
    drop(stdin);
    let output = child.wait_with_output().unwrap();
    let all = [output.stdout, output.stderr].concat();
    String::from_utf8_lossy(&all).into_owned()
}

const REQUEST: &str = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";

#[test]
fn every_mechanism_serves_short_and_long_files() {
    let folder = site();
    for mechanism in ["select", "poll", "epoll", "epoll-et", "epoll2", "rtsig", "hybrid"] {
        let serve = serve(&folder, &["--mechanism", mechanism]);
        assert_eq!(curl(&folder, &serve, "/", &[]), b"hello\n", "{mechanism}");
        assert!(curl(&folder, &serve, "/big", &[]) == big(), "{mechanism}");
        assert!(curl(&folder, &serve, "/big", &["--tls-max", "1.2"]) == big(), "{mechanism}");
    }
}

#[test]
fn every_architecture_and_discipline_serves_over_tls() {
    let folder = site();
    let all: [&[&str]; 6] = [
        &["--architecture", "iterative"],
        &["--architecture", "threaded"],
        &["--architecture", "forking"],
        &["--architecture", "preforked", "--pool", "2"],
        &["--architecture", "prethreaded", "--pool", "2"],
        &["--interest", "per-state", "--workers", "2"],
    ];
    for arguments in all {
        let serve = serve(&folder, arguments);
        assert_eq!(curl(&folder, &serve, "/", &[]), b"hello\n", "{arguments:?}");
        assert!(curl(&folder, &serve, "/big", &["--limit-rate", "20M"]) == big(), "{arguments:?}");
    }
}

#[test]
fn every_suite_is_served() {
    let folder = site();
    let serve = serve(&folder, &[]);
    for suite in
        ["TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"]
    {
        assert!(curl(&folder, &serve, "/big", &["--tls13-ciphers", suite]) == big(), "{suite}");
    }
    for suite in [
        "ECDHE-ECDSA-AES128-GCM-SHA256",
        "ECDHE-ECDSA-AES256-GCM-SHA384",
        "ECDHE-ECDSA-CHACHA20-POLY1305",
    ] {
        let arguments = ["--tls-max", "1.2", "--ciphers", suite];
        assert!(curl(&folder, &serve, "/big", &arguments) == big(), "{suite}");
    }
}

#[test]
fn openssl_updates_its_keys_between_requests() {
    let folder = site();
    let serve = serve(&folder, &[]);
    // "k" updates its own key, "K" asks for ours as well.
    let said = s_client(
        &folder,
        &serve,
        &["-tls1_3", "-crlf"],
        &[
            "GET / HTTP/1.1\nHost: localhost\n\n",
            "k\n",
            "GET / HTTP/1.1\nHost: localhost\n\n",
            "K\n",
            "GET / HTTP/1.1\nHost: localhost\n\n",
        ],
    );
    assert_eq!(said.matches("HTTP/1.1 200 OK").count(), 3, "{said}");
    assert_eq!(said.matches("KEYUPDATE").count(), 2, "{said}");
    assert!(said.contains("Verify return code: 0 (ok)"), "{said}");
}

#[test]
fn tickets_resume_sessions_with_any_worker() {
    let folder = site();
    for version in ["-tls1_3", "-tls1_2"] {
        let serve = serve(&folder, &["--architecture", "preforked", "--pool", "3"]);
        let mut resumed = 0;
        let first = s_client(&folder, &serve, &[version, "-sess_out", "session"], &[REQUEST]);
        assert!(first.contains("hello"), "{first}");
        for _ in 0..6 {
            let next = s_client(&folder, &serve, &[version, "-sess_in", "session"], &[REQUEST]);
            assert!(next.contains("hello"), "{next}");
            resumed += usize::from(next.contains("Reused, TLSv1"));
        }
        assert_eq!(resumed, 6, "{version}");
    }
}

#[test]
fn client_certificates_are_required_or_optional() {
    let folder = site();
    openssl(folder.path(), "authority", "authority.example");
    client_certificate(folder.path(), "authority");
    let ca = folder.path().join("authority.pem");
    let ca = ca.to_str().unwrap();
    let shown = ["--cert", "client.pem", "--key", "client.key"];

    let required = serve(&folder, &["--tls-client-ca", ca]);
    assert_eq!(curl(&folder, &required, "/", &shown), b"hello\n");
    let output = Command::new("curl")
        .args(["-s", "--cacert", "a.pem", &format!("https://{}/", required.address())])
        .current_dir(folder.path())
        .output()
        .unwrap();
    assert!(!output.status.success() && output.stdout.is_empty(), "{output:?}");

    let optional = serve(&folder, &["--tls-client-ca", ca, "--tls-client-optional"]);
    assert_eq!(curl(&folder, &optional, "/", &shown), b"hello\n");
    assert_eq!(curl(&folder, &optional, "/", &[]), b"hello\n");
}

#[test]
fn old_versions_are_refused() {
    let folder = site();
    let serve = serve(&folder, &["--tls-min", "1.3"]);
    let said = s_client(&folder, &serve, &["-tls1_2"], &[]);
    assert!(said.contains("alert protocol version"), "{said}");
    assert_eq!(curl(&folder, &serve, "/", &[]), b"hello\n");
}

#[test]
fn plain_http_is_answered_with_400_and_the_end() {
    let folder = site();
    let serve = serve(&folder, &[]);
    let mut socket = TcpStream::connect(serve.address()).unwrap();
    socket.write_all(REQUEST.as_bytes()).unwrap();
    let mut reply = String::new();
    socket.read_to_string(&mut reply).unwrap();
    assert!(reply.starts_with("HTTP/1.1 400 Bad Request\r\n"), "{reply}");
    assert!(reply.contains("This port speaks HTTPS"), "{reply}");
}

#[test]
fn a_new_certificate_is_used_without_a_restart() {
    let folder = site();
    let serve = serve(&folder, &[]);
    assert_eq!(curl(&folder, &serve, "/", &[]), b"hello\n");
    // A connection that stays is not disturbed: curl asks twice on one.
    openssl(folder.path(), "b", "localhost");
    fs::copy(folder.path().join("b.pem"), folder.path().join("a.pem.new")).unwrap();
    fs::rename(folder.path().join("b.key"), folder.path().join("a.key")).unwrap();
    fs::rename(folder.path().join("a.pem.new"), folder.path().join("a.pem")).unwrap();
    std::thread::sleep(Duration::from_millis(2500));
    // curl trusts the new one alone now.
    assert_eq!(curl(&folder, &serve, "/", &[]), b"hello\n");
}

#[test]
fn hsts_is_sent_where_asked_for() {
    let folder = site();
    let serve = serve(&folder, &["--hsts"]);
    let reply = curl(&folder, &serve, "/", &["--include"]);
    let reply = String::from_utf8(reply).unwrap();
    assert!(reply.contains("Strict-Transport-Security: max-age=31536000\r\n"), "{reply}");
}

#[test]
fn half_a_handshake_and_rubbish_hold_nobody_up() {
    let folder = site();
    let serve = serve(&folder, &["--mechanism", "epoll"]);
    let mut held = Vec::new();
    let beginnings: [&[u8]; 5] = [
        b"",
        b"\x16",
        b"\x16\x03\x01\x02\x00\x01",
        b"\x16\x03\x01\xff\xff",
        b"\x00\x00\x00\x00\x00\x00\x00\x00",
    ];
    for beginning in beginnings.iter().cycle().take(100) {
        let mut socket = TcpStream::connect(serve.address()).unwrap();
        socket.write_all(beginning).unwrap();
        held.push(socket);
    }
    assert_eq!(curl(&folder, &serve, "/", &[]), b"hello\n");
    drop(held);
    assert_eq!(curl(&folder, &serve, "/", &[]), b"hello\n");
}

#[test]
fn what_cannot_be_served_is_refused_with_a_reason() {
    let folder = site();
    let fail = |arguments: &[&str]| {
        let output = Command::new(POLLUX)
            .args(["serve", "site", "--listen", "127.0.0.1:0"])
            .args(arguments)
            .current_dir(folder.path())
            .output()
            .unwrap();
        assert!(!output.status.success());
        String::from_utf8(output.stderr).unwrap()
    };
    assert!(fail(&["--tls-cert", "missing.pem"]).contains("missing.pem"));
    assert!(fail(&["--tls-cert", "a.pem", "--tls-key", "a.pem"]).contains("a.pem"));
    assert!(
        fail(&["--tls-cert", "a.pem", "--tls-cert", "a.pem", "--tls-key", "a.key"])
            .contains("wants its key")
    );
    assert!(fail(&["--hsts"]).contains("--tls-cert"));
}

#[test]
fn plain_http_is_sent_to_https_where_asked_for() {
    let folder = site();
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let plain = free.local_addr().unwrap();
    drop(free);
    let serve = serve(&folder, &["--redirect-http", &plain.to_string()]);
    let port = serve.address().rsplit(':').next().unwrap().to_owned();
    let ask = |request: &str| {
        let mut socket = TcpStream::connect(plain).unwrap();
        socket.write_all(request.as_bytes()).unwrap();
        let mut reply = String::new();
        socket.read_to_string(&mut reply).unwrap();
        reply
    };
    let reply = ask("GET /a?b HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    assert!(reply.starts_with("HTTP/1.1 308 "), "{reply}");
    assert!(reply.contains(&format!("\r\nLocation: https://localhost:{port}/a?b\r\n")), "{reply}");
    let reply = ask("GET /a HTTP/1.0\r\n\r\n");
    assert!(reply.starts_with("HTTP/1.1 400 "), "{reply}");
    assert_eq!(curl(&folder, &serve, "/", &[]), b"hello\n");
}
