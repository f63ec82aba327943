//! TLS handshakes, between the one of TCP and the first request.

use crate::{client::ConnectionState, thread::Worker};
use pollux_event::Readiness;
use std::{
    io,
    os::fd::{AsFd, RawFd},
};

impl Worker<'_> {
    /// The TCP handshake of `fd` is complete: the TLS handshake begins.
    #[cold]
    pub(super) fn begin_handshake(&mut self, fd: RawFd, now_ns: u64) {
        let (Some(connection), Some(tls)) = (self.pool.get(fd), &mut self.tls) else { return };
        connection.state = ConnectionState::Handshaking;
        connection.handshake_ns = now_ns;
        if let Err(error) = tls.begin(fd) {
            let kind = self.recorder.kind_of(&error);
            return self.fail(fd, kind, now_ns);
        }
        self.go_on_with_handshake(fd, Readiness::empty(), now_ns);
    }

    /// Goes on with the TLS handshake of `fd`, which an event has announced.
    #[inline(never)]
    pub(super) fn go_on_with_handshake(&mut self, fd: RawFd, readiness: Readiness, now_ns: u64) {
        let (Some(connection), Some(tls)) = (self.pool.get(fd), &mut self.tls) else { return };
        let began_ns = connection.handshake_ns;
        let end = match tls.handshake(connection.socket.as_fd(), &mut self.scratch) {
            Ok(end) => end,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
            Err(error) => {
                let kind = self.recorder.kind_of(&error);
                return self.fail(fd, kind, now_ns);
            }
        };
        // The cryptography above is part of it.
        let now_ns = self.plan.now_ns();
        if self.opening.is_setup || now_ns >= self.measured_ns {
            self.recorder.handshake(end, now_ns - began_ns, !self.opening.is_setup);
        }
        self.opened(fd, now_ns);
        // Bytes after the handshake are no reply: no request was sent yet.
        self.send_first(fd, readiness.difference(Readiness::READABLE), now_ns);
    }

    /// Whether all that a connection without a request has received concerns the record layer alone,
    /// such as a session ticket.
    #[inline]
    pub(super) fn is_record_layers_own(&mut self, fd: RawFd) -> bool {
        let (Some(connection), Some(tls)) = (self.pool.get(fd), &mut self.tls) else {
            return false;
        };
        let received = tls.receive(connection.socket.as_fd(), &mut self.scratch);
        received.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
    }
}
