//! An origin's reply as the client gets it: a head of its own framing, and the content as it comes.

use super::{
    hop::{self, ConnectionOptions, TooManyLines},
    request::RequestFacts,
};
use crate::{service::RequestContext, transport::outbox::Outbox};
use pollux_http::{
    Status,
    fields::Fields,
    output::put_decimal,
    reply::{Content, ReplyHead},
    request::Version,
    response::{LAST_CHUNK, chunk},
};

/// What the client has got of the reply.
#[derive(Debug, Default)]
pub(super) struct Reply {
    /// Of the final reply; 0 until its head is written.
    pub(super) status: u16,
    /// Bytes of content.
    pub(super) sent: u64,
    /// An interim reply was passed on.
    pub(super) has_interim: bool,
    framing: Framing,
    trailers: bool,
}

/// How the client finds the end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Framing {
    /// There is no content.
    #[default]
    None,
    /// By the length.
    Length,
    /// By the last chunk.
    Chunked,
    /// By the connection's end: it speaks HTTP/1.0.
    Close,
}

impl Reply {
    /// The head is written.
    pub(super) fn has_begun(&self) -> bool {
        self.status != 0
    }

    /// Another answer has been given: it had this status, and so many bytes of content.
    pub(super) fn stands_for(&mut self, status: u16, len: u64) {
        (self.status, self.sent) = (status, len);
    }

    /// Another head has been written, of a content that has this length and begins with so many bytes.
    /// What comes follows them.
    pub(super) fn continues(&mut self, status: u16, len: u64) {
        self.stands_for(status, len);
        self.framing = Framing::Length;
    }

    /// Passes an interim reply on, to clients that know them.
    ///
    /// # Errors
    /// As [`ConnectionOptions::of`].
    pub(super) fn interim(
        &mut self,
        context: &RequestContext<'_>,
        outbox: &mut Outbox,
        head: &ReplyHead<'_>,
    ) -> Result<(), TooManyLines> {
        if context.keep_alive().version == Version::Http10 {
            return Ok(());
        }
        let named = ConnectionOptions::of(head.fields())?;
        let out = outbox.bytes();
        put_status(out, head.status);
        put_fields(out, head, &named, false);
        out.extend_from_slice(b"\r\n");
        self.has_interim = true;
        Ok(())
    }

    /// Writes the head, `lines` among its fields. `may_keep` says that the connection need not be
    /// closed for the request's sake.
    ///
    /// # Errors
    /// As [`ConnectionOptions::of`]; then nothing is written.
    pub(super) fn begin(
        &mut self,
        context: &mut RequestContext<'_>,
        outbox: &mut Outbox,
        head: &ReplyHead<'_>,
        passed: RequestFacts,
        is_head: bool,
        lines: &[u8],
    ) -> Result<(), TooManyLines> {
        let named = ConnectionOptions::of(head.fields())?;
        self.status = head.status;
        self.trailers = passed.trailers;
        self.framing = match (head.content, context.keep_alive().version) {
            (Content::None, _) => Framing::None,
            (Content::Length(_), _) => Framing::Length,
            (Content::Chunked | Content::UntilClose, Version::Http11) => Framing::Chunked,
            (Content::Chunked | Content::UntilClose, Version::Http10) => Framing::Close,
        };
        if self.framing == Framing::Close {
            context.close_after();
        }
        let out = outbox.bytes();
        put_status(out, head.status);
        // What a GET would have got, or has got before (RFC 9110 §8.6).
        let tells_length = head.content == Content::None && (is_head || head.status == 304);
        let has_date = put_fields(out, head, &named, tells_length);
        if !has_date {
            out.extend_from_slice(context.worker.clock.date().line());
        }
        out.extend_from_slice(lines);
        out.extend_from_slice(&context.rules.added_fields);
        match (self.framing, head.content) {
            (_, Content::Length(length)) => {
                out.extend_from_slice(b"Content-Length: ");
                put_decimal(out, length);
                out.extend_from_slice(b"\r\n");
            }
            (Framing::Chunked, _) => out.extend_from_slice(b"Transfer-Encoding: chunked\r\n"),
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

    /// Passes content on.
    pub(super) fn content(&mut self, outbox: &mut Outbox, bytes: &[u8]) {
        self.sent += bytes.len() as u64;
        match self.framing {
            Framing::None => self.sent = 0,
            Framing::Length | Framing::Close => outbox.bytes().extend_from_slice(bytes),
            Framing::Chunked => chunk(outbox.bytes(), bytes),
        }
    }

    /// The reply is whole.
    pub(super) fn end(&mut self, outbox: &mut Outbox, trailers: Fields<'_>) {
        if self.framing != Framing::Chunked {
            return;
        }
        let out = outbox.bytes();
        if self.trailers {
            out.extend_from_slice(b"0\r\n");
            hop::put_trailers(out, trailers);
            out.extend_from_slice(b"\r\n");
        } else {
            out.extend_from_slice(LAST_CHUNK);
        }
    }
}

/// The status line of a code that may be none of ours.
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

/// The fields that are for the client too. Returns whether `Date` is among them.
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
