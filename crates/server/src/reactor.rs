//! The interface through which services request work from the engine: upstream connections, timers, name
//! lookups, events for each other.
//!
//! Nothing here does I/O. A service queues commands. The engine that drives the service takes them with
//! [`Reactor::next_command`], performs each in its own way, and delivers the outcome as an `Event` to the
//! [`EventTarget`] that the command names. Identifiers contain a serial number, so that an identifier of an
//! object that no longer exists has no effect.

mod alarms;
mod handover;
mod lookup;
mod upstream_error;
mod upstreams;

pub use alarms::AlarmId;
pub(crate) use alarms::Alarms;
pub(crate) use handover::HandOver;
pub use handover::HandoverError;
pub(crate) use lookup::{LookupGroup, Question};
pub use lookup::{LookupId, ResolveError};
pub use upstream_error::UpstreamError;
pub use upstreams::UpstreamId;
pub(crate) use upstreams::{
    ConnectedSocket, Endpoint, UpstreamConnection, UpstreamConnections, UpstreamState,
};

use crate::transport::{handover::Receivers, outbox::Outbox};
use std::collections::VecDeque;

/// The identifier of an exchange, which may have ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ExchangeId {
    /// The client of the exchange.
    pub(crate) client: ClientId,
    /// The number of the request that it answers, on its connection, from 1.
    pub(crate) number: u32,
}

impl ExchangeId {
    /// Returns whether this is a background task: an exchange that the service has begun itself
    /// ([`Reactor::begin_background`]).
    #[inline]
    pub(crate) fn is_background(self) -> bool {
        self.client.fd < 0
    }
}

/// The identifier of a client's connection in its engine: a descriptor and the generation of its use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ClientId {
    /// The descriptor.
    pub(crate) fd: i32,
    /// The number of this use of the descriptor.
    pub(crate) generation: u32,
}

/// The receiver of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventTarget {
    /// One exchange, through `Service::resume`; a background task, through `Service::background`.
    Exchange(ExchangeId),
    /// The service itself, through `Service::event`: for events that concern many exchanges.
    Service,
}

/// The reason why a service wakes one of its exchanges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WakeReason {
    /// The event that the exchange waits for has occurred: data, an answer, or the end of another
    /// exchange's fetch.
    Ready,
    /// A resource for which the exchange has queued is free, such as a connection to an origin.
    Capacity,
}

/// A command for the engine.
#[derive(Debug)]
pub(crate) enum Command {
    /// Attend to this upstream connection: it is to be dialled, has output, is paused or resumed, or is to
    /// be closed.
    Upstream(UpstreamId),
    /// Set this alarm.
    Alarm(AlarmId),
    /// Wake this exchange for this reason.
    Wake(ExchangeId, WakeReason),
    /// Resolve a name.
    Resolve(Question),
    /// Pass the exchange's client to another process.
    HandOver(Box<HandOver>),
    /// Make a tunnel of the exchange's client and the upstream connection: bytes then pass from each to the
    /// other.
    Tunnel(ExchangeId, UpstreamId),
    /// Make the exchange's client a stream of the service. The number is the service's number for it.
    Stream(ExchangeId, u32),
    /// Park the exchange for this number of ticks.
    Park(ExchangeId, u32),
}

/// The commands and resources of the services of one worker.
#[derive(Debug, Default)]
pub struct Reactor {
    /// The connections that services have dialled.
    pub(crate) upstreams: UpstreamConnections,
    /// The timers of services.
    pub(crate) alarms: Alarms,
    /// The connections to processes to which clients are handed over; used by the engine.
    pub(crate) receivers: Receivers,
    pending_commands: VecDeque<Command>,
    /// The number of the last background task.
    last_background: u32,
}

impl Reactor {
    /// Begins an exchange that has no client: its events go to `Service::background`.
    pub fn begin_background(&mut self) -> ExchangeId {
        self.last_background = self.last_background.wrapping_add(1);
        ExchangeId { client: ClientId { fd: -1, generation: self.last_background }, number: 0 }
    }

    /// Dials `endpoint`. `to` receives `Connected`, or `Failed` after at most `timeout` ticks. The service
    /// may put output into [`Reactor::send`] at once.
    pub(crate) fn dial(&mut self, endpoint: Endpoint, timeout: u32, to: EventTarget) -> UpstreamId {
        let id = self.upstreams.insert(endpoint, timeout, to);
        self.queue_upstream(id);
        id
    }

    /// Returns the outbox for output on an upstream connection. The engine sends the output after the call
    /// of the service; the output of several calls in one iteration of the loop is sent together. For a
    /// connection that no longer exists, the output is discarded.
    pub(crate) fn send(&mut self, id: UpstreamId) -> &mut Outbox {
        self.queue_upstream(id);
        self.upstreams.output(id)
    }

    /// Returns whether the outbox of an upstream connection is full: the service should add no more until
    /// it receives `Event::UpstreamRoom`.
    pub(crate) fn is_full(&self, id: UpstreamId) -> bool {
        self.upstreams.get(id).is_some_and(|upstream| upstream.output.is_full())
    }

