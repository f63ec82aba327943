//! The response writer: a head, then data, then the end.
//!
//! The types enforce that order: [`ResponseWriter::head`] returns a [`HeadWriter`], finishing it returns a
//! [`BodyWriter`], and ending that returns the [`Flow`] for the caller. The protocol decides how the end of
//! the content is marked ([`Framing`]); a service never does.

mod forwarded;
mod prepared;
#[cfg(test)]
mod tests;

pub use prepared::PreparedHead;

use crate::{
    protocol::{ExchangeTerms, Flow, Framing},
    service::{RequestContext, worker_state::Answer},
    transport::outbox::{Content, Outbox},
};
use pollux_http::{
    Status,
    fields::Fields,
    response::{Head, SharedChunk},
};
use std::{cell::Cell, io::Write as _, ops::Range, os::fd::OwnedFd, rc::Rc, sync::Arc};

/// Writes the response of one exchange.
pub struct ResponseWriter<'a> {
    outbox: &'a mut Outbox,
    /// Shared with the [`RequestContext`] of the same call.
    terms: &'a Cell<ExchangeTerms>,
}

/// A position in the output, at which the head of a response may begin.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeadPosition((usize, usize));

impl<'a> ResponseWriter<'a> {
    #[inline]
    pub(crate) fn new(outbox: &'a mut Outbox, terms: &'a Cell<ExchangeTerms>) -> Self {
        Self { outbox, terms }
    }

    /// Begins a response. `Date` and the fields that the configuration adds to every response are
    /// written here; fields of this response follow.
    pub fn head(&mut self, context: &RequestContext<'_>, status: Status) -> HeadWriter<'_> {
        self.head_with(context, &context.rules.common_fields, status)
    }

    /// Begins a response as [`Self::head`] does, with these lines instead of the fields of every response.
    pub(crate) fn head_with(
        &mut self,
        context: &RequestContext<'_>,
        fields: &[u8],
        status: Status,
    ) -> HeadWriter<'_> {
        let Self { outbox, terms } = self;
        let _ = Head::new(outbox.bytes(), status).date(context.worker.clock.date()).lines(fields);
        HeadWriter { outbox, terms, status: status.code() }
    }

    /// Returns the writer of the content of a response whose head was written in an earlier call; `None` if
    /// no head was written.
    pub fn body(&mut self) -> Option<BodyWriter<'_>> {
        let has_begun = self.terms.get().framing != Framing::None;
        has_begun.then_some(BodyWriter { outbox: self.outbox, terms: self.terms })
    }

    /// Returns whether the output is so large that a service should stop writing. [`Event::Room`] is
    /// delivered when the output is low again.
    ///
    /// [`Event::Room`]: crate::service::Event::Room
    pub fn is_full(&self) -> bool {
        self.outbox.is_full()
    }

    /// Returns the present end of the output, for [`Self::add_fields`].
    pub(crate) fn position(&mut self) -> HeadPosition {
        HeadPosition(self.outbox.end())
    }

    /// Inserts field lines into the head that was written at this position, unless the head has one of the
    /// fields already. Returns whether there is a head.
    pub(crate) fn add_fields(&mut self, position: HeadPosition, lines: &[u8]) -> bool {
        let Some((bytes, start)) = self.outbox.bytes_since(position.0) else { return false };
        let head = bytes.get(start..).unwrap_or_default();
        let Some(line) = head.windows(2).position(|pair| pair == b"\r\n") else { return false };
        let section = &head[line + 2..];
        if Fields::new(section).any(|own| Fields::new(lines).any(|new| own.is(new.name))) {
            return true;
        }
        let at = start + line + 2;
        bytes.splice(at..at, lines.iter().copied());
        true
    }

    /// Returns the output itself, for tests of the layers below: their services write responses that are
    /// malformed, or have no head. Other services leave the framing to the writer.
    #[cfg(test)]
    pub(crate) fn raw(&mut self) -> &mut Outbox {
        self.outbox
    }

    /// Notes that such a service writes the head of a response with chunked content.
    #[cfg(test)]
    pub(crate) fn note_raw_head(&mut self) {
        begin_body(self.terms, 200, None);
    }
}

