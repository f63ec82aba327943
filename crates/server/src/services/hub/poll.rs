//! Long polling, for clients that cannot read a stream. The response contains the next updates and has a
//! length. The client sends its next request with the last identifier that it received: that of an update, or
//! the one that the response names in `Mercure-Last-Event-ID`.
//!
//! A poll that waits is parked: it has a slot among the subscribers and a [`ParkedPoll`], and no exchange.

use super::{
    Exchange, Extra, Hub, HubExchange, HubPhase,
    answer::Responder,
    client_of, connection_of,
    streams::MATCH_TIME,
    subscribe::{Candidate, fields},
};
use crate::{
    reactor::{AlarmId, EventTarget, ExchangeId, Reactor, WakeReason},
    service::{Event, Flow, RequestContext, ResponseWriter, ServiceContext},
    stats::{Counter, Counters},
};
use pollux_http::{Status, request::Request};
use pollux_hub::{
    history::{Sequence, Start},
    subscribers::{Audience, SubscriberId},
    update::Update,
};
use std::{sync::Arc, time::Instant};

/// The maximum time that a poll waits, in seconds: proxies time out soon after that.
const WAIT_MAX: u32 = 55;
/// The number of bytes after which no further event is added to a response. The first event may be longer.
const ANSWER_BYTES: usize = 256 << 10;

/// The maximum number of polls that one iteration searches the history for, if they have patterns.
pub(super) const SEARCHES: usize = 16;

/// A poll that is not answered yet.
#[derive(Debug)]
pub(super) struct Poll {
    reader: Reader,
    /// How long it may wait for an update, in seconds.
    seconds: u32,
    /// `None` while the history is searched for it.
    wait: Option<Wait>,
}

/// What belongs to a poll that waits for an update.
#[derive(Debug)]
struct Wait {
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
    /// The update that it has named, for the response. The fields of the response are made when they are sent.
    last_id: Option<Arc<str>>,
    has_query_token: bool,
}

/// What the hub remembers of a poll that waits. Its audience and the last update that it has are those of the subscriber,
/// and [`Extra`] has what only some polls need.
#[derive(Debug)]
pub(super) struct ParkedPoll {
    last_id: Option<Arc<str>>,
    subscriber: SubscriberId,
    is_new: bool,
    has_query_token: bool,
}

/// Returns the number of seconds that a client is willing to wait for the response (`Prefer: wait=N`, RFC
/// 7240 §4.3). Without such a field the request is for a stream.
pub(super) fn wait_of(request: &Request<'_>) -> Option<u32> {
    // Several fields are one list, and the first of several preferences of a name counts (§2).
    let lists = request.fields().filter(|field| field.name.eq_ignore_ascii_case(b"prefer"));
    let lists = lists.filter_map(|field| std::str::from_utf8(field.value).ok());
    let mut preferences = lists.flat_map(|list| list.split(','));
    let seconds = preferences.find_map(|preference| {
        // What follows a semicolon are parameters of this preference.
        let (name, value) = preference.split(';').next()?.split_once('=')?;
        name.trim().eq_ignore_ascii_case("wait").then(|| value.trim())
    })?;
    let quoted = seconds.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
    let seconds = quoted.unwrap_or(seconds);
    let is_number = !seconds.is_empty() && seconds.bytes().all(|byte| byte.is_ascii_digit());
    // A number that is too large for the type is too large for the limit, too.
    is_number.then(|| seconds.parse().unwrap_or(WAIT_MAX).min(WAIT_MAX))
}

fn waiting(responder: Responder, poll: Poll) -> Flow<Exchange> {
    Flow::Waiting(Exchange(Box::new(HubExchange { responder, phase: HubPhase::Poll(poll) })))
}

