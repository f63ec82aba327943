//! The data that a connection passes to its service, and that the service returns.

use crate::policy::OriginNumber;
use crate::transport::outbox::Outbox;
use pollux_http::{
    Reject,
    request::{Method, Request, Version},
    response::{LAST_CHUNK, SharedChunk},
};
use std::ops::Range;

/// The way in which an exchange continues. The service returns it from each call.
///
/// `X` is the state of an exchange that is not answered at once. The service returns it, and the
/// connection passes it to the next call. A finished exchange therefore has no state.
#[derive(Debug)]
pub enum Flow<X> {
    /// The response is complete. The rest of the request's body is read and discarded.
    Done,
    /// The service needs the request's body, or more of it.
    NeedBody(X),
    /// The service waits for something else. Until it returns [`Flow::NeedBody`] again, it gets
    /// neither more of the body nor another request of this connection.
    Waiting(X),
    /// The response has begun and cannot be completed. The connection is closed after the part that was
    /// written, so that no client treats it as complete.
    Cut,
}

impl<X> Flow<X> {
    /// Returns the same flow with another type of state.
    #[inline]
    pub(crate) fn map<Y>(self, change: impl FnOnce(X) -> Y) -> Flow<Y> {
        match self {
            Self::Done => Flow::Done,
            Self::NeedBody(state) => Flow::NeedBody(change(state)),
            Self::Waiting(state) => Flow::Waiting(change(state)),
            Self::Cut => Flow::Cut,
        }
    }
}

/// A part of a request's body, in the order in which it was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part<'b> {
    /// Content; not empty.
    Data(&'b [u8]),
    /// The body is complete.
    End {
        /// The field lines of the trailer section, each with CRLF, for [`pollux_http::fields`];
        /// usually empty (RFC 9110 §6.5).
        trailers: &'b [u8],
    },
}

/// How a client recognises the end of a response's content (RFC 9112 §6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Framing {
    /// The head is not written yet.
    None,
    /// There is no content: the request is a HEAD, or the status has none.
    NoContent,
    /// The head contains the length of the content.
    Length,
    /// The content is chunked, and may have trailers.
    Chunked,
    /// The content ends when the connection is closed.
    Close,
}

impl Framing {
    /// Returns the part of a shared chunk's bytes that a client receives.
    #[inline]
    pub(crate) fn part_of(self, chunk: &SharedChunk) -> Range<usize> {
        match self {
            Self::Chunked => 0..chunk.bytes().len(),
            _ => chunk.content_range(),
        }
    }

    /// Returns the bytes that end the content.
    pub(crate) fn last_bytes(self) -> &'static [u8] {
        match self {
            Self::Chunked => LAST_CHUNK,
            _ => b"",
        }
    }
}

/// Whether the connection continues after a response, and which header announces it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeepAlive {
    /// Whether the connection stays open.
    pub(crate) alive: bool,
    /// The HTTP version of the request.
    pub(crate) version: Version,
}

impl KeepAlive {
    /// The value for a response to input that is not a valid request; the connection is closed after it.
    /// The version of the client is unknown.
    pub(crate) const CLOSE: Self = Self { alive: false, version: Version::Http11 };

    /// Returns the `Connection` line; empty if the version implies it (RFC 9112 §9.3).
    #[inline]
    pub(crate) fn line(self) -> &'static [u8] {
        match (self.alive, self.version) {
            (true, Version::Http11) => b"",
            (true, Version::Http10) => b"Connection: keep-alive\r\n",
            (false, _) => b"Connection: close\r\n",
        }
    }
}

