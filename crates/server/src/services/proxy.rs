//! The reverse proxy: requests are passed on to origins, and their replies to the clients.
//!
//! What is not here goes to "the waiting server", as phhttpd's users had it. An exchange asks for a
//! connection (one that was kept, or a new one), writes the request to it, and passes on what comes
//! back as it comes: nothing is gathered, and who does not take what he is sent stops whoever sends
//! it. Both sides are strict: what could be read in two ways is passed on in neither.

mod asking;
mod bell;
mod caching;
mod errands;
mod exchange;
mod failure;
mod forwarded;
mod handover;
mod hop;
mod override_fields;
mod own;
mod passing;
mod reply;
mod request;
mod routes;
mod upstream;

pub(crate) use exchange::Exchange;
pub(crate) use routes::RouteId;

use crate::service::{Application, Flow, Part, Turn, Wake, World};
use crate::{
    config::FrontendConfig, reactor::ExchangeId, time::clock::ticks, transport::outbox::Outbox,
};
use exchange::{State, Step, Upload};
use pollux_http::request::{Framing, Request, Target};
use std::{ops::ControlFlow, sync::Arc};
use upstream::Upstream;

/// The memory of so many exchanges that are over is kept for others.
const SPARE: usize = 64;

/// A worker's proxy.
#[derive(Debug)]
pub(crate) struct Frontend {
    config: Arc<FrontendConfig>,
    /// The name in `Proxy-Status`.
    name: String,
    routes: routes::Routes,
    upstream: Upstream,
    timeout: u32,
    /// In their boxes: a state is handed over and back with each call, and is large.
    #[allow(clippy::vec_box, reason = "the boxes are what is kept")]
    spare: Vec<Box<State>>,
    cache: Option<caching::Caching>,
    scratch: Vec<u8>,
    errands: errands::Errands,
    /// Where errands write; nothing, as a rule.
    nowhere: Outbox,
}

/// Whether an exchange goes on or is over.
type Going = ControlFlow<Flow<Exchange>, Box<State>>;

impl Frontend {
    /// For one worker, which may have a file table of its own.
    pub(crate) fn new(config: &Arc<FrontendConfig>, has_own_table: bool) -> Self {
        Self {
            config: config.clone(),
            name: config.via.clone().unwrap_or_else(|| "pollux".into()),
            routes: routes::Routes::new(config),
            upstream: Upstream::new(config),
            timeout: ticks(config.timeout),
            spare: Vec::new(),
            cache: config.cache.as_ref().map(|store| caching::Caching::new(store, has_own_table)),
            scratch: Vec::new(),
            errands: errands::Errands::default(),
            nowhere: Outbox::default(),
        }
    }

    /// The route of a request, if it has one.
    #[inline]
    pub(crate) fn route(&self, target: &Target<'_>) -> Option<RouteId> {
        self.routes.find(target)
    }

    /// Whether files come before the origins of a route.
    pub(crate) fn is_behind_files(&self, route: RouteId) -> bool {
        self.routes.is_behind_files(route)
    }

    /// Whether what has happened to the application is about an origin.
    pub(crate) fn is_meant(&self, wake: &Wake<'_>) -> bool {
        self.upstream.is_meant(wake) || self.cache.as_ref().is_some_and(|cache| cache.is_bell(wake))
    }

    /// Passes a request on.
    pub(crate) fn begin_on(
        &mut self,
        route: RouteId,
        turn: &mut Turn<'_>,
        request: &Request<'_>,
        outbox: &mut Outbox,
    ) -> Flow<Exchange> {
        if own::answer(turn, outbox, request) {
            return Flow::Done;
        }
        let going = match self.routes.receiver(route).cloned() {
            Some(path) => self.begin_hand_over(turn, request, route, &path),
            None => self.consult(turn, request, Err(route), outbox),
        };
        self.go_on(turn, going, outbox)
    }

    /// Answers what is neither a file nor an origin's.
    pub(crate) fn refuse(turn: &mut Turn<'_>, request: &Request<'_>, outbox: &mut Outbox) {
        if !own::answer(turn, outbox, request) {
            own::answer_not_found(turn, outbox, request);
        }
    }

    /// What an exchange waits for now. Who is sent more than he takes stops the other.
    fn go_on(&mut self, turn: &mut Turn<'_>, going: Going, outbox: &Outbox) -> Flow<Exchange> {
        let mut state = match going {
            ControlFlow::Break(flow) => return flow,
            ControlFlow::Continue(state) => match self.detach(turn, state) {
                ControlFlow::Break(()) => return Flow::Done,
                ControlFlow::Continue(state) => state,
            },
        };
        let (Step::Talk, Some(link)) = (state.step, state.link) else {
            return Flow::Waiting(Exchange(state));
        };
        if outbox.is_full() != state.is_paused {
            state.is_paused = !state.is_paused;
            if state.is_paused {
                turn.outside.pause(link);
            } else {
                turn.outside.go_on(link);
                state.stamp = turn.local.clock.tick();
            }
        }
        if state.upload == Upload::Going && !turn.outside.is_full(link) {
            Flow::NeedBody(Exchange(state))
        } else {
            Flow::Waiting(Exchange(state))
        }
    }

