//! Access tokens: who presents one, and what it permits.
//!
//! A token is a JWT with a signature (RFC 7515). Dialect 1 follows RFC 9068 and RFC 9396; dialect 0
//! has a claim `mercure`. The header's `typ` says which one it is, so that neither can be taken
//! for the other. The allowed algorithms come from the keys, never from the token.

mod claims;
mod keys;
mod presentation;
mod signature;

#[cfg(test)]
mod tests;

use crate::{
    dialect::Dialect,
    limits,
    matcher::{MatcherCache, MatcherError, Rule, Selector},
    reject::Reject,
    topic::HubUrl,
};
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
pub use claims::DETAIL_TYPES;
use claims::Permissions;
pub use keys::{KeyError, KeySet};
pub use presentation::{Credentials, Source, cookie, select};
use serde_json::{Map, Value};
use std::sync::{Arc, PoisonError, RwLock};

/// What a valid token permits.
#[derive(Clone, Debug, Default)]
pub struct Access {
    /// The dialect of the token, and so of what it is presented with.
    pub dialect: Dialect,
    /// The topics of which its bearer may publish updates.
    pub publish: Vec<Rule>,
    /// The topics of which its bearer may read private updates.
    pub subscribe: Vec<Rule>,
    /// Who its bearer is: the claim `sub`.
    pub subject: Option<String>,
    /// When it expires, in seconds since 1970. Dialect 0 allows none.
    pub expires_at: Option<u64>,
    /// The issuer: the claim `iss`.
    pub issuer: Option<String>,
    /// The payloads of subscriptions, each with the topics that it belongs to. A detail without
    /// one is there as well, because the first that matches decides.
    payloads: Vec<(Vec<Rule>, Option<Value>)>,
}

impl Access {
    /// Whether an update of all these topics may be published.
    #[must_use]
    pub fn may_publish(&self, topics: &[String], hub: &HubUrl) -> bool {
        topics.iter().all(|topic| self.publish.iter().any(|rule| rule.selects(topic, hub)))
    }

    /// Whether private updates of a topic may be read.
    #[must_use]
    pub fn may_read(&self, topic: &str, hub: &HubUrl) -> bool {
        self.subscribe.iter().any(|rule| rule.selects(topic, hub))
    }

    /// The payload of a subscription: that of the first detail that matches the subscription's own
    /// matcher, as if that were a topic.
    #[must_use]
    pub fn payload(&self, subscription: &Selector, hub: &HubUrl) -> Option<&Value> {
        let covers = |rules: &[Rule]| {
            rules
                .iter()
                .any(|rule| rule.selector == *subscription || rule.selects(&subscription.text, hub))
        };
        self.payloads.iter().find(|(rules, _)| covers(rules))?.1.as_ref()
    }
}

/// A token whose signature and parties are verified.
#[derive(Debug)]
struct Token {
    dialect: Dialect,
    permissions: Permissions,
    subject: Option<String>,
    expires_at: Option<u64>,
    issuer: Option<String>,
}

/// Verifies tokens of one role: subscribers or publishers.
#[derive(Debug)]
pub struct Verifier {
    keys: RwLock<Arc<KeySet>>,
    dialect: Dialect,
    /// The hub's resource identifier, which `aud` must contain.
    resource: String,
    /// Whether issuers know the resource identifier, so that it also counts for tokens of dialect 0.
    is_resource_public: bool,
    /// Who may have issued a token. Empty: anybody with the key.
    issuers: Vec<String>,
}

impl Verifier {
    /// A verifier with these keys. `resource` is the hub's resource identifier.
    #[must_use]
    pub fn new(keys: KeySet, dialect: Dialect, resource: String, issuers: Vec<String>) -> Self {
        let keys = RwLock::new(Arc::new(keys));
        Self { keys, dialect, resource, is_resource_public: false, issuers }
    }

    /// If there are issuers, rejects their tokens of dialect 0 that have an audience, but not this hub. Only for a
    /// resource identifier that an operator has configured: issuers cannot know another one.
    #[must_use]
    pub fn with_public_resource(self) -> Self {
        Self { is_resource_public: true, ..self }
    }

    /// Verifies with other keys from now on. Tokens that were verified before stay valid until they expire.
    pub fn set_keys(&self, keys: KeySet) {
        *self.keys.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(keys);
    }

