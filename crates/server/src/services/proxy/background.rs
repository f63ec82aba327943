//! Exchanges without a client. They replace a stale response after it was sent, or they complete a fetch for
//! other waiting exchanges or for the cache after their own client was answered or has disconnected.

use super::{
    Exchange, Proxy,
    exchange::{Owner, Phase, State},
    reply::Outcome,
};
use crate::{
    reactor::{EventTarget, ExchangeId},
    service::{Event, ExchangeTerms, Flow, RequestContext, ServiceContext},
};
use pollux_cache::Fetch;
use pollux_http::request::Request;
use std::ops::ControlFlow;

/// The maximum number of background tasks of a worker. When it is reached, a stale response is not replaced
/// before the next request for it.
const TASKS_MAX: usize = 64;
/// The maximum duration of a background task in ticks, even if its origin is still sending: 5 minutes.
const TASK_TICKS: u32 = 3000;

/// The background tasks of one worker. They are few, so a linear search is enough.
#[derive(Debug, Default)]
pub(super) struct BackgroundTasks(Vec<(ExchangeId, Option<Box<State>>)>);

impl BackgroundTasks {
    fn has_room(&self) -> bool {
        self.0.len() < TASKS_MAX
    }

    /// Returns whether this is one of the tasks.
    pub(super) fn has(&self, background: ExchangeId) -> bool {
        self.0.iter().any(|(id, _)| *id == background)
    }

    /// Returns whether there is no task.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn take(&mut self, background: ExchangeId) -> Option<Box<State>> {
        self.0.iter_mut().find(|(id, _)| *id == background)?.1.take()
    }

    /// Removes all tasks and returns their states.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = Box<State>> + '_ {
        self.0.drain(..).filter_map(|(_, state)| state)
    }
}

impl Proxy {
    /// Fetches a response that replaces a stale one. The client has been answered already.
    pub(super) fn refresh(
        &mut self,
        context: &mut RequestContext<'_>,
        request: &Request<'_>,
        route: super::RouteId,
        fetch: Fetch,
    ) {
        if !self.background.has_room() {
            if let Some(cache) = &mut self.cache {
                cache.refuse(context, &fetch);
            }
            return;
        }
        let mut state = self.new_exchange(context, request, route);
        state.request.is_head = false;
        state.cached.start(fetch);
        let background = self.enter(context, &mut state);
        let mut terms = ExchangeTerms::NOBODYS;
        let mut context = context.of(background, &mut terms);
        let mut nowhere = std::mem::take(&mut self.nowhere);
        let mut response = context.writer_to(&mut nowhere);
        let going = self.choose_origin(&mut context, state, Some(request), &mut response);
        let flow = self.go_on(&mut context, going, &response);
        self.put_back(background, flow);
        nowhere.clear();
        self.nowhere = nowhere;
    }

    /// Continues an exchange that its client no longer needs as a background task, if its response is wanted
    /// and there is room. Otherwise returns the exchange.
    pub(super) fn adopt(
        &mut self,
        context: &mut RequestContext<'_>,
        mut state: Box<State>,
    ) -> Result<(), Box<State>> {
        let upstream = match &state.phase {
            Phase::Connecting { upstream, .. } => *upstream,
            Phase::Exchanging(transfer) if transfer.upload.is_done() => transfer.upstream(),
            _ => return Err(state),
        };
        if state.owner.is_background() || !self.background.has_room() {
            return Err(state);
        }
        if !self.cache.as_ref().is_some_and(|cache| cache.is_wanted(&state.cached)) {
            return Err(state);
        }
        let Outcome { status, sent } = state.reply.outcome();
        context.log_response(state.request.line(), status, sent);
        let background = self.enter(context, &mut state);
        context.reactor.give(upstream, EventTarget::Exchange(background));
        let patience = self.patience(state.owner);
        if let Phase::Exchanging(transfer) = &mut state.phase {
            if std::mem::take(&mut transfer.is_paused) {
                context.reactor.go_on(upstream);
            }
            let mut terms = ExchangeTerms::NOBODYS;
            transfer.set_alarm(&mut context.of(background, &mut terms), patience);
        }
        self.put_back(background, Flow::Waiting(Exchange(state)));
        Ok(())
    }

    fn enter(&mut self, context: &mut RequestContext<'_>, state: &mut State) -> ExchangeId {
        let background = context.reactor.begin_background();
        state.owner = Owner::Background { until: context.worker.clock.after(TASK_TICKS) };
        state.reply.cut();
        self.background.0.push((background, None));
        background
    }

    /// Handles an event of a background task. Returns false if there is no such task.
    pub(super) fn run_background(
        &mut self,
        context: &mut ServiceContext<'_>,
        background: ExchangeId,
        event: Event<'_>,
    ) -> bool {
        let Some(state) = self.background.take(background) else { return false };
        let mut terms = ExchangeTerms::NOBODYS;
        let mut context = context.context(background, &mut terms);
        let mut nowhere = std::mem::take(&mut self.nowhere);
        let mut response = context.writer_to(&mut nowhere);
        let flow = self.on_event(&mut context, Exchange(state), event, &mut response);
        self.put_back(background, flow);
        debug_assert!(nowhere.is_empty(), "a background task answers nobody");
        nowhere.clear();
        self.nowhere = nowhere;
        true
    }

    fn put_back(&mut self, background: ExchangeId, flow: Flow<Exchange>) {
        let Some(at) = self.background.0.iter().position(|(id, _)| *id == background) else {
            return;
        };
        match flow {
            Flow::Waiting(Exchange(state)) | Flow::NeedBody(Exchange(state)) => {
                self.background.0[at].1 = Some(state);
            }
            Flow::Done | Flow::Cut => {
                self.background.0.swap_remove(at);
            }
        }
    }

    /// Turns an exchange into a background task if its client has been answered and more content arrives that
    /// is stored, so that the client's next request need not wait.
    pub(super) fn detach(
        &mut self,
        context: &mut RequestContext<'_>,
        state: Box<State>,
    ) -> ControlFlow<(), Box<State>> {
        if !state.reply.is_complete() || state.owner.is_background() {
            return ControlFlow::Continue(state);
        }
        match self.adopt(context, state) {
            Ok(()) => ControlFlow::Break(()),
            Err(state) => ControlFlow::Continue(state),
        }
    }
}
