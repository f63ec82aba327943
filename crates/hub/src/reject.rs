//! The refusal of a request: a status, a code of RFC 6750, and one sentence.

use std::borrow::Cow;

/// The answer to a request that the hub refuses.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Reject {
    /// The HTTP status: 400, 401, 403, 404, 405, 412, 413, 415, 429 or 503.
    pub status: u16,
    /// The error code of RFC 6750 §3.1. `None` if no token was presented: the challenge of such an
    /// answer must not have one.
    pub code: Option<&'static str>,
    /// The fault and the remedy, in one sentence.
    pub message: Cow<'static, str>,
}

impl Reject {
    /// A malformed request: 400.
    pub fn invalid(message: impl Into<Cow<'static, str>>) -> Self {
        Self { status: 400, code: Some("invalid_request"), message: message.into() }
    }

    /// A request or a field over its limit: 413.
    pub fn too_large(message: impl Into<Cow<'static, str>>) -> Self {
        Self { status: 413, code: None, message: message.into() }
    }

    /// A token is required but missing: 401 without a code.
    pub fn token_missing(message: impl Into<Cow<'static, str>>) -> Self {
        Self { status: 401, code: None, message: message.into() }
    }

    /// A token that is not valid: 401. The message is the same for every cause, so that it does
    /// not help an attacker who forges tokens.
    #[must_use]
    pub fn token_invalid() -> Self {
        Self {
            status: 401,
            code: Some("invalid_token"),
            message: "the access token is not valid here: request a new one".into(),
        }
    }

    /// A valid token that does not permit this: 403.
    pub fn forbidden(message: impl Into<Cow<'static, str>>) -> Self {
        Self { status: 403, code: Some("insufficient_scope"), message: message.into() }
    }

    /// A topic in the namespace of the hub: 403, regardless of the token.
    #[must_use]
    pub fn reserved() -> Self {
        Self {
            status: 403,
            code: None,
            message:
                "topics under /.well-known/mercure are reserved for the hub: use another topic"
                    .into(),
        }
    }

    /// A limit on a number is reached: 429.
    pub fn too_many(message: impl Into<Cow<'static, str>>) -> Self {
        Self { status: 429, code: None, message: message.into() }
    }

    /// What would be possible at another time: 503.
    pub fn unavailable(message: impl Into<Cow<'static, str>>) -> Self {
        Self { status: 503, code: None, message: message.into() }
    }

    /// The value of the `WWW-Authenticate` field (RFC 6750 §3), if the answer has one.
    /// `metadata` is the URL of the protected resource metadata (RFC 9728 §5.1).
    #[must_use]
    pub fn challenge(&self, metadata: Option<&str>) -> Option<String> {
        if !matches!(self.status, 401 | 403) && self.code.is_none() {
            return None;
        }
        let mut value = String::from("Bearer");
        let mut separator = " ";
        if let Some(code) = self.code {
            value.push_str(&format!("{separator}error=\"{code}\""));
            separator = ", ";
        }
        if let Some(metadata) = metadata {
            value.push_str(&format!("{separator}resource_metadata=\"{metadata}\""));
        }
        Some(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_challenge_without_a_token_has_no_code() {
        let reject = Reject::token_missing("a token is needed");
        assert_eq!(reject.challenge(None).unwrap(), "Bearer");
        assert_eq!(
            reject.challenge(Some("https://h/x")).unwrap(),
            "Bearer resource_metadata=\"https://h/x\""
        );
        assert_eq!(
            Reject::token_invalid().challenge(None).unwrap(),
            "Bearer error=\"invalid_token\""
        );
        assert_eq!(Reject::too_large("").challenge(None), None);
    }
}
