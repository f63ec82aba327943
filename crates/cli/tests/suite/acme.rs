//! `pollux serve --acme` against a real authority (Pebble, `scripts/setup build acme`), and settings
//! that are refused.

use crate::users::{USER, number_of_user};
use pollux_testkit::{
    becomes_true,
    http::{Client, PATIENCE},
    pebble::{Behaviour, Pebble},
    serve::Serve,
    wait_until,
};
use rustix::process::Signal;
use std::{
    fs,
    os::unix::fs::{PermissionsExt, chown},
    path::Path,
    process::{Command, Output},
    thread,
    time::Duration,
};
use tempfile::TempDir;

const POLLUX: &str = env!("CARGO_BIN_EXE_pollux");
const NAME: &str = "a.example";

fn site() -> TempDir {
    let folder = TempDir::new().unwrap();
    fs::create_dir(folder.path().join("site")).unwrap();
    fs::write(folder.path().join("site/index.html"), "hello\n").unwrap();
    folder
}

/// Starts a server that orders certificates from `pebble`.
fn serve(pebble: &Pebble, folder: &Path, arguments: &[&str]) -> Serve {
    serve_by(Path::new(POLLUX), pebble, &pebble.root(), folder, arguments)
}

/// Does the same as [`serve`], with another program and another copy of the authority's root
/// certificate.
fn serve_by(
    program: &Path,
    pebble: &Pebble,
    root: &Path,
    folder: &Path,
    arguments: &[&str],
) -> Serve {
    let mut command = Command::new(program);
    command
        .arg("serve")
        .arg(folder.join("site"))
        .args(["--json", "--listen", &pebble.tls.address().to_string()])
        .args(["--acme-directory", &pebble.url(), "--acme-email", "admin@a.example"])
        .arg("--acme-ca")
        .arg(root)
        .arg("--state-dir")
        .arg(folder.join("state"))
        .args(arguments);
    Serve::start_command(command)
}

/// Returns a field of the certificate that the server shows for a name, as `openssl x509` prints it.
fn shown(address: &str, name: &str, field: &str) -> String {
    let script = "openssl s_client -connect \"$0\" -servername \"$1\" </dev/null 2>/dev/null |
                  openssl x509 -noout \"$2\"";
    let output =
        Command::new("sh").args(["-c", script, address, name, field]).output().expect("openssl");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn issuer(address: &str, name: &str) -> String {
    shown(address, name, "-issuer")
}

fn serial(address: &str) -> String {
    shown(address, NAME, "-serial")
}

fn wait_for_issue(pebble: &Pebble, server: &Serve, name: &str) {
    let is_issued = becomes_true(PATIENCE, || issuer(server.address(), name).contains("Pebble"));
    let (output, log) = (server.stderr_text(), pebble.log());
    assert!(is_issued, "no certificate for {name}: {output}\n{log}");
}

fn attempt(arguments: &[&str]) -> Output {
    Command::new(POLLUX).arg("serve").args(arguments).output().unwrap()
}

#[test]
fn settings_that_cannot_work_are_refused_with_a_remedy() {
    let folder = site();
    let path = folder.path().join("site");
    let site = path.to_str().unwrap();
    let base = [site, "--acme", NAME, "--acme-directory", "https://127.0.0.1:1/dir"];
    let state = folder.path().join("state");
    let state = ["--state-dir", state.to_str().unwrap()];
    for (arguments, part) in [
        (&["--acme", NAME][..], "--acme-directory letsencrypt"),
        (&["--acme", "*.a.example", "--acme-directory", "letsencrypt"], "DNS challenge"),
        (&["--acme-directory", "letsencrypt"], "add --acme NAME"),
    ] {
        let output = attempt(&[&[site], arguments].concat());
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && text.contains(part), "{arguments:?}: {text}");
    }
    for (arguments, part) in [
        (&["--tls", "self-signed"][..], "exclude each other"),
        (&["--architecture", "forking"], "needs a thread"),
        (&["--tls-client-ca", "/nonexistent"], "--redirect-http"),
    ] {
        let output = attempt(&[&base[..], &state, arguments].concat());
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && text.contains(part), "{arguments:?}: {text}");
    }
}

#[test]
fn a_server_answers_before_it_has_a_certificate() {
    let folder = site();
    let state = folder.path().join("state");
    // No server listens at this port.
    let directory = format!("https://{}/dir", pollux_testkit::Port::reserve().address());
    let arguments =
        ["--acme", NAME, "--acme-directory", &directory, "--state-dir", state.to_str().unwrap()];
    let server = Serve::start(POLLUX, &folder.path().join("site"), &arguments);
    wait_until("the message about the failed order", || {
        server.stderr_text().contains("self-signed certificate until then")
    });
    assert!(server.stderr_text().contains("the next attempt is in"), "{}", server.stderr_text());
    assert!(!issuer(server.address(), NAME).is_empty());
    assert!(server.stop().0.success());
}

