//! Delivery to streams: what the engine calls when it has time for subscribers.

mod handover;

use super::{
    Hub, HubShared,
    care::{self, CARE_INTERVAL, Care},
    client_of,
    expiries::Expiry,
    notifications::Size,
    shared::since_1970,
};
use crate::reactor::{ClientId, EventTarget, ExchangeId, Reactor, WakeReason};
use crate::service::{ServiceContext, StreamSend};
use crate::stats::{Counter, Counters};
use crate::time::clock::ticks;
use pollux_hub::subscribers::{Delivery, Message, SubscriberId};
use std::{
    cell::Cell,
    time::{Duration, Instant},
};

/// Messages that one call sends at most: other connections wait meanwhile.
const DELIVERIES: usize = 256;
/// The same for a call after a burst of updates. Without it, subscribers would fall behind only because publishers have
/// come first.
const BURST_DELIVERIES: usize = 4 * DELIVERIES;
/// How long one call compares updates with patterns at most, so that other connections need not wait: their authors may
/// have made thousands of them slow. One comparison is never interrupted.
pub(super) const MATCH_TIME: Duration = Duration::from_millis(2);

/// Slots that are still to be looked at.
#[derive(Debug, Default)]
pub(super) struct Rounds {
    heartbeats: usize,
    deadlines: usize,
}

impl Rounds {
    /// Adds the slots that are looked at for the time since the last check to those that are left from earlier checks.
    fn begin(&mut self, shared: &HubShared, slots: usize, since: Duration) {
        let period = shared.config.heartbeat.as_millis() / CARE_INTERVAL.as_millis();
        if let Ok(period @ 1..) = usize::try_from(period) {
            // Twice in a period, as `heartbeat` requires.
            self.heartbeats = (self.heartbeats + (2 * slots).div_ceil(period)).min(2 * slots);
        }
        if let Some(limit) = shared.max_lifetime {
            self.deadlines = (self.deadlines + limit.share(slots, since)).min(slots);
        }
    }

    fn are_over(&self) -> bool {
        self.heartbeats == 0 && self.deadlines == 0
    }
}

impl Hub {
    /// Sets the alarm if there are subscribers, or events that wait.
    pub(super) fn care_later(&mut self, reactor: &mut Reactor) {
        // With many subscribers the alarm is mostly this one already.
        if self.care.is_some_and(|care| care.interval == CARE_INTERVAL) {
            return;
        }
        let has_announcements = self.shared.has_announcements();
        if self.subscribers.is_empty() && !has_announcements {
            return;
        }
        let HubShared { config, care_interval, .. } = &*self.shared;
        let is_often = has_announcements
            || !self.expiries.is_empty()
            || care::has_many_ends(config, self.subscribers.len(), *care_interval);
        let interval = if is_often { CARE_INTERVAL } else { *care_interval };
        match self.care {
            Some(care) if care.interval <= interval => return,
            Some(care) => reactor.cancel(care.alarm),
            None => {}
        }
        let alarm = reactor.timer(ticks(interval), EventTarget::Service);
        self.care = Some(Care { alarm, interval });
    }

    /// Whether [`Hub::pump`] has something to do.
    #[inline]
    pub(crate) fn has_stream_work(&self) -> bool {
        self.care_is_due.is_some()
            || !self.rounds.are_over()
            || self.expiries.are_due()
            || self.shared.has_answers(self.worker.index)
            || self.subscribers.has_work()
            || !self.searches.is_empty()
            || (self.history.last() != self.shared.head())
            || self.shared.notifications.is_notified(self.worker.index)
    }

    /// Reads the log if many updates were published since the last call of [`Hub::pump`], because an iteration may publish
    /// more than the history holds. Returns whether it has.
    pub(super) fn read_burst(&mut self) -> bool {
        let updates = self.shared.head().saturating_sub(self.last());
        let bytes = self.shared.appended().saturating_sub(self.appended);
        let cast = |size| usize::try_from(size).unwrap_or(usize::MAX);
        let unread = Size { updates: cast(updates), bytes: cast(bytes) };
        let is_burst = unread.is_burst(&self.shared.config.limits);
        if is_burst {
            self.read_on();
        }
        is_burst
    }