    /// Receives nothing more on an upstream connection until [`Reactor::go_on`]. The kernel's flow
    /// control then stops the peer.
    pub(crate) fn pause(&mut self, id: UpstreamId) {
        self.change(id, |upstream| upstream.is_paused = true);
    }

    /// Receives on an upstream connection again, after [`Reactor::pause`].
    pub(crate) fn go_on(&mut self, id: UpstreamId) {
        self.change(id, |upstream| upstream.is_paused = false);
    }

    /// Closes this side's direction of an upstream connection when all its output was sent.
    #[cfg_attr(
        not(test),
        expect(dead_code, reason = "engines support it; no service here half-closes")
    )]
    pub(crate) fn finish(&mut self, id: UpstreamId) {
        self.change(id, |upstream| upstream.is_finished = true);
    }

    /// Closes an upstream connection now, and drops unsent output. No event is delivered.
    pub(crate) fn close(&mut self, id: UpstreamId) {
        self.change(id, |upstream| upstream.is_closed = true);
    }

    /// Sends events of the upstream connection to `to` from now on.
    pub(crate) fn give(&mut self, id: UpstreamId, to: EventTarget) {
        if let Some(upstream) = self.upstreams.get_mut(id) {
            upstream.to = to;
        }
    }

    /// Sets an alarm: `to` receives an event after `ticks` ticks, at the earliest.
    pub fn timer(&mut self, ticks: u32, to: EventTarget) -> AlarmId {
        let id = self.alarms.insert(ticks, to);
        self.pending_commands.push_back(Command::Alarm(id));
        id
    }

    /// Cancels an alarm. No event is delivered.
    pub fn cancel(&mut self, id: AlarmId) {
        self.alarms.cancel(id);
    }

    /// Wakes an exchange that waits, with a reason.
    pub fn wake(&mut self, exchange: ExchangeId, reason: WakeReason) {
        self.pending_commands.push_back(Command::Wake(exchange, reason));
    }

    /// Resolves a name outside the loop. The receiver gets `Event::Resolved` with the question's identifier.
    pub(crate) fn resolve(&mut self, question: Question) {
        self.pending_commands.push_back(Command::Resolve(question));
    }

    /// Makes a tunnel of the client of `exchange` and an upstream connection, after the pending output for
    /// either. The bytes that one side sends are sent to the other, until both sides have closed their
    /// direction, or one of them has failed. The exchange ends with that and receives no further event;
    /// until then it must wait.
    pub(crate) fn tunnel(&mut self, exchange: ExchangeId, upstream: UpstreamId) {
        self.pending_commands.push_back(Command::Tunnel(exchange, upstream));
    }

    /// Makes the client of an exchange a stream. After the output that is in the client's outbox, the
    /// service sends to the stream when [`Service::pump_streams`](crate::service::Service::pump_streams) is
    /// called. `number` is the service's number for the stream. Input from the client is dropped. The
    /// exchange ends with that and receives no further event; until then it must wait.
    pub(crate) fn stream(&mut self, exchange: ExchangeId, number: u32) {
        self.pending_commands.push_back(Command::Stream(exchange, number));
    }

    /// Parks an exchange that only waits: it has written nothing yet. The engine then passes its state to
    /// [`Service::park`](crate::service::Service::park), and needs no memory for the exchange. If the client still has
    /// unsent output or has sent more, the exchange is not parked. After `ticks` ticks a parked exchange is woken.
    pub(crate) fn park(&mut self, exchange: ExchangeId, ticks: u32) {
        self.pending_commands.push_back(Command::Park(exchange, ticks));
    }

    /// Passes the client of an exchange to another process, with the client's input from that request on.
    /// The exchange ends with that and receives no further event. On failure it receives [`HandoverError`] with
    /// the reason. Until then it must wait.
    pub(crate) fn hand_over(&mut self, what: HandOver) {
        self.pending_commands.push_back(Command::HandOver(Box::new(what)));
    }

    /// Returns the next command for the engine.
    pub(crate) fn next_command(&mut self) -> Option<Command> {
        let command = self.pending_commands.pop_front()?;
        if let Command::Upstream(id) = command
            && let Some(upstream) = self.upstreams.get_mut(id)
        {
            upstream.is_queued = false;
        }
        Some(command)
    }

    /// Returns the number of commands that were not taken yet.
    pub(crate) fn pending_commands(&self) -> usize {
        self.pending_commands.len()
    }

    fn change(&mut self, id: UpstreamId, change: impl FnOnce(&mut UpstreamConnection)) {
        if let Some(upstream) = self.upstreams.get_mut(id) {
            change(upstream);
            self.queue_upstream(id);
        }
    }

    fn queue_upstream(&mut self, id: UpstreamId) {
        if let Some(upstream) = self.upstreams.get_mut(id)
            && !std::mem::replace(&mut upstream.is_queued, true)
        {
            self.pending_commands.push_back(Command::Upstream(id));
        }
    }
}

#[cfg(test)]
mod tests;
