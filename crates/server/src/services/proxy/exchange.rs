//! The state of a request while its response is fetched from an origin.
//!
//! Data of the whole request is in [`State`]. Data of one phase only, such as the connection to an origin, is
//! in the variant of [`Phase`], so that it cannot be used in another phase.

use super::{
    cache_state::{CacheState, Report},
    failure::Failure,
    reply::Reply,
    request::RequestFacts,
    routes::RouteId,
};
use crate::reactor::{AlarmId, EventTarget, Reactor, UpstreamId};
use crate::service::RequestContext;
use pollux_http::{
    reply::{Reader, RequestInfo},
    request::{Framing, Method, Request},
};
use std::{io::ErrorKind, path::Path, sync::Arc};

/// The maximum capacity in bytes of a buffer for a head, of a request or of a reply, that is kept for the
/// next exchange.
const REUSED_HEAD_MAX: usize = 4 << 10;

/// A request that is not answered yet.
#[derive(Debug)]
pub(crate) struct Exchange(pub(super) Box<State>);

/// Everything about the request and its answer. One allocation, reused for later requests.
#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) request: ClientRequest,
    pub(super) owner: Owner,
    pub(super) attempts: Attempts,
    pub(super) phase: Phase,
    pub(super) reply: Reply,
    pub(super) cached: CacheState,
    /// The memory of the last reader, for the next one.
    reader_buffer: Vec<u8>,
}

/// The request as the client sent it. It does not change while it is forwarded.
#[derive(Debug)]
pub(super) struct ClientRequest {
    /// The bytes of the head: the request may have to be sent later, or once more.
    pub(super) head: Vec<u8>,
    /// The length of the request line, at the beginning of the head.
    line_len: usize,
    pub(super) is_head: bool,
    /// Whether the request may be sent twice (RFC 9110 §9.2.2).
    is_idempotent: bool,
    /// Whether the client waits for `100 Continue` before it sends the body.
    pub(super) expects_continue: bool,
    framing: Framing,
    /// `Authorization` was meant for this server and is not forwarded.
    pub(super) hides_authorization: bool,
    pub(super) route: RouteId,
}

/// The client or the cache, for which the response is fetched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Owner {
    #[default]
    Client,
    /// A client that has closed its sending side: it may still read, or may have disconnected.
    HalfClosedClient,
    /// No client: the response is for the cache. The exchange ends at the tick `until` at the latest.
    Background { until: u32 },
}

/// The failed attempts to get a response from an origin.
#[derive(Debug, Default)]
pub(super) struct Attempts {
    failed: u8,
    /// The number of failed attempts that could not connect, each at another address of a name.
    unconnected: u8,
    /// The failure that is reported although no connection to a later address can be made: that of a TLS handshake, or of
    /// an address that did not answer in time.
    reported: Option<Failure>,
    /// The origins that have failed: the bit with an origin's number is set.
    failed_origins: u64,
    /// Whether a failed attempt had sent the request. The request is sent once more on a new connection, and
    /// not a third time.
    is_resent: bool,
}

/// The event for which the exchange waits.
#[derive(Debug, Default)]
pub(super) enum Phase {
    /// Nothing: the exchange is between two phases, or over.
    #[default]
    Idle,
    /// Another exchange is fetching the same resource for the cache.
    AwaitingFetch(AwaitedFetch),
    /// A connection has to become free.
    Queued(Wait),
    /// The origin's name is being resolved.
    Resolving(Wait),
    /// A connection to the origin is being made. The engine limits the time for it.
    Connecting { origin: u32, upstream: UpstreamId },
    /// The request has been sent, or is being sent.
    Exchanging(Transfer),
    /// The origin has switched to another protocol. The engine forwards in both directions.
    Tunnel { upstream: UpstreamId },
    /// The engine has the command to hand the client's connection to the process that listens at
    /// `receiver`.
    HandOver { receiver: Arc<Path> },
    /// Earlier replies have to be sent before the client's connection can be handed over. The alarm is for
    /// the next attempt.
    HandOverLater { receiver: Arc<Path>, alarm: AlarmId },
}

/// A fetch by another exchange, whose response may answer this request too.
#[derive(Clone, Copy, Debug)]
pub(super) struct AwaitedFetch {
    /// The number by which the cache knows this exchange.
    pub(super) number: u64,
    /// The tick at which the waiting ends in any case.
    pub(super) until: u32,
    pub(super) alarm: AlarmId,
}

