//! Delivery to streams: what the engine calls when it has time for subscribers.

mod handover;

use super::{CARE_INTERVAL, Hub, HubShared, RAW, client_of, shared::unix_time};
use crate::reactor::WakeReason;
use crate::reactor::{ClientId, ExchangeId};
use crate::service::{ServiceContext, StreamSend};
use crate::stats::Counter;
use pollux_hub::{
    subscribers::{Delivery, Message, SubscriberId},
    update::Frame,
};
use std::{cell::Cell, cmp::Reverse, ops::Range, sync::Arc, time::Duration};

/// Messages that one call sends at most: other connections wait meanwhile.
const DELIVERIES: usize = 256;

/// The end of a stream, as the last chunk says it.
const END: &[u8] = b"0\r\n\r\n";

/// Slots that are still to be looked at.
#[derive(Debug, Default)]
pub(super) struct Rounds {
    heartbeats: usize,
    deadlines: usize,
}

impl Rounds {
    /// Adds the slots that are looked at in one second to those that are left from earlier seconds.
    fn begin(&mut self, shared: &HubShared, slots: usize) {
        let period = shared.config.heartbeat.as_millis() / CARE_INTERVAL.as_millis();
        if let Ok(period @ 1..) = usize::try_from(period) {
            // Twice in a period, as `heartbeat` requires.
            self.heartbeats = (self.heartbeats + (2 * slots).div_ceil(period)).min(2 * slots);
        }
        if let Some(limit) = shared.max_lifetime {
            self.deadlines = (self.deadlines + limit.share(slots)).min(slots);
        }
    }

    fn are_over(&self) -> bool {
        self.heartbeats == 0 && self.deadlines == 0
    }
}

impl Hub {
    /// Whether [`Hub::pump`] has something to do.
    #[inline]
    pub(crate) fn has_stream_work(&self) -> bool {
        self.care_is_due
            || !self.rounds.are_over()
            || self.shared.has_answers(self.worker.index)
            || self.subscribers.has_work()
            || (self.history.last() != self.shared.head())
            || self.shared.is_notified(self.worker.index)
    }

