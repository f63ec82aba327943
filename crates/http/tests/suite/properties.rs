//! Properties of the whole crate: pieces make no difference, nothing panics, written messages are
//! parsed.

use crate::common::{End, serve};
use pollux_http::{
    Limits,
    accept_encoding::{Coding, Preferences},
    date,
    etag::ETags,
    multipart::Multipart,
    path::SafePath,
    range::{MAX_RANGES, Selection, select},
    request::Framing,
};
use proptest::{prelude::*, sample::Index};

/// Small limits, which are reached often.
const TIGHT: Limits = Limits {
    request_line: 64,
    header_section: 256,
    fields: 8,
    body: 64,
    chunk_line: 16,
    trailer_section: 32,
    https: false,
};

/// Requests that exercise each rule; mutations start from these.
const CORPUS: &[&str] = &[
    "GET / HTTP/1.1\r\nHost: a\r\n\r\n",
    "\r\nGET /a/b?c=d HTTP/1.1\r\nHost: a.b:80\r\nAccept: */*\r\nConnection: keep-alive\r\n\r\n",
    "HEAD / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
    "GET / HTTP/1.0\r\n\r\n",
    "POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\nhello",
    "POST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5;a=b\r\nhello\r\n0\r\nT: u\r\n\r\n",
    "PUT /x HTTP/1.1\r\nHost: [::1]\r\nTransfer-Encoding: Chunked\r\n\r\n1\r\na\r\n2\r\nbc\r\n0\r\n\r\n",
    "GET http://a.b/c?d HTTP/1.1\r\nHost: x\r\nRange: bytes=0-1\r\nIf-Range: \"a\"\r\n\r\n",
    "OPTIONS * HTTP/1.1\r\nHost:\r\n\r\n",
    "CONNECT a:443 HTTP/1.1\r\nHost: a:443\r\n\r\n",
    "GET / HTTP/1.4\r\nhost: a\r\nA: b\r\nB: c\r\nC:\r\nD:\t\r\nE: \u{e9}\r\n\r\n",
    "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
    "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
];

/// Fragments with special meaning that mutations insert.
const FRAGMENTS: &[&str] = &[
    "\r",
    "\n",
    "\r\n",
    "\r\n\r\n",
    "\n\n",
    " ",
    "\t",
    ":",
    ",",
    ";",
    "\0",
    "\x7f",
    "\x0b",
    "0",
    "1",
    "f",
    "\"",
    "/",
    "?",
    "*",
    "Content-Length: 5\r\n",
    "Content-Length: 0\r\n",
    "Host: b\r\n",
    "Transfer-Encoding: chunked\r\n",
    "Transfer-Encoding: gzip\r\n",
    "Connection: close\r\n",
    "HTTP/1.0",
    "GET ",
    "%2e",
    "chunked",
    "100-continue",
    "\r\n ",
    "0\r\n\r\n",
    "18446744073709551616",
];

#[derive(Clone, Debug)]
enum Mutation {
    Change(Index, u8),
    FlipBit(Index, u8),
    Remove(Index, usize),
    Insert(Index, Index),
    Copy(Index, Index, usize),
    Swap(Index, Index),
}

fn mutation() -> impl Strategy<Value = Mutation> {
    prop_oneof![
        (any::<Index>(), any::<u8>()).prop_map(|(at, byte)| Mutation::Change(at, byte)),
        (any::<Index>(), 0u8..8).prop_map(|(at, bit)| Mutation::FlipBit(at, bit)),
        (any::<Index>(), 1usize..12).prop_map(|(at, len)| Mutation::Remove(at, len)),
        (any::<Index>(), any::<Index>()).prop_map(|(at, what)| Mutation::Insert(at, what)),
        (any::<Index>(), any::<Index>(), 1usize..40)
            .prop_map(|(from, to, len)| Mutation::Copy(from, to, len)),
        (any::<Index>(), any::<Index>()).prop_map(|(a, b)| Mutation::Swap(a, b)),
    ]
}

fn apply(wire: &mut Vec<u8>, mutation: &Mutation) {
    if wire.is_empty() {
        return;
    }
    match mutation {
        Mutation::Change(at, byte) => {
            let at = at.index(wire.len());
            wire[at] = *byte;
        }
        Mutation::FlipBit(at, bit) => {
            let at = at.index(wire.len());
            wire[at] ^= 1 << bit;
        }
        Mutation::Remove(at, len) => {
            let at = at.index(wire.len());
            wire.drain(at..(at + len).min(wire.len()));
        }
        Mutation::Insert(at, what) => {
            let at = at.index(wire.len() + 1);
            let what = FRAGMENTS[what.index(FRAGMENTS.len())];
            wire.splice(at..at, what.bytes());
        }
        Mutation::Copy(from, to, len) => {
            let from = from.index(wire.len());
            let piece = wire[from..(from + len).min(wire.len())].to_vec();
            let to = to.index(wire.len() + 1);
            wire.splice(to..to, piece);
        }
        Mutation::Swap(a, b) => {
            let (a, b) = (a.index(wire.len()), b.index(wire.len()));
            wire.swap(a, b);
        }
    }
}

