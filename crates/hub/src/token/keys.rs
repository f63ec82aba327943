//! The keys that signatures are verified with.

use super::signature::VerifyingKey;
use crate::limits;
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use jsonwebtoken::{
    Algorithm, DecodingKey,
    jwk::{AlgorithmParameters, EllipticCurve, Jwk, JwkSet, KeyAlgorithm, PublicKeyUse},
};
use pollux_http::text::bytes_without_mark;
use serde_json::{Map, Value};
use std::fmt;

/// The fewest bytes of a secret (RFC 7518 §3.2: as many as the hash has).
const SECRET_BYTES: usize = 32;
/// The beginning of a key in PEM.
const PEM: &[u8] = b"-----BEGIN ";

/// Why a text is no key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// A secret is too short to resist a search.
    #[error("the secret is shorter than {SECRET_BYTES} bytes: use a longer one")]
    Short,
    /// A public key that is neither PEM nor a JWK.
    #[error(
        "this is a public key, and as a secret it would let all who know it sign tokens: write it \
         as PEM with `openssl pkey -pubin`, or as a JWK set"
    )]
    Public,
    /// A PEM text that is none of the kinds of key.
    #[error("the PEM text is no RSA, P-256 or Ed25519 public key")]
    Pem,
    /// An RSA key of a length that must not or cannot be used.
    #[error("the RSA key has {0} bits: use one of 2048 to 8192 bits (RFC 7518 §3.3)")]
    RsaBits(usize),
    /// A P-256 key without its second coordinate.
    #[error(
        "the P-256 key is in compressed form: convert it with \
         `openssl ec -pubin -in FILE -conv_form uncompressed`"
    )]
    Compressed,
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
    key: VerifyingKey,
}

impl fmt::Debug for KeySet {
    /// Shows the algorithms, never a key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|key| key.key.algorithm())).finish()
    }
}

impl KeySet {
    /// Parses keys: a JWK or a JWK set (JSON), a public key (PEM), or else a secret for HS256. Text before the PEM, such as
    /// a comment, is ignored (RFC 7468 §2). White space at the end is no part of a secret: editors add it.
    ///
    /// # Errors
    /// The text is none of them, a secret of fewer than 32 bytes, a public key in another form, or a key with which no
    /// signature can be verified.
    pub fn parse(text: &[u8]) -> Result<Self, KeyError> {
        let text = bytes_without_mark(text);
        let trimmed = text.trim_ascii();
        if trimmed.starts_with(b"{") {
            return Self::from_json(trimmed);
        }
        if let Some(at) = trimmed.windows(PEM.len()).position(|part| part == PEM) {
            return Self::from_pem(&trimmed[at..]);
        }
        if is_public(text) {
            return Err(KeyError::Public);
        }
        let secret = text.trim_ascii_end();
        if secret.len() < SECRET_BYTES {
            return Err(KeyError::Short);
        }
        Self::one(&DecodingKey::from_secret(secret))
    }

