//! Responses of origins: heads, content, trailers and errors do not depend on the pieces in which the responses
//! arrive.

use pollux_http::reply::{Event, Reader, ReplyHead, RequestInfo};

/// The output of the reader, with all content in one piece.
#[derive(Debug, Default, PartialEq, Eq)]
struct ReaderOutput {
    heads: Vec<(u16, String, Vec<Vec<u8>>)>,
    content: Vec<u8>,
    end: String,
    has_failed: bool,
}

impl ReaderOutput {
    fn add_head(&mut self, head: &ReplyHead<'_>) {
        let fields = head.fields().map(|field| [field.name, b": ", field.value].concat());
        self.heads.push((head.status, format!("{:?}", head.content), fields.collect()));
    }
}

fn read(wire: &[u8], size: usize, request: RequestInfo) -> ReaderOutput {
    let mut reader = Reader::new(Reader::LIMITS);
    reader.begin(request);
    let mut seen = ReaderOutput::default();
    let (mut at, mut end) = (0, 0);
    loop {
        let output = match reader.read(&wire[at..end]) {
            Ok(output) => output,
            Err(error) => {
                (seen.end, seen.has_failed) = (format!("{error:?}"), true);
                return seen;
            }
        };
        assert!(output.consumed <= end - at);
        at += output.consumed;
        match output.event {
            Event::NeedMore if end == wire.len() => break,
            Event::NeedMore => end = end.saturating_add(size).min(wire.len()),
            Event::Interim(head) | Event::Head(head) => seen.add_head(&head),
            // The planted fault: content of exactly one piece is lost.
            Event::Content(bytes) if crate::planted() && bytes.len() == size => {}
            Event::Content(bytes) => seen.content.extend_from_slice(bytes),
            Event::End { trailers, next } => {
                seen.end = format!("{} trailers, {next:?}", trailers.count());
                return seen;
            }
        }
    }
    match reader.finish() {
        Ok(_) => seen.end = "ended by the connection".into(),
        Err(error) => (seen.end, seen.has_failed) = (format!("{error:?}"), true),
    }
    seen
}

/// The input is the size of the pieces, properties of the request, and the received bytes.
pub fn check(data: &[u8]) {
    let Some((size, rest)) = crate::in_pieces(data) else { return };
    let Some((&flags, wire)) = rest.split_first() else { return };
    let request = RequestInfo { head: flags & 1 != 0, upgrade: flags & 2 != 0 };
    let (whole, pieces) = (read(wire, usize::MAX, request), read(wire, size, request));
    // The content that arrived before an error is reported before the error.
    if whole.has_failed && pieces.has_failed {
        assert_eq!(whole.heads, pieces.heads, "in pieces of {size}: {}", wire.escape_ascii());
        let length = whole.content.len().min(pieces.content.len());
        assert_eq!(whole.content[..length], pieces.content[..length]);
    } else {
        assert_eq!(whole, pieces, "in pieces of {size}: {}", wire.escape_ascii());
    }
}