/// Several requests of the corpus in sequence, mutated.
fn wire(mutations: std::ops::Range<usize>) -> impl Strategy<Value = Vec<u8>> {
    let requests = proptest::collection::vec(proptest::sample::select(CORPUS), 1..5);
    (requests, proptest::collection::vec(mutation(), mutations)).prop_map(
        |(requests, mutations)| {
            let mut wire = requests.concat().into_bytes();
            mutations.iter().for_each(|mutation| apply(&mut wire, mutation));
            wire
        },
    )
}

fn cuts(wire: &[u8], cuts: &[Index]) -> Vec<usize> {
    cuts.iter().map(|cut| cut.index(wire.len() + 1)).collect()
}

/// Reads `wire` whole and in pieces, and expects the same requests. If one is rejected, the other
/// is rejected too, or still waits for the end of the invalid head.
fn same_in_pieces(wire: &[u8], cuts: &[usize], limits: &Limits) -> Result<(), TestCaseError> {
    let (whole, whole_end) = serve(wire, &[], limits);
    let (pieces, pieces_end) = serve(wire, cuts, limits);
    prop_assert_eq!(whole, pieces);
    match (whole_end, pieces_end) {
        (End::Rejected(_), End::Rejected(_) | End::Partial) => {}
        _ => prop_assert_eq!(whole_end, pieces_end),
    }
    Ok(())
}

fn file_name_byte() -> impl Strategy<Value = u8> {
    (0x20u8..=0xff).prop_map(|b| if matches!(b, b'/' | b'\\' | 0x7f) { b'x' } else { b })
}

