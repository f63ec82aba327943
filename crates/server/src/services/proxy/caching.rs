//! The front end's side of the cache: lookups, waiting exchanges, and the replies that are stored.

use super::{
    Exchange, Progress, Proxy, RouteId,
    cache_state::{CacheState, Report},
    exchange::{AwaitedFetch, Phase, SentRequest, State, alarm_after},
    failure::Failure,
    notifier,
    reply::put_added_fields,
    request::RequestFacts,
};
use crate::reactor::WakeReason;
use crate::{
    reactor::{ExchangeId, Reactor, UpstreamId},
    service::{Event, Flow, Page, RequestContext, ResponseWriter},
    transport::outbox::{COPY_MAX, Content},
};
use pollux_cache::{
    CacheStatus, Decision, Fetch, Handle, Hit, Lookup, ResponseDecision, ResponseSource, Store,
    put_not_modified_fields_of,
};
use pollux_http::{
    Status,
    reply::ReplyHead,
    request::{Method, ParseStatus, Request, parse},
};
use std::{collections::HashMap, ops::ControlFlow};

/// The time after which an exchange that waits for another one's fetch sends its own request, in ticks: 5 s.
const WAIT_TICKS: u32 = 50;
/// The maximum number of times that an exchange waits: the first fetch may bring another variant, and the
/// second one is for its own variant.
const WAITS_MAX: u8 = 2;
/// The interval in ticks at which an exchange checks for messages of another worker, if there is no notifier.
const LOOK_TICKS: u32 = 2;

/// The access of one worker to the cache.
#[derive(Debug)]
pub(super) struct Caching {
    handle: Handle,
    /// The waiting exchanges, by the numbers under which the cache knows them.
    waiting: HashMap<u64, ExchangeId>,
    next: u64,
    notifier: Notifier,
    has_own_table: bool,
}

/// The notifier, through which another worker reports the end of a fetch for which an exchange of this worker
/// waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Notifier {
    /// No exchange has had to wait yet.
    None,
    At(UpstreamId),
    /// The notifier could not be created, or is closed.
    Missing,
}

/// The request that is looked up in the cache.
pub(super) enum Consultation {
    /// A request that has just arrived. It needs no exchange if the cache has the response.
    First(RouteId),
    /// The request of an exchange that has waited for another one's fetch.
    Again(Box<State>),
}

/// The action for an origin's reply.
pub(super) enum ReplyAction {
    /// The reply is forwarded, with these lines added.
    Forward(Vec<u8>),
    /// The client has been answered, or its response has begun. The content is still wanted, or there is
    /// none.
    Answered,
    /// The client has been answered, and the content is not needed.
    Over,
    /// Another request to the origin is necessary.
    AskAgain,
    /// The reply does not fit the request that was sent.
    NotCached,
}

impl Caching {
    pub(super) fn new(store: &Store, has_own_table: bool) -> Self {
        let (waiting, notifier) = (HashMap::new(), Notifier::None);
        Self { handle: store.handle(), waiting, next: 0, notifier, has_own_table }
    }

    /// Returns whether an event concerns the notifier.
    pub(super) fn is_notifier(&self, event: &Event<'_>) -> bool {
        match event {
            Event::Connected(upstream)
            | Event::Received(upstream, _)
            | Event::Ended(upstream)
            | Event::UpstreamRoom(upstream)
            | Event::Failed(upstream, _) => self.notifier == Notifier::At(*upstream),
            _ => false,
        }
    }

    /// Handles an event of the notifier: it was signalled, or its connection has broken.
    pub(super) fn notified(&mut self, reactor: &mut Reactor, event: Event<'_>) {
        match event {
            Event::Ended(upstream) => {
                reactor.close(upstream);
                self.notifier = Notifier::Missing;
            }
            Event::Failed(..) => self.notifier = Notifier::Missing,
            _ => {}
        }
        self.deliver(reactor);
    }

