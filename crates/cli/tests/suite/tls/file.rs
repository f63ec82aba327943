//! TLS settings in a configuration file.

use super::{POLLUX, openssl};
use pollux_testkit::serve::Serve;
use pollux_tls::RELOAD_INTERVAL;
use std::{
    fs,
    path::Path,
    process::{Command, Output},
    time::Instant,
};
use tempfile::TempDir;

/// Creates a directory with sites `a` and `b`, and a certificate for each, `a.example` and
/// `b.example`.
fn folder() -> TempDir {
    let folder = TempDir::new().unwrap();
    for name in ["a", "b"] {
        fs::create_dir(folder.path().join(name)).unwrap();
        fs::write(folder.path().join(name).join("index.html"), format!("site {name}\n")).unwrap();
        openssl(folder.path(), name, &format!("{name}.example"));
    }
    folder
}

fn write(folder: &Path, text: &str) {
    let server = "control = \"ctl\"\ntls-cert = [\"a.pem\"]\ntls-key = [\"a.key\"]\nhsts = \"1h\"\ntls-min = 1.3\n";
    fs::write(folder.join("p.toml"), format!("{server}{text}")).unwrap();
}

fn start(folder: &Path, arguments: &[&str]) -> Serve {
    let mut command = Command::new(POLLUX);
    command.args(["serve", "--json", "--listen", "127.0.0.1:0", "--config"]);
    command.arg(folder.join("p.toml")).args(arguments);
    Serve::start_command(command)
}

fn reload(folder: &Path) -> Output {
    let control = folder.join("ctl");
    Command::new(POLLUX).args(["ctl", "--control"]).arg(control).arg("reload").output().unwrap()
}

/// Requests NAME.example with a client that trusts only NAME's certificate. Returns whether curl
/// succeeded, and the head and the body.
fn get(folder: &Path, server: &Serve, name: &str) -> (bool, String) {
    let address = server.address();
    let output = Command::new("curl")
        .args(["--silent", "--include", "--max-time", "60", "--cacert", &format!("{name}.pem")])
        .args(["--connect-to", &format!("{name}.example:443:{address}")])
        .arg(format!("https://{name}.example/"))
        .current_dir(folder)
        .output()
        .expect("curl");
    (output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned())
}

const A: &str = "[[site]]\nroot = \"a\"\n";
const B: &str = "[[site]]\nnames = [\"b.example\"]\nroot = \"b\"\ntls-cert = [\"b.pem\"]\ntls-key = [\"b.key\"]\n";

#[test]
fn each_site_has_its_certificate_and_the_fields_of_the_server() {
    let folder = folder();
    let folder = folder.path();
    write(folder, &format!("{A}{B}hsts = \"2h\"\n"));
    let server = start(folder, &[]);
    for (name, age) in [("a", 3600), ("b", 7200)] {
        let (succeeds, text) = get(folder, &server, name);
        assert!(succeeds && text.ends_with(&format!("site {name}\n")), "{name}: {text}");
        let field = format!("strict-transport-security: max-age={age}\r\n");
        assert!(text.to_ascii_lowercase().contains(&field), "{name}: {text}");
    }
}

#[test]
fn a_reload_adds_a_site_with_its_certificate() {
    let folder = folder();
    let folder = folder.path();
    write(folder, A);
    let server = start(folder, &[]);
    assert!(get(folder, &server, "a").0);
    // The client does not trust the certificate that the server shows.
    assert!(!get(folder, &server, "b").0);
    write(folder, &format!("{A}{B}"));
    let output = reload(folder);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    for name in ["a", "b"] {
        assert!(get(folder, &server, name).1.ends_with(&format!("site {name}\n")), "{name}");
    }
    // Files that are no longer named in the configuration may be missing.
    fs::rename(folder.join("b.pem"), folder.join("c.pem")).unwrap();
    write(folder, &format!("{A}{}", B.replace("b.pem", "c.pem")));
    assert!(reload(folder).status.success());
    fs::rename(folder.join("c.pem"), folder.join("b.pem")).unwrap();
    assert!(get(folder, &server, "b").0);
}

/// Regression: the server used an expired certificate without a warning, at the start and at a reload.
#[test]
fn a_certificate_outside_its_validity_is_warned_of() {
    let folder = folder();
    let folder = folder.path();
    let write_certificate = |years: (i32, i32)| {
        let key = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::new(vec!["a.example".to_owned()]).unwrap();
        params.not_before = rcgen::date_time_ymd(years.0, 1, 2);
        params.not_after = rcgen::date_time_ymd(years.1, 1, 2);
        fs::write(folder.join("a.pem"), params.self_signed(&key).unwrap().pem()).unwrap();
        fs::write(folder.join("a.key"), key.serialize_pem()).unwrap();
    };
    write(folder, A);
    write_certificate((2001, 2002));
    let server = start(folder, &[]);
    let expired = "a.pem: the certificate has expired on Wed, 02 Jan 2002 00:00:00 GMT";
    let text = server.stderr_text();
    assert!(text.contains("WARN") && text.contains(expired), "{text}");
    write_certificate((4001, 4002));
    assert!(reload(folder).status.success());
    let text = server.stderr_text();
    let early = "a.pem: the certificate is not valid before Tue, 02 Jan 4001 00:00:00 GMT";
    assert!(text.contains(early), "{text}");
    let output =
        Command::new(POLLUX).args(["config", "check"]).arg(folder.join("p.toml")).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains(early), "{output:?}");
}

