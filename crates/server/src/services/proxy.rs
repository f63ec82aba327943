//! The reverse proxy: forwards requests to origins, and their replies to the clients.
//!
//! A request that this server cannot answer itself goes to an origin ("the waiting server" in phhttpd). An
//! exchange requests a connection (an idle one, or a new one), writes the request to it, and forwards the
//! reply as it arrives: the reply is not accumulated, and a receiver that does not read stops the sender.
//! Both directions are strict: an ambiguous message is not forwarded.

mod background;
mod cache_state;
mod caching;
mod exchange;
mod failure;
mod forward_reply;
mod forward_request;
mod forwarded;
mod handover;
mod hop;
mod notifier;
mod override_fields;
mod own;
mod pool;
mod reply;
mod request;
mod routes;

pub(crate) use exchange::Exchange;
pub(crate) use routes::RouteId;

use crate::service::{Event, Flow, Part, RequestContext, ResponseWriter, Service, ServiceContext};
use crate::{
    reactor::{ExchangeId, Reactor, WakeReason},
    settings::FrontendConfig,
    time::clock::ticks,
    transport::outbox::Outbox,
};
use caching::Consultation;
use exchange::{Attempt, Phase, State};
use pollux_http::request::{Request, Target};
use pool::OriginPool;
use std::{ops::ControlFlow, sync::Arc};

/// The maximum number of finished exchanges whose memory is kept for new ones.
const SPARE: usize = 64;

/// A worker's proxy.
#[derive(Debug)]
pub(crate) struct Proxy {
    config: Arc<FrontendConfig>,
    /// The name in `Proxy-Status`.
    name: String,
    routes: routes::Routes,
    pool: OriginPool,
    timeout: u32,
    /// The states of finished exchanges. They stay in their boxes, because a state is large, and each call
    /// takes and returns it.
    #[allow(clippy::vec_box, reason = "the boxes are what is kept")]
    spare: Vec<Box<State>>,
    cache: Option<caching::Caching>,
    scratch: Vec<u8>,
    background: background::BackgroundTasks,
    /// The outbox of background tasks, which normally write nothing.
    nowhere: Outbox,
}

/// Whether an exchange continues or is over.
type Progress = ControlFlow<Flow<Exchange>, Box<State>>;

impl Proxy {
    /// Creates the proxy of one worker, which may have a separate file table.
    pub(crate) fn new(config: &Arc<FrontendConfig>, has_own_table: bool) -> Self {
        Self {
            config: config.clone(),
            name: config.via.clone().unwrap_or_else(|| "pollux".into()),
            routes: routes::Routes::new(config),
            pool: OriginPool::new(config),
            timeout: ticks(config.timeout),
            spare: Vec::new(),
            cache: config.cache.as_ref().map(|store| caching::Caching::new(store, has_own_table)),
            scratch: Vec::new(),
            background: background::BackgroundTasks::default(),
            nowhere: Outbox::default(),
        }
    }

    /// Returns the route of a request, if it has one.
    #[inline]
    pub(crate) fn route(&self, target: &Target<'_>) -> Option<RouteId> {
        self.routes.find(target)
    }

    /// Returns whether files have precedence over the origins of a route.
    pub(crate) fn is_behind_files(&self, route: RouteId) -> bool {
        self.routes.is_behind_files(route)
    }

    /// Returns whether an event for the service concerns an origin or the cache.
    pub(crate) fn is_meant(&self, event: &Event<'_>) -> bool {
        self.pool.is_meant(event)
            || self.cache.as_ref().is_some_and(|cache| cache.is_notifier(event))
    }

    /// Returns whether there is any background task.
    pub(crate) fn has_any_background(&self) -> bool {
        !self.background.is_empty()
    }

    /// Closes the idle connections, because no further request will use them.
    pub(crate) fn retire(&mut self, reactor: &mut Reactor) {
        self.pool.retire(reactor);
        if let Some(cache) = &mut self.cache {
            cache.retire(reactor);
        }
    }

    /// Returns whether a background task belongs to this proxy.
    pub(crate) fn has_background(&self, background: ExchangeId) -> bool {
        self.background.has(background)
    }

