//! What services request from the engine: upstream connections, timers, name lookups, events for
//! each other.
//!
//! Nothing here does I/O. A service queues commands; the engine that drives it takes them with
//! [`Reactor::next_command`], performs each in its own way, and delivers the outcome as an `Event`
//! to the [`EventTarget`] that the command names. Identifiers carry a serial number, so an
//! identifier whose subject is gone does no harm.

mod alarms;
mod handover;
mod upstream_error;
mod upstreams;

pub use alarms::AlarmId;
pub(crate) use alarms::Alarms;
pub(crate) use handover::HandOver;
pub use handover::NotTaken;
pub use upstream_error::UpstreamError;
pub use upstreams::UpstreamId;
pub(crate) use upstreams::{
    ConnectedSocket, Endpoint, UpstreamConnection, UpstreamConnections, UpstreamState,
};

use crate::transport::{handover::Receivers, outbox::Outbox};
use std::collections::VecDeque;

/// An exchange that waits, or waited once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ExchangeId {
    /// Its client's place in the driver.
    pub(crate) client: ClientId,
    /// Which of its connection's requests it answers, from 1.
    pub(crate) number: u32,
}

impl ExchangeId {
    /// Whether it is a background task: an exchange of an application's own ([`Reactor::begin_background`]).
    #[inline]
    pub(crate) fn is_background(self) -> bool {
        self.client.fd < 0
    }
}

/// A client's connection, as its driver knows it: a descriptor and the generation of its use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ClientId {
    /// The descriptor.
    pub(crate) fd: i32,
    /// Which use of the number it is.
    pub(crate) generation: u32,
}

/// The receiver of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventTarget {
    /// One exchange, by `Service::resume`; a background task, by `Service::background`.
    Exchange(ExchangeId),
    /// The application itself, by `Service::event`: for what many exchanges share.
    Service,
}

/// Why a service wakes one of its exchanges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WakeReason {
    /// What the exchange waits for has come: data, an answer, the end of somebody else's fetch.
    Ready,
    /// A resource is free that the exchange has queued for, such as a connection to an origin.
    Capacity,
}

/// A name to be resolved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Question {
    /// A host name, or an address in text.
    pub(crate) name: String,
    /// The port of the addresses that come back.
    pub(crate) port: u16,
    /// The receiver of the answer.
    pub(crate) to: EventTarget,
    /// Given back with the answer.
    pub(crate) note: u64,
}

/// A command for the engine.
#[derive(Debug)]
pub(crate) enum Command {
    /// Look at this link: it is to be dialled, has output, is paused or no longer, or ends.
    Upstream(UpstreamId),
    /// Arm this alarm.
    Alarm(AlarmId),
    /// Wake this exchange with this note.
    Wake(ExchangeId, WakeReason),
    /// Resolve a name.
    Resolve(Question),
    /// Give the exchange's client to another process.
    HandOver(Box<HandOver>),
    /// Tie the exchange's client and the link together: from now on bytes go from one to the other.
    Tunnel(ExchangeId, UpstreamId),
    /// Make the exchange's client a stream of the service, which knows it by this number.
    Stream(ExchangeId, u32),
}

/// The commands and resources of the services of one worker.
#[derive(Debug, Default)]
pub struct Reactor {
    /// Connections that applications have dialled.
    pub(crate) upstreams: UpstreamConnections,
    /// Their timers.
    pub(crate) alarms: Alarms,
    /// The driver's: to whom clients are handed over.
    pub(crate) receivers: Receivers,
    pending_commands: VecDeque<Command>,
    /// Background tasks under way, and how many there were.
    background: usize,
    last_background: u32,
}

impl Reactor {
    /// An exchange that no client owns begins: its events go to `Service::background`. To be
    /// ended with [`Reactor::end_background`].
    pub fn begin_background(&mut self) -> ExchangeId {
        self.background += 1;
        self.last_background = self.last_background.wrapping_add(1);
        ExchangeId { client: ClientId { fd: -1, generation: self.last_background }, number: 0 }
    }

    /// One that began is over.
    pub fn end_background(&mut self) {
        debug_assert!(self.background > 0, "more background tasks have ended than begun");
        self.background -= 1;
    }

    /// Background tasks under way.
    pub(crate) fn background(&self) -> usize {
        self.background
    }

