//! Short-term memory about keys: which origins fail, and which responses cannot be shared.

use std::collections::HashMap;

/// The maximum number of keys with a history.
const KEYS_MAX: usize = 4096;
/// The time in seconds during which requests do not wait for each other after a response could not be
/// stored.
const NO_COALESCING_S: u64 = 10;

#[derive(Clone, Copy, Debug, Default)]
struct KeyHistory {
    failures: u32,
    /// Before this time the origin receives no request if a stale response can be served.
    retry_at: u64,
    /// Before this time each request is forwarded separately.
    no_coalescing_until: u64,
    /// Before this time the object in memory counts as loaded from disk.
    loaded_until: u64,
}

/// History per key, bounded: when it is full, expired entries are removed; if none has expired, all
/// are. A lost entry costs at most one request to the origin.
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

    /// Records a failure of the origin. The back-off starts at one second and doubles up to `max`.
    pub(crate) fn record_failure(&mut self, hash: u64, now: u64, max: u32) {
        let entry = self.entry(hash, now);
        let wait = 1u64 << entry.failures.min(20);
        entry.failures += 1;
        entry.retry_at = now + wait.min(u64::from(max));
    }

    /// Records a response of the origin: ends the back-off.
    pub(crate) fn record_success(&mut self, hash: u64) {
        if let Some(entry) = self.entries.get_mut(&hash) {
            (entry.failures, entry.retry_at) = (0, 0);
        }
    }

    /// Whether the origin failed recently. If the clock was set back, the back-off ends.
    pub(crate) fn is_backing_off(&self, hash: u64, now: u64, max: u32) -> bool {
        let retry_at = self.entries.get(&hash).map_or(0, |entry| entry.retry_at);
        retry_at > now && retry_at - now <= u64::from(max)
    }

    pub(crate) fn loaded(&mut self, hash: u64, now: u64) {
        self.entry(hash, now).loaded_until = now + NO_COALESCING_S;
    }

    /// Whether the object was recently loaded from disk instead of fetched.
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
    fn back_off_doubles_up_to_its_limit_and_ends_with_success() {
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
        assert!(!history.is_backing_off(1, 101, 30), "the back-off starts at one second again");
    }

    #[test]
    fn history_is_bounded() {
        let mut history = History::default();
        for hash in 0..3 * KEYS_MAX as u64 {
            history.disable_coalescing(hash, 100 + hash / 1000);
            assert!(history.entries.len() <= KEYS_MAX);
        }
        assert!(history.is_coalescing_disabled(3 * KEYS_MAX as u64 - 1, 115));
    }
}
