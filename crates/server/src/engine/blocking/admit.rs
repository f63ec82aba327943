//! Whether a connection that was accepted is served.

use super::*;

impl<A: Service> Blocking<A> {
    /// The transport of a connection that is served; another one is counted and closed.
    pub(super) fn admit(&mut self, socket: OwnedFd) -> Option<Transport> {
        if self.rules.guard.is_some() && !self.is_welcome(&socket) {
            return self.refuse(socket);
        }
        match self.rules.accept(socket) {
            Ok((transport, _)) => Some(transport),
            Err(socket) => {
                self.worker.counters.add(Counter::Refused, 1);
                self.refuse(socket)
            }
        }
    }

    #[cold]
    fn is_welcome(&mut self, socket: &OwnedFd) -> bool {
        let (fd, address) = (socket.as_raw_fd(), listener::peer(socket.as_fd()));
        let outcome = self.worker.clients.enter(self.rules.guard.as_deref(), fd, address);
        outcome.inspect_err(|why| self.worker.counters.add(why.counter(), 1)).is_ok()
    }

    #[cold]
    fn refuse(&mut self, socket: OwnedFd) -> Option<Transport> {
        self.worker.clients.leave(self.rules.guard.as_deref(), socket.as_raw_fd());
        sys::close(socket);
        self.show();
        None
    }
}