    /// Dials `endpoint`. `to` receives `Connected`, or `Failed` after at most `timeout` ticks. What is
    /// to be sent may be put into [`Reactor::send`] at once.
    pub(crate) fn dial(&mut self, endpoint: Endpoint, timeout: u32, to: EventTarget) -> UpstreamId {
        let id = self.upstreams.insert(endpoint, timeout, to);
        self.queue_upstream(id);
        id
    }

    /// Where to put what is to be sent on a link. It leaves after the call; what several calls of
    /// one pass of the loop put there leaves together. Of a link that is gone, nowhere.
    pub(crate) fn send(&mut self, id: UpstreamId) -> &mut Outbox {
        self.queue_upstream(id);
        self.upstreams.output(id)
    }

    /// Whether so much waits to be sent on a link that no more should be put there:
    /// `Event::UpstreamRoom` comes when it is low.
    pub(crate) fn is_full(&self, id: UpstreamId) -> bool {
        self.upstreams.get(id).is_some_and(|upstream| upstream.output.is_full())
    }

    /// Receives nothing more on an upstream connection until [`Reactor::go_on`]. The kernel's flow
    /// control then stops the peer.
    pub(crate) fn pause(&mut self, id: UpstreamId) {
        self.change(id, |upstream| upstream.is_paused = true);
    }

    /// Receives on a link again.
    pub(crate) fn go_on(&mut self, id: UpstreamId) {
        self.change(id, |upstream| upstream.is_paused = false);
    }

    /// Closes our side of a link when all that was put into it has left.
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

    /// Events of the upstream connection go to `to` from now on.
    pub(crate) fn give(&mut self, id: UpstreamId, to: EventTarget) {
        if let Some(upstream) = self.upstreams.get_mut(id) {
            upstream.to = to;
        }
    }

    /// Tells `to` after so many ticks, at the earliest.
    pub fn timer(&mut self, ticks: u32, to: EventTarget) -> AlarmId {
        let id = self.alarms.insert(ticks, to);
        self.pending_commands.push_back(Command::Alarm(id));
        id
    }

    /// Cancels an alarm. No event is delivered.
    pub fn cancel(&mut self, id: AlarmId) {
        self.alarms.cancel(id);
    }

    /// Wakes an exchange that waits, with a note.
    pub fn wake(&mut self, exchange: ExchangeId, reason: WakeReason) {
        self.pending_commands.push_back(Command::Wake(exchange, reason));
    }

    /// Resolves a name away from the loop; `Event::Resolved` comes with `note`.
    pub(crate) fn resolve(&mut self, question: Question) {
        self.pending_commands.push_back(Command::Resolve(question));
    }

    /// Ties the client of `exchange` and a link together, after what either is still to be sent:
    /// what one sends is sent to the other, until one of them has closed and the other has it all.
    /// The exchange is over with that, and has nothing more to say; until then it must wait.
    pub(crate) fn tunnel(&mut self, exchange: ExchangeId, upstream: UpstreamId) {
        self.pending_commands.push_back(Command::Tunnel(exchange, upstream));
    }

    /// Makes the client of an exchange a stream: after what is in its outbox, the service sends to it
    /// when [`Service::pump_streams`](crate::service::Service::pump_streams) is called, and knows it
    /// by `number`. What the client sends is dropped. The exchange ends with that and receives no
    /// further event; until then it must wait.
    pub(crate) fn stream(&mut self, exchange: ExchangeId, number: u32) {
        self.pending_commands.push_back(Command::Stream(exchange, number));
    }

    /// Gives the client of an exchange to another process, with what it has sent from that request
    /// on. The exchange ends with that and receives no further event; on failure it receives
    /// [`NotTaken`] with the reason. Until then it must wait.
    pub(crate) fn hand_over(&mut self, what: HandOver) {
        self.pending_commands.push_back(Command::HandOver(Box::new(what)));
    }

    /// The next command for the engine.
    pub(crate) fn next_command(&mut self) -> Option<Command> {
        let command = self.pending_commands.pop_front()?;
        if let Command::Upstream(id) = command
            && let Some(upstream) = self.upstreams.get_mut(id)
        {
            upstream.is_queued = false;
        }
        Some(command)
    }

    /// The number of commands that were not taken yet.
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
