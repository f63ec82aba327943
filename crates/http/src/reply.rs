//! Replies, for two kinds of client.
//!
//! A [`Reader`] returns fields and content, for a proxy that forwards them. It is strict, because
//! other recipients trust what it accepts. A [`Decoder`] checks and counts replies, for a load
//! generator. In a head it accepts what RFC 9112 permits a client to accept: LF alone as the end of a
//! line (§2.2), folded lines (§5.2), and white space before a colon (§5.1).
//!
//! Both reject an ambiguous length, although browsers accept some of these replies: `Content-Length`
//! beside `Transfer-Encoding`, which "ought to be handled as an error" (§6.3), `Transfer-Encoding` in
//! HTTP/1.0, and `Content-Length` that is given twice. Both require CRLF in chunks and trailers.
//!
//! A [`Decoder`] follows the replies of one connection through the bytes as they arrive, and counts
//! the content without storing it. A head that arrives complete, as nearly all do, is parsed in
//! place. The start of any other head is stored until the rest arrives.

mod head;
mod head_buffer;
mod reader;

use crate::{Limits, Reject, Status, body};
use head::{BodyEnd, Head};
use head_buffer::HeadBuffer;
pub use reader::{Content, Event, Next, ReadOutput, Reader, ReplyHead, RequestInfo};

/// The maximum number of interim replies (1xx) before a final one.
pub const MAX_INTERIM: u32 = 16;

/// The maximum number of fields in a header or trailer section. More than
/// [`limits::MAX_FIELDS`](crate::limits::MAX_FIELDS) cost an allocation.
pub const MAX_FIELDS: usize = 4096;

/// The limits of a decoder: a status line of 8 KiB, 256 KiB of fields, any body.
const LIMITS: Limits = Limits {
    request_line: 8 << 10,
    header_section: 256 << 10,
    fields: MAX_FIELDS,
    body: u64::MAX,
    chunk_line: 4 << 10,
    trailer_section: 64 << 10,
    https: false,
};

/// A complete reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The status code: 101 or 200 to 599. An invalid code up to 999 is to be treated as 5xx (RFC
    /// 9110 §15).
    pub status: u16,
    /// The length of the content in bytes, without chunk framing.
    pub body: u64,
    /// Whether another request may be sent on the connection.
    pub keep_alive: bool,
}

/// A reply that is not valid HTTP, or incomplete.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReplyError {
    /// The status line is invalid.
    #[error("the reply's status line is invalid")]
    StatusLine,
    /// The fields or chunks have invalid syntax or contradict each other, or the body or the trailers are too
    /// long.
    #[error("the reply is invalid: {0}")]
    Syntax(&'static str),
    /// The header section is longer than the limit, or has too many fields.
    #[error("the reply is invalid: {0}")]
    HeadTooLong(&'static str),
    /// More than [`MAX_INTERIM`] interim replies.
    #[error("more than {MAX_INTERIM} interim (1xx) replies to one request")]
    TooManyInterim,
    /// Bytes arrived while no reply was expected, or a 101 although no upgrade was requested.
    #[error("the server sent data without a request")]
    Unsolicited,
    /// The connection was closed before the reply began.
    #[error("the connection was closed before a reply began")]
    Empty,
    /// The connection was closed before the reply was complete.
    #[error("the connection was closed in the middle of a reply")]
    Truncated,
}

impl ReplyError {
    /// Returns the error for a fault of a header section.
    fn of_head(reject: Reject) -> Self {
        match reject.status {
            Status::FieldsTooLarge => Self::HeadTooLong(reject.reason),
            _ => Self::Syntax(reject.reason),
        }
    }
}

impl From<Reject> for ReplyError {
    fn from(reject: Reject) -> Self {
        Self::Syntax(reject.reason)
    }
}

/// The result of one call of [`Decoder::feed`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FeedOutput {
    /// The number of bytes that belong to the reply. Less than the input only if the reply is
    /// complete; the remaining bytes belong to the next reply or were unsolicited.
    pub consumed: usize,
    /// The reply, once it is complete.
    pub reply: Option<Reply>,
}

