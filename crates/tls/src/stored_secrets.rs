//! The stored form of a session's secrets.

use crate::{
    Suite,
    keys::{SECRET_MAX, Secret},
};
use zeroize::Zeroize;

/// The bytes of a secret that every session stores: all of a suite with SHA-256.
const COMMON_LEN: usize = 32;

/// The direction of the records that a secret protects.
#[derive(Clone, Copy)]
pub(crate) enum Flow {
    Receive,
    Send,
}

/// The secrets of both directions. Zeroed when dropped; zeros are valid, and mean none.
///
/// Nearly all connections use a suite whose secrets have 32 bytes, because the server prefers these
/// suites and every client must support one (RFC 8446 §9.1). Only the other connections store the
/// remaining bytes, in a box. Without this division each session would store 24 bytes more. The box is
/// on the heap, so core dumps may contain it. It contains 16 of the 48 bytes of a SHA-384 secret, so
/// 256 bits stay unknown; with TLS 1.2 it contains the IV, which is not secret.
pub(crate) struct StoredSecrets {
    common: [[u8; COMMON_LEN]; 2],
    rest: Option<Box<Rest>>,
}

#[derive(Default)]
struct Rest([[u8; SECRET_MAX - COMMON_LEN]; 2]);

impl StoredSecrets {
    pub(crate) fn none() -> Self {
        Self { common: [[0; COMMON_LEN]; 2], rest: None }
    }

    /// A copy of the secret of one direction.
    pub(crate) fn get(&self, flow: Flow) -> Secret {
        let mut secret = Secret([0; SECRET_MAX]);
        let (common, rest) = secret.0.split_at_mut(COMMON_LEN);
        common.copy_from_slice(&self.common[flow as usize]);
        if let Some(stored) = &self.rest {
            rest.copy_from_slice(&stored.0[flow as usize]);
        }
        secret
    }

    /// Replaces the secret of one direction. It allocates only for the first secret of more than 32 bytes.
    pub(crate) fn set(&mut self, flow: Flow, suite: Suite, secret: &Secret) {
        let (common, rest) = secret.0.split_at(COMMON_LEN);
        self.common[flow as usize].copy_from_slice(common);
        if suite.secret_len() > COMMON_LEN {
            self.rest.get_or_insert_default().0[flow as usize].copy_from_slice(rest);
        }
    }
}

impl Drop for StoredSecrets {
    fn drop(&mut self) {
        self.common.zeroize();
    }
}

impl Drop for Rest {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_direction_has_its_own_secret() {
        for suite in [Suite::Tls13Aes128Gcm, Suite::Tls13Aes256Gcm, Suite::Tls12ChaCha20] {
            let secret = |byte| Secret::new(&vec![byte; suite.secret_len()]);
            let mut stored = StoredSecrets::none();
            stored.set(Flow::Receive, suite, &secret(1));
            stored.set(Flow::Send, suite, &secret(2));
            assert_eq!(stored.get(Flow::Receive).0, secret(1).0);
            assert_eq!(stored.get(Flow::Send).0, secret(2).0);
            stored.set(Flow::Receive, suite, &secret(3));
            assert_eq!(stored.get(Flow::Receive).0, secret(3).0);
            assert_eq!(stored.get(Flow::Send).0, secret(2).0);
            assert_eq!(stored.rest.is_some(), suite.secret_len() > COMMON_LEN);
        }
    }
}