    /// An exchange is over: it is logged, and its memory is kept for another.
    fn end(&mut self, turn: &mut Turn<'_>, state: Box<State>, status: u16) {
        if let Some(alarm) = state.alarm {
            turn.outside.cancel(alarm);
        }
        // An errand's client was told, and logged, before.
        if !state.is_errand {
            turn.log_code(state.line(), status, state.reply.sent);
        }
        if self.spare.len() < SPARE && state.is_small() {
            self.spare.push(state);
        }
    }
}

impl Application for Frontend {
    type Exchange = Exchange;

    fn begin(
        &mut self,
        turn: &mut Turn<'_>,
        request: &Request<'_>,
        outbox: &mut Outbox,
    ) -> Flow<Exchange> {
        match self.route(&request.target) {
            Some(route) => self.begin_on(route, turn, request, outbox),
            None => {
                Self::refuse(turn, request, outbox);
                Flow::Done
            }
        }
    }

    fn body(
        &mut self,
        turn: &mut Turn<'_>,
        exchange: Exchange,
        part: Part<'_>,
        outbox: &mut Outbox,
    ) -> Flow<Exchange> {
        let state = self.upload(turn, exchange.0, part);
        self.go_on(turn, ControlFlow::Continue(state), outbox)
    }

    fn resume(
        &mut self,
        turn: &mut Turn<'_>,
        exchange: Exchange,
        wake: Wake<'_>,
        outbox: &mut Outbox,
    ) -> Flow<Exchange> {
        let mut state = exchange.0;
        let is_ours = |link| state.link == Some(link);
        let going = match wake {
            Wake::Received(link, octets) if is_ours(link) => {
                self.received(turn, state, link, octets, outbox)
            }
            Wake::Connected(link) if is_ours(link) => self.speak(turn, state, None, outbox),
            // Who ties the two together sees to the end of either.
            Wake::Ended(link) | Wake::Failed(link, _)
                if is_ours(link) && state.step == Step::Tunnel =>
            {
                ControlFlow::Continue(state)
            }
            Wake::Ended(link) if is_ours(link) => self.ended(turn, state, link, outbox),
            Wake::Failed(link, kind) if is_ours(link) => self.broken(turn, state, kind, outbox),
            Wake::LinkRoom(link) if is_ours(link) => {
                state.stamp = turn.local.clock.tick();
                ControlFlow::Continue(state)
            }
            Wake::Note(caching::WOKEN) if state.step == Step::Wait => {
                self.has_waited(turn, state, outbox)
            }
            // Not every note: who has waited for another's fetch may still be told that it is over. If he
            // took that for a place, he would stand in the queue twice, and others wait for nothing.
            Wake::Note(upstream::GO_ON) if matches!(state.step, Step::Place | Step::Name) => {
                self.seek(turn, state, None, outbox)
            }
            Wake::Time(alarm) if state.alarm == Some(alarm) && state.step == Step::Wait => {
                state.alarm = None;
                self.look(turn, state, outbox)
            }
            Wake::Time(alarm) if state.alarm == Some(alarm) && state.step == Step::HandOver => {
                self.hand_over_again(turn, state, outbox)
            }
            Wake::NotTaken(why) => self.not_taken(turn, state, why, outbox),
            Wake::Time(alarm) if state.alarm == Some(alarm) => {
                self.time_is_over(turn, state, outbox)
            }
            Wake::ClientEnded => {
                self.client_has_ended(turn, &mut state);
                ControlFlow::Continue(state)
            }
            _ => ControlFlow::Continue(state),
        };
        self.go_on(turn, going, outbox)
    }

    /// Nobody is there any more whom an answer could reach: the origin need not give one, unless
    /// others want it too.
    fn cancel(&mut self, turn: &mut Turn<'_>, exchange: Exchange) {
        let mut state = exchange.0;
        if !state.reply.has_begun() {
            state.reply.stands_for(passing::CLIENT_GONE, 0);
        }
        let Err(adoptable) = self.adopt(turn, state) else { return };
        state = adoptable;
        if let Some(cache) = &mut self.cache {
            cache.abort(turn, &mut state.cached);
        }
        match (state.step, state.link.take()) {
            // No connection of ours any more, and logged.
            (Step::HandOver, _) => {}
            // It waits for another's fetch, and has no place among those who wait for a connection.
            (Step::Wait, _) => {}
            (Step::Tunnel, link) => return link.map_or((), |link| turn.outside.close(link)),
            (_, Some(link)) => self.upstream.close(turn.outside, link),
            (_, None) => self.upstream.forget(turn.outside, turn.id()),
        }
        let status = state.reply.status;
        self.end(turn, state, status);
    }

    fn errand(&mut self, world: &mut World<'_>, errand: ExchangeId, wake: Wake<'_>) -> bool {
        self.run_errand(world, errand, wake)
    }

    fn event(&mut self, world: &mut World<'_>, wake: Wake<'_>) {
        match &mut self.cache {
            Some(cache) if cache.is_bell(&wake) => cache.rung(world.outside, wake),
            _ => self.upstream.event(world.outside, world.local.clock.tick(), wake),
        }
    }
}

impl Drop for Frontend {
    /// Whoever waits for an errand in another worker waits no more.
    fn drop(&mut self) {
        for state in self.errands.drain() {
            if let Some(cache) = &mut self.cache {
                cache.give_up(&state.cached);
            }
        }
    }
}

/// Whether there is a body.
fn has_body(framing: Framing) -> bool {
    framing != Framing::None
}

#[cfg(test)]
mod tests;
