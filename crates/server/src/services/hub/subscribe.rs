//! Subscribing: the permission for it, the first update, and the head of the stream.

use super::{
    Exchange, Extra, Hub, HubExchange, HubPhase,
    answer::{ACCEPT_QUERY, Responder},
    connection_of,
    content::QUERY,
    expiries::Expiry,
    poll,
    shared::{Ticket, since_1970},
};
use crate::{
    clients::client_key,
    service::{Event, Flow, RequestContext, ResponseWriter},
    stats::Counter,
};
use pollux_http::{
    Status,
    request::{KnownField, Request, Target},
};
use pollux_hub::{
    history::{Sequence, Start},
    limits::{BACKWARD_SCAN, Limits},
    matcher::{MatcherError, Selector},
    query::{self, Query},
    reject::Reject,
    subscribers::{Audience, SubscriberId},
    subscriptions::Subscription,
    token::{Access, Source},
    update::Update,
};
use std::{net::IpAddr, sync::Arc, time::Duration};

/// A client that may subscribe.
#[derive(Debug)]
pub(super) struct Candidate {
    query: Query,
    pub(super) audience: Audience,
    access: Option<Access>,
    /// The position of the last update that the client has.
    pub(super) cursor: Sequence,
    /// `Last-Event-ID` of the response, if the request has one.
    pub(super) last_id: Option<Arc<str>>,
    /// The identifier of the last update that the client claims to have.
    pub(super) id: Option<String>,
    /// Whether the log has that update.
    is_known: bool,
    /// Whether the token was in the query: then shared caches must not store the response.
    pub(super) has_query_token: bool,
}

/// The data from the head of a subscribe request, apart from the topics.
#[derive(Debug)]
pub(super) struct SubscribeHead {
    /// The query of the target, followed by the content of a QUERY request.
    query: Vec<u8>,
    access: Option<Access>,
    has_query_token: bool,
    /// `Last-Event-ID`.
    field: Option<String>,
    wait: Option<u32>,
}

impl SubscribeHead {
    /// Takes a part of the content of a QUERY request.
    pub(super) fn receive(&mut self, bytes: &[u8], limits: &Limits) -> Result<(), Reject> {
        QUERY.append(&mut self.query, bytes, limits)
    }
}

/// A subscriber that waits for the log: it names an update that another hub may have, the log has not been read yet, or
/// an upgrade is in progress.
#[derive(Debug)]
pub(super) struct Return {
    candidate: Candidate,
    wait: Option<u32>,
}

impl Candidate {
    /// Returns the fields of the response to a stream.
    fn fields(&self) -> String {
        fields(self.has_query_token, self.last_id.as_deref())
    }
}

/// Returns the response fields that streams and polls have in common. `last_id` is the update after which the response
/// begins, if it is to be named.
pub(super) fn fields(has_query_token: bool, last_id: Option<&str>) -> String {
    let mut fields = String::from(if has_query_token {
        "Cache-Control: private, no-store\r\n"
    } else {
        "Cache-Control: no-store\r\n"
    });
    if let Some(id) = last_id {
        fields.push_str(&id_fields(id));
    }
    // A proxy that buffers a response before it forwards it would delay events.
    fields.push_str("X-Accel-Buffering: no\r\nIncremental: ?1\r\n");
    fields.push_str(ACCEPT_QUERY);
    fields
}

/// Returns the response fields with the identifier of the update after which the response begins.
fn id_fields(id: &str) -> String {
    format!("Last-Event-ID: {id}\r\nMercure-Last-Event-ID: {id}\r\n")
}

impl Hub {
    /// Begins a stream or a long poll for a GET.
    pub(super) fn subscribe(
        &mut self,
        context: &mut RequestContext<'_>,
        request: &Request<'_>,
        responder: Responder,
        response: &mut ResponseWriter<'_>,
    ) -> Flow<Exchange> {
        match self.read_head(request, context.hides_authorization()) {
            Ok(head) => self.begin_subscription(context, responder, head, response),
            Err(reject) => {
                responder.reject(context, response, &reject, &self.shared.url);
                Flow::Done
            }
        }
    }

