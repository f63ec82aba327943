mod signatures;

use super::*;
use crate::matcher::MatcherType;
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use proptest::prelude::*;
use ring::hmac;
use serde_json::json;

const NOW: u64 = 1_800_000_000;
const SECRET: &[u8] = b"!ChangeThisMercureHubJWTSecretKey!";
const RESOURCE: &str = "https://hub.example/.well-known/mercure";

fn hub() -> HubUrl {
    HubUrl::parse(RESOURCE).unwrap()
}

fn verifier(keys: &[u8], dialect: Dialect) -> Verifier {
    Verifier::new(KeySet::parse(keys).unwrap(), dialect, RESOURCE.into(), Vec::new())
}

fn base64url(bytes: impl AsRef<[u8]>) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

/// A token whose signature is what `sign` makes of its first two parts.
fn encode(header: &Value, claims: &Value, sign: impl Fn(&[u8]) -> Vec<u8>) -> String {
    let message = format!("{}.{}", base64url(header.to_string()), base64url(claims.to_string()));
    format!("{message}.{}", base64url(sign(message.as_bytes())))
}

fn hs256(secret: &[u8], message: &[u8]) -> Vec<u8> {
    hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret), message).as_ref().to_vec()
}

fn sign(typ: &str, claims: &Value) -> String {
    encode(&json!({"typ": typ, "alg": "HS256"}), claims, |message| hs256(SECRET, message))
}

fn verify(verifier: &Verifier, token: &str) -> Option<Access> {
    let verdict = verifier.verify(token, NOW, &MatcherCache::default(), &hub());
    verdict.inspect_err(|reject| assert_eq!(*reject, Reject::token_invalid())).ok()
}

/// Claims of dialect 1 that are valid, with some replaced; null removes.
fn claims(changes: &Value) -> Value {
    let mut claims = json!({
        "exp": NOW + 60,
        "aud": RESOURCE,
        "sub": "urn:me",
        "authorization_details": [{
            "type": "mercure",
            "actions": ["publish", "subscribe"],
            "topics": [{"match": "a"}, {"match": "/b/:id", "matchType": "URLPattern"}],
            "payload": {"x": 1},
        }],
    });
    for (name, value) in changes.as_object().unwrap() {
        claims[name] = value.clone();
        if value.is_null() {
            claims.as_object_mut().unwrap().remove(name);
        }
    }
    claims
}

fn is_valid(changes: &Value) -> bool {
    verify(&verifier(SECRET, Dialect::Both), &sign("at+jwt", &claims(changes))).is_some()
}

#[test]
fn a_token_of_dialect_1_permits_what_its_details_say() {
    let token = sign("at+jwt", &claims(&json!({})));
    let access = verify(&verifier(SECRET, Dialect::One), &token).unwrap();
    assert_eq!(access.expires_at, Some(NOW + 60));
    assert_eq!(access.subject.as_deref(), Some("urn:me"));
    assert!(access.may_publish(&["a".into(), "/b/1".into()], &hub()));
    assert!(!access.may_publish(&["a".into(), "c".into()], &hub()));
    assert!(access.may_read("/b/2", &hub()) && !access.may_read("/b/2/3", &hub()));
    let selector = |kind, text: &str| Selector::new(kind, text);
    let payload = |selector| access.payload(&selector, &hub()).cloned();
    assert_eq!(payload(selector(MatcherType::Exact, "a")), Some(json!({"x": 1})));
    assert_eq!(payload(selector(MatcherType::UrlPattern, "/b/:id")), Some(json!({"x": 1})));
    assert_eq!(payload(selector(MatcherType::Exact, "c")), None);
}

#[test]
fn a_pattern_without_room_is_not_the_fault_of_the_token() {
    let full = MatcherCache::without_room();
    let verify = |token: &str| verifier(SECRET, Dialect::Both).verify(token, NOW, &full, &hub());
    for token in [
        sign("at+jwt", &claims(&json!({}))),
        sign("JWT", &json!({"mercure": {"publish": ["https://a/{id}"]}})),
        sign(
            "JWT",
            &json!({"mercure": {"subscribe": [{"match": "/:a", "match_type": "urlpattern"}]}}),
        ),
    ] {
        assert_eq!(verify(&token).unwrap_err().status, 503, "{token}");
    }
    assert!(verify(&sign("JWT", &json!({"mercure": {"publish": ["*"]}}))).is_ok());
}