/// An exchange that has chosen its origin and cannot connect to it yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wait {
    pub(super) origin: u32,
    /// Ends the wait.
    pub(super) alarm: AlarmId,
}

/// A connection on which a request can be sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct OriginConnection {
    pub(super) origin: u32,
    pub(super) upstream: UpstreamId,
    /// An earlier exchange has used the connection: the origin may have closed it by now.
    pub(super) is_reused: bool,
}

/// A request that is being sent, or was sent, to an origin, and the reply to it.
#[derive(Debug)]
pub(super) struct Transfer {
    pub(super) connection: OriginConnection,
    /// Whether the origin has sent any bytes.
    pub(super) has_received: bool,
    /// Reading from the origin is paused until the client has received the earlier part of the response.
    pub(super) is_paused: bool,
    pub(super) upload: Upload,
    /// The tick at which the origin last sent or accepted bytes.
    pub(super) active_at: u32,
    /// Limits how long the origin may be silent.
    pub(super) alarm: AlarmId,
    pub(super) sent: SentRequest,
    pub(super) reader: Reader,
}

/// The facts about the forwarded head that decide whether a reply is valid.
#[derive(Clone, Copy, Debug)]
pub(super) struct SentRequest {
    pub(super) facts: RequestFacts,
    /// The second (Unix time) at which it was sent.
    pub(super) at: u64,
}

/// The progress of sending the request's body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Upload {
    /// The request has no body.
    NoBody,
    /// The origin has not replied yet whether it wants the body.
    AwaitingContinue,
    /// The body is forwarded as it arrives. No part of it has been sent yet.
    Unsent,
    /// A part of the body has been sent.
    Partial,
    /// The whole body has been sent.
    Complete,
}

/// The progress of an exchange whose phase ended early.
#[derive(Clone, Copy, Debug)]
pub(super) enum Attempt {
    /// No origin had been chosen.
    None,
    /// The request had not been sent to this origin.
    Unsent { origin: u32 },
    /// The request had been sent, with none, a part or all of its body.
    Sent(SentAttempt),
}

/// The progress of a request that was sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct SentAttempt {
    pub(super) origin: u32,
    pub(super) is_reused: bool,
    pub(super) has_received: bool,
    pub(super) upload: Upload,
}

impl State {
    /// Begins an exchange, in the memory of a former one.
    pub(super) fn begin(
        &mut self,
        request: &Request<'_>,
        route: RouteId,
        hides_authorization: bool,
    ) {
        let mut head = std::mem::take(&mut self.request.head);
        head.clear();
        request.put_head(&mut head);
        *self = Self {
            request: ClientRequest {
                head,
                line_len: request.line.len(),
                is_head: request.method == Method::Head,
                is_idempotent: is_idempotent(request.method),
                expects_continue: request.expect_continue,
                framing: request.framing,
                hides_authorization,
                route,
            },
            reader_buffer: std::mem::take(&mut self.reader_buffer),
            ..Self::default()
        };
    }

    /// Takes the phase out, so that the next one can begin.
    pub(super) fn take_phase(&mut self) -> Phase {
        std::mem::take(&mut self.phase)
    }

    /// Returns a reader for the next reply, in the memory of the last one.
    pub(super) fn new_reader(&mut self, request_info: RequestInfo) -> Reader {
        let buffer = std::mem::take(&mut self.reader_buffer);
        let mut reader = Reader::with_buffer(Reader::LIMITS, buffer);
        reader.begin(request_info);
        reader
    }

    /// Ends a transfer. The caller keeps or closes its connection.
    pub(super) fn end_transfer(
        &mut self,
        reactor: &mut Reactor,
        transfer: Transfer,
    ) -> SentAttempt {
        reactor.cancel(transfer.alarm);
        self.reader_buffer = transfer.reader.into_buffer();
        let OriginConnection { origin, is_reused, .. } = transfer.connection;
        let Transfer { has_received, upload, .. } = transfer;
        SentAttempt { origin, is_reused, has_received, upload }
    }

