//! How bytes come from a peer and go to it.
//!
//! Engines wait for descriptors, which is what mechanisms report; all bytes are received and sent
//! through here. No engine checks which kind of transport it has.

pub(crate) mod accept_loop;
pub(crate) mod handover;
pub(crate) mod listener;
pub(crate) mod outbox;
pub(crate) mod passed;
pub(crate) mod preamble;
pub(crate) mod queue;
pub(crate) mod tls;

use pollux_sys as sys;
use socket2::SockRef;
use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd},
    sync::Arc,
    time::Duration,
};
use tls::{HandshakeStep, Tls, TlsPeer};

/// A connection to a peer, open for as long as this is.
#[derive(Debug)]
pub(crate) enum Transport {
    /// The bytes as they are.
    Plain(OwnedFd),
    /// The bytes in TLS records. Its session is this thread's: see [`tls`].
    Tls(OwnedFd),
}

impl Transport {
    /// A connection that a client has made to a TLS listener.
    ///
    /// # Errors
    /// There is no memory for a session; the socket comes back.
    pub(crate) fn accept_tls(
        socket: OwnedFd,
        server: &Arc<Tls>,
    ) -> Result<Self, (OwnedFd, io::Error)> {
        match tls::accept(socket.as_fd(), server) {
            Ok(()) => Ok(Self::Tls(socket)),
            Err(error) => Err((socket, error)),
        }
    }

    /// Begins a TLS handshake on a connection that this end has made and that is connected now.
    ///
    /// # Errors
    /// There is no memory for a session, or rustls refuses the configuration.
    pub(crate) fn begin_tls(&mut self, peer: &Arc<TlsPeer>) -> io::Result<()> {
        match self {
            Self::Plain(_) => Err(io::ErrorKind::InvalidInput.into()),
            Self::Tls(socket) => tls::connect(socket.as_fd(), peer),
        }
    }

    /// Goes on with the handshake that [`Transport::begin_tls`] has begun, without waiting. Nothing may be
    /// sent or received before it is over.
    ///
    /// # Errors
    /// The handshake has failed, for a reason of TLS ([`pollux_tls::HandshakeError`]) or of the socket.
    pub(crate) fn shake_hands(&mut self) -> io::Result<HandshakeStep> {
        match self {
            Self::Plain(_) => Ok(HandshakeStep::Done),
            Self::Tls(socket) => tls::shake_hands(socket.as_fd()),
        }
    }

    /// An idle connection with the TLS session that another process has parked.
    ///
    /// # Errors
    /// It is no session, or there is no memory for one; the socket comes back.
    pub(crate) fn resume_tls(
        socket: OwnedFd,
        session: &[u8],
        server: &Arc<Tls>,
    ) -> Result<Self, OwnedFd> {
        match tls::resume(socket.as_fd(), session, server) {
            Ok(()) => Ok(Self::Tls(socket)),
            Err(error) => {
                tracing::warn!("closing a connection, its TLS session cannot be used: {error}");
                Err(socket)
            }
        }
    }

    /// What another process must know to go on with an idle connection, besides its socket: of TLS the
    /// session, otherwise nothing. `None` where a part of a record has come, or not all has left.
    pub(crate) fn park(&mut self) -> Option<Vec<u8>> {
        match self {
            Self::Plain(_) => Some(Vec::new()),
            Self::Tls(socket) => tls::park(socket.as_fd()),
        }
    }

