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
///     let step = decoder.decode(wire, &Limits::DEFAULT)?;
///     body.extend_from_slice(&wire[step.data]);
///     wire = &wire[step.consumed..];
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
pub struct Step {
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

    /// Whether the body is over.
    pub fn is_done(&self) -> bool {
        match &self.0 {
            State::Length(left) => *left == 0,
            State::Chunked(chunked) => chunked.is_done(),
        }
    }

    /// Takes the next octets, up to the end of one run of content. Call it again with what was
    /// not consumed.
    ///
    /// # Errors
    /// 400 for a breach of the syntax of chunks (RFC 9112 §7.1), 413 and 431 for those of
    /// `limits`. The decoder is of no more use then.
    pub fn decode(&mut self, bytes: &[u8], limits: &Limits) -> Result<Step, Reject> {
        match &mut self.0 {
            State::Length(left) => {
                let take = usize::try_from(*left).unwrap_or(usize::MAX).min(bytes.len());
                *left -= take as u64;
                Ok(Step { consumed: take, data: 0..take, done: *left == 0 })
            }
            State::Chunked(chunked) => chunked.decode(bytes, limits),
        }
    }
}
