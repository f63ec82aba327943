//! From a request to an origin that has got it: a connection, the head, the body; and what is done
//! when that fails.

use super::{
    Exchange, Progress, Proxy,
    exchange::{ExchangePhase, State, Upload},
    failure::Failure,
    forwarded::Client,
    has_body, hop,
    pool::DialOutcome,
    request::UpstreamRequest,
};
use crate::stats::Counter;
use crate::{
    config::ForwardedPolicy,
    reactor::EventTarget,
    service::{Flow, Part, RequestContext},
    transport::outbox::Outbox,
};
use pollux_http::{
    fields::Fields,
    proxy_protocol,
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

impl Proxy {
    /// Looks for a connection, and sends the request if there is one at once.
    pub(super) fn seek(
        &mut self,
        context: &mut RequestContext<'_>,
        mut state: Box<State>,
        request: Option<&Request<'_>>,
        outbox: &mut Outbox,
    ) -> Progress {
        let now = context.worker.clock.tick();
        let origin = match state.origin {
            Some(origin) => origin,
            None => {
                let turns = self.routes.take_turn(state.route);
                self.pool.choose(turns, now, state.tried)
            }
        };
        state.origin = Some(origin);
        if !state.is_retried
            && let Some(upstream) = self.pool.take(origin)
        {
            context.reactor.give(upstream, EventTarget::Exchange(context.id()));
            (state.upstream, state.is_reused) = (Some(upstream), true);
            return self.speak(context, state, request, outbox);
        }
        let exchange = context.id();
        state.phase = match self.pool.dial(context.reactor, now, origin, exchange) {
            DialOutcome::Upstream(upstream) => {
                (state.upstream, state.is_reused) = (Some(upstream), false);
                ExchangePhase::Connecting
            }
            DialOutcome::NoCapacity => ExchangePhase::Queued,
            DialOutcome::NoName => ExchangePhase::Resolving,
            DialOutcome::Failed(failure) => return self.fail(context, state, failure, outbox),
        };
        if state.phase != ExchangePhase::Connecting && state.alarm.is_none() {
            self.arm(context, &mut state, self.connect_ticks());
        }
        ControlFlow::Continue(state)
    }

    /// There is a connection: sends the head on it. `request` spares reading it once more.
    pub(super) fn speak(
        &mut self,
        context: &mut RequestContext<'_>,
        mut state: Box<State>,
        request: Option<&Request<'_>>,
        outbox: &mut Outbox,
    ) -> Progress {
        let (Some(upstream), Some(origin)) = (state.upstream, state.origin) else {
            return self.fail(context, state, Failure::Ended, outbox);
        };
        let needs_client =
            matches!(self.config.forwarded, ForwardedPolicy::Replace | ForwardedPolicy::Append);
        let certificate = context.client_certificate();
        let client = Client {
            address: needs_client.then(|| context.peer()).flatten(),
            is_tls: context.rules.is_tls(),
            requests_certificates: context.rules.requests_client_certificates(),
        };
        let records = context.worker.records.as_ref().filter(|records| records.has_ids());
        let request_id = records
            .map(|records| records.present().and_then(|record| record.id()).unwrap_or_default());
        let upstream_request = UpstreamRequest {
            config: &self.config,
            authority: self.pool.authority(origin),
            conditions: state.cached.conditions.as_deref(),
            is_refresh: state.cached.is_refresh,
            client,
            client_certificate: certificate.as_deref(),
            request_id,
            hides_authorization: state.hides_authorization,
            scratch: &mut self.scratch,
        };
        let counter = if state.is_reused { Counter::OriginReused } else { Counter::OriginOpened };
        context.worker.counters.add(counter, 1);
        let header = self.config.proxy_protocol.filter(|_| !state.is_reused);
        let header = header.map(|version| (version, context.proxy_header()));
        let out = context.reactor.send(upstream).bytes();
        if let Some((version, header)) = header {
            proxy_protocol::write(out, version, header);
        }
        let outcome = match request {
            Some(request) => upstream_request.put(out, request).ok(),
            None => match parse(&state.head, &context.rules.limits) {
                Ok(ParseStatus::Complete { ref request, .. }) => {
                    upstream_request.put(out, request).ok()
                }
                _ => None,
            },
        };
        let Some(passed) = outcome else {
            return self.fail(context, state, Failure::Request, outbox);
        };
        state.passed = passed;
        state.cached.requested_at = context.worker.clock.date().unix_second();
        state.reader.begin(RequestInfo { head: state.is_head, upgrade: passed.upgrade });
        state.phase = ExchangePhase::Exchanging;
        state.has_seen = false;
        state.active_at = context.worker.clock.tick();
        state.upload = match state.framing {
            Framing::None => Upload::Done,
            _ if state.expects_continue => Upload::AwaitingContinue,
            _ => Upload::Sending,
        };
        let patience = self.patience(&state);
        let ticks =
            if state.upload == Upload::AwaitingContinue { CONTINUE_TICKS } else { patience };
        self.arm(context, &mut state, ticks);
        ControlFlow::Continue(state)
    }

    /// Passes on what has come of the body.
    pub(super) fn upload(
        &mut self,
        context: &mut RequestContext<'_>,
        mut state: Box<State>,
        part: Part<'_>,
    ) -> Box<State> {
        let (ExchangePhase::Exchanging, Upload::Sending, Some(upstream)) =
            (state.phase, state.upload, state.upstream)
        else {
            return state;
        };
        state.active_at = context.worker.clock.tick();
        state.has_uploaded = true;
        let is_chunked = state.framing == Framing::Chunked;
        match part {
            Part::Data(bytes) if is_chunked => chunk(context.reactor.send(upstream).bytes(), bytes),
            Part::Data(bytes) => context.reactor.send(upstream).bytes().extend_from_slice(bytes),
            Part::End { trailers } => {
                state.upload = Upload::Done;
                if is_chunked && trailers.is_empty() {
                    context.reactor.send(upstream).bytes().extend_from_slice(LAST_CHUNK);
                } else if is_chunked {
                    let out = context.reactor.send(upstream).bytes();
                    out.extend_from_slice(b"0\r\n");
                    hop::put_trailers(out, Fields::new(trailers));
                    out.extend_from_slice(b"\r\n");
                }
            }
        }
        state
    }

    /// The exchange cannot continue: it is tried again where that is safe, or the client receives
    /// an error.
    pub(super) fn fail(
        &mut self,
        context: &mut RequestContext<'_>,
        mut state: Box<State>,
        failure: Failure,
        outbox: &mut Outbox,
    ) -> Progress {
        let was_sent = state.phase == ExchangePhase::Exchanging;
        state.phase = ExchangePhase::Queued;
        if let Some(upstream) = state.upstream.take() {
            self.pool.close(context.reactor, upstream);
        }
        state.is_paused = false;
        let is_stale = was_sent && state.is_reused && !state.has_seen;
        if let Some(origin) = state.origin.take() {
            // A server that closes an idle connection may be healthy.
            if !is_stale {
                state.tried |= 1 << origin;
                context
                    .worker
                    .counters
                    .add(Counter::OriginFailures, u64::from(failure.is_the_origins()));
                self.pool.failed(context.worker.clock.tick(), origin, failure);
            }
            state.tries += 1;
            let has_other = self.routes.count(state.route) > 1;
            let may_try = match failure {
                Failure::TlsCertificate | Failure::TlsAlert(_) | Failure::TlsProtocol
                    if was_sent =>
                {
                    state.can_be_sent_again() && (state.is_reused || has_other)
                }
                Failure::Connect(_)
                | Failure::TlsCertificate
                | Failure::TlsAlert(_)
                | Failure::TlsProtocol => {
                    let has_more = has_other || self.pool.has_more_addresses(origin);
                    has_more && failure.is_the_origins()
                }
                Failure::Name => has_other,
                Failure::Ended | Failure::Reply(_) => {
                    state.can_be_sent_again() && (state.is_reused || has_other)
                }
                Failure::NameTimeout
                | Failure::NoCapacity
                | Failure::Silent
                | Failure::Request
                | Failure::NotTaken(_) => false,
            };
            if may_try && state.tries < TRIES && !state.reply.has_begun() {
                state.is_retried |= was_sent;
                context.worker.counters.add(Counter::OriginRetries, 1);
                return self.seek(context, state, None, outbox);
            }
        }
        if self.stands_in(context, &mut state, failure, outbox) {
            let status = state.reply.status;
            self.end(context, state, status);
            return ControlFlow::Break(Flow::Done);
        }
        if state.reply.has_begun() {
            let status = state.reply.status;
            self.end(context, state, status);
            return ControlFlow::Break(Flow::Cut);
        }
        if has_body(state.framing) && state.upload != Upload::Done {
            // What is left of the body may be long, and nobody wants it.
            context.close_after();
        }
        let mut fields = Vec::new();
        if let Some(cache) = &self.cache {
            cache.put_status_of_page(&state.cached, &mut fields);
        }
        let answer = failure.put(context, outbox, state.method(), &self.name, fields);
        state.reply.sent = answer.len;
        self.end(context, state, answer.status.code());
        ControlFlow::Break(Flow::<Exchange>::Done)
    }

    /// Sets the exchange's only alarm.
    pub(super) fn arm(&self, context: &mut RequestContext<'_>, state: &mut State, ticks: u32) {
        if let Some(alarm) = state.alarm.take() {
            context.reactor.cancel(alarm);
        }
        let to = EventTarget::Exchange(context.id());
        state.alarm = Some(context.reactor.timer(ticks, to));
    }

    fn connect_ticks(&self) -> u32 {
        crate::time::clock::ticks(self.config.connect_timeout)
    }
}
