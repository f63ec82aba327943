//! From an origin's octets to the client: what comes is passed on at once, up to the end.

use super::{
    Frontend, Going,
    caching::{Caching, Told},
    exchange::{State, Step, Upload},
    failure::Failure,
};
use crate::{
    reactor::LinkId,
    service::{Flow, Turn},
    transport::outbox::Outbox,
};
use pollux_http::{
    reply::{Event, Next, Reader, ReplyError},
    response::CONTINUE,
};
use std::{io::ErrorKind, ops::ControlFlow};

/// What the log says of a client that went away before an answer: nginx' own code.
pub(super) const CLIENT_GONE: u16 = 499;
/// A client that has closed its side may still read, or be gone. So many ticks without an octet from
/// the origin, and it is taken for gone: 5 s.
const HALF_CLOSED_TICKS: u32 = 50;

impl Frontend {
    /// Octets have come from the origin.
    pub(super) fn received(
        &mut self,
        turn: &mut Turn<'_>,
        mut state: Box<State>,
        link: LinkId,
        octets: &[u8],
        outbox: &mut Outbox,
    ) -> Going {
        if state.step == Step::Tunnel {
            outbox.bytes().extend_from_slice(octets);
            return ControlFlow::Continue(state);
        }
        state.stamp = turn.local.clock.tick();
        state.has_seen = true;
        let mut rest = octets;
        let end = loop {
            match read(turn, &mut state, self.cache.as_mut(), &mut rest, outbox) {
                Ok(Found::Nothing) => return ControlFlow::Continue(state),
                Ok(Found::More) => {}
                Ok(Found::Head) => {
                    if let Some(origin) = state.origin {
                        self.upstream.succeeded(origin);
                    }
                }
                // The client is answered, and what follows on the connection is of no use.
                Ok(Found::Over) => break Next::Close,
                Ok(Found::AskAgain) => {
                    state.link = None;
                    self.upstream.close(turn.outside, link);
                    state.step = Step::Place;
                    return self.seek(turn, state, None, outbox);
                }
                Ok(Found::End(next)) => break next,
                Err(bad) => return self.fail(turn, state, Failure::Reply(bad), outbox),
            }
        };
        match end {
            Next::Switched => self.switch(turn, state, link, rest, outbox),
            next => {
                let may_keep = next == Next::Request && rest.is_empty();
                self.finish(turn, state, link, may_keep)
            }
        }
    }

    /// The reply is whole, and the client has it.
    fn finish(
        &mut self,
        turn: &mut Turn<'_>,
        mut state: Box<State>,
        link: LinkId,
        may_keep: bool,
    ) -> Going {
        let now = turn.local.clock.tick();
        state.link = None;
        if let Some(cache) = &mut self.cache {
            cache.finish(turn, &mut state.cached);
        }
        match state.origin {
            // An origin that is still to be sent the rest of a request takes it for that only.
            Some(origin) if may_keep && state.upload == Upload::Done => {
                if state.is_paused {
                    turn.outside.go_on(link);
                }
                self.upstream.keep(turn.outside, now, origin, link);
            }
            _ => self.upstream.close(turn.outside, link),
        }
        let status = state.reply.status;
        self.end(turn, state, status);
        ControlFlow::Break(Flow::Done)
    }

    /// The origin has switched to another protocol: from now on octets go to and fro.
    fn switch(
        &mut self,
        turn: &mut Turn<'_>,
        mut state: Box<State>,
        link: LinkId,
        rest: &[u8],
        outbox: &mut Outbox,
    ) -> Going {
        outbox.bytes().extend_from_slice(rest);
        if let Some(alarm) = state.alarm.take() {
            turn.outside.cancel(alarm);
        }
        if state.is_paused {
            turn.outside.go_on(link);
        }
        state.step = Step::Tunnel;
        // The client holds a place of its own for it.
        self.upstream.is_gone(turn.outside);
        let exchange = turn.id();
        turn.outside.tunnel(exchange, link);
        turn.log_code(state.line(), state.reply.status, 0);
        ControlFlow::Continue(state)
    }

    /// The origin has closed its side.
    pub(super) fn ended(
        &mut self,
        turn: &mut Turn<'_>,
        mut state: Box<State>,
        link: LinkId,
        outbox: &mut Outbox,
    ) -> Going {
        match state.reader.finish() {
            Ok(step) => {
                if let Event::End { trailers, .. } = step.event
                    && !state.cached.is_answered
                {
                    state.reply.end(outbox, trailers);
                }
                self.finish(turn, state, link, false)
            }
            Err(bad) => self.fail(turn, state, Failure::Reply(bad), outbox),
        }
    }

    /// The connection is gone, or could not be made.
    pub(super) fn broken(
        &mut self,
        turn: &mut Turn<'_>,
        mut state: Box<State>,
        kind: ErrorKind,
        outbox: &mut Outbox,
    ) -> Going {
        state.link = None;
        self.upstream.is_gone(turn.outside);
        let failure = match state.step {
            Step::Dial => Failure::Connect(kind),
            _ if state.has_seen && !state.reply.has_begun() => {
                Failure::Reply(ReplyError::Truncated)
            }
            _ => Failure::Ended,
        };
        self.fail(turn, state, failure, outbox)
    }

