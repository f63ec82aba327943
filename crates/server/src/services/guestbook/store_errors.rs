//! What the log is told of a store that does not answer: that it does not, and that it does again.

use pollux_guestbook::{Answer, StoreError};
use std::{
    mem::{Discriminant, discriminant},
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

/// A store that comes and goes is told of no more often than this.
const SILENCE: Duration = Duration::from_secs(10);

/// Whether a store answers, as far as the log knows. All workers of a process share it: a line for
/// each request that has failed would be as many lines as requests, and whoever writes them waits for
/// who reads them.
#[derive(Debug, Default)]
pub(crate) struct StoreErrors {
    /// What was told last is that it does not answer.
    is_told: AtomicBool,
    told: Mutex<Option<(Instant, Discriminant<StoreError>)>>,
}

impl StoreErrors {
    /// An answer, or why there is none.
    #[inline]
    pub(super) fn note(&self, answer: &Result<Answer, StoreError>) {
        match answer {
            Ok(_) if self.is_told.load(Ordering::Relaxed) => self.is_over(),
            Ok(_) => {}
            Err(error) => self.is_there(error),
        }
    }

    #[cold]
    fn is_there(&self, error: &StoreError) {
        // Whoever holds it tells of the same.
        let Ok(mut told) = self.told.try_lock() else { return };
        if let Some((at, what)) = &*told {
            let is_known = self.is_told.load(Ordering::Relaxed) && *what == discriminant(error);
            if is_known || at.elapsed() < SILENCE {
                return;
            }
        }
        *told = Some((Instant::now(), discriminant(error)));
        self.is_told.store(true, Ordering::Relaxed);
        tracing::warn!("the guestbook's store: {error}");
    }

    #[cold]
    fn is_over(&self) {
        if self.is_told.swap(false, Ordering::Relaxed) {
            tracing::info!("the guestbook's store answers again");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_that_comes_and_goes_is_told_of_once() {
        let store_errors = StoreErrors::default();
        let failed = Err(StoreError::TimedOut);
        for _ in 0..100 {
            store_errors.note(&failed);
            assert!(store_errors.is_told.load(Ordering::Relaxed));
        }
        let first = store_errors.told.lock().unwrap().expect("it was told").0;
        store_errors.note(&Ok(Answer::Posted));
        assert!(!store_errors.is_told.load(Ordering::Relaxed));
        // Within the silence neither the next failure nor its end is.
        store_errors.note(&failed);
        store_errors.note(&Err(StoreError::Loading));
        if first.elapsed() < SILENCE {
            assert!(!store_errors.is_told.load(Ordering::Relaxed));
        }
    }
}