impl Hub {
    /// Answers with the updates that are available, or waits for one.
    pub(super) fn begin_poll(
        &mut self,
        context: &mut RequestContext<'_>,
        responder: Responder,
        candidate: Candidate,
        seconds: u32,
        response: &mut ResponseWriter<'_>,
    ) -> Flow<Exchange> {
        if self.is_ending {
            // A connection that cannot be handed over would bring each further poll here, too.
            context.close_after();
        }
        let is_new = candidate.id.is_none();
        let Candidate { audience, cursor, last_id, has_query_token, .. } = candidate;
        let reader = Reader { audience, cursor, is_new, last_id, has_query_token };
        self.search_for(context, responder, reader, seconds, response)
    }

    /// Searches the history, now or, if patterns may take long, when it is this poll's turn.
    fn search_for(
        &mut self,
        context: &mut RequestContext<'_>,
        responder: Responder,
        mut reader: Reader,
        seconds: u32,
        response: &mut ResponseWriter<'_>,
    ) -> Flow<Exchange> {
        self.refresh();
        if reader.audience.has_patterns() && reader.cursor < self.last() {
            self.searches.push_back(context.id());
            return waiting(responder, Poll { reader, seconds, wait: None });
        }
        let (events, _) = self.events_after(context, &mut reader, || true);
        self.answer_or_wait(context, responder, reader, seconds, &events, response)
    }

    /// Answers after the whole history was searched, or with the first events of it.
    fn answer_or_wait(
        &mut self,
        context: &mut RequestContext<'_>,
        responder: Responder,
        reader: Reader,
        seconds: u32,
        events: &[u8],
        response: &mut ResponseWriter<'_>,
    ) -> Flow<Exchange> {
        if !events.is_empty() || seconds == 0 || self.is_ending {
            self.answer_poll(context, &responder, reader, events, response);
            return Flow::Done;
        }
        let address = match self.count_address(context) {
            Ok(address) => address,
            Err(reject) => {
                responder.reject(context, response, &reject, &self.shared.url);
                return Flow::Done;
            }
        };
        let exchange = context.id();
        let connection = connection_of(exchange.client);
        if address.is_some() {
            self.extras.insert(connection, Extra { address, ..Extra::default() });
        }
        let last = self.last();
        let Some(subscriber) = self.add_subscriber(connection, &reader.audience, last) else {
            self.forget(connection);
            self.answer_poll(context, &responder, reader, &[], response);
            return Flow::Done;
        };
        self.polls.insert(connection, exchange.number);
        self.count_polls(&context.worker.counters);
        let ticks = seconds * 10;
        let alarm = context.reactor.timer(ticks, EventTarget::Exchange(exchange));
        context.reactor.park(exchange, ticks);
        let wait = Some(Wait { subscriber, connection, alarm });
        waiting(responder, Poll { reader, seconds, wait })
    }

    /// Takes a poll that waits. Another exchange, and a poll for which an update has arrived already, is returned.
    pub(crate) fn park(
        &mut self,
        context: &mut ServiceContext<'_>,
        exchange: Exchange,
    ) -> Result<u32, Exchange> {
        let HubExchange { responder, phase } = *exchange.0;
        let (reader, wait) = match phase {
            HubPhase::Poll(Poll { reader, wait: Some(wait), .. }) if self.can_park(&wait) => {
                (reader, wait)
            }
            phase => return Err(Exchange(Box::new(HubExchange { responder, phase }))),
        };
        let Wait { subscriber, connection, alarm } = wait;
        context.reactor.cancel(alarm);
        self.polls.remove(&connection);
        if responder.has_memory() {
            self.extras.entry(connection).or_default().responder = Some(Box::new(responder));
        }
        let Reader { last_id, is_new, has_query_token, .. } = reader;
        let parked = ParkedPoll { last_id, subscriber, is_new, has_query_token };
        Ok(u32::try_from(self.parked.insert(parked)).expect("`can_park` has checked the number"))
    }

    /// Returns whether no update has arrived for a poll since it began to wait, and there is a number for it.
    fn can_park(&self, wait: &Wait) -> bool {
        self.polls.contains_key(&wait.connection)
            && self.subscribers.connection(wait.subscriber) == Some(wait.connection)
            && u32::try_from(self.parked.vacant_key()).is_ok()
    }

