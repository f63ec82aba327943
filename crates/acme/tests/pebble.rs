//! Tests the thread with a real authority. `make test-all` runs these; they need Pebble (`scripts/setup
//! build acme`).

use pollux_acme::{Challenge, Renewer, Settings, StateDir, Status, Timing, http_answer};
use pollux_testkit::{
    becomes_true,
    pebble::{Behaviour, Pebble},
    stays_true,
};
use std::{
    fs,
    io::{BufRead as _, BufReader, Write as _},
    net::TcpListener,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    sync::mpsc::{Receiver, channel},
    thread,
    time::Duration,
};

const PATIENCE: Duration = Duration::from_secs(120);
const NAME: &str = "a.example";

/// An authority, and a server that answers its challenges over plain HTTP.
struct Bench {
    pebble: Pebble,
    folder: tempfile::TempDir,
}

impl Bench {
    fn new(behaviour: Behaviour) -> Option<Self> {
        let pebble = Pebble::start(behaviour)?;
        Some(Self { pebble, folder: tempfile::tempdir().unwrap() })
    }

    fn settings(&self) -> Settings {
        Settings {
            names: vec![NAME.into()],
            directory: self.pebble.url(),
            email: Some("admin@a.example".into()),
            root: Some(self.pebble.root()),
            state_dir: self.folder.path().join("state"),
            challenges: vec![Challenge::Http01],
            timing: Timing {
                retry_first: Duration::from_millis(500),
                retry_max: Duration::from_secs(2),
                orders_apart: Duration::from_secs(1),
                lock_retry: Duration::from_millis(200),
                window_queries: (Duration::from_millis(200), Duration::from_millis(500)),
                window_retry: Duration::from_millis(500),
            },
        }
    }

    fn state(&self) -> StateDir {
        StateDir::new(&self.folder.path().join("state"), &self.pebble.url())
    }

    fn certificate(&self) -> PathBuf {
        self.state().certificate(NAME)
    }

    /// Answers challenges until the test ends.
    fn answer_challenges(&self) {
        let listener = TcpListener::bind(self.pebble.http.address()).unwrap();
        let folder = self.state().challenges().http;
        thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = BufReader::new(stream.unwrap());
                let mut line = String::new();
                let _ = stream.read_line(&mut line);
                // All of the request is read: unread bytes would reset the connection.
                let mut field = String::from("-");
                while !field.trim_end().is_empty() {
                    field.clear();
                    let _ = stream.read_line(&mut field);
                }
                let path = line.split(' ').nth(1).unwrap_or("");
                let (status, body) = match http_answer(&folder, path.as_bytes()) {
                    Some(answer) => ("200 OK", answer),
                    None => ("404 Not Found", Vec::new()),
                };
                let head = format!(
                    "HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
                    body.len()
                );
                let _ = stream.get_mut().write_all(&[head.as_bytes(), &body].concat());
            }
        });
    }
}

fn start(settings: Settings) -> (Renewer, Receiver<()>) {
    let (sender, receiver) = channel();
    let report = move || {
        let _ = sender.send(());
    };
    let renewer = Renewer::start(settings, report).unwrap();
    (renewer, receiver)
}

fn wait_until(what: &str, pebble: &Pebble, is_so: impl FnMut() -> bool) {
    assert!(becomes_true(PATIENCE, is_so), "waited in vain for {what}: {}", pebble.log());
}

fn expiry(status: &Status) -> Option<u64> {
    status.certificates()[0].expires_unix_s
}

fn is_empty(folder: &Path) -> bool {
    fs::read_dir(folder).unwrap().next().is_none()
}

#[test]
#[ignore = "needs Pebble"]
fn a_certificate_is_ordered_renewed_and_found_again() {
    let behaviour = Behaviour { lifetime: Duration::from_secs(15), refused_nonces: 15 };
    let Some(bench) = Bench::new(behaviour) else { return };
    bench.answer_challenges();
    let (renewer, certificates) = start(bench.settings());
    certificates.recv_timeout(PATIENCE).unwrap();
    let first = fs::read(bench.certificate()).unwrap();
    let first_expiry = expiry(renewer.status()).unwrap();
    let text = String::from_utf8_lossy(&first);
    assert!(text.contains("BEGIN CERTIFICATE") && text.contains("PRIVATE KEY"));
    assert_eq!(fs::metadata(bench.certificate()).unwrap().permissions().mode() & 0o777, 0o600);
    // The renewal is due after two thirds of fifteen seconds.
    certificates.recv_timeout(PATIENCE).unwrap();
    assert_ne!(fs::read(bench.certificate()).unwrap(), first);
    assert!(expiry(renewer.status()).unwrap() > first_expiry);
    assert!(renewer.status().succeeded() >= 2);
    let challenges = bench.state().challenges();
    drop(renewer);
    assert!(is_empty(&challenges.http) && is_empty(&challenges.tls), "answers stay behind");
    // A restart uses the stored files, including the account, which the authority knows.
    let second = fs::read(bench.certificate()).unwrap();
    let (renewer, certificates) = start(bench.settings());
    certificates.recv_timeout(PATIENCE).unwrap();
    assert_ne!(fs::read(bench.certificate()).unwrap(), second);
    drop(renewer);
}

