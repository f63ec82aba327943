//! An origin's reply in the form for the client: a head with its own framing, and the content as it arrives.

use super::{
    hop::{self, ConnectionOptions, TooManyLines},
    request::RequestFacts,
};
use crate::service::{RequestContext, ResponseWriter};
use pollux_http::{
    Status,
    fields::Fields,
    output::put_decimal,
    reply::{Content, ReplyHead},
    request::Version,
    response::{LAST_CHUNK, chunk},
};

/// The status that is logged for a client that disconnected before it had a reply: the code that nginx uses.
const CLIENT_GONE: u16 = 499;

/// The progress of the reply to the client.
#[derive(Debug)]
pub(super) enum Reply {
    /// No final reply has begun.
    Pending {
        /// Whether an interim reply was forwarded.
        has_interim: bool,
    },
    /// The head is written, and the content that the origin sends follows it.
    Begun(BegunReply),
    /// The client has its complete reply, or has disconnected. Further bytes of the origin are not for this
    /// client.
    Complete(Outcome),
}

/// A reply whose content comes from the origin.
#[derive(Debug)]
pub(super) struct BegunReply {
    outcome: Outcome,
    framing: ReplyFraming,
    has_trailers: bool,
}

/// The facts about a reply for the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Outcome {
    pub(super) status: u16,
    /// The number of bytes of content.
    pub(super) sent: u64,
}

/// The way in which the client recognises the end of the content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReplyFraming {
    /// There is no content.
    None,
    /// By the length.
    Length,
    /// By the last chunk.
    Chunked,
    /// By the end of the connection: the client uses HTTP/1.0.
    Close,
}

impl Default for Reply {
    fn default() -> Self {
        Self::Pending { has_interim: false }
    }
}

impl Reply {
    /// Returns whether the head of a final reply is written.
    pub(super) fn has_begun(&self) -> bool {
        !matches!(self, Self::Pending { .. })
    }

    /// Returns whether the client needs no further bytes of the origin.
    pub(super) fn is_complete(&self) -> bool {
        matches!(self, Self::Complete(_))
    }

    /// Returns the status and the number of content bytes for the client so far.
    pub(super) fn outcome(&self) -> Outcome {
        match self {
            Self::Pending { .. } => Outcome { status: CLIENT_GONE, sent: 0 },
            Self::Begun(BegunReply { outcome, .. }) | Self::Complete(outcome) => *outcome,
        }
    }

    /// Notes that the client has received a complete reply that is not the origin's.
    pub(super) fn complete(&mut self, status: u16, sent: u64) {
        *self = Self::Complete(Outcome { status, sent });
    }

    /// Notes that the client receives no further bytes.
    pub(super) fn cut(&mut self) {
        *self = Self::Complete(self.outcome());
    }

    /// Notes that a head that is not the origin's and the first `sent` bytes of its content have been
    /// written. The origin sends the rest.
    pub(super) fn continues(&mut self, status: u16, sent: u64) {
        let outcome = Outcome { status, sent };
        *self =
            Self::Begun(BegunReply { outcome, framing: ReplyFraming::Length, has_trailers: false });
    }

    /// Forwards an interim reply to a client that supports such replies.
    ///
    /// # Errors
    /// The error of [`ConnectionOptions::of`].
    pub(super) fn interim(
        &mut self,
        context: &RequestContext<'_>,
        response: &mut ResponseWriter<'_>,
        head: &ReplyHead<'_>,
    ) -> Result<(), TooManyLines> {
        // After a complete reply, the client would read it as another reply.
        if self.is_complete() || context.keep_alive().version == Version::Http10 {
            return Ok(());
        }
        let named = ConnectionOptions::of(head.fields())?;
        let out = response.raw().bytes();
        put_status(out, head.status);
        put_fields(out, head, &named, false);
        out.extend_from_slice(b"\r\n");
        if let Self::Pending { has_interim } = self {
            *has_interim = true;
        }
        Ok(())
    }

