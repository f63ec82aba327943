//! Closes connections, and the descriptors of any peer.

use super::*;

impl<M: Mechanism, A: Service> Engine<M, A> {
    /// Closes a client's connection.
    pub(super) fn close(&mut self, fd: RawFd) {
        let Some(slot) = self.table.get_mut(fd) else { return };
        let client = ClientId { fd, generation: slot.generation() };
        let Some((transport, Peer::Client(connection))) = slot.parts() else { return };
        if connection.has_ended_well() {
            transport.say_end();
        } else if connection.needs_reset() {
            transport.reset_on_close();
        }
        if !connection.is_idle() {
            self.worker.begin_iteration();
            let Self { service, rules, worker, reactor, .. } = self;
            let socket = Some(transport.as_fd());
            connection.abandon(&mut Adapter { service, rules, worker, reactor, client, socket });
        }
        self.close_socket(fd);
        self.client_has_gone(fd);
    }

    /// Closes the peer with this descriptor, of any kind, because the descriptor is broken.
    #[cold]
    pub(super) fn end_peer(&mut self, fd: RawFd) {
        match self.table.get_mut(fd).map(|slot| &slot.peer) {
            Some(Peer::Client(_)) => self.close(fd),
            Some(Peer::Parked(_)) => {
                if self.unpark(fd) {
                    self.close(fd);
                }
            }
            Some(Peer::Preamble(_)) => self.close_preamble(fd, None),
            Some(&Peer::Upstream(index)) => {
                if let Some(id) = self.reactor.upstreams.at(index) {
                    self.fail_upstream(id, io::ErrorKind::Other.into());
                }
            }
            Some(Peer::Tunnel(_)) => self.end_tunnel(fd),
            Some(Peer::Stream(_)) => self.end_stream(fd),
            Some(Peer::Notifier | Peer::None) | None => self.close_socket(fd),
        }
    }

    /// Announces the end of all connections to origins, which are closed together with the engine: without
    /// close_notify their ends would look like truncations (RFC 8446 §6.1).
    #[cold]
    pub(super) fn say_end_to_origins(&mut self) {
        for fd in self.table.descriptors() {
            let Some(slot) = self.table.get_mut(fd) else { continue };
            let is_to_origin = matches!(slot.peer, Peer::Upstream(_));
            if let Some(transport) = slot.transport().filter(|_| is_to_origin) {
                transport.say_end();
            }
        }
    }

    pub(super) fn close_socket(&mut self, fd: RawFd) {
        if let Some((transport, token)) = self.table.remove(fd) {
            debug_assert_eq!(transport.as_raw_fd(), fd);
            // The descriptor is closed even if the mechanism returns an error.
            let _ = self.mechanism.close(token, transport.into_socket());
        }
    }

    pub(super) fn client_has_gone(&mut self, fd: RawFd) {
        self.worker.clients.leave(self.rules.guard.as_deref(), fd);
        self.clients -= 1;
        self.worker.counters.add(Counter::Closed, 1);
        self.acceptor.slot_is_free();
    }
}
