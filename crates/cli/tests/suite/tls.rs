//! `pollux serve` over TLS, with the clients that users have: curl, and openssl s_client where it is
//! installed.

mod core_dumps;
mod file;
mod handshakes;
mod kernel;
mod peer;
mod records;
mod secret_log;

use pollux_testkit::{
    Port,
    http::{Client, PATIENCE},
    origin::Origin,
    serve::Serve,
    tls::{TlsStream, Version},
    wait_until, write_slowly,
};
use rustix::process::Signal;
use std::{
    fs,
    io::{Read as _, Write as _},
    net::TcpStream,
    path::Path,
    process::{Command, Output, Stdio},
    sync::{Mutex, mpsc::channel},
    time::Duration,
};
use tempfile::TempDir;

const POLLUX: &str = env!("CARGO_BIN_EXE_pollux");

/// Creates a site with a short page and a long file, and a certificate with its key.
fn site() -> TempDir {
    let directory = TempDir::new().unwrap();
    fs::create_dir(directory.path().join("site")).unwrap();
    fs::write(directory.path().join("site/index.html"), "hello\n").unwrap();
    fs::write(directory.path().join("site/big"), big()).unwrap();
    openssl(directory.path(), "a", "localhost");
    directory
}

fn big() -> Vec<u8> {
    (0..1_500_000u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect()
}

/// Creates NAME.pem and NAME.key.
pub(crate) fn openssl(directory: &Path, name: &str, host: &str) {
    let output = Command::new("openssl")
        .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"])
        .args(["-days", "30", "-subj", &format!("/CN={host}")])
        .args(["-addext", &format!("subjectAltName=DNS:{host},IP:127.0.0.1")])
        .args(["-keyout", &format!("{name}.key"), "-out", &format!("{name}.pem")])
        .current_dir(directory)
        .output()
        .expect("openssl");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Creates client.pem and client.key, signed by the authority.
fn client_certificate(directory: &Path, authority: &str) {
    let (ca, ca_key) = (format!("{authority}.pem"), format!("{authority}.key"));
    let request = ["req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"];
    let subject = ["-subj", "/CN=client.example", "-keyout", "client.key", "-out", "client.csr"];
    let sign = ["x509", "-req", "-in", "client.csr", "-days", "30", "-extfile", "client.ext"];
    let by = ["-CA", &ca, "-CAkey", &ca_key, "-CAcreateserial", "-out", "client.pem"];
    fs::write(directory.join("client.ext"), "basicConstraints=CA:FALSE\n").unwrap();
    for arguments in [[request.as_slice(), &subject].concat(), [sign.as_slice(), &by].concat()] {
        let output =
            Command::new("openssl").args(arguments).current_dir(directory).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}

fn serve(directory: &TempDir, arguments: &[&str]) -> Serve {
    let (cert, key) = (directory.path().join("a.pem"), directory.path().join("a.key"));
    let mut all = vec!["--tls-cert", cert.to_str().unwrap(), "--tls-key", key.to_str().unwrap()];
    all.extend(arguments);
    Serve::start(POLLUX, &directory.path().join("site"), &all)
}

/// Runs curl, which trusts only the certificate in a.pem, for a URL of the server.
fn run_curl(directory: &TempDir, serve: &Serve, path: &str, arguments: &[&str]) -> Output {
    Command::new("curl")
        .args(["--silent", "--show-error", "--fail", "--max-time", "60", "--cacert", "a.pem"])
        .args(arguments)
        .arg(format!("https://{}{path}", serve.address()))
        .current_dir(directory.path())
        .output()
        .expect("curl")
}

/// Returns the standard output of curl for a URL of the server.
fn curl(directory: &TempDir, serve: &Serve, path: &str, arguments: &[&str]) -> Vec<u8> {
    let output = run_curl(directory, serve, path, arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

/// Lets s_client send `input`, and returns its whole output. A line that begins with `R` or a similar
/// letter is a command of s_client.
fn s_client(directory: &TempDir, serve: &Serve, arguments: &[&str], input: &[&str]) -> String {
    let mut child = Command::new("openssl")
        .args(["s_client", "-connect", serve.address(), "-CAfile", "a.pem"])
        .args(arguments)
        .current_dir(directory.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("openssl");
    let stdin = child.stdin.take().unwrap();
    // s_client treats a line as a command only if one read returns exactly that line. It ends at the end
    // of its input; the empty piece gives the server time to answer before that. s_client may have ended
    // already.
    let pieces = input.iter().chain(&[""]);
    let _ = write_slowly(stdin, Duration::from_millis(400), pieces);
    let output = child.wait_with_output().unwrap();
    let all = [output.stdout, output.stderr].concat();
    String::from_utf8_lossy(&all).into_owned()
}

const REQUEST: &str = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";

#[test]
fn every_mechanism_serves_short_and_long_files() {
    let directory = site();
    for mechanism in ["select", "poll", "epoll", "epoll-et", "epoll2", "rtsig", "hybrid"] {
        let serve = serve(&directory, &["--mechanism", mechanism]);
        assert_eq!(curl(&directory, &serve, "/", &[]), b"hello\n", "{mechanism}");
        assert!(curl(&directory, &serve, "/big", &[]) == big(), "{mechanism}");
        assert!(curl(&directory, &serve, "/big", &["--tls-max", "1.2"]) == big(), "{mechanism}");
    }
}

#[test]
fn every_architecture_and_discipline_serves_over_tls() {
    let directory = site();
    let all: [&[&str]; 6] = [
        &["--architecture", "iterative"],
        &["--architecture", "threaded"],
        &["--architecture", "forking"],
        &["--architecture", "preforked", "--pool", "2"],
        &["--architecture", "prethreaded", "--pool", "2"],
        &["--interest", "per-state", "--workers", "2"],
    ];
    for arguments in all {
        let serve = serve(&directory, arguments);
        assert_eq!(curl(&directory, &serve, "/", &[]), b"hello\n", "{arguments:?}");
        assert!(
            curl(&directory, &serve, "/big", &["--limit-rate", "20M"]) == big(),
            "{arguments:?}"
        );
    }
}

#[test]
fn every_suite_is_served() {
    let directory = site();
    let serve = serve(&directory, &[]);
    for suite in
        ["TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"]
    {
        assert!(curl(&directory, &serve, "/big", &["--tls13-ciphers", suite]) == big(), "{suite}");
    }
    for suite in [
        "ECDHE-ECDSA-AES128-GCM-SHA256",
        "ECDHE-ECDSA-AES256-GCM-SHA384",
        "ECDHE-ECDSA-CHACHA20-POLY1305",
    ] {
        let arguments = ["--tls-max", "1.2", "--ciphers", suite];
        assert!(curl(&directory, &serve, "/big", &arguments) == big(), "{suite}");
    }
}

#[test]
fn openssl_updates_its_keys_between_requests() {
    let directory = site();
    let serve = serve(&directory, &[]);
    // "k" updates the client's own key; "K" requests an update of the server's key as well.
    let output = s_client(
        &directory,
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
    assert_eq!(output.matches("HTTP/1.1 200 OK").count(), 3, "{output}");
    assert_eq!(output.matches("KEYUPDATE").count(), 2, "{output}");
    assert!(output.contains("Verify return code: 0 (ok)"), "{output}");
}

#[test]
fn tickets_resume_sessions_with_any_worker() {
    let directory = site();
    for version in ["-tls1_3", "-tls1_2"] {
        let serve = serve(&directory, &["--architecture", "preforked", "--pool", "3"]);
        let mut resumed = 0;
        let first = s_client(&directory, &serve, &[version, "-sess_out", "session"], &[REQUEST]);
        assert!(first.contains("hello"), "{first}");
        for _ in 0..6 {
            let next = s_client(&directory, &serve, &[version, "-sess_in", "session"], &[REQUEST]);
            assert!(next.contains("hello"), "{next}");
            resumed += usize::from(next.contains("Reused, TLSv1"));
        }
        assert_eq!(resumed, 6, "{version}");
    }
}

#[test]
fn client_certificates_are_required_or_optional() {
    let directory = site();
    openssl(directory.path(), "authority", "authority.example");
    client_certificate(directory.path(), "authority");
    let ca = directory.path().join("authority.pem");
    let ca = ca.to_str().unwrap();
    let shown = ["--cert", "client.pem", "--key", "client.key"];

    let required = serve(&directory, &["--tls-client-ca", ca]);
    assert_eq!(curl(&directory, &required, "/", &shown), b"hello\n");
    let output = Command::new("curl")
        .args(["-s", "--cacert", "a.pem", &format!("https://{}/", required.address())])
        .current_dir(directory.path())
        .output()
        .unwrap();
    assert!(!output.status.success() && output.stdout.is_empty(), "{output:?}");

    let optional = serve(&directory, &["--tls-client-ca", ca, "--tls-client-optional"]);
    assert_eq!(curl(&directory, &optional, "/", &shown), b"hello\n");
    assert_eq!(curl(&directory, &optional, "/", &[]), b"hello\n");
}

/// Regression: a reload said "certificates: read again", and clients of an authority that was removed from the file
/// were still served.
#[test]
fn a_reload_reads_the_authorities_of_clients_again() {
    let directory = site();
    for name in ["authority", "other"] {
        openssl(directory.path(), name, &format!("{name}.example"));
    }
    client_certificate(directory.path(), "authority");
    let file = |name: &str| directory.path().join(name);
    fs::copy(file("authority.pem"), file("clients.pem")).unwrap();
    let serve = serve(&directory, &["--tls-client-ca", file("clients.pem").to_str().unwrap()]);
    let is_served = || {
        let shown = ["--cert", "client.pem", "--key", "client.key"];
        let output = run_curl(&directory, &serve, "/", &shown);
        output.status.success() && output.stdout == b"hello\n"
    };
    assert!(is_served());
    fs::copy(file("other.pem"), file("clients.pem")).unwrap();
    serve.signal_and_wait(Signal::HUP);
    wait_until("the other authority", || !is_served());
    // A file without an authority changes nothing.
    fs::write(file("clients.pem"), "none").unwrap();
    serve.signal_and_wait(Signal::HUP);
    wait_until("the refusal", || {
        serve.stderr_text().contains("the former authorities stay in use")
    });
    assert!(!is_served());
    fs::copy(file("authority.pem"), file("clients.pem")).unwrap();
    serve.signal_and_wait(Signal::HUP);
    wait_until("the first authority", is_served);
}

#[test]
fn old_versions_are_refused() {
    let directory = site();
    let serve = serve(&directory, &["--tls-min", "1.3"]);
    let output = s_client(&directory, &serve, &["-tls1_2"], &[]);
    // protocol_version; the words for it differ between versions of openssl.
    assert!(output.contains("SSL alert number 70"), "{output}");
    assert_eq!(curl(&directory, &serve, "/", &[]), b"hello\n");
}

#[test]
fn plain_http_is_answered_with_400_and_the_end() {
    let directory = site();
    let serve = serve(&directory, &[]);
    let mut socket = TcpStream::connect(serve.address()).unwrap();
    socket.write_all(REQUEST.as_bytes()).unwrap();
    let mut reply = String::new();
    socket.read_to_string(&mut reply).unwrap();
    assert!(reply.starts_with("HTTP/1.1 400 Bad Request\r\n"), "{reply}");
    assert!(reply.contains("This port speaks HTTPS"), "{reply}");
}

/// Regression: a target in absolute-form with https got 421 (RFC 9112 §3.2.2).
#[test]
fn the_target_may_be_the_whole_url() {
    let directory = site();
    let serve = serve(&directory, &[]);
    for target in ["https://localhost/", "http://localhost/", "/"] {
        let reply = curl(&directory, &serve, "/", &["--request-target", target]);
        assert_eq!(reply, b"hello\n", "{target}");
    }
}

#[test]
fn a_new_certificate_is_used_without_a_restart() {
    let directory = site();
    let serve = serve(&directory, &[]);
    assert_eq!(curl(&directory, &serve, "/", &[]), b"hello\n");
    // A kept connection is not disturbed: curl sends two requests on one connection.
    openssl(directory.path(), "b", "localhost");
    fs::copy(directory.path().join("b.pem"), directory.path().join("a.pem.new")).unwrap();
    fs::rename(directory.path().join("b.key"), directory.path().join("a.key")).unwrap();
    fs::rename(directory.path().join("a.pem.new"), directory.path().join("a.pem")).unwrap();
    // curl trusts only the new certificate now.
    wait_until("the new certificate", || {
        let output = run_curl(&directory, &serve, "/", &[]);
        output.status.success() && output.stdout == b"hello\n"
    });
}

/// Regression: the process of each later connection read the same files again, and logged new certificates.
#[test]
fn a_server_that_forks_reads_a_new_certificate_once() {
    let directory = site();
    let serve = serve(&directory, &["--architecture", "forking"]);
    assert_eq!(curl(&directory, &serve, "/", &[]), b"hello\n");
    openssl(directory.path(), "b", "localhost");
    for kind in ["key", "pem"] {
        let path = |name: &str| directory.path().join(format!("{name}.{kind}"));
        fs::rename(path("b"), path("a")).unwrap();
    }
    wait_until("the new certificate", || run_curl(&directory, &serve, "/", &[]).status.success());
    for _ in 0..3 {
        assert_eq!(curl(&directory, &serve, "/", &[]), b"hello\n");
    }
    let log = serve.stderr_text();
    // The time between two checks may end while a process begins: then that process reads the files as well.
    let count = log.matches("new certificates are in use").count();
    assert!((1..=2).contains(&count), "{log}");
}

#[test]
fn hsts_is_sent_with_the_flag() {
    let directory = site();
    let serve = serve(&directory, &["--hsts"]);
    let reply = curl(&directory, &serve, "/", &["--include"]);
    let reply = String::from_utf8(reply).unwrap();
    assert!(reply.contains("Strict-Transport-Security: max-age=31536000\r\n"), "{reply}");
}

#[test]
fn half_a_handshake_and_rubbish_delay_no_other_client() {
    let directory = site();
    let serve = serve(&directory, &["--mechanism", "epoll"]);
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
    assert_eq!(curl(&directory, &serve, "/", &[]), b"hello\n");
    drop(held);
    assert_eq!(curl(&directory, &serve, "/", &[]), b"hello\n");
}

#[test]
fn what_cannot_be_served_is_refused_with_a_reason() {
    let directory = site();
    let fail = |arguments: &[&str]| {
        let output = Command::new(POLLUX)
            .args(["serve", "site", "--listen", "127.0.0.1:0"])
            .args(arguments)
            .current_dir(directory.path())
            .output()
            .unwrap();
        assert!(!output.status.success());
        String::from_utf8(output.stderr).unwrap()
    };
    assert!(fail(&["--tls-cert", "missing.pem"]).contains("missing.pem"));
    assert!(fail(&["--tls-cert", "a.pem", "--tls-key", "a.pem"]).contains("a.pem"));
    assert!(
        fail(&["--tls-cert", "a.pem", "--tls-cert", "a.pem", "--tls-key", "a.key"])
            .contains("1 keys for 2 certificates")
    );
    assert!(fail(&["--hsts"]).contains("--tls-cert"));
}

/// Returns the address at which clients are redirected to HTTPS.
pub(crate) fn redirect_address(serve: &Serve) -> String {
    let said = serve.stderr_text();
    let line = said.lines().find_map(|line| line.split_once("plain HTTP on "));
    let (address, _) = line.and_then(|(_, rest)| rest.split_once(' ')).expect("an address");
    address.to_owned()
}

/// Regression: the listener for plain HTTP served every client, and took a PROXY protocol header for
/// a malformed request.
#[test]
fn the_redirect_has_the_rules_for_clients_of_the_server() {
    let directory = site();
    let exchange = |arguments: &[&str], request: &str| {
        let serve = serve(&directory, &[&["--redirect-http", "127.0.0.1:0"], arguments].concat());
        let mut client = Client::connect(redirect_address(&serve));
        client.send(request.as_bytes());
        String::from_utf8(client.read_to_end_or_reset()).unwrap()
    };
    let request = "GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    assert_eq!(exchange(&["--deny", "127.0.0.0/8"], request), "");
    let reply = exchange(&["--header-timeout", "100ms"], "GET / ");
    assert!(reply.starts_with("HTTP/1.1 408 "), "{reply}");
    let proxied = format!("PROXY TCP4 192.0.2.1 192.0.2.2 4000 80\r\n{request}");
    for architecture in ["event", "threaded"] {
        let arguments = ["--proxy-protocol", "127.0.0.1", "--architecture", architecture];
        let reply = exchange(&[&arguments[..], &["--no-server-header"]].concat(), &proxied);
        assert!(reply.starts_with("HTTP/1.1 308 "), "{reply}");
        assert!(!reply.to_ascii_lowercase().contains("\r\nserver:"), "{reply}");
    }
}

#[test]
fn plain_http_is_redirected_to_https_with_the_flag() {
    let directory = site();
    let serve = serve(&directory, &["--redirect-http", "127.0.0.1:0"]);
    let plain = redirect_address(&serve);
    let port = serve.address().rsplit(':').next().unwrap().to_owned();
    let exchange = |request: &str| {
        let mut socket = TcpStream::connect(&plain).unwrap();
        socket.write_all(request.as_bytes()).unwrap();
        let mut reply = String::new();
        socket.read_to_string(&mut reply).unwrap();
        reply
    };
    let reply = exchange("GET /a?b HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    assert!(reply.starts_with("HTTP/1.1 308 "), "{reply}");
    assert!(reply.contains(&format!("\r\nLocation: https://localhost:{port}/a?b\r\n")), "{reply}");
    let reply = exchange("GET /a HTTP/1.0\r\n\r\n");
    assert!(reply.starts_with("HTTP/1.1 400 "), "{reply}");
    // Regression: the next two requests got 400, because they "named no host".
    let reply = exchange("OPTIONS * HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    assert!(reply.starts_with("HTTP/1.1 204 ") && reply.contains("\r\nAllow: GET, "), "{reply}");
    let reply = exchange("CONNECT a.example:443 HTTP/1.1\r\nHost: a.example:443\r\n\r\n");
    assert!(reply.starts_with("HTTP/1.1 405 ") && reply.contains("\r\nAllow: GET, "), "{reply}");
    assert!(reply.contains("\r\nConnection: close\r\n"), "{reply}");
    assert_eq!(curl(&directory, &serve, "/", &[]), b"hello\n");
}

/// Regression: no log had these requests.
#[test]
fn redirects_are_in_the_access_log() {
    let directory = site();
    let (log, moved) = (directory.path().join("log"), directory.path().join("log.1"));
    let flags = ["--redirect-http", "127.0.0.1:0", "--access-log", log.to_str().unwrap()];
    let serve = serve(&directory, &flags);
    let plain = redirect_address(&serve);
    let redirected = |path: &str| assert_eq!(Client::connect(&plain).get(path).status, 308);
    redirected("/first");
    let text = |path: &Path| fs::read_to_string(path).unwrap_or_default();
    wait_until("the first line", || text(&log).contains("\"GET /first HTTP/1.1\" 308 "));
    fs::rename(&log, &moved).unwrap();
    serve.signal_and_wait(Signal::HUP);
    wait_until("the new log", || serve.stderr_text().contains("access-log: opened again"));
    redirected("/second");
    assert_eq!(curl(&directory, &serve, "/", &[]), b"hello\n");
    assert!(serve.stop().0.success());
    assert!(!text(&moved).contains("/second"), "{}", text(&moved));
    let lines = text(&log);
    for line in ["\"GET /second HTTP/1.1\" 308 ", "\"GET / HTTP/1.1\" 200 6\n"] {
        assert!(lines.contains(line), "{lines}");
    }
}

/// Regression: until the last request was answered, clients were sent to a port that was closed.
#[test]
fn redirects_end_when_the_server_begins_to_stop() {
    let (arrive, arrived) = channel();
    let (release, released) = channel::<()>();
    let released = Mutex::new(released);
    let origin = Origin::start(move |request| {
        let _ = arrive.send(());
        let _ = released.lock().unwrap().recv_timeout(PATIENCE);
        request.say("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nslow")
    });
    let directory = site();
    let route = format!("/slow={}", origin.url());
    let flags = ["--redirect-http", "127.0.0.1:0", "--grace", "60s", "--origin", route.as_str()];
    let serve = serve(&directory, &flags);
    let plain = redirect_address(&serve);
    let socket = TcpStream::connect(serve.address()).unwrap();
    let mut busy = Client::over(TlsStream::new(socket, Version::Tls13));
    busy.send("GET /slow HTTP/1.1\r\nHost: localhost\r\n\r\n");
    arrived.recv_timeout(PATIENCE).unwrap();
    let mut late = Client::connect(&plain);
    late.send("GET / HTTP/1.1\r\nHo");
    serve.signal(Signal::TERM);
    wait_until("the end of the redirects", || TcpStream::connect(&plain).is_err());
    late.send("st: localhost\r\n\r\n");
    assert_eq!(late.reply().status, 308, "it had begun before");
    release.send(()).unwrap();
    assert_eq!(busy.reply().text(), "slow");
}

/// Regression: the connection was closed without an answer.
#[test]
fn a_redirect_in_progress_survives_an_upgrade() {
    let directory = site();
    // The sandbox lets the new process listen on named ports alone.
    let plain = Port::reserve().address().to_string();
    let mut serve = serve(&directory, &["--redirect-http", &plain]);
    let mut late = Client::connect(&plain);
    late.send("GET / HTTP/1.1\r\nHo");
    serve.signal(Signal::USR2);
    let _next = serve.next_process();
    late.send("st: localhost\r\n\r\n");
    assert_eq!(late.reply().status, 308);
}
