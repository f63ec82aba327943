//! Transports: they receive bytes from a peer and send bytes to it.
//!
//! Engines wait for descriptors, because mechanisms report descriptors. All bytes are received and sent
//! through this module. No engine checks which kind of transport it has.

pub(crate) mod accept_loop;
pub(crate) mod early;
pub(crate) mod handover;
pub(crate) mod inherited;
pub(crate) mod listener;
pub(crate) mod outbox;
pub(crate) mod passed;
pub(crate) mod preamble;
pub(crate) mod queue;
pub(crate) mod role;
pub(crate) mod tls;

use pollux_sys as sys;
use socket2::{SockRef, TcpKeepalive};
use std::{
    io,
    net::IpAddr,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd},
    sync::Arc,
    time::Duration,
};
use tls::{HandshakeStep, Tls, TlsPeer};

/// The time without a byte from a peer after which it is probed, the time between two probes, and the number
/// of probes without an answer after which the connection ends: three minutes in all.
const PROBE_AFTER: Duration = Duration::from_secs(120);
const PROBE_PAUSE: Duration = Duration::from_secs(15);
const PROBES: u32 = 4;
/// The same time for a peer that acknowledges nothing or takes nothing: the kernel does not probe while it has
/// something to send, and would try that for a quarter of an hour.
const GONE_AFTER: Duration = PROBE_AFTER.saturating_add(PROBE_PAUSE.saturating_mul(PROBES));

/// A connection to a peer; it stays open as long as this value exists.
#[derive(Debug)]
pub(crate) enum Transport {
    /// Bytes without encryption.
    Plain(OwnedFd),
    /// Bytes in TLS records. The session belongs to this thread: see [`tls`].
    Tls(OwnedFd),
}

impl Transport {
    /// Creates the transport of a connection that a client has made to a TLS listener. `client` is its
    /// address if it is known: the one in a PROXY protocol header differs from that of the peer.
    ///
    /// # Errors
    /// There is no memory for a session; the socket is returned.
    pub(crate) fn accept_tls(
        socket: OwnedFd,
        client: Option<IpAddr>,
        server: &Arc<Tls>,
    ) -> Result<Self, (OwnedFd, io::Error)> {
        match tls::accept(socket.as_fd(), client, server) {
            Ok(()) => Ok(Self::Tls(socket)),
            Err(error) => Err((socket, error)),
        }
    }

    /// Begins a TLS handshake on a connection that this side has made and that is now connected.
    ///
    /// # Errors
    /// There is no memory for a session, or rustls refuses the configuration.
    pub(crate) fn begin_tls(&mut self, peer: &Arc<TlsPeer>) -> io::Result<()> {
        match self {
            Self::Plain(_) => Err(io::ErrorKind::InvalidInput.into()),
            Self::Tls(socket) => tls::connect(socket.as_fd(), peer),
        }
    }

    /// Continues the handshake that [`Transport::begin_tls`] has begun, without waiting. The caller may not
    /// send or receive before the handshake is complete.
    ///
    /// # Errors
    /// The handshake has failed, for a reason of TLS ([`pollux_tls::HandshakeError`]) or of the socket.
    pub(crate) fn shake_hands(&mut self) -> io::Result<HandshakeStep> {
        match self {
            Self::Plain(_) => Ok(HandshakeStep::Done),
            Self::Tls(socket) => tls::shake_hands(socket.as_fd()),
        }
    }

    /// Continues the handshake of a connection that a client has made, without waiting. `buffer` must have
    /// room for a record. [`Transport::receive`] does the same before it receives.
    ///
    /// # Errors
    /// `Interrupted` when the handshakes of this iteration have used up their time; the reason why the
    /// handshake has failed.
    pub(crate) fn establish(&mut self, buffer: &mut [u8]) -> io::Result<HandshakeStep> {
        match self {
            Self::Plain(_) => Ok(HandshakeStep::Done),
            Self::Tls(socket) => tls::establish(socket.as_fd(), buffer),
        }
    }

