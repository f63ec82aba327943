//! Bodies: where they end, piece by piece, without a buffer.

mod chunked;

use crate::{Limits, Reject, request::Framing};
use chunked::Chunked;
use std::ops::Range;

/// Follows one body through the octets as they come.
///
/// ```
/// use pollux_http::{Limits, body::Decoder, request::Framing};
///
/// let mut decoder = Decoder::new(Framing::Chunked);
/// let mut wire: &[u8] = b"5\r\nhello\r\n0\r\n\r\nGET /next";
/// let mut body = Vec::new();
/// while !decoder.is_done() && !wire.is_empty() {
///     let output = decoder.decode(wire, &Limits::DEFAULT)?;
///     body.extend_from_slice(&wire[output.data]);
///     wire = &wire[output.consumed..];
/// }
/// assert!(decoder.is_done());
/// assert_eq!((&body[..], wire), (&b"hello"[..], &b"GET /next"[..]));
/// # Ok::<(), pollux_http::Reject>(())
/// ```
#[derive(Clone, Debug)]
pub struct Decoder(State);

#[derive(Clone, Debug)]
enum State {
    Length(u64),
    Chunked(Chunked),
}

/// What one call of [`Decoder::decode`] found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecodeOutput {
    /// So many octets of the input belong to the body and are dealt with. At least 1 unless the
    /// input is empty or the body is over.
    pub consumed: usize,
    /// Where in the input there is content; empty when only framing was found.
    pub data: Range<usize>,
    /// The body is over; what follows the consumed octets is not part of it.
    pub done: bool,
}

impl Decoder {
    /// For a body framed so.
    pub fn new(framing: Framing) -> Self {
        Self(match framing {
            Framing::None => State::Length(0),
            Framing::Length(length) => State::Length(length),
            Framing::Chunked => State::Chunked(Chunked::new()),
        })
    }

    /// The same, but keeps the trailer section for [`Decoder::trailers`]: it costs an allocation
    /// where there is one.
    pub fn with_trailers(framing: Framing) -> Self {
        let mut decoder = Self::new(framing);
        if let State::Chunked(chunked) = &mut decoder.0 {
            chunked.store_trailers();
        }
        decoder
    }

    /// Whether the body is over.
    pub fn is_done(&self) -> bool {
        match &self.0 {
            State::Length(left) => *left == 0,
            State::Chunked(chunked) => chunked.is_done(),
        }
    }

    /// The field lines of the trailer section as they were sent, each with CRLF, for
    /// [`Fields`](crate::fields::Fields); whole once the body is over, and empty as a rule and
    /// without [`Decoder::with_trailers`]. At most [`Limits::trailer_section`] octets.
    pub fn trailers(&self) -> &[u8] {
        match &self.0 {
            State::Length(_) => b"",
            State::Chunked(chunked) => chunked.trailers(),
        }
    }

    /// Takes the next octets, up to the end of one run of content. Call it again with what was
    /// not consumed.
    ///
    /// # Errors
    /// 400 for a breach of the syntax of chunks (RFC 9112 §7.1), 413 and 431 for those of
    /// `limits`. The decoder is of no more use then.
    pub fn decode(&mut self, bytes: &[u8], limits: &Limits) -> Result<DecodeOutput, Reject> {
        match &mut self.0 {
            State::Length(left) => {
                let take = usize::try_from(*left).unwrap_or(usize::MAX).min(bytes.len());
                *left -= take as u64;
                Ok(DecodeOutput { consumed: take, data: 0..take, done: *left == 0 })
            }
            State::Chunked(chunked) => chunked.decode(bytes, limits),
        }
    }
}
