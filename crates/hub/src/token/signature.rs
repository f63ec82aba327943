//! The signatures of tokens (RFC 7515), verified with ring, as those of TLS are.
//!
//! jsonwebtoken could verify them as well, through a provider that is installed once for the whole process. This crate
//! is part of other programs, which may need a provider of their own; so it installs none, and uses jsonwebtoken only to
//! read keys and headers.

use super::keys::KeyError;
use jsonwebtoken::{Algorithm, AlgorithmFamily, DecodingKey, DecodingKeyKind};
use ring::{
    agreement::{self, ECDH_P256, EphemeralPrivateKey},
    hmac,
    rand::SystemRandom,
    signature::{
        ECDSA_P256_SHA256_FIXED, ED25519, RSA_PKCS1_2048_8192_SHA256, RsaPublicKeyComponents,
        UnparsedPublicKey,
    },
};
use simple_asn1::ASN1Block;
use std::ops::RangeInclusive;
use zeroize::Zeroizing;

/// The lengths of RSA moduli that are accepted, in bits. RFC 7518 §3.3 forbids shorter ones; ring rejects longer ones.
const RSA_BITS: RangeInclusive<usize> = 2048..=8192;
/// The length of a point of P-256 (SEC 1 §2.3.3): 4, x and y; or 2 or 3, and x.
const POINT_BYTES: usize = 65;
const COMPRESSED_POINT_BYTES: usize = 33;
/// The length of an Ed25519 key (RFC 8032 §5.1.5).
const ED25519_BYTES: usize = 32;

/// A key, which is for one algorithm. A public key can therefore never be taken for the secret of HS256.
#[derive(Clone)]
pub(super) enum VerifyingKey {
    Hs256(Zeroizing<Vec<u8>>),
    /// The modulus and the exponent, without leading zeros.
    Rs256(RsaPublicKeyComponents<Vec<u8>>),
    /// An uncompressed point.
    Es256(UnparsedPublicKey<Vec<u8>>),
    EdDsa(UnparsedPublicKey<Vec<u8>>),
}

impl VerifyingKey {
    /// The key in the form that ring takes; `None` if it is malformed, of another curve, or has an RSA exponent that ring
    /// does not accept.
    ///
    /// # Errors
    /// An RSA modulus has a length that ring does not accept.
    pub(super) fn new(key: &DecodingKey) -> Result<Option<Self>, KeyError> {
        if key.family() == AlgorithmFamily::Rsa {
            return Self::rsa(key);
        }
        let Ok(bytes) = key.try_get_as_bytes() else { return Ok(None) };
        Ok(match (key.family(), bytes) {
            (AlgorithmFamily::Hmac, secret) => Some(Self::Hs256(secret.to_vec().into())),
            (AlgorithmFamily::Ec, [4, ..]) if bytes.len() == POINT_BYTES && is_on_p256(bytes) => {
                Some(Self::Es256(UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, bytes.to_vec())))
            }
            (AlgorithmFamily::Ec, [2 | 3, ..]) if bytes.len() == COMPRESSED_POINT_BYTES => {
                return Err(KeyError::Compressed);
            }
            (AlgorithmFamily::Ed, _) if bytes.len() == ED25519_BYTES => {
                Some(Self::EdDsa(UnparsedPublicKey::new(&ED25519, bytes.to_vec())))
            }
            _ => None,
        })
    }

    fn rsa(key: &DecodingKey) -> Result<Option<Self>, KeyError> {
        let Some(components) = rsa_components(key) else { return Ok(None) };
        let unused = components.n.first().map_or(0, |first| first.leading_zeros() as usize);
        let bits = components.n.len() * 8 - unused;
        if !RSA_BITS.contains(&bits) {
            return Err(KeyError::RsaBits(bits));
        }
        if !is_odd(&components.n) || !is_rsa_exponent(&components.e) {
            return Ok(None);
        }
        Ok(Some(Self::Rs256(components)))
    }

    /// The only algorithm whose signatures it verifies.
    pub(super) fn algorithm(&self) -> Algorithm {
        match self {
            Self::Hs256(_) => Algorithm::HS256,
            Self::Rs256(_) => Algorithm::RS256,
            Self::Es256(_) => Algorithm::ES256,
            Self::EdDsa(_) => Algorithm::EdDSA,
        }
    }

    /// Whether this key's owner signed `message`, the token up to its last dot. The MAC of HS256 is compared in
    /// constant time.
    pub(super) fn verify(&self, message: &[u8], signature: &[u8]) -> bool {
        match self {
            Self::Hs256(secret) => {
                hmac::verify(&hmac::Key::new(hmac::HMAC_SHA256, secret), message, signature)
            }
            Self::Rs256(key) => key.verify(&RSA_PKCS1_2048_8192_SHA256, message, signature),
            Self::Es256(key) | Self::EdDsa(key) => key.verify(message, signature),
        }
        .is_ok()
    }
}

/// Whether an uncompressed point is on P-256. Points of other curves with keys of the same length (secp256k1, Brainpool)
/// are not: ring would reject each signature, and the operator would look for the fault in the tokens.
fn is_on_p256(point: &[u8]) -> bool {
    let private = EphemeralPrivateKey::generate(&ECDH_P256, &SystemRandom::new());
    let public = agreement::UnparsedPublicKey::new(&ECDH_P256, point);
    private.is_ok_and(|private| agreement::agree_ephemeral(private, &public, |_| ()).is_ok())
}

fn is_odd(number: &[u8]) -> bool {
    number.last().is_some_and(|byte| byte % 2 == 1)
}

/// Whether ring accepts an exponent: an odd number from 3 to 2^33 - 1.
fn is_rsa_exponent(number: &[u8]) -> bool {
    // Five bytes hold 2^33 - 1, and the sum of so many cannot overflow.
    let is_short = number.len() <= 5;
    let value = || number.iter().fold(0_u64, |value, byte| value << 8 | u64::from(*byte));
    is_short && is_odd(number) && (3..1 << 33).contains(&value())
}

/// The modulus and the exponent of a JWK, or of a PEM text, whose content (RFC 8017 §A.1.1) jsonwebtoken leaves encoded.
fn rsa_components(key: &DecodingKey) -> Option<RsaPublicKeyComponents<Vec<u8>>> {
    let (n, e) = match key.kind() {
        DecodingKeyKind::RsaModulusExponent { n, e } => (n.clone(), e.clone()),
        DecodingKeyKind::SecretOrDer(der) => {
            let blocks = simple_asn1::from_der(der).ok()?;
            let [ASN1Block::Sequence(_, parts)] = blocks.as_slice() else { return None };
            let [ASN1Block::Integer(_, n), ASN1Block::Integer(_, e)] = parts.as_slice() else {
                return None;
            };
            (n.to_biguint()?.to_bytes_be(), e.to_biguint()?.to_bytes_be())
        }
    };
    // Some libraries write a zero before the modulus of a JWK (RFC 7518 §6.3.1.1). ring rejects it.
    let without_zeros = |bytes: Vec<u8>| bytes.into_iter().skip_while(|byte| *byte == 0).collect();
    Some(RsaPublicKeyComponents { n: without_zeros(n), e: without_zeros(e) })
}
