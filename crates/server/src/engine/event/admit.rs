//! Whether a connection that was accepted is served, and how its first bytes are read.

use super::*;
use crate::transport::{Transport, listener};

impl<M: Mechanism, A: Service> Engine<M, A> {
    /// The transport of a connection that is served, and after how many ticks its first request must be
    /// there. One that is not served comes back, is counted, and is to be closed.
    pub(super) fn admit(&mut self, socket: OwnedFd) -> Result<(Transport, u32), OwnedFd> {
        if self.rules.guard.is_some() && !self.is_welcome(&socket) {
            return Err(socket);
        }
        let fd = socket.as_raw_fd();
        self.rules.accept(socket).inspect_err(|_| {
            self.worker.clients.leave(self.rules.guard.as_deref(), fd);
            self.worker.counters.add(Counter::Refused, 1);
        })
    }

    #[cold]
    fn is_welcome(&mut self, socket: &OwnedFd) -> bool {
        let (fd, address) = (socket.as_raw_fd(), listener::peer(socket.as_fd()));
        let outcome = self.worker.clients.enter(self.rules.guard.as_deref(), fd, address);
        outcome.inspect_err(|why| self.worker.counters.add(why.counter(), 1)).is_ok()
    }
}
