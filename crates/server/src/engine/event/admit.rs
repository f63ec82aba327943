//! Decides whether an accepted connection is served, and reads the PROXY protocol header before its first
//! request.

use super::*;
use crate::transport::{
    Transport, listener,
    preamble::{self, Preamble},
};
use pollux_http::proxy_protocol::Header;
use std::net::{IpAddr, SocketAddr};

/// An accepted connection that is served: its transport, the number of ticks within which its first input
/// must arrive, and its kind of peer.
pub(super) type AdmittedConnection<X> = (Transport, u32, Peer<X>);

impl<M: Mechanism, A: Service> Engine<M, A> {
    /// Decides whether a connection is served. A refused connection is counted, and its socket is returned
    /// to be closed.
    pub(super) fn admit(
        &mut self,
        socket: OwnedFd,
    ) -> Result<AdmittedConnection<A::Exchange>, OwnedFd> {
        if self.rules.looks_at_clients() {
            return self.admit_by_address(socket);
        }
        self.admit_client(socket, None)
    }

    fn admit_client(
        &mut self,
        socket: OwnedFd,
        address: Option<IpAddr>,
    ) -> Result<AdmittedConnection<A::Exchange>, OwnedFd> {
        let fd = socket.as_raw_fd();
        match self.rules.accept(socket, address) {
            Ok((transport, ticks)) => Ok((transport, ticks, Peer::Client(Connection::default()))),
            Err(socket) => {
                self.worker.clients.leave(self.rules.guard.as_deref(), fd);
                self.worker.counters.add(Counter::Refused, 1);
                Err(socket)
            }
        }
    }

    #[cold]
    fn admit_by_address(
        &mut self,
        socket: OwnedFd,
    ) -> Result<AdmittedConnection<A::Exchange>, OwnedFd> {
        let address = listener::peer_address(socket.as_fd());
        if self.rules.has_preamble(address.map(|address| address.ip())) {
            let ticks = self.rules.timeouts.header;
            return Ok((Transport::Plain(socket), ticks, Peer::Preamble(Box::default())));
        }
        if !self.is_welcome(socket.as_raw_fd(), address) {
            return Err(socket);
        }
        self.admit_client(socket, address.map(|address| address.ip()))
    }

    fn is_welcome(&mut self, fd: RawFd, address: Option<SocketAddr>) -> bool {
        let outcome = self.worker.clients.enter(self.rules.guard.as_ref(), fd, address);
        outcome.inspect_err(|why| self.worker.counters.add(why.counter(), 1)).is_ok()
    }

    /// Reads input of a connection that begins with a PROXY protocol header.
    pub(super) fn on_preamble_event(&mut self, fd: RawFd) {
        let Some(slot) = self.table.get_mut(fd) else { return };
        let Some((transport, Peer::Preamble(held))) = slot.parts() else { return };
        match preamble::read(transport.as_fd(), &mut held.0) {
            Ok(Preamble::Waiting) => {}
            Ok(Preamble::Complete(header)) => self.end_preamble(fd, header),
            Err(error) => {
                let is_malformed = matches!(
                    error.kind(),
                    io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof
                );
                self.close_preamble(fd, is_malformed.then_some(Counter::ProxyMalformed));
            }
        }
    }

    /// Begins to serve the client after its PROXY protocol header is complete.
    fn end_preamble(&mut self, fd: RawFd, header: Header) {
        let Some(slot) = self.table.get_mut(fd) else { return };
        let address = match header {
            Header::Proxied { source, .. } => Some(source),
            Header::Local => slot.transport().and_then(|t| listener::peer_address(t.as_fd())),
        };
        if !self.is_welcome(fd, address) {
            return self.close_preamble(fd, None);
        }
        let Some(slot) = self.table.get_mut(fd) else { return };
        let client = address.map(|address| address.ip());
        let mut timeout = 0;
        let is_accepted = slot.replace_transport(|transport| {
            let outcome = self.rules.accept(transport.into_socket(), client);
            let (transport, ticks) = outcome.map_err(Transport::Plain)?;
            timeout = ticks;
            Ok(transport)
        });
        if !is_accepted {
            return self.close_preamble(fd, Some(Counter::Refused));
        }
        slot.peer = Peer::Client(Connection::default());
        let deadline = self.worker.clock.after(timeout);
        self.arm(fd as u32, deadline);
        self.receive(fd);
    }

    /// Closes a connection before its PROXY protocol header is complete, and counts it under `reason`.
    pub(super) fn close_preamble(&mut self, fd: RawFd, reason: Option<Counter>) {
        if let Some(reason) = reason {
            self.worker.counters.add(reason, 1);
        }
        self.close_socket(fd);
        self.client_has_gone(fd);
    }
}