/// Stores the framing of the content of a response with this head. Returns the framing.
fn begin_body(terms: &Cell<ExchangeTerms>, status: u16, length: Option<u64>) -> Framing {
    let mut now = terms.get();
    now.begin_body(status, length);
    terms.set(now);
    now.framing
}

/// A head that is being written.
#[must_use = "a head has to be finished with `length`, `stream` or `empty`"]
pub struct HeadWriter<'a> {
    outbox: &'a mut Outbox,
    terms: &'a Cell<ExchangeTerms>,
    status: u16,
}

impl<'a> HeadWriter<'a> {
    /// Adds a field. Control characters in the value are written as spaces. The protocol writes the fields
    /// that frame the content (`Content-Length`, `Transfer-Encoding`, `Connection`): do not write them.
    pub fn field(self, name: &str, value: &[u8]) -> Self {
        let _ = Head::resume(self.outbox.bytes()).field(name, value);
        self
    }

    /// Adds prepared field lines, each with CRLF.
    pub fn lines(self, lines: &[u8]) -> Self {
        self.outbox.bytes().extend_from_slice(lines);
        self
    }

    /// Adds the field lines that `write` appends, each with CRLF.
    pub(crate) fn lines_by(self, write: impl FnOnce(&mut Vec<u8>)) -> Self {
        write(self.outbox.bytes());
        self
    }

    /// Ends a head whose content has this length in bytes. A response to HEAD has the same head but no
    /// content; data that is written later is dropped.
    pub fn length(self, length: u64) -> BodyWriter<'a> {
        self.finish(Some(length))
    }

    /// Ends a head whose content has no known length: a stream. On HTTP/1.1 the content is chunked; for an
    /// HTTP/1.0 client the connection is closed after it.
    pub fn stream(self) -> BodyWriter<'a> {
        self.finish(None)
    }

    /// Ends a response without content. If its status permits content, the head announces a length of 0.
    pub fn empty<X>(self) -> Flow<X> {
        self.finish(Some(0)).end()
    }

    /// Ends a response whose content is `bytes`. Returns the facts for the log.
    pub(crate) fn content(self, bytes: &[u8]) -> Answer {
        let status = self.status;
        let len = self.length(bytes.len() as u64).put(bytes);
        Answer { status, len }
    }

    fn finish(self, length: Option<u64>) -> BodyWriter<'a> {
        let Self { outbox, terms, status } = self;
        let framing = begin_body(terms, status, length);
        let mut head = Head::resume(outbox.bytes());
        match (framing, length) {
            (Framing::Chunked, _) => head = head.chunked(),
            (Framing::Length | Framing::NoContent, Some(length)) if has_length(status) => {
                head = head.content_length(length);
            }
            _ => {}
        }
        head.lines(terms.get().keep_alive.line()).end();
        BodyWriter { outbox, terms }
    }
}

/// Returns whether a response with this status announces the length of its content (RFC 9110 §8.6).
fn has_length(status: u16) -> bool {
    !matches!(status, 204 | 304) && status >= 200
}

/// The content of a response.
#[must_use = "content has to be ended with `end`, or continued later with `ResponseWriter::body`"]
pub struct BodyWriter<'a> {
    outbox: &'a mut Outbox,
    terms: &'a Cell<ExchangeTerms>,
}

