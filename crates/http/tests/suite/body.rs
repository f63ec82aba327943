//! Bodies: lengths, and the chunked coding of RFC 9112 §7.1.

use pollux_http::{Limits, Status, body::Decoder, request::Framing, response};
use proptest::prelude::*;

/// Returns the content and the number of consumed bytes, or the error status; `Ok(None)` if the
/// body is incomplete.
fn decode(
    framing: Framing,
    wire: &[u8],
    piece: usize,
    limits: &Limits,
) -> Result<Option<(Vec<u8>, usize)>, Status> {
    let mut decoder = Decoder::new(framing);
    let (mut at, mut content) = (0, Vec::new());
    while !decoder.is_done() {
        if at == wire.len() {
            return Ok(None);
        }
        let end = (at + piece).min(wire.len());
        let step = decoder.decode(&wire[at..end], limits).map_err(|reject| reject.status)?;
        assert!(step.consumed > 0);
        content.extend_from_slice(&wire[at..][step.data]);
        at += step.consumed;
    }
    Ok(Some((content, at)))
}

fn chunked(wire: &str) -> Result<Option<(Vec<u8>, usize)>, Status> {
    let limits =
        Limits { body: 1000, chunk_line: 20, trailer_section: 40, fields: 3, ..Limits::DEFAULT };
    let whole = decode(Framing::Chunked, wire.as_bytes(), usize::MAX / 2, &limits);
    for piece in [1, 2, 5] {
        let pieces = decode(Framing::Chunked, wire.as_bytes(), piece, &limits);
        assert_eq!(whole, pieces, "{wire:?} in pieces of {piece}");
    }
    whole
}

#[track_caller]
fn is(wire: &str, content: &str) {
    assert_eq!(chunked(wire), Ok(Some((content.into(), wire.len()))), "{wire:?}");
}

#[test]
fn a_length_counts_bytes() {
    let limits = Limits::DEFAULT;
    for piece in [1, 3, 100] {
        let got = decode(Framing::Length(5), b"helloGET", piece, &limits);
        assert_eq!(got, Ok(Some((b"hello".to_vec(), 5))));
        assert_eq!(decode(Framing::Length(5), b"hell", piece, &limits), Ok(None));
    }
    assert_eq!(decode(Framing::None, b"x", 1, &limits), Ok(Some((vec![], 0))));
    assert_eq!(decode(Framing::Length(u64::MAX), b"x", 1, &limits), Ok(None));
}

#[test]
fn chunks_7_1() {
    is("0\r\n\r\n", "");
    is("000\r\n\r\n", "");
    is("3\r\nabc\r\n0\r\n\r\n", "abc");
    is("3\r\nabc\r\nA\r\n0123456789\r\n0000000000000000\r\n\r\n", "abc0123456789");
    is("0000000000000003\r\na\r\n\r\n0\r\n\r\n", "a\r\n");
    is(&format!("1f\r\n{0}\r\n1F\r\n{0}\r\n0\r\n\r\n", "x".repeat(31)), &"x".repeat(62));
}

#[test]
fn extensions_are_checked_and_ignored_7_1_1() {
    for extension in [
        ";a",
        ";a=b",
        ";a=\"b c\"",
        ";a;b;c",
        " ; a = b ; c",
        "\t;a",
        ";a=\"\\\"\"",
        ";a=\"\"",
        ";a=\"\\\t\" ;b",
        ";!#$=%&'*+",
    ] {
        is(&format!("1{extension}\r\nx\r\n0{extension}\r\n\r\n"), "x");
    }
    for extension in [
        ";",
        ";;",
        ";=",
        ";a=",
        ";a==b",
        ";a b",
        ";a=b c",
        ";a=\"b",
        ";a=\"b\"c",
        " ",
        " a",
        ";a ",
        ";a=\"\x7f\"",
        ";a=b=c",
        ";(",
        "; ",
        ";a; ",
        ";a=\"b\" ",
        ";a=\"\\\0\"",
    ] {
        let wire = format!("1{extension}\r\nx\r\n0\r\n\r\n");
        assert_eq!(chunked(&wire), Err(Status::BadRequest), "{wire:?}");
    }
}

#[test]
fn trailers_are_checked_and_kept_apart_7_1_2() {
    for (wire, trailers) in [
        ("0\r\n\r\nX: y\r\n\r\n", ""),
        ("0\r\nA: b\r\n\r\nX: y\r\n\r\n", "A: b\r\n"),
        ("3\r\nabc\r\n0\r\nA:\r\nB: \t c \r\nC:\u{e9}\r\n\r\n", "A:\r\nB: \t c \r\nC:\u{e9}\r\n"),
    ] {
        for piece in 1..=wire.len() {
            let mut decoder = Decoder::with_trailers(Framing::Chunked);
            let mut at = 0;
            while !decoder.is_done() {
                let end = (at + piece).min(wire.len());
                let step = decoder.decode(&wire.as_bytes()[at..end], &Limits::DEFAULT).unwrap();
                at += step.consumed;
            }
            assert_eq!(decoder.trailers(), trailers.as_bytes(), "{wire:?} in pieces of {piece}");
        }
    }
    assert_eq!(Decoder::new(Framing::Length(3)).trailers(), b"");
}