    /// Returns the exchange of a parked poll, which waits for `left` ticks more.
    pub(crate) fn unpark(
        &mut self,
        context: &mut ServiceContext<'_>,
        exchange: ExchangeId,
        number: u32,
        left: u32,
    ) -> Option<Exchange> {
        let parked = self.parked.try_remove(number as usize)?;
        let ParkedPoll { last_id, subscriber, is_new, has_query_token } = parked;
        let (audience, cursor) = self.subscribers.position(subscriber)?;
        let connection = connection_of(exchange.client);
        let mut responder = None;
        if let Some(extra) = self.extras.get_mut(&connection) {
            responder = extra.responder.take();
            if extra.is_empty() {
                self.extras.remove(&connection);
            }
        }
        let responder = responder.map_or_else(Responder::for_hub, |responder| *responder);
        self.polls.insert(connection, exchange.number);
        let alarm = context.reactor.timer(left, EventTarget::Exchange(exchange));
        let reader = Reader { audience, cursor, is_new, last_id, has_query_token };
        let wait = Some(Wait { subscriber, connection, alarm });
        // The seconds count only until a poll waits.
        let phase = HubPhase::Poll(Poll { reader, seconds: 0, wait });
        Some(Exchange(Box::new(HubExchange { responder, phase })))
    }

    /// Answers a poll when an update has arrived or its time is over, or goes on with its search.
    pub(super) fn resume_poll(
        &mut self,
        context: &mut RequestContext<'_>,
        mut exchange: Exchange,
        event: Event<'_>,
        response: &mut ResponseWriter<'_>,
    ) -> Flow<Exchange> {
        let HubPhase::Poll(poll) = &mut exchange.0.phase else { return Flow::Waiting(exchange) };
        match (event, &poll.wait) {
            (Event::Woken(_), _) => {}
            (Event::Time(alarm), Some(wait)) if alarm == wait.alarm => {}
            // Most of these clients have disconnected, and must not count as subscribers any longer. One that still reads
            // gets its answer earlier.
            (Event::ClientEnded, Some(_)) => {}
            _ => return Flow::Waiting(exchange),
        }
        let mut found = None;
        if poll.wait.is_none() {
            let until = self.search_until;
            let has_time = || Instant::now() < until;
            let (events, is_complete) = self.events_after(context, &mut poll.reader, has_time);
            if events.is_empty() && !is_complete {
                self.searches.push_back(context.id());
                return Flow::Waiting(exchange);
            }
            found = Some(events);
        }
        let HubExchange { responder, phase } = *exchange.0;
        let HubPhase::Poll(poll) = phase else { return Flow::Done };
        self.end_poll(context, &poll);
        let Poll { reader, seconds, .. } = poll;
        match found {
            Some(events) => {
                self.answer_or_wait(context, responder, reader, seconds, &events, response)
            }
            // It has waited, so it gets an answer in any case.
            None => self.search_for(context, responder, reader, 0, response),
        }
    }

    /// Ends the waiting of a poll.
    pub(super) fn end_poll(&mut self, context: &mut RequestContext<'_>, poll: &Poll) {
        let Some(wait) = &poll.wait else { return };
        context.reactor.cancel(wait.alarm);
        self.polls.remove(&wait.connection);
        self.count_polls(&context.worker.counters);
        if self.subscribers.connection(wait.subscriber) == Some(wait.connection) {
            self.subscribers.remove(wait.subscriber);
        }
        self.forget(wait.connection);
    }

    /// Wakes the waiting polls, so that they are answered, and lets no further poll wait: this process is about to end.
    /// The engine wakes the parked polls.
    pub(crate) fn end_waiting(&mut self, reactor: &mut Reactor) {
        self.is_ending = true;
        for (connection, number) in &self.polls {
            let exchange = ExchangeId { client: client_of(*connection), number: *number };
            reactor.wake(exchange, WakeReason::Ready);
        }
    }

    /// Wakes some of the polls for which the history is to be searched. They share the time of one iteration.
    pub(super) fn go_on_with_searches(&mut self, reactor: &mut Reactor) {
        if self.searches.is_empty() {
            return;
        }
        self.search_until = Instant::now() + MATCH_TIME;
        for exchange in self.searches.drain(..SEARCHES.min(self.searches.len())) {
            reactor.wake(exchange, WakeReason::Ready);
        }
    }

