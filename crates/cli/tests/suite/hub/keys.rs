//! `--hub-jwks`: the keys of tokens come from a file or a URL, and change while the hub runs.

use super::BINARY;
use pollux_testkit::{serve::Serve, token::sign, wait_until};
use serde_json::{Value, json};
use std::{
    fs,
    path::Path,
    process::{Command, Output},
};

/// A secret, and its form in a JWK (base64 for URLs, RFC 7515 §2).
const OLD: (&str, &str) =
    ("0123456789abcdef0123456789abcdef", "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY");
const NEW: (&str, &str) =
    ("fedcba9876543210fedcba9876543210", "ZmVkY2JhOTg3NjU0MzIxMGZlZGNiYTk4NzY1NDMyMTA");

fn key(id: &str, key: (&str, &str)) -> Value {
    json!({"kty": "oct", "kid": id, "alg": "HS256", "k": key.1})
}

/// Replaces `path` atomically, so that no reader finds half of a set.
fn write_keys(path: &Path, keys: &[Value]) {
    let new = path.with_extension("new");
    fs::write(&new, json!({"keys": keys}).to_string()).unwrap();
    fs::rename(new, path).unwrap();
}

/// Returns the status of an update whose token was signed with this key.
fn status(hub: &Serve, id: &str, key: (&str, &str)) -> u16 {
    let token = sign(&json!({"kid": id}), &json!({"mercure": {"publish": ["*"]}}), key.0);
    let body = "topic=a&data=x";
    let mut client = hub.client();
    client.send(format!(
        "POST /.well-known/mercure HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {token}\r\n\
         Content-Type: application/x-www-form-urlencoded\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    ));
    client.reply().status
}

fn hub(source: &str, more: &[&str]) -> (tempfile::TempDir, Serve) {
    let site = tempfile::tempdir().unwrap();
    let flags = [&["--hub", "--hub-jwks", source], more].concat();
    let server = Serve::start(BINARY, site.path(), &flags);
    (site, server)
}

#[test]
fn keys_of_a_file_are_replaced_without_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("keys.json");
    write_keys(&path, &[key("1", OLD)]);
    let (_site, hub) = hub(path.to_str().unwrap(), &[]);
    assert_eq!(status(&hub, "1", OLD), 200);
    assert_eq!(status(&hub, "2", OLD), 401, "an unknown identifier");
    write_keys(&path, &[key("2", NEW)]);
    wait_until("the new key", || status(&hub, "2", NEW) == 200);
    assert_eq!(status(&hub, "1", OLD), 401, "the former key");
    fs::write(&path, "{").unwrap();
    wait_until("a warning", || hub.stderr_text().contains("the hub keeps the keys that it has"));
    assert_eq!(status(&hub, "2", NEW), 200);
}

/// Starts a server of `directory` over TLS, at `address`.
fn issuer(directory: &Path, address: &str) -> Serve {
    let mut command = Command::new(BINARY);
    command.arg("serve").arg(directory).args(["--json", "--listen", address]);
    command.args(["--tls-cert", "site.pem", "--tls-key", "site.key"]).current_dir(directory);
    Serve::start_command(command)
}

fn certificate(directory: &Path) {
    let output = Command::new("openssl")
        .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"])
        .args(["-days", "30", "-subj", "/CN=site", "-addext", "basicConstraints=critical,CA:FALSE"])
        .args(["-addext", "subjectAltName=IP:127.0.0.1"])
        .args(["-keyout", "site.key", "-out", "site.pem"])
        .current_dir(directory)
        .output()
        .expect("openssl");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn keys_of_a_url_are_fetched_at_intervals() {
    let directory = tempfile::tempdir().unwrap();
    certificate(directory.path());
    let path = directory.path().join("keys.json");
    write_keys(&path, &[key("1", OLD)]);
    let first = issuer(directory.path(), "127.0.0.1:0");
    let address = first.address().to_owned();
    let url = format!("https://{address}/keys.json");
    let authority = directory.path().join("site.pem");
    let flags = ["--hub-jwks-interval", "1s", "--hub-jwks-ca", authority.to_str().unwrap()];
    let (_site, hub) = hub(&url, &flags);
    wait_until("the first key", || status(&hub, "1", OLD) == 200);
    assert_eq!(status(&hub, "2", OLD), 401, "an unknown identifier");
    write_keys(&path, &[key("2", NEW)]);
    wait_until("the new key", || status(&hub, "2", NEW) == 200);
    assert_eq!(status(&hub, "1", OLD), 401, "the former key");
    // The issuer is unreachable: the hub reports that, keeps its keys, and fetches new ones when the
    // issuer is back.
    drop(first);
    wait_until("a warning", || hub.stderr_text().contains("cannot connect to https://"));
    assert_eq!(status(&hub, "2", NEW), 200);
    write_keys(&path, &[key("1", OLD)]);
    let _again = issuer(directory.path(), &address);
    wait_until("the first key again", || status(&hub, "1", OLD) == 200);
}

#[test]
fn a_hub_starts_while_its_issuer_is_unreachable() {
    let directory = tempfile::tempdir().unwrap();
    certificate(directory.path());
    write_keys(&directory.path().join("keys.json"), &[key("1", OLD)]);
    // A port that was free a moment ago.
    let address = issuer(directory.path(), "127.0.0.1:0").address().to_owned();
    let authority = directory.path().join("site.pem");
    let url = format!("https://{address}/keys.json");
    let (_site, hub) = hub(&url, &["--hub-jwks-ca", authority.to_str().unwrap()]);
    wait_until("a warning", || hub.stderr_text().contains("cannot connect to https://"));
    assert_eq!(status(&hub, "1", OLD), 401, "no key yet");
    assert_eq!(hub.client().get("/none").status, 404, "the site is served");
    let _issuer = issuer(directory.path(), &address);
    wait_until("the first key", || status(&hub, "1", OLD) == 200);
}

#[test]
fn an_issuer_that_is_not_trusted_gives_no_keys() {
    let directory = tempfile::tempdir().unwrap();
    certificate(directory.path());
    write_keys(&directory.path().join("keys.json"), &[key("1", OLD)]);
    let issuer = issuer(directory.path(), "127.0.0.1:0");
    let (_site, hub) = hub(&format!("https://{}/keys.json", issuer.address()), &[]);
    wait_until("a warning", || hub.stderr_text().contains("--hub-jwks-ca"));
    assert_eq!(status(&hub, "1", OLD), 401);
}

fn refused(arguments: &[&str]) -> Output {
    let site = tempfile::tempdir().unwrap();
    let output = Command::new("timeout")
        .args(["60", BINARY, "serve"])
        .arg(site.path())
        .args(["--listen", "127.0.0.1:0"])
        .args(arguments)
        .output()
        .unwrap();
    assert!(!output.status.success());
    assert_ne!(output.status.code(), Some(124), "it serves");
    output
}

#[test]
fn keys_that_cannot_be_used_are_refused_at_the_start() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("keys.json");
    let file = path.to_str().unwrap();
    let reason = |arguments: &[&str]| {
        String::from_utf8(refused(&[&["--hub"], arguments].concat()).stderr).unwrap()
    };
    let text = reason(&["--hub-jwks", file]);
    assert!(text.contains("keys.json") && text.contains("No such file"), "{text}");
    for (set, expected) in [
        ("{", "the JSON text is no JWK or JWK set"),
        (OLD.0, "the JSON text is no JWK or JWK set"),
        (r#"{"keys":[]}"#, "the JWK set has no key for HS256"),
    ] {
        fs::write(&path, set).unwrap();
        let text = reason(&["--hub-jwks", file]);
        assert!(text.contains("keys.json") && text.contains(expected), "{set}: {text}");
    }
    let text = reason(&["--hub-jwks", "http://issuer.example/keys"]);
    assert!(text.contains("--hub-jwks") && text.contains("use https://"), "{text}");
    let text = reason(&["--hub-jwks", file, "--hub-jwks-ca", "ca.pem"]);
    assert!(text.contains("--hub-jwks-ca"), "{text}");
    let text =
        reason(&["--hub-jwks", "https://issuer.example/keys", "--hub-jwks-interval", "10ms"]);
    assert!(text.contains("--hub-jwks-interval"), "{text}");
    let text = String::from_utf8(refused(&["--hub-jwks", file]).stderr).unwrap();
    assert!(text.contains("--hub-jwks: there is no hub; add --hub"), "{text}");
}