    /// Closes the notifier, because no exchange of this worker waits any more.
    pub(super) fn retire(&mut self, reactor: &mut Reactor) {
        if let Notifier::At(upstream) = std::mem::replace(&mut self.notifier, Notifier::Missing) {
            reactor.close(upstream);
        }
    }

    /// Registers the notifier when the first exchange begins to wait. Returns the number of ticks after which
    /// an exchange checks by itself.
    fn set_notifier(&mut self, reactor: &mut Reactor) -> u32 {
        if self.notifier == Notifier::None {
            self.notifier = match notifier::register(&self.handle, reactor, self.has_own_table) {
                Ok(upstream) => Notifier::At(upstream),
                Err(error) => {
                    tracing::warn!("no notifier between the workers' caches: {error}");
                    Notifier::Missing
                }
            };
            // Wakeups from before the notifier existed were not signalled.
            self.deliver(reactor);
        }
        if self.notifier == Notifier::Missing { LOOK_TICKS } else { WAIT_TICKS }
    }

    /// Appends the `Cache-Status` line of a page that explains why there is no response.
    pub(super) fn put_status_of_page(&self, cached: &CacheState, out: &mut Vec<u8>) {
        let name = &self.handle.store().config().name;
        CacheStatus::put_for_own_response(name, cached.forward(), None, out);
    }

    /// Returns whether the fetch is useful without its client: other requests wait for the response, or it is
    /// being stored.
    pub(super) fn is_wanted(&self, cached: &CacheState) -> bool {
        cached.report.ticket().is_some_and(|ticket| self.handle.is_wanted(ticket))
    }

    /// Ends a fetch whose request cannot be sent.
    pub(super) fn refuse(&mut self, context: &mut RequestContext<'_>, fetch: &Fetch) {
        self.handle.abort(fetch.ticket);
        self.deliver(context.reactor);
    }

    /// Ends the fetch of an exchange, because the worker ends.
    pub(super) fn give_up(&mut self, cached: &CacheState) {
        if let Some(ticket) = cached.report.ticket() {
            self.handle.abort(ticket);
        }
    }

    /// Wakes the exchanges that need not wait any longer.
    fn deliver(&mut self, reactor: &mut Reactor) {
        while let Some(number) = self.handle.next_wakeup() {
            if let Some(exchange) = self.waiting.remove(&number) {
                reactor.wake(exchange, WakeReason::Ready);
            }
        }
    }

    /// Removes an exchange that no longer waits for this fetch.
    pub(super) fn forget(&mut self, fetch: &AwaitedFetch) {
        self.waiting.remove(&fetch.number);
    }

    /// Passes the head of the origin's final reply to the cache. Returns the action for the reply.
    pub(super) fn head(
        &mut self,
        context: &mut RequestContext<'_>,
        state: &mut State,
        sent: SentRequest,
        reply: &ReplyHead<'_>,
        response: &mut ResponseWriter<'_>,
    ) -> ReplyAction {
        let Some(ticket) = state.cached.report.ticket() else {
            return ReplyAction::Forward(Vec::new());
        };
        let head = std::mem::take(&mut state.request.head);
        let action = match parse(&head, &context.rules.limits) {
            Ok(ParseStatus::Complete { request, .. }) => {
                if is_unasked(&request, reply.status, sent.facts) {
                    ReplyAction::NotCached
                } else {
                    let now = context.worker.clock.date().unix_second();
                    let verdict = self.handle.head(ticket, &request, reply, sent.at, now);
                    state.cached.report = match verdict.should_store {
                        true => Report::Storing(ticket),
                        false => Report::None,
                    };
                    act_on(context, state, &request, verdict, reply, response)
                }
            }
            _ => ReplyAction::Forward(Vec::new()),
        };
        state.request.head = head;
        self.deliver(context.reactor);
        action
    }

