//! The text of an event stream, line by line (HTML Standard §9.2.6).

use crate::outcome::Failure;
use pollux_http::text::bytes_without_mark;

/// The longest line that is assembled from pieces.
const MAX_LINE_BYTES: usize = 16 << 20;

/// A line of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Line<'a> {
    /// The value of `id`.
    Id(&'a [u8]),
    /// The value of `data`.
    Data(&'a [u8]),
    /// The end of an event.
    End,
    /// A comment, or another field.
    Other,
}

impl<'a> Line<'a> {
    fn new(line: &'a [u8]) -> Self {
        let value = |name: &[u8]| {
            let value = line.strip_prefix(name)?;
            Some(value.strip_prefix(b" ").unwrap_or(value))
        };
        if line.is_empty() {
            Self::End
        } else if let Some(value) = value(b"data:") {
            Self::Data(value)
        } else if let Some(value) = value(b"id:") {
            Self::Id(value)
        } else {
            Self::Other
        }
    }
}

/// The end of the input so far: the part of a stream that the next input continues.
#[derive(Clone, Debug, Default)]
pub(super) struct Rest {
    /// The start of a line. It owns memory only between the pieces of a line.
    line: Vec<u8>,
    /// The input ended in CR, which has ended a line; an LF that follows belongs to the same line end.
    is_after_cr: bool,
    /// A line was complete: a byte order mark is no longer possible.
    has_begun: bool,
}

/// Calls `line` for each line that ends in `content`. Lines end in LF, CRLF or CR.
///
/// # Errors
/// A line is longer than any server may send.
pub(super) fn split(
    rest: &mut Rest,
    mut content: &[u8],
    mut line: impl FnMut(Line<'_>),
) -> Result<(), Failure> {
    if rest.is_after_cr && !content.is_empty() {
        rest.is_after_cr = false;
        content = content.strip_prefix(b"\n").unwrap_or(content);
    }
    while let Some(end) = memchr::memchr2(b'\n', b'\r', content) {
        if rest.line.is_empty() {
            line(Line::new(rest.without_mark(&content[..end])));
        } else {
            rest.extend(&content[..end])?;
            let whole = std::mem::take(&mut rest.line);
            line(Line::new(rest.without_mark(&whole)));
        }
        let after = &content[end + 1..];
        let is_cr = content[end] == b'\r';
        rest.is_after_cr = is_cr && after.is_empty();
        content = if is_cr { after.strip_prefix(b"\n").unwrap_or(after) } else { after };
    }
    rest.extend(content)
}

impl Rest {
    /// The first line of a stream may begin with a byte order mark.
    fn without_mark<'a>(&mut self, line: &'a [u8]) -> &'a [u8] {
        let is_first = !std::mem::replace(&mut self.has_begun, true);
        if is_first { bytes_without_mark(line) } else { line }
    }

    fn extend(&mut self, piece: &[u8]) -> Result<(), Failure> {
        self.line.extend_from_slice(piece);
        if self.line.len() > MAX_LINE_BYTES { Err(Failure::BadReply) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The lines of `text`, which arrives in pieces of `piece` bytes.
    fn lines(text: &[u8], piece: usize) -> Vec<String> {
        let (mut rest, mut found) = (Rest::default(), Vec::new());
        for piece in text.chunks(piece) {
            split(&mut rest, piece, |line| found.push(format!("{line:?}"))).unwrap();
        }
        assert!(rest.line.is_empty());
        found
    }

    /// Regression test: lines that end in CR alone were once never found, and all deliveries counted as lost.
    #[test]
    fn lines_are_the_same_however_they_end_and_arrive() {
        let expected = [
            Line::Other,
            Line::Id(b"7"),
            Line::Other,
            Line::Data(b"a b"),
            Line::Data(b" c"),
            Line::End,
            Line::Id(b"8"),
            Line::End,
        ]
        .map(|line| format!("{line:?}"));
        for text in [
            ":hello\nid: 7\nevent: x\ndata:a b\ndata:  c\n\nid:8\n\n",
            ":hello\r\nid: 7\r\nevent: x\r\ndata:a b\r\ndata:  c\r\n\r\nid:8\r\n\r\n",
            ":hello\rid: 7\revent: x\rdata:a b\rdata:  c\r\rid:8\r\r",
            ":hello\nid: 7\r\nevent: x\rdata:a b\ndata:  c\n\rid:8\r\n\r",
        ] {
            for piece in 1..=text.len() {
                assert_eq!(
                    lines(text.as_bytes(), piece),
                    expected,
                    "{text:?} in pieces of {piece}"
                );
            }
        }
    }

    /// Regression test: the first line of such a stream once was an unknown field.
    #[test]
    fn a_stream_may_begin_with_a_byte_order_mark() {
        let text = "\u{feff}data:x\n\u{feff}data:y\n";
        for piece in 1..=text.len() {
            let expected = [Line::Data(b"x"), Line::Other].map(|line| format!("{line:?}"));
            assert_eq!(lines(text.as_bytes(), piece), expected, "in pieces of {piece}");
        }
    }

    #[test]
    fn the_length_of_a_line_is_bounded() {
        let mut rest = Rest::default();
        let half = vec![b'x'; MAX_LINE_BYTES / 2];
        assert_eq!(split(&mut rest, &half, |_| ()), Ok(()));
        assert_eq!(split(&mut rest, &half, |_| ()), Ok(()));
        assert_eq!(split(&mut rest, b"x", |_| ()), Err(Failure::BadReply));
    }
}
