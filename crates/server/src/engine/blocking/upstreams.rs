//! The upstream connections and alarms of services, for one connection at a time.

use super::{Blocking, UpstreamTransport};
use crate::stats::Counter;
use crate::{
    config::LargeFile,
    engine::upstreams::{UPSTREAM_INPUT_BYTES, UpstreamDriver},
    reactor::{
        AlarmId, ExchangeId, HandOver, Question, ResolveError, UpstreamConnection, UpstreamError,
        UpstreamId, UpstreamState,
    },
    service::{Event, Service, ServiceContext},
    transport::Transport,
};
use libc::{POLLIN, POLLOUT};
use pollux_sys::{self as sys, PollFd};
use std::{
    io,
    os::fd::{AsRawFd, RawFd},
};

impl<A: Service> UpstreamDriver for Blocking<A> {
    type Service = A;

    #[inline]
    fn parts(&mut self) -> (&mut A, ServiceContext<'_>) {
        let Self { service, rules, worker, reactor, .. } = self;
        (service, ServiceContext { rules, worker, reactor })
    }

    fn upstream(&mut self, id: UpstreamId) -> Option<(&mut UpstreamConnection, &mut Transport)> {
        let upstream = self.reactor.upstreams.get_mut(id)?;
        let found = self.upstreams.iter_mut().find(|upstream| upstream.id == id)?;
        Some((upstream, &mut found.transport))
    }

    fn wake_exchange(&mut self, id: ExchangeId, event: Event<'_>) -> bool {
        let is_there = self.is_running(id);
        if is_there {
            self.wake(event);
        }
        is_there
    }

    fn arm_alarm(&mut self, id: AlarmId, tick: u32) {
        self.alarms.push((tick, id));
    }

    fn resolve_beside(&mut self, question: Question) -> Result<(), ResolveError> {
        self.begin_lookup(question)
    }

    fn pass_on_client(&mut self, what: &HandOver) {
        self.refuse_command(what.exchange);
    }

    fn make_tunnel(&mut self, exchange: ExchangeId, _: UpstreamId) {
        self.refuse_command(exchange);
    }

    fn make_stream(&mut self, exchange: ExchangeId, _: u32) {
        self.refuse_command(exchange);
    }

    /// A thread or a process waits for each connection, so parking would save little.
    fn park_exchange(&mut self, _: ExchangeId, _: u32) {}

    fn hold(&mut self, id: UpstreamId, transport: Transport, deadline: u32) -> io::Result<()> {
        if matches!(transport, Transport::Tls(_)) {
            return Err(io::ErrorKind::Unsupported.into());
        }
        self.upstreams.push(UpstreamTransport { id, transport, deadline: Some(deadline) });
        Ok(())
    }

    /// Never called: [`Blocking::hold`] refuses connections with TLS.
    fn await_handshake(&mut self, _: RawFd, _: bool) {
        debug_assert!(false, "a TLS handshake with an upstream server in an engine that blocks");
    }

    fn set_connected(&mut self, id: UpstreamId, _: RawFd) {
        if let Some(found) = self.upstreams.iter_mut().find(|upstream| upstream.id == id) {
            found.deadline = None;
        }
    }

    fn close_upstream(&mut self, id: UpstreamId, _: RawFd) {
        if let Some(index) = self.upstreams.iter().position(|upstream| upstream.id == id) {
            sys::close(self.upstreams.swap_remove(index).transport.into_socket());
        }
    }

    fn large_file(&self) -> LargeFile {
        self.large_file
    }

    fn count_sent(&mut self, bytes: u64) {
        self.worker.counters.add(Counter::BytesSent, bytes);
    }
}

impl<A: Service> Blocking<A> {
    fn is_running(&self, id: ExchangeId) -> bool {
        self.client
            .as_ref()
            .is_some_and(|client| client.id == id.client && client.connection.is_running(id.number))
    }

    /// Ends the connection of an exchange with a command that this engine does not support. This never
    /// happens: [`Settings::check`](crate::Settings::check) reports the services that have such commands.
    #[cold]
    fn refuse_command(&mut self, exchange: ExchangeId) {
        debug_assert!(false, "{exchange:?} needs an event loop");
        self.iterations += 1;
        if self.is_running(exchange)
            && let Some(client) = &mut self.client
        {
            client.is_broken = true;
        }
    }

