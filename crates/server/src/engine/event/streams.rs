//! Streams: clients that are only sent to, when their service has something for them.
//!
//! An idle stream is a slot of the table and nothing else. What a connection does not take at once
//! of a piece is stored by reference, so that a slow one costs no copy.

use super::{Engine, READS_PER_EVENT, SendOutcome, transmit};
use crate::stats::Counter;
use crate::{
    engine::event::table::{Class, Marks, Peer, Stream},
    reactor::{ClientId, ExchangeId},
    service::{Service, ServiceContext, StreamSend},
    transport::{
        Transport,
        outbox::{Content, Outbox},
    },
};
use pollux_event::{Mechanism, Readiness};
use pollux_hub::subscribers::Delivery;
use std::{io, os::fd::RawFd};

/// Bytes that a client may send behind its request: nothing is to come, so that more is abuse. A stream counts
/// up to one more.
const DISCARDED_MAX: u16 = u16::MAX - 1;

/// What is to be done about a stream after a call of the service.
#[derive(Clone, Copy, Debug)]
pub(super) enum Change {
    /// It is full: watch for room.
    Watch(RawFd),
    /// It is over.
    End(RawFd),
    /// It is no stream but a parked exchange, which continues.
    Wake(RawFd),
}

impl<M: Mechanism, A: Service> Engine<M, A> {
    /// Makes the client of an exchange a stream.
    pub(super) fn begin_stream(&mut self, exchange: ExchangeId, number: u32) {
        if !self.is_running(exchange) {
            return;
        }
        let fd = exchange.client.fd;
        let Some(client) = self.client(fd) else { return };
        let has_ended = client.has_ended();
        let (framing, input, output) = client.take_stream();
        let Some(slot) = self.table.get_mut(fd) else { return };
        let is_full = !output.is_empty();
        let mut stream = Stream::new(number, framing);
        stream.unsent = is_full.then(|| Box::new(output));
        stream.discarded = u16::try_from(input.len()).unwrap_or(u16::MAX);
        slot.peer = Peer::Stream(stream);
        slot.class = Class::Stream;
        slot.timer.disarm();
        if has_ended {
            return self.end_stream(fd);
        }
        // `end_streams` ran before this stream began.
        let can_follow = self.transfers.takes_streams_of(&self.service);
        if self.worker.is_stopping || self.stop_at.is_some() && !can_follow {
            return self.complete_stream(fd);
        }
        // An edge-triggered mechanism may have reported input before, so it is read once more.
        if slot.marks.contains(Marks::INPUT_WAITS) {
            self.requeue(fd);
        }
        if is_full {
            self.watch_stream(fd);
        } else {
            self.stop_watching(fd);
            self.service.stream_has_room(number);
            self.transfers.consider(fd);
        }
    }

    /// Lets the service send to its streams in the middle of an iteration, if it has too much for them to wait.
    #[inline]
    pub(super) fn pump_burst(&mut self) {
        if self.worker.has_burst {
            self.pump_streams();
            self.worker.has_burst = false;
        }
    }

    /// Lets the service send to its streams.
    pub(super) fn pump_streams(&mut self) {
        let mut changes = std::mem::take(&mut self.stream_changes);
        let Self { service, rules, worker, reactor, table, .. } = self;
        let mut bytes_sent = 0;
        let mut context = ServiceContext { rules, worker, reactor };
        service.pump_streams(&mut context, |client: ClientId, what| {
            let slot = table.get_mut(client.fd);
            let slot = slot.filter(|slot| slot.generation() == client.generation);
            let Some((transport, peer)) = slot.and_then(|slot| slot.parts()) else {
                return Delivery::Gone;
            };
            match peer {
                Peer::Stream(stream) => {
                    let (delivery, change) =
                        send(transport, stream, client.fd, what, &mut bytes_sent);
                    if let Some(change) = change {
                        changes.push(change);
                    }
                    delivery
                }
                // It will become a stream, and receives an event then that there is room.
                Peer::Client(_) => Delivery::Full,
                Peer::Parked(_) if matches!(what, StreamSend::Heartbeat(_)) => Delivery::Taken,
                Peer::Parked(_) => {
                    changes.push(Change::Wake(client.fd));
                    Delivery::Full
                }
                _ => Delivery::Gone,
            }
        });
        self.worker.counters.add(Counter::BytesSent, bytes_sent);
        for change in changes.drain(..) {
            match change {
                Change::Watch(fd) => self.watch_stream(fd),
                Change::End(fd) => self.end_stream(fd),
                Change::Wake(fd) => self.wake_parked(fd),
            }
        }
        self.stream_changes = changes;
    }

    /// A stream has an event.
    #[cold]
    pub(super) fn on_stream_event(&mut self, fd: RawFd, readiness: Readiness) {
        if readiness.intersects(Readiness::HANGUP | Readiness::ERROR) {
            return self.end_stream(fd);
        }
        if readiness.is_writable() && self.send_unsent_of_stream(fd).is_err() {
            return self.end_stream(fd);
        }
        if readiness.is_readable() && !self.discard_input(fd) {
            self.end_stream(fd);
        }
    }

