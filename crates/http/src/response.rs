//! Writes response heads to the caller's buffer, without the formatting machinery of `std::fmt`.

use crate::{
    Status,
    date::DateCache,
    output::{Output, put_decimal},
    range::ByteRange,
    request::Version,
};
use std::{ops::Range, sync::Arc};

/// A response head under construction: status line, fields, then [`Head::end`].
///
/// ```
/// use pollux_http::{Status, date::DateCache, request::Version, response::Head};
///
/// let date = DateCache::new(784_111_777);
/// let mut out = Vec::new();
/// Head::new(&mut out, Status::Ok)
///     .date(&date)
///     .field("Content-Type", b"text/plain")
///     .content_length(5)
///     .connection(true, Version::Http11)
///     .end();
/// assert_eq!(
///     out,
///     b"HTTP/1.1 200 OK\r\nDate: Sun, 06 Nov 1994 08:49:37 GMT\r\n\
///       Content-Type: text/plain\r\nContent-Length: 5\r\n\r\n",
/// );
/// ```
#[derive(Debug)]
#[must_use = "a head without its empty line never ends"]
pub struct Head<'o, O> {
    out: &'o mut O,
}

impl<'o, O: Output> Head<'o, O> {
    /// Writes the status line.
    #[inline]
    pub fn new(out: &'o mut O, status: Status) -> Self {
        out.put(status.line());
        Self { out }
    }

    /// Continues a head whose status line, and perhaps some fields, are already written.
    #[inline]
    pub fn resume(out: &'o mut O) -> Self {
        Self { out }
    }

    /// `Date`.
    #[inline]
    pub fn date(self, date: &DateCache) -> Self {
        self.lines(date.line())
    }

    /// Prepared field lines, each with its CRLF.
    #[inline]
    pub fn lines(self, lines: &[u8]) -> Self {
        debug_assert!(lines.is_empty() || lines.ends_with(b"\r\n"));
        self.out.put(lines);
        self
    }

    /// A field. Control characters in the value become spaces (RFC 9110 §5.5): a value from a
    /// peer can neither start another line nor make a recipient refuse the response.
    #[inline]
    pub fn field(self, name: &str, value: &[u8]) -> Self {
        self.out.put(name.as_bytes());
        self.out.put(b": ");
        put_value(self.out, value);
        self.out.put(b"\r\n");
        self
    }

    /// A field with a numeric value.
    #[inline]
    pub fn number(self, name: &str, value: u64) -> Self {
        self.out.put(name.as_bytes());
        self.out.put(b": ");
        put_decimal(self.out, value);
        self.out.put(b"\r\n");
        self
    }

    /// `Content-Length`.
    #[inline]
    pub fn content_length(self, length: u64) -> Self {
        self.out.put(b"Content-Length: ");
        put_decimal(self.out, length);
        self.out.put(b"\r\n");
        self
    }

    /// `Transfer-Encoding: chunked`, for a body of unknown length; see [`chunk`].
    #[inline]
    pub fn chunked(self) -> Self {
        self.lines(b"Transfer-Encoding: chunked\r\n")
    }

    /// `Content-Range` for a part of a representation of `size` bytes (RFC 9110 §14.4).
    pub fn content_range(self, range: ByteRange, size: u64) -> Self {
        put_content_range(self.out, range, size);
        self
    }

    /// `ETag`.
    pub fn etag(self, tag: &crate::etag::ETag<'_>) -> Self {
        self.out.put(b"ETag: ");
        tag.write(self.out);
        self.out.put(b"\r\n");
        self
    }

    /// `Connection`, if it differs from the default of the peer's version: `close` always,
    /// `keep-alive` for an HTTP/1.0 peer (RFC 9112 §9.3).
    #[inline]
    pub fn connection(self, keep_alive: bool, version: Version) -> Self {
        match (keep_alive, version) {
            (true, Version::Http11) => self,
            (true, Version::Http10) => self.lines(b"Connection: keep-alive\r\n"),
            (false, _) => self.lines(b"Connection: close\r\n"),
        }
    }

    /// The empty line. The body follows.
    #[inline]
    pub fn end(self) {
        self.out.put(b"\r\n");
    }
}

/// Appends `HTTP/1.1 STATUS REASON CRLF`. The reason phrase is that of RFC 9110 §15, if it has one.
pub fn put_status_line(out: &mut impl Output, status: u16) {
    if let Some(known) = Status::ALL.iter().find(|known| known.code() == status) {
        return out.put(known.line());
    }
    let forwarded = FORWARDED.iter().find(|(code, _)| *code == status);
    out.put(b"HTTP/1.1 ");
    put_decimal(out, status.into());
    out.put(b" ");
    out.put(forwarded.map_or("", |&(_, reason)| reason).as_bytes());
    out.put(b"\r\n");
}

