//! The log lines about a store that stops answering or answers again.

use pollux_guestbook::{Answer, StoreError};
use std::{
    mem::{Discriminant, discriminant},
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

/// The shortest time between two log lines about a store whose state changes often.
const SILENCE: Duration = Duration::from_secs(10);

/// The last state of a store that the log has reported. All workers of a process share it: a log line for
/// each failed request would flood the log, and a worker that writes a line waits for the reader of the log.
#[derive(Debug, Default)]
pub(crate) struct StoreErrors {
    /// Whether the last line reported an outage.
    is_reported: AtomicBool,
    reported: Mutex<Option<(Instant, Discriminant<StoreError>)>>,
}

impl StoreErrors {
    /// Notes an answer of the store, or the reason why there is none.
    #[inline]
    pub(crate) fn note(&self, answer: &Result<Answer, StoreError>) {
        match answer {
            Ok(_) if self.is_reported.load(Ordering::Relaxed) => self.is_over(),
            Ok(_) => {}
            Err(error) => self.is_there(error),
        }
    }

    #[cold]
    fn is_there(&self, error: &StoreError) {
        // The worker that holds the lock reports the same error.
        let Ok(mut reported) = self.reported.try_lock() else { return };
        if let Some((at, what)) = &*reported {
            let is_known = self.is_reported.load(Ordering::Relaxed) && *what == discriminant(error);
            if is_known || at.elapsed() < SILENCE {
                return;
            }
        }
        *reported = Some((Instant::now(), discriminant(error)));
        self.is_reported.store(true, Ordering::Relaxed);
        tracing::warn!("the guestbook's store: {error}");
    }

    #[cold]
    fn is_over(&self) {
        if self.is_reported.swap(false, Ordering::Relaxed) {
            tracing::info!("the guestbook's store answers again");
        }
    }
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
            assert!(store_errors.is_reported.load(Ordering::Relaxed));
        }
        let first = store_errors.reported.lock().unwrap().expect("an outage was reported").0;
        store_errors.note(&Ok(Answer::Posted));
        assert!(!store_errors.is_reported.load(Ordering::Relaxed));
        // Within `SILENCE` neither the next failure nor its end is reported.
        store_errors.note(&failed);
        store_errors.note(&Err(StoreError::Loading));
        if first.elapsed() < SILENCE {
            assert!(!store_errors.is_reported.load(Ordering::Relaxed));
        }
    }
}
