//! Tunnels: a client and an upstream connection, joined. The bytes that one side sends are sent to the
//! other.
//!
//! A side has a buffer only while its peer does not take the output; then nothing more is received from the
//! other side. An idle tunnel costs two slots of the table.

use super::{Engine, LAST_READS, READS_PER_EVENT, SendOutcome, transmit};
use crate::stats::Counter;
use crate::{
    engine::{
        event::table::{Class, Marks, Peer, Tunnel},
        upstreams::UpstreamDriver as _,
    },
    reactor::{ExchangeId, UpstreamId, UpstreamState},
    service::Service,
    transport::{Transport, outbox::Outbox},
};
use pollux_event::{Mechanism, Readiness};
use std::{io, os::fd::RawFd};

impl<M: Mechanism, A: Service> Engine<M, A> {
    /// Makes a tunnel of the client of an exchange and an upstream connection. If one of them is already
    /// closed, the other is closed, too.
    pub(super) fn tunnel(&mut self, exchange: ExchangeId, id: UpstreamId) {
        let fd = exchange.client.fd;
        let slot = self.table.get_mut(fd);
        let client = slot
            .filter(|slot| slot.generation() == exchange.client.generation)
            .and_then(|slot| slot.client())
            .filter(|client| client.is_running(exchange.number));
        let upstream = self.reactor.upstreams.get(id).map(|upstream| upstream.adapter.clone());
        let (Some(client), Some(UpstreamState::Open(far))) = (client, upstream) else {
            if self.is_running(exchange) {
                self.close(fd);
            }
            self.reactor.close(id);
            return;
        };
        let (input, output) = client.take_raw();
        let Some(mut upstream) = self.reactor.upstreams.remove(id) else { return };
        upstream.output.bytes().extend_from_slice(&input);
        self.tie(fd, far, output, true);
        self.tie(far, fd, upstream.output, false);
        let (service, mut context) = self.parts();
        service.exchange_has_left(&mut context);
        for end in [fd, far] {
            self.push(end);
        }
    }

    fn tie(&mut self, fd: RawFd, partner: RawFd, output: Outbox, is_client: bool) {
        let Some(slot) = self.table.get_mut(fd) else { return };
        let unsent = (!output.is_empty()).then(|| Box::new(output));
        // No timeout ends an idle tunnel, so that of a peer which has vanished would stay for ever.
        if let Some(transport) = slot.transport() {
            transport.probe_peer();
        }
        slot.peer = Peer::Tunnel(Tunnel::new(unsent, partner, is_client));
        slot.class = Class::Tunnel;
        slot.timer.disarm();
        // An edge-triggered mechanism may have reported input before, so it is read once more.
        slot.marks |= Marks::INPUT_WAITS;
    }

    /// Handles an event of one end of a tunnel.
    #[cold]
    pub(super) fn on_tunnel_event(&mut self, fd: RawFd, readiness: Readiness) {
        if readiness.is_readable()
            && let Some(slot) = self.table.get_mut(fd)
        {
            slot.marks |= Marks::INPUT_WAITS;
        }
        self.push(fd);
        if readiness.intersects(Readiness::HANGUP | Readiness::ERROR) {
            self.disregard(fd);
        }
    }

    /// Sends the stored output for this end, then receives from this end for the other end.
    #[cold]
    pub(super) fn push(&mut self, fd: RawFd) {
        let mut buffer = std::mem::take(&mut self.upstream_input);
        buffer.resize(super::INPUT_BYTES, 0);
        let outcome = self.send_unsent(fd).and_then(|()| self.pump(fd, &mut buffer));
        let partner = self.end(fd).map(|tunnel| tunnel.partner);
        if outcome.is_err()
            && let Some(partner) = partner
        {
            self.forward_last(fd, partner, &mut buffer);
            self.forward_last(partner, fd, &mut buffer);
        }
        self.upstream_input = buffer;
        let is_over = |engine: &mut Self, fd| {
            engine.end(fd).is_none_or(|end| end.has_ended && end.unsent.is_none())
        };
        let over = partner.is_none_or(|partner| is_over(self, fd) && is_over(self, partner));
        if outcome.is_err() || over {
            self.end_tunnel(fd);
        }
    }

    /// Closes both ends.
    pub(super) fn end_tunnel(&mut self, fd: RawFd) {
        let partner = self.end(fd).map(|tunnel| tunnel.partner);
        for fd in [Some(fd), partner].into_iter().flatten() {
            self.close_end(fd);
        }
    }

    fn end(&mut self, fd: RawFd) -> Option<&mut Tunnel> {
        match &mut self.table.get_mut(fd)?.peer {
            Peer::Tunnel(tunnel) => Some(tunnel),
            _ => None,
        }
    }