/// The reason phrases of registered statuses that are never Pollux's own.
const FORWARDED: [(u16, &str); 25] = [
    (101, "Switching Protocols"),
    (102, "Processing"),
    (103, "Early Hints"),
    (203, "Non-Authoritative Information"),
    (205, "Reset Content"),
    (207, "Multi-Status"),
    (208, "Already Reported"),
    (226, "IM Used"),
    (300, "Multiple Choices"),
    (305, "Use Proxy"),
    (402, "Payment Required"),
    (407, "Proxy Authentication Required"),
    (409, "Conflict"),
    (410, "Gone"),
    (422, "Unprocessable Content"),
    (423, "Locked"),
    (424, "Failed Dependency"),
    (425, "Too Early"),
    (428, "Precondition Required"),
    (451, "Unavailable For Legal Reasons"),
    (506, "Variant Also Negotiates"),
    (507, "Insufficient Storage"),
    (508, "Loop Detected"),
    (510, "Not Extended"),
    (511, "Network Authentication Required"),
];

/// `HTTP/1.1 100 Continue` with its empty line, for a request with
/// [`expect_continue`](crate::request::Request::expect_continue) whose body is to be read.
pub const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

#[inline]
fn put_value(out: &mut impl Output, value: &[u8]) {
    let mut rest = value;
    while let Some(bad) = rest.iter().position(|b| b.is_ascii_control() && *b != b'\t') {
        out.put(&rest[..bad]);
        out.put(b" ");
        rest = &rest[bad + 1..];
    }
    out.put(rest);
}

/// Appends `Content-Range: bytes FIRST-LAST/SIZE CRLF`.
pub fn put_content_range(out: &mut impl Output, range: ByteRange, size: u64) {
    out.put(b"Content-Range: bytes ");
    put_decimal(out, range.first);
    out.put(b"-");
    put_decimal(out, range.last);
    out.put(b"/");
    put_decimal(out, size);
    out.put(b"\r\n");
}

/// Appends `content` as one chunk (RFC 9112 §7.1). Empty content appends nothing, because an empty
/// chunk would be the last one; see [`LAST_CHUNK`].
pub fn chunk(out: &mut impl Output, content: &[u8]) {
    if content.is_empty() {
        return;
    }
    let mut digits = [0; 16];
    let mut start = digits.len();
    let mut left = content.len();
    while left > 0 {
        start -= 1;
        digits[start] = b"0123456789abcdef"[left & 15];
        left >>= 4;
    }
    out.put(&digits[start..]);
    out.put(b"\r\n");
    out.put(content);
    out.put(b"\r\n");
}

/// Content that many connections send, each as one chunk (RFC 9112 §7.1). The framing is encoded once, around
/// the content.
///
/// ```
/// use pollux_http::response::SharedChunk;
///
/// let chunk = SharedChunk::new(b"data: 1\n\n");
/// assert_eq!(&chunk.bytes()[..], b"9\r\ndata: 1\n\n\r\n");
/// assert_eq!(chunk.content(), b"data: 1\n\n");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedChunk {
    bytes: Arc<[u8]>,
    /// The offset of the content.
    start: u32,
}

impl SharedChunk {
    /// Encodes content. The chunk of empty content has no bytes, because an empty chunk would be the last
    /// one.
    #[must_use]
    pub fn new(content: &[u8]) -> Self {
        const END: usize = 2;
        let mut bytes = Vec::with_capacity(content.len() + 2 * END + 16);
        chunk(&mut bytes, content);
        let start = bytes.len().saturating_sub(content.len() + END);
        // A size has at most 16 digits.
        Self { bytes: bytes.into(), start: start as u32 }
    }

    /// Returns the content.
    #[must_use]
    pub fn content(&self) -> &[u8] {
        &self.bytes[self.content_range()]
    }

    /// Returns the range of the content within the [bytes](Self::bytes), for a connection that uses another
    /// framing.
    #[inline]
    #[must_use]
    pub fn content_range(&self) -> Range<usize> {
        self.start as usize..self.bytes.len().saturating_sub(2)
    }

    /// Returns the whole chunk.
    #[inline]
    #[must_use]
    pub fn bytes(&self) -> &Arc<[u8]> {
        &self.bytes
    }
}