    /// Decides from the head of a QUERY request (RFC 10008) whether its content, which contains the topics,
    /// is received.
    pub(super) fn admit_query(
        &self,
        request: &Request<'_>,
        hides_authorization: bool,
    ) -> Result<SubscribeHead, Reject> {
        let head = self.read_head(request, hides_authorization)?;
        if request.single(KnownField::ContentType).is_none() {
            return Err(Reject::invalid(
                "a QUERY has a Content-Type: application/x-www-form-urlencoded",
            ));
        }
        QUERY.check_head(request, &self.shared.config.limits)?;
        Ok(head)
    }

    /// Begins a stream or a long poll, when the topics are known.
    pub(super) fn begin_subscription(
        &mut self,
        context: &mut RequestContext<'_>,
        responder: Responder,
        head: SubscribeHead,
        response: &mut ResponseWriter<'_>,
    ) -> Flow<Exchange> {
        // The log is read before the cursor is chosen, so that the cursor is after all updates that have
        // arrived meanwhile.
        self.refresh();
        let wait = head.wait;
        let candidate = match self.candidate(context, head) {
            Ok(candidate) => candidate,
            Err(reject) => {
                responder.reject(context, response, &reject, &self.shared.url);
                return Flow::Done;
            }
        };
        let ticket = Ticket { worker: self.worker, exchange: context.id() };
        let waits = match self.shared.hold_subscriber(ticket) {
            Ok(false) if !candidate.is_known => {
                self.shared.catch_up(candidate.id.as_deref(), ticket)
            }
            outcome => outcome,
        };
        match waits {
            Ok(false) => {}
            Ok(true) => {
                let phase = HubPhase::CatchUp(Box::new(Return { candidate, wait }));
                return Flow::Waiting(Exchange(Box::new(HubExchange { responder, phase })));
            }
            Err(reject) => {
                responder.reject(context, response, &reject, &self.shared.url);
                return Flow::Done;
            }
        }
        self.admit_subscriber(context, responder, candidate, wait, response)
    }

    /// Continues a subscription when the log has all updates that other hubs had when the request arrived, or
    /// when that cannot be determined.
    pub(super) fn resume_subscribe(
        &mut self,
        context: &mut RequestContext<'_>,
        exchange: Exchange,
        event: Event<'_>,
        response: &mut ResponseWriter<'_>,
    ) -> Flow<Exchange> {
        let outcome = match event {
            Event::Woken(_) => self.outcomes.remove(&context.id()),
            _ => None,
        };
        let Some(outcome) = outcome else { return Flow::Waiting(exchange) };
        let HubExchange { responder, phase } = *exchange.0;
        let HubPhase::CatchUp(back) = phase else { return Flow::Done };
        if let Err(reject) = outcome {
            responder.reject(context, response, &reject, &self.shared.url);
            return Flow::Done;
        }
        self.refresh();
        let Return { mut candidate, wait } = *back;
        candidate.cursor = self.last();
        if let Some(id) = &candidate.id {
            let (start, last_id) = self.start_of(id, &candidate.audience);
            (candidate.cursor, candidate.last_id) = (start.cursor, Some(last_id));
        }
        self.admit_subscriber(context, responder, candidate, wait, response)
    }