    /// Sends what is to be sent, as much as one call should.
    pub(crate) fn pump(
        &mut self,
        context: &mut ServiceContext<'_>,
        mut send: impl FnMut(ClientId, StreamSend<'_>) -> Delivery,
    ) {
        self.shared.has_looked(self.worker.index);
        self.read_on();
        if self.shared.has_answers(self.worker.index) {
            // Those of the last call have been taken, or their publishers are gone.
            self.outcomes.clear();
            for (exchange, outcome) in self.shared.take_answers(self.worker.index) {
                self.outcomes.insert(exchange, outcome);
                context.reactor.wake(exchange, WakeReason::Ready);
            }
        }
        let mut ready = Vec::new();
        let mut gone = Vec::new();
        let care = std::mem::take(&mut self.care_is_due);
        let ends = Cell::new(0);
        let Self { subscribers, history, shared, polls, extras, rounds, .. } = self;
        let mut deliver = |connection: u64, message: Message<'_>| {
            // Most hubs have no long polls: then a delivery looks nothing up.
            if !polls.is_empty()
                && let Some(&number) = polls.get(&connection)
            {
                if matches!(message, Message::Heartbeat(_)) {
                    // It waits for an update or for the end of its time.
                    return Delivery::Taken;
                }
                polls.remove(&connection);
                let client = client_of(connection);
                ready.push(ExchangeId { client, number });
                // The exchange reads the history itself, from its own cursor.
                return Delivery::Gone;
            }
            let is_raw = connection & RAW != 0;
            let frame = match message {
                Message::Update(update) => &update.frame,
                Message::Comment(frame) | Message::Heartbeat(frame) => frame,
                Message::End => {
                    ends.set(ends.get() + 1);
                    send(client_of(connection), StreamSend::End(if is_raw { b"" } else { END }));
                    gone.push(connection);
                    return Delivery::Gone;
                }
            };
            let (bytes, range) = piece(frame, is_raw);
            let delivery = send(client_of(connection), StreamSend::Bytes(bytes, range));
            if delivery == Delivery::Gone && !extras.is_empty() {
                gone.push(connection);
            }
            delivery
        };
        let counters = &context.worker.counters;
        let sent = subscribers.deliver(history, &shared.url, DELIVERIES, &mut deliver);
        // Once for all deliveries of a call.
        counters.add(Counter::HubDelivered, sent.updates as u64);
        counters.add(Counter::HubSkips, sent.skips as u64);
        counters.add(Counter::HubEndedSlow, ends.take());
        if care {
            rounds.begin(shared, subscribers.slots());
        }
        let (heartbeats, deadlines) = (rounds.heartbeats, rounds.deadlines);
        rounds.heartbeats -= subscribers.heartbeat(heartbeats, DELIVERIES, &mut deliver);
        if let Some(limit) = shared.max_lifetime {
            let now = limit.instant(shared.now());
            rounds.deadlines -= subscribers.end_overdue(deadlines, DELIVERIES, now, &mut deliver);
        }
        counters.add(Counter::HubEndedLifetime, ends.take());
        if care {
            counters.set(Counter::HubTopicSets, subscribers.sets() as u64);
        }
        let expired = if care { self.expired() } else { Vec::new() };
        context.worker.counters.add(Counter::HubEndedToken, expired.len() as u64);
        for (id, connection) in expired {
            self.subscribers.remove(id);
            let end = if connection & RAW != 0 { b"" } else { END };
            send(client_of(connection), StreamSend::End(end));
            gone.push(connection);
        }
        self.count_polls(&context.worker.counters);
        for exchange in ready {
            context.reactor.wake(exchange, WakeReason::Ready);
        }
        for connection in gone {
            self.forget(connection);
        }
    }

    /// Gives a stream a deadline. `left` is the remaining time of a stream that another process has handed over; a new
    /// stream gets a random one.
    pub(super) fn limit_lifetime(&mut self, id: SubscriberId, left: Option<Duration>) {
        let Some(limit) = self.shared.max_lifetime else { return };
        let now = self.shared.now();
        let deadline = match left {
            Some(left) => limit.after(now, left),
            None => limit.draw(now, rand::random()),
        };
        self.subscribers.set_deadline(id, deadline);
    }

    /// The subscribers whose tokens expire within the next second: a stream ends no later than its
    /// token.
    fn expired(&mut self) -> Vec<(SubscriberId, u64)> {
        let horizon = unix_time() + 1;
        let mut found = Vec::new();
        while let Some(Reverse((at, number, connection))) = self.expiries.peek().copied() {
            if at > horizon {
                break;
            }
            self.expiries.pop();
            let id = SubscriberId::of(number);
            if self.subscribers.connection(id) == Some(connection) {
                found.push((id, connection));
            }
        }
        // Subscribers that left early leave their entries behind.
        if self.expiries.len() > 2 * self.subscribers.len() + 1024 {
            let subscribers = &self.subscribers;
            self.expiries.retain(|Reverse((_, number, connection))| {
                subscribers.connection(SubscriberId::of(*number)) == Some(*connection)
            });
        }
        found
    }

    /// The connection of a stream can take more.
    pub(crate) fn stream_has_room(&mut self, number: u32) {
        self.subscribers.resume(SubscriberId::of(number));
    }

    /// The connection of a stream has ended.
    pub(crate) fn stream_has_ended(&mut self, number: u32) {
        let id = SubscriberId::of(number);
        if let Some(connection) = self.subscribers.connection(id) {
            self.subscribers.remove(id);
            self.forget(connection);
        }
    }
}

fn piece(frame: &Frame, is_raw: bool) -> (&Arc<[u8]>, Range<usize>) {
    let bytes = frame.shared();
    (bytes, if is_raw { frame.text_range() } else { 0..bytes.len() })
}
