//! Long polling, for clients that cannot read a stream. The response contains the next updates and has a
//! length. The client sends its next request with the last identifier that it received: that of an update, or
//! the one that the response names in `Mercure-Last-Event-ID`.

use super::{
    Exchange, Extra, Hub, HubExchange, HubPhase,
    answer::Responder,
    connection_of,
    subscribe::{Candidate, id_fields},
};
use crate::{
    reactor::{AlarmId, EventTarget},
    service::{Event, Flow, RequestContext},
    stats::{Counter, Counters},
    transport::outbox::Outbox,
};
use pollux_http::{Status, request::Request};
use pollux_hub::{
    history::{Sequence, Start},
    subscribers::{Audience, SubscriberId},
    update::Update,
};

/// The maximum time that a poll waits, in seconds: proxies time out soon after that.
const WAIT_MAX: u32 = 55;
/// The number of bytes after which no further event is added to a response. The first event may be longer.
const ANSWER_BYTES: usize = 256 << 10;

/// A poll that waits.
#[derive(Debug)]
pub(super) struct Poll {
    reader: Reader,
    subscriber: SubscriberId,
    connection: u64,
    alarm: AlarmId,
}

/// The client of a poll.
#[derive(Debug)]
struct Reader {
    audience: Audience,
    /// The last update that it has.
    cursor: Sequence,
    /// Whether it has named no update. Then the response names the newest one that it may read, for its next request.
    is_new: bool,
    /// The fields of the response.
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
        mut candidate: Candidate,
        wait: u32,
        outbox: &mut Outbox,
    ) -> Flow<Exchange> {
        let is_new = candidate.id.is_none();
        if is_new {
            candidate.last_id = None;
        }
        let fields = candidate.fields();
        let Candidate { audience, cursor, .. } = candidate;
        let mut reader = Reader { audience, cursor, is_new, fields };
        let events = self.events_after(context, &reader);
        if !events.is_empty() || wait == 0 {
            self.answer_poll(context, &responder, reader, &events, outbox);
            return Flow::Done;
        }
        let address = match self.count_address(context) {
            Ok(address) => address,
            Err(reject) => {
                responder.reject(context, outbox, &reject, &self.shared.url);
                return Flow::Done;
            }
        };
        let exchange = context.id();
        let connection = connection_of(exchange.client, false);
        if address.is_some() {
            self.extras.insert(connection, Extra { address, subscriptions: Vec::new() });
        }
        let last = self.last();
        // No update up to `last` is for this audience.
        reader.cursor = last;
        let Some(subscriber) = self.subscribers.add(connection, &reader.audience, last, last)
        else {
            self.forget(connection);
            self.answer_poll(context, &responder, reader, &[], outbox);
            return Flow::Done;
        };
        self.polls.insert(connection, exchange.number);
        self.count_polls(&context.worker.counters);
        let alarm = context.reactor.timer(wait * 10, EventTarget::Exchange(exchange));
        let poll = Poll { reader, subscriber, connection, alarm };
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
        let HubPhase::Poll(poll) = &exchange.0.phase else { return Flow::Waiting(exchange) };
        match event {
            Event::Woken(_) => {}
            Event::Time(alarm) if alarm == poll.alarm => {}
            _ => return Flow::Waiting(exchange),
        }
        let HubExchange { responder, phase } = *exchange.0;
        let HubPhase::Poll(poll) = phase else { return Flow::Done };
        self.end_poll(context, &poll);
        let events = self.events_after(context, &poll.reader);
        self.answer_poll(context, &responder, poll.reader, &events, outbox);
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
        self.forget(poll.connection);
    }

    pub(super) fn count_polls(&self, counters: &Counters) {
        counters.set(Counter::HubPolls, self.polls.len() as u64);
    }

    /// Returns the events that a client does not have, in the format of a stream.
    fn events_after(&mut self, context: &RequestContext<'_>, reader: &Reader) -> Vec<u8> {
        self.refresh();
        let mut events = Vec::new();
        let mut count = 0;
        let first = self.history.first().max(reader.cursor + 1);
        for sequence in first..=self.history.last() {
            let Some(update) = self.history.get(sequence) else { continue };
            if reader.audience.reads(update, &self.shared.url) {
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

    /// Answers with the events of [`Hub::events_after`], or with 204 if there are none.
    fn answer_poll(
        &self,
        context: &mut RequestContext<'_>,
        responder: &Responder,
        reader: Reader,
        events: &[u8],
        outbox: &mut Outbox,
    ) {
        let Reader { audience, cursor, is_new, mut fields } = reader;
        if is_new {
            // Without an identifier, the client would lose the updates between two polls. The search has no limit:
            // `earliest` is correct only if the client may read no update up to here.
            let cursor = if events.is_empty() { self.last() } else { cursor };
            let visible = |update: &Update| audience.may_read(update, &self.shared.url);
            let start = Start { cursor, found: true };
            fields.push_str(&id_fields(&self.history.response_id(start, usize::MAX, visible)));
        }
        let status = if events.is_empty() { Status::NoContent } else { Status::Ok };
        responder.answer(context, outbox, status, fields.as_bytes(), ("text/event-stream", events));
    }
}
