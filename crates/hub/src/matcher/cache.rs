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
    /// The room for all patterns, and for those that one client has brought.
    room: Room,
    client_room: Room,
}

#[derive(Debug, Default)]
struct Patterns {
    by_selector: HashMap<Selector, Entry>,
    all: Room,
    /// The patterns that each client was the first to request, by its number.
    by_client: HashMap<u64, Room>,
}

#[derive(Debug)]
struct Entry {
    matcher: Weak<Matcher>,
    bytes: usize,
    client: Option<u64>,
}

/// A number of patterns and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Room {
    patterns: usize,
    bytes: usize,
}

impl Room {
    fn has_room(&self, used: &Self, bytes: usize) -> bool {
        used.patterns < self.patterns && used.bytes + bytes <= self.bytes
    }

    fn add(&mut self, bytes: usize) {
        self.patterns += 1;
        self.bytes += bytes;
    }

    fn remove(&mut self, bytes: usize) {
        self.patterns -= 1;
        self.bytes -= bytes;
    }
}

impl Default for MatcherCache {
    /// The cache for the patterns of subscribers.
    fn default() -> Self {
        Self {
            client_room: Room {
                patterns: limits::CLIENT_PATTERNS,
                bytes: limits::CLIENT_PATTERN_BYTES,
            },
            ..Self::new(limits::PATTERNS, limits::PATTERN_BYTES)
        }
    }
}

impl MatcherCache {
    /// The cache for the patterns of tokens.
    #[must_use]
    pub fn for_tokens() -> Self {
        Self::new(limits::TOKEN_PATTERNS, limits::TOKEN_PATTERN_BYTES)
    }

    /// The same cache with another limit for the patterns that one client brings.
    #[must_use]
    pub fn with_client_patterns(mut self, patterns: usize) -> Self {
        self.client_room.patterns = patterns;
        self
    }

    #[cfg(test)]
    pub(crate) fn without_room() -> Self {
        Self::new(0, 0)
    }

    /// A cache with this room for all patterns, and with no less for those of one client.
    fn new(patterns: usize, bytes: usize) -> Self {
        let room = Room { patterns, bytes };
        Self { patterns: Mutex::default(), room, client_room: room }
    }

    /// Returns the compiled form of a selector, and compiles it if necessary. `client` is a number of the client that
    /// requests it, if there is one.
    ///
    /// # Errors
    /// As [`Matcher::compile`]; [`MatcherError::TooMany`] if the patterns that are in use leave no room, and
    /// [`MatcherError::TooManyOfClient`] if those do that this client has brought.
    pub fn rule(
        &self,
        selector: Selector,
        hub: &HubUrl,
        client: Option<u64>,
    ) -> Result<Rule, MatcherError> {
        if !selector.is_pattern() {
            let matcher = Arc::new(Matcher::compile(&selector, hub)?);
            return Ok(Rule { selector, matcher });
        }
        if let Some(matcher) = self.find(&mut self.patterns(), &selector, 0, client)? {
            return Ok(Rule { selector, matcher });
        }
        // This takes long, so other workers do not wait for it.
        let matcher = Arc::new(Matcher::compile(&selector, hub)?);
        let bytes = matcher.bytes() + selector.text.len() + size_of::<(Selector, Entry)>();
        let mut patterns = self.patterns();
        // Another worker may have compiled it meanwhile.
        if let Some(matcher) = self.find(&mut patterns, &selector, bytes, client)? {
            return Ok(Rule { selector, matcher });
        }
        let entry = Entry { matcher: Arc::downgrade(&matcher), bytes, client };
        patterns.insert(selector.clone(), entry);
        Ok(Rule { selector, matcher })
    }

    /// Returns a pattern that is in use, or `None` if there is room for another one of this size.
    fn find(
        &self,
        patterns: &mut Patterns,
        selector: &Selector,
        bytes: usize,
        client: Option<u64>,
    ) -> Result<Option<Arc<Matcher>>, MatcherError> {
        let entry = patterns.by_selector.get(selector);
        if let Some(matcher) = entry.and_then(|entry| entry.matcher.upgrade()) {
            return Ok(Some(matcher));
        }
        if self.admit(patterns, bytes, client).is_err() {
            patterns.remove_unused();
        }
        self.admit(patterns, bytes, client).map(|()| None)
    }

