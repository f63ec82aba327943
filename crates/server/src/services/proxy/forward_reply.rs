//! From an origin's bytes to the client: what comes is passed on at once, up to the end.

use super::{
    Progress, Proxy,
    caching::{Caching, ReplyAction},
    exchange::{ExchangePhase, State, Upload},
    failure::Failure,
};
use crate::{
    reactor::{UpstreamError, UpstreamId},
    service::{Flow, RequestContext},
    transport::outbox::Outbox,
};
use pollux_http::{
    reply::{Event, Next, Reader, ReplyError},
    response::CONTINUE,
};
use std::ops::ControlFlow;

/// What the log says of a client that went away before an answer: nginx' own code.
pub(super) const CLIENT_GONE: u16 = 499;
/// A client that has closed its side may still read, or be gone. So many ticks without a byte from
/// the origin, and it is taken for gone: 5 s.
const HALF_CLOSED_TICKS: u32 = 50;

impl Proxy {
    /// Bytes have come from the origin.
    pub(super) fn received(
        &mut self,
        context: &mut RequestContext<'_>,
        mut state: Box<State>,
        upstream: UpstreamId,
        bytes: &[u8],
        outbox: &mut Outbox,
    ) -> Progress {
        if state.phase == ExchangePhase::Tunnel {
            outbox.bytes().extend_from_slice(bytes);
            return ControlFlow::Continue(state);
        }
        state.active_at = context.worker.clock.tick();
        state.has_seen = true;
        let mut rest = bytes;
        let end = loop {
            match read(context, &mut state, self.cache.as_mut(), &mut rest, outbox) {
                Ok(ReadOutcome::Nothing) => return ControlFlow::Continue(state),
                Ok(ReadOutcome::More) => {}
                Ok(ReadOutcome::Head) => {
                    if let Some(origin) = state.origin {
                        self.pool.succeeded(origin);
                    }
                }
                // The client is answered, and what follows on the connection is of no use.
                Ok(ReadOutcome::Over) => break Next::Close,
                Ok(ReadOutcome::AskAgain) => {
                    state.upstream = None;
                    self.pool.close(context.reactor, upstream);
                    state.phase = ExchangePhase::Queued;
                    return self.seek(context, state, None, outbox);
                }
                Ok(ReadOutcome::End(next)) => break next,
                Err(bad) => return self.fail(context, state, Failure::Reply(bad), outbox),
            }
        };
        match end {
            Next::Switched => self.switch(context, state, upstream, rest, outbox),
            next => {
                let may_keep = next == Next::Request && rest.is_empty();
                self.finish(context, state, upstream, may_keep)
            }
        }
    }

    /// The reply is whole, and the client has it.
    fn finish(
        &mut self,
        context: &mut RequestContext<'_>,
        mut state: Box<State>,
        upstream: UpstreamId,
        may_keep: bool,
    ) -> Progress {
        let now = context.worker.clock.tick();
        state.upstream = None;
        if let Some(cache) = &mut self.cache {
            cache.finish(context, &mut state.cached);
        }
        match state.origin {
            // An origin that is still to be sent the rest of a request takes it for that only.
            Some(origin) if may_keep && state.upload == Upload::Done => {
                if state.is_paused {
                    context.reactor.go_on(upstream);
                }
                self.pool.keep(context.reactor, now, origin, upstream);
            }
            _ => self.pool.close(context.reactor, upstream),
        }
        let status = state.reply.status;
        self.end(context, state, status);
        ControlFlow::Break(Flow::Done)
    }

    /// The origin has switched to another protocol: from now on bytes go to and fro.
    fn switch(
        &mut self,
        context: &mut RequestContext<'_>,
        mut state: Box<State>,
        upstream: UpstreamId,
        rest: &[u8],
        outbox: &mut Outbox,
    ) -> Progress {
        outbox.bytes().extend_from_slice(rest);
        if let Some(alarm) = state.alarm.take() {
            context.reactor.cancel(alarm);
        }
        if state.is_paused {
            context.reactor.go_on(upstream);
        }
        state.phase = ExchangePhase::Tunnel;
        // The client holds a place of its own for it.
        self.pool.is_gone(context.reactor);
        let exchange = context.id();
        context.reactor.tunnel(exchange, upstream);
        context.log_response(state.line(), state.reply.status, 0);
        ControlFlow::Continue(state)
    }

