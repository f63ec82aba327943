//! Upstream connections and the events that the mechanism reports for them.

use super::{Engine, LAST_READS, READS_PER_EVENT};
use crate::stats::Counter;
use crate::{
    config::LargeFile,
    engine::{
        event::table::{Class, Marks, Peer},
        upstreams::{UPSTREAM_INPUT_BYTES, UpstreamDriver},
    },
    reactor::{
        AlarmId, ExchangeId, HandOver, Question, ResolveError, UpstreamConnection, UpstreamError,
        UpstreamId, UpstreamState,
    },
    service::{Event, Service, ServiceContext},
    time::timers,
    transport::Transport,
};
use pollux_event::{Interest, Mechanism, Readiness};
use std::{
    io,
    os::fd::{AsFd, AsRawFd, RawFd},
};

impl<M: Mechanism, A: Service> UpstreamDriver for Engine<M, A> {
    type Service = A;

    #[inline]
    fn parts(&mut self) -> (&mut A, ServiceContext<'_>) {
        let Self { service, rules, worker, reactor, .. } = self;
        (service, ServiceContext { rules, worker, reactor })
    }

    fn upstream(&mut self, id: UpstreamId) -> Option<(&mut UpstreamConnection, &mut Transport)> {
        let upstream = self.reactor.upstreams.get_mut(id)?;
        let fd = upstream.adapter.fd()?;
        Some((upstream, self.table.get_mut(fd)?.transport()?))
    }

    fn wake_exchange(&mut self, id: ExchangeId, event: Event<'_>) -> bool {
        let is_there = self.is_running(id) || self.is_parked(id) && self.unpark(id.client.fd);
        if is_there {
            self.wake(id.client.fd, event);
        }
        is_there
    }

    fn arm_alarm(&mut self, id: AlarmId, tick: u32) {
        self.arm(timers::ALARM | id.index(), tick);
    }

    fn resolve_beside(&mut self, question: Question) -> Result<(), ResolveError> {
        self.begin_lookup(question)
    }

    fn pass_on_client(&mut self, what: &HandOver) {
        self.hand_over(what);
    }

    fn make_tunnel(&mut self, exchange: ExchangeId, upstream: UpstreamId) {
        self.tunnel(exchange, upstream);
    }

    fn make_stream(&mut self, exchange: ExchangeId, number: u32) {
        self.begin_stream(exchange, number);
    }

    fn park_exchange(&mut self, exchange: ExchangeId, ticks: u32) {
        self.park(exchange, ticks);
    }

    fn hold(&mut self, id: UpstreamId, transport: Transport, deadline: u32) -> io::Result<()> {
        let fd = transport.as_raw_fd();
        let (interest, marks) = if self.registers_once() {
            (Interest::READ | Interest::WRITE, Marks::READS | Marks::WRITES)
        } else {
            (Interest::WRITE, Marks::WRITES)
        };
        let token = self.mechanism.add(transport.as_fd(), interest).map_err(io::Error::other)?;
        let slot = self.table.insert(transport, token, Peer::Upstream(id.index()));
        slot.marks = marks;
        slot.class = Class::Dial;
        self.arm(fd as u32, deadline);
        Ok(())
    }

    fn await_handshake(&mut self, fd: RawFd, needs_room: bool) {
        if !self.registers_once() {
            let wanted = if needs_room { Marks::WRITES } else { Marks::READS };
            self.change_interest(fd, wanted, false);
        }
    }

    fn set_connected(&mut self, _: UpstreamId, fd: RawFd) {
        if let Some(slot) = self.table.get_mut(fd) {
            slot.timer.disarm();
            slot.class = Class::Upstream;
        }
    }

    fn after_connect(&mut self, id: UpstreamId, fd: RawFd) {
        // An edge-triggered mechanism may have reported input in the same event.
        self.receive_on_upstream(id, fd);
    }

    fn after_send(&mut self, id: UpstreamId, fd: RawFd, is_paused: bool) {
        if is_paused {
            self.requeue(fd);
        }
        self.watch_upstream(id, fd);
    }

