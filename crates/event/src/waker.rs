//! Waking a wait from another thread.

use crate::{Error, sys};
use std::{
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::Arc,
};

/// Makes the wait of one mechanism return. Cheap to clone; usable from any thread and, since it
/// is one write(2), from a signal handler.
#[derive(Clone, Debug)]
pub struct Waker {
    /// An eventfd, or the writing end of a pipe.
    written: Arc<OwnedFd>,
}

impl Waker {
    /// A waker with an eventfd of its own.
    ///
    /// # Errors
    /// [`Error::Io`] (EMFILE, ENFILE, ENOMEM).
    pub fn new() -> Result<Self, Error> {
        Ok(Self { written: Arc::new(sys::eventfd().map_err(Error::io("eventfd"))?) })
    }

    /// A waker that writes to a pipe, with the end to be read: RT signals tell of pipes, but not
    /// of eventfds. Both ends are non-blocking.
    ///
    /// # Errors
    /// [`Error::Io`] (EMFILE, ENFILE, ENOMEM).
    pub(crate) fn over_pipe() -> Result<(Self, OwnedFd), Error> {
        let (read, written) = sys::pipe().map_err(Error::io("pipe2"))?;
        Ok((Self { written: Arc::new(written) }, read))
    }

    /// Makes the current wait return or, when none is running, the next.
    pub fn wake(&self) {
        // A full counter or pipe (EAGAIN) already wakes; nothing else can fail on a live one.
        let _ = sys::write(self.written.as_fd(), &1u64.to_ne_bytes());
    }

    /// Takes the pending wake-up, so that level-triggered mechanisms come to rest.
    pub fn drain(&self) {
        let _ = sys::read(self.written.as_fd(), &mut [0; 8]);
    }

    /// The descriptor, for the mechanism's own interest set.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.written.as_fd()
    }
}
