//! Heads that are prepared once and written many times.

use super::{BodyWriter, ResponseWriter, begin_body, has_length};
use crate::{
    protocol::KeepAlive,
    service::{RequestContext, worker_state::Answer},
    transport::outbox::SharedBytes,
};
use pollux_http::{Status, date::DateCache, response::Head};
use std::{ops::Range, sync::Arc};

/// A head that is prepared once and written many times, such as that of a file.
#[derive(Clone, Debug)]
pub struct PreparedHead {
    /// The head, and behind it the prepared content.
    wire: Arc<[u8]>,
    /// The offset of the Date line.
    date: usize,
    /// The range of the fields of every response.
    common: Range<usize>,
    /// The range of the fields of this response alone.
    fields: Range<usize>,
    /// The offset after the last field.
    end: usize,
    status: u16,
    length: u64,
}

impl PreparedHead {
    /// Prepares the head of a response whose content has `length` bytes. `lines` are its fields, each with
    /// CRLF. `Date`, the configured fields and `Content-Length` are added.
    pub fn new(context: &RequestContext<'_>, status: Status, lines: &[u8], length: u64) -> Self {
        Self::prepare(&context.rules.common_fields, status, lines, length, &[])
    }

    /// Prepares a head with these fields of every response. `content` is the content if one copy is to write
    /// it together with the head, or empty if the content follows in another way.
    pub(crate) fn prepare(
        common_fields: &[u8],
        status: Status,
        lines: &[u8],
        length: u64,
        content: &[u8],
    ) -> Self {
        debug_assert!(content.is_empty() || content.len() as u64 == length);
        // Each response replaces the date, whose line always has the same length.
        let date = DateCache::new(0);
        let mut wire = Vec::with_capacity(512 + content.len());
        let _ = Head::new(&mut wire, status);
        let date_at = wire.len();
        let _ = Head::resume(&mut wire).date(&date).lines(common_fields);
        let start = wire.len();
        let head = Head::resume(&mut wire).lines(lines);
        if has_length(status.code()) {
            let _ = head.content_length(length);
        }
        let end = wire.len();
        wire.extend_from_slice(b"\r\n");
        wire.extend_from_slice(content);
        Self {
            wire: wire.into(),
            date: date_at,
            common: start - common_fields.len()..start,
            fields: start..start + lines.len(),
            end,
            status: status.code(),
            length,
        }
    }

    /// Returns the length of the content in bytes.
    #[inline]
    pub(crate) fn length(&self) -> u64 {
        self.length
    }

    /// Returns the fields of every response, as they were when this head was prepared: lines with CRLF.
    pub(crate) fn common_fields(&self) -> &[u8] {
        &self.wire[self.common.clone()]
    }

    /// Returns the fields of this response, without those of every response: lines with CRLF.
    pub(crate) fn fields(&self) -> &[u8] {
        &self.wire[self.fields.clone()]
    }

    /// Returns the bytes with the prepared content, and the offset at which it begins.
    pub(crate) fn content(&self) -> (&Arc<[u8]>, usize) {
        (&self.wire, self.end + 2)
    }

    /// Returns the bytes with the prepared content, for pieces of an outbox.
    pub(crate) fn shared_bytes(&self) -> SharedBytes {
        self.wire.clone().into()
    }

    /// Returns the number of bytes of the head and of the prepared content.
    pub(crate) fn wire_bytes(&self) -> u64 {
        self.wire.len() as u64
    }

    /// Appends the first `end` bytes, with this date and with the fields of this connection.
    #[inline]
    fn put(&self, out: &mut Vec<u8>, end: usize, date: &DateCache, keep: KeepAlive) {
        let date_at = out.len() + self.date;
        let line = keep.line();
        if line.is_empty() {
            out.extend_from_slice(&self.wire[..end]);
        } else {
            out.extend_from_slice(&self.wire[..self.end]);
            out.extend_from_slice(line);
            out.extend_from_slice(&self.wire[self.end..end]);
        }
        let date_line = date.line();
        out[date_at..date_at + date_line.len()].copy_from_slice(date_line);
    }
}

impl ResponseWriter<'_> {
    /// Begins a response with a head that was prepared earlier: only its date is filled in, and nothing is
    /// formatted.
    pub fn prepared(
        &mut self,
        context: &RequestContext<'_>,
        head: &PreparedHead,
    ) -> BodyWriter<'_> {
        let Self { outbox, terms } = self;
        let date = context.worker.clock.date();
        // Before the head is written, because `begin_body` may decide that the connection ends.
        begin_body(terms, head.status, Some(head.length));
        head.put(outbox.bytes(), head.end + 2, date, terms.get().keep_alive);
        BodyWriter { outbox, terms }
    }

    /// Writes a response whose content is prepared together with its head. Returns the facts for the log.
    ///
    /// This is the path of most requests for files. The response is complete, so the state of its content is
    /// not stored.
    #[inline]
    pub(crate) fn prepared_whole(
        &mut self,
        context: &RequestContext<'_>,
        head: &PreparedHead,
    ) -> Answer {
        let terms = self.terms.get();
        let (end, len) =
            if terms.is_head { (head.end + 2, 0) } else { (head.wire.len(), head.length) };
        head.put(self.outbox.bytes(), end, context.worker.clock.date(), terms.keep_alive);
        Answer { status: head.status, len }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pollux_http::request::Version;

    #[test]
    fn each_response_has_its_own_date_and_connection() {
        let lines = b"ETag: \"1\"\r\n";
        let prepare =
            |content| PreparedHead::prepare(b"Server: test\r\n", Status::Ok, lines, 4, content);
        let head = "HTTP/1.1 200 OK\r\nDate: Sun, 06 Nov 1994 08:49:37 GMT\r\nServer: test\r\n\
                    ETag: \"1\"\r\nContent-Length: 4\r\n";
        let date = DateCache::new(784_111_777);
        let keep = KeepAlive { alive: true, version: Version::Http11 };
        let close = KeepAlive { alive: false, version: Version::Http11 };
        let keep_old = KeepAlive { alive: true, version: Version::Http10 };
        for content in [&b"body"[..], b""] {
            let prepared = prepare(content);
            let (bytes, start) = prepared.content();
            assert_eq!((&bytes[start..], prepared.fields()), (content, &lines[..]));
            for (keep, line) in [
                (keep, ""),
                (close, "Connection: close\r\n"),
                (keep_old, "Connection: keep-alive\r\n"),
            ] {
                for (end, content) in [(start, &b""[..]), (bytes.len(), content)] {
                    let mut out = b"before".to_vec();
                    prepared.put(&mut out, end, &date, keep);
                    let content = str::from_utf8(content).unwrap();
                    let expected = format!("before{head}{line}\r\n{content}");
                    assert_eq!(String::from_utf8(out).unwrap(), expected);
                }
            }
        }
        let empty = PreparedHead::prepare(b"", Status::NoContent, lines, 0, b"");
        assert!(!empty.wire.windows(8).any(|part| part == b"Content-"), "{empty:?}");
    }
}
