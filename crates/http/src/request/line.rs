//! The request line: `method SP request-target SP HTTP-version CRLF` (RFC 9112 §3).

use crate::{
    Reject, Status,
    syntax::{TARGET, TARGET_PATH, TOKEN, follows, span},
};

/// A request method (RFC 9110 §9, RFC 5789). Methods are case-sensitive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Method<'b> {
    Get,
    Head,
    Post,
    Put,
    Delete,
    Connect,
    Options,
    Trace,
    Patch,
    /// Any other token.
    Other(&'b [u8]),
}

impl<'b> Method<'b> {
    fn from_token(token: &'b [u8]) -> Self {
        match token {
            b"GET" => Self::Get,
            b"HEAD" => Self::Head,
            b"POST" => Self::Post,
            b"PUT" => Self::Put,
            b"DELETE" => Self::Delete,
            b"CONNECT" => Self::Connect,
            b"OPTIONS" => Self::Options,
            b"TRACE" => Self::Trace,
            b"PATCH" => Self::Patch,
            other => Self::Other(other),
        }
    }

    /// The method as a token.
    pub fn as_bytes(&self) -> &'b [u8] {
        match self {
            Self::Get => b"GET",
            Self::Head => b"HEAD",
            Self::Post => b"POST",
            Self::Put => b"PUT",
            Self::Delete => b"DELETE",
            Self::Connect => b"CONNECT",
            Self::Options => b"OPTIONS",
            Self::Trace => b"TRACE",
            Self::Patch => b"PATCH",
            Self::Other(token) => token,
        }
    }
}

/// The version of the grammar. Higher minor versions of HTTP/1 are read as 1.1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Version {
    /// HTTP/1.0: no persistence by default, no chunks, `Host` is optional.
    Http10,
    /// HTTP/1.1.
    Http11,
}

/// The parts of a request line; the target is not parsed yet.
#[derive(Debug)]
pub(super) struct RequestLine<'b> {
    pub(super) method: Method<'b>,
    pub(super) target: &'b [u8],
    /// The offset of the first `?` in the target; the target's length if there is none.
    pub(super) query_at: usize,
    pub(super) version: Version,
    /// The length without the CRLF.
    pub(super) len: usize,
}

/// Parses a request line at the start of `bytes`; `None` if it is incomplete.
///
/// Examines at most `max` bytes and the CRLF.
#[inline]
pub(super) fn parse(bytes: &[u8], max: usize) -> Result<Option<RequestLine<'_>>, Reject> {
    const TOO_LONG: Reject = Reject::new(Status::UriTooLong, "the request line is too long");
    const UNKNOWN: Reject = Reject::new(Status::NotImplemented, "the method is too long");
    // A line that is too long looks incomplete after this cut.
    let is_cut = bytes.len() > max + 2;
    let bytes = if is_cut { &bytes[..max + 2] } else { bytes };
    match parse_whole(bytes) {
        // RFC 9112 §3: no known method is that long, so the response is 501 and not 414.
        Ok(None) if is_cut && span(TOKEN, bytes) == bytes.len() => Err(UNKNOWN),
        Ok(None) if is_cut => Err(TOO_LONG),
        outcome => outcome,
    }
}

#[inline]
fn parse_whole(bytes: &[u8]) -> Result<Option<RequestLine<'_>>, Reject> {
    let (method, method_len) = if bytes.starts_with(b"GET ") {
        (Method::Get, 3)
    } else {
        let len = span(TOKEN, bytes);
        match bytes.get(len) {
            None => return Ok(None),
            Some(b' ') if len > 0 => (Method::from_token(&bytes[..len]), len),
            Some(_) => return Err(Reject::bad("invalid method")),
        }
    };
    let rest = &bytes[method_len + 1..];
    let query_at = span(TARGET_PATH, rest);
    let target_len = match rest.get(query_at) {
        Some(b'?') => query_at + span(TARGET, &rest[query_at..]),
        _ => query_at,
    };
    match rest.get(target_len) {
        None => return Ok(None),
        Some(b' ') if target_len > 0 => {}
        Some(_) => return Err(Reject::bad("invalid request target")),
    }
    let Some(version) = parse_version(&rest[target_len + 1..])? else { return Ok(None) };
    Ok(Some(RequestLine {
        method,
        target: &rest[..target_len],
        query_at,
        version,
        len: method_len + 1 + target_len + 1 + VERSION.len(),
    }))
}

const VERSION: &[u8] = b"HTTP/1.1";

/// Parses `HTTP-version CRLF`.
#[inline]
fn parse_version(bytes: &[u8]) -> Result<Option<Version>, Reject> {
    if bytes.starts_with(b"HTTP/1.1\r\n") {
        return Ok(Some(Version::Http11));
    }
    parse_rare_version(bytes)
}

fn parse_rare_version(bytes: &[u8]) -> Result<Option<Version>, Reject> {
    const PATTERN: &[u8] = b"HTTP/#.#\r\n";
    if !follows(PATTERN, bytes) {
        return Err(Reject::bad("invalid HTTP version, or no CRLF after it"));
    }
    if bytes.len() < PATTERN.len() {
        return Ok(None);
    }
    match (bytes[5], bytes[7]) {
        (b'1', b'0') => Ok(Some(Version::Http10)),
        (b'1', _) => Ok(Some(Version::Http11)),
        _ => Err(Reject::new(Status::VersionNotSupported, "only HTTP/1.x is supported")),
    }
}
