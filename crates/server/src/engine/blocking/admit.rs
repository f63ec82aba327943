//! Decides whether an accepted connection is served, and reads the PROXY protocol header before its first
//! request.

use super::*;
use crate::clients::client_key;
use crate::transport::{
    preamble::{self, Preamble},
    tls::HandshakeStep,
};
use pollux_http::proxy_protocol::Header;
use std::net::SocketAddr;

impl<A: Service> Blocking<A> {
    /// Returns the transport of a connection that is served. Another connection is counted and closed.
    pub(super) fn admit(&mut self, socket: OwnedFd) -> Option<Transport> {
        let mut address = None;
        if self.rules.looks_at_clients() && !self.is_welcome(&socket, &mut address) {
            return self.refuse(socket);
        }
        match self.rules.accept(socket, address.map(|address| address.ip())) {
            Ok((transport, ticks)) => self.establish(transport, ticks),
            Err(socket) => {
                self.worker.counters.add(Counter::Refused, 1);
                self.refuse(socket)
            }
        }
    }

    /// Performs the transport's handshake, if it has one, within this number of ticks. Returns `None` if it
    /// fails.
    fn establish(&mut self, mut transport: Transport, ticks: u32) -> Option<Transport> {
        let fd = transport.as_raw_fd();
        let mut deadline = None;
        loop {
            let events = match transport.establish(&mut self.input) {
                Ok(HandshakeStep::Done) => return Some(transport),
                Ok(HandshakeStep::NeedsInput) => POLLIN,
                Ok(HandshakeStep::NeedsRoom) => POLLOUT,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {
                    // This worker has no other connections that must be served before.
                    self.rules.begin_iteration();
                    continue;
                }
                Err(_) => break,
            };
            let clock = &self.worker.clock;
            let deadline = *deadline.get_or_insert_with(|| clock.after(ticks));
            if clock.tick() >= deadline {
                self.worker.counters.add(Counter::TimedOut, 1);
                break;
            }
            if self.worker.is_stopping {
                break;
            }
            self.wait_until(&[(fd, events)], Some(deadline));
        }
        self.worker.counters.add(Counter::Accepted, 1);
        self.worker.counters.add(Counter::Closed, 1);
        self.refuse(transport.into_socket())
    }

    /// Returns whether a client is served. Sets its address.
    #[cold]
    fn is_welcome(&mut self, socket: &OwnedFd, client: &mut Option<SocketAddr>) -> bool {
        let mut address = listener::peer_address(socket.as_fd());
        if self.rules.has_preamble(address.map(|address| address.ip())) {
            match self.read_preamble(socket) {
                Ok(Header::Proxied { source, .. }) => {
                    self.slot.set_client(client_key(source.ip()));
                    address = Some(source);
                }
                Ok(Header::Local) => {}
                Err(error) => {
                    let reason = match error.kind() {
                        io::ErrorKind::TimedOut => Counter::TimedOut,
                        io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof => {
                            Counter::ProxyMalformed
                        }
                        _ => Counter::Refused,
                    };
                    self.worker.counters.add(reason, 1);
                    return false;
                }
            }
        }
        *client = address;
        let fd = socket.as_raw_fd();
        let outcome = self.worker.clients.enter(self.rules.guard.as_ref(), fd, address);
        if let (Some(log), Some(address)) = (&mut self.worker.log, address) {
            log.peer = log::Peer::Known(Some(address.ip()));
        }
        outcome.inspect_err(|why| self.worker.counters.add(why.counter(), 1)).is_ok()
    }

    /// Waits for a PROXY protocol header.
    fn read_preamble(&mut self, socket: &OwnedFd) -> io::Result<Header> {
        let deadline = self.worker.clock.after(self.rules.timeouts.header);
        let mut held = Vec::new();
        loop {
            if let Preamble::Complete(header) = preamble::read(socket.as_fd(), &mut held)? {
                return Ok(header);
            }
            if self.worker.is_stopping {
                return Err(io::ErrorKind::Interrupted.into());
            }
            if self.worker.clock.tick() >= deadline {
                return Err(io::ErrorKind::TimedOut.into());
            }
            self.wait_until(&[(socket.as_raw_fd(), POLLIN)], Some(deadline));
        }
    }

    #[cold]
    fn refuse(&mut self, socket: OwnedFd) -> Option<Transport> {
        self.worker.clients.leave(self.rules.guard.as_deref(), socket.as_raw_fd());
        sys::close(socket);
        self.show();
        None
    }
}
