//! One connection: what it is doing, and its system calls.

use crate::{outcome::Failure, plan::Plan};
use pollux_event::{Interest, Mechanism, Token};
use pollux_http::reply::Decoder;
use pollux_sys::{self as sys, Address};
use std::{
    io,
    os::fd::{AsFd, OwnedFd},
};

/// What a connection is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConnectionState {
    /// Its handshake is not known to be over. It may carry a request already.
    Connecting,
    /// It is open and carries no request.
    Free,
    /// It carries a request.
    Busy,
    /// Its client thinks between two requests of a session.
    Thinking,
    /// Its last reply came; the server is to close it.
    Closing,
}

/// The request that a connection carries.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    /// Its instant in the schedule, from the plan's origin.
    pub(crate) scheduled_ns: u64,
    /// When its first byte was taken by the kernel; 0 before.
    pub(crate) sent_ns: u64,
    /// Which URL.
    pub(crate) target: u32,
    /// No more requests follow on the connection.
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
    /// When it began to connect, to think, or to close.
    pub(crate) since_ns: u64,
    /// How many more requests it may carry after the present one.
    pub(crate) requests_left: u64,
    /// The number of its last request among all of the run.
    pub(crate) number: u64,
    pub(crate) request: Option<Request>,
    pub(crate) decoder: Decoder,
    /// The interest set tells when it becomes writable.
    pub(crate) watches_write: bool,
}

/// How a send went on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SendProgress {
    /// All bytes are with the kernel.
    Complete,
    /// Some are not; the connection will become writable.
    Partial,
    /// None is, since the handshake goes on or the buffer is full.
    Nothing,
}

/// A socket whose handshake has been started.
///
/// # Errors
/// The system call's failure: no descriptor, no port, refused at once, no route, …
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
    /// Sends what is left of the request.
    ///
    /// On a connection whose handshake goes on this tells whether it is over: EAGAIN while it is
    /// not. To a loopback address it is over as a rule when connect(2) returns, though that said
    /// EINPROGRESS, so that one wake-up a connection is saved.
    ///
    /// # Errors
    /// Why the connection is of no more use.
    #[inline]
    pub(crate) fn send(&mut self, plan: &Plan) -> io::Result<SendProgress> {
        let Some(request) = &mut self.request else { return Ok(SendProgress::Complete) };
        let bytes = plan.requests[request.target as usize].get(request.last);
        let before = request.written;
        loop {
            match sys::send(self.socket.as_fd(), &bytes[request.written..], false) {
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

    /// Makes sure that the interest set tells when the connection becomes writable.
    ///
    /// # Errors
    /// The mechanism's refusal, as a kind.
    #[cold]
    pub(crate) fn watch_write<M: Mechanism>(&mut self, set: &mut M) -> Result<(), Failure> {
        if !self.watches_write {
            self.watches_write = true;
            set.modify(self.token, Interest::READ | Interest::WRITE).map_err(|_| Failure::Other)?;
        }
        Ok(())
    }

    /// The error that the kernel holds for a connection that failed, if it holds one.
    #[cold]
    pub(crate) fn take_error(&self) -> Option<io::Error> {
        sys::take_socket_error(self.socket.as_fd()).err()
    }
}
