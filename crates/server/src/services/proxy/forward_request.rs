//! Sends a request to an origin: chooses the origin, gets a connection, sends the head and the body. If an attempt
//! fails, tries again or answers the client.

use super::{
    Exchange, Progress, Proxy,
    exchange::{
        Attempt, OriginConnection, Phase, SentRequest, State, Transfer, Upload, Wait, alarm_after,
    },
    failure::Failure,
    forwarded::Client,
    hop,
    pool::DialOutcome,
    request::UpstreamRequest,
};
use crate::stats::Counter;
use crate::{
    config::ForwardedPolicy,
    reactor::{AlarmId, EventTarget},
    service::{Flow, Part, RequestContext, ResponseWriter},
};
use pollux_http::{
    fields::Fields,
    proxy_protocol,
    reply::RequestInfo,
    request::{ParseStatus, Request, parse},
    response::{LAST_CHUNK, chunk},
};
use std::ops::ControlFlow;

/// The maximum number of attempts for one request, each on another connection.
const TRIES: u8 = 3;
/// After this many ticks (1 s) the body is sent without `100 Continue`, because an origin need not reply with it
/// (RFC 9110 §10.1.1).
const CONTINUE_TICKS: u32 = 10;

impl Proxy {
    /// Chooses an origin, and sends the request if there is a connection to it at once.
    pub(super) fn choose_origin(
        &mut self,
        context: &mut RequestContext<'_>,
        state: Box<State>,
        request: Option<&Request<'_>>,
        response: &mut ResponseWriter<'_>,
    ) -> Progress {
        let now = context.worker.clock.tick();
        let turns = self.routes.take_turn(state.request.route);
        let origin = self.pool.choose(turns, now, state.attempts.failed_origins());
        self.connect_to(context, state, (origin, None), request, response)
    }

