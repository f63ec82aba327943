//! Forwards an origin's reply to the client: bytes are forwarded as they arrive, until the end.

use super::{
    Progress, Proxy,
    caching::{Caching, ReplyAction},
    exchange::{Attempt, Owner, Phase, State, Transfer, Upload},
    failure::Failure,
    handover::hand_over,
};
use crate::{
    reactor::UpstreamError,
    service::{Flow, RequestContext, ResponseWriter},
};
use pollux_http::reply::{Event, Next, ReplyError};
use std::ops::ControlFlow;

/// A client that has closed its side may still read, or may have disconnected. After this many ticks without
/// a byte from the origin, it counts as disconnected: 5 s.
const HALF_CLOSED_TICKS: u32 = 50;

impl Proxy {
    /// Handles bytes from the origin.
    pub(super) fn received(
        &mut self,
        context: &mut RequestContext<'_>,
        mut state: Box<State>,
        bytes: &[u8],
        response: &mut ResponseWriter<'_>,
    ) -> Progress {
        match state.take_phase() {
            Phase::Exchanging(transfer) => {
                self.received_reply(context, state, transfer, bytes, response)
            }
            Phase::Tunnel { upstream } => {
                put_of_tunnel(response, bytes);
                state.phase = Phase::Tunnel { upstream };
                ControlFlow::Continue(state)
            }
            other => {
                // No request has been sent to which this could be a reply.
                state.phase = other;
                self.fail(context, state, Failure::Reply(ReplyError::Unsolicited), response)
            }
        }
    }

    fn received_reply(
        &mut self,
        context: &mut RequestContext<'_>,
        mut state: Box<State>,
        mut transfer: Transfer,
        bytes: &[u8],
        response: &mut ResponseWriter<'_>,
    ) -> Progress {
        transfer.active_at = context.worker.clock.tick();
        transfer.has_received = true;
        let mut rest = bytes;
        let end = loop {
            let cache = self.cache.as_mut();
            match read(context, &mut state, &mut transfer, cache, &mut rest, response) {
                Ok(ReadOutcome::Nothing) => {
                    state.phase = Phase::Exchanging(transfer);
                    return ControlFlow::Continue(state);
                }
                Ok(ReadOutcome::More) => {}
                Ok(ReadOutcome::Head) => self.pool.succeeded(transfer.connection.origin),
                // The client is answered, and the rest of the reply is not needed.
                Ok(ReadOutcome::Over) => break Next::Close,
                Ok(ReadOutcome::AskAgain) => {
                    let origin = transfer.connection.origin;
                    self.pool.close(context.reactor, transfer.upstream());
                    state.end_transfer(context.reactor, transfer);
                    return self.connect_to(context, state, (origin, None), None, response);
                }
                Ok(ReadOutcome::End(next)) => break next,
                Err(bad) => {
                    state.phase = Phase::Exchanging(transfer);
                    return self.fail(context, state, Failure::Reply(bad), response);
                }
            }
        };
        match end {
            Next::Switched => self.switch(context, state, transfer, rest, response),
            next => {
                let may_keep = next == Next::Request && rest.is_empty();
                self.finish(context, state, transfer, may_keep)
            }
        }
    }

    /// Ends an exchange whose reply is complete.
    fn finish(
        &mut self,
        context: &mut RequestContext<'_>,
        mut state: Box<State>,
        transfer: Transfer,
        may_keep: bool,
    ) -> Progress {
        let now = context.worker.clock.tick();
        if let Some(cache) = &mut self.cache {
            cache.finish(context, &mut state.cached);
        }
        let (origin, upstream) = (transfer.connection.origin, transfer.upstream());
        // If a part of the request is unsent, the origin would read the next request as that part.
        if may_keep && transfer.upload.is_done() {
            if transfer.is_paused {
                context.reactor.go_on(upstream);
            }
            self.pool.keep(context.reactor, now, origin, upstream);
        } else {
            self.pool.close(context.reactor, upstream);
        }
        state.end_transfer(context.reactor, transfer);
        self.end(context, state);
        ControlFlow::Break(Flow::Done)
    }

    /// Begins a tunnel after the origin has switched to another protocol: from now on bytes are forwarded in
    /// both directions.
    fn switch(
        &mut self,
        context: &mut RequestContext<'_>,
        mut state: Box<State>,
        transfer: Transfer,
        rest: &[u8],
        response: &mut ResponseWriter<'_>,
    ) -> Progress {
        put_of_tunnel(response, rest);
        let upstream = transfer.upstream();
        if transfer.is_paused {
            context.reactor.go_on(upstream);
        }
        state.end_transfer(context.reactor, transfer);
        state.phase = Phase::Tunnel { upstream };
        // The pool does not count a tunnel: the client's own connection is counted for it.
        self.pool.is_gone(context.reactor);
        let exchange = context.id();
        context.reactor.tunnel(exchange, upstream);
        context.log_response(state.request.line(), state.reply.outcome().status, 0);
        ControlFlow::Continue(state)
    }

