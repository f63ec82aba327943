//! Requests: parses bytes into a head that borrows from them.
//!
//! An ambiguous request is rejected ([`Reject`]) and the connection closed. A request is accepted
//! only if every recipient that follows RFC 9112 would read the same request from the same bytes.
//! Where the RFC leaves a choice:
//!
//! - One CRLF before the request line is skipped (§2.2); more are rejected.
//! - A bare LF or CR is rejected anywhere in the head (§2.2 permits accepting LF).
//! - Exactly one space separates the parts of the request line (§3).
//! - HTTP/1.2 to 1.9 are read as 1.1 (RFC 9110 §2.5); other major versions receive 505.
//! - A repeated `Content-Length` is rejected, even with equal values (§6.3 permits merging them).
//! - `Transfer-Encoding` may only be `chunked`; another coding before it receives 501, other lists
//!   400.
//! - A target in absolute-form with the scheme `https` receives 421 unless
//!   [`Limits::https`](crate::Limits::https) says that the connection has TLS (RFC 9110 §7.4).
//! - An empty `Host` is rejected, except with `OPTIONS *`, which concerns no host.

mod head;
mod head_parser;
mod known;
mod line;
mod target;
mod writer;

pub use head_parser::HeadParser;
pub use known::{KnownField, KnownFieldSet};
pub use line::{Method, Version};
pub use target::Target;
pub use writer::{WriteError, Writer};

use crate::{
    Reject,
    fields::{Field, Fields},
    limits::Limits,
};
use known::KnownFieldValues;

/// The result of parsing a request head.
#[derive(Clone, Debug)]
// A box would cost an allocation per request.
#[allow(clippy::large_enum_variant)]
pub enum ParseStatus<'b> {
    /// The head is incomplete.
    Partial,
    /// The head is complete.
    Complete {
        /// The parsed head.
        request: Request<'b>,
        /// The length of the head. The body or the next request begins there.
        len: usize,
    },
}

/// How the end of a body is found (RFC 9112 §6.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// There is no body.
    None,
    /// A body of this many bytes; never 0 in a request.
    Length(u64),
    /// Chunks up to the last one: use a [`Decoder`](crate::body::Decoder).
    Chunked,
}

/// The head of a request.
#[derive(Clone, Debug)]
pub struct Request<'b> {
    /// The method.
    pub method: Method<'b>,
    /// The request target.
    pub target: Target<'b>,
    /// The version whose grammar was used.
    pub version: Version,
    /// The authority of the target, or of `Host` if the target has none (RFC 9112 §3.2.2). `None`
    /// only in HTTP/1.0, and for `OPTIONS *` with an empty `Host`.
    pub host: Option<&'b [u8]>,
    /// How the body is framed.
    pub framing: Framing,
    /// Whether the peer wants to keep the connection open after the response (RFC 9112 §9.3).
    pub keep_alive: bool,
    /// Whether the peer waits for `100 Continue` before it sends the body (RFC 9110 §10.1.1).
    pub expect_continue: bool,
    /// The request line without its CRLF, for access logs: visible ASCII and two spaces.
    pub line: &'b [u8],
    known: KnownFieldValues<'b>,
}

impl<'b> Request<'b> {
    /// The value of `known` if the field was sent exactly once.
    ///
    /// A field with a single value, such as a date or a range, is ignored when it is repeated,
    /// because it is unclear which value counts.
    #[inline]
    pub fn single(&self, known: KnownField) -> Option<&'b [u8]> {
        self.known.single(known)
    }

    /// Whether `known` was sent.
    #[inline]
    pub fn has(&self, known: KnownField) -> bool {
        self.known.first(known).is_some()
    }

    /// Whether one of `fields` was sent. Costs one comparison for any number of fields.
    #[inline]
    pub fn has_any(&self, fields: KnownFieldSet) -> bool {
        self.known.has_any(fields)
    }

    /// The values of `known` in order, one per field line. For list fields: repeated lines are one
    /// list (RFC 9110 §5.3).
    #[inline]
    pub fn values(&self, known: KnownField) -> impl Iterator<Item = &'b [u8]> + Clone + use<'b> {
        let first = self.known.first(known);
        // Only a repeated field costs a second pass over the section.
        let repeats = if self.known.is_repeated(known) { self.known.section() } else { b"" };
        let later = Fields::new(repeats).filter(move |f| f.is(known.name())).skip(1);
        first.into_iter().chain(later.map(|f| f.value))
    }

    /// All fields in order, found by a pass over the section: for fields that are not a
    /// [`KnownField`].
    pub fn fields(&self) -> impl Iterator<Item = Field<'b>> + Clone + use<'b> {
        Fields::new(self.known.section())
    }

    /// Copies the head into a new buffer. [`parse`] reads the same request from it. It is for a
    /// response that is generated after the input buffer has been reused.
    pub fn to_head(&self) -> Vec<u8> {
        [self.line, b"\r\n", self.known.section()].concat()
    }

    /// Appends the output of [`Request::to_head`] to an existing buffer.
    pub fn put_head(&self, out: &mut Vec<u8>) {
        for part in [self.line, b"\r\n", self.known.section()] {
            out.extend_from_slice(part);
        }
    }

    /// Appends the field lines, each with its CRLF.
    pub fn put_fields(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self.known.section());
    }

    /// The first value of the field `name`, found by a pass over the section.
    pub fn field(&self, name: &[u8]) -> Option<&'b [u8]> {
        self.fields().find(|field| field.is(name)).map(|field| field.value)
    }
}

/// Whether the request at the start of `bytes`, which may be incomplete or invalid, is a HEAD
/// request. An error response to it has no content either (RFC 9110 §9.3.2).
pub fn is_head(bytes: &[u8]) -> bool {
    bytes.strip_prefix(b"\r\n").unwrap_or(bytes).starts_with(b"HEAD ")
}

/// Parses the request at the start of `bytes`.
///
/// Does not allocate and keeps no state. After [`ParseStatus::Partial`] use [`HeadParser::parse`],
/// which does not examine the same bytes again and again.
///
/// # Errors
/// [`Reject`] as soon as the bytes cannot become an acceptable request.
#[inline]
pub fn parse<'b>(bytes: &'b [u8], limits: &Limits) -> Result<ParseStatus<'b>, Reject> {
    head::parse(bytes, limits)
}
