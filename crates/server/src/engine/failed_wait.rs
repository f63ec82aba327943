//! The policy for waits that fail, the same for every wait.

use std::{fmt::Display, io, thread, time::Duration};

/// The maximum number of consecutive waits that may fail for lack of memory or the like. With the pause
/// after each, this is five seconds.
const FAILED_WAITS: u32 = 100;
const FAILED_WAIT_PAUSE: Duration = Duration::from_millis(50);

/// The number of consecutive waits that have failed.
#[derive(Debug, Default)]
pub(crate) struct FailedWaits(u32);

impl FailedWaits {
    /// Resets the count after a wait that succeeded.
    #[inline]
    pub(crate) fn forget(&mut self) {
        self.0 = 0;
    }

    /// Records that a wait has failed, with the error number `number` if the kernel returned one. If the
    /// cause may be temporary (ENOMEM, EAGAIN or EBUSY of a ring), this function pauses for a moment and
    /// returns true: the caller tries again. After some seconds of such failures, and after any other
    /// failure, it returns false.
    #[cold]
    pub(crate) fn bear(&mut self, number: Option<i32>, error: &dyn Display) -> bool {
        self.0 = self.0.saturating_add(1);
        if !is_transient(number) || self.0 > FAILED_WAITS {
            return false;
        }
        if self.0 == 1 {
            tracing::warn!("a wait failed and is tried again for some seconds: {error}");
        }
        thread::sleep(FAILED_WAIT_PAUSE);
        true
    }

    /// Calls [`FailedWaits::bear`] for an error of a system call.
    ///
    /// # Errors
    /// Returns the error if the wait must not be tried again.
    #[cold]
    pub(crate) fn bear_error(&mut self, error: io::Error) -> io::Result<()> {
        if self.bear(error.raw_os_error(), &error) { Ok(()) } else { Err(error) }
    }
}

fn is_transient(number: Option<i32>) -> bool {
    const TRANSIENT: [i32; 5] =
        [libc::ENOMEM, libc::EAGAIN, libc::EBUSY, libc::EINTR, libc::ENOBUFS];
    number.is_some_and(|number| TRANSIENT.contains(&number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_come_back_is_waited_for_and_not_for_ever() {
        let error = || io::Error::from_raw_os_error(libc::ENOMEM);
        let mut waits = FailedWaits(FAILED_WAITS - 2);
        assert!(waits.bear_error(error()).is_ok() && waits.bear_error(error()).is_ok());
        assert_eq!(waits.bear_error(error()).unwrap_err().raw_os_error(), Some(libc::ENOMEM));
        waits.forget();
        assert!(waits.bear_error(error()).is_ok(), "one went well since");
        assert!(!waits.bear(Some(libc::EBADF), &"bad"), "this stays");
        assert!(!waits.bear(None, &"no number"));
    }
}
