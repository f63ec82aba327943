//! Waits for events: temporary failures are tolerated, and a worker that was suspended is detected.

use super::Engine;
use crate::service::Service;
use pollux_event::{Error, Mechanism};
use std::time::Duration;

/// The number of ticks since a missed deadline after which the worker must have been suspended: 0.2 s.
const STOOD_STILL: u32 = 2;

impl<M: Mechanism, A: Service> Engine<M, A> {
    /// Waits. Returns the number of events.
    pub(super) fn wait(&mut self, timeout: Option<Duration>) -> Result<usize, Error> {
        match self.mechanism.wait(timeout) {
            Ok(happened) => {
                self.failed_waits.forget();
                Ok(happened)
            }
            Err(error) => self.bear_failed_wait(error).map(|()| 0),
        }
    }

    #[cold]
    fn bear_failed_wait(&mut self, error: Error) -> Result<(), Error> {
        let number = match &error {
            Error::Io { source, .. } => source.raw_os_error(),
            _ => None,
        };
        if self.failed_waits.bear(number, &error) { Ok(()) } else { Err(error) }
    }

    /// Returns whether a deadline passed so long ago that this worker must have been suspended.
    pub(super) fn is_overdue(&self) -> bool {
        let now = self.worker.clock.tick();
        self.timers.next().is_some_and(|tick| tick.saturating_add(STOOD_STILL) <= now)
    }
}
