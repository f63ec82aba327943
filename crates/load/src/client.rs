//! One connection: its state, and its system calls.

use crate::{outcome::Failure, plan::Plan, tls::TlsConnections};
use pollux_event::{Interest, Mechanism, Token};
use pollux_http::reply::Decoder;
use pollux_sys::{self as sys, Address};
use std::{
    io,
    os::fd::{AsFd, OwnedFd},
};

/// The state of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConnectionState {
    /// The handshake may not be complete. A request may be assigned already.
    Connecting,
    /// The TLS handshake is not complete. A request may be assigned already.
    Handshaking,
    /// Open, without a request.
    Free,
    /// With a request.
    Busy,
    /// Pausing between two requests of a session (think time).
    Thinking,
    /// The last reply has arrived; the server is expected to close.
    Closing,
}

/// The request of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    /// Its instant in the schedule, from the plan's origin.
    pub(crate) scheduled_ns: u64,
    /// The time at which the kernel accepted its first byte; 0 before.
    pub(crate) sent_ns: u64,
    /// The index of its URL.
    pub(crate) target: u32,
    /// It is the connection's last request.
    pub(crate) last: bool,
    /// It belongs to the measured part, not to the warm-up.
    pub(crate) measured: bool,
    /// Bytes sent so far.
    pub(crate) written: usize,
}

/// One connection.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) socket: OwnedFd,
    pub(crate) token: Token,
    pub(crate) state: ConnectionState,
    /// The start of connecting, of the think time, or of closing.
    pub(crate) since_ns: u64,
    /// The start of its TLS handshake.
    pub(crate) handshake_ns: u64,
    /// The number of requests that may follow the present one.
    pub(crate) requests_left: u64,
    /// The number of its last request among all requests of the run.
    pub(crate) number: u64,
    pub(crate) request: Option<Request>,
    pub(crate) decoder: Decoder,
    /// The interest includes writing.
    pub(crate) watches_write: bool,
    /// An event or a receive has reported that the server closes or has closed. No further event repeats
    /// it, so it is kept for a reply that needs several events.
    pub(crate) is_closed: bool,
}

/// The result of a send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SendProgress {
    /// The kernel has accepted all bytes.
    Complete,
    /// The kernel has accepted some bytes; the connection will become writable.
    Partial,
    /// Nothing was sent: the handshake is not complete, or the buffer is full.
    Nothing,
}

/// Creates a socket and starts its handshake.
///
/// # Errors
/// The failed system call: no descriptor, no port, refused at once, no route, …
#[inline]
pub(crate) fn begin_connect(
    destination: &Address,
    source: Option<Address>,
    reset_on_close: bool,
) -> io::Result<OwnedFd> {
    let socket = sys::tcp_socket(destination)?;
    if let Some(source) = source {
        sys::bind_source(socket.as_fd(), &source)?;
    }
    if reset_on_close {
        sys::reset_on_close(socket.as_fd())?;
    }
    match sys::connect(socket.as_fd(), destination) {
        Ok(()) => Ok(socket),
        Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => Ok(socket),
        Err(error) => Err(error),
    }
}

impl Connection {
    /// Sends the rest of the request.
    ///
    /// During the handshake the kernel answers EAGAIN. To a loopback address the handshake is
    /// usually complete when connect(2) returns, although it returned EINPROGRESS, so sending at
    /// once saves one wake-up per connection.
    ///
    /// # Errors
    /// The reason why the connection cannot be used any longer.
    #[inline]
    pub(crate) fn send(
        &mut self,
        plan: &Plan,
        tls: Option<&mut TlsConnections>,
    ) -> io::Result<SendProgress> {
        let mut tls = tls;
        let Some(request) = &mut self.request else { return Ok(SendProgress::Complete) };
        let bytes = plan.requests[request.target as usize].get(request.last);
        let before = request.written;
        loop {
            let rest = &bytes[request.written..];
            let sent = match &mut tls {
                None => sys::send(self.socket.as_fd(), rest, false),
                Some(tls) => tls.send(self.socket.as_fd(), rest),
            };
            match sent {
                Ok(count) => {
                    request.written += count;
                    if request.written == bytes.len() {
                        return Ok(SendProgress::Complete);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let some = request.written > before;
                    return Ok(if some { SendProgress::Partial } else { SendProgress::Nothing });
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Adds writing to the interest.
    ///
    /// # Errors
    /// The mechanism's error, as a kind of failure.
    #[cold]
    pub(crate) fn watch_write<M: Mechanism>(&mut self, set: &mut M) -> Result<(), Failure> {
        if !self.watches_write {
            self.watches_write = true;
            set.modify(self.token, Interest::READ | Interest::WRITE).map_err(|_| Failure::Other)?;
        }
        Ok(())
    }

    /// The pending error of a failed connection (SO_ERROR).
    #[cold]
    pub(crate) fn take_error(&self) -> Option<io::Error> {
        sys::take_socket_error(self.socket.as_fd()).err()
    }
}
