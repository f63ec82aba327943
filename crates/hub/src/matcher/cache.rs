//! The matchers in use, each compiled once for all workers.

use super::{Matcher, MatcherError, Selector};
use crate::{limits, topic::HubUrl};
use std::{
    collections::HashMap,
    hash::{Hash, Hasher},
    sync::{Arc, Mutex, PoisonError, Weak},
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

/// The compiled patterns in use.
#[derive(Debug, Default)]
pub struct MatcherCache {
    patterns: Mutex<HashMap<Selector, Weak<Matcher>>>,
}

impl MatcherCache {
    /// Returns the compiled form of a selector, and compiles it if necessary.
    ///
    /// # Errors
    /// As [`Matcher::compile`]; and [`MatcherError::TooMany`] if [`limits::PATTERNS`] other patterns
    /// are in use.
    pub fn rule(&self, selector: Selector, hub: &HubUrl) -> Result<Rule, MatcherError> {
        if selector.is_any() || selector.exact().is_some() {
            let matcher = Arc::new(Matcher::compile(&selector, hub)?);
            return Ok(Rule { selector, matcher });
        }
        let mut patterns = self.patterns.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(matcher) = patterns.get(&selector).and_then(Weak::upgrade) {
            return Ok(Rule { selector, matcher });
        }
        if patterns.len() >= limits::PATTERNS {
            patterns.retain(|_, matcher| matcher.strong_count() > 0);
            if patterns.len() >= limits::PATTERNS {
                return Err(MatcherError::TooMany);
            }
        }
        let matcher = Arc::new(Matcher::compile(&selector, hub)?);
        patterns.insert(selector.clone(), Arc::downgrade(&matcher));
        Ok(Rule { selector, matcher })
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::matcher::MatcherType;

    #[test]
    fn a_pattern_is_compiled_once_while_it_is_in_use() {
        let hub = HubUrl::parse("http://h/").unwrap();
        let cache = MatcherCache::default();
        let selector = Selector::new(MatcherType::UrlPattern, "/a/:b");
        let one = cache.rule(selector.clone(), &hub).unwrap();
        let two = cache.rule(selector.clone(), &hub).unwrap();
        assert!(Arc::ptr_eq(&one.matcher, &two.matcher) && one == two);
        drop((one, two));
        assert!(cache.patterns.lock().unwrap()[&selector].upgrade().is_none());
    }
}
