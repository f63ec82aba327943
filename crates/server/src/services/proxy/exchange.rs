//! What is remembered of a request while an origin is asked.

use super::{caching::Cached, reply::Reply, request::Passed, routes::RouteId};
use crate::reactor::{AlarmId, LinkId};
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
    /// The octets of the request's head: it may have to be sent later, or once more.
    pub(super) head: Vec<u8>,
    /// The length of the request line.
    line: usize,
    pub(super) is_head: bool,
    /// It may be sent twice (RFC 9110 §9.2.2).
    pub(super) is_idempotent: bool,
    pub(super) expects_continue: bool,
    pub(super) framing: Framing,
    pub(super) route: RouteId,
    /// Who is asked, once that is chosen.
    pub(super) origin: Option<u32>,
    /// Origins that were asked in vain: a bit each.
    pub(super) tried: u64,
    pub(super) tries: u8,
    /// It was sent, and is sent once more: there is no third time, and no kept connection.
    pub(super) is_retried: bool,
    pub(super) step: Step,
    pub(super) link: Option<LinkId>,
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
    pub(super) stamp: u32,
    pub(super) passed: Passed,
    pub(super) reader: Reader,
    pub(super) reply: Reply,
    pub(super) cached: Cached,
    /// No client owns it, and it is over at this tick at the latest.
    pub(super) is_errand: bool,
    pub(super) until: u32,
}

/// How far it has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Somebody else asks for the same already.
    Wait,
    /// A connection has to become free.
    Place,
    /// The origin's name is being resolved.
    Name,
    /// A connection is being made.
    Dial,
    /// The request has been sent, or is being sent.
    Talk,
    /// It is a tunnel.
    Tunnel,
    /// The client is being handed over.
    HandOver,
}

/// How far the request's body is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Upload {
    /// The origin has not said yet whether it wants it.
    Asked,
    /// It is being sent.
    Going,
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
            route: RouteId::default(),
            origin: None,
            tried: 0,
            tries: 0,
            is_retried: false,
            step: Step::Place,
            link: None,
            is_reused: false,
            has_seen: false,
            is_paused: false,
            client_has_ended: false,
            upload: Upload::Done,
            has_uploaded: false,
            alarm: None,
            stamp: 0,
            passed: Passed::default(),
            reader: Reader::new(Reader::LIMITS),
            reply: Reply::default(),
            cached: Cached::default(),
            is_errand: false,
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
            stamp: now,
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
