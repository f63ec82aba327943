//! Bodies in the chunked coding: the result does not depend on the pieces in which a body arrives, content lies
//! within the consumed bytes, and decoding reverses encoding.

use pollux_http::{Limits, body::Decoder, request::Framing, response};

fn decode(wire: &[u8], size: usize) -> Result<Option<(Vec<u8>, usize)>, u16> {
    let mut decoder = Decoder::new(Framing::Chunked);
    let (mut at, mut content) = (0, Vec::new());
    while !decoder.is_done() {
        if at == wire.len() {
            return Ok(None);
        }
        let end = at.saturating_add(size).min(wire.len());
        let output = decoder
            .decode(&wire[at..end], &Limits::DEFAULT)
            .map_err(|reject| reject.status.code())?;
        assert!(output.consumed > 0 && output.consumed <= end - at, "{output:?}");
        assert!(output.data.end <= output.consumed, "{output:?}");
        // The planted fault: a piece that contains only content loses its last byte.
        let lost = usize::from(crate::planted() && output.data.len() == size);
        content.extend_from_slice(&wire[at..][output.data.start..output.data.end - lost]);
        at += output.consumed;
    }
    Ok(Some((content, at)))
}

/// The input is the size of the pieces and the received bytes.
pub fn check(data: &[u8]) {
    let Some((size, wire)) = crate::in_pieces(data) else { return };
    let whole = decode(wire, usize::MAX);
    assert_eq!(whole, decode(wire, size), "in pieces of {size}: {}", wire.escape_ascii());

    let mut encoded = Vec::new();
    for piece in wire.chunks(size) {
        response::chunk(&mut encoded, piece);
    }
    encoded.extend_from_slice(b"0\r\n\r\n");
    let decoded = decode(&encoded, usize::MAX);
    assert_eq!(decoded, Ok(Some((wire.to_vec(), encoded.len()))), "of its own encoding");
}
