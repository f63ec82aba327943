//! Exchanges that no client owns: what is stale is replaced behind the answer, and what others wait for
//! or what is to be stored comes to its end although its client has its answer or is gone.

use super::{
    Exchange, Frontend,
    exchange::{State, Step, Upload},
};
use crate::{
    reactor::{ExchangeId, To},
    service::{Application, Flow, Terms, Turn, Wake, World},
};
use pollux_cache::Fetch;
use pollux_http::request::Request;
use std::ops::ControlFlow;

/// So many a worker has at a time; then what is stale stays so until the next request for it.
const ERRANDS_MAX: usize = 64;
/// An errand is given up after so many ticks, however busy its origin seems: 5 minutes.
const ERRAND_TICKS: u32 = 3000;

/// The errands of one worker. They are few: a look at each finds one.
#[derive(Debug, Default)]
pub(super) struct Errands(Vec<(ExchangeId, Option<Box<State>>)>);

impl Errands {
    fn has_room(&self) -> bool {
        self.0.len() < ERRANDS_MAX
    }

    fn take(&mut self, errand: ExchangeId) -> Option<Box<State>> {
        self.0.iter_mut().find(|(id, _)| *id == errand)?.1.take()
    }

    /// What is left of them.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = Box<State>> + '_ {
        self.0.drain(..).filter_map(|(_, state)| state)
    }
}

impl Frontend {
    /// Fetches what is to replace something stale; its client has its answer.
    pub(super) fn refresh(
        &mut self,
        turn: &mut Turn<'_>,
        request: &Request<'_>,
        route: super::RouteId,
        fetch: Fetch,
    ) {
        if !self.errands.has_room() {
            if let Some(cache) = &mut self.cache {
                cache.refuse(turn, &fetch);
            }
            return;
        }
        let mut state = self.spare.pop().unwrap_or_default();
        state.begin(request, route, turn.local.clock.tick());
        state.is_head = false;
        state.cached.start(fetch);
        let errand = self.enter(turn, &mut state);
        let mut terms = Terms::NOBODYS;
        let mut turn = turn.of(errand, &mut terms);
        let mut nowhere = std::mem::take(&mut self.nowhere);
        let going = self.seek(&mut turn, state, Some(request), &mut nowhere);
        let flow = self.go_on(&mut turn, going, &nowhere);
        self.put_back(turn.outside, errand, flow);
        nowhere.clear();
        self.nowhere = nowhere;
    }

    /// Goes on with an exchange whose client needs it no more, if it is worth it and there is room.
    /// Otherwise it is handed back.
    pub(super) fn adopt(
        &mut self,
        turn: &mut Turn<'_>,
        mut state: Box<State>,
    ) -> Result<(), Box<State>> {
        let is_on_its_way = matches!(state.step, Step::Dial | Step::Talk)
            && state.upload == Upload::Done
            && !state.is_errand;
        let (Some(link), true) = (state.link, is_on_its_way && self.errands.has_room()) else {
            return Err(state);
        };
        if !self.cache.as_ref().is_some_and(|cache| cache.is_wanted(&state.cached)) {
            return Err(state);
        }
        if let Some(alarm) = state.alarm.take() {
            turn.outside.cancel(alarm);
        }
        turn.log_code(state.line(), state.reply.status, state.reply.sent);
        if std::mem::take(&mut state.is_paused) {
            turn.outside.go_on(link);
        }
        state.client_has_ended = false;
        let errand = self.enter(turn, &mut state);
        turn.outside.give(link, To::Exchange(errand));
        if state.step == Step::Talk {
            let (mut terms, patience) = (Terms::NOBODYS, self.patience(&state));
            self.arm(&mut turn.of(errand, &mut terms), &mut state, patience);
        }
        self.put_back(turn.outside, errand, Flow::Waiting(Exchange(state)));
        Ok(())
    }

    fn enter(&mut self, turn: &mut Turn<'_>, state: &mut State) -> ExchangeId {
        let errand = turn.outside.begin_errand();
        state.is_errand = true;
        state.until = turn.local.clock.after(ERRAND_TICKS);
        // Nothing of what comes is for a client.
        state.cached.is_answered = true;
        if !state.reply.has_begun() {
            state.reply.stands_for(super::passing::CLIENT_GONE, 0);
        }
        self.errands.0.push((errand, None));
        errand
    }

    /// Something has come for an errand.
    pub(super) fn run_errand(
        &mut self,
        world: &mut World<'_>,
        errand: ExchangeId,
        wake: Wake<'_>,
    ) -> bool {
        let Some(state) = self.errands.take(errand) else { return false };
        let mut terms = Terms::NOBODYS;
        let mut turn = world.turn(errand, &mut terms);
        let mut nowhere = std::mem::take(&mut self.nowhere);
        let flow = self.resume(&mut turn, Exchange(state), wake, &mut nowhere);
        self.put_back(turn.outside, errand, flow);
        debug_assert!(nowhere.is_empty(), "an errand answers nobody");
        nowhere.clear();
        self.nowhere = nowhere;
        true
    }

    fn put_back(
        &mut self,
        outside: &mut crate::reactor::Outside,
        errand: ExchangeId,
        flow: Flow<Exchange>,
    ) {
        let Some(at) = self.errands.0.iter().position(|(id, _)| *id == errand) else { return };
        match flow {
            Flow::Waiting(Exchange(state)) | Flow::NeedBody(Exchange(state)) => {
                self.errands.0[at].1 = Some(state);
            }
            Flow::Done | Flow::Cut => {
                self.errands.0.swap_remove(at);
                outside.end_errand();
            }
        }
    }

    /// What a client's exchange becomes whose client has its answer, while more comes that is stored:
    /// an errand, so that the client's next request need not wait.
    pub(super) fn detach(
        &mut self,
        turn: &mut Turn<'_>,
        state: Box<State>,
    ) -> ControlFlow<(), Box<State>> {
        if !state.cached.is_answered || state.is_errand {
            return ControlFlow::Continue(state);
        }
        match self.adopt(turn, state) {
            Ok(()) => ControlFlow::Break(()),
            Err(state) => ControlFlow::Continue(state),
        }
    }
}
