//! The chunked transfer coding (RFC 9112 §7.1), parsed strictly.
//!
//! Every line must end in CRLF. A size has 1 to 16 hexadecimal digits. Extensions must follow their
//! grammar and are ignored. Trailer fields must follow their grammar and are dropped, which §7.1.2
//! permits, or stored separately from the header fields. If recipients differed here, a chunk for
//! one of them could hide a request for another.

use super::DecodeOutput;
use crate::{
    Limits, Reject, Status,
    syntax::{TOKEN, hex, is},
};

/// Enough for 64 bits.
const MAX_DIGITS: u32 = 16;

/// The extensions of all chunks may together be as long as the content and this many size lines:
/// without a limit a short body could cost any amount of work (RFC 9112 §7.1.1).
const EXTENSION_LINES: usize = 64;

#[derive(Clone, Debug)]
pub(super) struct Chunked {
    state: State,
    /// The size that is being read, then the remaining length of the chunk's data.
    left: u64,
    /// The length of the content so far, including the current chunk.
    total: u64,
    /// The length of the extensions so far.
    extensions: u64,
    /// The number of bytes of the current line or trailer section.
    line_bytes: u32,
    /// The number of digits of the size, or of trailer fields.
    count: u32,
    /// The field lines of the trailer section so far, if they are to be stored.
    trailers: Option<Vec<u8>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// In the digits of the size.
    Size,
    /// After the digits or a complete extension: `;` or CR is expected.
    Extension(Space),
    /// After `;`: a name is expected.
    NameStart,
    Name,
    /// White space after a name: `=` or `;` is expected.
    NameEnd,
    /// After `=`: a token or a quoted string is expected.
    ValueStart,
    Value,
    Quoted,
    QuotedPair,
    SizeLf,
    Data,
    DataCr,
    DataLf,
    TrailerStart,
    TrailerName,
    TrailerValue,
    TrailerLf,
    LastLf,
    Done,
}

/// Whether white space was seen, after which only `;` may follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Space {
    No,
    Yes,
}

impl Chunked {
    pub(super) fn new() -> Self {
        Self {
            state: State::Size,
            left: 0,
            total: 0,
            extensions: 0,
            line_bytes: 0,
            count: 0,
            trailers: None,
        }
    }

    pub(super) fn is_done(&self) -> bool {
        self.state == State::Done
    }

    /// The field lines of the trailer section, each with CRLF.
    pub(super) fn trailers(&self) -> &[u8] {
        self.trailers.as_deref().unwrap_or_default()
    }

    /// Stores the trailer section instead of dropping it.
    pub(super) fn store_trailers(&mut self) {
        self.trailers = Some(Vec::new());
    }

    pub(super) fn decode(&mut self, bytes: &[u8], limits: &Limits) -> Result<DecodeOutput, Reject> {
        let mut at = 0;
        while self.state != State::Done {
            if self.state == State::Data {
                let here = usize::try_from(self.left).unwrap_or(usize::MAX).min(bytes.len() - at);
                self.left -= here as u64;
                if self.left == 0 {
                    self.state = State::DataCr;
                }
                return Ok(DecodeOutput { consumed: at + here, data: at..at + here, done: false });
            }
            let Some(&byte) = bytes.get(at) else { break };
            self.state = self.next_state(byte, limits)?;
            at += 1;
        }
        Ok(DecodeOutput { consumed: at, data: at..at, done: self.is_done() })
    }

    /// Returns the state after one byte of framing.
    fn next_state(&mut self, byte: u8, limits: &Limits) -> Result<State, Reject> {
        self.line_bytes += 1;
        match self.state {
            State::Size
            | State::Extension(_)
            | State::NameStart
            | State::Name
            | State::NameEnd
            | State::ValueStart
            | State::Value
            | State::Quoted
            | State::QuotedPair => {
                // The CR that ends the line does not count.
                if self.line_bytes as usize > limits.chunk_line && byte != b'\r' {
                    return Err(Reject::bad("the chunk's size line is too long"));
                }
                self.size_line(byte)
            }
            State::SizeLf => self.end_of_size_line(byte, limits),
            State::DataCr => expect(byte, b'\r', State::DataLf),
            State::DataLf => {
                self.begin();
                expect(byte, b'\n', State::Size)
            }
            State::TrailerStart
            | State::TrailerName
            | State::TrailerValue
            | State::TrailerLf
            | State::LastLf => {
                if self.line_bytes as usize > limits.trailer_section + 2 {
                    return Err(Reject::new(
                        Status::FieldsTooLarge,
                        "the trailer section is too long",
                    ));
                }
                let next = self.trailer(byte, limits)?;
                if let Some(trailers) = &mut self.trailers
                    && !matches!(next, State::LastLf | State::Done)
                {
                    trailers.push(byte);
                }
                Ok(next)
            }
            // These states consume no framing.
            State::Data | State::Done => Ok(self.state),
        }
    }

