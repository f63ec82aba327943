//! Replies, for two kinds of client.
//!
//! A [`Reader`] yields what a server sends, fields and content, for whoever passes it on: it is
//! strict, since what it lets through another one believes. A [`Decoder`] counts, for whoever measures
//! servers, and takes what a browser would take.
//!
//! A [`Decoder`] follows one connection's replies through the octets as they come, checks them,
//! and counts the content without keeping it. Heads that arrive whole, which is nearly all, are
//! read where they lie; of one that arrives in pieces the start is kept until the rest is there.

mod head;
mod head_buffer;
mod reader;

use crate::{Limits, Reject, body};
use head::{BodyEnd, Head};
use head_buffer::HeadBuffer;
pub use reader::{Content, Event, Next, ReadOutput, Reader, ReplyHead, RequestInfo};

/// The most interim replies (1xx) before a final one.
pub const MAX_INTERIM: u32 = 16;

/// The most fields of a header or trailer section. More than
/// [`limits::MAX_FIELDS`](crate::limits::MAX_FIELDS) cost an allocation.
pub const MAX_FIELDS: usize = 4096;

/// What is taken of a reply: a status line of 8 KiB, 256 KiB of fields, any body.
const LIMITS: Limits = Limits {
    request_line: 8 << 10,
    header_section: 256 << 10,
    fields: MAX_FIELDS,
    body: u64::MAX,
    chunk_line: 4 << 10,
    trailer_section: 64 << 10,
};

/// A whole reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The status code: 101 or 200 to 599, or what a server sends that is none, up to 999, which is
    /// to be taken for a 5xx (RFC 9110 §15).
    pub status: u16,
    /// Octets of content, without the framing of chunks.
    pub body: u64,
    /// Another request may be sent on the connection.
    pub keep_alive: bool,
}

/// A reply that is not HTTP, or not whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReplyError {
    /// The status line is not one.
    #[error("the reply's status line is invalid")]
    StatusLine,
    /// The fields or the chunks break the syntax, contradict each other or are too long.
    #[error("the reply is invalid: {0}")]
    Syntax(&'static str),
    /// More than [`MAX_INTERIM`] interim replies.
    #[error("more than {MAX_INTERIM} interim (1xx) replies to one request")]
    TooManyInterim,
    /// Octets came though no reply was awaited, or 101 though no upgrade was asked for.
    #[error("the server sent what nobody had asked for")]
    Unsolicited,
    /// The connection was closed before the reply began.
    #[error("the connection was closed before a reply")]
    Empty,
    /// The connection was closed before the reply was whole.
    #[error("the connection was closed in the middle of a reply")]
    Truncated,
}

impl From<Reject> for ReplyError {
    fn from(reject: Reject) -> Self {
        Self::Syntax(reject.reason)
    }
}

/// What one call of [`Decoder::feed`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FeedOutput {
    /// So many octets belong to the reply. Fewer than were given only when it is whole: what is
    /// left belongs to the next reply, or was sent unasked.
    pub consumed: usize,
    /// The reply, once it is whole.
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
    /// For a new connection.
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes ready for the reply to a request that was sent; `is_head_request` when its method was
    /// HEAD, whose replies have no body whatever their fields say (§6.3).
    pub fn begin(&mut self, is_head_request: bool) {
        self.head.clear();
        self.state = State::Head;
        self.is_head_request = is_head_request;
        self.interim = 0;
    }

    /// Takes the octets that came next. After the reply is whole it takes nothing until
    /// [`Decoder::begin`].
    ///
    /// # Errors
    /// [`ReplyError`]: the connection is of no more use.
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

    /// Tells that the peer closed the connection: the end of a reply that is delimited by it.
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

    /// The status of the reply that is being read, once its head is known.
    pub fn status(&self) -> Option<u16> {
        match &self.state {
            State::Body { head, .. } => Some(head.status),
            State::Head | State::Done => None,
        }
    }

    /// The head, and how many of `bytes` are part of it.
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