    /// Verifies a token; `now` is in seconds since 1970. `cache` is the one [for
    /// tokens](MatcherCache::for_tokens).
    ///
    /// # Errors
    /// 401 `invalid_token`, the same for every cause; 503 if the cache has no room for a pattern of the token.
    pub fn verify(
        &self,
        token: &str,
        now: u64,
        cache: &MatcherCache,
        hub: &HubUrl,
    ) -> Result<Access, Reject> {
        let read = self.read(token, now).ok_or_else(Reject::token_invalid)?;
        let Token { dialect, permissions, subject, expires_at, issuer } = read;
        let access = permissions.compile(cache, hub).map_err(|error| match error {
            MatcherError::TooMany => Reject::unavailable(
                "the tokens in use have too many different patterns: try again later",
            ),
            _ => Reject::token_invalid(),
        })?;
        Ok(Access { dialect, subject, expires_at, issuer, ..access })
    }

    fn read(&self, token: &str, now: u64) -> Option<Token> {
        if token.len() > limits::TOKEN_BYTES {
            return None;
        }
        let header = jsonwebtoken::decode_header(token).ok()?;
        // RFC 7515 §4.1.11: extensions that must be understood. None is.
        if has_crit(token)? {
            return None;
        }
        let profile = header.typ.as_deref().unwrap_or("JWT").to_ascii_lowercase();
        // RFC 7515 §4.1.9: the prefix application/ may be left out.
        let dialect = match profile.strip_prefix("application/").unwrap_or(&profile) {
            "at+jwt" => Dialect::One,
            "jwt" => Dialect::Zero,
            _ => return None,
        };
        let accepted = match dialect {
            Dialect::One => self.dialect.one(),
            _ => self.dialect.zero(),
        };
        if !accepted {
            return None;
        }
        let keys = Arc::clone(&self.keys.read().unwrap_or_else(PoisonError::into_inner));
        let claims = keys.verify(token, header.alg, header.kid.as_deref())?;
        let expires_at = match claims.get("exp") {
            None if dialect == Dialect::Zero => None,
            exp => Some(claims::seconds(exp?)?),
        };
        if expires_at.is_some_and(|at| at <= now) {
            return None;
        }
        // Rounded down like `now`: libraries write the present time with a fraction, and send the token at once.
        if let Some(not_before) = claims.get("nbf")
            && claims::seconds(not_before)? > now
        {
            return None;
        }
        if !self.is_issued(&claims) || !self.is_meant(dialect, &claims) {
            return None;
        }
        Some(Token {
            dialect,
            expires_at,
            permissions: match dialect {
                Dialect::One => claims::details(&claims)?,
                _ => claims::mercure(&claims)?,
            },
            subject: match claims.get("sub") {
                None => None,
                Some(subject) => Some(subject.as_str()?.to_owned()),
            },
            issuer: claims.get("iss").and_then(Value::as_str).map(ToOwned::to_owned),
        })
    }

    /// Returns whether the configured issuers include `iss`, in both dialects; without configured issuers any is accepted.
    /// Another issuer may sign with the same keys, and the operator does not trust it.
    fn is_issued(&self, claims: &Map<String, Value>) -> bool {
        let issuer = claims.get("iss").and_then(Value::as_str);
        self.issuers.is_empty()
            || issuer.is_some_and(|issuer| self.issuers.iter().any(|known| known == issuer))
    }

    /// Checks `aud`, which is optional in dialect 0 and which no hub of 0.x looks at. There it counts only if the
    /// issuers are known and can know the hub: then it is not a text that some library adds.
    fn is_meant(&self, dialect: Dialect, claims: &Map<String, Value>) -> bool {
        let is_hub = |audience: &Value| audience.as_str() == Some(&self.resource);
        let is_strict =
            dialect == Dialect::One || (self.is_resource_public && !self.issuers.is_empty());
        match claims.get("aud") {
            _ if !is_strict => true,
            None => dialect == Dialect::Zero,
            Some(Value::Array(all)) => all.iter().any(is_hub),
            Some(one) => is_hub(one),
        }
    }
}

/// Whether the header of a token has the member `crit`, with whatever value. `None`: the header is no JSON object.
fn has_crit(token: &str) -> Option<bool> {
    let (header, _) = token.split_once('.')?;
    let header: Map<String, Value> =
        serde_json::from_slice(&URL_SAFE_NO_PAD.decode(header).ok()?).ok()?;
    Some(header.contains_key("crit"))
}
