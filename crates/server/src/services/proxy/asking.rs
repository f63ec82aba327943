//! From a request to an origin that has got it: a connection, the head, the body; and what is done
//! when that fails.

use super::{
    Exchange, Frontend, Going,
    exchange::{State, Step, Upload},
    failure::Failure,
    forwarded::Client,
    has_body, hop,
    request::Letter,
    upstream::Dialled,
};
use crate::{
    config::ForwardedPolicy,
    reactor::To,
    service::{Flow, Part, Turn},
    transport::outbox::Outbox,
};
use pollux_http::{
    fields::Fields,
    reply::RequestInfo,
    request::{Framing, ParseStatus, Request, parse},
    response::{LAST_CHUNK, chunk},
};
use std::ops::ControlFlow;

/// Connections that are tried for one request.
const TRIES: u8 = 3;
/// An origin that does not say whether it wants a body is sent it after so many ticks (RFC 9110
/// §10.1.1): 1 s.
const CONTINUE_TICKS: u32 = 10;

impl Frontend {
    /// Looks for a connection, and sends the request if there is one at once.
    pub(super) fn seek(
        &mut self,
        turn: &mut Turn<'_>,
        mut state: Box<State>,
        request: Option<&Request<'_>>,
        outbox: &mut Outbox,
    ) -> Going {
        let now = turn.local.clock.tick();
        let origin = match state.origin {
            Some(origin) => origin,
            None => {
                let turns = self.routes.take_turn(state.route);
                self.upstream.choose(turns, now, state.tried)
            }
        };
        state.origin = Some(origin);
        if !state.is_retried
            && let Some(link) = self.upstream.take(origin)
        {
            turn.outside.give(link, To::Exchange(turn.id()));
            (state.link, state.is_reused) = (Some(link), true);
            return self.speak(turn, state, request, outbox);
        }
        let exchange = turn.id();
        state.step = match self.upstream.dial(turn.outside, now, origin, exchange) {
            Dialled::Link(link) => {
                (state.link, state.is_reused) = (Some(link), false);
                Step::Dial
            }
            Dialled::NoPlace => Step::Place,
            Dialled::NoName => Step::Name,
            Dialled::Failed(failure) => return self.fail(turn, state, failure, outbox),
        };
        if state.step != Step::Dial && state.alarm.is_none() {
            self.arm(turn, &mut state, self.connect_ticks());
        }
        ControlFlow::Continue(state)
    }

    /// There is a connection: sends the head on it. `request` spares reading it once more.
    pub(super) fn speak(
        &mut self,
        turn: &mut Turn<'_>,
        mut state: Box<State>,
        request: Option<&Request<'_>>,
        outbox: &mut Outbox,
    ) -> Going {
        let (Some(link), Some(origin)) = (state.link, state.origin) else {
            return self.fail(turn, state, Failure::Ended, outbox);
        };
        let needs_client =
            matches!(self.config.forwarded, ForwardedPolicy::Replace | ForwardedPolicy::Append);
        let client = Client { address: needs_client.then(|| turn.peer()).flatten() };
        let letter = Letter {
            config: &self.config,
            authority: self.upstream.authority(origin),
            conditions: state.cached.conditions.as_deref(),
            is_refresh: state.cached.is_refresh,
            client,
            scratch: &mut self.scratch,
        };
        let counts = &mut turn.local.origins;
        let count = if state.is_reused { &mut counts.reused } else { &mut counts.opened };
        *count += 1;
        let out = turn.outside.send(link).bytes();
        let outcome = match request {
            Some(request) => letter.put(out, request).ok(),
            None => match parse(&state.head, &turn.rules.limits) {
                Ok(ParseStatus::Complete { ref request, .. }) => letter.put(out, request).ok(),
                _ => None,
            },
        };
        let Some(passed) = outcome else {
            return self.fail(turn, state, Failure::Request, outbox);
        };
        state.passed = passed;
        state.cached.asked_at = turn.local.clock.date().unix_second();
        state.reader.begin(RequestInfo { head: state.is_head, upgrade: passed.upgrade });
        state.step = Step::Talk;
        state.has_seen = false;
        state.stamp = turn.local.clock.tick();
        state.upload = match state.framing {
            Framing::None => Upload::Done,
            _ if state.expects_continue => Upload::Asked,
            _ => Upload::Going,
        };
        let patience = self.patience(&state);
        let ticks = if state.upload == Upload::Asked { CONTINUE_TICKS } else { patience };
        self.arm(turn, &mut state, ticks);
        ControlFlow::Continue(state)
    }

