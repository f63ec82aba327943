//! Patterns of the URL Pattern Standard.

use super::MatcherError;
use crate::{limits, topic::HubUrl};
use url::Url;
use urlpattern::{
    UrlPattern, UrlPatternInit, UrlPatternMatchInput, UrlPatternOptions,
    regexp::RegExp as ComponentSyntax,
};

/// A compiled URL pattern.
#[derive(Debug)]
pub struct Pattern(UrlPattern<BoundRegex>);

impl Pattern {
    /// Compiles a pattern; a relative one is resolved against the hub's URL.
    pub(super) fn compile(text: &str, hub: &HubUrl) -> Result<Self, MatcherError> {
        let base = Some(hub.base().clone());
        let init = UrlPatternInit::parse_constructor_string::<BoundRegex>(text, base)
            .map_err(|_| MatcherError::UrlPattern)?;
        let options = UrlPatternOptions { ignore_case: false, ..UrlPatternOptions::default() };
        UrlPattern::parse(init, options).map(Self).map_err(|_| MatcherError::UrlPattern)
    }

    /// Whether the pattern matches a URL.
    pub(super) fn matches(&self, url: &Url) -> bool {
        self.0.test(UrlPatternMatchInput::Url(url.clone())).unwrap_or(false)
    }
}

/// A regular expression of bounded size: a pattern such as `:a{x{1,1000}}{1,1000}` must not cost
/// gigabytes when it is compiled.
#[derive(Debug)]
struct BoundRegex(regex::Regex);

impl ComponentSyntax for BoundRegex {
    fn syntax() -> urlpattern::RegexSyntax {
        urlpattern::RegexSyntax::Rust
    }

    fn parse(pattern: &str, _flags: &str, _force_eval: bool) -> Result<Self, ()> {
        bound_regex(pattern).map(Self).ok_or(())
    }

    fn matches<'a>(&self, text: &'a str) -> Option<Vec<Option<&'a str>>> {
        // Only the existence of a match is needed, not the groups. But the crate reads one group for
        // each name, so their number must be correct.
        let groups = self.0.captures_len() - 1;
        self.0.is_match(text).then(|| vec![None; groups])
    }

    fn pattern_string(&self) -> &str {
        self.0.as_str()
    }
}

/// Compiles a regular expression within the limits of the hub.
pub(super) fn bound_regex(pattern: &str) -> Option<regex::Regex> {
    regex::RegexBuilder::new(pattern)
        .size_limit(limits::COMPONENT_BYTES)
        .dfa_size_limit(limits::COMPONENT_BYTES)
        .nest_limit(32)
        .build()
        .ok()
}
