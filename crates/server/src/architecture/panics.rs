//! The limit of panics after which the server ends.

use anyhow::ensure;
use std::{
    collections::VecDeque,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

/// The maximum number of workers that are replaced within [`WINDOW`]. If more workers panic, the
/// server has a permanent fault, and it ends.
const REPLACEMENTS_MAX: usize = 10;
const WINDOW: Duration = Duration::from_secs(60);

/// The times at which the last workers of a server were replaced.
#[derive(Debug, Default)]
pub(crate) struct PanicLimit(Mutex<VecDeque<Instant>>);

impl PanicLimit {
    /// Counts one more panic.
    ///
    /// # Errors
    /// Too many workers have panicked within [`WINDOW`].
    pub(crate) fn admit(&self, now: Instant) -> anyhow::Result<()> {
        let mut recent = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        recent.retain(|at| now.saturating_duration_since(*at) < WINDOW);
        ensure!(
            recent.len() < REPLACEMENTS_MAX,
            "more than {REPLACEMENTS_MAX} workers have panicked within {} s",
            WINDOW.as_secs()
        );
        recent.push_back(now);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crash_loop_ends_and_rare_panics_do_not() {
        let (limit, now) = (PanicLimit::default(), Instant::now());
        let rarely = WINDOW / REPLACEMENTS_MAX as u32;
        for count in 0..3 * REPLACEMENTS_MAX as u32 {
            limit.admit(now + count * rarely).unwrap();
        }
        let limit = PanicLimit::default();
        (0..REPLACEMENTS_MAX).for_each(|_| limit.admit(now).unwrap());
        let message = limit.admit(now + WINDOW / 2).unwrap_err().to_string();
        assert!(message.contains("10 workers"), "{message}");
        limit.admit(now + WINDOW).unwrap();
    }
}
