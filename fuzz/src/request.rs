//! Heads of requests: the result does not depend on the pieces in which a head arrives, and every recipient reads
//! an accepted head in the same way (no bare CR or LF, no control characters, one framing).

use pollux_http::{
    Limits,
    request::{Framing, HeadParser, ParseStatus, parse},
};

/// The result of parsing a head: its length and framing, "incomplete", or a status code.
#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    Complete(usize, Framing, bool, Vec<(Vec<u8>, Vec<u8>)>),
    Partial,
    Rejected(u16),
}

fn outcome(parsed: Result<ParseStatus<'_>, pollux_http::Reject>, wire: &[u8]) -> Outcome {
    match parsed {
        Ok(ParseStatus::Partial) => Outcome::Partial,
        Ok(ParseStatus::Complete { request, len }) => {
            is_sound(&wire[..len]);
            let fields = request.fields().map(|field| (field.name.to_vec(), field.value.to_vec()));
            Outcome::Complete(len, request.framing, request.keep_alive, fields.collect())
        }
        Err(reject) => Outcome::Rejected(reject.status.code()),
    }
}

fn is_sound(head: &[u8]) {
    for (at, &byte) in head.iter().enumerate() {
        let sound = match byte {
            b'\n' => at > 0 && head[at - 1] == b'\r',
            b'\r' => head.get(at + 1) == Some(&b'\n'),
            b'\t' => true,
            _ => byte >= b' ' && byte != 0x7f,
        };
        assert!(sound, "byte {at} of {}", head.escape_ascii());
    }
}

/// The input is the size of the pieces and the received bytes.
pub fn check(data: &[u8]) {
    let Some((size, wire)) = crate::in_pieces(data) else { return };
    let limits = Limits::DEFAULT;
    let whole = outcome(parse(wire, &limits), wire);

    let mut parser = HeadParser::new();
    let mut end = 0;
    let pieces = loop {
        end = (end + size).min(wire.len());
        // The planted fault: the end of a head is missed if it is also the end of a piece.
        let seen = if crate::planted() { end.saturating_sub(1) } else { end };
        let now = outcome(parser.parse(&wire[..seen], &limits), wire);
        if now != Outcome::Partial || end == wire.len() {
            break now;
        }
    };
    // If a head arrives in pieces, a fault may be reported later, when the line or the head is complete.
    let is_late = matches!((&whole, &pieces), (Outcome::Rejected(_), Outcome::Partial));
    assert!(
        is_late || whole == pieces,
        "{whole:?}, in pieces of {size} {pieces:?}: {}",
        wire.escape_ascii()
    );
}