    /// Handles a connection whose origin has closed its side.
    pub(super) fn ended(
        &mut self,
        context: &mut RequestContext<'_>,
        mut state: Box<State>,
        response: &mut ResponseWriter<'_>,
    ) -> Progress {
        match state.take_phase() {
            Phase::Exchanging(mut transfer) => match transfer.reader.finish() {
                Ok(output) => {
                    if let Event::End { trailers, .. } = output.event {
                        state.reply.end(response, trailers);
                    }
                    self.finish(context, state, transfer, false)
                }
                Err(bad) => {
                    state.phase = Phase::Exchanging(transfer);
                    self.fail(context, state, Failure::Reply(bad), response)
                }
            },
            // The engine ends both sides of a tunnel together.
            Phase::Tunnel { upstream } => {
                state.phase = Phase::Tunnel { upstream };
                ControlFlow::Continue(state)
            }
            other => {
                state.phase = other;
                self.fail(context, state, Failure::Ended, response)
            }
        }
    }

    /// Handles a connection that has broken or could not be made.
    pub(super) fn broken(
        &mut self,
        context: &mut RequestContext<'_>,
        mut state: Box<State>,
        why: UpstreamError,
        response: &mut ResponseWriter<'_>,
    ) -> Progress {
        let attempt = match state.take_phase() {
            Phase::Connecting { origin, .. } => Attempt::Unsent { origin },
            Phase::Exchanging(transfer) => {
                Attempt::Sent(state.end_transfer(context.reactor, transfer))
            }
            // The engine ends both sides of a tunnel together.
            other => {
                state.phase = other;
                return ControlFlow::Continue(state);
            }
        };
        self.pool.is_gone(context.reactor);
        let failure = match (why, &attempt) {
            (UpstreamError::TlsCertificate, _) => Failure::TlsCertificate,
            (UpstreamError::TlsAlert(alert), _) => Failure::TlsAlert(alert),
            (UpstreamError::TlsProtocol, _) => Failure::TlsProtocol,
            (UpstreamError::Io(kind), Attempt::Unsent { .. }) => Failure::Connect(kind),
            (_, Attempt::Sent(sent)) if sent.has_received && !state.reply.has_begun() => {
                Failure::Reply(ReplyError::Truncated)
            }
            _ => Failure::Ended,
        };
        self.attempt_failed(context, state, attempt, failure, response)
    }

    /// Handles the expiry of the alarm of the present phase.
    pub(super) fn on_alarm(
        &mut self,
        context: &mut RequestContext<'_>,
        mut state: Box<State>,
        response: &mut ResponseWriter<'_>,
    ) -> Progress {
        match state.take_phase() {
            Phase::AwaitingFetch(fetch) => self.check_fetch(context, state, fetch, response),
            Phase::HandOverLater { receiver, .. } => {
                ControlFlow::Continue(hand_over(context, state, receiver))
            }
            Phase::Exchanging(transfer) => self.check_silence(context, state, transfer, response),
            Phase::Queued(wait) => {
                state.phase = Phase::Queued(wait);
                self.fail(context, state, Failure::NoCapacity, response)
            }
            Phase::Resolving(wait) => {
                state.phase = Phase::Resolving(wait);
                self.fail(context, state, Failure::NameTimeout, response)
            }
            without_alarm => {
                state.phase = without_alarm;
                ControlFlow::Continue(state)
            }
        }
    }

    /// Ends a transfer whose origin was silent for too long. Sends the body if the origin has not replied
    /// whether it wants it.
    fn check_silence(
        &mut self,
        context: &mut RequestContext<'_>,
        mut state: Box<State>,
        mut transfer: Transfer,
        response: &mut ResponseWriter<'_>,
    ) -> Progress {
        let now = context.worker.clock.tick();
        let is_origins_turn = match transfer.upload {
            Upload::AwaitingContinue => {
                // The origin has not refused the body, so the body is sent.
                request_body(&mut transfer.upload, response);
                false
            }
            upload => {
                !transfer.is_paused
                    && (upload.is_done() || context.reactor.is_full(transfer.upstream()))
            }
        };
        if !is_origins_turn {
            transfer.active_at = now;
        }
        let mut until = transfer.active_at.saturating_add(self.patience(state.owner));
        if let Owner::Background { until: end } = state.owner {
            until = until.min(end);
        }
        let left = until.saturating_sub(now);
        if left > 0 {
            transfer.set_alarm(context, left);
            state.phase = Phase::Exchanging(transfer);
            return ControlFlow::Continue(state);
        }
        state.phase = Phase::Exchanging(transfer);
        if state.owner == Owner::HalfClosedClient {
            return self.give_up(context, state);
        }
        self.fail(context, state, Failure::Silent, response)
    }

