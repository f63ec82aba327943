//! The hop-by-hop fields of requests and replies that determine framing and persistence:
//! `Connection`, `Content-Length` and `Transfer-Encoding`.

use crate::{Reject, fields::is_name, request::Version, syntax};

/// The framing and persistence of one message.
#[derive(Clone, Debug)]
pub(crate) struct MessageFraming {
    pub(crate) content_length: Option<u64>,
    pub(crate) transfer: TransferEncoding,
    /// Options of `Connection`.
    close: bool,
    keep_alive_option: bool,
}

/// The codings of `Transfer-Encoding`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TransferEncoding {
    Absent,
    Chunked,
    /// A coding that is not decoded here.
    Unsupported,
    UnsupportedThenChunked,
}

impl MessageFraming {
    pub(crate) const fn new() -> Self {
        Self {
            content_length: None,
            transfer: TransferEncoding::Absent,
            close: false,
            keep_alive_option: false,
        }
    }

    pub(crate) fn add_connection(&mut self, value: &[u8]) {
        // The most frequent value is compared without splitting the list. A value contains no CR, which
        // is the only byte that would compare equal to a hyphen.
        if is_name(value, b"keep-alive") {
            self.keep_alive_option = true;
            return;
        }
        for option in syntax::list(value) {
            self.close |= option.eq_ignore_ascii_case(b"close");
            self.keep_alive_option |= option.eq_ignore_ascii_case(b"keep-alive");
        }
    }

    pub(crate) fn add_content_length(&mut self, value: &[u8]) -> Result<(), Reject> {
        if self.content_length.is_some() {
            return Err(Reject::bad("Content-Length is given twice"));
        }
        // For numbers beyond 64 bits recipients wrap, saturate or fail, which is ambiguous.
        let length = syntax::decimal(value).filter(|&length| length < u64::MAX);
        self.content_length = Some(length.ok_or(Reject::bad("invalid Content-Length"))?);
        Ok(())
    }

    /// RFC 9112 §6.1: `chunked` once, at the end. Several lines are one list.
    pub(crate) fn add_transfer_encoding(&mut self, value: &[u8]) -> Result<(), Reject> {
        let mut is_empty = true;
        for coding in syntax::list(value) {
            is_empty = false;
            self.transfer = match (self.transfer, coding.eq_ignore_ascii_case(b"chunked")) {
                (TransferEncoding::Absent, true) => TransferEncoding::Chunked,
                (TransferEncoding::Unsupported, true) => TransferEncoding::UnsupportedThenChunked,
                (TransferEncoding::Absent | TransferEncoding::Unsupported, false)
                    if is_coding(coding) =>
                {
                    TransferEncoding::Unsupported
                }
                _ => return Err(Reject::bad("invalid Transfer-Encoding")),
            };
        }
        if is_empty { Err(Reject::bad("empty Transfer-Encoding")) } else { Ok(()) }
    }

    /// RFC 9112 §9.3: `close` takes precedence.
    #[inline]
    pub(crate) fn keep_alive(&self, version: Version) -> bool {
        !self.close && (version == Version::Http11 || self.keep_alive_option)
    }
}

/// Whether `coding` is `token *( OWS ";" OWS token "=" … )`; `chunked` takes no parameter.
fn is_coding(coding: &[u8]) -> bool {
    let mut parts = coding.split(|&b| b == b';').map(syntax::trim);
    let name = parts.next().unwrap_or(b"");
    syntax::is_token(name) && !name.eq_ignore_ascii_case(b"chunked")
}
