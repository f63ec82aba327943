//! How bytes come from a peer and go to it.
//!
//! Engines wait for descriptors, which is what mechanisms tell of; whatever is received or sent goes
//! through here. Today that is a socket and nothing on it. A transport that ciphers is one more kind:
//! each `match` below then asks what it does, and no engine asks which kind it has.

pub(crate) mod handover;
pub(crate) mod listener;
pub(crate) mod outbox;
pub(crate) mod passed;
pub(crate) mod queue;

use pollux_sys as sys;
use socket2::SockRef;
use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd},
    time::Duration,
};

/// A connection to a peer, open for as long as this is.
#[derive(Debug)]
pub(crate) enum Transport {
    /// The bytes as they are.
    Plain(OwnedFd),
}

impl Transport {
    /// Receives what has come, without waiting, also where the socket is blocking. `Ok(0)` is the end of
    /// the peer's stream.
    ///
    /// # Errors
    /// recv(2); WouldBlock when nothing has come.
    #[inline]
    pub(crate) fn receive(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(socket) => sys::recv_now(socket.as_fd(), buffer),
        }
    }

    /// As [`Transport::receive`], but waits on a socket that is blocking, for as long as its timeout.
    ///
    /// # Errors
    /// recv(2); WouldBlock when the time is over.
    #[inline]
    pub(crate) fn wait_and_receive(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(socket) => sys::recv(socket.as_fd(), buffer),
        }
    }

    /// Sends without waiting, and returns how many bytes were taken; `more` says that others follow,
    /// for which a segment that is not full may wait.
    ///
    /// # Errors
    /// send(2); WouldBlock when nothing is taken.
    #[inline]
    pub(crate) fn send(&mut self, bytes: &[u8], more: bool) -> io::Result<usize> {
        match self {
            Self::Plain(socket) => sys::send_now(socket.as_fd(), bytes, more),
        }
    }

    /// Sends two pieces, one behind the other, as [`Transport::send`] sends one.
    ///
    /// # Errors
    /// sendmsg(2); WouldBlock when nothing is taken.
    #[inline]
    pub(crate) fn send_two(&mut self, first: &[u8], second: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(socket) => sys::send_two(socket.as_fd(), first, second),
        }
    }

    /// Sends up to `len` bytes of a file from `offset` on, which moves on by what was taken. Never waits
    /// on a socket that is not blocking.
    ///
    /// # Errors
    /// sendfile(2); WouldBlock when nothing is taken. `Ok(0)` is the end of the file.
    #[inline]
    pub(crate) fn send_file(
        &mut self,
        file: BorrowedFd<'_>,
        offset: &mut u64,
        len: usize,
    ) -> io::Result<usize> {
        match self {
            Self::Plain(socket) => sys::sendfile(socket.as_fd(), file, offset, len),
        }
    }

    /// Whether segments that are not full wait for more (TCP_CORK), where the peer is a TCP socket.
    pub(crate) fn set_cork(&mut self, on: bool) {
        match self {
            // On a UNIX socket there are no segments.
            Self::Plain(socket) => drop(sys::set_cork(socket.as_fd(), on)),
        }
    }

    /// Ends our stream; the peer's goes on.
    ///
    /// # Errors
    /// shutdown(2).
    pub(crate) fn shut(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(socket) => sys::shutdown_write(socket.as_fd()),
        }
    }

    /// How many bytes the kernel has that the peer has not acknowledged.
    ///
    /// # Errors
    /// ioctl(2), SIOCOUTQ.
    pub(crate) fn unacknowledged(&self) -> io::Result<u64> {
        sys::unacknowledged(self.as_fd())
    }

    /// Before it is closed: what the kernel has may still leave, but for no longer than this. Else it
    /// would occupy memory for many minutes.
    pub(crate) fn limit_what_is_left(&self, time: Duration) {
        let is_limited = SockRef::from(self).set_tcp_user_timeout(Some(time)).is_ok();
        if !is_limited {
            let _ = sys::reset_on_close(self.as_fd());
        }
    }

    /// The socket, to be closed or handed on.
    pub(crate) fn into_socket(self) -> OwnedFd {
        match self {
            Self::Plain(socket) => socket,
        }
    }
}

impl AsFd for Transport {
    #[inline]
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Plain(socket) => socket.as_fd(),
        }
    }
}

impl AsRawFd for Transport {
    #[inline]
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}
