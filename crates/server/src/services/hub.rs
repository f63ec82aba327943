//! A Mercure hub at one path: publishers post updates, and subscribers receive them.
//!
//! The crate `pollux-hub` implements the protocol; this module handles requests. An update is appended to a
//! log that all workers share. Each worker copies the log to its own history, and delivers updates to its own
//! subscribers. A subscriber's connection is not an exchange but a stream (see
//! [`crate::reactor::Reactor::stream`]), so that an idle subscriber costs only its entry in the engine's
//! table and a slot here.

mod announce;
mod answer;
mod backlog;
mod care;
mod content;
mod expiries;
mod keys;
mod lock;
mod notifications;
mod poll;
mod publish;
mod record;
mod redis;
mod shared;
mod store;
mod streams;
mod subscribe;
#[cfg(test)]
mod tests;
mod transfer;
mod verify;

pub(crate) use answer::without_token;
pub(crate) use notifications::NewsRound;
pub(crate) use shared::HubShared;
pub(crate) use transfer::refuse as refuse_log;

use crate::{
    config::KeySource,
    reactor::{ClientId, ExchangeId},
    service::{Event, Flow, Part, RequestContext, ResponseWriter, Service, ServiceContext},
    stats::Counter,
};
use answer::Responder;
use care::Care;
use expiries::Expiries;
use poll::{ParkedPoll, Poll};
use pollux_http::{
    Status,
    conditional::{self, Precondition, Validators},
    etag::ETag,
    request::{Framing, Method, Request, Target},
};
use pollux_hub::{
    history::{History, Sequence},
    query,
    reject::Reject,
    subscribers::{SubscriberId, Subscribers},
    subscriptions::{self, Subscription},
    token::{self, Access, Credentials, Source, Verifier},
};
use publish::Form;
use shared::{Ticket, WorkerId};
use slab::Slab;
use std::{
    collections::{HashMap, VecDeque},
    hash::{DefaultHasher, Hash, Hasher},
    net::IpAddr,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};
use streams::Rounds;
use subscribe::SubscribeHead;

/// One worker's part of a hub.
#[derive(Debug)]
pub(crate) struct Hub {
    shared: Arc<HubShared>,
    /// The worker to which this part belongs.
    worker: WorkerId,
    history: History,
    /// [`HubShared::appended`] when the log was last read.
    appended: u64,
    subscribers: Subscribers,
    /// The exchange number of each waiting long poll that is not parked, by its connection.
    polls: HashMap<u64, u32>,
    /// The waiting long polls that are parked.
    parked: Slab<ParkedPoll>,
    /// Polls with patterns for which the history is to be searched, and until when this iteration does so.
    searches: VecDeque<ExchangeId>,
    search_until: Instant,
    /// Data that only some subscribers have, by their connection.
    extras: HashMap<u64, Extra>,
    /// The expiry times of tokens.
    expiries: Expiries,
    /// The answers to exchanges that waited for the store or the log, until these exchanges are resumed.
    outcomes: HashMap<ExchangeId, Result<Arc<str>, Reject>>,
    /// The alarm for the next check, and the time since the last check if the alarm has expired.
    care: Option<Care>,
    care_is_due: Option<Duration>,
    /// The unfinished work of the last checks.
    rounds: Rounds,
    /// Whether this process is about to end. Then no long poll waits any more.
    is_ending: bool,
}

/// Data that only some subscribers have.
#[derive(Debug, Default)]
struct Extra {
    address: Option<IpAddr>,
    subscriptions: Vec<Subscription>,
    /// That of a parked poll whose request has a line for the log, or fields for the response.
    responder: Option<Box<Responder>>,
}

impl Extra {
    fn is_empty(&self) -> bool {
        let Self { address, subscriptions, responder } = self;
        address.is_none() && subscriptions.is_empty() && responder.is_none()
    }
}

/// An exchange that is not answered at once.
#[derive(Debug)]
pub(crate) struct Exchange(Box<HubExchange>);

#[derive(Debug)]
struct HubExchange {
    responder: Responder,
    phase: HubPhase,
}