    /// Begins a stream or a long poll for a client that is permitted to subscribe.
    fn admit_subscriber(
        &mut self,
        context: &mut RequestContext<'_>,
        responder: Responder,
        candidate: Candidate,
        wait: Option<u32>,
        response: &mut ResponseWriter<'_>,
    ) -> Flow<Exchange> {
        if responder.is_head {
            responder.answer_head(context, response, &candidate.fields());
            return Flow::Done;
        }
        if let Some(wait) = wait {
            let wait = wait.min(seconds_until_expiry(&candidate));
            return self.begin_poll(context, responder, candidate, wait, response);
        }
        let address = match self.count_address(context) {
            Ok(address) => address,
            Err(reject) => {
                responder.reject(context, response, &reject, &self.shared.url);
                return Flow::Done;
            }
        };
        let connection = connection_of(context.id().client);
        let added = self.add_subscriber(connection, &candidate.audience, candidate.cursor);
        let Some(id) = added else {
            if let Some(address) = address {
                self.shared.leave(address);
            }
            let full = Reject::too_many("the hub has as many subscribers as it can hold");
            responder.reject(context, response, &full, &self.shared.url);
            return Flow::Done;
        };
        if let Some(at) = candidate.access.as_ref().and_then(|access| access.expires_at) {
            self.expiries.add(Expiry::new(at, id, connection), since_1970());
        }
        self.limit_lifetime(id, None);
        let subscriptions = self.register(context, &candidate);
        if address.is_some() || !subscriptions.is_empty() {
            self.extras.insert(connection, Extra { address, subscriptions, responder: None });
        }
        self.care_later(context.reactor);
        context.worker.counters.set(Counter::HubTopicSets, self.subscribers.sets() as u64);
        let head = responder.head(context, response, Status::Ok);
        let head = head.lines(candidate.fields().as_bytes());
        // With this comment the client notices that the stream is open; proxies forward it.
        head.field("Content-Type", b"text/event-stream").stream().data(b":\n");
        responder.log(context, Status::Ok);
        context.reactor.stream(context.id(), id.number());
        Flow::Waiting(Exchange(Box::new(HubExchange { responder, phase: HubPhase::Stream(id) })))
    }

    /// Adds a subscriber that has every update up to `cursor`. `None` if there is no room for another one.
    pub(super) fn add_subscriber(
        &mut self,
        connection: u64,
        audience: &Audience,
        cursor: Sequence,
    ) -> Option<SubscriberId> {
        let last = self.last();
        let id = self.subscribers.add(connection, audience, cursor.min(last), last)?;
        self.shared.note_subscriber(self.worker.index, last);
        Some(id)
    }

    /// Reads the head of the request, and checks whether the client is permitted to subscribe at all.
    fn read_head(
        &self,
        request: &Request<'_>,
        hides_authorization: bool,
    ) -> Result<SubscribeHead, Reject> {
        let config = &self.shared.config;
        let Target::Path { query, .. } = request.target else {
            return Err(Reject::invalid("the target of a subscription is a path and a query"));
        };
        let query = query.unwrap_or_default();
        let token = query::token(query, config.dialect)?;
        let subscribers = self.shared.subscribers.as_ref();
        let access = self.access(request, hides_authorization, token.as_deref(), subscribers)?;
        if access.is_none() && !config.anonymous {
            return Err(Reject::token_missing(
                "subscribing needs an access token: present one, as Bearer or as a cookie",
            ));
        }
        let field = [&b"last-event-id"[..], b"mercure-last-event-id"]
            .into_iter()
            .find_map(|name| request.field(name))
            .map(identifier);
        let mut query = query.to_vec();
        query.push(b'&');
        Ok(SubscribeHead {
            query,
            has_query_token: matches!(access, Some((_, Source::Query))),
            access: access.map(|(access, _)| access),
            field,
            wait: poll::wait_of(request),
        })
    }

    /// Reads the topics.
    fn candidate(
        &self,
        context: &RequestContext<'_>,
        head: SubscribeHead,
    ) -> Result<Candidate, Reject> {
        let shared = &self.shared;
        let config = &shared.config;
        let SubscribeHead { query, access, has_query_token, field, .. } = head;
        let query = query::parse(&query, config.dialect, &config.limits)?;
        let has_patterns = query.selectors.iter().any(Selector::is_pattern);
        let client = if has_patterns { context.peer().map(client_key) } else { None };
        let routes = shared.matchers.rules(query.selectors.clone(), &shared.url, client);
        let routes = routes.map_err(|error| match error {
            MatcherError::TooMany | MatcherError::TooManyOfClient => {
                Reject::too_many(error.to_string())
            }
            _ => Reject::invalid(error.to_string()),
        })?;
        let grants = access.as_ref().map(|access| access.subscribe.clone()).unwrap_or_default();
        let audience = Audience::new(routes, grants);
        // The field of the request wins over the query, unless it is empty.
        let is_named = field.is_some() || query.last_event_id.is_some();
        let mut ids = field.into_iter().chain(query.last_event_id.clone());
        let id = ids.find(|id| !id.is_empty());
        let (mut cursor, mut last_id, mut is_known) = (self.last(), None, false);
        if let Some(id) = &id {
            let (start, name) = self.start_of(id, &audience);
            (cursor, last_id, is_known) = (start.cursor, Some(name), start.found);
        } else if is_named {
            // A client that has no update yet sends the field or the parameter without a value.
            last_id = Some("earliest".into());
        }
        Ok(Candidate { query, audience, access, cursor, last_id, id, is_known, has_query_token })
    }