    fn receive_last(&mut self, id: UpstreamId) {
        let mut buffer = std::mem::take(&mut self.upstream_input);
        buffer.resize(UPSTREAM_INPUT_BYTES, 0);
        for _ in 0..LAST_READS {
            let Some((upstream, transport)) = self.upstream(id) else { break };
            if upstream.is_closed || upstream.has_ended || upstream.is_paused {
                break;
            }
            let to = upstream.to;
            // The end of the input is not delivered: after a reset it proves nothing.
            match transport.receive(&mut buffer) {
                Ok(received) if received > 0 => {
                    if !self.deliver(to, Event::Received(id, &buffer[..received])) {
                        break;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                _ => break,
            }
        }
        self.upstream_input = buffer;
    }

    fn close_upstream(&mut self, _: UpstreamId, fd: RawFd) {
        self.close_socket(fd);
    }

    fn large_file(&self) -> LargeFile {
        self.large_file
    }

    fn count_sent(&mut self, bytes: u64) {
        self.worker.counters.add(Counter::BytesSent, bytes);
    }
}

impl<M: Mechanism, A: Service> Engine<M, A> {
    /// Handles an event of an upstream connection's descriptor.
    #[cold]
    pub(super) fn on_upstream_event(&mut self, fd: RawFd, index: u32, readiness: Readiness) {
        let Some(id) = self.reactor.upstreams.at(index) else { return };
        let Some(upstream) = self.reactor.upstreams.get_mut(id) else { return };
        match upstream.adapter {
            UpstreamState::Connecting(_) => {
                if readiness.is_writable() || readiness.is_readable() {
                    self.see_whether_connected(id, fd);
                }
                return;
            }
            UpstreamState::Handshaking(_) => return self.shake_hands(id, fd),
            UpstreamState::ToDial(..) | UpstreamState::Open(_) => {}
        }
        if readiness.is_readable() {
            self.receive_on_upstream(id, fd);
        }
        if readiness.is_writable()
            && self.reactor.upstreams.get(id).is_some_and(|upstream| !upstream.output.is_empty())
        {
            self.attend(id);
        }
        if readiness.intersects(Readiness::HANGUP | Readiness::ERROR) {
            self.disregard(fd);
        }
    }

    /// Continues the remaining work of a queued upstream connection.
    #[cold]
    pub(super) fn resume_upstream(&mut self, fd: RawFd, index: u32) {
        let Some(id) = self.reactor.upstreams.at(index) else { return };
        self.attend(id);
        self.receive_on_upstream(id, fd);
    }

    /// Receives available input until there is no more, or until other connections must be served.
    fn receive_on_upstream(&mut self, id: UpstreamId, fd: RawFd) {
        let mut buffer = std::mem::take(&mut self.upstream_input);
        buffer.resize(UPSTREAM_INPUT_BYTES, 0);
        self.receive_on_upstream_into(id, fd, &mut buffer);
        self.upstream_input = buffer;
    }

    fn receive_on_upstream_into(&mut self, id: UpstreamId, fd: RawFd, buffer: &mut [u8]) {
        for _ in 0..READS_PER_EVENT {
            let Some(upstream) = self.reactor.upstreams.get_mut(id) else { return };
            let Some(slot) = self.table.get_mut(fd) else { return };
            if upstream.is_closed
                || upstream.has_ended
                || upstream.adapter != UpstreamState::Open(fd)
            {
                return;
            }
            if upstream.is_paused {
                slot.marks |= Marks::INPUT_WAITS;
                return self.watch_upstream(id, fd);
            }
            let Some(transport) = slot.transport() else { return };
            let to = upstream.to;
            let outcome = transport.receive(buffer);
            let may_have_more = outcome
                .as_ref()
                .is_ok_and(|received| transport.may_have_more(*received, buffer.len()));
            match outcome {
                Ok(0) => {
                    slot.marks -= Marks::INPUT_WAITS;
                    upstream.has_ended = true;
                    if !self.deliver(to, Event::Ended(id)) {
                        return self.end_upstream(id);
                    }
                    return self.watch_upstream(id, fd);
                }
                Ok(received) => {
                    let ends = Marks::INPUT_ENDS | Marks::INPUT_WAITS;
                    let is_drained = !may_have_more && !slot.marks.intersects(ends);
                    slot.marks.set(Marks::INPUT_WAITS, !is_drained);
                    if !self.deliver(to, Event::Received(id, &buffer[..received])) {
                        return self.end_upstream(id);
                    }
                    if is_drained {
                        return;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    slot.marks -= Marks::INPUT_WAITS;
                    return;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return self.fail_upstream(id, UpstreamError::of(&error)),
            }
        }
        self.requeue(fd);
    }

    /// Sets the interest to exactly the events that the upstream connection waits for.
    fn watch_upstream(&mut self, id: UpstreamId, fd: RawFd) {
        let Some(upstream) = self.reactor.upstreams.get(id) else { return };
        let mut wanted = Marks::empty();
        let reads = !upstream.is_paused && !upstream.has_ended;
        wanted.set(Marks::READS, reads);
        wanted.set(Marks::WRITES, !upstream.output.is_empty());
        if !self.registers_once() {
            self.change_interest(fd, wanted, false);
        }
        if reads
            && self.table.get_mut(fd).is_some_and(|slot| slot.marks.contains(Marks::INPUT_WAITS))
        {
            self.requeue(fd);
        }
    }
}