    /// Gets a connection to this origin, and sends the request if a connection is free. `alarm` is set if the
    /// exchange has already waited for a connection: the same alarm continues, so that all waits together have one
    /// time limit.
    pub(super) fn connect_to(
        &mut self,
        context: &mut RequestContext<'_>,
        mut state: Box<State>,
        (origin, alarm): (u32, Option<AlarmId>),
        request: Option<&Request<'_>>,
        response: &mut ResponseWriter<'_>,
    ) -> Progress {
        let stop_waiting = |context: &mut RequestContext<'_>| {
            if let Some(alarm) = alarm {
                context.reactor.cancel(alarm);
            }
        };
        if state.attempts.may_reuse_connection()
            && let Some(upstream) = self.pool.take(origin)
        {
            stop_waiting(context);
            context.reactor.give(upstream, EventTarget::Exchange(context.id()));
            let connection = OriginConnection { origin, upstream, is_reused: true };
            return self.send_head(context, state, connection, request, response);
        }
        let (exchange, now) = (context.id(), context.worker.clock.tick());
        let phase = match self.pool.dial(context.reactor, now, origin, exchange) {
            DialOutcome::NoCapacity => Phase::Queued,
            DialOutcome::NoName => Phase::Resolving,
            DialOutcome::Upstream(upstream) => {
                stop_waiting(context);
                state.phase = Phase::Connecting { origin, upstream };
                return ControlFlow::Continue(state);
            }
            DialOutcome::Failed(failure) => {
                stop_waiting(context);
                let attempt = Attempt::Unsent { origin };
                return self.attempt_failed(context, state, attempt, failure, response);
            }
        };
        let alarm = alarm.unwrap_or_else(|| alarm_after(context, self.connect_ticks()));
        state.phase = phase(Wait { origin, alarm });
        ControlFlow::Continue(state)
    }

    /// Continues an exchange when a connection may have become free, or when the origin's name has been
    /// resolved. Does nothing unless the exchange still waits for one of them: otherwise it would be in the
    /// queue twice and block the exchanges behind it.
    pub(super) fn has_capacity(
        &mut self,
        context: &mut RequestContext<'_>,
        mut state: Box<State>,
        response: &mut ResponseWriter<'_>,
    ) -> Progress {
        match state.take_phase() {
            Phase::Queued(Wait { origin, alarm }) | Phase::Resolving(Wait { origin, alarm }) => {
                self.connect_to(context, state, (origin, Some(alarm)), None, response)
            }
            other => {
                state.phase = other;
                ControlFlow::Continue(state)
            }
        }
    }

    /// Sends the request after the connection to the origin has been made.
    pub(super) fn connected(
        &mut self,
        context: &mut RequestContext<'_>,
        mut state: Box<State>,
        response: &mut ResponseWriter<'_>,
    ) -> Progress {
        match state.take_phase() {
            Phase::Connecting { origin, upstream } => {
                let connection = OriginConnection { origin, upstream, is_reused: false };
                self.send_head(context, state, connection, None, response)
            }
            other => {
                state.phase = other;
                ControlFlow::Continue(state)
            }
        }
    }

    /// Sends the head on `connection`. With `request` the stored head need not be parsed again.
    fn send_head(
        &mut self,
        context: &mut RequestContext<'_>,
        mut state: Box<State>,
        connection: OriginConnection,
        request: Option<&Request<'_>>,
        response: &mut ResponseWriter<'_>,
    ) -> Progress {
        let OriginConnection { origin, upstream, is_reused } = connection;
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
            conditions: state.cached.conditions(),
            is_refresh: state.cached.is_refresh(),
            client,
            client_certificate: certificate.as_deref(),
            request_id,
            hides_authorization: state.request.hides_authorization,
            scratch: &mut self.scratch,
        };
        let counter = if is_reused { Counter::OriginReused } else { Counter::OriginOpened };
        context.worker.counters.add(counter, 1);
        let header = self.config.proxy_protocol.filter(|_| !is_reused);
        let header = header.map(|version| (version, context.proxy_header()));
        let out = context.reactor.send(upstream).bytes();
        if let Some((version, header)) = header {
            proxy_protocol::write(out, version, header);
        }
        let outcome = match request {
            Some(request) => upstream_request.put(out, request).ok(),
            None => match parse(&state.request.head, &context.rules.limits) {
                Ok(ParseStatus::Complete { ref request, .. }) => {
                    upstream_request.put(out, request).ok()
                }
                _ => None,
            },
        };
        let Some(facts) = outcome else {
            self.pool.close(context.reactor, upstream);
            let attempt = Attempt::Unsent { origin };
            return self.attempt_failed(context, state, attempt, Failure::Request, response);
        };
        let upload = state.request.upload();
        let ticks = match upload {
            Upload::AwaitingContinue => CONTINUE_TICKS,
            _ => self.patience(state.owner),
        };
        let request_info = RequestInfo { head: state.request.is_head, upgrade: facts.upgrade };
        state.phase = Phase::Exchanging(Transfer {
            connection,
            has_received: false,
            is_paused: false,
            upload,
            active_at: context.worker.clock.tick(),
            alarm: alarm_after(context, ticks),
            sent: SentRequest { facts, at: context.worker.clock.date().unix_second() },
            reader: state.new_reader(request_info),
        });
        ControlFlow::Continue(state)
    }

    /// Forwards the part of the body that was received.
    pub(super) fn upload(
        &mut self,
        context: &mut RequestContext<'_>,
        mut state: Box<State>,
        part: Part<'_>,
    ) -> Box<State> {
        let Phase::Exchanging(transfer) = &mut state.phase else { return state };
        if !transfer.upload.is_sending() {
            return state;
        }
        transfer.active_at = context.worker.clock.tick();
        let out = context.reactor.send(transfer.upstream()).bytes();
        let is_chunked = state.request.is_chunked();
        match part {
            Part::Data(bytes) => {
                transfer.upload = Upload::Partial;
                if is_chunked {
                    chunk(out, bytes);
                } else {
                    out.extend_from_slice(bytes);
                }
            }
            Part::End { trailers } => {
                transfer.upload = Upload::Complete;
                if is_chunked && trailers.is_empty() {
                    out.extend_from_slice(LAST_CHUNK);
                } else if is_chunked {
                    out.extend_from_slice(b"0\r\n");
                    hop::put_trailers(out, Fields::new(trailers));
                    out.extend_from_slice(b"\r\n");
                }
            }
        }
        state
    }

    /// Handles the failure of the current attempt. Tries again if that is safe; otherwise answers the client
    /// from the cache or with an error.
    pub(super) fn fail(
        &mut self,
        context: &mut RequestContext<'_>,
        mut state: Box<State>,
        failure: Failure,
        response: &mut ResponseWriter<'_>,
    ) -> Progress {
        let attempt = self.release(context, &mut state);
        self.attempt_failed(context, state, attempt, failure, response)
    }

    /// Does the same as [`Proxy::fail`] after the phase has been ended.
    pub(super) fn attempt_failed(
        &mut self,
        context: &mut RequestContext<'_>,
        mut state: Box<State>,
        attempt: Attempt,
        mut failure: Failure,
        response: &mut ResponseWriter<'_>,
    ) -> Progress {
        if let Some(origin) = attempt.origin() {
            // A server that closes an idle connection may be healthy.
            if !attempt.is_stale() {
                state.attempts.avoid(origin);
                context
                    .worker
                    .counters
                    .add(Counter::OriginFailures, u64::from(failure.is_the_origins()));
                self.pool.failed(context.worker.clock.tick(), origin, failure);
            }
            let reported = state.attempts.add_failure(failure);
            let may_try = self.may_try_again(&state, &attempt, origin, failure);
            failure = reported;
            // The client of a background task needs no answer, but the cache still needs the response.
            let is_needed = !state.reply.has_begun() || state.awaits_response_in_background();
            if may_try && state.attempts.failed() < TRIES && is_needed {
                state.attempts.go_on_after(&attempt);
                context.worker.counters.add(Counter::OriginRetries, 1);
                return self.choose_origin(context, state, None, response);
            }
        }
        if self.answered_by_cache(context, &mut state, failure, response) {
            self.end(context, state);
            return ControlFlow::Break(Flow::Done);
        }
        if state.reply.has_begun() {
            self.end(context, state);
            return ControlFlow::Break(Flow::Cut);
        }
        if state.has_body_left(&attempt) {
            // The rest of the body may be long and would be discarded.
            context.close_after();
        }
        let mut fields = Vec::new();
        if let Some(cache) = &self.cache {
            cache.put_status_of_page(&state.cached, &mut fields);
        }
        let answer = failure.put(context, response, &self.name, fields);
        state.reply.complete(answer.status, answer.len);
        self.end(context, state);
        ControlFlow::Break(Flow::<Exchange>::Done)
    }

    /// Returns whether another attempt may succeed, and is safe.
    fn may_try_again(
        &self,
        state: &State,
        attempt: &Attempt,
        origin: u32,
        failure: Failure,
    ) -> bool {
        let (was_sent, is_reused) = match attempt {
            Attempt::Sent(sent) => (true, sent.is_reused),
            Attempt::Unsent { .. } | Attempt::None => (false, false),
        };
        let has_other = self.routes.count(state.request.route) > 1;
        match failure {
            Failure::TlsCertificate | Failure::TlsAlert(_) | Failure::TlsProtocol if was_sent => {
                state.can_be_resent(attempt) && (is_reused || has_other)
            }
            Failure::Connect(_)
            | Failure::TlsCertificate
            | Failure::TlsAlert(_)
            | Failure::TlsProtocol => {
                let is_address_left = state.attempts.unconnected() < self.pool.addresses(origin);
                (has_other || is_address_left) && failure.is_the_origins()
            }
            Failure::Name => has_other,
            Failure::Ended | Failure::Reply(_) => {
                state.can_be_resent(attempt) && (is_reused || has_other)
            }
            Failure::NameTimeout
            | Failure::NoCapacity
            | Failure::Silent
            | Failure::Request
            | Failure::NotTaken(_) => false,
        }
    }

    fn connect_ticks(&self) -> u32 {
        crate::time::clock::ticks(self.config.connect_timeout)
    }
}