    /// Receives available input. Does not wait, even if the socket is blocking. `Ok(0)` is the end of the
    /// peer's stream.
    ///
    /// # Errors
    /// recv(2); WouldBlock when nothing has come.
    #[inline]
    pub(crate) fn receive(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(socket) => sys::recv_now(socket.as_fd(), buffer),
            Self::Tls(socket) => tls::receive(socket.as_fd(), buffer, sys::recv_now),
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
            Self::Tls(socket) => tls::receive(socket.as_fd(), buffer, sys::recv),
        }
    }

    /// Whether something that has come may be here, and not in the socket: then no event tells of it.
    #[inline]
    pub(crate) fn keeps_input(&self) -> bool {
        matches!(self, Self::Tls(_))
    }

    /// Whether the next receive will return the end of the client's stream, or an error, without input from the socket.
    /// A wait for input would not notice it: with TLS the end may have come in one piece with a request.
    #[inline]
    pub(crate) fn has_ended(&self) -> bool {
        match self {
            Self::Plain(_) => false,
            Self::Tls(socket) => tls::has_ended(socket.as_fd()),
        }
    }

    /// Whether there may be more than the last receive has brought, `received` bytes into a buffer of
    /// `room`. To be called right after it.
    #[inline]
    pub(crate) fn may_have_more(&self, received: usize, room: usize) -> bool {
        match self {
            // A short read has drained a socket: epoll(7), "edge-triggered", Q9.
            Self::Plain(_) => received == room,
            Self::Tls(_) => tls::may_have_more(),
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
            Self::Tls(socket) => tls::send(socket.as_fd(), bytes, &[], more),
        }
    }

    /// Whether bytes for which [`Transport::send`] returned WouldBlock must be offered again before any
    /// others: they are in a record already.
    #[inline]
    pub(crate) fn must_repeat(&self) -> bool {
        matches!(self, Self::Tls(_))
    }

    /// Sends two pieces, one behind the other, as [`Transport::send`] sends one.
    ///
    /// # Errors
    /// sendmsg(2); WouldBlock when nothing is taken.
    #[inline]
    pub(crate) fn send_two(&mut self, first: &[u8], second: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(socket) => sys::send_two(socket.as_fd(), first, second),
            Self::Tls(socket) => tls::send(socket.as_fd(), first, second, false),
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
            Self::Tls(socket) => tls::send_file(socket.as_fd(), file, offset, len),
        }
    }

    /// Whether segments that are not full wait for more (TCP_CORK), where the peer is a TCP socket.
    pub(crate) fn set_cork(&mut self, on: bool) {
        match self {
            // On a UNIX socket there are no segments.
            Self::Plain(socket) | Self::Tls(socket) => drop(sys::set_cork(socket.as_fd(), on)),
        }
    }

    /// Ends our stream; the peer's goes on.
    ///
    /// # Errors
    /// shutdown(2).
    pub(crate) fn shut(&mut self) -> io::Result<()> {
        self.say_end();
        self.cut()
    }

    /// As [`Transport::shut`], for a stream that is not whole: its end does not say that it is.
    ///
    /// # Errors
    /// shutdown(2).
    pub(crate) fn cut(&mut self) -> io::Result<()> {
        sys::shutdown_write(self.as_fd())
    }

    /// Before a connection is closed that owes its peer nothing: says that this is the proper end, where
    /// the transport has a word for it.
    pub(crate) fn say_end(&mut self) {
        match self {
            Self::Plain(_) => {}
            Self::Tls(socket) => tls::close_notify(socket.as_fd()),
        }
    }

    /// How many bytes the kernel has that the peer has not acknowledged.
    ///
    /// # Errors
    /// ioctl(2), SIOCOUTQ.
    pub(crate) fn unacknowledged(&self) -> io::Result<u64> {
        sys::unacknowledged(self.as_fd())
    }

    /// Limits how long the kernel tries to send its buffer after the socket is closed. Otherwise the
    /// buffer would occupy memory for many minutes.
    pub(crate) fn limit_unsent_time(&self, time: Duration) {
        let is_limited = SockRef::from(self).set_tcp_user_timeout(Some(time)).is_ok();
        if !is_limited {
            let _ = sys::reset_on_close(self.as_fd());
        }
    }

    /// The socket, to be closed or handed on.
    pub(crate) fn into_socket(self) -> OwnedFd {
        match self {
            Self::Plain(socket) => socket,
            Self::Tls(socket) => {
                tls::forget(socket.as_fd());
                socket
            }
        }
    }
}

impl AsFd for Transport {
    #[inline]
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Plain(socket) | Self::Tls(socket) => socket.as_fd(),
        }
    }
}

impl AsRawFd for Transport {
    #[inline]
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}
