//! The head of a reply for the lenient decoder: status line, framing, persistence.

use super::ReplyError;
use crate::{
    Limits, Reject,
    fields::{self, Field, SectionLimits, is_name},
    message_framing::{MessageFraming, TransferEncoding},
    request::{Framing, Version},
    syntax::follows,
};

/// The end of the body (§6.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BodyEnd {
    Framed(Framing),
    Close,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) status: u16,
    pub(super) body_end: BodyEnd,
    pub(super) keep_alive: bool,
}

impl Head {
    /// Parses the head at the start of `bytes`. Returns it with its length; `None` if it is
    /// incomplete.
    #[inline]
    pub(super) fn parse(
        bytes: &[u8],
        is_head_request: bool,
        limits: &Limits,
    ) -> Result<Option<(Self, usize)>, ReplyError> {
        let Some(line) = StatusLine::parse(bytes, limits.request_line, LineEnd::CrlfOrLf)? else {
            return Ok(None);
        };
        let mut framing_fields = MessageFraming::new();
        let from_section = &bytes[line.len..];
        let section_limits = SectionLimits::for_header(limits);
        let found = match fields::parse(from_section, section_limits, |field| {
            add(&mut framing_fields, field)
        }) {
            Err(_) => {
                framing_fields = MessageFraming::new();
                fields::parse_leniently(from_section, section_limits, |field| {
                    add(&mut framing_fields, field)
                })
            }
            found => found,
        };
        let Some(len) = found.map_err(ReplyError::of_head)? else { return Ok(None) };
        let body_end = line.body_end(&framing_fields, is_head_request)?;
        // `Decoder::finish` handles replies that end with the connection.
        let keep_alive = framing_fields.keep_alive(line.version) && line.status != SWITCHING;
        Ok(Some((Self { status: line.status, body_end, keep_alive }, line.len + len)))
    }

    /// Whether more replies to the same request follow. After 101 the connection no longer uses
    /// HTTP (RFC 9110 §15.2.2).
    pub(super) fn is_interim(&self) -> bool {
        (100..200).contains(&self.status) && self.status != SWITCHING
    }
}

pub(super) const SWITCHING: u16 = 101;

#[inline]
pub(super) fn add(framing_fields: &mut MessageFraming, field: Field<'_>) -> Result<(), Reject> {
    match field.name.len() {
        10 if is_name(field.name, b"connection") => framing_fields.add_connection(field.value),
        14 if is_name(field.name, b"content-length") => {
            framing_fields.add_content_length(field.value)?
        }
        17 if is_name(field.name, b"transfer-encoding") => {
            framing_fields.add_transfer_encoding(field.value)?;
        }
        _ => {}
    }
    Ok(())
}

pub(super) struct StatusLine {
    pub(super) version: Version,
    pub(super) status: u16,
    /// The length including the line end.
    pub(super) len: usize,
}

/// What ends a line.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum LineEnd {
    Crlf,
    /// A recipient may recognize LF alone (RFC 9112 §2.2).
    CrlfOrLf,
}

impl StatusLine {
    /// Parses `HTTP-version SP status-code SP [ reason-phrase ] CRLF` (§4). A missing second space
    /// is accepted, because it does not change the meaning.
    #[inline]
    pub(super) fn parse(
        bytes: &[u8],
        max: usize,
        line_end: LineEnd,
    ) -> Result<Option<Self>, ReplyError> {
        const PATTERN: &[u8] = b"HTTP/1.# ###";
        if !follows(PATTERN, bytes) {
            return Err(ReplyError::StatusLine);
        }
        let searched = &bytes[..bytes.len().min(max + 2)];
        let Some(lf) = memchr::memchr(b'\n', searched) else {
            let is_too_long = searched.len() < bytes.len();
            return if is_too_long { Err(ReplyError::StatusLine) } else { Ok(None) };
        };
        let line = match bytes[..lf].strip_suffix(b"\r") {
            None if line_end == LineEnd::CrlfOrLf => Some(&bytes[..lf]),
            line => line,
        };
        let Some(reason) = line.and_then(|line| line.get(PATTERN.len()..)) else {
            return Err(ReplyError::StatusLine);
        };
        let is_text = |&b: &u8| b == b'\t' || b >= b' ' && b != 0x7f;
        if !(reason.is_empty() || reason[0] == b' ' && reason.iter().all(is_text)) {
            return Err(ReplyError::StatusLine);
        }
        // Invalid statuses are accepted and treated as 5xx (RFC 9110 §15).
        let status = bytes[9..12].iter().fold(0, |n, &b| n * 10 + u16::from(b - b'0'));
        let version = if bytes[7] == b'0' { Version::Http10 } else { Version::Http11 };
        Ok(Some(Self { version, status, len: lf + 1 }))
    }

    #[inline]
    fn body_end(
        &self,
        framing_fields: &MessageFraming,
        is_head_request: bool,
    ) -> Result<BodyEnd, ReplyError> {
        if framing_fields.transfer != TransferEncoding::Absent {
            if framing_fields.content_length.is_some() {
                return Err(ReplyError::Syntax("both Content-Length and Transfer-Encoding"));
            }
            if self.version == Version::Http10 {
                return Err(ReplyError::Syntax("Transfer-Encoding in HTTP/1.0"));
            }
        }
        if is_head_request || matches!(self.status, 100..=199 | 204 | 304) {
            return Ok(BodyEnd::Framed(Framing::None));
        }
        Ok(match (framing_fields.transfer, framing_fields.content_length) {
            (TransferEncoding::Absent, Some(length)) => BodyEnd::Framed(Framing::Length(length)),
            (TransferEncoding::Absent, None) | (TransferEncoding::Unsupported, _) => BodyEnd::Close,
            (TransferEncoding::Chunked | TransferEncoding::UnsupportedThenChunked, _) => {
                BodyEnd::Framed(Framing::Chunked)
            }
        })
    }
}
