//! Waking a wait from another thread.

use crate::{Error, sys};
use std::{
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::Arc,
};

/// Makes the wait of one mechanism return. Cheap to clone; usable from any thread and, since it
/// is one write(2) to an eventfd, from a signal handler.
#[derive(Clone, Debug)]
pub struct Waker {
    eventfd: Arc<OwnedFd>,
}

impl Waker {
    /// A waker with an eventfd of its own.
    ///
    /// # Errors
    /// [`Error::Io`] (EMFILE, ENFILE, ENOMEM).
    pub fn new() -> Result<Self, Error> {
        Ok(Self { eventfd: Arc::new(sys::eventfd().map_err(Error::io("eventfd"))?) })
    }

    /// Makes the current wait return or, when none is running, the next.
    pub fn wake(&self) {
        // A full counter (EAGAIN) already wakes; nothing else can fail on a live eventfd.
        let _ = sys::write(self.eventfd.as_fd(), &1u64.to_ne_bytes());
    }

    /// Takes the pending wake-up, so that level-triggered mechanisms come to rest.
    pub fn drain(&self) {
        let _ = sys::read(self.eventfd.as_fd(), &mut [0; 8]);
    }

    /// The descriptor, for the mechanism's own interest set.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.eventfd.as_fd()
    }
}