#[derive(Debug)]
enum HubPhase {
    /// A form is being received.
    Form(Form),
    /// The topics of a subscriber are being received.
    Query(Box<SubscribeHead>),
    /// The body is ignored, but it must be received before the response is sent.
    Unwanted(Reject),
    /// The connection is about to become a stream.
    Stream(SubscriberId),
    /// The client waits for the next update, and sends another request after it.
    Poll(Poll),
    /// The publisher waits until its update is stored.
    Storage,
    /// The subscriber names an update that this hub may not have yet.
    CatchUp(Box<subscribe::Return>),
}

impl Hub {
    /// Creates the part of one worker.
    pub(crate) fn new(shared: Arc<HubShared>, worker: usize) -> Self {
        let (worker, filter) = shared.begin_worker(worker);
        Self {
            worker,
            history: History::new(&shared.config.limits),
            appended: shared.appended(),
            subscribers: Subscribers::new(shared.config.on_loss, filter),
            polls: HashMap::new(),
            parked: Slab::new(),
            searches: VecDeque::new(),
            search_until: Instant::now(),
            extras: HashMap::new(),
            expiries: Expiries::default(),
            outcomes: HashMap::new(),
            care: None,
            care_is_due: None,
            rounds: Rounds::default(),
            is_ending: false,
            shared,
        }
    }

    /// Returns whether a request is for the hub: its path, a path below it, or its metadata.
    #[inline]
    pub(crate) fn has(&self, target: &Target<'_>) -> bool {
        let Target::Path { path, .. } = target else { return false };
        let own = self.shared.config.path.as_bytes();
        let below = |path: &[u8]| {
            path.strip_prefix(own).is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
        };
        below(path)
            || path
                .strip_prefix(b"/.well-known/oauth-protected-resource")
                .is_some_and(|at| at == own)
    }

    /// Returns whether a request is for the hub itself, and not for a resource below it.
    fn is_hub_itself(&self, target: &Target<'_>) -> bool {
        matches!(target, Target::Path { path, .. } if *path == self.shared.config.path.as_bytes())
    }

    /// Returns whether pages of other origins may use the hub.
    pub(crate) fn has_cors(&self) -> bool {
        !self.shared.config.cors.is_empty()
    }

    /// Returns whether an event is for the hub.
    pub(crate) fn is_meant(&self, event: &Event<'_>) -> bool {
        matches!(event, Event::Time(alarm) if self.care.is_some_and(|care| care.alarm == *alarm))
    }