    /// The alarm has its time: has the origin had its own?
    pub(super) fn time_is_over(
        &mut self,
        turn: &mut Turn<'_>,
        mut state: Box<State>,
        outbox: &mut Outbox,
    ) -> Going {
        state.alarm = None;
        let now = turn.local.clock.tick();
        let link_is_full = state.link.is_some_and(|link| turn.outside.is_full(link));
        let is_waiting = match state.step {
            Step::Place | Step::Name => {
                let exchange = turn.id();
                self.upstream.forget(turn.outside, exchange);
                let failure = match state.step {
                    Step::Place => Failure::NoPlace,
                    _ => Failure::NameTimeout,
                };
                return self.fail(turn, state, failure, outbox);
            }
            // What dials has a timeout of its own.
            Step::Dial | Step::Tunnel | Step::Wait | Step::HandOver => {
                return ControlFlow::Continue(state);
            }
            Step::Talk if state.upload == Upload::Asked => {
                // It is not against it, at least.
                state.upload = Upload::Going;
                false
            }
            Step::Talk => !state.is_paused && (state.upload == Upload::Done || link_is_full),
        };
        if !is_waiting {
            state.stamp = now;
        }
        let mut until = state.stamp.saturating_add(self.patience(&state));
        if state.is_errand {
            until = until.min(state.until);
        }
        let left = until.saturating_sub(now);
        if left > 0 {
            self.arm(turn, &mut state, left);
            return ControlFlow::Continue(state);
        }
        if state.client_has_ended {
            return self.give_up(turn, state);
        }
        self.fail(turn, state, Failure::Silent, outbox)
    }

    /// The client has closed its side: it need not be there any more.
    pub(super) fn client_has_ended(&mut self, turn: &mut Turn<'_>, state: &mut State) {
        state.client_has_ended = true;
        if state.step == Step::Talk && state.upload != Upload::Asked {
            state.stamp = turn.local.clock.tick();
            self.arm(turn, state, self.patience(state));
        }
    }

    /// For how many ticks an origin may be silent.
    pub(super) fn patience(&self, state: &State) -> u32 {
        if state.client_has_ended { self.timeout.min(HALF_CLOSED_TICKS) } else { self.timeout }
    }

    fn give_up(&mut self, turn: &mut Turn<'_>, mut state: Box<State>) -> Going {
        if let Some(link) = state.link.take() {
            self.upstream.close(turn.outside, link);
        }
        if let Some(cache) = &mut self.cache {
            cache.abort(turn, &mut state.cached);
        }
        let status = if state.reply.has_begun() { state.reply.status } else { CLIENT_GONE };
        self.end(turn, state, status);
        ControlFlow::Break(Flow::Cut)
    }
}

/// What one step of reading has found.
enum Found {
    /// All octets are taken.
    Nothing,
    More,
    Head,
    /// The client is answered from the store; the rest is not needed.
    Over,
    /// The origin spoke of something that is not there.
    AskAgain,
    End(Next),
}

/// Reads up to one event, and passes it on.
fn read(
    turn: &mut Turn<'_>,
    state: &mut State,
    cache: Option<&mut Caching>,
    rest: &mut &[u8],
    outbox: &mut Outbox,
) -> Result<Found, ReplyError> {
    // Taken out meanwhile: what it yields borrows from it, and the cache wants the rest.
    let mut reader = std::mem::replace(&mut state.reader, Reader::new(Reader::LIMITS));
    let found = read_with(&mut reader, turn, state, cache, rest, outbox);
    state.reader = reader;
    found
}

fn read_with(
    reader: &mut Reader,
    turn: &mut Turn<'_>,
    state: &mut State,
    cache: Option<&mut Caching>,
    rest: &mut &[u8],
    outbox: &mut Outbox,
) -> Result<Found, ReplyError> {
    const CONNECTION: ReplyError = ReplyError::Syntax("Connection is given too often");
    let step = reader.read(rest)?;
    *rest = &rest[step.consumed..];
    Ok(match step.event {
        Event::NeedMore => Found::Nothing,
        Event::Content(octets) => {
            if !state.cached.is_answered {
                state.reply.content(outbox, octets);
            }
            let is_of_use = match cache {
                Some(cache) => cache.content(turn, &mut state.cached, octets),
                None => true,
            };
            if is_of_use { Found::More } else { Found::Over }
        }
        Event::Head(head) => {
            if state.upload == Upload::Asked {
                // The body that was announced is not wanted: nobody can tell whether it follows.
                turn.close_after();
            }
            let told = match cache {
                Some(cache) => cache.head(turn, state, &head, outbox),
                None => Told::PassOn(Vec::new()),
            };
            match told {
                Told::PassOn(lines) => {
                    let State { reply, passed, is_head, .. } = state;
                    let begun = reply.begin(turn, outbox, &head, *passed, *is_head, &lines);
                    begun.map_err(|_| CONNECTION)?;
                    Found::Head
                }
                Told::Answered => Found::Head,
                Told::Over => Found::Over,
                Told::AskAgain => Found::AskAgain,
                Told::Unasked => return Err(ReplyError::Unsolicited),
            }
        }
        Event::Interim(head) if head.status == 100 => {
            if state.upload == Upload::Asked {
                state.upload = Upload::Going;
                // As a rule the connection says so itself when the body is asked for.
                if state.reply.has_interim {
                    outbox.bytes().extend_from_slice(CONTINUE);
                }
            }
            Found::More
        }
        Event::Interim(head) => {
            // Behind an answer from the store it would be another answer.
            if !state.cached.is_answered {
                state.reply.interim(turn, outbox, &head).map_err(|_| CONNECTION)?;
            }
            Found::More
        }
        Event::End { trailers, next } => {
            if !state.cached.is_answered {
                state.reply.end(outbox, trailers);
            }
            Found::End(next)
        }
    })
}