    fn admit(
        &self,
        patterns: &Patterns,
        bytes: usize,
        client: Option<u64>,
    ) -> Result<(), MatcherError> {
        if !self.room.has_room(&patterns.all, bytes) {
            return Err(MatcherError::TooMany);
        }
        let of_client = client.and_then(|client| patterns.by_client.get(&client));
        match of_client.is_none_or(|used| self.client_room.has_room(used, bytes)) {
            true => Ok(()),
            false => Err(MatcherError::TooManyOfClient),
        }
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
        client: Option<u64>,
    ) -> Result<Vec<Rule>, MatcherError> {
        selectors.sort();
        selectors.dedup();
        selectors.into_iter().map(|selector| self.rule(selector, hub, client)).collect()
    }
}

impl Patterns {
    fn insert(&mut self, selector: Selector, entry: Entry) {
        self.all.add(entry.bytes);
        if let Some(client) = entry.client {
            self.by_client.entry(client).or_default().add(entry.bytes);
        }
        if let Some(former) = self.by_selector.insert(selector, entry) {
            self.forget(&former);
        }
    }

    fn remove_unused(&mut self) {
        let unused = self.by_selector.extract_if(|_, entry| entry.matcher.strong_count() == 0);
        for (_, entry) in unused.collect::<Vec<_>>() {
            self.forget(&entry);
        }
    }

    /// Removes an entry from the counts.
    fn forget(&mut self, entry: &Entry) {
        self.all.remove(entry.bytes);
        let Some(client) = entry.client else { return };
        if let Some(used) = self.by_client.get_mut(&client) {
            used.remove(entry.bytes);
            if *used == Room::default() {
                self.by_client.remove(&client);
            }
        }
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
        let one = cache.rule(selector.clone(), &hub(), None).unwrap();
        let two = cache.rule(selector.clone(), &hub(), None).unwrap();
        assert!(Arc::ptr_eq(&one.matcher, &two.matcher) && one == two);
        drop((one, two));
        let is_used = |patterns: &Patterns| patterns.by_selector[&selector].matcher.strong_count();
        assert_eq!(is_used(&cache.patterns()), 0);
        let again = cache.rule(selector.clone(), &hub(), None).unwrap();
        let bytes = cache.patterns().by_selector[&selector].bytes;
        assert_eq!(cache.patterns().all.bytes, bytes, "it counts once");
        drop(again);
    }

    #[test]
    fn patterns_are_bounded_by_their_number_and_their_bytes() {
        let bytes = {
            let cache = MatcherCache::default();
            let _rule = cache.rule(pattern(0), &hub(), None).unwrap();
            cache.patterns().all.bytes
        };
        for cache in [MatcherCache::new(3, usize::MAX), MatcherCache::new(usize::MAX, 3 * bytes)] {
            let mut rules: Vec<_> =
                (0..3).map(|number| cache.rule(pattern(number), &hub(), None).unwrap()).collect();
            assert_eq!(cache.rule(pattern(3), &hub(), None).unwrap_err(), MatcherError::TooMany);
            // One that is in use, and what is no pattern, needs no room.
            assert!(cache.rule(pattern(2), &hub(), None).is_ok());
            assert!(cache.rule(Selector::new(MatcherType::Exact, "x"), &hub(), None).is_ok());
            rules.pop();
            rules.push(cache.rule(pattern(3), &hub(), None).unwrap());
            assert_eq!(cache.rule(pattern(4), &hub(), None).unwrap_err(), MatcherError::TooMany);
        }
    }

    /// Regression: one client could use up the patterns of all.
    #[test]
    fn the_patterns_that_a_client_has_brought_are_bounded() {
        let room = Room { patterns: 2, bytes: usize::MAX };
        let cache = MatcherCache { client_room: room, ..MatcherCache::new(5, usize::MAX) };
        let rule = |number, client| cache.rule(pattern(number), &hub(), Some(client));
        let mut rules = vec![rule(0, 1).unwrap(), rule(1, 1).unwrap()];
        assert_eq!(rule(2, 1).unwrap_err(), MatcherError::TooManyOfClient);
        rules.extend([rule(2, 2).unwrap(), rule(3, 3).unwrap()]);
        // What others have brought costs a client nothing.
        assert!(rule(2, 1).is_ok() && rule(1, 3).is_ok());
        rules.remove(0);
        rules.push(rule(4, 1).unwrap());
        assert_eq!(rule(5, 1).unwrap_err(), MatcherError::TooManyOfClient);
        rules.push(rule(5, 4).unwrap());
        assert_eq!(rule(6, 4).unwrap_err(), MatcherError::TooMany);
        drop(rules);
        cache.patterns().remove_unused();
        let patterns = cache.patterns();
        assert!(patterns.by_client.is_empty() && patterns.all == Room::default());
    }
}
