//! Responses with damaged framing: the result does not depend on how the bytes are split, content
//! is never longer than announced, and incomplete responses are not stored.

use crate::harness::{Harness, parse_request, request};
use pollux_cache::Decision;
use pollux_http::reply::{Content, Event, Reader, RequestInfo};
use proptest::{prelude::*, sample::Index};

/// The result of reading one response.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct ReadOutcome {
    status: Option<u16>,
    content: Vec<u8>,
    is_complete: bool,
    /// The body with which the store answers the next request.
    stored: Option<Vec<u8>>,
}

/// Reads `wire` in pieces that end at `cuts`, closes the connection, and passes everything to a
/// cache as the front end does.
fn read(wire: &[u8], cuts: &[usize]) -> ReadOutcome {
    let mut harness = Harness::default();
    let head = request("GET /", "");
    let Decision::Fetch(fetch) = harness.lookup(&head, None, false) else { panic!("it is empty") };
    let now = harness.now;
    let mut reader = Reader::new(Reader::LIMITS);
    reader.begin(RequestInfo::default());
    let mut outcome = ReadOutcome::default();
    let (mut is_storing, mut limit) = (false, 0);
    let mut start = 0;
    'wire: for end in cuts.iter().copied().chain([wire.len()]) {
        while let Ok(step) = reader.read(&wire[start..end]) {
            start += step.consumed;
            match step.event {
                Event::NeedMore => continue 'wire,
                Event::Interim(_) => {}
                Event::Head(reply) => {
                    outcome.status = Some(reply.status);
                    limit = match reply.content {
                        Content::None => 0,
                        Content::Length(length) => length,
                        Content::Chunked | Content::UntilClose => u64::MAX,
                    };
                    let decision =
                        harness.cache.head(fetch.ticket, &parse_request(&head), &reply, now, now);
                    is_storing = decision.should_store;
                }
                Event::Content(bytes) => {
                    outcome.content.extend_from_slice(bytes);
                    assert!(outcome.content.len() as u64 <= limit, "longer than its head says");
                    is_storing = is_storing && harness.cache.append(fetch.ticket, bytes);
                }
                Event::End { .. } => {
                    outcome.is_complete = true;
                    break 'wire;
                }
            }
        }
        if !outcome.is_complete {
            // On an error the front end closes the connection.
            harness.cache.abort(fetch.ticket);
            break;
        }
    }
    outcome.is_complete = outcome.is_complete || reader.finish().is_ok();
    if outcome.is_complete && is_storing {
        harness.cache.finish(fetch.ticket);
    } else {
        harness.cache.abort(fetch.ticket);
    }
    if let Decision::Serve(hit) = harness.lookup(&head, None, true) {
        outcome.stored = Some(harness.serve_hit(&head, &hit).body);
    }
    outcome
}

/// The framing of a response, according to an independent parser.
#[derive(Debug, PartialEq, Eq)]
enum Framing {
    Whole(Vec<u8>),
    Partial,
    /// Ambiguous, or not understood by this parser.
    Ambiguous,
}

fn framing_of(wire: &[u8]) -> Framing {
    let Some(end) = wire.windows(4).position(|window| window == b"\r\n\r\n") else {
        return Framing::Partial;
    };
    let (head, rest) = (&wire[..end], &wire[end + 4..]);
    let Ok(head) = std::str::from_utf8(head) else { return Framing::Ambiguous };
    let mut lines = head.split("\r\n");
    if lines.next().is_none_or(|line| !line.starts_with("HTTP/1.1 200")) {
        return Framing::Ambiguous;
    }
    let (mut length, mut is_chunked) = (None, false);
    for line in lines {
        let Some((name, value)) = line.split_once(':') else { return Framing::Ambiguous };
        // White space before the colon does not belong to the name (RFC 9112 §5.1).
        let name = name.trim_end_matches([' ', '\t']);
        if name.eq_ignore_ascii_case("content-length") {
            let digits = value.trim();
            if length.is_some() || digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit())
            {
                return Framing::Ambiguous;
            }
            let Ok(number) = digits.parse::<usize>() else { return Framing::Ambiguous };
            length = Some(number);
        } else if name.eq_ignore_ascii_case("transfer-encoding") {
            if is_chunked || !value.trim().eq_ignore_ascii_case("chunked") {
                return Framing::Ambiguous;
            }
            is_chunked = true;
        }
    }
    match (length, is_chunked) {
        (Some(_), true) => Framing::Ambiguous,
        (Some(length), false) if rest.len() < length => Framing::Partial,
        (Some(length), false) => Framing::Whole(rest[..length].to_vec()),
        (None, true) => chunks(rest),
        (None, false) => Framing::Whole(rest.to_vec()),
    }
}