impl BodyWriter<'_> {
    /// Appends bytes. Bytes beyond the length that the head announced are not sent.
    pub fn data(&mut self, bytes: &[u8]) {
        self.put(bytes);
    }

    /// Appends bytes as [`Self::data`] does. Returns the number of bytes that are sent.
    pub(crate) fn put(&mut self, bytes: &[u8]) -> u64 {
        let Some((framing, count)) = self.take(bytes.len() as u64) else { return 0 };
        let out = self.outbox.bytes();
        match framing {
            Framing::Chunked => pollux_http::response::chunk(out, bytes),
            _ => out.extend_from_slice(&bytes[..count as usize]),
        }
        count
    }

    /// Appends a range of bytes, which are sent from their present buffer without a copy.
    pub fn shared(&mut self, bytes: &Arc<[u8]>, range: Range<usize>) {
        let end = range.end.min(bytes.len());
        let start = range.start.min(end);
        self.piece(Content::Pooled(bytes.clone(), start..end));
    }

    /// Appends content that other connections send too, without a copy.
    pub fn chunk(&mut self, chunk: &SharedChunk) {
        let framing = self.terms.get().framing;
        let part = framing.part_of(chunk);
        match framing {
            Framing::Chunked => self.outbox.push(Content::Pooled(chunk.bytes().clone(), part)),
            _ => self.shared(chunk.bytes(), part),
        }
    }

    /// Appends a range of an open regular file. The file must keep its length: if it becomes shorter, the
    /// connection is closed before the response is complete.
    pub fn file(&mut self, file: &Rc<OwnedFd>, range: Range<u64>) {
        self.piece(Content::File(file.clone(), range));
    }

    /// Appends content that is sent without a copy. Returns the number of bytes that are sent.
    pub(crate) fn piece(&mut self, mut content: Content) -> u64 {
        let Some((framing, count)) = self.take(content.len()) else { return 0 };
        content.truncate(count);
        if framing == Framing::Chunked {
            // A write to a vector does not fail.
            let _ = write!(self.outbox.bytes(), "{count:x}\r\n");
        }
        self.outbox.push(content);
        if framing == Framing::Chunked {
            self.outbox.bytes().extend_from_slice(b"\r\n");
        }
        count
    }

    /// Returns whether the output is so large that a service should stop writing. [`Event::Room`] is
    /// delivered when the output is low again.
    ///
    /// [`Event::Room`]: crate::service::Event::Room
    pub fn is_full(&self) -> bool {
        self.outbox.is_full()
    }

    /// Ends the response. If less was written than the head announced, the connection is closed, so that the
    /// client does not consider the response complete.
    pub fn end<X>(self) -> Flow<X> {
        self.end_with_trailers(&[])
    }

    /// Ends the response with trailer fields. Only chunked content can have them; for other framings they are
    /// omitted (RFC 9110 §6.5.1).
    pub fn end_with_trailers<X>(self, trailers: &[(&str, &[u8])]) -> Flow<X> {
        self.end_by(|out| {
            for (name, value) in trailers {
                let _ = Head::resume(&mut *out).field(name, value);
            }
        })
    }

    /// Ends the response as [`Self::end_with_trailers`] does, with the trailer lines that `write` appends.
    pub(crate) fn end_by<X>(self, write: impl FnOnce(&mut Vec<u8>)) -> Flow<X> {
        let terms = self.terms.get();
        if terms.framing == Framing::Chunked {
            let out = self.outbox.bytes();
            out.extend_from_slice(b"0\r\n");
            write(out);
            out.extend_from_slice(b"\r\n");
        }
        match terms.framing {
            Framing::Length if terms.remaining > 0 => Flow::Cut,
            _ => Flow::Done,
        }
    }

    /// Returns the framing of content of this length, and the number of bytes to send; `None` if no bytes are
    /// sent.
    fn take(&mut self, length: u64) -> Option<(Framing, u64)> {
        let mut terms = self.terms.get();
        let count = match terms.framing {
            Framing::None | Framing::NoContent => 0,
            Framing::Length => length.min(terms.remaining),
            Framing::Chunked | Framing::Close => length,
        };
        if terms.framing == Framing::Length {
            terms.remaining -= count;
            self.terms.set(terms);
        }
        (count > 0).then_some((terms.framing, count))
    }
}