    /// Adds the upstream connections to the polled descriptors.
    pub(super) fn add_upstreams(&mut self) {
        for UpstreamTransport { id, transport, .. } in &self.upstreams {
            let mut events = 0;
            if let Some(upstream) = self.reactor.upstreams.get(*id) {
                let is_open = matches!(upstream.adapter, UpstreamState::Open(_));
                if !is_open || !upstream.output.is_empty() {
                    events |= POLLOUT;
                }
                if is_open && !upstream.has_ended {
                    events |= POLLIN;
                }
            }
            // poll(2) skips the descriptor -1. A descriptor without requested events would still report its
            // hang-up at every wait.
            let fd = if events == 0 { -1 } else { transport.as_raw_fd() };
            self.polled.push(PollFd { fd, events, revents: 0 });
        }
    }

    /// Returns the next tick at which an upstream connection or an alarm has a deadline.
    pub(super) fn next_deadline(&self) -> Option<u32> {
        let upstreams = self.upstreams.iter().filter_map(|upstream| upstream.deadline);
        let alarms = self.alarms.iter().map(|&(tick, _)| tick);
        upstreams.chain(alarms).min()
    }

    /// Handles the events of upstream connections, which are in `polled` from the index `first` on.
    pub(super) fn attend_upstreams(&mut self, first: usize) {
        if self.upstreams.is_empty() {
            return;
        }
        // Each event may close upstream connections or add new ones, so each is looked up again.
        let happened: Vec<(UpstreamId, i16)> = self
            .upstreams
            .iter()
            .map(|upstream| upstream.id)
            .zip(self.polled.iter().skip(first).map(|polled| polled.revents))
            .collect();
        for (id, happened) in happened {
            self.attend_upstream(id, happened);
        }
    }

    fn attend_upstream(&mut self, id: UpstreamId, happened: i16) {
        let Some(upstream) = self.reactor.upstreams.get(id) else { return };
        if let UpstreamState::Connecting(fd) = upstream.adapter {
            if happened != 0 {
                return self.see_whether_connected(id, fd);
            }
            let now = self.worker.clock.tick();
            let is_late = |upstream: &UpstreamTransport| {
                upstream.id == id && upstream.deadline.is_some_and(|at| at <= now)
            };
            if self.upstreams.iter().any(is_late) {
                self.fail_upstream(id, io::ErrorKind::TimedOut.into());
            }
            return;
        }
        // Receiving or sending returns an error or the end of the peer's stream.
        if happened & !POLLOUT != 0 {
            self.receive_on_upstream(id);
        }
        if happened & POLLOUT != 0 {
            self.attend(id);
        }
    }

    /// Delivers the events of the alarms that have expired.
    pub(super) fn attend_alarms(&mut self) {
        if self.alarms.is_empty() {
            return;
        }
        let now = self.worker.clock.tick();
        let reactor = &mut self.reactor;
        let mut due = Vec::new();
        self.alarms.retain(|&(tick, id)| {
            let is_there = reactor.alarms.get(id).is_some();
            if is_there && tick <= now {
                due.extend(reactor.alarms.take(id.index()));
            }
            is_there && tick > now
        });
        for (id, to) in due {
            self.deliver(to, Event::Time(id));
        }
    }

    fn receive_on_upstream(&mut self, id: UpstreamId) {
        let Some(upstream) = self.reactor.upstreams.get_mut(id) else { return };
        let Some(found) = self.upstreams.iter_mut().find(|upstream| upstream.id == id) else {
            return;
        };
        if upstream.is_closed || upstream.has_ended {
            return;
        }
        let to = upstream.to;
        self.upstream_input.resize(UPSTREAM_INPUT_BYTES, 0);
        let mut buffer = std::mem::take(&mut self.upstream_input);
        let is_there = match found.transport.receive(&mut buffer) {
            Ok(0) => {
                upstream.has_ended = true;
                self.deliver(to, Event::Ended(id))
            }
            Ok(received) => self.deliver(to, Event::Received(id, &buffer[..received])),
            Err(error) => {
                let kind = error.kind();
                if !matches!(kind, io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) {
                    self.fail_upstream(id, UpstreamError::of(&error));
                }
                true
            }
        };
        self.upstream_input = buffer;
        if !is_there {
            self.end_upstream(id);
        }
    }
}