#[test]
#[ignore = "needs Pebble"]
fn a_certificate_is_renewed_when_the_authority_suggests_it() {
    let Some(bench) = Bench::new(Behaviour::default()) else { return };
    bench.answer_challenges();
    let (renewer, certificates) = start(bench.settings());
    certificates.recv_timeout(PATIENCE).unwrap();
    // Its window is two months away, and what cannot be read changes nothing.
    let first = fs::read_to_string(bench.certificate()).unwrap();
    bench.pebble.suggest_renewal(&first, "no JSON");
    certificates.recv_timeout(Duration::from_secs(3)).unwrap_err();
    assert_eq!((renewer.status().succeeded(), renewer.status().failed()), (1, 0));
    bench.pebble.suggest_renewal(
        &first,
        r#"{"suggestedWindow":{"start":"2025-01-01T00:00:00Z","end":"2025-01-02T00:00:00Z"}}"#,
    );
    certificates.recv_timeout(PATIENCE).unwrap();
    let second = fs::read_to_string(bench.certificate()).unwrap();
    assert_ne!(second, first);
    // The order has named the certificate that it replaces: Pebble refuses to replace one twice.
    certificates.recv_timeout(Duration::from_secs(3)).unwrap_err();
    assert_eq!((renewer.status().succeeded(), renewer.status().failed()), (2, 0));
    drop(renewer);
    fs::write(bench.certificate(), first).unwrap();
    let (renewer, certificates) = start(bench.settings());
    certificates.recv_timeout(PATIENCE).unwrap();
    // The next attempt does without the name.
    assert_eq!((renewer.status().succeeded(), renewer.status().failed()), (1, 1));
}

#[test]
#[ignore = "needs Pebble"]
fn a_validation_that_fails_is_tried_again() {
    let Some(bench) = Bench::new(Behaviour::default()) else { return };
    let (renewer, certificates) = start(bench.settings());
    let status = renewer.status().clone();
    wait_until("two failures", &bench.pebble, || status.failed() >= 2);
    assert!(!bench.certificate().exists());
    bench.answer_challenges();
    certificates.recv_timeout(PATIENCE).unwrap();
    assert!(bench.certificate().exists());
    assert_eq!(status.succeeded(), 1);
    // The renewal is not due for two months.
    assert!(stays_true(Duration::from_secs(3), || status.succeeded() == 1));
}

#[test]
#[ignore = "needs Pebble"]
fn a_directory_that_is_down_leaves_the_certificate() {
    let behaviour = Behaviour { lifetime: Duration::from_secs(8), ..Behaviour::default() };
    let Some(mut bench) = Bench::new(behaviour) else { return };
    bench.answer_challenges();
    let (renewer, certificates) = start(bench.settings());
    certificates.recv_timeout(PATIENCE).unwrap();
    bench.pebble.stop();
    let status = renewer.status().clone();
    wait_until("a failure", &bench.pebble, || status.failed() >= 1);
    let kept = fs::read(bench.certificate()).unwrap();
    wait_until("two failures", &bench.pebble, || status.failed() >= 2);
    assert_eq!(fs::read(bench.certificate()).unwrap(), kept);
    drop(renewer);
}

#[test]
#[ignore = "needs Pebble"]
fn one_process_orders_at_a_time() {
    let Some(bench) = Bench::new(Behaviour::default()) else { return };
    bench.answer_challenges();
    bench.state().create(None).unwrap();
    let lock = bench.state().lock().unwrap().unwrap();
    let (renewer, certificates) = start(bench.settings());
    certificates.recv_timeout(Duration::from_secs(2)).unwrap_err();
    assert_eq!((renewer.status().succeeded(), renewer.status().failed()), (0, 0));
    drop(lock);
    certificates.recv_timeout(PATIENCE).unwrap();
}