#[test]
#[ignore = "needs Pebble"]
fn certificates_are_issued_over_tls_and_used_at_once() {
    let Some(pebble) = Pebble::start(Behaviour::default()) else { return };
    for architecture in ["event", "prethreaded", "threaded"] {
        let folder = site();
        let server = serve(
            &pebble,
            folder.path(),
            &["--acme", NAME, "--acme", "b.example", "--architecture", architecture],
        );
        wait_for_issue(&pebble, &server, NAME);
        wait_for_issue(&pebble, &server, "b.example");
        assert!(server.stop().0.success());
        // After a restart, the server uses the stored certificates.
        let server =
            serve(&pebble, folder.path(), &["--acme", NAME, "--architecture", architecture]);
        assert!(issuer(server.address(), NAME).contains("Pebble"));
        assert!(!server.stderr_text().contains("ordering"), "{}", server.stderr_text());
        assert!(server.stop().0.success());
    }
}

#[test]
#[ignore = "needs Pebble"]
fn challenges_over_plain_http_are_answered_before_the_redirect() {
    let Some(pebble) = Pebble::start(Behaviour::default()) else { return };
    let folder = site();
    let plain = pebble.http.address().to_string();
    let server = serve(
        &pebble,
        folder.path(),
        &[
            "--acme",
            NAME,
            "--acme-challenge",
            "http-01",
            "--redirect-http",
            &plain,
            "--admin",
            "127.0.0.1:0",
        ],
    );
    wait_for_issue(&pebble, &server, NAME);
    let mut client = Client::connect(&plain);
    client.send(b"GET /.well-known/acme-challenge/unknown HTTP/1.1\r\nHost: a.example\r\n\r\n");
    assert_eq!(client.reply().status, 308, "there is no such challenge");
    let mut client = Client::connect(server.listening()["admin"].as_str().unwrap());
    client.send(b"GET /metrics HTTP/1.1\r\nHost: h\r\n\r\n");
    let metrics = client.reply().text();
    assert!(metrics.contains("pollux_acme_orders_total{outcome=\"ok\"} 1\n"), "{metrics}");
    assert!(
        metrics.contains("pollux_certificate_expiry_timestamp_seconds{name=\"a.example\"} "),
        "{metrics}"
    );
    assert!(server.stop().0.success());
}

#[test]
#[ignore = "needs Pebble"]
fn a_renewal_that_fails_leaves_the_certificate_in_use() {
    let behaviour = Behaviour { lifetime: Duration::from_secs(30), ..Behaviour::default() };
    let Some(mut pebble) = Pebble::start(behaviour) else { return };
    let folder = site();
    let server = serve(&pebble, folder.path(), &["--acme", NAME]);
    wait_for_issue(&pebble, &server, NAME);
    let first = serial(server.address());
    assert!(server.stop().0.success());
    // A certificate is renewed after two thirds of its lifetime.
    thread::sleep(Duration::from_secs(21));
    pebble.stop();
    let server = serve(&pebble, folder.path(), &["--acme", NAME]);
    wait_until("the message about the failed order", || {
        server.stderr_text().contains("the present certificate")
    });
    assert_eq!(serial(server.address()), first);
    assert!(server.stop().0.success());
}

/// The server has given the state directory to the user, so that its successor can read the
/// certificate and store the next one.
#[test]
#[ignore = "needs Pebble"]
fn a_successor_without_roots_rights_renews_the_certificate() {
    let behaviour = Behaviour { lifetime: Duration::from_secs(30), ..Behaviour::default() };
    let Some(pebble) = Pebble::start(behaviour) else { return };
    let Some(user) = number_of_user() else { return };
    let folder = site();
    let path = |name: &str| folder.path().join(name);
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    chown(folder.path(), Some(user), None).unwrap();
    // The successor runs as that user, too, and must be able to read its program and the root certificate.
    fs::copy(POLLUX, path("pollux")).unwrap();
    fs::copy(pebble.root(), path("root.pem")).unwrap();
    let control = path("control");
    let arguments = ["--acme", NAME, "--user", USER, "--control", control.to_str().unwrap()];
    let mut server =
        serve_by(&path("pollux"), &pebble, &path("root.pem"), folder.path(), &arguments);
    wait_for_issue(&pebble, &server, NAME);
    let first = serial(server.address());
    let output = Command::new(POLLUX).args(["ctl", "upgrade", "--control"]).arg(&control).output();
    let output = output.unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let successor = server.next_process();
    assert_eq!(
        serial(server.address()),
        first,
        "the successor reads the certificate from the state directory"
    );
    // A certificate is renewed after two thirds of its lifetime.
    let is_renewed =
        becomes_true(PATIENCE + behaviour.lifetime, || serial(server.address()) != first);
    assert!(is_renewed, "{}", server.stderr_text());
    assert!(issuer(server.address(), NAME).contains("Pebble"));
    successor.signal(Signal::TERM);
    successor.wait();
}