/// The last chunk and an empty trailer section.
pub const LAST_CHUNK: &[u8] = b"0\r\n\r\n";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{etag::ETag, output::FixedBuffer};

    fn written(write: impl FnOnce(Head<'_, Vec<u8>>) -> Head<'_, Vec<u8>>) -> String {
        let mut out = Vec::new();
        write(Head::new(&mut out, Status::Ok)).end();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn each_field_has_its_line() {
        let range = ByteRange { first: 0, last: 499 };
        for (head, line) in [
            (written(|h| h.content_length(u64::MAX)), "Content-Length: 18446744073709551615\r\n"),
            (written(|h| h.content_length(0)), "Content-Length: 0\r\n"),
            (written(|h| h.number("Age", 7)), "Age: 7\r\n"),
            (written(|h| h.content_range(range, 1234)), "Content-Range: bytes 0-499/1234\r\n"),
            (written(|h| h.etag(&ETag { weak: true, opaque: b"x" })), "ETag: W/\"x\"\r\n"),
            (written(|h| h.chunked()), "Transfer-Encoding: chunked\r\n"),
            (written(|h| h.connection(true, Version::Http11)), ""),
            (written(|h| h.connection(true, Version::Http10)), "Connection: keep-alive\r\n"),
            (written(|h| h.connection(false, Version::Http10)), "Connection: close\r\n"),
            (written(|h| h.connection(false, Version::Http11)), "Connection: close\r\n"),
        ] {
            assert_eq!(head, format!("HTTP/1.1 200 OK\r\n{line}\r\n"));
        }
    }

    #[test]
    fn a_forwarded_status_has_its_registered_reason_phrase() {
        for (status, line) in [
            (101, "HTTP/1.1 101 Switching Protocols\r\n"),
            (103, "HTTP/1.1 103 Early Hints\r\n"),
            (207, "HTTP/1.1 207 Multi-Status\r\n"),
            (404, "HTTP/1.1 404 Not Found\r\n"),
            (410, "HTTP/1.1 410 Gone\r\n"),
            (299, "HTTP/1.1 299 \r\n"),
        ] {
            let mut out = Vec::new();
            put_status_line(&mut out, status);
            assert_eq!(String::from_utf8(out).unwrap(), line);
        }
        let is_own = |code: &u16| Status::ALL.iter().any(|status| status.code() == *code);
        assert!(!FORWARDED.iter().any(|(code, _)| is_own(code)), "a phrase is in one table");
    }

    #[test]
    fn a_value_cannot_begin_another_line() {
        assert_eq!(
            written(|h| h.field("X-A", b"\x1b[1m\tcaf\xc3\xa9 \x01\x7f")),
            "HTTP/1.1 200 OK\r\nX-A:  [1m\tcaf\u{e9}   \r\n\r\n"
        );
        assert_eq!(
            written(|h| h.field("Location", b"/a\r\nSet-Cookie: b\0\n")),
            "HTTP/1.1 200 OK\r\nLocation: /a  Set-Cookie: b  \r\n\r\n"
        );
    }

    #[test]
    fn a_head_that_does_not_fit_is_detected() {
        let mut whole = Vec::new();
        Head::new(&mut whole, Status::NotFound).content_length(10).end();
        for room in 0..whole.len() + 3 {
            let mut buffer = vec![0; room];
            let mut out = FixedBuffer::new(&mut buffer);
            Head::new(&mut out, Status::NotFound).content_length(10).end();
            assert_eq!(out.written(), (room >= whole.len()).then_some(&whole[..]), "{room}");
        }
    }

    #[test]
    fn chunks_of_rfc_9112_7_1() {
        let mut out = Vec::new();
        chunk(&mut out, b"");
        chunk(&mut out, &[b'x'; 26]);
        chunk(&mut out, b"y");
        out.extend_from_slice(LAST_CHUNK);
        assert_eq!(out, b"1a\r\nxxxxxxxxxxxxxxxxxxxxxxxxxx\r\n1\r\ny\r\n0\r\n\r\n");
    }

    #[test]
    fn a_shared_chunk_is_the_same_chunk() {
        for len in [0, 1, 15, 16, 255, 256, 70_000] {
            let content = vec![b'x'; len];
            let shared = SharedChunk::new(&content);
            let mut bytes = Vec::new();
            chunk(&mut bytes, &content);
            assert_eq!(&shared.bytes()[..], bytes, "{len}");
            assert_eq!(shared.content(), content, "{len}");
        }
    }
}