#[test]
fn everything_is_limited() {
    // A line of 20 bytes with its extension, a section of 40 with its end, 3 fields, a body of
    // 1000.
    is(&format!("0;{}\r\n\r\n", "a".repeat(18)), "");
    assert_eq!(chunked(&format!("0;{}\r\n\r\n", "a".repeat(19))), Err(Status::BadRequest));
    assert_eq!(chunked(&format!("0;{}", "a".repeat(1000))), Err(Status::BadRequest));
    is(&format!("0\r\nA:{}\r\n\r\n", "b".repeat(36)), "");
    let long = |n: usize| chunked(&format!("0\r\nA:{}\r\n\r\n", "b".repeat(n)));
    assert_eq!(long(37), Err(Status::FieldsTooLarge));
    assert_eq!(chunked(&format!("0\r\nA:{}", "b".repeat(999))), Err(Status::FieldsTooLarge));
    is("0\r\nA:\r\nB:\r\nC:\r\n\r\n", "");
    assert_eq!(chunked("0\r\nA:\r\nB:\r\nC:\r\nD:\r\n\r\n"), Err(Status::FieldsTooLarge));
    assert!(chunked(&format!("3e8\r\n{}\r\n0\r\n\r\n", "x".repeat(1000))).is_ok());
    assert_eq!(chunked("3e9\r\n"), Err(Status::ContentTooLarge));
    let two = format!("3e8\r\n{}\r\n1\r\n", "x".repeat(1000));
    assert_eq!(chunked(&two), Err(Status::ContentTooLarge));
}

/// Regression: only the extension of each chunk was limited, and not their sum.
#[test]
fn extensions_of_many_chunks_are_limited_7_1_1() {
    let outcome = |size: usize, extension: usize, chunks: usize| {
        let chunk = format!("{size:x};{}\r\n{}\r\n", "e".repeat(extension), "x".repeat(size));
        let wire = chunk.repeat(chunks) + "0\r\n\r\n";
        let content = decode(Framing::Chunked, wire.as_bytes(), 1000, &Limits::DEFAULT);
        content.map(|whole| whole.map(|(content, _)| content.len()))
    };
    // Each chunk has 199 bytes more of extension than of content, and 64 lines of 256 bytes may
    // be more.
    assert_eq!(outcome(1, 199, 82), Ok(Some(82)));
    assert_eq!(outcome(1, 199, 83), Err(Status::BadRequest));
    assert_eq!(outcome(200, 199, 1000), Ok(Some(200_000)));
}

#[test]
fn a_body_that_is_over_takes_nothing_more() {
    let mut decoder = Decoder::new(Framing::Chunked);
    let step = decoder.decode(b"0\r\n\r\nGET", &Limits::DEFAULT).unwrap();
    assert!(step.done && step.consumed == 5);
    let step = decoder.decode(b"GET", &Limits::DEFAULT).unwrap();
    assert!(step.done && step.consumed == 0 && step.data.is_empty());
}

proptest! {
    // Regressions are added to a table as separate cases.
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_is_encoded_is_decoded(
        chunks in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..200), 0..20),
        piece in 1usize..100,
    ) {
        let mut wire = Vec::new();
        for content in &chunks {
            response::chunk(&mut wire, content);
        }
        wire.extend_from_slice(response::LAST_CHUNK);
        let len = wire.len();
        wire.extend_from_slice(b"next");
        let got = decode(Framing::Chunked, &wire, piece, &Limits::DEFAULT);
        prop_assert_eq!(got, Ok(Some((chunks.concat(), len))));
    }

    /// A changed, lost or added byte of framing is detected or results in another valid body,
    /// regardless of the pieces.
    #[test]
    fn pieces_make_no_difference_to_damaged_chunks(
        damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0..3), 1..4),
        piece in 1usize..10,
    ) {
        let mut wire = b"5;a=\"b\"\r\nhello\r\n1A\r\nabcdefghijklmnopqrstuvwxyz\r\n0\r\nA: b\r\n\r\n".to_vec();
        for (index, byte, kind) in damage {
            let at = index.index(wire.len());
            match kind {
                0 => wire[at] = byte,
                1 => { wire.remove(at); }
                _ => wire.insert(at, byte),
            }
        }
        let limits = Limits::DEFAULT;
        let whole = decode(Framing::Chunked, &wire, wire.len(), &limits);
        prop_assert_eq!(whole, decode(Framing::Chunked, &wire, piece, &limits));
    }
}
