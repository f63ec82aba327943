//! The state of a request while its response is fetched from an origin.

use super::{caching::CacheState, reply::Reply, request::RequestFacts, routes::RouteId};
use crate::reactor::{AlarmId, UpstreamId};
use pollux_http::{
    reply::Reader,
    request::{Framing, Method, Request},
};

/// More memory than this for a head is not kept for the next exchange.
const KEPT_HEAD: usize = 4 << 10;

/// A request that is not answered yet.
#[derive(Debug)]
pub(crate) struct Exchange(pub(super) Box<State>);

/// What is known of it.
#[derive(Debug)]
pub(super) struct State {
    /// The bytes of the request's head: it may have to be sent later, or once more.
    pub(super) head: Vec<u8>,
    /// The length of the request line.
    line: usize,
    pub(super) is_head: bool,
    /// It may be sent twice (RFC 9110 §9.2.2).
    pub(super) is_idempotent: bool,
    pub(super) expects_continue: bool,
    pub(super) framing: Framing,
    /// Its `Authorization` was for this server.
    pub(super) hides_authorization: bool,
    pub(super) route: RouteId,
    /// The origin, once it is chosen.
    pub(super) origin: Option<u32>,
    /// Origins that were tried in vain: a bit each.
    pub(super) tried: u64,
    pub(super) tries: u8,
    /// It was sent, and is sent once more: there is no third time, and no kept connection.
    pub(super) is_retried: bool,
    pub(super) phase: ExchangePhase,
    pub(super) upstream: Option<UpstreamId>,
    /// The link was kept from another exchange: it may have been closed by now.
    pub(super) is_reused: bool,
    /// Something has come on the link.
    pub(super) has_seen: bool,
    /// Nothing more is received: the client has not taken what came.
    pub(super) is_paused: bool,
    pub(super) client_has_ended: bool,
    pub(super) upload: Upload,
    /// Something of the body has been sent: it cannot be sent twice.
    pub(super) has_uploaded: bool,
    pub(super) alarm: Option<AlarmId>,
    /// The tick at which the origin last did something.
    pub(super) active_at: u32,
    pub(super) passed: RequestFacts,
    pub(super) reader: Reader,
    pub(super) reply: Reply,
    pub(super) cached: CacheState,
    /// No client owns it, and it is over at this tick at the latest.
    pub(super) is_background: bool,
    pub(super) until: u32,
}

/// How far it has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ExchangePhase {
    /// Another request is already fetching the same resource.
    AwaitingFetch,
    /// A connection has to become free.
    Queued,
    /// The origin's name is being resolved.
    Resolving,
    /// A connection is being made.
    Connecting,
    /// The request has been sent, or is being sent.
    Exchanging,
    /// It is a tunnel.
    Tunnel,
    /// The client is being handed over.
    HandOver,
}

/// How far the request's body is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Upload {
    /// The origin has not answered yet whether it wants the body.
    AwaitingContinue,
    /// It is being sent.
    Sending,
    /// All of it is, or there is none.
    Done,
}

impl Default for State {
    fn default() -> Self {
        Self {
            head: Vec::new(),
            line: 0,
            is_head: false,
            is_idempotent: false,
            expects_continue: false,
            framing: Framing::None,
            hides_authorization: false,
            route: RouteId::default(),
            origin: None,
            tried: 0,
            tries: 0,
            is_retried: false,
            phase: ExchangePhase::Queued,
            upstream: None,
            is_reused: false,
            has_seen: false,
            is_paused: false,
            client_has_ended: false,
            upload: Upload::Done,
            has_uploaded: false,
            alarm: None,
            active_at: 0,
            passed: RequestFacts::default(),
            reader: Reader::new(Reader::LIMITS),
            reply: Reply::default(),
            cached: CacheState::default(),
            is_background: false,
            until: 0,
        }
    }
}

impl State {
    /// Begins an exchange, in the memory of a former one.
    pub(super) fn begin(&mut self, request: &Request<'_>, route: RouteId, now: u32) {
        let mut head = std::mem::take(&mut self.head);
        head.clear();
        request.put_head(&mut head);
        let reader = std::mem::replace(&mut self.reader, Reader::new(Reader::LIMITS));
        *self = Self {
            head,
            line: request.line.len(),
            is_head: request.method == Method::Head,
            is_idempotent: is_idempotent(request.method),
            expects_continue: request.expect_continue,
            framing: request.framing,
            route,
            active_at: now,
            reader,
            ..Self::default()
        };
    }

    /// The request line.
    pub(super) fn line(&self) -> &[u8] {
        &self.head[..self.line]
    }

    /// The method, as far as a page needs it.
    pub(super) fn method(&self) -> Method<'static> {
        if self.is_head { Method::Head } else { Method::Get }
    }

    /// Whether nothing of the body is needed any more: there is none, or nothing of it has been sent.
    pub(super) fn can_be_sent_again(&self) -> bool {
        self.is_idempotent && !self.has_uploaded && !self.has_seen && !self.is_retried
    }

    /// Whether its memory is worth keeping.
    pub(super) fn is_small(&self) -> bool {
        self.head.capacity() <= KEPT_HEAD && self.reader.buffered_bytes() == 0
    }
}

/// RFC 9110 §9.2.2. What is not known may do anything.
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
