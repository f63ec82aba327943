//! What is remembered of keys beside what is stored: that the origin fails, that waiting is in vain.

use std::collections::HashMap;

/// The most keys that something is remembered of.
const NOTES_MAX: usize = 4096;
/// How long nobody waits for others' fetches of what could not be stored, in seconds.
const APART: u64 = 10;

#[derive(Clone, Copy, Debug, Default)]
struct Note {
    failures: u32,
    /// Until then the origin is not asked where there is something to answer with.
    retry_at: u64,
    /// Until then each request is sent on by itself.
    apart_until: u64,
    /// Until then, what is in memory came from the second tier.
    loaded_until: u64,
}

/// Bounded: when it is full, what is over goes; if nothing is, all. Forgetting costs a request.
#[derive(Debug, Default)]
pub(crate) struct Notes {
    notes: HashMap<u64, Note>,
}

impl Notes {
    fn note(&mut self, hash: u64, now: u64) -> &mut Note {
        if self.notes.len() >= NOTES_MAX && !self.notes.contains_key(&hash) {
            self.notes
                .retain(|_, note| note.retry_at.max(note.apart_until).max(note.loaded_until) > now);
            if self.notes.len() >= NOTES_MAX {
                self.notes.clear();
            }
        }
        self.notes.entry(hash).or_default()
    }

    /// The origin failed: the next try is a second later, twice that the next time, at most `max`.
    pub(crate) fn failed(&mut self, hash: u64, now: u64, max: u32) {
        let note = self.note(hash, now);
        let wait = 1u64 << note.failures.min(20);
        note.failures += 1;
        note.retry_at = now + wait.min(u64::from(max));
    }

    /// It answered.
    pub(crate) fn succeeded(&mut self, hash: u64) {
        if let Some(note) = self.notes.get_mut(&hash) {
            (note.failures, note.retry_at) = (0, 0);
        }
    }

    /// Whether the origin failed lately. After the clock was set back it did not.
    pub(crate) fn backs_off(&self, hash: u64, now: u64, max: u32) -> bool {
        let retry_at = self.notes.get(&hash).map_or(0, |note| note.retry_at);
        retry_at > now && retry_at - now <= u64::from(max)
    }

    pub(crate) fn loaded(&mut self, hash: u64, now: u64) {
        self.note(hash, now).loaded_until = now + APART;
    }

    /// Whether it was lately loaded, not fetched.
    pub(crate) fn was_loaded(&self, hash: u64, now: u64) -> bool {
        self.notes.get(&hash).is_some_and(|note| note.loaded_until > now)
    }

    pub(crate) fn keep_apart(&mut self, hash: u64, now: u64) {
        self.note(hash, now).apart_until = now + APART;
    }

    pub(crate) fn is_apart(&self, hash: u64, now: u64) -> bool {
        let until = self.notes.get(&hash).map_or(0, |note| note.apart_until);
        until > now && until - now <= APART
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wait_doubles_up_to_its_limit_and_success_ends_it() {
        let mut notes = Notes::default();
        for wait in [1, 2, 4, 8, 16, 30, 30] {
            notes.failed(1, 100, 30);
            assert!(notes.backs_off(1, 100 + wait - 1, 30), "{wait}");
            assert!(!notes.backs_off(1, 100 + wait, 30), "{wait}");
        }
        assert!(!notes.backs_off(1, 10, 30), "the clock was set back");
        notes.succeeded(1);
        assert!(!notes.backs_off(1, 100, 30));
        notes.failed(1, 100, 30);
        assert!(!notes.backs_off(1, 101, 30), "it begins with a second again");
    }

    #[test]
    fn only_so_much_is_remembered() {
        let mut notes = Notes::default();
        for hash in 0..3 * NOTES_MAX as u64 {
            notes.keep_apart(hash, 100 + hash / 1000);
            assert!(notes.notes.len() <= NOTES_MAX);
        }
        assert!(notes.is_apart(3 * NOTES_MAX as u64 - 1, 115));
    }
}