    /// The origin has closed its side.
    pub(super) fn ended(
        &mut self,
        context: &mut RequestContext<'_>,
        mut state: Box<State>,
        upstream: UpstreamId,
        outbox: &mut Outbox,
    ) -> Progress {
        match state.reader.finish() {
            Ok(phase) => {
                if let Event::End { trailers, .. } = phase.event
                    && !state.cached.is_answered
                {
                    state.reply.end(outbox, trailers);
                }
                self.finish(context, state, upstream, false)
            }
            Err(bad) => self.fail(context, state, Failure::Reply(bad), outbox),
        }
    }

    /// The connection is gone, or could not be made.
    pub(super) fn broken(
        &mut self,
        context: &mut RequestContext<'_>,
        mut state: Box<State>,
        why: UpstreamError,
        outbox: &mut Outbox,
    ) -> Progress {
        state.upstream = None;
        self.pool.is_gone(context.reactor);
        let failure = match (why, state.phase) {
            (UpstreamError::TlsCertificate, _) => Failure::TlsCertificate,
            (UpstreamError::TlsAlert(alert), _) => Failure::TlsAlert(alert),
            (UpstreamError::TlsProtocol, _) => Failure::TlsProtocol,
            (UpstreamError::Io(kind), ExchangePhase::Connecting) => Failure::Connect(kind),
            _ if state.has_seen && !state.reply.has_begun() => {
                Failure::Reply(ReplyError::Truncated)
            }
            _ => Failure::Ended,
        };
        self.fail(context, state, failure, outbox)
    }

    /// The alarm has its time: has the origin had its own?
    pub(super) fn time_is_over(
        &mut self,
        context: &mut RequestContext<'_>,
        mut state: Box<State>,
        outbox: &mut Outbox,
    ) -> Progress {
        state.alarm = None;
        let now = context.worker.clock.tick();
        let upstream_is_full =
            state.upstream.is_some_and(|upstream| context.reactor.is_full(upstream));
        let is_waiting = match state.phase {
            ExchangePhase::Queued | ExchangePhase::Resolving => {
                let exchange = context.id();
                self.pool.forget(context.reactor, exchange);
                let failure = match state.phase {
                    ExchangePhase::Queued => Failure::NoCapacity,
                    _ => Failure::NameTimeout,
                };
                return self.fail(context, state, failure, outbox);
            }
            // What dials has a timeout of its own.
            ExchangePhase::Connecting
            | ExchangePhase::Tunnel
            | ExchangePhase::AwaitingFetch
            | ExchangePhase::HandOver => {
                return ControlFlow::Continue(state);
            }
            ExchangePhase::Exchanging if state.upload == Upload::AwaitingContinue => {
                // It is not against it, at least.
                state.upload = Upload::Sending;
                false
            }
            ExchangePhase::Exchanging => {
                !state.is_paused && (state.upload == Upload::Done || upstream_is_full)
            }
        };
        if !is_waiting {
            state.active_at = now;
        }
        let mut until = state.active_at.saturating_add(self.patience(&state));
        if state.is_background {
            until = until.min(state.until);
        }
        let left = until.saturating_sub(now);
        if left > 0 {
            self.arm(context, &mut state, left);
            return ControlFlow::Continue(state);
        }
        if state.client_has_ended {
            return self.give_up(context, state);
        }
        self.fail(context, state, Failure::Silent, outbox)
    }

    /// The client has closed its side: it need not be there any more.
    pub(super) fn client_has_ended(&mut self, context: &mut RequestContext<'_>, state: &mut State) {
        state.client_has_ended = true;
        if state.phase == ExchangePhase::Exchanging && state.upload != Upload::AwaitingContinue {
            state.active_at = context.worker.clock.tick();
            self.arm(context, state, self.patience(state));
        }
    }