    /// Finds the token of a request and verifies it. With `hides_authorization` the credentials in `Authorization` were
    /// for the site, which has verified them (`--basic-auth`).
    fn access(
        &self,
        request: &Request<'_>,
        hides_authorization: bool,
        query_token: Option<&str>,
        verifier: Option<&Verifier>,
    ) -> Result<Option<(Access, Source)>, Reject> {
        let values = |name: &'static [u8]| {
            let named = request.fields().filter(|field| field.name.eq_ignore_ascii_case(name));
            named.map(|field| field.value).collect::<Vec<_>>()
        };
        let cookie = values(b"cookie").join(&b"; "[..]);
        if !hides_authorization && values(b"authorization").len() > 1 {
            return Err(Reject::invalid(
                "the field Authorization is repeated: send one, with one token",
            ));
        }
        let credentials = Credentials {
            authorization: request.field(b"authorization").filter(|_| !hides_authorization),
            query: query_token,
            cookie: Some(&cookie),
        };
        let Some((token, source)) = token::select(&credentials, self.shared.config.dialect)? else {
            return Ok(None);
        };
        let verifier = verifier.ok_or_else(Reject::token_invalid)?;
        let HubShared { token_matchers, url, .. } = &*self.shared;
        let access = verifier.verify(token, shared::unix_time(), token_matchers, url)?;
        Ok(Some((access, source)))
    }

    /// Handles a GET for a stream, the subscription API or the metadata.
    fn get(
        &mut self,
        context: &mut RequestContext<'_>,
        request: &Request<'_>,
        responder: Responder,
        response: &mut ResponseWriter<'_>,
    ) -> Flow<Exchange> {
        let Target::Path { path, query } = request.target else { return Flow::Done };
        if path == self.shared.config.path.as_bytes() {
            return self.subscribe(context, request, responder, response);
        }
        let HubShared { url, config, .. } = &*self.shared;
        if path.starts_with(b"/.well-known/oauth-protected-resource") {
            let jwks_uri = match &config.key_source {
                Some(KeySource::Url(uri)) => Some(uri.as_str()),
                _ => None,
            };
            let (issuers, has_subscriptions) = (&config.issuers, config.subscriptions);
            let document =
                subscriptions::metadata(url, issuers, jwks_uri, has_subscriptions, config.dialect);
            let text = document.to_string();
            let fields = b"Cache-Control: must-revalidate\r\n";
            let content = ("application/json", text.as_bytes());
            responder.answer(context, response, Status::Ok, fields, content);
            return Flow::Done;
        }
        let hides = context.hides_authorization();
        match self.subscription_document(request, hides, path, query.unwrap_or_default()) {
            Ok(document) => {
                let text = document.to_string();
                let tag = entity_tag(&text);
                let etag = Some(ETag { weak: false, opaque: tag.as_bytes() });
                let current = Validators { etag, last_modified: None, now: shared::unix_time() };
                let status = match conditional::evaluate(request, Some(&current)) {
                    Precondition::NotModified => Status::NotModified,
                    Precondition::Proceed => Status::Ok,
                    Precondition::Failed => {
                        let message = "the document has changed: get it without a condition".into();
                        let reject = Reject { status: 412, code: None, message };
                        responder.reject(context, response, &reject, url);
                        return Flow::Done;
                    }
                };
                let mut fields =
                    format!("Cache-Control: private, must-revalidate\r\nETag: \"{tag}\"\r\n");
                if let Some(next) = document["next"].as_str() {
                    // RFC 8288.
                    fields.push_str(&format!("Link: <{next}>; rel=\"next\"\r\n"));
                }
                let content = (subscriptions::MEDIA_TYPE, text.as_bytes());
                responder.answer(context, response, status, fields.as_bytes(), content);
            }
            Err(reject) => responder.reject(context, response, &reject, url),
        }
        Flow::Done
    }

    /// Returns the document for a request to the subscription API.
    fn subscription_document(
        &self,
        request: &Request<'_>,
        hides_authorization: bool,
        path: &[u8],
        query: &[u8],
    ) -> Result<serde_json::Value, Reject> {
        let not_found = || Reject {
            status: 404,
            code: None,
            message: "there is no such subscription at this hub".into(),
        };
        let path = std::str::from_utf8(path).map_err(|_| not_found())?;
        let shared = &self.shared;
        if !shared.config.subscriptions {
            return Err(not_found());
        }
        let token = query::token(query, shared.config.dialect)?;
        let subscribers = shared.subscribers.as_ref();
        let access = self.access(request, hides_authorization, token.as_deref(), subscribers)?;
        let Some((access, _)) = access else {
            return Err(Reject::token_missing(
                "the subscriptions need an access token: present one that permits this URL",
            ));
        };
        if !access.may_read(path, &shared.url) {
            return Err(Reject::forbidden(
                "the access token does not permit to read this URL: get one that does",
            ));
        }
        // The identifier is read before the list, so that the list reflects all events up to it.
        let last_id = shared.last_id();
        let after = query::after(query)?;
        let (after, dialect) = (after.as_deref(), shared.config.dialect);
        let document = shared.registry().answer(path, after, dialect, &shared.url, &last_id);
        document.ok_or_else(not_found)
    }

    /// Answers a publisher with the result of its update.
    fn acknowledge(
        &self,
        context: &mut RequestContext<'_>,
        responder: &Responder,
        outcome: Result<Arc<str>, Reject>,
        response: &mut ResponseWriter<'_>,
    ) {
        match outcome {
            Ok(id) => {
                context.worker.counters.add(Counter::HubAccepted, 1);
                let fields = b"Cache-Control: no-store\r\n";
                let content = ("text/plain; charset=utf-8", id.as_bytes());
                responder.answer(context, response, Status::Ok, fields, content);
            }
            Err(reject) => {
                count_refusal(context, &reject);
                responder.reject(context, response, &reject, &self.shared.url);
            }
        }
    }

    /// Removes the additional data of a subscriber whose connection has ended.
    fn forget(&mut self, connection: u64) {
        let Some(extra) = self.extras.remove(&connection) else { return };
        if let Some(address) = extra.address {
            self.shared.leave(address);
        }
        for subscription in &extra.subscriptions {
            self.shared.change_subscriptions(|registry, hub| registry.remove(subscription, hub));
            // What reads the log is not called after a panic.
            if !thread::panicking() {
                self.read_burst();
            }
        }
    }

    /// Copies the updates that were published since the last call, and marks their subscribers.
    fn read_on(&mut self) {
        if self.history.last() == self.shared.head() {
            return;
        }
        let Self { shared, worker, history, appended, subscribers, .. } = self;
        *appended = shared.appended();
        shared.read_on(worker.index, history, |sequence, update| match update {
            Some(update) => subscribers.publish(sequence, update, &shared.url),
            None => subscribers.publish_gap(sequence),
        });
    }

    /// Copies new updates, and removes those that have become too old: no request is served them, even if nothing was
    /// published meanwhile.
    fn refresh(&mut self) {
        self.read_on();
        self.history.expire(self.shared.now());
    }

    fn last(&self) -> Sequence {
        self.history.last()
    }
}

