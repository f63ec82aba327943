//! Long polling, for clients that cannot read a stream. The response contains the next updates and has a
//! length. The client sends its next request with the last identifier that it received.

use super::{
    Exchange, Hub, HubExchange, HubPhase, answer::Responder, connection_of, subscribe::Candidate,
};
use crate::{
    reactor::{AlarmId, EventTarget},
    service::{Event, Flow, RequestContext},
    stats::{Counter, Counters},
    transport::outbox::Outbox,
};
use pollux_http::{Status, request::Request};
use pollux_hub::{
    history::Sequence,
    subscribers::{Audience, SubscriberId},
};

/// The maximum time that a poll waits, in seconds: proxies time out soon after that.
const WAIT_MAX: u32 = 55;
/// The number of bytes after which no further event is added to a response. The first event may be longer.
const ANSWER_BYTES: usize = 256 << 10;

/// A poll that waits.
#[derive(Debug)]
pub(super) struct Poll {
    audience: Audience,
    cursor: Sequence,
    subscriber: SubscriberId,
    connection: u64,
    alarm: AlarmId,
    fields: String,
}

/// Returns the number of seconds that a client is willing to wait for the response (`Prefer: wait=N`, RFC
/// 7240 §4.3). Without such a field the request is for a stream.
pub(super) fn wait_of(request: &Request<'_>) -> Option<u32> {
    let preferences = std::str::from_utf8(request.field(b"prefer")?).ok()?;
    let wait = preferences.split([',', ';']).find_map(|preference| {
        let (name, value) = preference.split_once('=')?;
        name.trim().eq_ignore_ascii_case("wait").then(|| value.trim().parse().ok())?
    })?;
    Some(u32::min(wait, WAIT_MAX))
}

impl Hub {
    /// Answers with the updates that are available, or waits for one.
    pub(super) fn begin_poll(
        &mut self,
        context: &mut RequestContext<'_>,
        responder: Responder,
        candidate: Candidate,
        wait: u32,
        outbox: &mut Outbox,
    ) -> Flow<Exchange> {
        let fields = candidate.fields();
        let Candidate { audience, cursor, .. } = candidate;
        let events = self.events_after(context, cursor, &audience);
        if !events.is_empty() || wait == 0 {
            answer(context, &responder, &fields, &events, outbox);
            return Flow::Done;
        }
        let exchange = context.id();
        let connection = connection_of(exchange.client, false);
        let last = self.last();
        // No update up to `last` is for this audience.
        let Some(subscriber) = self.subscribers.add(connection, &audience, last, last) else {
            answer(context, &responder, &fields, &[], outbox);
            return Flow::Done;
        };
        self.polls.insert(connection, exchange.number);
        self.count_polls(&context.worker.counters);
        let alarm = context.reactor.timer(wait * 10, EventTarget::Exchange(exchange));
        let poll = Poll { audience, cursor: last, subscriber, connection, alarm, fields };
        Flow::Waiting(Exchange(Box::new(HubExchange { responder, phase: HubPhase::Poll(poll) })))
    }

    /// Answers a poll when an update has arrived or its time is over.
    pub(super) fn resume_poll(
        &mut self,
        context: &mut RequestContext<'_>,
        exchange: Exchange,
        event: Event<'_>,
        outbox: &mut Outbox,
    ) -> Flow<Exchange> {
        let HubExchange { responder, phase: HubPhase::Poll(poll) } = &*exchange.0 else {
            return Flow::Waiting(exchange);
        };
        match event {
            Event::Woken(_) => {}
            Event::Time(alarm) if alarm == poll.alarm => {}
            _ => return Flow::Waiting(exchange),
        }
        self.end_poll(context, poll);
        let events = self.events_after(context, poll.cursor, &poll.audience);
        answer(context, responder, &poll.fields, &events, outbox);
        Flow::Done
    }

    /// Ends the waiting of a poll.
    pub(super) fn end_poll(&mut self, context: &mut RequestContext<'_>, poll: &Poll) {
        context.reactor.cancel(poll.alarm);
        self.polls.remove(&poll.connection);
        self.count_polls(&context.worker.counters);
        if self.subscribers.connection(poll.subscriber) == Some(poll.connection) {
            self.subscribers.remove(poll.subscriber);
        }
    }

    pub(super) fn count_polls(&self, counters: &Counters) {
        counters.set(Counter::HubPolls, self.polls.len() as u64);
    }

    /// Returns the events after a cursor, in the format of a stream.
    fn events_after(
        &mut self,
        context: &RequestContext<'_>,
        cursor: Sequence,
        audience: &Audience,
    ) -> Vec<u8> {
        self.read_on();
        let mut events = Vec::new();
        let mut count = 0;
        let first = self.history.first().max(cursor + 1);
        for sequence in first..=self.history.last() {
            let Some(update) = self.history.get(sequence) else { continue };
            if audience.reads(update, &self.shared.url) {
                events.extend_from_slice(update.frame.text());
                count += 1;
                if events.len() >= ANSWER_BYTES {
                    break;
                }
            }
        }
        context.worker.counters.add(Counter::HubDelivered, count);
        events
    }
}

/// Answers with events, or with 204 if there are none.
fn answer(
    context: &mut RequestContext<'_>,
    responder: &Responder,
    fields: &str,
    events: &[u8],
    outbox: &mut Outbox,
) {
    let status = if events.is_empty() { Status::NoContent } else { Status::Ok };
    responder.answer(context, outbox, status, fields.as_bytes(), ("text/event-stream", events));
}