#[test]
fn a_reload_that_cannot_be_done_changes_no_certificate() {
    let folder = folder();
    let folder = folder.path();
    write(folder, &format!("{A}{B}"));
    let server = start(folder, &[]);
    for (text, part) in [
        (format!("{A}{}", B.replace("b.key", "a.key")), "does not belong"),
        (format!("{A}{}", B.replace("b.pem", "nowhere.pem")), "nowhere.pem"),
        (
            format!("{A}{}", B.replace("[\"b.key\"]", "[\"b.key\", \"b.key\"]")),
            "2 keys for 1 certificates",
        ),
    ] {
        write(folder, &text);
        let output = reload(folder);
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && message.contains(part), "{part}: {message}");
        assert!(["a", "b"].iter().all(|name| get(folder, &server, name).0));
    }
    fs::write(folder.join("p.toml"), format!("control = \"ctl\"\n{A}")).unwrap();
    let output = reload(folder);
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(message.contains("pollux ctl upgrade"), "{message}");
}

/// Regression: the new certificates were already in use when the configuration was found to be faulty.
#[test]
fn a_configuration_that_is_refused_changes_no_certificate() {
    const ATTEMPTS: usize = 5;
    let folder = folder();
    let folder = folder.path();
    openssl(folder, "other", "a.example");
    let exchange = || {
        for suffix in ["pem", "key"] {
            let path = |name: &str| folder.join(format!("{name}.{suffix}"));
            for (from, to) in [("a", "spare"), ("other", "a"), ("spare", "other")] {
                fs::rename(path(from), path(to)).unwrap();
            }
        }
    };
    for _ in 0..ATTEMPTS {
        write(folder, A);
        let started_at = Instant::now();
        let server = start(folder, &[]);
        exchange();
        write(folder, &format!("{A}listng = true\n"));
        assert!(!reload(folder).status.success());
        // The client trusts the former certificate.
        exchange();
        let (succeeds, text) = get(folder, &server, "a");
        // Later, a handshake reads the files without a reload.
        if started_at.elapsed() < RELOAD_INTERVAL {
            assert!(succeeds, "{text}");
            return;
        }
    }
    eprintln!("skipped: this machine is too slow");
}

#[test]
fn flags_replace_the_certificates_of_the_file() {
    let folder = folder();
    let folder = folder.path();
    write(folder, &format!("{A}tls-cert = []\n"));
    let b = |name: &str| folder.join(name).to_str().unwrap().to_owned();
    let server = start(folder, &["--tls-cert", &b("b.pem"), "--tls-key", &b("b.key")]);
    assert!(get(folder, &server, "b").0 && !get(folder, &server, "a").0);
    drop(server);
    let server = start(folder, &["--tls", "self-signed"]);
    assert!(!get(folder, &server, "a").0);
}

/// Writes p.toml and checks it. Returns the exit status and the whole output.
fn check(folder: &Path, text: &str) -> (Option<i32>, String) {
    let path = folder.join("p.toml");
    fs::write(&path, text).unwrap();
    let output = Command::new(POLLUX).args(["config", "check"]).arg(&path).output().unwrap();
    (output.status.code(), String::from_utf8([output.stdout, output.stderr].concat()).unwrap())
}

#[test]
fn a_certificate_that_cannot_be_used_here_is_a_warning() {
    let folder = folder();
    let text = "[[site]]\nroot = \"nowhere\"\ntls-cert = [\"a.pem\", \"c.pem\"]\ntls-key = [\"b.key\", \"c.key\"]\n\
                origin = [\"https://127.0.0.1:1\"]\norigin-ca = \"d.pem\"\n";
    let (status, text) = check(folder.path(), text);
    assert_eq!(status, Some(0), "{text}");
    for part in ["does not belong", "c.pem: ", "is no directory", "p.toml:2:", "p.toml:3:"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    // Regression: the files of `origin-ca` and `tls-client-ca` were not checked.
    assert!(text.contains("d.pem: ") && text.contains("p.toml:6:"), "{text}");
    let pair = "tls-cert = [\"a.pem\"]\ntls-key = [\"a.key\"]\n";
    let with_authority = format!("tls-client-ca = \"e.pem\"\n{pair}{A}");
    let (status, text) = check(folder.path(), &with_authority);
    assert_eq!(status, Some(0), "{text}");
    assert!(text.contains("e.pem: ") && text.contains("p.toml:1:"), "{text}");
}

#[test]
fn keys_of_tls_without_a_certificate_are_faults_with_their_place() {
    let folder = folder();
    let redirect = "redirect-http = \"127.0.0.1:0\"\n";
    let (status, text) = check(folder.path(), &format!("{redirect}tls-min = 1.1\n{A}"));
    assert_eq!(status, Some(1), "{text}");
    assert!(text.contains("p.toml:2:") && text.contains("use 1.2 or 1.3"), "{text}");
    let (status, text) = check(folder.path(), &format!("{redirect}{A}"));
    assert_eq!(status, Some(1), "{text}");
    assert!(text.contains("p.toml:1:") && text.contains("the server has no TLS"), "{text}");
}
