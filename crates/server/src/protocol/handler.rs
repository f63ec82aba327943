//! What a connection passes to its service, and what the service returns.

use crate::services::policy::OriginNumber;
use crate::transport::outbox::Outbox;
use pollux_http::{
    Reject, Status,
    request::{Method, Request, Version},
};

/// How an exchange goes on: what the service returns from each call.
///
/// `X` is the state of an exchange that is not answered at once. It is handed over and handed back,
/// so that an exchange that is over has none.
#[derive(Debug)]
pub enum Flow<X> {
    /// The answer is whole. What has not come of the request's body is read past.
    Done,
    /// The request's body is wanted, or more of it.
    NeedBody(X),
    /// Something else is waited for. No more of the body is handed over until
    /// [`Flow::NeedBody`] is returned again, and no further request.
    Waiting(X),
    /// The answer has begun and cannot be finished: the connection ends after what there is of it,
    /// so that nobody takes it for whole.
    Cut,
}

impl<X> Flow<X> {
    /// The same with another state.
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

/// What has come of a request's body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part<'b> {
    /// Content; not empty.
    Data(&'b [u8]),
    /// The body is whole. The field lines of its trailer section, each with CRLF; none as a rule
    /// (RFC 9110 §6.5).
    End {
        /// Their bytes, for [`pollux_http::fields`].
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
    /// The head says how long it is.
    Length,
    /// It is chunked, and may have trailers.
    Chunked,
    /// The connection is closed after it.
    Close,
}

/// Whether the connection continues after a response, and which header announces it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeepAlive {
    /// The connection is kept.
    pub(crate) alive: bool,
    /// What the client speaks.
    pub(crate) version: Version,
}

impl KeepAlive {
    /// Closed after an answer to what is no request: the peer may speak anything.
    pub(crate) const CLOSE: Self = Self { alive: false, version: Version::Http11 };

    /// The `Connection` line where one is needed (RFC 9112 §9.3).
    #[inline]
    pub(crate) fn line(self) -> &'static [u8] {
        match (self.alive, self.version) {
            (true, Version::Http11) => b"",
            (true, Version::Http10) => b"Connection: keep-alive\r\n",
            (false, _) => b"Connection: close\r\n",
        }
    }
}

/// On which terms an exchange runs; kept for as long as it does.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ExchangeTerms {
    /// Bytes of content that are still to be written, where its length was announced.
    pub(crate) remaining: u64,
    /// Which of its connection's requests it answers, from 1.
    pub(crate) number: u32,
    /// When its head had come, in milliseconds of the worker's clock.
    pub(crate) begun_ms: u32,
    /// Whether the connection may be kept. The service may set `alive` to false before it
    /// writes the response's head, never to true.
    pub(crate) keep_alive: KeepAlive,
    /// How the content of the response is framed; `None` until its head is written.
    pub(crate) framing: Framing,
    /// Origins do not get the request's `Authorization`.
    pub(crate) hides_authorization: bool,
    /// The number of the origin, in the site's list, whose scripts may read the response; put into its head.
    pub(crate) allowed_origin: Option<OriginNumber>,
    /// The request is a HEAD: a refusal of its body has no content either.
    pub(super) is_head: bool,
    /// The client wants to go on, and may have sent more by now.
    pub(super) wants_more: bool,
    /// The client waits for `100 Continue`, which has not been sent.
    pub(super) expects_continue: bool,
}

impl ExchangeTerms {
    /// The head of the response is being written; its content has this length, if that is known.
    /// Chooses the framing (RFC 9112 §6.3), and closes the connection where only that can end it.
    pub(crate) fn begin_body(&mut self, status: Status, length: Option<u64>) {
        let has_no_content = self.is_head
            || status.code() < 200
            || matches!(status, Status::NoContent | Status::NotModified);
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

    /// Of an exchange that no client has requested.
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
}

/// The service.
pub(crate) trait Handler {
    /// The state of an exchange that is not answered at once.
    type Exchange;

    /// Whether connections may be kept at all: not while the server stops.
    fn keeps_connections(&self) -> bool;

    /// A request's head has come.
    fn head(
        &mut self,
        terms: &mut ExchangeTerms,
        request: &Request<'_>,
        outbox: &mut Outbox,
    ) -> Flow<Self::Exchange>;

    /// Some of the body that [`Flow::NeedBody`] requested.
    fn body(
        &mut self,
        terms: &mut ExchangeTerms,
        exchange: Self::Exchange,
        part: Part<'_>,
        outbox: &mut Outbox,
    ) -> Flow<Self::Exchange>;

    /// What came is no request, or none that is taken. To be answered with the status of `reject`;
    /// the connection is closed after it. `method` is the request's, as far as it is known.
    fn refused(&mut self, reject: &Reject, method: Method<'_>, outbox: &mut Outbox);

    /// The exchange has ended without an answer: the client has gone, or sent a malformed body.
    fn cancelled(&mut self, terms: &ExchangeTerms, exchange: Self::Exchange);
}