    /// Passes content of the origin's reply to the cache. Returns whether it is stored, and more is wanted.
    pub(super) fn content(
        &mut self,
        context: &mut RequestContext<'_>,
        cached: &mut CacheState,
        bytes: &[u8],
    ) -> bool {
        let Report::Storing(ticket) = cached.report else { return false };
        let is_stored = self.handle.append(ticket, bytes);
        if !is_stored {
            cached.report = Report::None;
            self.deliver(context.reactor);
        }
        is_stored
    }

    /// Reports to the cache that the origin's reply is complete.
    pub(super) fn finish(&mut self, context: &mut RequestContext<'_>, cached: &mut CacheState) {
        if let Some(ticket) = cached.report.take() {
            self.handle.finish(ticket);
            self.deliver(context.reactor);
        }
    }

    /// Reports to the cache that the fetch ends without a complete reply.
    pub(super) fn abort(&mut self, context: &mut RequestContext<'_>, cached: &mut CacheState) {
        if let Some(ticket) = cached.report.take() {
            self.handle.abort(ticket);
            self.deliver(context.reactor);
        }
    }
}

/// Answers the client as the cache has decided, unless the client has been answered already.
fn act_on(
    context: &mut RequestContext<'_>,
    state: &mut State,
    request: &Request<'_>,
    verdict: ResponseDecision,
    reply: &ReplyHead<'_>,
    response: &mut ResponseWriter<'_>,
) -> ReplyAction {
    let was_answered = state.reply.is_complete();
    match verdict.source {
        ResponseSource::Refetch(fetch) => {
            state.cached.start(fetch);
            return ReplyAction::AskAgain;
        }
        ResponseSource::Origin if !was_answered => {
            let mut lines = Vec::new();
            verdict.cache_status.put(&mut lines);
            return ReplyAction::Forward(lines);
        }
        ResponseSource::StoredPrefix(hit) if !was_answered => {
            let (status, len) = put_hit(context, request, &hit, response);
            state.reply.continues(status, len);
            return ReplyAction::Answered;
        }
        ResponseSource::Stored(hit) if !was_answered => {
            put(context, state, request, &hit, response)
        }
        ResponseSource::NotModified if !was_answered => {
            let head = response.forwarded(304).lines_by(|out| {
                let start = out.len();
                put_not_modified_fields_of(reply, out);
                verdict.cache_status.put(out);
                put_added_fields(out, start, context.rules);
            });
            let _ = head.without_content();
            state.reply.complete(304, 0);
        }
        _ => {}
    }
    let has_content = reply.content != pollux_http::reply::Content::None;
    if has_content && !verdict.should_store { ReplyAction::Over } else { ReplyAction::Answered }
}

/// Returns whether a reply does not fit the request that was sent: 304 is for a client that has a copy
/// already, 206 for a request for a part (RFC 9110 §15.4.5, §15.3.7). The forwarded request decides, not the
/// client's: the cache may have removed the client's conditions in order to store the reply, and then neither
/// 304 nor 206 has the content that the cache needs.
fn is_unasked(request: &Request<'_>, status: u16, passed: RequestFacts) -> bool {
    let is_read = matches!(request.method, Method::Get | Method::Head);
    is_read
        && match status {
            304 => !passed.conditional,
            206 => !passed.range,
            _ => false,
        }
}

/// Answers `request` from the store.
fn put(
    context: &mut RequestContext<'_>,
    state: &mut State,
    request: &Request<'_>,
    hit: &Hit,
    response: &mut ResponseWriter<'_>,
) {
    let (status, len) = put_hit(context, request, hit, response);
    state.reply.complete(status, len);
}

