//! Each algorithm verifies what its key's owner signed, and nothing else.

use super::*;
use base64::engine::general_purpose::STANDARD;
use jsonwebtoken::Algorithm;
use ring::{
    rand::SystemRandom,
    signature::{
        ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, RSA_PKCS1_SHA256, RsaKeyPair,
    },
};

/// All algorithms that keys can be for.
const ALGORITHMS: [&str; 4] = ["HS256", "RS256", "ES256", "EdDSA"];
/// RFC 7515, appendix A: the claims of all examples.
const CLAIMS: &str = "eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ";

/// Makes a signature.
type Sign = Box<dyn Fn(&[u8]) -> Vec<u8>>;

pub(super) struct Signer {
    algorithm: &'static str,
    /// What the hub is configured with.
    key: &'static [u8],
    pub(super) sign: Sign,
}

/// The content of a PEM text.
fn der(pem: &str) -> Vec<u8> {
    let lines = pem.lines().filter(|line| !line.starts_with('-'));
    STANDARD.decode(lines.collect::<String>()).unwrap()
}

/// One for each algorithm.
pub(super) fn signers() -> [Signer; 4] {
    let rsa = RsaKeyPair::from_pkcs8(&der(include_str!("../test_keys/rs256.pem"))).unwrap();
    let ec = der(include_str!("../test_keys/es256.pem"));
    let random = SystemRandom::new();
    let ec = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &ec, &random).unwrap();
    let ed = der(include_str!("../test_keys/eddsa.pem"));
    let ed = Ed25519KeyPair::from_pkcs8_maybe_unchecked(&ed).unwrap();
    let rs256 = move |message: &[u8]| {
        let mut signature = vec![0; rsa.public().modulus_len()];
        rsa.sign(&RSA_PKCS1_SHA256, &SystemRandom::new(), message, &mut signature).unwrap();
        signature
    };
    let es256 = move |message: &[u8]| ec.sign(&random, message).unwrap().as_ref().to_vec();
    let ed_dsa = move |message: &[u8]| ed.sign(message).as_ref().to_vec();
    let [hs_key, rs_key, es_key, ed_key] = [
        SECRET,
        include_bytes!("../test_keys/rs256.pub.pem"),
        include_bytes!("../test_keys/es256.pub.pem"),
        include_bytes!("../test_keys/eddsa.pub.pem"),
    ];
    let signer = |algorithm, key, sign| Signer { algorithm, key, sign };
    [
        signer("HS256", hs_key, Box::new(|message| hs256(SECRET, message))),
        signer("RS256", rs_key, Box::new(rs256)),
        signer("ES256", es_key, Box::new(es256)),
        signer("EdDSA", ed_key, Box::new(ed_dsa)),
    ]
}

fn token(algorithm: &str, sign: impl Fn(&[u8]) -> Vec<u8>) -> String {
    encode(&json!({"typ": "at+jwt", "alg": algorithm}), &claims(&json!({})), sign)
}

fn accepts(key: &[u8], token: &str) -> bool {
    verify(&verifier(key, Dialect::Both), token).is_some()
}

#[test]
fn every_algorithm_verifies_its_own_signatures_only() {
    let signers = signers();
    assert_eq!(signers.each_ref().map(|signer| signer.algorithm), ALGORITHMS);
    for signer in &signers {
        let token = token(signer.algorithm, &signer.sign);
        for other in &signers {
            let same = signer.algorithm == other.algorithm;
            let (name, key) = (signer.algorithm, other.algorithm);
            assert_eq!(accepts(other.key, &token), same, "{name} with a key for {key}");
        }
    }
}

#[test]
fn a_key_is_for_one_algorithm_whatever_the_token_says() {
    let names = ["HS384", "HS512", "RS384", "RS512", "PS256", "PS384", "PS512", "ES384", "none"];
    for signer in &signers() {
        for name in ALGORITHMS.iter().chain(&names).filter(|name| **name != signer.algorithm) {
            let token = token(name, &signer.sign);
            assert!(!accepts(signer.key, &token), "{} as {name}", signer.algorithm);
        }
    }
}

