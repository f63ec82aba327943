//! Keys ready for use, derived from the secrets of a [`Session`](crate::Session).

#[cfg(test)]
mod vectors;

use crate::Suite;
use ring::{
    aead::{self, LessSafeKey, Nonce, UnboundKey},
    hkdf::{self, KeyType, Prk},
};
use zeroize::Zeroize;

/// The longest secret: that of a suite with SHA-384.
pub(crate) const SECRET_MAX: usize = 48;
/// The longest key of an AEAD.
pub(crate) const KEY_MAX: usize = 32;

/// A secret of one direction; the suite determines how many of its bytes are used. Zeroed when dropped.
pub(crate) struct Secret(pub(crate) [u8; SECRET_MAX]);

impl Secret {
    pub(crate) fn new(bytes: &[u8]) -> Self {
        let mut secret = [0; SECRET_MAX];
        secret[..bytes.len()].copy_from_slice(bytes);
        Self(secret)
    }

    /// Replaces a traffic secret by the next one (RFC 8446 §7.2).
    pub(crate) fn update(&mut self, suite: Suite) {
        let len = suite.secret_len();
        let prk = Prk::new_less_safe(suite.hkdf(), &self.0[..len]);
        let mut next = [0; SECRET_MAX];
        expand_label(&prk, b"tls13 traffic upd", &mut next[..len]);
        self.0.copy_from_slice(&next);
        next.zeroize();
    }
}

impl Drop for Secret {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

/// The expanded keys of both directions of a connection: about 1.1 KB. Only busy connections have them.
pub struct Keys {
    pub(crate) receive: DirectionKeys,
    pub(crate) send: DirectionKeys,
}

impl Keys {
    /// Keys of no connection, with which those of a closed connection are overwritten.
    pub(crate) fn blank(suite: Suite) -> Self {
        Self { receive: DirectionKeys::blank(suite), send: DirectionKeys::blank(suite) }
    }
}

/// The key and IV of one direction.
pub(crate) struct DirectionKeys {
    pub(crate) aead: LessSafeKey,
    iv: [u8; aead::NONCE_LEN],
    /// No sequence number below this is used again.
    next_sequence: u64,
}

impl DirectionKeys {
    /// Keys of no connection: sealing a record with them panics.
    pub(crate) fn blank(suite: Suite) -> Self {
        let key = UnboundKey::new(suite.aead(), &[0; KEY_MAX][..suite.aead().key_len()]);
        let key = key.expect("the suite's own key length");
        Self { aead: LessSafeKey::new(key), iv: [0; aead::NONCE_LEN], next_sequence: u64::MAX }
    }

    pub(crate) fn derive(suite: Suite, secret: &Secret, sequence: u64) -> Self {
        let (mut bytes, mut iv) = ([0; KEY_MAX], [0; aead::NONCE_LEN]);
        let key = &mut bytes[..suite.aead().key_len()];
        raw_key_and_iv(suite, secret, key, &mut iv);
        let key = UnboundKey::new(suite.aead(), key).expect("the suite's own key length");
        bytes.zeroize();
        Self { aead: LessSafeKey::new(key), iv, next_sequence: sequence }
    }

    /// The nonce of a record: the IV, with the sequence number added in (RFC 8446 §5.3).
    pub(crate) fn nonce(&self, sequence: u64) -> [u8; aead::NONCE_LEN] {
        let mut nonce = self.iv;
        for (byte, of_sequence) in nonce[4..].iter_mut().zip(sequence.to_be_bytes()) {
            *byte ^= of_sequence;
        }
        nonce
    }

    /// The nonce for sealing a record.
    ///
    /// # Panics
    /// If a sequence number is used a second time: two records under one nonce reveal both, and let
    /// anyone forge more. Checked in release builds.
    pub(crate) fn nonce_for_sealing(&mut self, sequence: u64) -> [u8; aead::NONCE_LEN] {
        assert!(sequence >= self.next_sequence, "a TLS nonce would be used twice");
        self.next_sequence = sequence + 1;
        self.nonce(sequence)
    }

    /// As [`DirectionKeys::nonce`], but with the half that a TLS 1.2 record carries (RFC 5288 §3).
    pub(crate) fn nonce_with_explicit(&self, explicit: &[u8]) -> [u8; aead::NONCE_LEN] {
        let mut nonce = self.iv;
        nonce[4..].copy_from_slice(explicit);
        nonce
    }
}

impl Drop for DirectionKeys {
    fn drop(&mut self) {
        // ring cannot zero the key; `KeyCache::forget` overwrites it with another.
        self.iv.zeroize();
    }
}

pub(crate) fn nonce(bytes: [u8; aead::NONCE_LEN]) -> Nonce {
    Nonce::assume_unique_for_key(bytes)
}

/// The key and IV of a secret as bytes. Zero them after use.
pub(crate) fn raw_key_and_iv(
    suite: Suite,
    secret: &Secret,
    key: &mut [u8],
    iv: &mut [u8; aead::NONCE_LEN],
) {
    let secret = &secret.0[..suite.secret_len()];
    if suite.is_tls13() {
        let prk = Prk::new_less_safe(suite.hkdf(), secret);
        expand_label(&prk, b"tls13 key", key);
        expand_label(&prk, b"tls13 iv", iv);
    } else {
        let (written_key, written_iv) = secret.split_at(secret.len() - aead::NONCE_LEN);
        key.copy_from_slice(written_key);
        iv.copy_from_slice(written_iv);
    }
}

/// HKDF-Expand-Label with an empty context (RFC 8446 §7.1). `label` already contains "tls13 ".
fn expand_label(prk: &Prk, label: &[u8], out: &mut [u8]) {
    struct Length(usize);
    impl KeyType for Length {
        fn len(&self) -> usize {
            self.0
        }
    }
    let len = out.len();
    let info: [&[u8]; 4] = [&[0, len as u8], &[label.len() as u8], label, &[0]];
    let okm: Result<hkdf::Okm<'_, Length>, _> = prk.expand(&info, Length(len));
    okm.and_then(|okm| okm.fill(out)).expect("an output is shorter than 255 hashes");
}
