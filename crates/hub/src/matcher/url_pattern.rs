//! Patterns of the URL Pattern Standard.

use super::{MatcherError, bound_regex::BoundRegex};
use crate::topic::HubUrl;
use url::{Url, quirks};
use urlpattern::{
    Error, UrlPattern, UrlPatternInit, UrlPatternOptions, component::Component,
    matcher::InnerMatcher, regexp::RegExp as ComponentSyntax,
};

/// A compiled URL pattern.
#[derive(Debug)]
pub struct Pattern(UrlPattern<BoundRegex>);

impl Pattern {
    /// Compiles a pattern; a relative one is resolved against the hub's URL.
    pub(super) fn compile(text: &str, hub: &HubUrl) -> Result<Self, MatcherError> {
        let parse = |base| UrlPatternInit::parse_constructor_string::<BoundRegex>(text, base);
        // Only a relative pattern has no scheme, which is an error without a base. With one, the standard would also
        // prepend the base's path to that of `urn:*`.
        let init = parse(None).or_else(|_| parse(Some(hub.base().clone())));
        let init = init.map_err(|_| MatcherError::UrlPattern)?;
        let options = UrlPatternOptions { ignore_case: false, ..UrlPatternOptions::default() };
        let mut pattern = UrlPattern::parse(init, options).map_err(|_| MatcherError::UrlPattern)?;
        let UrlPattern { protocol, username, password, hostname, port, pathname, search, hash } =
            &mut pattern;
        for component in [protocol, username, password, hostname, port, pathname, search, hash] {
            // The crate compiles each component as a whole, which shows that it is valid. A match uses the component's
            // matcher, which has plain texts and needs a regular expression of its own at most.
            component.regexp = Err(Error::RegExp(()));
        }
        Ok(Self(pattern))
    }

    /// Whether the pattern matches a URL. The crate's own test copies all parts of the URL first, and finds all groups.
    pub(super) fn matches(&self, url: &Url) -> bool {
        let has = |component: &Component<BoundRegex>, part: &str| {
            component.matcher.matches(part).is_some()
        };
        let pattern = &self.0;
        // The path first: it differs most often.
        has(&pattern.pathname, url.path())
            && has(&pattern.protocol, url.scheme())
            && has(&pattern.hostname, url.host_str().unwrap_or_default())
            && has(&pattern.port, quirks::port(url))
            && has(&pattern.username, url.username())
            && has(&pattern.password, url.password().unwrap_or_default())
            && has(&pattern.search, url.query().unwrap_or_default())
            && has(&pattern.hash, url.fragment().unwrap_or_default())
    }

    /// An estimate of its memory in bytes.
    pub(super) fn bytes(&self) -> usize {
        let UrlPattern { protocol, username, password, hostname, port, pathname, search, hash } =
            &self.0;
        let components = [protocol, username, password, hostname, port, pathname, search, hash];
        let strings = components.map(|component| {
            let names = component.group_name_list.iter();
            let matcher = &component.matcher;
            let inner = match &matcher.inner {
                InnerMatcher::Literal { literal } => literal.len(),
                InnerMatcher::SingleCapture { .. } => 0,
                InnerMatcher::RegExp { regexp } => regexp.as_ref().map_or(0, BoundRegex::bytes),
            };
            names.map(|name| size_of::<String>() + name.len()).sum::<usize>()
                + component.pattern_string.len()
                + matcher.prefix.len()
                + matcher.suffix.len()
                + inner
        });
        size_of::<Self>() + strings.iter().sum::<usize>()
    }
}

impl ComponentSyntax for BoundRegex {
    fn syntax() -> urlpattern::RegexSyntax {
        urlpattern::RegexSyntax::Rust
    }

    fn parse(pattern: &str, _flags: &str, _force_eval: bool) -> Result<Self, ()> {
        Self::compile(pattern).ok_or(())
    }

    fn matches<'a>(&self, text: &'a str) -> Option<Vec<Option<&'a str>>> {
        // Only the existence of a match is needed, not the groups.
        self.is_match(text).then(Vec::new)
    }

    fn pattern_string(&self) -> &str {
        self.text()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use urlpattern::UrlPatternMatchInput;

    #[test]
    fn a_simple_pattern_is_small() {
        let hub = HubUrl::parse("https://h/.well-known/mercure").unwrap();
        let simple = Pattern::compile("https://example.com/books/:id", &hub).unwrap();
        assert!(simple.bytes() < 4096, "{}", simple.bytes());
        let large = Pattern::compile("https://example.com/:a(x{1,100})", &hub).unwrap();
        assert!(large.bytes() > simple.bytes() + 4096, "{}", large.bytes());
    }

    proptest! {
        #[test]
        fn the_crate_itself_finds_the_same(
            pattern in "(https?://(a|b|:h|\\*)(:8|:9)?)?/(a|:b|\\*|:c\\?|:d\\(\\\\d\\+\\)){1,2}(/b)?(\\?q=:e)?(#f)?",
            url in "https?://((u(:p)?@)?)(a|b)(:8|:9|:80)?/([ab1]{1,3})(/b)?(\\?q=1)?(#f)?",
        ) {
            let hub = HubUrl::parse("https://a/.well-known/mercure").unwrap();
            let url = Url::parse(&url).unwrap();
            if let Ok(pattern) = Pattern::compile(&pattern, &hub) {
                let expected = pattern.0.test(UrlPatternMatchInput::Url(url.clone())).unwrap();
                prop_assert_eq!(pattern.matches(&url), expected, "{} {:?}", url, pattern);
            }
        }
    }
}