    /// Returns whether the request may be sent to an origin once more after `attempt`: the method must be
    /// idempotent, no byte of the response may have arrived, and no byte of the body may have been sent.
    pub(super) fn can_be_resent(&self, attempt: &Attempt) -> bool {
        let was_used = match attempt {
            Attempt::Sent(sent) => sent.has_received || sent.upload.has_begun(),
            Attempt::Unsent { .. } | Attempt::None => false,
        };
        self.request.is_idempotent && !was_used && !self.attempts.is_resent
    }

    /// Returns whether, after `attempt` or the one before it, the client still sends a body that is not used.
    pub(super) fn has_body_left(&self, attempt: &Attempt) -> bool {
        self.request.has_body()
            && match attempt {
                Attempt::Sent(sent) => !sent.upload.is_done(),
                // A request is resent only if no part of its body has been sent.
                Attempt::Unsent { .. } | Attempt::None => self.attempts.is_resent,
            }
    }

    /// Returns whether this is a background task and no response has begun.
    pub(super) fn awaits_response_in_background(&self) -> bool {
        self.owner.is_background() && matches!(self.cached.report, Report::Due(_))
    }

    /// Returns whether its buffers are small enough to be kept.
    pub(super) fn is_small(&self) -> bool {
        self.request.head.capacity() <= REUSED_HEAD_MAX
            && self.reader_buffer.capacity() <= REUSED_HEAD_MAX
    }
}

impl Default for ClientRequest {
    fn default() -> Self {
        Self {
            head: Vec::new(),
            line_len: 0,
            is_head: false,
            is_idempotent: false,
            expects_continue: false,
            framing: Framing::None,
            hides_authorization: false,
            route: RouteId::default(),
        }
    }
}

impl ClientRequest {
    /// Returns the request line.
    pub(super) fn line(&self) -> &[u8] {
        &self.head[..self.line_len]
    }

    pub(super) fn has_body(&self) -> bool {
        self.framing != Framing::None
    }

    pub(super) fn is_chunked(&self) -> bool {
        self.framing == Framing::Chunked
    }

    /// Returns the state of the upload after the head has been sent.
    pub(super) fn upload(&self) -> Upload {
        match self.framing {
            Framing::None => Upload::NoBody,
            _ if self.expects_continue => Upload::AwaitingContinue,
            _ => Upload::Unsent,
        }
    }
}

impl Owner {
    pub(super) fn is_background(self) -> bool {
        matches!(self, Self::Background { .. })
    }
}

impl Attempts {
    /// Returns the origins that have failed: the bit with an origin's number is set.
    pub(super) fn failed_origins(&self) -> u64 {
        self.failed_origins
    }

    /// Returns whether a connection that an earlier exchange has used may be reused. The last attempt must
    /// not do so, because such a connection may be closed at any time.
    pub(super) fn may_reuse_connection(&self) -> bool {
        !self.is_resent
    }

    /// Counts an attempt that has failed. Returns the failure to report: an address that cannot be connected to does not
    /// hide that the TLS handshake failed at another one, or that another one did not answer in time.
    pub(super) fn add_failure(&mut self, failure: Failure) -> Failure {
        self.failed += 1;
        match failure {
            Failure::Connect(ErrorKind::TimedOut) => {
                self.unconnected += 1;
                *self.reported.get_or_insert(failure)
            }
            Failure::Connect(_) => {
                self.unconnected += 1;
                self.reported.unwrap_or(failure)
            }
            Failure::TlsCertificate | Failure::TlsAlert(_) | Failure::TlsProtocol => {
                self.unconnected += 1;
                self.reported = Some(failure);
                failure
            }
            _ => failure,
        }
    }

    /// Returns the number of attempts that have failed.
    pub(super) fn failed(&self) -> u8 {
        self.failed
    }

    /// Returns the number of attempts that could not connect.
    pub(super) fn unconnected(&self) -> usize {
        self.unconnected.into()
    }

    /// Prefers other origins from now on.
    pub(super) fn avoid(&mut self, origin: u32) {
        self.failed_origins |= 1 << origin;
    }

    /// Notes whether the request was sent in `attempt`, before another attempt begins.
    pub(super) fn go_on_after(&mut self, attempt: &Attempt) {
        self.is_resent |= matches!(attempt, Attempt::Sent(_));
    }
}