impl Drop for Hub {
    /// Removes the subscribers of a worker that panics: other workers no longer count them, and are notified
    /// of the end of their subscriptions.
    fn drop(&mut self) {
        if thread::panicking() {
            let connections: Vec<_> = self.extras.keys().copied().collect();
            connections.into_iter().for_each(|connection| self.forget(connection));
        }
    }
}

/// Counts an update that is refused.
fn count_refusal(context: &RequestContext<'_>, reject: &Reject) {
    let reason = match reject.status {
        401 | 403 => Counter::HubUnauthorized,
        413 => Counter::HubTooLarge,
        429 => Counter::HubTooMany,
        500.. => Counter::HubUnavailable,
        _ => Counter::HubInvalid,
    };
    context.worker.counters.add(reason, 1);
}

/// Returns the opaque part of an entity tag (RFC 9110 §8.8.3) for a document. The identifier of the newest update would
/// not be enough: the subscriptions that a live upgrade brings are published nowhere.
fn entity_tag(document: &str) -> String {
    let mut hasher = DefaultHasher::new();
    document.hash(&mut hasher);
    format!("{:016x}", hasher.finish())
}

/// Returns the number that identifies a connection among the subscribers: it contains the client.
fn connection_of(client: ClientId) -> u64 {
    u64::from(client.fd.cast_unsigned()) << 32 | u64::from(client.generation)
}

#[expect(clippy::cast_possible_truncation, reason = "the halves of a name")]
fn client_of(connection: u64) -> ClientId {
    let fd = (connection >> 32) as u32;
    ClientId { fd: fd.cast_signed(), generation: connection as u32 }
}

impl Service for Hub {
    type Exchange = Exchange;

    fn begin(
        &mut self,
        context: &mut RequestContext<'_>,
        request: &Request<'_>,
        response: &mut ResponseWriter<'_>,
    ) -> Flow<Exchange> {
        let has_log = context.worker.log.is_some();
        let is_for_hub = self.is_hub_itself(&request.target);
        let responder = Responder::of(request, &self.shared.config.cors, has_log, is_for_hub);
        let reject = match request.method {
            Method::Get | Method::Head if request.framing == Framing::None => {
                return self.get(context, request, responder, response);
            }
            Method::Post => match self.admit(request, context.hides_authorization()) {
                Ok(form) => {
                    let phase = HubPhase::Form(form);
                    return Flow::NeedBody(Exchange(Box::new(HubExchange { responder, phase })));
                }
                Err(reject) => {
                    count_refusal(context, &reject);
                    reject
                }
            },
            Method::Other(b"QUERY") if is_for_hub => {
                match self.admit_query(request, context.hides_authorization()) {
                    Ok(head) => {
                        let phase = HubPhase::Query(Box::new(head));
                        return Flow::NeedBody(Exchange(Box::new(HubExchange {
                            responder,
                            phase,
                        })));
                    }
                    Err(reject) => reject,
                }
            }
            Method::Options if request.framing == Framing::None => {
                responder.answer_options(context, response);
                return Flow::Done;
            }
            Method::Get | Method::Head | Method::Options => {
                Reject::invalid("this method takes no body: send none")
            }
            _ => Reject {
                status: 405,
                code: None,
                message: "a hub has GET and QUERY to subscribe, and POST to publish".into(),
            },
        };
        if request.framing == Framing::None || request.expect_continue {
            responder.reject(context, response, &reject, &self.shared.url);
            return Flow::Done;
        }
        let phase = HubPhase::Unwanted(reject);
        Flow::NeedBody(Exchange(Box::new(HubExchange { responder, phase })))
    }