    /// Sends what is to be sent, as much as one call should.
    pub(crate) fn pump(
        &mut self,
        context: &mut ServiceContext<'_>,
        mut send: impl FnMut(ClientId, StreamSend<'_>) -> Delivery,
    ) {
        self.shared.notifications.has_looked(self.worker.index);
        self.read_on();
        let is_burst = std::mem::take(&mut context.worker.has_burst);
        let deliveries = if is_burst { BURST_DELIVERIES } else { DELIVERIES };
        if self.care_is_due.is_some() {
            self.shared.announce_again();
            self.shared.expire();
            self.history.expire(self.shared.now());
        }
        if self.shared.has_answers(self.worker.index) {
            // When the engine has performed all commands, it has woken all exchanges that had an answer. An
            // answer that is left belongs to an exchange that has ended.
            if context.reactor.pending_commands() == 0 {
                self.outcomes.clear();
            }
            for (exchange, outcome) in self.shared.take_answers(self.worker.index) {
                self.outcomes.insert(exchange, outcome);
                context.reactor.wake(exchange, WakeReason::Ready);
            }
        }
        self.go_on_with_searches(context.reactor);
        let mut ready = Vec::new();
        let mut gone = Vec::new();
        let care = std::mem::take(&mut self.care_is_due);
        let ends = Cell::new(0);
        let Self { subscribers, history, shared, polls, extras, rounds, expiries, .. } = self;
        let mut deliver = |connection: u64, message: Message<'_>| {
            // Most hubs have no long polls that are not parked: then a delivery looks nothing up.
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
            let what = match message {
                Message::Update(update) => StreamSend::Chunk(update.frame.chunk()),
                Message::Comment(frame) => StreamSend::Chunk(frame.chunk()),
                Message::Heartbeat(frame) => StreamSend::Heartbeat(frame.chunk()),
                Message::End => {
                    if send(client_of(connection), StreamSend::End) == Delivery::Full {
                        return Delivery::Full;
                    }
                    ends.set(ends.get() + 1);
                    gone.push(connection);
                    return Delivery::Gone;
                }
            };
            // A parked poll is woken, and takes its updates from the history itself.
            let delivery = send(client_of(connection), what);
            if delivery == Delivery::Gone && !extras.is_empty() {
                gone.push(connection);
            }
            delivery
        };
        let counters = &context.worker.counters;
        let sent =
            subscribers.deliver(history, &shared.url, deliveries, match_time(), &mut deliver);
        // Once for all deliveries of a call.
        counters.add(Counter::HubDelivered, sent.updates as u64);
        counters.add(Counter::HubSkips, sent.skips as u64);
        counters.add(Counter::HubEndedSlow, ends.take());
        if let Some(interval) = care {
            rounds.begin(shared, subscribers.slots(), interval);
        }
        let (heartbeats, deadlines) = (rounds.heartbeats, rounds.deadlines);
        rounds.heartbeats -= subscribers.heartbeat(heartbeats, DELIVERIES, &mut deliver);
        if let Some(limit) = shared.max_lifetime {
            let now = limit.instant(shared.now());
            rounds.deadlines -= subscribers.end_overdue(deadlines, DELIVERIES, now, &mut deliver);
        }
        counters.add(Counter::HubEndedLifetime, ends.take());
        counters.set(Counter::HubTopicSets, subscribers.sets() as u64);
        if care.is_some() {
            let is_there = |expiry: &Expiry| {
                subscribers.connection(expiry.subscriber()) == Some(expiry.connection)
            };
            expiries.check(since_1970(), subscribers.len(), is_there);
        }
        if self.expiries.are_due() {
            self.end_expired(&context.worker.counters, send);
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

    /// Ends streams whose tokens expire before the next check, at most [`DELIVERIES`] of them. The next iteration goes on
    /// at once, so that streams end before their tokens expire.
    fn end_expired(
        &mut self,
        counters: &Counters,
        mut send: impl FnMut(ClientId, StreamSend<'_>) -> Delivery,
    ) {
        let Self { expiries, subscribers, .. } = self;
        let is_there = |expiry: &Expiry| {
            subscribers.connection(expiry.subscriber()) == Some(expiry.connection)
        };
        let mut ended = 0;
        for expiry in expiries.take_due(DELIVERIES, is_there) {
            let connection = expiry.connection;
            if send(client_of(connection), StreamSend::End) == Delivery::Full {
                // The connection becomes a stream in one of the next iterations.
                self.expiries.put_back(expiry);
                continue;
            }
            ended += 1;
            self.subscribers.remove(expiry.subscriber());
            self.forget(connection);
        }
        counters.add(Counter::HubEndedToken, ended);
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

/// Returns a function that returns whether there is still time to compare updates with patterns.
fn match_time() -> impl FnMut() -> bool {
    let until = Instant::now() + MATCH_TIME;
    move || Instant::now() < until
}