    /// Sends the stored output for this end. When all of it was sent, the engine receives from the other
    /// end again, or closes its sending side to this end if the stream of the other end has ended.
    fn send_unsent(&mut self, fd: RawFd) -> io::Result<()> {
        let Some(slot) = self.table.get_mut(fd) else { return Ok(()) };
        let Some((transport, Peer::Tunnel(tunnel))) = slot.parts() else { return Ok(()) };
        let Some(unsent) = &mut tunnel.unsent else { return Ok(()) };
        let (outcome, sent) = transmit(transport, unsent, self.large_file);
        self.worker.counters.add(Counter::BytesSent, sent);
        if outcome? == SendOutcome::All {
            tunnel.unsent = None;
            let partner = tunnel.partner;
            self.watch_end(fd);
            if self.end(partner).is_some_and(|partner| partner.has_ended) {
                self.shut(fd)?;
            } else {
                self.watch_end(partner);
                self.requeue(partner);
            }
        } else {
            self.watch_end(fd);
        }
        Ok(())
    }

    /// Receives from this end and sends to the other end, as long as that end takes the bytes.
    fn pump(&mut self, fd: RawFd, buffer: &mut [u8]) -> io::Result<()> {
        for _ in 0..READS_PER_EVENT {
            let Some(slot) = self.table.get_mut(fd) else { return Ok(()) };
            if !slot.marks.contains(Marks::INPUT_WAITS) {
                return Ok(());
            }
            let Peer::Tunnel(tunnel) = &slot.peer else { return Ok(()) };
            let partner = tunnel.partner;
            if tunnel.has_ended {
                return Ok(());
            }
            let Some(far) = self.end(partner) else { return Ok(()) };
            if far.unsent.is_some() {
                self.watch_end(fd);
                return Ok(());
            }
            match self.receive_raw(fd, buffer) {
                Ok(0) => {
                    if let Some(tunnel) = self.end(fd) {
                        tunnel.has_ended = true;
                    }
                    self.watch_end(fd);
                    return self.shut(partner);
                }
                Ok(received) => self.send_raw(partner, &buffer[..received])?,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if let Some(slot) = self.table.get_mut(fd) {
                        slot.marks -= Marks::INPUT_WAITS;
                    }
                    return Ok(());
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.requeue(fd);
        Ok(())
    }

    /// Forwards what has arrived at this end of a broken tunnel, if the other end is intact: the last bytes of
    /// a peer may be the reason why it has closed its connection.
    fn forward_last(&mut self, fd: RawFd, partner: RawFd, buffer: &mut [u8]) {
        for _ in 0..LAST_READS {
            if self.end(partner).is_none_or(|end| end.unsent.is_some()) {
                return;
            }
            match self.receive_raw(fd, buffer) {
                Ok(received) if received > 0 => {
                    if self.send_raw(partner, &buffer[..received]).is_err() {
                        return;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                _ => return,
            }
        }
    }

    fn receive_raw(&mut self, fd: RawFd, buffer: &mut [u8]) -> io::Result<usize> {
        let transport = self.table.get_mut(fd).and_then(|slot| slot.transport());
        transport.ok_or(io::ErrorKind::NotConnected)?.receive(buffer)
    }

    /// Sends bytes, and stores those that the socket does not take.
    fn send_raw(&mut self, fd: RawFd, bytes: &[u8]) -> io::Result<()> {
        let Some(slot) = self.table.get_mut(fd) else { return Ok(()) };
        let Some((transport, Peer::Tunnel(tunnel))) = slot.parts() else { return Ok(()) };
        let sent = match transport.send(bytes, false) {
            Ok(sent) => sent,
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
                ) =>
            {
                0
            }
            Err(error) => return Err(error),
        };
        self.worker.counters.add(Counter::BytesSent, sent as u64);
        if sent < bytes.len() {
            let mut unsent = Outbox::default();
            unsent.bytes().extend_from_slice(&bytes[sent..]);
            tunnel.unsent = Some(Box::new(unsent));
            self.watch_end(fd);
        }
        Ok(())
    }

    fn shut(&mut self, fd: RawFd) -> io::Result<()> {
        let Some(slot) = self.table.get_mut(fd) else { return Ok(()) };
        slot.transport().map_or(Ok(()), Transport::shut)
    }

    /// Sets the interest to the events that this end waits for.
    fn watch_end(&mut self, fd: RawFd) {
        if self.registers_once()
            && self
                .table
                .get_mut(fd)
                .is_some_and(|s| s.marks.contains(Marks::READS | Marks::WRITES))
        {
            return;
        }
        let Some(tunnel) = self.end(fd) else { return };
        let (partner, is_blocked, has_ended) =
            (tunnel.partner, tunnel.unsent.is_some(), tunnel.has_ended);
        let partner_is_blocked = self.end(partner).is_some_and(|partner| partner.unsent.is_some());
        let mut wanted = Marks::empty();
        wanted.set(Marks::READS, !has_ended && !partner_is_blocked || self.registers_once());
        wanted.set(Marks::WRITES, is_blocked);
        self.change_interest(fd, wanted, false);
    }

    fn close_end(&mut self, fd: RawFd) {
        let Some(tunnel) = self.end(fd) else { return };
        let is_client = tunnel.is_client;
        self.close_socket(fd);
        if is_client {
            self.client_has_gone(fd);
        }
    }
}