#[test]
fn the_first_detail_that_matches_decides_about_the_payload() {
    let detail = |topic: &str| {
        json!({"type": "https://mercure.rocks/authorization-detail",
        "actions": ["subscribe", "watch"], "topics": [{"match": topic, "match_type": "exact"}]})
    };
    let mut details = [detail("a"), detail("b"), detail("*")];
    details[1]["payload"] = json!({"x": 1});
    details[2]["payload"] = json!({"x": 2});
    let token = sign("at+jwt", &claims(&json!({"authorization_details": details})));
    let access = verify(&verifier(SECRET, Dialect::One), &token).unwrap();
    let payload = |text: &str| access.payload(&Selector::new(MatcherType::Exact, text), &hub());
    assert_eq!(payload("a"), None);
    assert_eq!(payload("b"), Some(&json!({"x": 1})));
    assert_eq!(payload("c"), Some(&json!({"x": 2})));
    assert!(access.may_read("z", &hub()) && !access.may_publish(&["z".into()], &hub()));
}

#[test]
fn an_action_that_is_not_known_permits_nothing_and_breaks_nothing() {
    let details = json!([
        {"type": "mercure", "actions": ["watch"], "topics": [{"match": "a"}]},
        {"type": "mercure", "actions": ["watch", "publish"], "topics": [{"match": "b"}]},
    ]);
    let token = sign("at+jwt", &claims(&json!({"authorization_details": details})));
    let access = verify(&verifier(SECRET, Dialect::One), &token).unwrap();
    assert!(access.may_publish(&["b".into()], &hub()));
    assert!(!access.may_publish(&["a".into()], &hub()) && !access.may_read("b", &hub()));
}

#[test]
fn times_and_parties_are_enforced() {
    assert!(is_valid(&json!({})));
    for changes in [
        json!({"exp": null}),
        json!({"exp": NOW}),
        json!({"exp": "never"}),
        json!({"exp": -1}),
        json!({"nbf": NOW + 1}),
        json!({"nbf": 1_800_000_001.1}),
        json!({"nbf": "x"}),
        json!({"aud": null}),
        json!({"aud": "https://other/"}),
        json!({"aud": ["https://other/"]}),
        json!({"aud": 1}),
        json!({"sub": 1}),
    ] {
        assert!(!is_valid(&changes), "{changes}");
    }
    for changes in [
        json!({"exp": 1_800_000_000.5 + 60.0}),
        json!({"nbf": NOW}),
        json!({"nbf": 1_800_000_000.0}),
        json!({"nbf": 1_800_000_000.9}),
        json!({"aud": ["https://other/", RESOURCE]}),
        json!({"sub": null}),
        json!({"authorization_details": null}),
        json!({"authorization_details": [{"type": "other", "anything": true}]}),
    ] {
        assert!(is_valid(&changes), "{changes}");
    }
}

#[test]
fn an_issuer_must_be_known_where_some_are_configured() {
    let keys = KeySet::parse(SECRET).unwrap();
    let strict = Verifier::new(keys, Dialect::Both, RESOURCE.into(), vec!["https://as/".into()]);
    let by = |issuer: Value| sign("at+jwt", &claims(&json!({"iss": issuer})));
    assert!(verify(&strict, &by(json!("https://as/"))).is_some());
    assert!(verify(&strict, &by(json!("https://other/"))).is_none());
    assert!(verify(&strict, &by(Value::Null)).is_none());
    let old = |claims: Value| verify(&strict, &sign("JWT", &claims)).is_some();
    assert!(old(json!({"mercure": {}, "iss": "https://as/"})));
    assert!(!old(json!({"mercure": {}, "iss": "https://other/"})));
    assert!(!old(json!({"mercure": {}, "iss": ["https://as/"]})));
    assert!(!old(json!({"mercure": {}})));
}