    /// Resets the counters for a new line.
    fn begin(&mut self) {
        self.line_bytes = 0;
        self.count = 0;
        self.left = 0;
    }

    /// Parses `chunk-size [ chunk-ext ]` and the CR.
    fn size_line(&mut self, byte: u8) -> Result<State, Reject> {
        const BAD: Reject = Reject::bad("invalid chunk extension");
        let is_space = matches!(byte, b' ' | b'\t');
        Ok(match self.state {
            State::Size => match (hex(byte), byte) {
                (Some(_), _) if self.count == MAX_DIGITS => {
                    return Err(Reject::bad("the chunk size has too many digits"));
                }
                (Some(digit), _) => {
                    self.count += 1;
                    self.left = self.left << 4 | u64::from(digit);
                    State::Size
                }
                _ if self.count == 0 => return Err(Reject::bad("invalid chunk size")),
                (None, b'\r') => State::SizeLf,
                (None, b';') => State::NameStart,
                _ if is_space => State::Extension(Space::Yes),
                _ => return Err(Reject::bad("invalid chunk size")),
            },
            State::Extension(space) => match byte {
                b'\r' if space == Space::No => State::SizeLf,
                b';' => State::NameStart,
                _ if is_space => State::Extension(Space::Yes),
                _ => return Err(BAD),
            },
            State::NameStart if is_space => State::NameStart,
            State::NameStart | State::Name if is(TOKEN, byte) => State::Name,
            State::Name | State::NameEnd => match byte {
                b'=' => State::ValueStart,
                b';' => State::NameStart,
                b'\r' if self.state == State::Name => State::SizeLf,
                _ if is_space => State::NameEnd,
                _ => return Err(BAD),
            },
            State::ValueStart if is_space => State::ValueStart,
            State::ValueStart if byte == b'"' => State::Quoted,
            State::ValueStart | State::Value if is(TOKEN, byte) => State::Value,
            State::Value => match byte {
                b'\r' => State::SizeLf,
                b';' => State::NameStart,
                _ if is_space => State::Extension(Space::Yes),
                _ => return Err(BAD),
            },
            State::Quoted => match byte {
                b'"' => State::Extension(Space::No),
                b'\\' => State::QuotedPair,
                _ if is_text(byte) => State::Quoted,
                _ => return Err(BAD),
            },
            State::QuotedPair if is_text(byte) => State::Quoted,
            _ => return Err(BAD),
        })
    }

    /// Parses the LF after a size line. Data follows, or the trailer section.
    fn end_of_size_line(&mut self, byte: u8, limits: &Limits) -> Result<State, Reject> {
        // The line without its digits, CR and LF.
        self.extensions += u64::from(self.line_bytes.saturating_sub(self.count + 2));
        self.line_bytes = 0;
        self.count = 0;
        self.total = self.total.saturating_add(self.left);
        if self.total > limits.body {
            return Err(Reject::new(Status::ContentTooLarge, "the body is too long"));
        }
        let lines = limits.chunk_line.saturating_mul(EXTENSION_LINES) as u64;
        if self.extensions > self.total.saturating_add(lines) {
            return Err(Reject::bad("the chunk extensions are too long"));
        }
        expect(byte, b'\n', if self.left == 0 { State::TrailerStart } else { State::Data })
    }

    /// Parses `*( field-line CRLF ) CRLF`.
    fn trailer(&mut self, byte: u8, limits: &Limits) -> Result<State, Reject> {
        match self.state {
            State::TrailerStart if byte == b'\r' => Ok(State::LastLf),
            State::TrailerStart if is(TOKEN, byte) => {
                self.count += 1;
                if self.count as usize > limits.fields {
                    return Err(Reject::new(Status::FieldsTooLarge, "too many trailer fields"));
                }
                Ok(State::TrailerName)
            }
            State::TrailerName if is(TOKEN, byte) => Ok(State::TrailerName),
            State::TrailerName if byte == b':' => Ok(State::TrailerValue),
            State::TrailerValue if byte == b'\r' => Ok(State::TrailerLf),
            State::TrailerValue if is_text(byte) => Ok(State::TrailerValue),
            State::TrailerLf => expect(byte, b'\n', State::TrailerStart),
            State::LastLf => expect(byte, b'\n', State::Done),
            _ => Err(Reject::bad("invalid trailer field")),
        }
    }
}

fn expect(byte: u8, wanted: u8, next: State) -> Result<State, Reject> {
    if byte == wanted { Ok(next) } else { Err(Reject::bad("a chunk's line does not end in CRLF")) }
}

/// HTAB, SP, VCHAR, obs-text.
fn is_text(byte: u8) -> bool {
    byte == b'\t' || byte >= b' ' && byte != 0x7f
}
