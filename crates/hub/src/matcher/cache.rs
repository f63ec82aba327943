//! The matchers in use, each compiled once for all workers.

use super::{Matcher, MatcherError, Selector};
use crate::{limits, topic::HubUrl};
use std::{
    collections::HashMap,
    hash::{Hash, Hasher},
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
};

/// A selector and its compiled form. Two rules are equal if their selectors are equal.
#[derive(Clone, Debug)]
pub struct Rule {
    /// The selector as the client wrote it.
    pub selector: Selector,
    /// The compiled form, shared by all clients with this selector.
    pub matcher: Arc<Matcher>,
}

impl PartialEq for Rule {
    fn eq(&self, other: &Self) -> bool {
        self.selector == other.selector
    }
}

impl Eq for Rule {}

impl Hash for Rule {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.selector.hash(state);
    }
}

impl Rule {
    /// Whether a topic is selected.
    #[must_use]
    pub fn selects(&self, topic: &str, hub: &HubUrl) -> bool {
        self.matcher.matches_topic(topic, hub)
    }
}

/// The compiled patterns in use, up to a number and a size. A hub has two caches: one for the patterns of tokens, and one
/// for those that subscribers request. Subscribers choose patterns freely and could fill a common cache.
#[derive(Debug)]
pub struct MatcherCache {
    patterns: Mutex<Patterns>,
    max_patterns: usize,
    max_bytes: usize,
}

#[derive(Debug, Default)]
struct Patterns {
    by_selector: HashMap<Selector, Entry>,
    /// The bytes of all entries.
    bytes: usize,
}

#[derive(Debug)]
struct Entry {
    matcher: Weak<Matcher>,
    bytes: usize,
}

impl Default for MatcherCache {
    /// The cache for the patterns of subscribers.
    fn default() -> Self {
        Self::new(limits::PATTERNS, limits::PATTERN_BYTES)
    }
}

impl MatcherCache {
    /// The cache for the patterns of tokens.
    #[must_use]
    pub fn for_tokens() -> Self {
        Self::new(limits::TOKEN_PATTERNS, limits::TOKEN_PATTERN_BYTES)
    }

    #[cfg(test)]
    pub(crate) fn without_room() -> Self {
        Self::new(0, 0)
    }

    fn new(max_patterns: usize, max_bytes: usize) -> Self {
        Self { patterns: Mutex::default(), max_patterns, max_bytes }
    }

    /// Returns the compiled form of a selector, and compiles it if necessary.
    ///
    /// # Errors
    /// As [`Matcher::compile`]; and [`MatcherError::TooMany`] if the patterns that are in use leave no room.
    pub fn rule(&self, selector: Selector, hub: &HubUrl) -> Result<Rule, MatcherError> {
        if selector.is_any() || selector.exact().is_some() {
            let matcher = Arc::new(Matcher::compile(&selector, hub)?);
            return Ok(Rule { selector, matcher });
        }
        if let Some(matcher) = self.find(&mut self.patterns(), &selector, 0)? {
            return Ok(Rule { selector, matcher });
        }
        // This takes long, so other workers do not wait for it.
        let matcher = Arc::new(Matcher::compile(&selector, hub)?);
        let bytes = matcher.bytes() + selector.text.len() + size_of::<(Selector, Entry)>();
        let mut patterns = self.patterns();
        // Another worker may have compiled it meanwhile.
        if let Some(matcher) = self.find(&mut patterns, &selector, bytes)? {
            return Ok(Rule { selector, matcher });
        }
        patterns.insert(selector.clone(), Entry { matcher: Arc::downgrade(&matcher), bytes });
        Ok(Rule { selector, matcher })
    }

    /// Returns a pattern that is in use, or `None` if there is room for another one of this size.
    fn find(
        &self,
        patterns: &mut Patterns,
        selector: &Selector,
        bytes: usize,
    ) -> Result<Option<Arc<Matcher>>, MatcherError> {
        let entry = patterns.by_selector.get(selector);
        if let Some(matcher) = entry.and_then(|entry| entry.matcher.upgrade()) {
            return Ok(Some(matcher));
        }
        let has_room = |patterns: &Patterns| {
            patterns.by_selector.len() < self.max_patterns
                && patterns.bytes + bytes <= self.max_bytes
        };
        if !has_room(patterns) {
            patterns.remove_unused();
        }
        if has_room(patterns) { Ok(None) } else { Err(MatcherError::TooMany) }
    }

    fn patterns(&self) -> MutexGuard<'_, Patterns> {
        self.patterns.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Compiles several selectors. The result is sorted and without duplicates, so that equal lists
    /// give equal audiences.
    ///
    /// # Errors
    /// As [`rule`](Self::rule).
    pub fn rules(
        &self,
        mut selectors: Vec<Selector>,
        hub: &HubUrl,
    ) -> Result<Vec<Rule>, MatcherError> {
        selectors.sort();
        selectors.dedup();
        selectors.into_iter().map(|selector| self.rule(selector, hub)).collect()
    }
}

impl Patterns {
    fn insert(&mut self, selector: Selector, entry: Entry) {
        self.bytes += entry.bytes;
        if let Some(former) = self.by_selector.insert(selector, entry) {
            self.bytes -= former.bytes;
        }
    }

    fn remove_unused(&mut self) {
        self.by_selector.retain(|_, entry| entry.matcher.strong_count() > 0);
        self.bytes = self.by_selector.values().map(|entry| entry.bytes).sum();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::matcher::MatcherType;

    fn hub() -> HubUrl {
        HubUrl::parse("http://h/").unwrap()
    }

    fn pattern(number: usize) -> Selector {
        Selector::new(MatcherType::UrlPattern, format!("/{number}/:b"))
    }

    #[test]
    fn a_pattern_is_compiled_once_while_it_is_in_use() {
        let cache = MatcherCache::default();
        let selector = pattern(0);
        let one = cache.rule(selector.clone(), &hub()).unwrap();
        let two = cache.rule(selector.clone(), &hub()).unwrap();
        assert!(Arc::ptr_eq(&one.matcher, &two.matcher) && one == two);
        drop((one, two));
        let is_used = |patterns: &Patterns| patterns.by_selector[&selector].matcher.strong_count();
        assert_eq!(is_used(&cache.patterns()), 0);
        let again = cache.rule(selector.clone(), &hub()).unwrap();
        let bytes = cache.patterns().by_selector[&selector].bytes;
        assert_eq!(cache.patterns().bytes, bytes, "it counts once");
        drop(again);
    }

    #[test]
    fn patterns_are_bounded_by_their_number_and_their_bytes() {
        let bytes = {
            let cache = MatcherCache::default();
            let _rule = cache.rule(pattern(0), &hub()).unwrap();
            cache.patterns().bytes
        };
        for cache in [MatcherCache::new(3, usize::MAX), MatcherCache::new(usize::MAX, 3 * bytes)] {
            let mut rules: Vec<_> =
                (0..3).map(|number| cache.rule(pattern(number), &hub()).unwrap()).collect();
            assert_eq!(cache.rule(pattern(3), &hub()).unwrap_err(), MatcherError::TooMany);
            // One that is in use, and what is no pattern, needs no room.
            assert!(cache.rule(pattern(2), &hub()).is_ok());
            assert!(cache.rule(Selector::new(MatcherType::Exact, "x"), &hub()).is_ok());
            rules.pop();
            rules.push(cache.rule(pattern(3), &hub()).unwrap());
            assert_eq!(cache.rule(pattern(4), &hub()).unwrap_err(), MatcherError::TooMany);
        }
    }
}
