//! Parses a complete head: request line, header section, and the properties that follow from its
//! fields.

use super::{
    Framing, KnownField, ParseStatus, Request, Target, Version,
    known::{FieldRole, KnownFieldValues, classify},
    line,
};
use crate::{
    Limits, Reject, Status,
    fields::{self, Field, SectionLimits},
    host::Authority,
    message_framing::{MessageFraming, TransferEncoding},
    syntax,
};

#[inline]
pub(super) fn parse<'b>(bytes: &'b [u8], limits: &Limits) -> Result<ParseStatus<'b>, Reject> {
    let start = match bytes {
        [] | [b'\r'] => return Ok(ParseStatus::Partial),
        [b'\r', b'\n', ..] => 2,
        _ => 0,
    };
    let from_line = &bytes[start..];
    let Some(line) = line::parse(from_line, limits.request_line)? else {
        return Ok(ParseStatus::Partial);
    };
    let (target, authority) = Target::parse(line.method, line.target, line.query_at, limits.https)?;
    // The header section and everything behind it: where the section ends is not known yet.
    let from_section = &from_line[line.len + 2..];

    let mut summary = FieldSummary::new(from_section);
    let section_limits = SectionLimits::for_header(limits);
    let Some(section_len) =
        fields::parse(from_section, section_limits, |field| summary.add(field))?
    else {
        return Ok(ParseStatus::Partial);
    };
    summary.known.end_at(section_len);
    let framing = summary.framing(line.version, limits)?;
    let host = summary.host(line.version, target, authority)?;
    let expect_continue = summary.expect_continue(line.version)? && framing != Framing::None;
    // No error is possible from here on; the request is built in its final place.
    Ok(ParseStatus::Complete {
        request: Request {
            method: line.method,
            target,
            version: line.version,
            host,
            framing,
            keep_alive: summary.framing_fields.keep_alive(line.version),
            expect_continue,
            line: &from_line[..line.len],
            known: summary.known,
        },
        len: start + line.len + 2 + section_len,
    })
}

/// Properties collected in one pass over the fields.
struct FieldSummary<'b> {
    known: KnownFieldValues<'b>,
    framing_fields: MessageFraming,
    expect: Expect,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Expect {
    Nothing,
    Continue,
    Unknown,
}

impl<'b> FieldSummary<'b> {
    fn new(section: &'b [u8]) -> Self {
        Self {
            known: KnownFieldValues::new(section),
            framing_fields: MessageFraming::new(),
            expect: Expect::Nothing,
        }
    }

    #[inline]
    fn add(&mut self, field: Field<'b>) -> Result<(), Reject> {
        match classify(&field) {
            FieldRole::Other => {}
            FieldRole::Known(known) => {
                self.known.add(known, field.value);
                if known == KnownField::Connection {
                    self.framing_fields.add_connection(field.value);
                }
            }
            FieldRole::ContentLength => self.framing_fields.add_content_length(field.value)?,
            FieldRole::TransferEncoding => {
                self.framing_fields.add_transfer_encoding(field.value)?
            }
            FieldRole::Expect => self.add_expect(field.value),
        }
        Ok(())
    }

    fn add_expect(&mut self, value: &[u8]) {
        for expectation in syntax::list(value) {
            if !expectation.eq_ignore_ascii_case(b"100-continue") {
                self.expect = Expect::Unknown;
            } else if self.expect == Expect::Nothing {
                self.expect = Expect::Continue;
            }
        }
    }

    /// The framing according to RFC 9112 §6.3, rejecting everything that it permits rejecting.
    #[inline]
    fn framing(&self, version: Version, limits: &Limits) -> Result<Framing, Reject> {
        match (self.framing_fields.transfer, self.framing_fields.content_length) {
            (TransferEncoding::Absent, None | Some(0)) => Ok(Framing::None),
            (TransferEncoding::Absent, Some(length)) if length > limits.body => {
                Err(Reject::new(Status::ContentTooLarge, "the body is too long"))
            }
            (TransferEncoding::Absent, Some(length)) => Ok(Framing::Length(length)),
            (_, Some(_)) => Err(Reject::bad("both Content-Length and Transfer-Encoding")),
            (_, None) if version == Version::Http10 => {
                Err(Reject::bad("Transfer-Encoding in HTTP/1.0"))
            }
            (TransferEncoding::Chunked, None) => Ok(Framing::Chunked),
            (TransferEncoding::UnsupportedThenChunked, None) => {
                Err(Reject::new(Status::NotImplemented, "unknown transfer coding"))
            }
            (TransferEncoding::Unsupported, None) => {
                Err(Reject::bad("Transfer-Encoding does not end in chunked"))
            }
        }
    }

    /// The host according to RFC 9112 §3.2 and §3.2.2.
    #[inline]
    fn host(
        &self,
        version: Version,
        target: Target<'b>,
        authority: Option<&'b [u8]>,
    ) -> Result<Option<&'b [u8]>, Reject> {
        if self.known.is_repeated(KnownField::Host) {
            return Err(Reject::bad("Host is given twice"));
        }
        let host = match self.known.first(KnownField::Host) {
            None if version == Version::Http10 => None,
            None => return Err(Reject::bad("Host is missing")),
            Some(b"") if target == Target::Asterisk => None,
            Some(host) if Authority::parse(host).is_some() => Some(host),
            Some(_) => return Err(Reject::bad("invalid Host")),
        };
        Ok(authority.or(host))
    }

    /// RFC 9110 §10.1.1: an expectation in HTTP/1.0 is ignored.
    #[inline]
    fn expect_continue(&self, version: Version) -> Result<bool, Reject> {
        match self.expect {
            _ if version == Version::Http10 => Ok(false),
            Expect::Nothing => Ok(false),
            Expect::Continue => Ok(true),
            Expect::Unknown => Err(Reject::new(Status::ExpectationFailed, "unknown expectation")),
        }
    }
}