    /// Begins a request that has a route: answers it, forwards it, or hands its client over.
    pub(crate) fn begin_on(
        &mut self,
        route: RouteId,
        context: &mut RequestContext<'_>,
        request: &Request<'_>,
        response: &mut ResponseWriter<'_>,
    ) -> Flow<Exchange> {
        if own::answer(context, response, request) {
            return Flow::Done;
        }
        let going = match self.routes.receiver(route).cloned() {
            Some(receiver) => self.begin_handover(context, request, route, receiver),
            None => self.consult(context, request, Consultation::First(route), response),
        };
        self.go_on(context, going, response)
    }

    /// Answers a request that matches neither a file nor a route.
    pub(crate) fn refuse(
        context: &mut RequestContext<'_>,
        request: &Request<'_>,
        response: &mut ResponseWriter<'_>,
    ) {
        if !own::answer(context, response, request) {
            own::answer_not_found(context, response, request);
        }
    }

    /// Decides the next event for which an exchange waits. A side that does not read stops the other side.
    fn go_on(
        &mut self,
        context: &mut RequestContext<'_>,
        going: Progress,
        response: &ResponseWriter<'_>,
    ) -> Flow<Exchange> {
        let mut state = match going {
            ControlFlow::Break(flow) => return flow,
            ControlFlow::Continue(state) => match self.detach(context, state) {
                ControlFlow::Break(()) => return Flow::Done,
                ControlFlow::Continue(state) => state,
            },
        };
        debug_assert!(!matches!(state.phase, Phase::Idle), "an exchange waits for something");
        let Phase::Exchanging(transfer) = &mut state.phase else {
            return Flow::Waiting(Exchange(state));
        };
        let upstream = transfer.upstream();
        if response.is_full() != transfer.is_paused {
            transfer.is_paused = !transfer.is_paused;
            if transfer.is_paused {
                context.reactor.pause(upstream);
            } else {
                context.reactor.go_on(upstream);
                transfer.active_at = context.worker.clock.tick();
            }
        }
        if transfer.upload.is_sending() && !context.reactor.is_full(upstream) {
            Flow::NeedBody(Exchange(state))
        } else {
            Flow::Waiting(Exchange(state))
        }
    }

    /// Begins an exchange for a request, in the memory of a finished one if there is any.
    fn new_exchange(
        &mut self,
        context: &RequestContext<'_>,
        request: &Request<'_>,
        route: RouteId,
    ) -> Box<State> {
        let mut state = self.spare.pop().unwrap_or_default();
        state.begin(request, route, context.hides_authorization());
        state
    }

    /// Ends an exchange: logs it, and keeps its memory for another one.
    fn end(&mut self, context: &mut RequestContext<'_>, state: Box<State>) {
        debug_assert!(matches!(state.phase, Phase::Idle), "the last phase has been ended");
        // The client of a background task was answered before, and the response was logged then.
        if !state.owner.is_background() {
            let reply::Outcome { status, sent } = state.reply.outcome();
            context.log_response(state.request.line(), status, sent);
        }
        if self.spare.len() < SPARE && state.is_small() {
            self.spare.push(state);
        }
    }

    /// Ends the phase of an exchange early: cancels its waiting, and closes the connection to the origin.
    fn release(&mut self, context: &mut RequestContext<'_>, state: &mut State) -> Attempt {
        let phase = state.take_phase();
        if let Some(alarm) = phase.alarm() {
            context.reactor.cancel(alarm);
        }
        match phase {
            Phase::AwaitingFetch(fetch) => {
                if let Some(cache) = &mut self.cache {
                    cache.forget(&fetch);
                }
                Attempt::None
            }
            Phase::Queued(wait) | Phase::Resolving(wait) => {
                self.pool.forget(context.reactor, context.id());
                Attempt::Unsent { origin: wait.origin }
            }
            Phase::Connecting { origin, upstream } => {
                self.pool.close(context.reactor, upstream);
                Attempt::Unsent { origin }
            }
            Phase::Exchanging(transfer) => {
                self.pool.close(context.reactor, transfer.upstream());
                Attempt::Sent(state.end_transfer(context.reactor, transfer))
            }
            Phase::Tunnel { upstream } => {
                context.reactor.close(upstream);
                Attempt::None
            }
            Phase::Idle | Phase::HandOver { .. } | Phase::HandOverLater { .. } => Attempt::None,
        }
    }

