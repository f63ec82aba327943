//! The log lines about a store that stops answering or answers again.

use crate::time::clock::Clock;
use pollux_guestbook::{Answer, StoreError};
use pollux_sys::SharedWords;
use std::{
    hash::{DefaultHasher, Hash as _, Hasher as _},
    mem::discriminant,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

/// The shortest time between two log lines about a store whose state changes often.
const SILENCE: Duration = Duration::from_secs(10);

/// The index of the word with the kind of the outage that the log has reported last, as [`kind_of`]; 0 if none is
/// reported, or its end is.
const OUTAGE: usize = 0;
/// The index of the word with the time of that line, on the clock of [`Clock::now_ms`]; 0 before the first line.
const REPORTED_AT: usize = 1;
/// The number of words.
const WORDS: usize = 2;

/// The last state of a store that the log has reported. All workers share it, also those that are forked later: a log
/// line for each failed request would flood the log, and a worker that writes a line waits for the reader of the log.
#[derive(Debug)]
pub(crate) struct StoreErrors {
    /// `None` if there was no memory for them.
    shared: Option<SharedWords>,
    /// The words of this process if it has no shared ones.
    own: [AtomicU64; WORDS],
}

impl Default for StoreErrors {
    fn default() -> Self {
        Self { shared: SharedWords::new(WORDS).ok(), own: Default::default() }
    }
}

impl StoreErrors {
    fn words(&self) -> &[AtomicU64] {
        self.shared.as_deref().unwrap_or(&self.own)
    }

    /// Notes an answer of the store, or the reason why there is none.
    #[inline]
    pub(crate) fn note(&self, answer: &Result<Answer, StoreError>) {
        match answer {
            Ok(_) if self.is_reported() => self.is_over(),
            Ok(_) => {}
            Err(error) => self.is_there(error),
        }
    }

    /// Returns whether the last line reported an outage.
    fn is_reported(&self) -> bool {
        self.words()[OUTAGE].load(Relaxed) != 0
    }

    #[cold]
    fn is_there(&self, error: &StoreError) {
        let (words, kind) = (self.words(), kind_of(error));
        if words[OUTAGE].load(Relaxed) == kind {
            return;
        }
        let (before, now) = (words[REPORTED_AT].load(Relaxed), Clock::now_ms().max(1));
        let is_soon = before != 0 && Duration::from_millis(now.saturating_sub(before)) < SILENCE;
        // Of the workers that notice an outage at the same time, one reports it.
        if is_soon || words[REPORTED_AT].compare_exchange(before, now, Relaxed, Relaxed).is_err() {
            return;
        }
        words[OUTAGE].store(kind, Relaxed);
        tracing::warn!("the guestbook's store: {error}");
    }

    #[cold]
    fn is_over(&self) {
        if self.words()[OUTAGE].swap(0, Relaxed) != 0 {
            tracing::info!("the guestbook's store answers again");
        }
    }
}

/// Returns a number for the kind of an error, which is not 0 and the same in all processes.
fn kind_of(error: &StoreError) -> u64 {
    let mut hasher = DefaultHasher::new();
    discriminant(error).hash(&mut hasher);
    hasher.finish() | 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_that_comes_and_goes_is_reported_once() {
        let store_errors = StoreErrors::default();
        let failed = Err(StoreError::TimedOut);
        for _ in 0..100 {
            store_errors.note(&failed);
            assert!(store_errors.is_reported());
        }
        let first = store_errors.words()[REPORTED_AT].load(Relaxed);
        assert_ne!(first, 0, "an outage was reported");
        store_errors.note(&Ok(Answer::Posted));
        assert!(!store_errors.is_reported());
        // Within `SILENCE` neither the next failure nor its end is reported.
        store_errors.note(&failed);
        store_errors.note(&Err(StoreError::Loading));
        if Duration::from_millis(Clock::now_ms() - first) < SILENCE {
            assert!(!store_errors.is_reported());
        }
    }

    #[test]
    fn kinds_of_errors_are_distinguished_and_their_texts_are_not() {
        let unreachable = |why: &str| kind_of(&StoreError::Unreachable(why.to_owned()));
        assert_eq!(unreachable("a"), unreachable("b"));
        assert_ne!(unreachable("a"), kind_of(&StoreError::TimedOut));
        assert_ne!(kind_of(&StoreError::Busy), kind_of(&StoreError::TimedOut));
    }
}
