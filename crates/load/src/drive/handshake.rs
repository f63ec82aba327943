//! TLS handshakes, between the TCP handshake and the first request.

use crate::{client::ConnectionState, thread::Worker};
use pollux_event::Readiness;
use std::{
    io,
    os::fd::{AsFd, RawFd},
};

impl Worker<'_> {
    /// Begins the TLS handshake of `fd`, whose TCP handshake is complete.
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

    /// Continues the TLS handshake of `fd` after an event.
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
        // The time is read again, because it must include the cryptography above.
        let now_ns = self.plan.now_ns();
        if self.opening.is_setup || now_ns >= self.measured_ns {
            self.recorder.handshake(end, now_ns - began_ns, !self.opening.is_setup);
        }
        self.opened(fd, now_ns);
        // Bytes after the handshake are not a reply, because no request was sent yet.
        self.send_first(fd, readiness.difference(Readiness::READABLE), now_ns);
    }

    /// Whether all input of a connection without a request was for the record layer alone, such as a
    /// session ticket.
    #[inline]
    pub(super) fn is_record_layers_own(&mut self, fd: RawFd) -> bool {
        let (Some(connection), Some(tls)) = (self.pool.get(fd), &mut self.tls) else {
            return false;
        };
        let received = tls.receive(connection.socket.as_fd(), &mut self.scratch);
        received.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
    }
}