proptest! {
    // Regressions are added to a table as separate cases.
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_split_gives_the_same_requests(
        wire in wire(0..1), cut in proptest::collection::vec(any::<Index>(), 0..40),
    ) {
        let cuts = cuts(&wire, &cut);
        same_in_pieces(&wire, &cuts, &Limits::DEFAULT)?;
        same_in_pieces(&wire, &cuts, &TIGHT)?;
    }

    #[test]
    fn any_split_of_damaged_requests_gives_the_same(
        wires in proptest::collection::vec(wire(1..8), 16),
        cut in proptest::collection::vec(any::<Index>(), 0..40),
    ) {
        for wire in wires {
            let each: Vec<usize> = (0..wire.len()).collect();
            for limits in [Limits::DEFAULT, TIGHT] {
                same_in_pieces(&wire, &cuts(&wire, &cut), &limits)?;
                same_in_pieces(&wire, &each, &limits)?;
            }
        }
    }

    /// If a prefix is rejected, the whole is rejected; an accepted request does not depend on later
    /// bytes.
    #[test]
    fn later_bytes_do_not_change_earlier_requests(
        wire in wire(0..6), end in any::<Index>(), tail in proptest::collection::vec(any::<u8>(), 0..40),
    ) {
        let start = &wire[..end.index(wire.len() + 1)];
        let (before, before_end) = serve(start, &[], &Limits::DEFAULT);
        for longer in [wire.clone(), [start, &tail[..]].concat()] {
            let (after, after_end) = serve(&longer, &[], &Limits::DEFAULT);
            let is_open = before_end == End::Partial && before.last().is_some_and(|t| t.framing != Framing::None);
            let stable = before.len() - usize::from(is_open);
            prop_assert_eq!(&before[..stable], &after[..stable]);
            if let End::Rejected(_) = before_end {
                prop_assert!(matches!(after_end, End::Rejected(_)));
            }
        }
    }

    #[test]
    fn arbitrary_bytes_do_no_harm(
        bytes in proptest::collection::vec(any::<u8>(), 0..300),
        cut in proptest::collection::vec(any::<Index>(), 0..20),
    ) {
        same_in_pieces(&bytes, &cuts(&bytes, &cut), &Limits::DEFAULT)?;
        let _ = date::parse(&bytes);
        let _ = ETags::new(&bytes).count();
        let _ = Preferences::parse([&bytes[..]].into_iter()).choose(Coding::ALL);
        let _ = select(&bytes, 1000);
        let in_section = [b"GET / HTTP/1.1\r\nHost: a\r\n", &bytes[..]].concat();
        same_in_pieces(&in_section, &cuts(&in_section, &cut), &Limits::DEFAULT)?;
    }

    #[test]
    fn written_requests_are_parsed(
        method in "[A-Z]{1,12}",
        path in "/[a-z0-9/._~-]{0,40}",
        query in proptest::option::of("[a-z0-9=&%?/]{0,30}"),
        fields in proptest::collection::vec(("[xX]-[A-Za-z0-9-]{1,20}", "[!-~]([ -~\t]{0,60}[!-~])?"), 0..60),
        body in proptest::collection::vec(any::<u8>(), 0..200),
    ) {
        prop_assume!(method != "CONNECT");
        let query = query.map(|query| format!("?{query}")).unwrap_or_default();
        let line = format!("{method} {path}{query} HTTP/1.1");
        let mut text = format!("{line}\r\nHost: a\r\nContent-Length: {}\r\n", body.len());
        for (name, value) in &fields {
            text += &format!("{name}: \t{value} \r\n");
        }
        let wire = [text.as_bytes(), b"\r\n", &body[..]].concat();
        let (accepted, end) = serve(&wire, &[], &Limits::DEFAULT);
        prop_assert_eq!(end, End::Clean);
        prop_assert_eq!(accepted.len(), 1);
        prop_assert_eq!(&accepted[0].line, &line);
        prop_assert_eq!(&accepted[0].body, &body);
        let got = accepted[0].fields[2..].iter().map(|(name, value)| (&name[..], &value[..]));
        prop_assert!(got.eq(fields.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes()))));
    }

    /// A resolved path stays below the root, and resolving it again does not change it.
    #[test]
    fn paths_stay_below_the_root(path in "/([a.]|/|%2[eEfF5]|%41|%00|%c3|[\\\\%~]){0,12}") {
        let mut scratch = Vec::new();
        if let Ok(safe) = SafePath::new(path.as_bytes(), &mut scratch) {
            let segments: Vec<&[u8]> = safe.as_bytes()[1..].split(|&b| b == b'/').collect();
            for (i, segment) in segments.iter().enumerate() {
                prop_assert!(*segment != b"." && *segment != b"..", "{path}");
                prop_assert!(!segment.is_empty() || i + 1 == segments.len(), "{path}");
                prop_assert!(!segment.contains(&0) && !segment.contains(&b'\\'), "{path}");
            }
            prop_assert_eq!(safe.is_canonical(), safe.as_bytes() == path.as_bytes());
            let dotted = segments.iter().any(|segment| segment.starts_with(b"."));
            prop_assert_eq!(safe.has_dotfile(), dotted, "{}", path);
        }
    }

    #[test]
    fn percent_encoding_is_reversible(name in proptest::collection::vec(file_name_byte(), 1..40)) {
        prop_assume!(name != b"." && name != b"..");
        let encoded: String = name.iter().map(|byte| format!("%{byte:02x}")).collect();
        let mut scratch = Vec::new();
        let path = format!("/{encoded}");
        let safe = SafePath::new(path.as_bytes(), &mut scratch);
        prop_assert_eq!(safe.map(|safe| safe.relative().to_vec()), Ok(name));
    }

    /// Ranges lie within the representation, and the response is never far longer than it.
    #[test]
    fn ranges_lie_within(
        specs in proptest::collection::vec(
            (proptest::option::of(0u64..120), proptest::option::of(0u64..120)), 0..40),
        size in 0u64..110,
    ) {
        let text = |end: Option<u64>| end.map(|end| end.to_string()).unwrap_or_default();
        let specs: Vec<_> = specs.iter().map(|&(a, b)| format!("{}-{}", text(a), text(b))).collect();
        if let Selection::Parts(parts) = select(format!("bytes={}", specs.join(",")).as_bytes(), size) {
            let ranges = parts.as_slice();
            prop_assert!(!ranges.is_empty() && ranges.len() <= MAX_RANGES);
            prop_assert!(ranges.iter().all(|range| range.first <= range.last && range.last < size));
            prop_assert!(ranges.iter().map(|range| range.len()).sum::<u64>() <= size);
            let multipart = Multipart::new(7, b"text/plain", size);
            prop_assert!(multipart.content_length(&parts) < size + 200 * (ranges.len() as u64 + 1));
        }
    }

    #[test]
    fn formatted_dates_are_parsed_back(second in 0u64..253_402_300_800) {
        prop_assert_eq!(date::parse(&date::format(second)), Some(second));
    }
}