#[test]
fn a_public_key_is_no_secret() {
    for signer in &signers()[1..] {
        let text = std::str::from_utf8(signer.key).unwrap();
        let content = der(text);
        // What the structure of X.509 has in front differs in length: the bare key begins somewhere.
        let keys = (0..content.len()).map(|from| &content[from..]);
        for secret in keys.chain([text.as_bytes(), text.trim().as_bytes()]) {
            for name in ["HS256", signer.algorithm] {
                let forged = token(name, |message| hs256(secret, message));
                assert!(!accepts(signer.key, &forged), "{} as {name}", signer.algorithm);
            }
        }
    }
}

/// Regression: a public key behind a comment or a byte order mark was taken for the secret of HS256. Every reader of
/// the public key could then sign tokens.
#[test]
fn text_before_a_public_key_makes_it_no_secret() {
    for signer in &signers()[1..] {
        for before in ["# of login.example\n", "\u{feff}", "Bag Attributes\n    friendlyName: x\n"]
        {
            let text = [before.as_bytes(), signer.key].concat();
            assert!(accepts(&text, &token(signer.algorithm, &signer.sign)), "{before:?}");
            let forged = token("HS256", |message| hs256(text.trim_ascii_end(), message));
            assert!(!accepts(&text, &forged), "{before:?}");
        }
        let der = der(std::str::from_utf8(signer.key).unwrap());
        assert_eq!(KeySet::parse(&der).unwrap_err(), KeyError::Public, "{}", signer.algorithm);
    }
    let jwk = r#"{"kty":"EC","crv":"P-256","x":"0","y":"0","use":"sig"}"#;
    for public in [
        "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA me\n",
        &format!("[{jwk}]\n"),
    ] {
        assert_eq!(KeySet::parse(public.as_bytes()).unwrap_err(), KeyError::Public, "{public}");
    }
    assert_eq!(KeySet::parse(format!("\u{feff}{jwk}").as_bytes()).unwrap_err(), KeyError::None);
    // The same file as `--hub-jwks`.
    assert_eq!(
        KeySet::parse_jwks(format!("\u{feff}{jwk}").as_bytes()).unwrap_err(),
        KeyError::None
    );
    // A secret may begin like DER.
    let secret = [&[0x30, 0x1d][..], SECRET].concat();
    assert!(accepts(&secret, &token("HS256", |message| hs256(&secret, message))));
}

#[test]
fn nothing_can_be_changed_after_the_signature() {
    for signer in &signers() {
        let token = token(signer.algorithm, &signer.sign);
        let parts: Vec<_> = token.split('.').collect();
        let (key, name) = (signer.key, signer.algorithm);
        let with = |at: usize, part: &[u8]| {
            let part = base64url(part);
            let mut parts = parts.clone();
            parts[at] = &part;
            parts.join(".")
        };
        assert!(accepts(key, &token), "{name}");
        for (at, part) in parts.iter().enumerate() {
            let bytes = URL_SAFE_NO_PAD.decode(part).unwrap();
            assert_eq!(with(at, &bytes), token);
            for index in 0..bytes.len() {
                let mut changed = bytes.clone();
                changed[index] ^= 1;
                assert!(!accepts(key, &with(at, &changed)), "{name}: byte {index} of part {at}");
            }
        }
        let signature = URL_SAFE_NO_PAD.decode(parts[2]).unwrap();
        for changed in [
            &[][..],
            &signature[1..],
            &signature[..signature.len() - 1],
            &[&signature[..], &[0]].concat(),
            &[&[0], &signature[..]].concat(),
            &vec![0; signature.len()],
            &vec![0xff; signature.len()],
        ] {
            assert!(!accepts(key, &with(2, changed)), "{name}: {changed:x?}");
        }
        // Padding, another alphabet, and further parts.
        for changed in [format!("{token}="), format!("{token}.a"), format!("a.{token}")] {
            assert!(!accepts(key, &changed), "{name}: {changed}");
        }
    }
}