impl Phase {
    /// Returns the connection to an origin, if there is one.
    pub(super) fn upstream(&self) -> Option<UpstreamId> {
        match self {
            Self::Connecting { upstream, .. } | Self::Tunnel { upstream } => Some(*upstream),
            Self::Exchanging(transfer) => Some(transfer.connection.upstream),
            Self::Idle
            | Self::AwaitingFetch(_)
            | Self::Queued(_)
            | Self::Resolving(_)
            | Self::HandOver { .. }
            | Self::HandOverLater { .. } => None,
        }
    }

    /// Returns the alarm of this phase, if it has one.
    pub(super) fn alarm(&self) -> Option<AlarmId> {
        match self {
            Self::AwaitingFetch(fetch) => Some(fetch.alarm),
            Self::Queued(wait) | Self::Resolving(wait) => Some(wait.alarm),
            Self::Exchanging(transfer) => Some(transfer.alarm),
            Self::HandOverLater { alarm, .. } => Some(*alarm),
            Self::Idle | Self::Connecting { .. } | Self::Tunnel { .. } | Self::HandOver { .. } => {
                None
            }
        }
    }
}

impl Transfer {
    pub(super) fn upstream(&self) -> UpstreamId {
        self.connection.upstream
    }

    /// Replaces the alarm by a new one.
    pub(super) fn set_alarm(&mut self, context: &mut RequestContext<'_>, ticks: u32) {
        context.reactor.cancel(self.alarm);
        self.alarm = alarm_after(context, ticks);
    }
}

impl Upload {
    /// Returns whether the origin accepts the body now.
    pub(super) fn is_sending(self) -> bool {
        matches!(self, Self::Unsent | Self::Partial)
    }

    /// Returns whether a part of the body has been sent: the body cannot be sent twice.
    fn has_begun(self) -> bool {
        matches!(self, Self::Partial | Self::Complete)
    }

    /// Returns whether the whole request has been sent.
    pub(super) fn is_done(self) -> bool {
        matches!(self, Self::NoBody | Self::Complete)
    }
}

impl Attempt {
    /// Returns the origin that was chosen.
    pub(super) fn origin(&self) -> Option<u32> {
        match self {
            Self::None => None,
            Self::Unsent { origin } | Self::Sent(SentAttempt { origin, .. }) => Some(*origin),
        }
    }

    /// Returns whether the attempt probably failed because the origin had closed an idle connection.
    pub(super) fn is_stale(&self) -> bool {
        matches!(self, Self::Sent(sent) if sent.is_reused && !sent.has_received)
    }
}

/// Sets an alarm for the exchange of `context`.
pub(super) fn alarm_after(context: &mut RequestContext<'_>, ticks: u32) -> AlarmId {
    let to = EventTarget::Exchange(context.id());
    context.reactor.timer(ticks, to)
}

/// Returns whether a method is idempotent (RFC 9110 §9.2.2). An unknown method may have any effect.
fn is_idempotent(method: Method<'_>) -> bool {
    match method {
        Method::Get
        | Method::Head
        | Method::Options
        | Method::Trace
        | Method::Put
        | Method::Delete => true,
        Method::Post | Method::Patch | Method::Connect | Method::Other(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_connection_does_not_hide_a_failed_handshake() {
        let refused = Failure::Connect(ErrorKind::ConnectionRefused);
        let late = Failure::Connect(ErrorKind::TimedOut);
        let unreachable = Failure::Connect(ErrorKind::NetworkUnreachable);
        for (failures, reported, unconnected) in [
            (vec![refused], refused, 1),
            (vec![refused, Failure::TlsCertificate], Failure::TlsCertificate, 2),
            (vec![Failure::TlsCertificate, refused], Failure::TlsCertificate, 2),
            (vec![late, refused], late, 2),
            (vec![unreachable, late], late, 2),
            (vec![unreachable, refused], refused, 2),
            (vec![refused, late, refused], late, 3),
            (vec![Failure::TlsCertificate, late], Failure::TlsCertificate, 2),
            // `Ended` is not counted: that connection had been established.
            (vec![Failure::Ended, refused], refused, 1),
        ] {
            let mut attempts = Attempts::default();
            let last = failures.iter().map(|failure| attempts.add_failure(*failure)).last();
            assert_eq!(last, Some(reported), "{failures:?}");
            assert_eq!(usize::from(attempts.failed()), failures.len());
            assert_eq!(attempts.unconnected(), unconnected, "{failures:?}");
        }
    }
}