    pub(super) fn count_polls(&self, counters: &Counters) {
        counters.set(Counter::HubPolls, (self.polls.len() + self.parked.len()) as u64);
    }

    /// Returns the events that a client does not have, in the format of a stream, and whether the history was searched
    /// to its end. If it is not, the client's cursor is the last update that was compared.
    fn events_after(
        &mut self,
        context: &RequestContext<'_>,
        reader: &mut Reader,
        mut has_time: impl FnMut() -> bool,
    ) -> (Vec<u8>, bool) {
        self.refresh();
        let mut events = Vec::new();
        let mut count = 0;
        let (first, last) = (self.history.first().max(reader.cursor + 1), self.history.last());
        let mut reached = last;
        for sequence in first..=last {
            let Some(update) = self.history.get(sequence) else { continue };
            if reader.audience.reads(update, &self.shared.url) {
                events.extend_from_slice(update.frame.text());
                count += 1;
            }
            if events.len() >= ANSWER_BYTES || !has_time() {
                reached = sequence;
                break;
            }
        }
        if events.is_empty() {
            // No update up to here is for this audience.
            reader.cursor = reader.cursor.max(reached);
        }
        context.worker.counters.add(Counter::HubDelivered, count);
        (events, reached == last)
    }

    /// Answers with the events of [`Hub::events_after`], or with 204 if there are none.
    fn answer_poll(
        &self,
        context: &mut RequestContext<'_>,
        responder: &Responder,
        reader: Reader,
        events: &[u8],
        response: &mut ResponseWriter<'_>,
    ) {
        let Reader { audience, cursor, is_new, mut last_id, has_query_token } = reader;
        if is_new {
            // Without an identifier, the client would lose the updates between two polls. The search has no limit:
            // `earliest` is correct only if the client may read no update up to here.
            let cursor = if events.is_empty() { self.last() } else { cursor };
            let visible = |update: &Update| audience.may_read(update, &self.shared.url);
            let start = Start { cursor, found: true };
            last_id = Some(self.history.response_id(start, usize::MAX, visible));
        }
        let fields = fields(has_query_token, last_id.as_deref());
        let status = if events.is_empty() { Status::NoContent } else { Status::Ok };
        responder.answer(
            context,
            response,
            status,
            fields.as_bytes(),
            ("text/event-stream", events),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pollux_http::{
        Limits,
        request::{ParseStatus, parse},
    };

    #[test]
    fn a_preference_counts_however_it_is_written() {
        for (fields, expected) in [
            ("", None),
            ("Prefer: respond-async\r\n", None),
            ("Prefer: wait=30\r\n", Some(30)),
            ("prefer: respond-async, Wait = 5;x\r\n", Some(5)),
            // Regression: a parameter of another preference began a long poll.
            ("Prefer: respond-async;wait=1\r\n", None),
            ("Prefer: respond-async; wait=1, wait=3; wait=2\r\n", Some(3)),
            // Regression: each of these began a stream, for which such a client waits until its own timeout.
            ("Prefer: respond-async\r\nPrefer: wait=7\r\n", Some(7)),
            ("Prefer: wait=\"7\"\r\n", Some(7)),
            ("Prefer: wait=99999999999\r\n", Some(WAIT_MAX)),
            ("Prefer: wait=1\r\nPrefer: wait=2\r\n", Some(1)),
            ("Prefer: wait=soon, wait=2\r\n", None),
            ("Prefer: wait=+2\r\n", None),
            ("Prefer: wait=\r\n", None),
        ] {
            let head = format!("GET / HTTP/1.1\r\nHost: h\r\n{fields}\r\n");
            let Ok(ParseStatus::Complete { request, .. }) =
                parse(head.as_bytes(), &Limits::DEFAULT)
            else {
                panic!("{fields}")
            };
            assert_eq!(wait_of(&request), expected, "{fields}");
        }
    }
}
