//! Wakes a wait from another thread.

use crate::Error;
use pollux_sys as sys;
use std::{
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::Arc,
};

/// A handle that makes the wait of one mechanism return. It is cheap to clone; [`Waker::wake`] may be
/// called from any thread and from a signal handler.
#[derive(Clone, Debug)]
pub struct Waker {
    /// An eventfd, the writing end of a pipe, or one of two sockets.
    written: Arc<OwnedFd>,
    /// The reading end of the pipe, or the other socket; otherwise the same as `written`. The waker
    /// keeps it open, because it may outlive its set, and a write to a pipe or socket whose other end
    /// is closed raises SIGPIPE.
    read: Arc<OwnedFd>,
}

/// The number of bytes that one [`Waker::drain`] reads: as many as wake-ups leave in a full socket.
const DRAINED: usize = 4096;

impl Waker {
    /// A waker with an eventfd of its own.
    ///
    /// # Errors
    /// [`Error::Io`] (EMFILE, ENFILE, ENOMEM).
    pub fn new() -> Result<Self, Error> {
        let fd = Arc::new(sys::eventfd().map_err(Error::io("eventfd"))?);
        Ok(Self { written: fd.clone(), read: fd })
    }

    /// A waker that writes to a pipe: pipes send RT signals, eventfds do not. Both ends are
    /// non-blocking.
    ///
    /// # Errors
    /// [`Error::Io`] (EMFILE, ENFILE, ENOMEM).
    pub(crate) fn over_pipe() -> Result<Self, Error> {
        let (read, written) = sys::pipe().map_err(Error::io("pipe2"))?;
        Ok(Self { written: Arc::new(written), read: Arc::new(read) })
    }

    /// A waker that writes to a socket: sockets give /dev/poll hints, eventfds do not, and a set
    /// with one entry without hints polls it at every scan.
    ///
    /// # Errors
    /// [`Error::Io`] (EMFILE, ENFILE, ENOMEM).
    pub(crate) fn over_sockets() -> Result<Self, Error> {
        let (read, written) = sys::stream_pair().map_err(Error::io("socketpair"))?;
        Ok(Self { written: Arc::new(written), read: Arc::new(read) })
    }

    /// Makes the present wait return or, if none is running, the next one.
    ///
    /// Async-signal-safe (signal-safety(7)): one write(2) without locks or allocation that leaves
    /// errno unchanged. For that reason it is not counted among the system calls.
    pub fn wake(&self) {
        // A full counter, pipe or socket (EAGAIN) already wakes the wait; no other error can occur on
        // an open one.
        sys::write_from_handler(self.written.as_fd(), &1u64.to_ne_bytes());
    }

    /// Takes pending wake-ups, so that level-triggered mechanisms stop reporting them.
    pub fn drain(&self) {
        let _ = sys::read(self.read.as_fd(), &mut [0; DRAINED]);
    }

    /// The descriptor, for the mechanism's own interest set.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.read.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wake_up_that_fails_leaves_errno_alone() {
        let waker = Waker::over_pipe().unwrap();
        // A pipe holds 64 KiB: the 8,193rd write and all later ones are refused with EAGAIN.
        for _ in 0..10_000 {
            waker.wake();
        }
        let refused = sys::write(waker.written.as_fd(), &[1]).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EAGAIN));
        std::fs::File::open("/there is no such file").unwrap_err();
        let before = std::io::Error::last_os_error();
        assert_eq!(before.raw_os_error(), Some(libc::ENOENT));
        waker.wake();
        assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::ENOENT));
    }
}
