//! Topic matchers: expressions that select topics.
//!
//! A [`Selector`] is the expression that a client wrote; a [`Matcher`] is its compiled form. Both kinds
//! of pattern become regular expressions of the crate `regex-automata`, which matches in a time linear
//! in the topic, and whose compiled size is bounded.

mod bound_regex;
mod cache;
mod template;
mod url_pattern;

pub use cache::{MatcherCache, Rule};

use crate::{
    limits,
    topic::{self, HubUrl},
};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use template::TemplateError;
use url::Url;

/// How to interpret an expression.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum MatcherType {
    /// The topic is the expression, byte for byte.
    Exact,
    /// The URL Pattern Standard; relative expressions are resolved against the hub's URL.
    UrlPattern,
    /// Dialect 0: a URI template (RFC 6570), or the expression itself.
    Template,
}

impl MatcherType {
    /// The name, as subscriptions show it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Exact => "exact",
            Self::UrlPattern => "urlpattern",
            Self::Template => "uritemplate",
        }
    }

    /// The name in the earlier texts of draft 08.
    #[must_use]
    pub fn draft_name(self) -> &'static str {
        match self {
            Self::Exact => "Exact",
            Self::UrlPattern => "URLPattern",
            Self::Template => "URITemplate",
        }
    }

    /// Parses the value of `match_type`, which is `matchType` in the earlier texts of draft 08.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        [Self::Exact, Self::UrlPattern]
            .into_iter()
            .find(|kind| name == kind.name() || name == kind.draft_name())
    }
}

/// An expression and its type, as the client wrote them.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Selector {
    /// How to interpret the expression.
    pub kind: MatcherType,
    /// The expression. `*` matches every topic, regardless of the type.
    pub text: Arc<str>,
}

impl Selector {
    /// A selector of this type.
    pub fn new(kind: MatcherType, text: impl Into<Arc<str>>) -> Self {
        Self { kind, text: text.into() }
    }

    /// Whether this is the wildcard.
    #[must_use]
    pub fn is_any(&self) -> bool {
        &*self.text == "*"
    }

    /// Whether it needs a pattern, which is to be compiled.
    #[must_use]
    pub fn is_pattern(&self) -> bool {
        !self.is_any() && self.exact().is_none()
    }

    /// The single selected topic, if the selector needs no pattern. A template without expressions
    /// selects the topic that is identical to its text.
    #[must_use]
    pub fn exact(&self) -> Option<&Arc<str>> {
        let plain = match self.kind {
            MatcherType::Exact => true,
            MatcherType::Template => !self.text.contains('{'),
            MatcherType::UrlPattern => false,
        };
        (plain && !self.is_any()).then_some(&self.text)
    }
}

/// The reason why an expression cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MatcherError {
    /// Empty, too long, or with control characters.
    #[error("a matcher must have 1 to {} bytes and no control characters", limits::TEXT_BYTES)]
    Text,
    /// Not a pattern of the URL Pattern Standard.
    #[error("a URL pattern is malformed, or too large when it is compiled")]
    UrlPattern,
    /// A URI template with too many variables.
    #[error("a URI template is too large when it is compiled: use fewer variables")]
    Template,
    /// The maximum number of patterns is already in use.
    #[error("the hub has too many different patterns in use: try again later")]
    TooMany,
    /// The client has brought the maximum number of patterns already.
    #[error(
        "your address has too many different patterns in use: close a subscription that has some"
    )]
    TooManyOfClient,
}

/// A compiled selector.
#[derive(Debug)]
pub enum Matcher {
    /// Every topic.
    Any,
    /// This topic.
    Exact(Arc<str>),
    /// Topics whose URL a pattern matches.
    UrlPattern(Box<url_pattern::Pattern>),
    /// Topics that a template can expand to, and the template's own text.
    Template(Arc<str>, bound_regex::BoundRegex),
}

/// A topic and the URL that it stands for; the URL is resolved once for all patterns.
#[derive(Clone, Copy, Debug)]
pub struct Candidate<'a> {
    /// The topic.
    pub topic: &'a str,
    /// The topic resolved against the hub's URL; `None` if it is not a URL.
    pub url: Option<&'a Url>,
}

impl Matcher {
    /// Compiles a selector.
    ///
    /// # Errors
    /// The expression is malformed or exceeds a limit.
    pub fn compile(selector: &Selector, hub: &HubUrl) -> Result<Self, MatcherError> {
        topic::check(&selector.text).map_err(|_| MatcherError::Text)?;
        if selector.is_any() {
            return Ok(Self::Any);
        }
        if let Some(topic) = selector.exact() {
            return Ok(Self::Exact(Arc::clone(topic)));
        }
        Ok(match selector.kind {
            MatcherType::UrlPattern => {
                Self::UrlPattern(Box::new(url_pattern::Pattern::compile(&selector.text, hub)?))
            }
            _ => match template::compile(&selector.text) {
                Ok(regex) => Self::Template(Arc::clone(&selector.text), regex),
                // Hubs of 0.x compare an expression that is not a template with the topic.
                Err(TemplateError::Malformed) => Self::Exact(Arc::clone(&selector.text)),
                Err(TemplateError::TooLarge) => return Err(MatcherError::Template),
            },
        })
    }

    /// An estimate of its memory in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let own = match self {
            Self::Any => 0,
            Self::Exact(topic) => topic.len(),
            Self::UrlPattern(pattern) => pattern.bytes(),
            Self::Template(text, regex) => text.len() + regex.bytes(),
        };
        size_of::<Self>() + own
    }

    /// Whether the topic is selected. Linear in the topic's length.
    #[must_use]
    pub fn matches(&self, candidate: Candidate<'_>) -> bool {
        match self {
            Self::Any => true,
            Self::Exact(topic) => **topic == *candidate.topic,
            Self::UrlPattern(pattern) => candidate.url.is_some_and(|url| pattern.matches(url)),
            Self::Template(text, regex) => {
                **text == *candidate.topic || regex.is_match(candidate.topic)
            }
        }
    }

    /// Whether a topic that is not resolved yet is selected.
    #[must_use]
    pub fn matches_topic(&self, topic: &str, hub: &HubUrl) -> bool {
        let url = matches!(self, Self::UrlPattern(_)).then(|| hub.resolve(topic)).flatten();
        self.matches(Candidate { topic, url: url.as_ref() })
    }
}

#[cfg(test)]
mod tests;