    /// Parses a JWK or a JWK set, and nothing else.
    ///
    /// # Errors
    /// The text is no JWK set, or none of its keys can verify a signature.
    pub fn parse_jwks(text: &[u8]) -> Result<Self, KeyError> {
        Self::from_json(bytes_without_mark(text).trim_ascii())
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

    fn one(key: &DecodingKey) -> Result<Self, KeyError> {
        let key = VerifyingKey::new(key)?.ok_or(KeyError::Pem)?;
        Ok(Self(vec![Key { id: None, key }]))
    }

    fn from_pem(pem: &[u8]) -> Result<Self, KeyError> {
        let key = DecodingKey::from_rsa_pem(pem)
            .or_else(|_| DecodingKey::from_ec_pem(pem))
            .or_else(|_| DecodingKey::from_ed_pem(pem))
            .map_err(|_| KeyError::Pem)?;
        Self::one(&key)
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
        // RFC 7517 §5: keys of a kind that is not understood, or outside the supported ranges, are ignored. If no other
        // key is left, the error names the reason.
        let keys = keys.into_iter().filter_map(|key| serde_json::from_value::<Jwk>(key).ok());
        let set = JwkSet { keys: keys.collect() };
        let (mut keys, mut refused) = (Vec::new(), KeyError::None);
        for key in &set.keys {
            match Key::from_jwk(key) {
                Ok(key) => keys.extend(key),
                Err(error) => refused = error,
            }
        }
        if keys.is_empty() { Err(refused) } else { Ok(Self(keys)) }
    }

    /// Verifies a signature and returns the claims. Keys are tried that are for the algorithm and,
    /// if both the token and the key name one, have the same identifier.
    pub(super) fn verify(
        &self,
        token: &str,
        algorithm: Algorithm,
        id: Option<&str>,
    ) -> Option<Map<String, Value>> {
        let fits = |key: &&Key| {
            key.key.algorithm() == algorithm
                && (id.is_none() || key.id.is_none() || key.id.as_deref() == id)
        };
        let (message, signature) = token.rsplit_once('.')?;
        let signature = URL_SAFE_NO_PAD.decode(signature).ok()?;
        let mut fitting = self.0.iter().filter(fits);
        // The claims are parsed only after one of the keys has verified their signature.
        if !fitting.any(|key| key.key.verify(message.as_bytes(), &signature)) {
            return None;
        }
        let (_, claims) = message.rsplit_once('.')?;
        serde_json::from_slice(&URL_SAFE_NO_PAD.decode(claims).ok()?).ok()
    }
}

/// Whether a text is a public key in a form that is not read: of OpenSSH, a list of JWKs, or DER. As the secret of
/// HS256, such a key would let every reader of the public key sign tokens.
fn is_public(text: &[u8]) -> bool {
    let is_list = || serde_json::from_slice::<Vec<Value>>(text).is_ok();
    // A SEQUENCE whose length is that of the rest (X.690 §8.1.3).
    let is_der = || match text {
        [0x30, length @ ..=0x7f, rest @ ..] | [0x30, 0x81, length, rest @ ..] => {
            rest.len() == usize::from(*length)
        }
        [0x30, 0x82, high, low, rest @ ..] => {
            rest.len() == usize::from(u16::from_be_bytes([*high, *low]))
        }
        _ => false,
    };
    text.starts_with(b"ssh-") || text.starts_with(b"ecdsa-sha2-") || is_list() || is_der()
}

impl Key {
    /// Returns `None` if the key is malformed, is for other algorithms, or is not for signatures.
    ///
    /// # Errors
    /// The key is well-formed, but the hub cannot use it, such as an RSA key of a wrong length.
    fn from_jwk(jwk: &Jwk) -> Result<Option<Self>, KeyError> {
        let algorithm = match &jwk.algorithm {
            AlgorithmParameters::OctetKey(_) => Algorithm::HS256,
            AlgorithmParameters::RSA(_) => Algorithm::RS256,
            AlgorithmParameters::EllipticCurve(key) if key.curve == EllipticCurve::P256 => {
                Algorithm::ES256
            }
            AlgorithmParameters::OctetKeyPair(_) => Algorithm::EdDSA,
            _ => return Ok(None),
        };
        let declared = match jwk.common.key_algorithm {
            None => algorithm,
            Some(KeyAlgorithm::HS256) => Algorithm::HS256,
            Some(KeyAlgorithm::RS256) => Algorithm::RS256,
            Some(KeyAlgorithm::ES256) => Algorithm::ES256,
            Some(KeyAlgorithm::EdDSA) => Algorithm::EdDSA,
            Some(_) => return Ok(None),
        };
        let signs = !matches!(jwk.common.public_key_use, Some(PublicKeyUse::Encryption));
        if declared != algorithm || !signs {
            return Ok(None);
        }
        let Ok(key) = DecodingKey::from_jwk(jwk) else { return Ok(None) };
        let bytes = key.try_get_as_bytes().map_or(0, <[u8]>::len);
        if algorithm == Algorithm::HS256 && bytes < SECRET_BYTES {
            return Ok(None);
        }
        let key = VerifyingKey::new(&key)?;
        Ok(key.map(|key| Self { id: jwk.common.key_id.clone(), key }))
    }
}