/// The claims of a token of the RFC, whose times are long past.
fn verified(jwk: &Value, token: &str, algorithm: Algorithm) -> Option<Map<String, Value>> {
    KeySet::parse(jwk.to_string().as_bytes()).unwrap().verify(token, algorithm, None)
}

/// RFC 7515, appendices A.1 to A.3.
#[test]
fn the_examples_of_rfc_7515() {
    let n = "ofgWCuLjybRlzo0tZWJjNiuSfb4p4fAkd_wWJcyQoTbji9k0l8W26mPddxHmfHQp-Vaw-4qPCJrcS2mJPMEzP1Pt\
             0Bm4d4QlL-yRT-SFd2lZS-pCgNMsD1W_YpRPEwOWvG6b32690r2jZ47soMZo9wGzjb_7OMg0LOL-bSf63kpaSHSX\
             ndS5z5rexMdbBYUsLA9e-KXBdQOS-UTo7WTBEMa2R2CapHg665xsmtdVMTBQY4uDZlxvb3qCo5ZwKh9kG4LT6_I5\
             IhlJH7aGhyxXFvUK-DWNmoudF8NAco9_h9iaGNj8q2ethFkMLs91kzk2PAcDTW9gb54h4FRWyuXpoQ";
    let rs256 = "cC4hiUPoj9Eetdgtv3hF80EGrhuB__dzERat0XF9g2VtQgr9PJbu3XOiZj5RZmh7AAuHIm4Bh-0Qc_lF5YKt\
                 _O8W2Fp5jujGbds9uJdbF9CUAr7t1dnZcAcQjbKBYNX4BAynRFdiuB--f_nZLgrnbyTyWzO75vRK5h6xBArL\
                 IARNPvkSjtQBMHlb1L07Qe7K0GarZRmB_eSN9383LcOLn6_dO--xi12jzDwusC-eOkHWEsqtFZESc6BfI7no\
                 OPqvhJ1phCnvWh6IeYI2w9QOYEUipUTI8np6LbgGY9Fs98rqVt5AXLIhWkWywlVmtVrBp0igcN_IoypGlUPQ\
                 Ge77Rw";
    for (algorithm, jwk, header, signature) in [
        (
            Algorithm::HS256,
            json!({
                "kty": "oct",
                "k": "AyM1SysPpbyDfgZld3umj1qzKObwVMkoqQ-EstJQLr_T-1qS0gZH75aKtMN3Yj0iPS4hcgUuTwjAzZr1Z9CAow",
            }),
            "eyJ0eXAiOiJKV1QiLA0KICJhbGciOiJIUzI1NiJ9",
            "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk",
        ),
        (
            Algorithm::RS256,
            json!({"kty": "RSA", "n": n, "e": "AQAB"}),
            "eyJhbGciOiJSUzI1NiJ9",
            rs256,
        ),
        (
            Algorithm::ES256,
            json!({
                "kty": "EC",
                "crv": "P-256",
                "x": "f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU",
                "y": "x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0",
            }),
            "eyJhbGciOiJFUzI1NiJ9",
            "DtEhU3ljbEg8L38VWAfUAqOyKAM6-Xx-F4GawxaepmXFCgfTjDxw5djxLa8ISlSApmWQxfKTUJqPP3-Kg6NU1Q",
        ),
    ] {
        let token = format!("{header}.{CLAIMS}.{signature}");
        let claims = verified(&jwk, &token, algorithm).expect(header);
        assert_eq!((&claims["iss"], &claims["exp"]), (&json!("joe"), &json!(1_300_819_380)));
        // The same signature on no claims, and no signature.
        for forged in [format!("{header}.e30.{signature}"), format!("{header}.{CLAIMS}.")] {
            assert!(verified(&jwk, &forged, algorithm).is_none(), "{forged}");
        }
    }
    // RFC 7518 §6.3.1.1: some libraries write a zero in front.
    let zeros = [&[0][..], &URL_SAFE_NO_PAD.decode(n).unwrap()].concat();
    let jwk = json!({"kty": "RSA", "n": base64url(zeros), "e": "AAEAAQ"});
    let token = format!("eyJhbGciOiJSUzI1NiJ9.{CLAIMS}.{rs256}");
    assert!(verified(&jwk, &token, Algorithm::RS256).is_some());
}

