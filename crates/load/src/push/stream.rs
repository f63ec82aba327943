//! The text of an event stream, line by line (HTML Standard §9.2.6).

use crate::outcome::Failure;

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
        let line = line.strip_suffix(b"\r").unwrap_or(line);
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

/// Calls `line` for each line that ends in `content`. The start of the next line is stored in `rest`,
/// which owns memory only between the pieces of a line.
///
/// # Errors
/// A line is longer than any server may send.
pub(super) fn split(
    rest: &mut Vec<u8>,
    mut content: &[u8],
    mut line: impl FnMut(Line<'_>),
) -> Result<(), Failure> {
    if !rest.is_empty() {
        let end = memchr::memchr(b'\n', content);
        rest.extend_from_slice(&content[..end.unwrap_or(content.len())]);
        if rest.len() > MAX_LINE_BYTES {
            return Err(Failure::BadReply);
        }
        let Some(end) = end else { return Ok(()) };
        content = &content[end + 1..];
        line(Line::new(&std::mem::take(rest)));
    }
    while let Some(end) = memchr::memchr(b'\n', content) {
        line(Line::new(&content[..end]));
        content = &content[end + 1..];
    }
    rest.extend_from_slice(content);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_the_same_however_they_arrive() {
        let text = b":hello\nid: 7\r\nevent: x\ndata:a b\ndata:  c\n\nid:8\n\n";
        let lines = |pieces: usize| {
            let (mut rest, mut found) = (Vec::new(), Vec::new());
            for piece in text.chunks(pieces) {
                split(&mut rest, piece, |line| found.push(format!("{line:?}"))).unwrap();
            }
            assert!(rest.is_empty());
            found
        };
        let whole = lines(text.len());
        let expected = [
            Line::Other,
            Line::Id(b"7"),
            Line::Other,
            Line::Data(b"a b"),
            Line::Data(b" c"),
            Line::End,
            Line::Id(b"8"),
            Line::End,
        ];
        assert_eq!(whole, expected.map(|line| format!("{line:?}")));
        for pieces in 1..text.len() {
            assert_eq!(lines(pieces), whole, "in pieces of {pieces}");
        }
    }
}