fn put_hit(
    context: &mut RequestContext<'_>,
    request: &Request<'_>,
    hit: &Hit,
    response: &mut ResponseWriter<'_>,
) -> (u16, u64) {
    let reply = hit.response(request, context.worker.clock.date().unix_second());
    let head = response.forwarded(reply.status()).lines_by(|out| {
        let start = out.len();
        reply.put_fields(out);
        put_added_fields(out, start, context.rules);
    });
    let mut body = match reply.announced_length() {
        Some(length) => head.length(length),
        None => head.without_content(),
    };
    let is_copied = reply.content_length() <= COPY_MAX;
    for (piece, range) in reply.content() {
        if is_copied {
            body.data(&piece[range]);
        } else {
            body.piece(Content::Pooled(piece, range));
        }
    }
    (reply.status(), reply.content_length())
}

impl Proxy {
    /// Consults the cache, and continues as the cache decides.
    pub(super) fn consult(
        &mut self,
        context: &mut RequestContext<'_>,
        request: &Request<'_>,
        consultation: Consultation,
        response: &mut ResponseWriter<'_>,
    ) -> Progress {
        let now = context.worker.clock.date().unix_second();
        let Some(caching) = &mut self.cache else {
            let state = self.exchange_of(context, request, consultation);
            return self.choose_origin(context, state, Some(request), response);
        };
        caching.next = caching.next.wrapping_add(1);
        let number = caching.next;
        let (has_waited, may_wait) = match &consultation {
            Consultation::First(_) => (false, true),
            Consultation::Again(state) => (true, state.cached.waits < WAITS_MAX),
        };
        let waiter = may_wait.then_some(number);
        let site = pollux_cache::site(context.rules.is_tls());
        let lookup = Lookup { request, site, waiter, has_waited };
        let decision = caching.handle.lookup(&lookup, now);
        if matches!(decision, Decision::Wait) {
            // Another thread may have ended the fetch already: its wakeup must find the exchange.
            caching.waiting.insert(number, context.id());
        }
        caching.deliver(context.reactor);
        match decision {
            Decision::Serve(hit) => {
                self.answer_from_cache(context, request, consultation, &hit, response);
                ControlFlow::Break(Flow::Done)
            }
            Decision::OnlyIfCached => {
                let status = Status::GatewayTimeout;
                let mut fields = Vec::new();
                let name = &caching.handle.store().config().name;
                CacheStatus::put_for_own_response(name, None, Some("only-if-cached"), &mut fields);
                let page = Page { status, reason: "it is not in the cache", fields: &fields };
                let answer = page.put(context, response);
                context.log(request.line, answer);
                ControlFlow::Break(Flow::<Exchange>::Done)
            }
            Decision::Wait => {
                let ticks = caching.set_notifier(context.reactor);
                let mut state = self.exchange_of(context, request, consultation);
                state.cached.waits += 1;
                let until = context.worker.clock.tick().saturating_add(WAIT_TICKS);
                let alarm = alarm_after(context, ticks);
                state.phase = Phase::AwaitingFetch(AwaitedFetch { number, until, alarm });
                ControlFlow::Continue(state)
            }
            Decision::Fetch(fetch) => {
                let mut state = self.exchange_of(context, request, consultation);
                state.cached.start(fetch);
                self.choose_origin(context, state, Some(request), response)
            }
            Decision::ServeAndRefresh(hit, fetch) => {
                let route = self.answer_from_cache(context, request, consultation, &hit, response);
                self.refresh(context, request, route, fetch);
                ControlFlow::Break(Flow::Done)
            }
        }
    }

    /// Returns the exchange of a request that the cache cannot answer at once.
    fn exchange_of(
        &mut self,
        context: &RequestContext<'_>,
        request: &Request<'_>,
        consultation: Consultation,
    ) -> Box<State> {
        match consultation {
            Consultation::First(route) => self.new_exchange(context, request, route),
            Consultation::Again(state) => state,
        }
    }

    /// Answers a request from the store, which ends its exchange if it has one. Returns its route.
    fn answer_from_cache(
        &mut self,
        context: &mut RequestContext<'_>,
        request: &Request<'_>,
        consultation: Consultation,
        hit: &Hit,
        response: &mut ResponseWriter<'_>,
    ) -> RouteId {
        let (status, len) = put_hit(context, request, hit, response);
        match consultation {
            Consultation::First(route) => {
                context.log_response(request.line, status, len);
                route
            }
            Consultation::Again(mut state) => {
                let route = state.request.route;
                state.reply.complete(status, len);
                self.end(context, state);
                route
            }
        }
    }