    /// Returns where a subscriber begins that returns with this identifier, and the identifier for the response.
    fn start_of(&self, id: &str, audience: &Audience) -> (Start, Arc<str>) {
        let url = &self.shared.url;
        let start = self.history.start_of(id, |update| audience.reads(update, url));
        let visible = |update: &Update| audience.may_read(update, url);
        (start, self.history.response_id(start, BACKWARD_SCAN, visible))
    }

    /// Counts the subscriber among those of its address, if their number is limited.
    pub(super) fn count_address(
        &self,
        context: &RequestContext<'_>,
    ) -> Result<Option<IpAddr>, Reject> {
        let most = self.shared.config.limits.subscribers_per_address;
        if most == 0 {
            return Ok(None);
        }
        let Some(address) = context.peer() else { return Ok(None) };
        if self.shared.enter(address) {
            return Ok(Some(address));
        }
        let client =
            if address.to_canonical().is_ipv6() { "IPv6 network (/64)" } else { "address" };
        Err(Reject::too_many(format!("your {client} has {most} subscribers already: close one")))
    }

    /// Registers and publishes the subscriptions of a subscriber, if the hub is configured to do so.
    fn register(
        &mut self,
        context: &mut RequestContext<'_>,
        candidate: &Candidate,
    ) -> Vec<Subscription> {
        if !self.shared.config.subscriptions {
            return Vec::new();
        }
        let subject = candidate.access.as_ref().and_then(|access| self.name_of(access));
        // Several connections with one token count as one subscriber.
        let subscriber: Arc<str> =
            subject.unwrap_or_else(|| format!("urn:uuid:{}", uuid::Uuid::new_v4())).into();
        let mut subscriptions = Vec::new();
        for selector in &candidate.query.selectors {
            let subscription =
                Subscription { selector: selector.clone(), subscriber: subscriber.clone() };
            let payload = candidate
                .access
                .as_ref()
                .and_then(|access| access.payload(selector, &self.shared.url).cloned());
            let added = subscription.clone();
            self.shared.change_subscriptions(|registry, hub| registry.add(added, payload, hub));
            context.worker.has_burst |= self.read_burst();
            subscriptions.push(subscription);
        }
        subscriptions
    }

    /// Returns the identifier of the subscriber that a token describes. A subject is unique only together
    /// with its issuer, if the hub has several issuers.
    fn name_of(&self, access: &Access) -> Option<String> {
        let subject = access.subject.as_ref().filter(|subject| !subject.is_empty())?;
        match &access.issuer {
            Some(issuer) if self.shared.config.issuers.len() > 1 => {
                Some(format!("{issuer}#{subject}"))
            }
            _ => Some(subject.clone()),
        }
    }
}

/// Returns the identifier in a field. Browsers encode it as UTF-8. Node.js and Python encode it as Latin-1, if Latin-1
/// has all its characters.
fn identifier(value: &[u8]) -> String {
    match std::str::from_utf8(value) {
        Ok(text) => text.to_owned(),
        Err(_) => value.iter().copied().map(char::from).collect(),
    }
}

/// Returns the number of seconds for which a long poll may wait: it ends before its token expires, although an alarm may
/// be two ticks late.
fn seconds_until_expiry(candidate: &Candidate) -> u32 {
    const LATE: Duration = Duration::from_millis(250);
    let Some(at) = candidate.access.as_ref().and_then(|access| access.expires_at) else {
        return u32::MAX;
    };
    let left = Duration::from_secs(at).saturating_sub(since_1970() + LATE);
    u32::try_from(left.as_secs()).unwrap_or(u32::MAX)
}