    /// Passes on what has come of the body.
    pub(super) fn upload(
        &mut self,
        turn: &mut Turn<'_>,
        mut state: Box<State>,
        part: Part<'_>,
    ) -> Box<State> {
        let (Step::Talk, Upload::Going, Some(link)) = (state.step, state.upload, state.link) else {
            return state;
        };
        state.stamp = turn.local.clock.tick();
        state.has_uploaded = true;
        let is_chunked = state.framing == Framing::Chunked;
        match part {
            Part::Octets(octets) if is_chunked => chunk(turn.outside.send(link).bytes(), octets),
            Part::Octets(octets) => turn.outside.send(link).bytes().extend_from_slice(octets),
            Part::End { trailers } => {
                state.upload = Upload::Done;
                if is_chunked && trailers.is_empty() {
                    turn.outside.send(link).bytes().extend_from_slice(LAST_CHUNK);
                } else if is_chunked {
                    let out = turn.outside.send(link).bytes();
                    out.extend_from_slice(b"0\r\n");
                    hop::put_trailers(out, Fields::new(trailers));
                    out.extend_from_slice(b"\r\n");
                }
            }
        }
        state
    }

    /// It cannot go on as it was: it is tried again where that is safe, or the client is told.
    pub(super) fn fail(
        &mut self,
        turn: &mut Turn<'_>,
        mut state: Box<State>,
        failure: Failure,
        outbox: &mut Outbox,
    ) -> Going {
        let was_sent = state.step == Step::Talk;
        state.step = Step::Place;
        if let Some(link) = state.link.take() {
            self.upstream.close(turn.outside, link);
        }
        state.is_paused = false;
        let is_stale = was_sent && state.is_reused && !state.has_seen;
        if let Some(origin) = state.origin.take() {
            // Whoever closes what is kept says nothing about himself.
            if !is_stale {
                state.tried |= 1 << origin;
                turn.local.origins.failures += u64::from(failure.is_the_origins());
                self.upstream.failed(turn.local.clock.tick(), origin, failure);
            }
            state.tries += 1;
            let has_other = self.routes.count(state.route) > 1;
            let may_try = match failure {
                Failure::Connect(_) => {
                    let has_more = has_other || self.upstream.has_more_addresses(origin);
                    has_more && failure.is_the_origins()
                }
                Failure::Name => has_other,
                Failure::Ended | Failure::Reply(_) => {
                    state.can_be_sent_again() && (state.is_reused || has_other)
                }
                Failure::NameTimeout
                | Failure::NoPlace
                | Failure::Silent
                | Failure::Request
                | Failure::NotTaken(_) => false,
            };
            if may_try && state.tries < TRIES && !state.reply.has_begun() {
                state.is_retried |= was_sent;
                turn.local.origins.retries += 1;
                return self.seek(turn, state, None, outbox);
            }
        }
        if self.stands_in(turn, &mut state, failure, outbox) {
            let status = state.reply.status;
            self.end(turn, state, status);
            return ControlFlow::Break(Flow::Done);
        }
        if state.reply.has_begun() {
            let status = state.reply.status;
            self.end(turn, state, status);
            return ControlFlow::Break(Flow::Cut);
        }
        if has_body(state.framing) && state.upload != Upload::Done {
            // What is left of the body may be long, and nobody wants it.
            turn.close_after();
        }
        let mut fields = Vec::new();
        if let Some(cache) = &self.cache {
            cache.put_status_of_page(&state.cached, &mut fields);
        }
        let answer = failure.put(turn, outbox, state.method(), &self.name, fields);
        state.reply.sent = answer.len;
        self.end(turn, state, answer.status.code());
        ControlFlow::Break(Flow::<Exchange>::Done)
    }

    /// Sets the exchange's only alarm.
    pub(super) fn arm(&self, turn: &mut Turn<'_>, state: &mut State, ticks: u32) {
        if let Some(alarm) = state.alarm.take() {
            turn.outside.cancel(alarm);
        }
        let to = To::Exchange(turn.id());
        state.alarm = Some(turn.outside.timer(ticks, to));
    }

    fn connect_ticks(&self) -> u32 {
        crate::time::clock::ticks(self.config.connect_timeout)
    }
}