    /// Continues an exchange, or a background task, after an event.
    fn on_event(
        &mut self,
        context: &mut RequestContext<'_>,
        exchange: Exchange,
        event: Event<'_>,
        response: &mut ResponseWriter<'_>,
    ) -> Flow<Exchange> {
        let mut state = exchange.0;
        let is_ours = |upstream| state.phase.upstream() == Some(upstream);
        let going = match event {
            Event::Received(upstream, bytes) if is_ours(upstream) => {
                self.received(context, state, bytes, response)
            }
            Event::Connected(upstream) if is_ours(upstream) => {
                self.connected(context, state, response)
            }
            Event::Ended(upstream) if is_ours(upstream) => self.ended(context, state, response),
            Event::Failed(upstream, kind) if is_ours(upstream) => {
                self.broken(context, state, kind, response)
            }
            Event::UpstreamRoom(upstream) if is_ours(upstream) => {
                if let Phase::Exchanging(transfer) = &mut state.phase {
                    transfer.active_at = context.worker.clock.tick();
                }
                ControlFlow::Continue(state)
            }
            Event::Woken(WakeReason::Ready) => self.fetch_is_over(context, state, response),
            Event::Woken(WakeReason::Capacity) => self.has_capacity(context, state, response),
            Event::NotTaken(why) => self.not_taken(context, state, why, response),
            Event::Time(alarm) if state.phase.alarm() == Some(alarm) => {
                self.on_alarm(context, state, response)
            }
            Event::ClientEnded => {
                self.client_has_ended(context, &mut state);
                ControlFlow::Continue(state)
            }
            _ => ControlFlow::Continue(state),
        };
        self.go_on(context, going, response)
    }
}

impl Service for Proxy {
    type Exchange = Exchange;

    fn begin(
        &mut self,
        context: &mut RequestContext<'_>,
        request: &Request<'_>,
        response: &mut ResponseWriter<'_>,
    ) -> Flow<Exchange> {
        match self.route(&request.target) {
            Some(route) => self.begin_on(route, context, request, response),
            None => {
                Self::refuse(context, request, response);
                Flow::Done
            }
        }
    }

    fn body(
        &mut self,
        context: &mut RequestContext<'_>,
        exchange: Exchange,
        part: Part<'_>,
        response: &mut ResponseWriter<'_>,
    ) -> Flow<Exchange> {
        let state = self.upload(context, exchange.0, part);
        self.go_on(context, ControlFlow::Continue(state), response)
    }

    fn resume(
        &mut self,
        context: &mut RequestContext<'_>,
        exchange: Exchange,
        event: Event<'_>,
        response: &mut ResponseWriter<'_>,
    ) -> Flow<Exchange> {
        self.on_event(context, exchange, event, response)
    }

    /// Ends an exchange whose client has disconnected. The fetch from the origin ends too, unless other
    /// exchanges or the cache need the response.
    fn cancel(&mut self, context: &mut RequestContext<'_>, exchange: Exchange) {
        let Err(mut state) = self.adopt(context, exchange.0) else { return };
        if let Some(cache) = &mut self.cache {
            cache.abort(context, &mut state.cached);
        }
        let is_tunnel = matches!(state.phase, Phase::Tunnel { .. });
        self.release(context, &mut state);
        if is_tunnel {
            // The tunnel was logged when it began.
            return;
        }
        self.end(context, state);
    }

    fn background(
        &mut self,
        context: &mut ServiceContext<'_>,
        background: ExchangeId,
        event: Event<'_>,
    ) -> bool {
        self.run_background(context, background, event)
    }

    fn event(&mut self, context: &mut ServiceContext<'_>, event: Event<'_>) {
        match &mut self.cache {
            Some(cache) if cache.is_notifier(&event) => cache.notified(context.reactor, event),
            _ => self.pool.event(context.reactor, context.worker.clock.tick(), event),
        }
    }
}

impl Drop for Proxy {
    /// Ends the background tasks, so that exchanges of other workers do not wait for them any more.
    fn drop(&mut self) {
        for state in self.background.drain() {
            if let Some(cache) = &mut self.cache {
                cache.give_up(&state.cached);
            }
        }
    }
}

#[cfg(test)]
mod tests;
