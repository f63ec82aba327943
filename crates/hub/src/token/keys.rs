//! The keys that signatures are verified with.

use crate::limits;
use jsonwebtoken::{
    Algorithm, DecodingKey, Validation,
    jwk::{AlgorithmParameters, EllipticCurve, Jwk, JwkSet, KeyAlgorithm, PublicKeyUse},
};
use serde_json::{Map, Value};
use std::fmt;

/// The fewest bytes of a secret (RFC 7518 §3.2: as many as the hash has).
const SECRET_BYTES: usize = 32;

/// Why a text is no key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// A secret is too short to resist a search.
    #[error("the secret is shorter than {SECRET_BYTES} bytes: use a longer one")]
    Short,
    /// A PEM text that is none of the kinds of key.
    #[error("the PEM text is no RSA, P-256 or Ed25519 public key")]
    Pem,
    /// A JSON text that is no JWK set.
    #[error("the JSON text is no JWK or JWK set (RFC 7517)")]
    Json,
    /// A JWK set in which no key can verify a signature.
    #[error("the JWK set has no key for HS256, RS256, ES256 or EdDSA")]
    None,
    /// A JWK set with too many keys.
    #[error("the JWK set has more than {} keys", limits::KEYS)]
    TooMany,
}

/// One or several keys. Each is for one algorithm, so that a public key can never be taken for
/// the secret of another algorithm.
#[derive(Clone)]
pub struct KeySet(Vec<Key>);

#[derive(Clone)]
struct Key {
    id: Option<String>,
    algorithm: Algorithm,
    key: DecodingKey,
}

impl fmt::Debug for KeySet {
    /// Shows the algorithms, never a key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|key| key.algorithm)).finish()
    }
}

impl KeySet {
    /// Parses keys: a JWK or a JWK set (JSON), a public key (PEM), or else a secret for HS256.
    /// White space at the end is no part of a secret: editors add it.
    ///
    /// # Errors
    /// The text is none of them, or a secret of fewer than 32 bytes.
    pub fn parse(text: &[u8]) -> Result<Self, KeyError> {
        let trimmed = text.trim_ascii();
        if trimmed.starts_with(b"{") {
            return Self::from_json(trimmed);
        }
        if trimmed.starts_with(b"-----BEGIN ") {
            return Self::from_pem(trimmed);
        }
        let secret = text.trim_ascii_end();
        if secret.len() < SECRET_BYTES {
            return Err(KeyError::Short);
        }
        Ok(Self::one(Algorithm::HS256, DecodingKey::from_secret(secret)))
    }

    /// Parses a JWK or a JWK set, and nothing else.
    ///
    /// # Errors
    /// The text is none, or has no key that can verify a signature.
    pub fn parse_jwks(text: &[u8]) -> Result<Self, KeyError> {
        Self::from_json(text.trim_ascii())
    }

    /// No key: every token is invalid.
    #[must_use]
    pub fn empty() -> Self {
        Self(Vec::new())
    }

    /// How many keys there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn one(algorithm: Algorithm, key: DecodingKey) -> Self {
        Self(vec![Key { id: None, algorithm, key }])
    }

    fn from_pem(pem: &[u8]) -> Result<Self, KeyError> {
        DecodingKey::from_rsa_pem(pem)
            .map(|key| Self::one(Algorithm::RS256, key))
            .or_else(|_| DecodingKey::from_ec_pem(pem).map(|key| Self::one(Algorithm::ES256, key)))
            .or_else(|_| DecodingKey::from_ed_pem(pem).map(|key| Self::one(Algorithm::EdDSA, key)))
            .map_err(|_| KeyError::Pem)
    }

    fn from_json(json: &[u8]) -> Result<Self, KeyError> {
        let value: Value = serde_json::from_slice(json).map_err(|_| KeyError::Json)?;
        let keys = match value.get("keys") {
            Some(Value::Array(keys)) => keys.clone(),
            Some(_) => return Err(KeyError::Json),
            None => vec![value],
        };
        if keys.len() > limits::KEYS {
            return Err(KeyError::TooMany);
        }
        // RFC 7517 §5: keys of a kind that is not understood are ignored.
        let keys = keys.into_iter().filter_map(|key| serde_json::from_value::<Jwk>(key).ok());
        let set = JwkSet { keys: keys.collect() };
        let keys: Vec<_> = set.keys.iter().filter_map(Key::from_jwk).collect();
        if keys.is_empty() { Err(KeyError::None) } else { Ok(Self(keys)) }
    }

    /// Verifies a signature and returns the claims. Keys are tried that are for the algorithm and,
    /// if both the token and the key name one, have the same identifier.
    pub(super) fn verify(
        &self,
        token: &str,
        algorithm: Algorithm,
        id: Option<&str>,
    ) -> Option<Map<String, Value>> {
        // Times and parties are checked by the caller, on its own clock.
        let mut validation = Validation::new(algorithm);
        validation.required_spec_claims.clear();
        validation.validate_exp = false;
        validation.validate_nbf = false;
        validation.validate_aud = false;
        let fits = |key: &&Key| {
            key.algorithm == algorithm
                && (id.is_none() || key.id.is_none() || key.id.as_deref() == id)
        };
        self.0.iter().filter(fits).find_map(|key| {
            jsonwebtoken::decode::<Map<String, Value>>(token, &key.key, &validation)
                .ok()
                .map(|data| data.claims)
        })
    }
}

impl Key {
    fn from_jwk(jwk: &Jwk) -> Option<Self> {
        let algorithm = match &jwk.algorithm {
            AlgorithmParameters::OctetKey(_) => Algorithm::HS256,
            AlgorithmParameters::RSA(_) => Algorithm::RS256,
            AlgorithmParameters::EllipticCurve(key) if key.curve == EllipticCurve::P256 => {
                Algorithm::ES256
            }
            AlgorithmParameters::OctetKeyPair(_) => Algorithm::EdDSA,
            _ => return None,
        };
        let declared = match jwk.common.key_algorithm {
            None => algorithm,
            Some(KeyAlgorithm::HS256) => Algorithm::HS256,
            Some(KeyAlgorithm::RS256) => Algorithm::RS256,
            Some(KeyAlgorithm::ES256) => Algorithm::ES256,
            Some(KeyAlgorithm::EdDSA) => Algorithm::EdDSA,
            Some(_) => return None,
        };
        let signs = !matches!(jwk.common.public_key_use, Some(PublicKeyUse::Encryption));
        if declared != algorithm || !signs {
            return None;
        }
        let key = DecodingKey::from_jwk(jwk).ok()?;
        if algorithm == Algorithm::HS256 && key.try_get_as_bytes().ok()?.len() < SECRET_BYTES {
            return None;
        }
        Some(Self { id: jwk.common.key_id.clone(), algorithm, key })
    }
}
