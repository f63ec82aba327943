//! What is remembered of keys beside what is stored: that the origin fails, that waiting is in vain.

use std::collections::HashMap;

/// The most keys that something is remembered of.
const KEYS_MAX: usize = 4096;
/// How long nobody waits for others' fetches of what could not be stored, in seconds.
const NO_COALESCING_S: u64 = 10;

#[derive(Clone, Copy, Debug, Default)]
struct KeyHistory {
    failures: u32,
    /// Until then the origin is not asked where there is something to answer with.
    retry_at: u64,
    /// Until then each request is sent on by itself.
    no_coalescing_until: u64,
    /// Until then, what is in memory came from the second tier.
    loaded_until: u64,
}

/// Bounded: when it is full, what is over goes; if nothing is, all. Forgetting costs a request.
#[derive(Debug, Default)]
pub(crate) struct History {
    entries: HashMap<u64, KeyHistory>,
}

impl History {
    fn entry(&mut self, hash: u64, now: u64) -> &mut KeyHistory {
        if self.entries.len() >= KEYS_MAX && !self.entries.contains_key(&hash) {
            self.entries.retain(|_, entry| {
                entry.retry_at.max(entry.no_coalescing_until).max(entry.loaded_until) > now
            });
            if self.entries.len() >= KEYS_MAX {
                self.entries.clear();
            }
        }
        self.entries.entry(hash).or_default()
    }

    /// The origin failed: the next try is a second later, twice that the next time, at most `max`.
    pub(crate) fn record_failure(&mut self, hash: u64, now: u64, max: u32) {
        let entry = self.entry(hash, now);
        let wait = 1u64 << entry.failures.min(20);
        entry.failures += 1;
        entry.retry_at = now + wait.min(u64::from(max));
    }

    /// It answered.
    pub(crate) fn record_success(&mut self, hash: u64) {
        if let Some(entry) = self.entries.get_mut(&hash) {
            (entry.failures, entry.retry_at) = (0, 0);
        }
    }

    /// Whether the origin failed lately. After the clock was set back it did not.
    pub(crate) fn is_backing_off(&self, hash: u64, now: u64, max: u32) -> bool {
        let retry_at = self.entries.get(&hash).map_or(0, |entry| entry.retry_at);
        retry_at > now && retry_at - now <= u64::from(max)
    }

    pub(crate) fn loaded(&mut self, hash: u64, now: u64) {
        self.entry(hash, now).loaded_until = now + NO_COALESCING_S;
    }

    /// Whether it was lately loaded, not fetched.
    pub(crate) fn was_loaded(&self, hash: u64, now: u64) -> bool {
        self.entries.get(&hash).is_some_and(|entry| entry.loaded_until > now)
    }

    pub(crate) fn disable_coalescing(&mut self, hash: u64, now: u64) {
        self.entry(hash, now).no_coalescing_until = now + NO_COALESCING_S;
    }

    pub(crate) fn is_coalescing_disabled(&self, hash: u64, now: u64) -> bool {
        let until = self.entries.get(&hash).map_or(0, |entry| entry.no_coalescing_until);
        until > now && until - now <= NO_COALESCING_S
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wait_doubles_up_to_its_limit_and_success_ends_it() {
        let mut history = History::default();
        for wait in [1, 2, 4, 8, 16, 30, 30] {
            history.record_failure(1, 100, 30);
            assert!(history.is_backing_off(1, 100 + wait - 1, 30), "{wait}");
            assert!(!history.is_backing_off(1, 100 + wait, 30), "{wait}");
        }
        assert!(!history.is_backing_off(1, 10, 30), "the clock was set back");
        history.record_success(1);
        assert!(!history.is_backing_off(1, 100, 30));
        history.record_failure(1, 100, 30);
        assert!(!history.is_backing_off(1, 101, 30), "it begins with a second again");
    }

    #[test]
    fn only_so_much_is_remembered() {
        let mut history = History::default();
        for hash in 0..3 * KEYS_MAX as u64 {
            history.disable_coalescing(hash, 100 + hash / 1000);
            assert!(history.entries.len() <= KEYS_MAX);
        }
        assert!(history.is_coalescing_disabled(3 * KEYS_MAX as u64 - 1, 115));
    }
}