    fn body(
        &mut self,
        context: &mut RequestContext<'_>,
        mut exchange: Exchange,
        part: Part<'_>,
        response: &mut ResponseWriter<'_>,
    ) -> Flow<Exchange> {
        let HubExchange { responder, phase } = &mut *exchange.0;
        match (phase, part) {
            (HubPhase::Form(form), Part::Data(bytes)) => {
                if let Err(reject) = form.receive(bytes, &self.shared.config.limits) {
                    // The rest of the body is not read: the connection cannot continue after it.
                    context.close_after();
                    count_refusal(context, &reject);
                    responder.reject(context, response, &reject, &self.shared.url);
                    return Flow::Done;
                }
                Flow::NeedBody(exchange)
            }
            (HubPhase::Form(form), Part::End { .. }) => {
                let ticket = Ticket { worker: self.worker, exchange: context.id() };
                match self.publish(context, form, ticket) {
                    Ok(None) => {
                        exchange.0.phase = HubPhase::Storage;
                        return Flow::Waiting(exchange);
                    }
                    Ok(Some(id)) => self.acknowledge(context, responder, Ok(id), response),
                    Err(reject) => self.acknowledge(context, responder, Err(reject), response),
                }
                Flow::Done
            }
            (HubPhase::Query(head), Part::Data(bytes)) => {
                if let Err(reject) = head.receive(bytes, &self.shared.config.limits) {
                    context.close_after();
                    responder.reject(context, response, &reject, &self.shared.url);
                    return Flow::Done;
                }
                Flow::NeedBody(exchange)
            }
            (HubPhase::Query(_), Part::End { .. }) => {
                let HubExchange { responder, phase } = *exchange.0;
                let HubPhase::Query(head) = phase else { return Flow::Done };
                self.begin_subscription(context, responder, *head, response)
            }
            (HubPhase::Unwanted(reject), Part::End { .. }) => {
                responder.reject(context, response, reject, &self.shared.url);
                Flow::Done
            }
            (HubPhase::Unwanted(_), Part::Data(_)) => Flow::NeedBody(exchange),
            (
                HubPhase::Stream(_) | HubPhase::Poll(_) | HubPhase::Storage | HubPhase::CatchUp(_),
                _,
            ) => Flow::Waiting(exchange),
        }
    }

    fn resume(
        &mut self,
        context: &mut RequestContext<'_>,
        exchange: Exchange,
        event: Event<'_>,
        response: &mut ResponseWriter<'_>,
    ) -> Flow<Exchange> {
        match &exchange.0.phase {
            HubPhase::Poll(_) => self.resume_poll(context, exchange, event, response),
            HubPhase::Stream(_) => Flow::Waiting(exchange),
            HubPhase::Storage => {
                let outcome = match event {
                    Event::Woken(_) => self.outcomes.remove(&context.id()),
                    _ => None,
                };
                let Some(outcome) = outcome else { return Flow::Waiting(exchange) };
                self.acknowledge(context, &exchange.0.responder, outcome, response);
                Flow::Done
            }
            HubPhase::CatchUp(_) => self.resume_subscribe(context, exchange, event, response),
            HubPhase::Form(_) | HubPhase::Query(_) | HubPhase::Unwanted(_) => {
                Flow::NeedBody(exchange)
            }
        }
    }

    fn cancel(&mut self, context: &mut RequestContext<'_>, exchange: Exchange) {
        match exchange.0.phase {
            HubPhase::Stream(id) => self.stream_has_ended(id.number()),
            HubPhase::Poll(poll) => self.end_poll(context, &poll),
            // The answer may have arrived, although the exchange has not been woken yet.
            HubPhase::Storage | HubPhase::CatchUp(_) => {
                self.outcomes.remove(&context.id());
            }
            HubPhase::Form(_) | HubPhase::Query(_) | HubPhase::Unwanted(_) => {}
        }
    }

    fn event(&mut self, context: &mut ServiceContext<'_>, event: Event<'_>) {
        if let Event::Time(_) = event {
            self.care_is_due = self.care.take().map(|care| care.interval);
            self.care_later(context.reactor);
        }
    }
}