    /// Sends what is stored; when all of it has left, the service goes on.
    fn send_unsent_of_stream(&mut self, fd: RawFd) -> io::Result<()> {
        let Some(slot) = self.table.get_mut(fd) else { return Ok(()) };
        let Some((transport, Peer::Stream(stream))) = slot.parts() else { return Ok(()) };
        let number = stream.number;
        if let Some(unsent) = &mut stream.unsent {
            let (outcome, sent) = transmit(transport, unsent, self.large_file);
            self.worker.counters.add(Counter::BytesSent, sent);
            if outcome? != SendOutcome::All {
                return Ok(());
            }
            stream.unsent = None;
        }
        self.stop_watching(fd);
        self.service.stream_has_room(number);
        self.transfers.consider(fd);
        Ok(())
    }

    /// Throws away what the client sends. Returns whether the stream goes on.
    fn discard_input(&mut self, fd: RawFd) -> bool {
        for _ in 0..READS_PER_EVENT {
            let Some(slot) = self.table.get_mut(fd) else { return false };
            let Some((transport, Peer::Stream(stream))) = slot.parts() else { return false };
            match transport.receive(&mut self.input) {
                // A client that still reads after it ended its own side is treated as gone: no
                // event would report later that it really is.
                Ok(0) => return false,
                Ok(received) => {
                    let received = u16::try_from(received).unwrap_or(u16::MAX);
                    stream.discarded = stream.discarded.saturating_add(received);
                    if stream.discarded > DISCARDED_MAX {
                        return false;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    slot.marks -= Marks::INPUT_WAITS;
                    return true;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return false,
            }
        }
        self.requeue(fd);
        true
    }

    /// Watches for room in a stream that is full.
    fn watch_stream(&mut self, fd: RawFd) {
        self.change_interest(fd, Marks::READS | Marks::WRITES, false);
    }

    /// Watches for input alone, unless the descriptor is registered for both once and for all.
    fn stop_watching(&mut self, fd: RawFd) {
        if !self.registers_once() {
            self.change_interest(fd, Marks::READS, false);
        }
    }

    /// Closes a stream.
    pub(super) fn end_stream(&mut self, fd: RawFd) {
        let Some(slot) = self.table.get_mut(fd) else { return };
        let Some((transport, Peer::Stream(stream))) = slot.parts() else { return };
        let number = stream.number;
        if stream.unsent.is_none() {
            transport.say_end();
        }
        self.close_socket(fd);
        self.client_has_gone(fd);
        self.service.stream_has_ended(number);
    }

    /// Ends all streams, as the server stops.
    pub(super) fn end_streams(&mut self) {
        for fd in self.table.descriptors() {
            self.complete_stream(fd);
        }
    }

    /// Ends a stream with the end of its content, so that its client knows that nothing is missing.
    pub(super) fn complete_stream(&mut self, fd: RawFd) {
        let Some(slot) = self.table.get_mut(fd) else { return };
        if let Some((transport, Peer::Stream(stream))) = slot.parts() {
            send_last(transport, stream);
            self.end_stream(fd);
        }
    }
}

/// Sends to one stream; what it does not take of a piece is stored.
#[inline]
fn send(
    transport: &mut Transport,
    stream: &mut Stream,
    fd: RawFd,
    what: StreamSend<'_>,
    bytes_sent: &mut u64,
) -> (Delivery, Option<Change>) {
    let (StreamSend::Chunk(chunk) | StreamSend::Heartbeat(chunk)) = what else {
        send_last(transport, stream);
        return (Delivery::Gone, Some(Change::End(fd)));
    };
    let (bytes, range) = (chunk.bytes(), stream.framing.part_of(chunk));
    if stream.unsent.is_some() {
        return (Delivery::Full, None);
    }
    let sent = match transport.send(&bytes[range.clone()], false) {
        Ok(sent) => sent,
        Err(error) if is_block(&error) && !transport.must_repeat() => {
            return (Delivery::Full, Some(Change::Watch(fd)));
        }
        Err(error) if is_block(&error) => 0,
        Err(_) => return (Delivery::Gone, Some(Change::End(fd))),
    };
    *bytes_sent += sent as u64;
    if sent == range.len() {
        return (Delivery::Taken, None);
    }
    let mut unsent = Outbox::default();
    unsent.push(Content::Pooled(bytes.clone(), range.start + sent..range.end));
    stream.unsent = Some(Box::new(unsent));
    (Delivery::Taken, Some(Change::Watch(fd)))
}

/// Sends the bytes that end the content, if the client has taken everything before them.
fn send_last(transport: &mut Transport, stream: &Stream) {
    let last = stream.framing.last_bytes();
    if stream.unsent.is_none() && !last.is_empty() {
        let _ = transport.send(last, false);
    }
}

fn is_block(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}