    /// Notes that the client has closed its side: it may have disconnected.
    pub(super) fn client_has_ended(&mut self, context: &mut RequestContext<'_>, state: &mut State) {
        if state.owner != Owner::Client {
            return;
        }
        state.owner = Owner::HalfClosedClient;
        if let Phase::Exchanging(transfer) = &mut state.phase
            && transfer.upload != Upload::AwaitingContinue
        {
            transfer.active_at = context.worker.clock.tick();
            transfer.set_alarm(context, self.patience(Owner::HalfClosedClient));
        }
    }

    /// Returns the number of ticks for which an origin may be silent.
    pub(super) fn patience(&self, owner: Owner) -> u32 {
        match owner {
            Owner::HalfClosedClient => self.timeout.min(HALF_CLOSED_TICKS),
            Owner::Client | Owner::Background { .. } => self.timeout,
        }
    }

    /// Ends an exchange whose client counts as disconnected. The fetch goes on if other exchanges or the cache need
    /// the response.
    fn give_up(&mut self, context: &mut RequestContext<'_>, state: Box<State>) -> Progress {
        let Err(mut state) = self.adopt(context, state) else {
            return ControlFlow::Break(Flow::Cut);
        };
        self.release(context, &mut state);
        if let Some(cache) = &mut self.cache {
            cache.abort(context, &mut state.cached);
        }
        self.end(context, state);
        ControlFlow::Break(Flow::Cut)
    }
}

/// Ends the wait for `100 Continue`: the body is requested from the client, and sent. `100 Continue` is written at once,
/// before interim replies that follow it.
fn request_body(upload: &mut Upload, response: &mut ResponseWriter<'_>) {
    *upload = Upload::Unsent;
    response.interim(100, |_| {});
}

/// Forwards bytes of the protocol to which the origin has switched.
fn put_of_tunnel(response: &mut ResponseWriter<'_>, bytes: &[u8]) {
    if let Some(mut body) = response.body() {
        body.data(bytes);
    }
}

/// The result of one step of reading.
enum ReadOutcome {
    /// All bytes are consumed.
    Nothing,
    More,
    Head,
    /// The client is answered from the store; the rest is not needed.
    Over,
    /// The reply does not match the stored response: another request to the origin is necessary.
    AskAgain,
    End(Next),
}

/// Reads up to one event, and forwards it.
fn read(
    context: &mut RequestContext<'_>,
    state: &mut State,
    transfer: &mut Transfer,
    cache: Option<&mut Caching>,
    rest: &mut &[u8],
    response: &mut ResponseWriter<'_>,
) -> Result<ReadOutcome, ReplyError> {
    const CONNECTION: ReplyError = ReplyError::Syntax("Connection is given too often");
    let output = transfer.reader.read(rest)?;
    *rest = &rest[output.consumed..];
    Ok(match output.event {
        Event::NeedMore => ReadOutcome::Nothing,
        Event::Content(bytes) => {
            state.reply.content(response, bytes);
            let is_stored =
                cache.is_some_and(|cache| cache.content(context, &mut state.cached, bytes));
            let is_of_use = is_stored || !state.reply.is_complete();
            if is_of_use { ReadOutcome::More } else { ReadOutcome::Over }
        }
        Event::Head(head) => {
            if transfer.upload == Upload::AwaitingContinue {
                // The origin does not want the announced body, and it is unknown whether the client sends it
                // anyway.
                context.close_after();
            }
            let action = match cache {
                Some(cache) => cache.head(context, state, transfer.sent, &head, response),
                None => ReplyAction::Forward(Vec::new()),
            };
            match action {
                ReplyAction::Forward(lines) => {
                    let (facts, is_head) = (transfer.sent.facts, state.request.is_head);
                    let begun = state.reply.begin(context, response, &head, facts, is_head, &lines);
                    begun.map_err(|_| CONNECTION)?;
                    ReadOutcome::Head
                }
                ReplyAction::Answered => ReadOutcome::Head,
                ReplyAction::Over => ReadOutcome::Over,
                ReplyAction::AskAgain => ReadOutcome::AskAgain,
                ReplyAction::NotCached => return Err(ReplyError::Unsolicited),
            }
        }
        Event::Interim(head) if head.status == 100 && state.request.expects_continue => {
            if transfer.upload == Upload::AwaitingContinue {
                request_body(&mut transfer.upload, response);
            }
            // Otherwise the client has received `100 Continue` when its body was requested.
            ReadOutcome::More
        }
        Event::Interim(head) => {
            state.reply.interim(context, response, &head).map_err(|_| CONNECTION)?;
            ReadOutcome::More
        }
        Event::End { trailers, next } => {
            state.reply.end(response, trailers);
            ReadOutcome::End(next)
        }
    })
}
