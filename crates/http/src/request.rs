//! Requests: bytes in, a head that borrows from them out.
//!
//! What is ambiguous is refused ([`Reject`]), and the connection closed: a request is taken only
//! if every recipient that follows RFC 9112 reads the same request from the same octets.
//! Where the RFC leaves a choice:
//!
//! - One CRLF before the request line is skipped (§2.2), more are refused.
//! - A bare LF or a bare CR is refused anywhere in the head (§2.2 lets a recipient take LF).
//! - The parts of the request line are parted by exactly one space (§3).
//! - HTTP/1.2 to 1.9 are read as 1.1 (RFC 9110 §2.5); any other major version is 505.
//! - `Content-Length` twice is refused, also with equal values (§6.3 lets a recipient merge them).
//! - `Transfer-Encoding` is `chunked` alone; another coding before it is 501, any other list 400.
//! - A target in absolute-form with the scheme `https` is 421: there is no TLS here (RFC 9110 §7.4).
//! - An empty `Host` is refused, except with `OPTIONS *`, which is about no host.

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

/// How far a request's head has come.
#[derive(Clone, Debug)]
// A boxed request would be an allocation a request.
#[allow(clippy::large_enum_variant)]
pub enum ParseStatus<'b> {
    /// The end of the head is still to come.
    Partial,
    /// A whole head.
    Complete {
        /// What it says.
        request: Request<'b>,
        /// Its length: here the body begins, or the next request when there is none.
        len: usize,
    },
}

/// How the end of a body is found (RFC 9112 §6.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// There is no body.
    None,
    /// So many octets; never 0 in a request.
    Length(u64),
    /// Chunks until the last one: feed a [`Decoder`](crate::body::Decoder).
    Chunked,
}

/// A request's head.
#[derive(Clone, Debug)]
pub struct Request<'b> {
    /// What to do.
    pub method: Method<'b>,
    /// With what.
    pub target: Target<'b>,
    /// The version of the grammar that was used.
    pub version: Version,
    /// The authority asked: of an absolute-form or authority-form target, else of `Host`
    /// (RFC 9112 §3.2.2). Absent only in HTTP/1.0 and with `OPTIONS *` and an empty `Host`.
    pub host: Option<&'b [u8]>,
    /// Where the body ends.
    pub framing: Framing,
    /// Whether the peer wants the connection kept after the answer (RFC 9112 §9.3).
    pub keep_alive: bool,
    /// The peer waits for `100 Continue` before it sends the body (RFC 9110 §10.1.1).
    pub expect_continue: bool,
    /// The request line without its CRLF, for access logs. Visible ASCII and two spaces.
    pub line: &'b [u8],
    known: KnownFieldValues<'b>,
}

impl<'b> Request<'b> {
    /// The value of `known` where it was sent exactly once.
    ///
    /// The fields with one value that the server reads (dates, ranges) are to be ignored when
    /// they are repeated, since nobody can say which one counts.
    #[inline]
    pub fn single(&self, known: KnownField) -> Option<&'b [u8]> {
        self.known.single(known)
    }

    /// Whether `known` was sent.
    #[inline]
    pub fn has(&self, known: KnownField) -> bool {
        self.known.first(known).is_some()
    }

    /// Whether one of `fields` was sent: one comparison, however many they are.
    #[inline]
    pub fn has_any(&self, fields: KnownFieldSet) -> bool {
        self.known.has_any(fields)
    }

    /// The values of `known`, one per field line, in order. For fields that are lists: repeated
    /// lines are one list (RFC 9110 §5.3).
    #[inline]
    pub fn values(&self, known: KnownField) -> impl Iterator<Item = &'b [u8]> + Clone + use<'b> {
        let first = self.known.first(known);
        // Only a repeated field costs a second walk over the section.
        let repeats = if self.known.is_repeated(known) { self.known.section() } else { b"" };
        let later = Fields::new(repeats).filter(move |f| f.is(known.name())).skip(1);
        first.into_iter().chain(later.map(|f| f.value))
    }

    /// Every field in order, walked anew: for what is not in [`KnownField`].
    pub fn fields(&self) -> impl Iterator<Item = Field<'b>> + Clone + use<'b> {
        Fields::new(self.known.section())
    }

    /// The octets of the head, in a buffer of their own: [`parse`] reads the same request from them
    /// once more. For who must answer later than the input is there.
    pub fn to_head(&self) -> Vec<u8> {
        [self.line, b"\r\n", self.known.section()].concat()
    }

    /// Appends what [`Request::to_head`] returns to a buffer that is there already.
    pub fn put_head(&self, out: &mut Vec<u8>) {
        for part in [self.line, b"\r\n", self.known.section()] {
            out.extend_from_slice(part);
        }
    }

    /// The first value of the field `name`, found by a walk.
    pub fn field(&self, name: &[u8]) -> Option<&'b [u8]> {
        self.fields().find(|field| field.is(name)).map(|field| field.value)
    }
}

/// Whether the request that begins at `bytes`, whole or not, good or not, is one to HEAD: a refusal
/// of it has no content either (RFC 9110 §9.3.2).
pub fn is_head(bytes: &[u8]) -> bool {
    bytes.strip_prefix(b"\r\n").unwrap_or(bytes).starts_with(b"HEAD ")
}

/// Reads the request that begins at `bytes`.
///
/// Allocates nothing and keeps nothing. A caller that got [`ParseStatus::Partial`] should go on with
/// [`HeadParser::parse`], which does not look at the same octets again and again.
///
/// # Errors
/// [`Reject`] as soon as the octets so far cannot become a request that is taken.
#[inline]
pub fn parse<'b>(bytes: &'b [u8], limits: &Limits) -> Result<ParseStatus<'b>, Reject> {
    head::parse(bytes, limits)
}
