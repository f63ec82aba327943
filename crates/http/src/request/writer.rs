//! Writes request heads to the caller's buffer.

use crate::{
    output::{Output, put_decimal},
    syntax::{TARGET, is_token, span},
};

/// The reason why a request cannot be written: it would be read as another request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WriteError {
    /// The method is not a token (RFC 9110 §9.1).
    #[error("the method is not a token")]
    Method,
    /// The target is empty, or contains white space, a control character or one that must be
    /// percent-encoded.
    #[error("the request target holds a character that must be percent-encoded")]
    Target,
    /// The field's name is not a token (RFC 9110 §5.1).
    #[error("the field's name is not a token")]
    Name,
    /// The field's value contains a control character (RFC 9110 §5.5).
    #[error("the field's value holds a control character")]
    Value,
    /// The field is `Content-Length` or `Transfer-Encoding`. The writer has methods for them, so
    /// that the framing is unique and correct.
    #[error("the fields that frame the message are written by the writer itself")]
    Framing,
}

/// A request head under construction: request line, fields, then [`Writer::end`].
///
/// Untrusted data, such as fields of a request that is forwarded, can neither start another line
/// nor change the framing: it is rejected.
///
/// ```
/// use pollux_http::request::Writer;
///
/// let mut out = Vec::new();
/// Writer::new(&mut out, b"POST", b"/a?b")?
///     .field(b"Host", b"example.org")?
///     .content_length(5)
///     .close()
///     .end();
/// assert_eq!(
///     out,
///     b"POST /a?b HTTP/1.1\r\nHost: example.org\r\nContent-Length: 5\r\nConnection: close\r\n\r\n",
/// );
/// # Ok::<(), pollux_http::request::WriteError>(())
/// ```
#[derive(Debug)]
#[must_use = "a head without its empty line never ends"]
pub struct Writer<'o, O> {
    out: &'o mut O,
}

impl<'o, O: Output> Writer<'o, O> {
    /// Writes the request line, in HTTP/1.1.
    ///
    /// # Errors
    /// [`WriteError::Method`] and [`WriteError::Target`]; nothing is written then.
    pub fn new(out: &'o mut O, method: &[u8], target: &[u8]) -> Result<Self, WriteError> {
        if !is_token(method) {
            return Err(WriteError::Method);
        }
        if target.is_empty() || span(TARGET, target) < target.len() {
            return Err(WriteError::Target);
        }
        out.put(method);
        out.put(b" ");
        out.put(target);
        out.put(b" HTTP/1.1\r\n");
        Ok(Self { out })
    }

    /// Writes a field.
    ///
    /// # Errors
    /// [`WriteError::Name`], [`WriteError::Value`] and [`WriteError::Framing`]; the request must
    /// not be sent then.
    pub fn field(self, name: &[u8], value: &[u8]) -> Result<Self, WriteError> {
        if !is_token(name) {
            return Err(WriteError::Name);
        }
        if !value.iter().all(|&byte| byte == b'\t' || byte >= b' ' && byte != 0x7f) {
            return Err(WriteError::Value);
        }
        if [&b"content-length"[..], b"transfer-encoding"]
            .iter()
            .any(|framing| name.eq_ignore_ascii_case(framing))
        {
            return Err(WriteError::Framing);
        }
        self.out.put(name);
        self.out.put(b": ");
        self.out.put(value);
        self.out.put(b"\r\n");
        Ok(self)
    }

    /// Writes `Content-Length`: `length` bytes follow the head.
    pub fn content_length(self, length: u64) -> Self {
        self.out.put(b"Content-Length: ");
        put_decimal(self.out, length);
        self.out.put(b"\r\n");
        self
    }

    /// Writes `Transfer-Encoding: chunked`: content of unknown length follows
    /// ([`response::chunk`](crate::response::chunk)).
    pub fn chunked(self) -> Self {
        self.out.put(b"Transfer-Encoding: chunked\r\n");
        self
    }

    /// Writes `Connection: close`: no further request follows (RFC 9112 §9.6).
    pub fn close(self) -> Self {
        self.out.put(b"Connection: close\r\n");
        self
    }

    /// Writes the empty line. The content follows.
    pub fn end(self) {
        self.out.put(b"\r\n");
    }

    /// Leaves the head incomplete, for tests of how a server waits for the rest.
    pub fn leave_open(self) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Limits,
        request::{Framing, ParseStatus, parse},
    };

    #[test]
    fn written_requests_are_parsed_back() {
        let mut out = Vec::new();
        let writer = Writer::new(&mut out, b"PURGE", b"/%41?x=[1]").unwrap();
        let writer = writer.field(b"Host", b"a:80").unwrap();
        writer
            .field(b"X-Empty", b"")
            .unwrap()
            .field(b"X", b"\xc3\xa9 \t,")
            .unwrap()
            .chunked()
            .end();
        let Ok(ParseStatus::Complete { request, len }) = parse(&out, &Limits::DEFAULT) else {
            panic!("{}", out.escape_ascii())
        };
        assert_eq!(len, out.len());
        assert_eq!(request.framing, Framing::Chunked);
        assert_eq!(request.field(b"x-empty"), Some(&b""[..]));
        assert_eq!(request.field(b"x"), Some(&b"\xc3\xa9 \t,"[..]));
        assert!(request.keep_alive);
    }

    #[test]
    fn data_that_would_change_the_request_is_rejected() {
        let start_error = |method: &[u8], target: &[u8]| {
            let mut out = Vec::new();
            let error = Writer::new(&mut out, method, target).err();
            assert_eq!(error.is_some(), out.is_empty());
            error
        };
        assert_eq!(start_error(b"GET", b"/"), None);
        assert_eq!(start_error(b"OPTIONS", b"*"), None);
        for method in [&b""[..], b"GE T", b"GET\r\n", b"G\0T"] {
            assert_eq!(start_error(method, b"/"), Some(WriteError::Method));
        }
        for target in
            [&b""[..], b"/a b", b"/\r\nX: y", b"/\n", b"/\0", b"/#a", b"/\xc3\xa9", b"/\x7f"]
        {
            assert_eq!(start_error(b"GET", target), Some(WriteError::Target));
        }
        let field = |name: &[u8], value: &[u8]| {
            let mut out = Vec::new();
            let writer = Writer::new(&mut out, b"GET", b"/").unwrap();
            let before = b"GET / HTTP/1.1\r\n".len();
            let error = writer.field(name, value).err();
            assert_eq!(error.is_some(), out.len() == before);
            error
        };
        assert_eq!(field(b"A", b"b c"), None);
        for name in [&b""[..], b"A ", b"A:", b"A\r\nB", b" A"] {
            assert_eq!(field(name, b"x"), Some(WriteError::Name));
        }
        for value in [&b"a\r\nB: c"[..], b"a\n", b"\r", b"\0", b"\x1b[", b"\x7f"] {
            assert_eq!(field(b"A", value), Some(WriteError::Value));
        }
        for name in [&b"Content-Length"[..], b"transfer-encoding", b"CONTENT-LENGTH"] {
            assert_eq!(field(name, b"1"), Some(WriteError::Framing));
        }
    }
}