/// RFC 8037, appendix A.4. Its payload is a sentence, and so no claims.
#[test]
fn the_example_of_rfc_8037() {
    use super::super::signature::VerifyingKey;
    let key = jsonwebtoken::DecodingKey::from_ed_components(
        "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo",
    );
    let key = VerifyingKey::new(&key.unwrap()).unwrap().unwrap();
    let message = b"eyJhbGciOiJFZERTQSJ9.RXhhbXBsZSBvZiBFZDI1NTE5IHNpZ25pbmc";
    let signature = URL_SAFE_NO_PAD.decode(
        "hgyY0il_MGCjP0JzlnLWG1PPOt7-09PGcvMg3AIbQR6dWbhijcNR4ki4iylGjg5BhVsPt9g7sVvpAr_MuM0KAg",
    );
    assert!(key.verify(message, &signature.unwrap()));
}

#[test]
fn a_key_with_which_nothing_can_be_verified_is_refused() {
    let rsa = |bytes: usize, more: &str| {
        let n = base64url(vec![0xff; bytes]);
        format!(r#"{{"kty":"RSA","n":"{n}","e":"AQAB"{more}}}"#)
    };
    let set = |keys: &[String]| format!(r#"{{"keys":[{}]}}"#, keys.join(","));
    let secret = format!(r#"{{"kty":"oct","k":"{}"}}"#, base64url(SECRET));
    let p256 = |x: usize| {
        let (x, y) = (base64url(vec![1; x]), base64url([1; 32]));
        format!(r#"{{"kty":"EC","crv":"P-256","x":"{x}","y":"{y}"}}"#)
    };
    let ed25519 = format!(r#"{{"kty":"OKP","crv":"Ed25519","x":"{}"}}"#, base64url([1; 31]));
    let even = rsa(256, "").replace("_w\"", "_g\"");
    let exponent = rsa(256, "").replace("AQAB", "AQ");
    let bits = KeyError::RsaBits;
    for (text, error) in [
        (include_str!("../test_keys/rsa-1024.pub.pem"), bits(1024)),
        (include_str!("../test_keys/rsa-1024-pkcs1.pub.pem"), bits(1024)),
        (&rsa(128, ""), bits(1024)),
        (&rsa(0, ""), bits(0)),
        (&rsa(1025, ""), bits(8200)),
        (&set(&[rsa(128, ""), rsa(256, r#","use":"enc""#)]), bits(1024)),
        (&even, KeyError::None),
        (&exponent, KeyError::None),
        (&p256(32), KeyError::None),
        (include_str!("../test_keys/es256-compressed.pub.pem"), KeyError::Compressed),
        (include_str!("../test_keys/es384.pub.pem"), KeyError::Pem),
        (include_str!("../test_keys/rs256.pem"), KeyError::Pem),
        (include_str!("../test_keys/es256.pem"), KeyError::Pem),
        (include_str!("../test_keys/eddsa.pem"), KeyError::Pem),
        (&p256(31), KeyError::None),
        (&ed25519, KeyError::None),
    ] {
        assert_eq!(KeySet::parse(text.as_bytes()).unwrap_err(), error, "{text}");
    }
    // Beside a key that can be used, such keys are ignored.
    let other = set(&[rsa(128, ""), secret, p256(32), rsa(128, r#","alg":"RSA-OAEP""#)]);
    assert_eq!(KeySet::parse(other.as_bytes()).unwrap().len(), 1);
    let text = bits(1024).to_string();
    assert!(text.contains("1024 bits") && text.contains("2048"), "{text}");
}
