//! Delivery to streams: what the engine calls when it has time for subscribers.

mod handover;

use super::{CARE_TICKS, Hub, RAW, client_of, shared::unix_time};
use crate::reactor::WakeReason;
use crate::reactor::{ClientId, ExchangeId};
use crate::service::{ServiceContext, StreamSend};
use pollux_hub::{
    subscribers::{Delivery, Message, SubscriberId},
    update::Frame,
};
use std::{cmp::Reverse, ops::Range, sync::Arc};

/// Messages that one call sends at most: other connections wait meanwhile.
const DELIVERIES: usize = 256;

/// The end of a stream, as the last chunk says it.
const END: &[u8] = b"0\r\n\r\n";

impl Hub {
    /// Whether [`Hub::pump`] has something to do.
    #[inline]
    pub(crate) fn has_stream_work(&self) -> bool {
        self.care_is_due
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
        let Self { subscribers, history, shared, polls, extras, .. } = self;
        let mut deliver = |connection: u64, message: Message<'_>| {
            // Most hubs have no long polls: then a delivery looks nothing up.
            if !polls.is_empty()
                && let Some(number) = polls.remove(&connection)
            {
                let client = client_of(connection);
                ready.push(ExchangeId { client, number });
                // The exchange reads the history itself, from its own cursor.
                return Delivery::Gone;
            }
            let is_raw = connection & RAW != 0;
            let frame = match message {
                Message::Update(update) => &update.frame,
                Message::Comment(frame) => frame,
                Message::End => {
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
        subscribers.deliver(history, &shared.url, DELIVERIES, &mut deliver);
        if care {
            let period = shared.config.heartbeat.as_millis() / u128::from(CARE_TICKS * 100);
            if let Ok(period @ 1..) = usize::try_from(period) {
                // Twice in a period, as `heartbeat` requires.
                subscribers.heartbeat((2 * subscribers.slots()).div_ceil(period), &mut deliver);
            }
        }
        let expired = if care { self.expired() } else { Vec::new() };
        for (id, connection) in expired {
            self.subscribers.remove(id);
            let end = if connection & RAW != 0 { b"" } else { END };
            send(client_of(connection), StreamSend::End(end));
            gone.push(connection);
        }
        for exchange in ready {
            context.reactor.wake(exchange, WakeReason::Ready);
        }
        for connection in gone {
            self.forget(connection);
        }
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