/// Reads the replies of one connection, one after the other.
///
/// ```
/// use pollux_http::reply::{Decoder, Reply};
///
/// let mut decoder = Decoder::new();
/// decoder.begin(false);
/// assert_eq!(decoder.feed(b"HTTP/1.1 200 OK\r\nContent-Le")?.reply, None);
/// let fed = decoder.feed(b"ngth: 2\r\n\r\nhi")?;
/// assert_eq!(fed.reply, Some(Reply { status: 200, body: 2, keep_alive: true }));
/// # Ok::<(), pollux_http::reply::ReplyError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Decoder {
    head: HeadBuffer,
    state: State,
    is_head_request: bool,
    interim: u32,
}

#[derive(Clone, Debug, Default)]
enum State {
    #[default]
    Head,
    Body {
        head: Head,
        body: u64,
        decoder: Option<body::Decoder>,
    },
    Done,
}

impl Decoder {
    /// Creates a decoder for a new connection.
    pub fn new() -> Self {
        Self::default()
    }

    /// Prepares for the reply to the next request. `is_head_request`: its method is HEAD, whose replies
    /// have no body, regardless of their fields (§6.3).
    pub fn begin(&mut self, is_head_request: bool) {
        self.head.clear();
        self.state = State::Head;
        self.is_head_request = is_head_request;
        self.interim = 0;
    }

    /// Processes the next bytes. After a complete reply it processes none until [`Decoder::begin`].
    ///
    /// # Errors
    /// [`ReplyError`]: the connection cannot be used any longer.
    pub fn feed(&mut self, bytes: &[u8]) -> Result<FeedOutput, ReplyError> {
        let mut consumed = 0;
        while let State::Head = self.state {
            let Some((head, len)) = self.feed_head(&bytes[consumed..])? else {
                return Ok(FeedOutput { consumed: bytes.len(), reply: None });
            };
            consumed += len;
            if head.is_interim() {
                self.interim += 1;
                if self.interim > MAX_INTERIM {
                    return Err(ReplyError::TooManyInterim);
                }
                continue;
            }
            let decoder = match head.body_end {
                BodyEnd::Framed(framing) => Some(body::Decoder::new(framing)),
                BodyEnd::Close => None,
            };
            self.state = State::Body { head, body: 0, decoder };
        }
        let (more, reply) = self.feed_body(&bytes[consumed..])?;
        Ok(FeedOutput { consumed: consumed + more, reply })
    }

    /// Reports that the peer closed the connection, which ends a reply that is delimited by it.
    ///
    /// # Errors
    /// [`ReplyError::Empty`] and [`ReplyError::Truncated`].
    pub fn finish(&mut self) -> Result<Reply, ReplyError> {
        match &self.state {
            State::Body { head, body, decoder: None } => {
                let reply = Reply { status: head.status, body: *body, keep_alive: false };
                self.state = State::Done;
                Ok(reply)
            }
            State::Head if self.head.is_empty() && self.interim == 0 => Err(ReplyError::Empty),
            State::Head | State::Body { .. } => Err(ReplyError::Truncated),
            State::Done => Err(ReplyError::Empty),
        }
    }

    /// Returns the head, and how many of `bytes` belong to it.
    #[inline]
    fn feed_head(&mut self, bytes: &[u8]) -> Result<Option<(Head, usize)>, ReplyError> {
        let before = self.head.len();
        let Some(head_bytes) = self.head.offer(bytes, LIMITS.head()) else { return Ok(None) };
        match Head::parse(head_bytes, self.is_head_request, &LIMITS)? {
            Some((head, len)) => {
                self.head.clear();
                Ok(Some((head, len - before)))
            }
            None => self.head.store(bytes, LIMITS.head()).map(|()| None),
        }
    }

    #[inline]
    fn feed_body(&mut self, bytes: &[u8]) -> Result<(usize, Option<Reply>), ReplyError> {
        let State::Body { head, body, decoder } = &mut self.state else { return Ok((0, None)) };
        let Some(decoder) = decoder else {
            *body += bytes.len() as u64;
            return Ok((bytes.len(), None));
        };
        let mut consumed = 0;
        while !decoder.is_done() {
            if consumed == bytes.len() {
                return Ok((consumed, None));
            }
            let step = decoder.decode(&bytes[consumed..], &LIMITS)?;
            *body += step.data.len() as u64;
            consumed += step.consumed;
        }
        let reply = Reply { status: head.status, body: *body, keep_alive: head.keep_alive };
        self.state = State::Done;
        Ok((consumed, Some(reply)))
    }
}