#[test]
fn the_audience_of_an_old_token_counts_if_its_issuer_knows_the_hub() {
    let keys = || KeySet::parse(SECRET).unwrap();
    let of = |issuers: &[&str]| {
        let issuers = issuers.iter().map(|&issuer| issuer.to_owned()).collect();
        Verifier::new(keys(), Dialect::Both, RESOURCE.into(), issuers)
    };
    let with = |audience: Value| {
        let claims = json!({"mercure": {}, "iss": "https://as/", "aud": audience});
        sign("JWT", &claims)
    };
    let strict = of(&["https://as/"]).with_public_resource();
    for (audience, is_valid) in [
        (json!(RESOURCE), true),
        (json!(["https://other/", RESOURCE]), true),
        (json!("https://other/"), false),
        (json!([]), false),
        (json!(1), false),
    ] {
        let token = with(audience);
        assert_eq!(verify(&strict, &token).is_some(), is_valid, "{token}");
        // Hubs of 0.x do not look at it, and it may be an address that only the operator knows.
        assert!(verify(&of(&[]).with_public_resource(), &token).is_some(), "{token}");
        assert!(verify(&of(&["https://as/"]), &token).is_some(), "{token}");
    }
    let without = sign("JWT", &json!({"mercure": {}, "iss": "https://as/"}));
    assert!(verify(&strict, &without).is_some());
}

#[test]
fn one_defect_in_the_details_makes_the_token_invalid() {
    let good = json!({"type": "mercure", "actions": ["publish"], "topics": [{"match": "a"}]});
    for (field, value) in [
        ("type", json!(1)),
        ("actions", json!([])),
        ("actions", json!(["publish", 1])),
        ("actions", json!("publish")),
        ("topics", json!([])),
        ("topics", json!(["a"])),
        ("topics", json!([{"match": 1}])),
        ("topics", json!([{"matchType": "Exact"}])),
        ("topics", json!([{"match": "a", "matchType": "regex"}])),
        ("topics", json!([{"match": "a", "matchType": "EXACT"}])),
        ("topics", json!([{"match": "/:a(", "matchType": "URLPattern"}])),
        ("topics", json!([{"match": "a\u{0}"}])),
        ("payload", json!("text")),
    ] {
        let mut bad = good.clone();
        bad[field] = value;
        assert!(!is_valid(&json!({"authorization_details": [good, bad]})), "{bad}");
    }
    assert!(!is_valid(&json!({"authorization_details": "x"})));
    assert!(!is_valid(&json!({"authorization_details": ["x"]})));
    assert!(!is_valid(&json!({"authorization_details": vec![good.clone(); 65]})));
    let topics = vec![json!({"match": "a"}); 257];
    let long = json!({"type": "mercure", "actions": ["publish"], "topics": topics});
    assert!(!is_valid(&json!({"authorization_details": [long]})));
}

#[test]
fn the_type_of_the_header_says_which_dialect_it_is() {
    let both = verifier(SECRET, Dialect::Both);
    assert!(verify(&both, &sign("application/AT+JWT", &claims(&json!({})))).is_some());
    assert!(verify(&both, &sign("id+jwt", &claims(&json!({})))).is_none());
    // An ID token has no claim of ours. It would otherwise open streams at a hub that is not anonymous.
    assert!(verify(&both, &sign("JWT", &claims(&json!({})))).is_none());
    assert!(verify(&both, &sign("JWT", &json!({}))).is_none());
    let old = sign("JWT", &json!({"mercure": {}}));
    let access = verify(&both, &old).unwrap();
    assert!(access.publish.is_empty() && access.subscribe.is_empty());
    assert!(verify(&verifier(SECRET, Dialect::One), &old).is_none());
    let new = sign("at+jwt", &claims(&json!({})));
    assert!(verify(&verifier(SECRET, Dialect::Zero), &new).is_none());
}

#[test]
fn a_token_of_dialect_0_has_the_claim_mercure() {
    let zero = verifier(SECRET, Dialect::Zero);
    let token = sign(
        "JWT",
        &json!({"mercure": {
            "publish": ["*"],
            "subscribe": ["https://a/{id}", {"match": "/c/:x", "match_type": "urlpattern", "payload": 7}],
            "payload": {"who": "me"},
        }}),
    );
    let access = verify(&zero, &token).unwrap();
    assert!(access.may_publish(&["anything".into()], &hub()));
    assert!(access.may_read("https://a/1", &hub()) && !access.may_read("https://b/1", &hub()));
    let payload = |text: &str| access.payload(&Selector::new(MatcherType::Exact, text), &hub());
    assert_eq!(payload("/c/1"), Some(&json!(7)));
    assert_eq!(payload("x"), Some(&json!({"who": "me"})));
    assert!(verify(&zero, &sign("JWT", &json!({"exp": NOW - 1}))).is_none());
    for bad in [json!([]), json!({"publish": "x"}), json!({"subscribe": [1]})] {
        assert!(verify(&zero, &sign("JWT", &json!({ "mercure": bad }))).is_none());
    }
    let nothing = verify(&zero, &sign("JWT", &json!({"mercure": {"publish": null}}))).unwrap();
    assert!(!nothing.may_publish(&["a".into()], &hub()));
    let named = json!({"https://mercure.rocks/": {"publish": ["a", "b/{c"]}});
    let named = verify(&zero, &sign("JWT", &named)).unwrap();
    assert!(named.may_publish(&["a".into(), "b/{c".into()], &hub()));
}