    /// Handles the end of another exchange's fetch: an exchange that waits for it consults the cache again.
    /// An exchange that no longer waits may be notified too, and continues unchanged.
    pub(super) fn fetch_is_over(
        &mut self,
        context: &mut RequestContext<'_>,
        mut state: Box<State>,
        response: &mut ResponseWriter<'_>,
    ) -> Progress {
        match state.take_phase() {
            Phase::AwaitingFetch(fetch) => self.has_waited(context, state, fetch, response),
            other => {
                state.phase = other;
                ControlFlow::Continue(state)
            }
        }
    }

    /// Ends the wait of an exchange, which consults the cache again.
    fn has_waited(
        &mut self,
        context: &mut RequestContext<'_>,
        state: Box<State>,
        fetch: AwaitedFetch,
        response: &mut ResponseWriter<'_>,
    ) -> Progress {
        context.reactor.cancel(fetch.alarm);
        if let Some(caching) = &mut self.cache {
            caching.forget(&fetch);
        }
        let head = state.request.head.clone();
        match parse(&head, &context.rules.limits) {
            Ok(ParseStatus::Complete { request, .. }) => {
                self.consult(context, &request, Consultation::Again(state), response)
            }
            _ => self.fail(context, state, Failure::Request, response),
        }
    }

    /// Checks whether the fetch is over, or takes too long.
    pub(super) fn check_fetch(
        &mut self,
        context: &mut RequestContext<'_>,
        mut state: Box<State>,
        mut fetch: AwaitedFetch,
        response: &mut ResponseWriter<'_>,
    ) -> Progress {
        if let Some(caching) = &mut self.cache {
            caching.deliver(context.reactor);
        }
        let now = context.worker.clock.tick();
        if now >= fetch.until {
            // It does not wait once more: the next fetch would probably take as long.
            state.cached.waits = WAITS_MAX;
            return self.has_waited(context, state, fetch, response);
        }
        fetch.alarm = alarm_after(context, LOOK_TICKS.min(fetch.until - now));
        state.phase = Phase::AwaitingFetch(fetch);
        ControlFlow::Continue(state)
    }

    /// Reports a failed request to the cache, which may have a stored response for such a case. Returns
    /// whether the client has a complete response: the stored one, or one that was sent before.
    pub(super) fn answered_by_cache(
        &mut self,
        context: &mut RequestContext<'_>,
        state: &mut State,
        failure: Failure,
        response: &mut ResponseWriter<'_>,
    ) -> bool {
        let Some(caching) = &mut self.cache else { return false };
        let now = context.worker.clock.date().unix_second();
        let mut fail = |ticket| match failure.keeps_from_the_origin() {
            true => caching.handle.fail(ticket, now),
            false => caching.handle.fail_locally(ticket, now),
        };
        if state.reply.has_begun() {
            // The client gets no other answer, but the cache must know of the failure.
            match state.cached.report {
                Report::Due(ticket) if state.cached.is_refresh() => {
                    state.cached.report = Report::None;
                    fail(ticket);
                }
                _ => caching.abort(context, &mut state.cached),
            }
            caching.deliver(context.reactor);
            return state.reply.is_complete();
        }
        let Some(ticket) = state.cached.report.take() else { return false };
        let hit = fail(ticket);
        caching.deliver(context.reactor);
        let Some(hit) = hit else { return false };
        let head = std::mem::take(&mut state.request.head);
        if let Ok(ParseStatus::Complete { request, .. }) = parse(&head, &context.rules.limits) {
            put(context, state, &request, &hit, response);
        }
        state.request.head = head;
        state.reply.is_complete()
    }
}
