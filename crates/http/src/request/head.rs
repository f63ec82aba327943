//! The whole head: the line, the section, and what follows from its fields.

use super::{
    Framing, Known, Parsed, Request, Target, Version,
    known::{KnownFields, Meaning, classify},
    line,
};
use crate::{
    Limits, Reject, Status,
    fields::{self, Bounds, Field},
    hop::{Hop, Transfer},
    host::Authority,
    syntax,
};

#[inline]
pub(super) fn parse<'b>(bytes: &'b [u8], limits: &Limits) -> Result<Parsed<'b>, Reject> {
    let start = match bytes {
        [] | [b'\r'] => return Ok(Parsed::Partial),
        [b'\r', b'\n', ..] => 2,
        _ => 0,
    };
    let from_line = &bytes[start..];
    let Some(line) = line::parse(from_line, limits.request_line)? else {
        return Ok(Parsed::Partial);
    };
    let (target, authority) = Target::parse(line.method, line.target, line.query_at)?;
    let from_section = &from_line[line.len + 2..];

    let mut facts = Facts::new(from_section);
    let bounds = Bounds::of_header(limits);
    let Some(section_len) = fields::parse(from_section, bounds, |field| facts.note(field))? else {
        return Ok(Parsed::Partial);
    };
    facts.known.end_at(section_len);
    let framing = facts.framing(line.version, limits)?;
    let host = facts.host(line.version, target, authority)?;
    let expect_continue = facts.expect_continue(line.version)? && framing != Framing::None;
    // Nothing can fail from here on, so that the request is put together where it is returned.
    Ok(Parsed::Complete {
        request: Request {
            method: line.method,
            target,
            version: line.version,
            host,
            framing,
            keep_alive: facts.hop.keep_alive(line.version),
            expect_continue,
            line: &from_line[..line.len],
            known: facts.known,
        },
        len: start + line.len + 2 + section_len,
    })
}

/// What the pass over the fields gathers.
struct Facts<'b> {
    known: KnownFields<'b>,
    hop: Hop,
    expect: Expect,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Expect {
    Nothing,
    Continue,
    Unknown,
}

impl<'b> Facts<'b> {
    fn new(section: &'b [u8]) -> Self {
        Self { known: KnownFields::new(section), hop: Hop::new(), expect: Expect::Nothing }
    }

    #[inline]
    fn note(&mut self, field: Field<'b>) -> Result<(), Reject> {
        match classify(&field) {
            Meaning::Other => {}
            Meaning::Known(known) => {
                self.known.note(known, field.value);
                if known == Known::Connection {
                    self.hop.note_connection(field.value);
                }
            }
            Meaning::ContentLength => self.hop.note_content_length(field.value)?,
            Meaning::TransferEncoding => self.hop.note_transfer_encoding(field.value)?,
            Meaning::Expect => self.note_expect(field.value),
        }
        Ok(())
    }

    fn note_expect(&mut self, value: &[u8]) {
        for expectation in syntax::list(value) {
            if !expectation.eq_ignore_ascii_case(b"100-continue") {
                self.expect = Expect::Unknown;
            } else if self.expect == Expect::Nothing {
                self.expect = Expect::Continue;
            }
        }
    }

    /// RFC 9112 §6.3, with a refusal wherever it allows one.
    #[inline]
    fn framing(&self, version: Version, limits: &Limits) -> Result<Framing, Reject> {
        match (self.hop.transfer, self.hop.content_length) {
            (Transfer::Absent, None | Some(0)) => Ok(Framing::None),
            (Transfer::Absent, Some(length)) if length > limits.body => {
                Err(Reject::new(Status::ContentTooLarge, "the body is too long"))
            }
            (Transfer::Absent, Some(length)) => Ok(Framing::Length(length)),
            (_, Some(_)) => Err(Reject::bad("both Content-Length and Transfer-Encoding")),
            (_, None) if version == Version::Http10 => {
                Err(Reject::bad("Transfer-Encoding in HTTP/1.0"))
            }
            (Transfer::Chunked, None) => Ok(Framing::Chunked),
            (Transfer::ForeignThenChunked, None) => {
                Err(Reject::new(Status::NotImplemented, "unknown transfer coding"))
            }
            (Transfer::Foreign, None) => {
                Err(Reject::bad("Transfer-Encoding does not end in chunked"))
            }
        }
    }

    /// RFC 9112 §3.2 and §3.2.2.
    #[inline]
    fn host(
        &self,
        version: Version,
        target: Target<'b>,
        authority: Option<&'b [u8]>,
    ) -> Result<Option<&'b [u8]>, Reject> {
        if self.known.is_repeated(Known::Host) {
            return Err(Reject::bad("Host is given twice"));
        }
        let host = match self.known.first(Known::Host) {
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
