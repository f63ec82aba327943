//! Access tokens and keys: no token is accepted that nobody signed, and one that was signed is accepted only if its
//! claims permit that.

use pollux_hub::{
    dialect::Dialect,
    limits,
    matcher::MatcherCache,
    token::{KeySet, Verifier},
    topic::HubUrl,
};
use ring::hmac;
use serde_json::Value;

const NOW: u64 = 1_800_000_000;
const SECRET: &[u8] = b"0123456789abcdef0123456789abcdef";
const HUB: &str = "https://hub.example/.well-known/mercure";

/// The input is what follows: a token; a header, a line's end and claims, which are signed; or keys.
pub fn check(data: &[u8]) {
    let Some((&first, rest)) = data.split_first() else { return };
    let hub = HubUrl::parse(HUB).expect("a URL");
    match first % 3 {
        0 => check_token(rest, &hub),
        1 => check_claims(rest, &hub),
        _ => check_keys(rest, &hub),
    }
}

fn verifier(keys: KeySet) -> Verifier {
    Verifier::new(keys, Dialect::Both, HUB.into(), Vec::new())
}

/// No input has a signature of this key, which is not in the repository's corpus.
fn check_token(token: &[u8], hub: &HubUrl) {
    let Ok(token) = std::str::from_utf8(token) else { return };
    let verifier = verifier(KeySet::parse(&[SECRET, b"x"].concat()).expect("a secret"));
    let accepted = verifier.verify(token, NOW, &MatcherCache::default(), hub).is_ok();
    assert!(!accepted, "nobody signed {token}");
}

fn check_claims(input: &[u8], hub: &HubUrl) {
    let at = input.iter().position(|byte| *byte == b'\n').unwrap_or(input.len());
    let (header, claims) = input.split_at(at);
    let claims = claims.get(1..).unwrap_or_default();
    let message = format!("{}.{}", base64(header), base64(claims));
    let key = hmac::Key::new(hmac::HMAC_SHA256, SECRET);
    let signature = base64(hmac::sign(&key, message.as_bytes()).as_ref());
    let verifier = verifier(KeySet::parse(SECRET).expect("a secret"));
    let cache = MatcherCache::default();
    let token = format!("{message}.{signature}");
    let Ok(access) = verifier.verify(&token, NOW, &cache, hub) else { return };

    assert!(token.len() <= limits::TOKEN_BYTES);
    let [header, claims]: [Value; 2] =
        [header, claims].map(|json| serde_json::from_slice(json).expect("JSON"));
    assert_eq!(header["alg"], "HS256");
    // The planted fault: a token is valid for a second only.
    let now = if crate::planted() { f64::MAX } else { NOW as f64 };
    let expires_at = claims["exp"].as_f64();
    assert!(expires_at.is_none_or(|at| at > now), "expired: {claims}");
    assert_eq!(access.expires_at.is_some(), expires_at.is_some(), "{claims}");
    assert!(
        claims["nbf"].as_f64().is_none_or(|at| at.floor() <= NOW as f64),
        "not yet valid: {claims}"
    );
    if access.dialect == Dialect::One {
        let audience = &claims["aud"];
        let is_hub = audience == HUB
            || audience.as_array().is_some_and(|all| all.iter().any(|one| one == HUB));
        assert!(is_hub && expires_at.is_some(), "{claims}");
    }
    for rules in [&access.publish, &access.subscribe] {
        assert!(rules.len() <= limits::TOKEN_MATCHERS, "{} matchers", rules.len());
        for rule in rules {
            let text = claims.to_string();
            let written = Value::from(&*rule.selector.text).to_string();
            assert!(text.contains(&written), "{written} is not in {text}");
        }
    }
    // Nobody may change it.
    let changed = if signature.starts_with('A') { "B" } else { "A" };
    let forged = format!("{message}.{changed}{}", &signature[1..]);
    assert!(verifier.verify(&forged, NOW, &cache, hub).is_err(), "forged: {forged}");
}

fn check_keys(text: &[u8], hub: &HubUrl) {
    let set = KeySet::parse_jwks(text);
    for keys in [KeySet::parse(text).ok(), set.ok()].into_iter().flatten() {
        assert!((1..=limits::KEYS).contains(&keys.len()), "{keys:?}");
        let shown = format!("{keys:?}");
        assert!(!shown.contains(&*String::from_utf8_lossy(text)), "a key is shown");
        let outcome = verifier(keys).verify("e30.e30.", NOW, &MatcherCache::default(), hub);
        assert!(outcome.is_err(), "an unsigned token");
    }
}

/// Base64 for URLs, without padding (RFC 7515 §2).
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut text = String::new();
    for group in bytes.chunks(3) {
        let bits = group.iter().fold(0, |bits, byte| bits << 8 | u32::from(*byte));
        let bits = bits << (8 * (3 - group.len()));
        for index in 0..=group.len() {
            text.push(char::from(DIGITS[(bits >> (18 - 6 * index) & 63) as usize]));
        }
    }
    text
}