fn chunks(mut rest: &[u8]) -> Framing {
    let mut content = Vec::new();
    loop {
        let Some(end) = rest.windows(2).position(|window| window == b"\r\n") else {
            return Framing::Partial;
        };
        let line = String::from_utf8_lossy(&rest[..end]).into_owned();
        let Ok(size) = usize::from_str_radix(&line, 16) else { return Framing::Ambiguous };
        rest = &rest[end + 2..];
        if size == 0 {
            let has_end = rest.starts_with(b"\r\n") || rest.windows(4).any(|w| w == b"\r\n\r\n");
            return if has_end { Framing::Whole(content) } else { Framing::Partial };
        }
        let Some(after) = rest.get(size..) else { return Framing::Partial };
        content.extend_from_slice(&rest[..size]);
        match after {
            [b'\r', b'\n', later @ ..] => rest = later,
            [] | [b'\r'] => return Framing::Partial,
            _ => return Framing::Ambiguous,
        }
    }
}

#[derive(Clone, Debug)]
enum Mutation {
    Flip(Index, u8),
    Remove(Index, usize),
    Repeat(Index, usize),
    Insert(Index, &'static str),
    Cut(Index),
}

fn mutation() -> impl Strategy<Value = Mutation> {
    const PIECES: &[&str] = &[
        "\r\n",
        "\r",
        "\n",
        " ",
        "\t",
        ",",
        ":",
        "0",
        "f",
        "\0",
        "\r\n\r\n",
        "0\r\n\r\n",
        "5\r\n",
        "ffffffffffffffff\r\n",
        "+",
        ";a=b",
        "\r\nContent-Length: 5",
        "\r\nContent-Length: 18446744073709551615",
        "\r\nTransfer-Encoding: chunked",
        "\r\nTransfer-Encoding: gzip, chunked",
        "\r\nConnection: close",
        "\r\nConnection: content-length",
        "HTTP/1.1 200 OK\r\n",
        "HTTP/1.1 100 Continue\r\n\r\n",
        "HTTP/1.0 200 OK\r\n",
    ];
    prop_oneof![
        1 => (any::<Index>(), any::<u8>()).prop_map(|(at, mask)| Mutation::Flip(at, mask)),
        1 => (any::<Index>(), 1usize..20).prop_map(|(at, len)| Mutation::Remove(at, len)),
        1 => (any::<Index>(), 1usize..40).prop_map(|(at, len)| Mutation::Repeat(at, len)),
        3 => (any::<Index>(), prop::sample::select(PIECES))
            .prop_map(|(at, piece)| Mutation::Insert(at, piece)),
        1 => any::<Index>().prop_map(Mutation::Cut),
    ]
}

fn mutate(wire: &mut Vec<u8>, mutation: &Mutation) {
    let position = |at: &Index| at.index(wire.len() + 1);
    match mutation {
        Mutation::Flip(at, mask) => {
            let at = position(at);
            if let Some(byte) = wire.get_mut(at) {
                *byte ^= mask;
            }
        }
        Mutation::Remove(at, len) => {
            let at = position(at);
            wire.drain(at..wire.len().min(at + len));
        }
        Mutation::Repeat(at, len) => {
            let at = position(at);
            let piece = wire[at..wire.len().min(at + len)].to_vec();
            wire.splice(at..at, piece);
        }
        Mutation::Insert(at, piece) => {
            let at = position(at);
            wire.splice(at..at, piece.bytes());
        }
        Mutation::Cut(at) => {
            let at = position(at);
            wire.truncate(at);
        }
    }
}

/// Unambiguous responses: by length, chunked, or until close.
fn valid() -> impl Strategy<Value = Vec<u8>> {
    let framing = prop::sample::select(vec![0u8, 1, 2]);
    (framing, prop::collection::vec(prop::collection::vec(any::<u8>(), 1..40), 0..5)).prop_map(
        |(framing, parts)| {
            const HEAD: &str = "HTTP/1.1 200 OK\r\nCache-Control: max-age=60\r\nETag: \"a\"\r\n";
            let whole = parts.concat();
            match framing {
                0 => {
                    let head = format!("{HEAD}Content-Length: {}\r\n\r\n", whole.len());
                    [head.as_bytes(), &whole].concat()
                }
                1 => {
                    let head = format!("{HEAD}Transfer-Encoding: chunked\r\n\r\n");
                    let mut wire = head.into_bytes();
                    for part in parts {
                        wire.extend(format!("{:x}\r\n", part.len()).bytes());
                        wire.extend(part);
                        wire.extend(b"\r\n");
                    }
                    wire.extend(b"0\r\nX-Trailer: 1\r\n\r\n");
                    wire
                }
                _ => [format!("{HEAD}\r\n").as_bytes(), &whole].concat(),
            }
        },
    )
}

fn check(wire: &[u8], cuts: &[Index]) -> ReadOutcome {
    let whole = read(wire, &[]);
    let each: Vec<usize> = (1..wire.len()).collect();
    assert_eq!(read(wire, &each), whole, "byte by byte");
    let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(wire.len() + 1)).collect();
    cuts.sort_unstable();
    assert_eq!(read(wire, &cuts), whole, "in pieces that end at {cuts:?}");
    if let Some(stored) = &whole.stored {
        assert_eq!(stored, &whole.content, "what is stored is what was passed on");
        match framing_of(wire) {
            Framing::Whole(content) => assert_eq!(*stored, content),
            Framing::Partial => panic!("stored, and not whole"),
            Framing::Ambiguous => assert!(stored.len() <= wire.len()),
        }
    }
    whole
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn mutated_responses_are_read_consistently_and_never_stored_partially(
        wire in valid(),
        mutations in prop::collection::vec(mutation(), 0..4),
        cuts in prop::collection::vec(any::<Index>(), 0..6),
    ) {
        let mut wire = wire;
        mutations.iter().for_each(|mutation| mutate(&mut wire, mutation));
        check(&wire, &cuts);
    }

