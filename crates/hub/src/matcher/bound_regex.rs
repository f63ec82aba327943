//! Regular expressions of bounded size.

use crate::limits;
use regex_automata::{meta, util::syntax};

/// A regular expression of bounded size: a pattern such as `:a{x{1,1000}}{1,1000}` must not cost gigabytes when it is
/// compiled.
#[derive(Debug)]
pub struct BoundRegex {
    regex: meta::Regex,
    text: Box<str>,
}

impl BoundRegex {
    /// Compiles a regular expression. `None`: it is malformed or too large.
    pub(super) fn compile(text: &str) -> Option<Self> {
        // The other engines would only be quicker to find the groups, which nobody asks for, and each has up to a megabyte.
        let config = meta::Config::new()
            .nfa_size_limit(Some(limits::COMPONENT_BYTES))
            .hybrid_cache_capacity(limits::COMPONENT_BYTES)
            .onepass(false)
            .dfa(false);
        let syntax = syntax::Config::new().nest_limit(32);
        let regex = meta::Builder::new().configure(config).syntax(syntax).build(text).ok()?;
        Some(Self { regex, text: text.into() })
    }

    /// Whether a text has a match.
    pub(super) fn is_match(&self, text: &str) -> bool {
        self.regex.is_match(text)
    }

    /// The text that was compiled.
    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// Its memory in bytes, without what a thread needs that searches with it.
    pub(super) fn bytes(&self) -> usize {
        size_of::<Self>() + self.regex.memory_usage() + self.text.len()
    }
}
