//! Keys that change while the hub runs: a JWK set in a file or at a URL.

use super::*;
use pollux_server::config::KeySource;
use pollux_testkit::{
    stays_true,
    token::{base64url, sign},
    write_slowly,
};
use serde_json::{Value, json};
use std::{
    net::TcpListener,
    sync::{Arc, Mutex},
    thread,
};

const OLD: &str = "0123456789abcdef0123456789abcdef";
const NEW: &str = "fedcba9876543210fedcba9876543210";

fn key(id: &str, secret: &str) -> Value {
    json!({"kty": "oct", "kid": id, "alg": "HS256", "k": base64url(secret.as_bytes())})
}

fn set(keys: &[Value]) -> String {
    json!({"keys": keys}).to_string()
}

/// Returns the status of an update with a token that was signed with this key.
fn status(hub: &Hub, id: &str, secret: &str) -> u16 {
    let token = sign(&json!({"kid": id}), &json!({"mercure": {"publish": ["*"]}}), secret);
    hub.post("topic=a", &[&format!("Authorization: Bearer {token}")]).status
}

fn start(source: KeySource) -> Hub {
    Hub::start(1, |_, hub| {
        hub.publish_anonymous = false;
        hub.key_source = Some(source);
        hub.key_interval = Duration::from_secs(1);
    })
}

#[test]
fn a_file_is_read_again_and_one_that_is_broken_changes_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("keys.json");
    std::fs::write(&path, set(&[key("1", OLD)])).unwrap();
    let hub = start(KeySource::File(path.clone()));
    assert_eq!((status(&hub, "1", OLD), status(&hub, "2", NEW)), (200, 401));
    // Both keys are valid while the issuer replaces its key.
    std::fs::write(&path, set(&[key("1", OLD), key("2", NEW)])).unwrap();
    wait_until("the second key", || status(&hub, "2", NEW) == 200);
    assert_eq!((status(&hub, "1", OLD), status(&hub, "1", NEW)), (200, 401), "by its identifier");
    std::fs::write(&path, set(&[key("2", NEW)])).unwrap();
    wait_until("the end of the first key", || status(&hub, "1", OLD) == 401);
    std::fs::write(&path, "{ no set").unwrap();
    // Longer than two intervals.
    assert!(stays_true(Duration::from_millis(2500), || status(&hub, "2", NEW) == 200));
    std::fs::remove_file(&path).unwrap();
    assert!(stays_true(Duration::from_millis(1500), || status(&hub, "2", NEW) == 200));
    std::fs::write(&path, set(&[key("1", OLD)])).unwrap();
    wait_until("the first key again", || status(&hub, "1", OLD) == 200);
}

#[test]
fn a_url_is_fetched_at_intervals_and_a_failure_changes_nothing() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/keys", listener.local_addr().unwrap());
    // The issuer's response: no keys yet.
    let answer = Arc::new(Mutex::new((503, String::new())));
    let current = answer.clone();
    // The thread runs until the process ends.
    thread::spawn(move || {
        for socket in listener.incoming() {
            let mut socket = BufReader::new(socket.unwrap());
            let mut line = String::new();
            while socket.read_line(&mut line).is_ok_and(|count| count > 2) {
                line.clear();
            }
            let (status, text) = current.lock().unwrap().clone();
            let _ = write!(
                socket.get_mut(),
                "HTTP/1.1 {status} X\r\nContent-Length: {}\r\n\r\n{text}",
                text.len()
            );
        }
    });
    let hub = start(url.parse().unwrap());
    // The hub already serves, but no token is valid.
    assert_eq!(status(&hub, "1", OLD), 401);
    *answer.lock().unwrap() = (200, set(&[key("1", OLD)]));
    wait_until("the first key", || status(&hub, "1", OLD) == 200);
    *answer.lock().unwrap() = (200, set(&[key("2", NEW)]));
    wait_until("the second key", || status(&hub, "2", NEW) == 200);
    assert_eq!(status(&hub, "1", OLD), 401);
    for failure in [(500, set(&[])), (200, "no set".into()), (200, "x".repeat(2 << 20))] {
        *answer.lock().unwrap() = failure;
        assert!(stays_true(Duration::from_millis(2500), || status(&hub, "2", NEW) == 200));
    }
}

/// Regression: until the keys had come, a hub that had just started refused the tokens of clients that connected again.
#[test]
fn the_start_waits_for_the_keys_of_a_url() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/keys", listener.local_addr().unwrap());
    let issuer = thread::spawn(move || {
        let mut socket = BufReader::new(listener.accept().unwrap().0);
        let mut line = String::new();
        while socket.read_line(&mut line).is_ok_and(|count| count > 2) {
            line.clear();
        }
        let text = set(&[key("1", OLD)]);
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", text.len());
        write_slowly(socket.get_mut(), Duration::from_millis(300), [head, text]).unwrap();
    });
    let hub = start(url.parse().unwrap());
    assert_eq!(status(&hub, "1", OLD), 200);
    issuer.join().unwrap();
}

#[test]
fn keys_that_anybody_could_send_are_refused() {
    let refusal = |text: &str| text.parse::<KeySource>().unwrap_err();
    assert!(refusal("http://issuer.example/keys").contains("https://"));
    assert!(refusal("ftp://issuer.example/keys").contains("ftp"));
    for good in
        ["https://issuer.example/keys", "http://[::1]:1/k", "http://localhost/k", "keys.json"]
    {
        assert!(good.parse::<KeySource>().is_ok(), "{good}");
    }
    let mut config = HubConfig::new(PATH);
    config.publish_anonymous = true;
    config.key_source = Some(KeySource::File("no such file".into()));
    config.check().unwrap();
    config.subscriber_keys = Some("k".into());
    assert!(config.check().unwrap_err().to_string().contains("--hub-jwks"));
}