/// The properties of an exchange that the connection keeps until the exchange ends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ExchangeTerms {
    /// The number of content bytes still to be written, if the head contains the length.
    pub(crate) remaining: u64,
    /// The number of the request on its connection, from 1.
    pub(crate) number: u32,
    /// The time at which the request's head was complete, in milliseconds of the worker's clock.
    pub(crate) begun_ms: u32,
    /// Whether the connection may be kept. The service may set `alive` to false before it
    /// writes the response's head, never to true.
    pub(crate) keep_alive: KeepAlive,
    /// How the content of the response is framed; `None` until its head is written.
    pub(crate) framing: Framing,
    /// Whether origins do not receive the request's `Authorization`.
    pub(crate) hides_authorization: bool,
    /// The number of the origin, in the site's list, whose scripts may read the response; it is written
    /// into the response's head.
    pub(crate) allowed_origin: Option<OriginNumber>,
    /// Whether the request is a HEAD: its response has no content, nor has a refusal of its body.
    pub(crate) is_head: bool,
    /// Whether the client wants to keep the connection; it may already have sent another request.
    pub(super) wants_more: bool,
    /// Whether the client waits for `100 Continue`, which has not been sent.
    pub(super) expects_continue: bool,
}

impl ExchangeTerms {
    /// Chooses the framing of a response whose head is being written (RFC 9112 §6.3). `length` is the
    /// length of its content, if known. If only the end of the connection can mark the end of the content,
    /// the connection will be closed. It is also closed if the client still waits for `100 Continue`: nothing
    /// shows whether its body will follow (RFC 9110 §10.1.1), and the head has to say so (RFC 9112 §9.6).
    pub(crate) fn begin_body(&mut self, status: u16, length: Option<u64>) {
        if self.expects_continue {
            self.keep_alive.alive = false;
        }
        let has_no_content = self.is_head || status < 200 || matches!(status, 204 | 304);
        self.remaining = length.unwrap_or_default();
        self.framing = match (length, self.keep_alive.version) {
            (_, Version::Http10) if length.is_none() && !has_no_content => {
                self.keep_alive.alive = false;
                Framing::Close
            }
            _ if has_no_content => Framing::NoContent,
            (Some(_), _) => Framing::Length,
            (None, _) => Framing::Chunked,
        };
    }

    /// The value for a background exchange, which no client has requested.
    pub(crate) const NOBODYS: Self = Self {
        remaining: 0,
        number: 0,
        begun_ms: 0,
        framing: Framing::None,
        keep_alive: KeepAlive::CLOSE,
        hides_authorization: false,
        allowed_origin: None,
        is_head: false,
        wants_more: false,
        expects_continue: false,
    };

    /// Returns the terms of a refusal, after which the connection is closed.
    pub(crate) const fn of_refusal(is_head: bool, begun_ms: u32) -> Self {
        Self { is_head, begun_ms, ..Self::NOBODYS }
    }

    /// Notes that `100 Continue` has been written, so that the client no longer waits for it.
    pub(crate) fn end_wait_for_continue(&mut self) {
        self.expects_continue = false;
    }
}

/// The functions that a connection requires of its service.
pub(crate) trait Handler {
    /// The state of an exchange that is not answered at once.
    type Exchange;

    /// Returns whether connections may be kept alive; false while the server stops.
    fn keeps_connections(&self) -> bool;

    /// Handles the head of a request.
    fn head(
        &mut self,
        terms: &mut ExchangeTerms,
        request: &Request<'_>,
        outbox: &mut Outbox,
    ) -> Flow<Self::Exchange>;

    /// Handles a part of the body, after [`Flow::NeedBody`].
    fn body(
        &mut self,
        terms: &mut ExchangeTerms,
        exchange: Self::Exchange,
        part: Part<'_>,
        outbox: &mut Outbox,
    ) -> Flow<Self::Exchange>;

    /// Answers input that is not a valid request, or a request that is refused, with the status of
    /// `reject`. The connection is closed afterwards. `method` is that of the request, if known. `head` is the
    /// input from the beginning of the request on; it is empty if the body is refused.
    fn refused(&mut self, reject: &Reject, method: Method<'_>, head: &[u8], outbox: &mut Outbox);

    /// Releases an exchange that ends without a response, because the client has closed the
    /// connection or has sent a malformed body.
    fn cancelled(&mut self, terms: &ExchangeTerms, exchange: Self::Exchange);
}