    #[test]
    fn valid_responses_are_stored_and_truncated_ones_are_not(wire in valid(), cut in any::<Index>()) {
        let whole = check(&wire, &[cut]);
        prop_assert_eq!(whole.stored.map(Framing::Whole), Some(framing_of(&wire)));
        let is_until_close = !wire.windows(10).any(|w| w == b"Content-Le" || w == b"Transfer-E");
        let part = &wire[..cut.index(wire.len())];
        let stored = check(part, &[cut]).stored;
        // The end of such a response cannot be verified.
        prop_assert_eq!(stored.is_some(), is_until_close && part.windows(4).any(|w| w == b"\r\n\r\n"));
    }
}

/// Checks the independent parser itself.
#[test]
fn the_independent_parser_distinguishes_complete_from_partial() {
    let head = "HTTP/1.1 200 OK\r\n";
    for (rest, expected) in [
        ("Content-Length: 2\r\n\r\nhi", Framing::Whole(b"hi".to_vec())),
        ("Content-Length: 3\r\n\r\nhi", Framing::Partial),
        ("Content-Length: 3\r\nContent-Length: 2\r\n\r\nhi", Framing::Ambiguous),
        ("Transfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n", Framing::Whole(b"hi".to_vec())),
        ("Transfer-Encoding\t : chunked\r\n\r\n0\r\n\r\n", Framing::Whole(Vec::new())),
        ("Transfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n", Framing::Partial),
        ("Transfer-Encoding: chunked\r\n\r\n2\r\nhi!", Framing::Ambiguous),
    ] {
        assert_eq!(framing_of(format!("{head}{rest}").as_bytes()), expected, "{rest}");
    }
}
