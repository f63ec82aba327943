//! The keys of tokens, and a live upgrade.

use super::*;
use crate::config::KeySource;
use pollux_hub::token::KeySet;
use pollux_testkit::token::{base64url, sign};
use serde_json::json;
use std::os::unix::net::UnixStream;

const SECRET: &str = "0123456789abcdef0123456789abcdef";

/// Creates a hub whose keys are at a URL at which nothing answers.
fn shared_at(port: u16) -> Arc<HubShared> {
    let source: KeySource = format!("http://127.0.0.1:{port}/keys").parse().unwrap();
    shared(|hub| hub.key_source = Some(source))
}

fn is_valid(shared: &HubShared, secret: &str) -> bool {
    let token = sign(&json!({}), &json!({"mercure": {"subscribe": ["*"]}}), secret);
    let verifier = shared.subscribers.as_ref().unwrap();
    let access = verifier.verify(&token, shared::unix_time(), &shared.token_matchers, &shared.url);
    access.is_ok()
}

fn set(secret: &str) -> String {
    json!({"keys": [{"kty": "oct", "k": base64url(secret.as_bytes())}]}).to_string()
}

fn install(shared: &HubShared, text: &str) {
    shared.set_keys(&KeySet::parse_jwks(text.as_bytes()).unwrap(), text.as_bytes());
}

/// Hands the hub over, and returns whether the new process has taken the log.
fn upgrade(former: &Arc<HubShared>, present: &Arc<HubShared>) -> bool {
    let (near, far) = UnixStream::pair().unwrap();
    present.hold();
    thread::scope(|scope| {
        scope.spawn(|| present.take_over(far).unwrap());
        former.hand_over(near).unwrap()
    })
}

/// Regression: until the URL answered, the new process refused every token.
#[test]
fn a_new_process_has_the_keys_of_the_former_one_until_it_has_its_own() {
    let (former, present) = (shared_at(1), shared_at(1));
    install(&former, &set(SECRET));
    assert!(is_valid(&former, SECRET) && !is_valid(&present, SECRET));
    assert!(upgrade(&former, &present));
    assert!(is_valid(&present, SECRET));
    let other = SECRET.to_uppercase();
    install(&present, &set(&other));
    assert!(is_valid(&present, &other) && !is_valid(&present, SECRET));
}

#[test]
fn keys_of_another_url_and_older_ones_are_not_taken() {
    let (former, elsewhere) = (shared_at(1), shared_at(2));
    install(&former, &set(SECRET));
    assert!(upgrade(&former, &elsewhere));
    assert!(!is_valid(&elsewhere, SECRET));
    let (former, present) = (shared_at(1), shared_at(1));
    install(&former, &set(SECRET));
    let newer = SECRET.to_uppercase();
    install(&present, &set(&newer));
    assert!(upgrade(&former, &present));
    assert!(is_valid(&present, &newer) && !is_valid(&present, SECRET));
}
