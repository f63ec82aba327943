//! Waits that fail.

use super::Engine;
use crate::application::Application;
use pollux_event::{Error, Mechanism};
use std::time::Duration;

/// So many waits in a row may fail for want of memory or the like, with such a pause after each:
/// five seconds.
const FAILED_WAITS: u32 = 100;
const FAILED_WAIT_PAUSE: Duration = Duration::from_millis(50);

impl<M: Mechanism, A: Application> Engine<M, A> {
    /// A wait that failed for want of something that may come back (ENOMEM, EAGAIN or EBUSY of a
    /// ring) is tried again, for some seconds.
    #[cold]
    pub(super) fn bear_failed_wait(&mut self, error: Error) -> Result<(), Error> {
        let passes = matches!(
            &error,
            Error::Io { source, .. } if matches!(
                source.raw_os_error(),
                Some(libc::ENOMEM | libc::EAGAIN | libc::EBUSY | libc::EINTR | libc::ENOBUFS)
            )
        );
        self.failed_waits += 1;
        if !passes || self.failed_waits > FAILED_WAITS {
            return Err(error);
        }
        if self.failed_waits == 1 {
            tracing::warn!("a wait failed and is tried again for some seconds: {error}");
        }
        std::thread::sleep(FAILED_WAIT_PAUSE);
        Ok(())
    }
}