    /// For how many ticks an origin may be silent.
    pub(super) fn patience(&self, state: &State) -> u32 {
        if state.client_has_ended { self.timeout.min(HALF_CLOSED_TICKS) } else { self.timeout }
    }

    fn give_up(&mut self, context: &mut RequestContext<'_>, mut state: Box<State>) -> Progress {
        if let Some(upstream) = state.upstream.take() {
            self.pool.close(context.reactor, upstream);
        }
        if let Some(cache) = &mut self.cache {
            cache.abort(context, &mut state.cached);
        }
        let status = if state.reply.has_begun() { state.reply.status } else { CLIENT_GONE };
        self.end(context, state, status);
        ControlFlow::Break(Flow::Cut)
    }
}

/// What one step of reading has found.
enum ReadOutcome {
    /// All bytes are taken.
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
    context: &mut RequestContext<'_>,
    state: &mut State,
    cache: Option<&mut Caching>,
    rest: &mut &[u8],
    outbox: &mut Outbox,
) -> Result<ReadOutcome, ReplyError> {
    // Taken out meanwhile: what it yields borrows from it, and the cache wants the rest.
    let mut reader = std::mem::replace(&mut state.reader, Reader::new(Reader::LIMITS));
    let found = read_with(&mut reader, context, state, cache, rest, outbox);
    state.reader = reader;
    found
}

fn read_with(
    reader: &mut Reader,
    context: &mut RequestContext<'_>,
    state: &mut State,
    cache: Option<&mut Caching>,
    rest: &mut &[u8],
    outbox: &mut Outbox,
) -> Result<ReadOutcome, ReplyError> {
    const CONNECTION: ReplyError = ReplyError::Syntax("Connection is given too often");
    let phase = reader.read(rest)?;
    *rest = &rest[phase.consumed..];
    Ok(match phase.event {
        Event::NeedMore => ReadOutcome::Nothing,
        Event::Content(bytes) => {
            if !state.cached.is_answered {
                state.reply.content(outbox, bytes);
            }
            let is_of_use = match cache {
                Some(cache) => cache.content(context, &mut state.cached, bytes),
                None => true,
            };
            if is_of_use { ReadOutcome::More } else { ReadOutcome::Over }
        }
        Event::Head(head) => {
            if state.upload == Upload::AwaitingContinue {
                // The body that was announced is not wanted: nobody can tell whether it follows.
                context.close_after();
            }
            let action = match cache {
                Some(cache) => cache.head(context, state, &head, outbox),
                None => ReplyAction::Forward(Vec::new()),
            };
            match action {
                ReplyAction::Forward(lines) => {
                    let State { reply, passed, is_head, .. } = state;
                    let begun = reply.begin(context, outbox, &head, *passed, *is_head, &lines);
                    begun.map_err(|_| CONNECTION)?;
                    ReadOutcome::Head
                }
                ReplyAction::Answered => ReadOutcome::Head,
                ReplyAction::Over => ReadOutcome::Over,
                ReplyAction::AskAgain => ReadOutcome::AskAgain,
                ReplyAction::NotCached => return Err(ReplyError::Unsolicited),
            }
        }
        Event::Interim(head) if head.status == 100 => {
            if state.upload == Upload::AwaitingContinue {
                state.upload = Upload::Sending;
                // The connection normally sends it itself when the body is requested.
                if state.reply.has_interim {
                    outbox.bytes().extend_from_slice(CONTINUE);
                }
            }
            ReadOutcome::More
        }
        Event::Interim(head) => {
            // Behind an answer from the store it would be another answer.
            if !state.cached.is_answered {
                state.reply.interim(context, outbox, &head).map_err(|_| CONNECTION)?;
            }
            ReadOutcome::More
        }
        Event::End { trailers, next } => {
            if !state.cached.is_answered {
                state.reply.end(outbox, trailers);
            }
            ReadOutcome::End(next)
        }
    })
}