    /// Writes the head, with `lines` among its fields.
    ///
    /// # Errors
    /// The error of [`ConnectionOptions::of`]; then nothing is written.
    pub(super) fn begin(
        &mut self,
        context: &mut RequestContext<'_>,
        response: &mut ResponseWriter<'_>,
        head: &ReplyHead<'_>,
        passed: RequestFacts,
        is_head: bool,
        lines: &[u8],
    ) -> Result<(), TooManyLines> {
        let named = ConnectionOptions::of(head.fields())?;
        let framing = match (head.content, context.keep_alive().version) {
            (Content::None, _) => ReplyFraming::None,
            (Content::Length(_), _) => ReplyFraming::Length,
            (Content::Chunked | Content::UntilClose, Version::Http11) => ReplyFraming::Chunked,
            (Content::Chunked | Content::UntilClose, Version::Http10) => ReplyFraming::Close,
        };
        *self = Self::Begun(BegunReply {
            outcome: Outcome { status: head.status, sent: 0 },
            framing,
            has_trailers: passed.trailers,
        });
        if framing == ReplyFraming::Close {
            context.close_after();
        }
        let out = response.raw().bytes();
        put_status(out, head.status);
        // The length of the content that a GET would get, or got before (RFC 9110 §8.6).
        let tells_length = head.content == Content::None && (is_head || head.status == 304);
        let has_date = put_fields(out, head, &named, tells_length);
        if !has_date {
            out.extend_from_slice(context.worker.clock.date().line());
        }
        out.extend_from_slice(lines);
        out.extend_from_slice(&context.rules.added_fields);
        match (framing, head.content) {
            (_, Content::Length(length)) => {
                out.extend_from_slice(b"Content-Length: ");
                put_decimal(out, length);
                out.extend_from_slice(b"\r\n");
            }
            (ReplyFraming::Chunked, _) => out.extend_from_slice(b"Transfer-Encoding: chunked\r\n"),
            _ => {}
        }
        if head.status == 101 {
            out.extend_from_slice(b"Connection: upgrade\r\n");
            for field in head.fields().filter(|field| field.is(b"upgrade")) {
                hop::put_line(out, field.name, field.value);
            }
        } else {
            out.extend_from_slice(context.keep_alive().line());
        }
        out.extend_from_slice(b"\r\n");
        Ok(())
    }

    /// Forwards content.
    pub(super) fn content(&mut self, response: &mut ResponseWriter<'_>, bytes: &[u8]) {
        let Self::Begun(BegunReply { outcome, framing, .. }) = self else { return };
        match framing {
            ReplyFraming::None => return,
            ReplyFraming::Length | ReplyFraming::Close => {
                response.raw().bytes().extend_from_slice(bytes)
            }
            ReplyFraming::Chunked => chunk(response.raw().bytes(), bytes),
        }
        outcome.sent += bytes.len() as u64;
    }

    /// Ends the reply after the origin's reply has ended.
    pub(super) fn end(&mut self, response: &mut ResponseWriter<'_>, trailers: Fields<'_>) {
        let Self::Begun(BegunReply { framing: ReplyFraming::Chunked, has_trailers, .. }) = self
        else {
            return;
        };
        let out = response.raw().bytes();
        if *has_trailers {
            out.extend_from_slice(b"0\r\n");
            hop::put_trailers(out, trailers);
            out.extend_from_slice(b"\r\n");
        } else {
            out.extend_from_slice(LAST_CHUNK);
        }
    }
}

/// Appends the status line of a code that need not be in [`Status::ALL`].
fn put_status(out: &mut Vec<u8>, code: u16) {
    match Status::ALL.iter().find(|status| status.code() == code) {
        Some(status) => out.extend_from_slice(status.line()),
        None => {
            out.extend_from_slice(b"HTTP/1.1 ");
            put_decimal(out, u64::from(code));
            out.extend_from_slice(b" \r\n");
        }
    }
}

/// Appends the fields that are forwarded to the client. Returns whether `Date` is among them.
fn put_fields(
    out: &mut Vec<u8>,
    head: &ReplyHead<'_>,
    named: &ConnectionOptions<'_>,
    tells_length: bool,
) -> bool {
    let mut has_date = false;
    for field in head.fields() {
        let is_passed = if hop::is_hop_by_hop(field.name) {
            tells_length && field.is(b"content-length")
        } else {
            !named.has(field.name)
        };
        if is_passed {
            has_date |= field.is(b"date");
            hop::put_line(out, field.name, field.value);
        }
    }
    has_date
}
