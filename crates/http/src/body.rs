//! Message bodies: finds the end of a body piece by piece, without buffering it.

mod chunked;

use crate::{Limits, Reject, request::Framing};
use chunked::Chunked;
use std::ops::Range;

/// Follows one body through the bytes as they arrive.
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

/// The result of one call of [`Decoder::decode`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecodeOutput {
    /// The number of input bytes that belong to the body and are processed. At least 1 unless the
    /// input is empty or the body has ended.
    pub consumed: usize,
    /// The range of the input that is content; empty if the processed bytes are framing only.
    pub data: Range<usize>,
    /// Whether the body has ended. Later bytes do not belong to it.
    pub done: bool,
}

impl Decoder {
    /// Creates a decoder for a body with this framing.
    pub fn new(framing: Framing) -> Self {
        Self(match framing {
            Framing::None => State::Length(0),
            Framing::Length(length) => State::Length(length),
            Framing::Chunked => State::Chunked(Chunked::new()),
        })
    }

    /// Like [`Decoder::new`], but stores the trailer section for [`Decoder::trailers`], which costs
    /// an allocation if there is one.
    pub fn with_trailers(framing: Framing) -> Self {
        let mut decoder = Self::new(framing);
        if let State::Chunked(chunked) = &mut decoder.0 {
            chunked.store_trailers();
        }
        decoder
    }

    /// Whether the body has ended.
    pub fn is_done(&self) -> bool {
        match &self.0 {
            State::Length(left) => *left == 0,
            State::Chunked(chunked) => chunked.is_done(),
        }
    }

    /// The field lines of the trailer section as sent, each with CRLF, for
    /// [`Fields`](crate::fields::Fields). Complete once the body has ended; always empty without
    /// [`Decoder::with_trailers`]. At most [`Limits::trailer_section`] bytes.
    pub fn trailers(&self) -> &[u8] {
        match &self.0 {
            State::Length(_) => b"",
            State::Chunked(chunked) => chunked.trailers(),
        }
    }

    /// Processes bytes up to the end of one run of content. Call it again with the bytes that were
    /// not consumed.
    ///
    /// # Errors
    /// 400 for invalid chunk syntax (RFC 9112 §7.1), 413 and 431 for exceeded `limits`. The decoder
    /// cannot be used after an error.
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