#[test]
fn a_jwk_set_is_searched_by_algorithm_and_identifier() {
    let [.., ed_dsa] = signatures::signers();
    // The last 32 bytes of test_keys/eddsa.pub.pem.
    let x = "dHYwr3quOGrL_Cy37-yT8bB1FRtPVNVgl_-oa1S1cAY";
    let jwk = json!({"kty": "OKP", "crv": "Ed25519", "alg": "EdDSA", "kid": "new", "x": x});
    let set = json!({"keys": [{"kty": "unknown"}, jwk]}).to_string();
    let verifier = verifier(set.as_bytes(), Dialect::Both);
    let signed = |id: Option<&str>| {
        let mut header = json!({"typ": "at+jwt", "alg": "EdDSA"});
        if let Some(id) = id {
            header["kid"] = id.into();
        }
        encode(&header, &claims(&json!({})), &ed_dsa.sign)
    };
    assert!(verify(&verifier, &signed(Some("new"))).is_some());
    assert!(verify(&verifier, &signed(None)).is_some());
    assert!(verify(&verifier, &signed(Some("old"))).is_none());
    for (text, error) in [
        ("{", KeyError::Json),
        ("{}", KeyError::None),
        (r#"{"keys": 1}"#, KeyError::Json),
        (r#"{"keys": []}"#, KeyError::None),
        ("-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----", KeyError::Pem),
        ("short", KeyError::Short),
        (r#"{"kty": "oct", "k": "c2hvcnQ"}"#, KeyError::None),
    ] {
        assert_eq!(KeySet::parse(text.as_bytes()).unwrap_err(), error, "{text}");
    }
}

#[test]
fn forgeries_are_invalid() {
    let both = verifier(SECRET, Dialect::Both);
    let token = sign("at+jwt", &claims(&json!({})));
    let (unsigned, signature) = token.rsplit_once('.').unwrap();
    let none = "eyJ0eXAiOiJhdCtqd3QiLCJhbGciOiJub25lIn0";
    let body = unsigned.split_once('.').unwrap().1;
    for forged in [
        format!("{unsigned}."),
        format!("{unsigned}.{}", signature.to_lowercase()),
        format!("{none}.{body}."),
        format!("{none}.{body}.{signature}"),
        String::new(),
        "a.b.c".into(),
        "a".repeat(limits::TOKEN_BYTES + 1),
    ] {
        assert!(verify(&both, &forged).is_none());
    }
}

#[test]
fn a_token_with_an_extension_that_must_be_understood_is_invalid() {
    let both = verifier(SECRET, Dialect::Both);
    let signed = |more: Value| {
        let mut header = json!({"typ": "at+jwt", "alg": "HS256", "b64": true});
        header.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        encode(&header, &claims(&json!({})), |message| hs256(SECRET, message))
    };
    assert!(verify(&both, &signed(json!({}))).is_some());
    for critical in [json!(["b64"]), json!(["exp"]), json!([]), json!("b64"), json!(null)] {
        assert!(verify(&both, &signed(json!({"crit": critical}))).is_none(), "{critical}");
    }
}

proptest! {
    #[test]
    fn garbage_is_invalid_and_never_panics(text in "\\PC{0,80}(\\.\\PC{0,40}){0,3}") {
        prop_assert!(verify(&verifier(SECRET, Dialect::Both), &text).is_none());
    }

    #[test]
    fn any_claims_are_handled(value in "[\\[\\]{}\",:0-9a-z ]{0,40}") {
        if let Ok(details) = serde_json::from_str::<Value>(&value) {
            let _ = is_valid(&json!({"authorization_details": details}));
        }
    }
}