    /// Creates the transport of an idle connection, with the TLS session that another process has parked.
    ///
    /// # Errors
    /// `session` is not a session, or there is no memory for one; the socket is returned.
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

    /// Returns the data, besides the socket, that another process needs to continue an idle connection: the
    /// session with TLS, otherwise nothing. Returns `None` if a part of a record was received, or unsent
    /// output is left.
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
    /// The errors of recv(2); WouldBlock when there is no input.
    #[inline]
    pub(crate) fn receive(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(socket) => sys::recv_now(socket.as_fd(), buffer),
            Self::Tls(socket) => tls::receive(socket.as_fd(), buffer, sys::recv_now),
        }
    }

    /// Does the same as [`Transport::receive`], but waits on a blocking socket, for as long as its timeout.
    ///
    /// # Errors
    /// The errors of recv(2); WouldBlock when the timeout has passed.
    #[inline]
    pub(crate) fn wait_and_receive(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(socket) => sys::recv(socket.as_fd(), buffer),
            Self::Tls(socket) => tls::receive(socket.as_fd(), buffer, sys::recv),
        }
    }

    /// Returns whether received input may be in the transport instead of the socket: then no event reports
    /// it.
    #[inline]
    pub(crate) fn keeps_input(&self) -> bool {
        matches!(self, Self::Tls(_))
    }

    /// Returns whether the next receive will return the end of the client's stream, or an error, without
    /// input from the socket. A wait for input would not notice it: with TLS, the end may have arrived
    /// together with a request.
    #[inline]
    pub(crate) fn has_ended(&self) -> bool {
        match self {
            Self::Plain(_) => false,
            Self::Tls(socket) => tls::has_ended(socket.as_fd()),
        }
    }

    /// Returns whether part of a record was received, which is in memory until the rest arrives.
    #[inline]
    pub(crate) fn has_part_of_record(&self) -> bool {
        match self {
            Self::Plain(_) => false,
            Self::Tls(socket) => tls::has_part_of_record(socket.as_fd()),
        }
    }

    /// Returns whether a handshake waits for room in the socket, after a receive that returned WouldBlock.
    pub(crate) fn awaits_room(&self) -> bool {
        match self {
            Self::Plain(_) => false,
            Self::Tls(socket) => tls::awaits_room(socket.as_fd()),
        }
    }

    /// Returns whether the last receive has completed a handshake. Must be called right after that receive.
    #[inline]
    pub(crate) fn has_just_shaken_hands(&self) -> bool {
        match self {
            Self::Plain(_) => false,
            Self::Tls(_) => tls::has_just_shaken_hands(),
        }
    }

    /// Returns whether there may be more input after the last receive, which returned `received` bytes into
    /// a buffer of `room` bytes. Must be called right after that receive.
    #[inline]
    pub(crate) fn may_have_more(&self, received: usize, room: usize) -> bool {
        match self {
            // A short read has drained the socket: epoll(7), "edge-triggered", Q9.
            Self::Plain(_) => received == room,
            Self::Tls(_) => tls::may_have_more(),
        }
    }

    /// Sends without waiting, and returns the number of bytes taken. With `more`, further bytes follow, so
    /// that a segment that is not full may wait for them.
    ///
    /// # Errors
    /// The errors of send(2); WouldBlock when no byte is taken.
    #[inline]
    pub(crate) fn send(&mut self, bytes: &[u8], more: bool) -> io::Result<usize> {
        match self {
            Self::Plain(socket) => sys::send_now(socket.as_fd(), bytes, more),
            Self::Tls(socket) => tls::send(socket.as_fd(), bytes, &[], more),
        }
    }

    /// Returns whether bytes for which [`Transport::send`] returned WouldBlock must be sent again before
    /// any others: they are already in a record.
    #[inline]
    pub(crate) fn must_repeat(&self) -> bool {
        matches!(self, Self::Tls(_))
    }

    /// Sends two pieces, one after the other, in the way in which [`Transport::send`] sends one.
    ///
    /// # Errors
    /// The errors of sendmsg(2); WouldBlock when no byte is taken.
    #[inline]
    pub(crate) fn send_two(&mut self, first: &[u8], second: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(socket) => sys::send_two(socket.as_fd(), first, second),
            Self::Tls(socket) => tls::send(socket.as_fd(), first, second, false),
        }
    }

    /// Sends up to `len` bytes of a file, beginning at `offset`, and adds the number of bytes taken to
    /// `offset`. Never waits on a non-blocking socket. `Ok(0)` is the end of the file.
    ///
    /// # Errors
    /// The errors of sendfile(2); WouldBlock when no byte is taken.
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

    /// Sets whether segments that are not full wait for more bytes (TCP_CORK), if the peer has a TCP
    /// socket.
    pub(crate) fn set_cork(&mut self, on: bool) {
        match self {
            // A UNIX socket has no segments.
            Self::Plain(socket) | Self::Tls(socket) => drop(sys::set_cork(socket.as_fd(), on)),
        }
    }

    /// Closes this side's direction of the connection properly; the peer may continue to send.
    ///
    /// # Errors
    /// The errors of shutdown(2).
    pub(crate) fn shut(&mut self) -> io::Result<()> {
        self.say_end();
        self.cut()
    }

    /// Closes this side's direction like [`Transport::shut`], but for an incomplete stream: the end does
    /// not look like the proper end (no close_notify).
    ///
    /// # Errors
    /// The errors of shutdown(2).
    pub(crate) fn cut(&mut self) -> io::Result<()> {
        sys::shutdown_write(self.as_fd())
    }

    /// Makes the close of the socket a reset, for an incomplete stream whose end would look like the proper
    /// end. A UNIX socket has no reset.
    pub(crate) fn reset_on_close(&self) {
        let _ = sys::reset_on_close(self.as_fd());
    }

    /// Announces the proper end of the stream, if the transport can do so (close_notify). Called before a
    /// connection without unsent output is closed.
    pub(crate) fn say_end(&mut self) {
        match self {
            Self::Plain(_) => {}
            Self::Tls(socket) => tls::close_notify(socket.as_fd()),
        }
    }

    /// Returns the number of bytes that the kernel holds and the peer has not acknowledged.
    ///
    /// # Errors
    /// The errors of ioctl(2), SIOCOUTQ.
    pub(crate) fn unacknowledged(&self) -> io::Result<u64> {
        sys::unacknowledged(self.as_fd())
    }

    /// Limits how long the kernel tries to send its buffer after the socket is closed. Without a limit, the
    /// buffer would occupy memory for many minutes.
    pub(crate) fn limit_unsent_time(&self, time: Duration) {
        let is_limited = SockRef::from(self).set_tcp_user_timeout(Some(time)).is_ok();
        if !is_limited {
            let _ = sys::reset_on_close(self.as_fd());
        }
    }

    /// Makes the kernel probe the peer while nothing arrives from it (TCP keep-alive), and limits how long the peer may
    /// leave bytes unacknowledged, so that a peer is noticed that has vanished without closing its connection.
    pub(crate) fn probe_peer(&self) {
        let probes = TcpKeepalive::new().with_time(PROBE_AFTER);
        let probes = probes.with_interval(PROBE_PAUSE).with_retries(PROBES);
        // A UNIX socket needs no probes: the kernel knows both ends.
        let socket = SockRef::from(self);
        let _ = socket.set_tcp_keepalive(&probes);
        let _ = socket.set_tcp_user_timeout(Some(GONE_AFTER));
    }

    /// Returns the socket, to be closed or passed on, and drops the TLS session.
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    /// Regression: while bytes for a peer that had vanished were unacknowledged, the kernel did not probe it.
    #[test]
    fn a_peer_that_is_probed_has_a_limit_for_unacknowledged_bytes() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let transport = Transport::Plain(socket.into());
        transport.probe_peer();
        let socket = SockRef::from(&transport);
        assert!(socket.keepalive().unwrap());
        assert_eq!(socket.tcp_user_timeout().unwrap(), Some(Duration::from_secs(180)));
    }
}
