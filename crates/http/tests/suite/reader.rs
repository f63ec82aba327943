//! Tests of the strict reader of replies: its results, its rejections, and that pieces make no
//! difference.

use pollux_http::{
    Limits,
    reply::{Content, Event, MAX_INTERIM, Next, Reader, ReplyError, ReplyHead, RequestInfo},
};
use proptest::{prelude::*, sample::Index};

/// Fields, owned.
type Pairs = Vec<(String, String)>;

/// Everything that a reply contained, owned.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct ReplyRecord {
    interim: Vec<(u16, Pairs)>,
    head: Option<(u16, Content, Pairs)>,
    content: Vec<u8>,
    end: Option<(Pairs, Next)>,
    /// The number of consumed bytes.
    consumed: usize,
}

fn owned<'b>(fields: impl Iterator<Item = pollux_http::fields::Field<'b>>) -> Pairs {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    fields.map(|field| (text(field.name), text(field.value))).collect()
}

impl ReplyRecord {
    fn add(&mut self, event: Event<'_>) {
        let fields = |head: &ReplyHead<'_>| owned(head.fields());
        match event {
            Event::NeedMore => {}
            Event::Interim(head) => self.interim.push((head.status, fields(&head))),
            Event::Head(head) => {
                assert!(self.head.is_none(), "one head");
                self.head = Some((head.status, head.content, fields(&head)));
            }
            Event::Content(bytes) => {
                assert!(!bytes.is_empty() && self.head.is_some() && self.end.is_none());
                self.content.extend_from_slice(bytes);
            }
            Event::End { trailers, next } => {
                assert!(self.head.is_some() && self.end.is_none());
                self.end = Some((owned(trailers), next));
            }
        }
    }
}

/// Reads one reply from `wire`, which arrives in pieces that end at `cuts`; then the peer closes.
fn read(
    wire: &[u8],
    request_info: RequestInfo,
    limits: Limits,
    cuts: &[usize],
) -> (ReplyRecord, Result<(), ReplyError>) {
    let mut reader = Reader::new(limits);
    reader.begin(request_info);
    let mut record = ReplyRecord::default();
    let mut start = 0;
    for end in cuts.iter().copied().chain([wire.len()]) {
        let mut at = start;
        loop {
            let step = match reader.read(&wire[at..end]) {
                Ok(step) => step,
                Err(bad) => return (record, Err(bad)),
            };
            at += step.consumed;
            let needs_more = matches!(step.event, Event::NeedMore);
            record.add(step.event);
            assert!(reader.buffered_bytes() <= limits.head() + limits.trailer_section + 4);
            record.consumed = at;
            if record.end.is_some() {
                return (record, Ok(()));
            }
            if needs_more {
                assert_eq!(at, end, "all bytes are consumed before more are needed");
                break;
            }
        }
        start = end;
    }
    let outcome = reader.finish().map(|step| record.add(step.event));
    (record, outcome)
}

fn whole(wire: &str) -> Result<ReplyRecord, ReplyError> {
    read_reply_to(wire, RequestInfo::default())
}

fn read_reply_to(wire: &str, request_info: RequestInfo) -> Result<ReplyRecord, ReplyError> {
    let (record, outcome) = read(wire.as_bytes(), request_info, Reader::LIMITS, &[]);
    outcome.map(|()| record)
}

fn pair(name: &str, value: &str) -> (String, String) {
    (name.to_owned(), value.to_owned())
}

#[test]
fn fields_content_and_trailers_come_in_order() {
    let record = whole(
        "HTTP/1.1 103 Early\r\nLink: </a>\r\n\r\nHTTP/1.1 200 OK\r\nVary: a\r\nX:  b \r\nvary: c\r\n\
         Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2;x=\"y\"\r\nde\r\n0\r\nDigest: q\r\nZ:\r\n\r\nrest",
    )
    .unwrap();
    assert_eq!(record.interim, [(103, vec![pair("Link", "</a>")])]);
    let fields = vec![
        pair("Vary", "a"),
        pair("X", "b"),
        pair("vary", "c"),
        pair("Transfer-Encoding", "chunked"),
    ];
    assert_eq!(record.head, Some((200, Content::Chunked, fields)));
    assert_eq!(record.content, b"abcde");
    let trailers = vec![pair("Digest", "q"), pair("Z", "")];
    assert_eq!(record.end, Some((trailers, Next::Request)));
}

#[test]
fn framing_of_rfc_9112_6_3() {
    use Content::{Chunked, Length, None, UntilClose};
    let head = RequestInfo { head: true, ..RequestInfo::default() };
    let plain = RequestInfo::default();
    for (wire, request, content, bytes, next) in [
        ("200 OK\r\nContent-Length: 5\r\n\r\nhello", plain, Length(5), "hello", Next::Request),
        ("200 OK\r\nContent-Length: 0\r\n\r\n", plain, Length(0), "", Next::Request),
        (
            "200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            plain,
            Chunked,
            "",
            Next::Request,
        ),
        (
            "200 OK\r\nConnection: a, Close\r\nContent-Length: 1\r\n\r\nx",
            plain,
            Length(1),
            "x",
            Next::Close,
        ),
        ("200 OK\r\n\r\nuntil the end", plain, UntilClose, "until the end", Next::Close),
        ("200 OK\r\nContent-Length: 5\r\n\r\n", head, None, "", Next::Request),
        ("200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", head, None, "", Next::Request),
        ("204 No Content\r\n\r\n", plain, None, "", Next::Request),
        ("204 No Content\r\nContent-Length: 0\r\n\r\n", plain, None, "", Next::Request),
        ("304 Not Modified\r\nContent-Length: 5\r\n\r\n", plain, None, "", Next::Request),
        // A recipient that waits for the five bytes would take them from another reply.
        ("204 No Content\r\nContent-Length: 5\r\n\r\n", plain, None, "", Next::Close),
        ("204 No Content\r\nTransfer-Encoding: chunked\r\n\r\n", plain, None, "", Next::Close),
    ] {
        let wire = format!("HTTP/1.1 {wire}");
        let record = read_reply_to(&wire, request).unwrap_or_else(|bad| panic!("{wire:?}: {bad}"));
        assert_eq!(record.head.as_ref().map(|head| head.1), Some(content), "{wire:?}");
        assert_eq!(record.content, bytes.as_bytes(), "{wire:?}");
        assert_eq!(record.end.map(|end| end.1), Some(next), "{wire:?}");
        assert_eq!(record.consumed, wire.len(), "{wire:?}");
    }
    let old = whole("HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\nx").unwrap();
    assert_eq!(old.end.unwrap().1, Next::Close);
    let kept =
        whole("HTTP/1.0 200 OK\r\nConnection: Keep-Alive\r\nContent-Length: 1\r\n\r\nx").unwrap();
    assert_eq!(kept.end.unwrap().1, Next::Request);
}

#[test]
fn switching_is_an_answer_to_upgrade_alone() {
    let wire = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n\x01\x02not http";
    assert_eq!(whole(wire), Err(ReplyError::Unsolicited));
    let record =
        read_reply_to(wire, RequestInfo { upgrade: true, ..RequestInfo::default() }).unwrap();
    assert_eq!(record.end, Some((vec![], Next::Switched)));
    assert_eq!(&wire.as_bytes()[record.consumed..], b"\x01\x02not http");
    // RFC 9110 §15.2.2: the reply names the protocol.
    for fields in ["", "Upgrade:\r\n"] {
        let wire = format!("HTTP/1.1 101 Switching Protocols\r\n{fields}\r\n");
        let request_info = RequestInfo { upgrade: true, ..RequestInfo::default() };
        let outcome = read_reply_to(&wire, request_info);
        assert!(matches!(outcome, Err(ReplyError::Syntax(_))), "{fields:?}: {outcome:?}");
    }
}

/// Everything that recipients read in different ways is rejected, and the connection closed.
#[test]
fn ambiguous_replies_are_rejected() {
    let ok = "HTTP/1.1 200 OK\r\n";
    let many = "A: b\r\n".repeat(101);
    let long = "x".repeat(Reader::LIMITS.header_section);
    let chunked = format!("{ok}Transfer-Encoding: chunked\r\n\r\n");
    for wire in [
        // Lengths.
        format!("{ok}Content-Length: 1\r\nContent-Length: 1\r\n\r\nx"),
        format!("{ok}Content-Length: 1\r\nContent-Length: 2\r\n\r\nxx"),
        format!("{ok}Content-Length: 1, 1\r\n\r\nx"),
        format!("{ok}Content-Length: +1\r\n\r\nx"),
        format!("{ok}Content-Length: -1\r\n\r\nx"),
        format!("{ok}Content-Length: 0x1\r\n\r\nx"),
        format!("{ok}Content-Length: 1 1\r\n\r\nx"),
        format!("{ok}Content-Length:\r\n\r\nx"),
        format!("{ok}Content-Length: 18446744073709551616\r\n\r\nx"),
        // Both a length and a coding, or one of them where none is allowed.
        format!("{ok}Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
        format!("{ok}Transfer-Encoding: chunked\r\nContent-Length: 1\r\n\r\n0\r\n\r\n"),
        "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n".into(),
        format!("HTTP/1.1 100 C\r\nContent-Length: 5\r\n\r\n{ok}Content-Length: 0\r\n\r\n"),
        format!(
            "HTTP/1.1 102 C\r\nTransfer-Encoding: chunked\r\n\r\n{ok}Content-Length: 0\r\n\r\n"
        ),
        // Codings.
        format!("{ok}Transfer-Encoding: gzip\r\n\r\nx"),
        format!("{ok}Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n"),
        format!("{ok}Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n"),
        format!("{ok}Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
        format!("{ok}Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n"),
        format!("{ok}Transfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n"),
        format!("{ok}Transfer-Encoding:\r\n\r\n0\r\n\r\n"),
        // Lines and names.
        format!("{ok}X: a\r\n b\r\nContent-Length: 0\r\n\r\n"),
        format!("{ok} X: a\r\nContent-Length: 0\r\n\r\n"),
        format!("{ok}X: a\nContent-Length: 0\r\n\r\n"),
        format!("{ok}X: a\rContent-Length: 0\r\n\r\n"),
        format!("{ok}Content-Length \r\n: 0\r\n\r\n"),
        format!("{ok}Content Length : 0\r\n\r\n"),
        format!("{ok}Content-Length\r\n\r\n"),
        format!("{ok} : 0\r\n\r\n"),
        format!("{ok}: 0\r\n\r\n"),
        format!("{ok}X: a\0b\r\nContent-Length: 0\r\n\r\n"),
        format!("{ok}Content-Length: 0\n\n"),
        "HTTP/1.1 200 OK\nContent-Length: 0\r\n\r\n".into(),
        "HTTP/2 200 OK\r\n\r\n".into(),
        // Statuses that cannot be forwarded with three digits.
        "HTTP/1.1 000 X\r\nContent-Length: 0\r\n\r\n".into(),
        "HTTP/1.1 099 X\r\nContent-Length: 0\r\n\r\n".into(),
        "\r\nHTTP/1.1 200 OK\r\n\r\n".into(),
        // Chunks.
        format!("{chunked}\r\n0\r\n\r\n"),
        format!("{chunked}g\r\n\r\n"),
        format!("{chunked}-1\r\n\r\n"),
        format!("{chunked}0x1\r\nx\r\n0\r\n\r\n"),
        format!("{chunked}1\nx\r\n0\r\n\r\n"),
        format!("{chunked}1\r\nxx\r\n0\r\n\r\n"),
        format!("{chunked}1\r\nx0\r\n\r\n"),
        format!("{chunked}1;\x01\r\nx\r\n0\r\n\r\n"),
        format!("{chunked}10000000000000000\r\nx\r\n0\r\n\r\n"),
        // Trailers.
        format!("{chunked}0\r\nA: b\r\n c\r\n\r\n"),
        format!("{chunked}0\r\nA\r\n\r\n"),
        format!("{chunked}0\r\nA : b\r\n\r\n"),
        // Exceeded limits.
        format!("{ok}{many}\r\n"),
        format!("{ok}X: {long}\r\nContent-Length: 0\r\n\r\n"),
        format!("HTTP/1.1 200 {}\r\n\r\n", "x".repeat(Reader::LIMITS.request_line)),
        format!("{}{ok}Content-Length: 0\r\n\r\n", "HTTP/1.1 100 C\r\n\r\n".repeat(17)),
        format!("{chunked}0\r\nA: {}\r\n\r\n", "x".repeat(Reader::LIMITS.trailer_section)),
    ] {
        let shown = &wire[..wire.len().min(120)];
        for step in [wire.len(), 1, 7] {
            let cuts: Vec<usize> = (step..wire.len()).step_by(step).collect();
            let (record, outcome) =
                read(wire.as_bytes(), RequestInfo::default(), Reader::LIMITS, &cuts);
            assert!(outcome.is_err(), "taken: {shown:?}: {record:?}");
            assert!(record.end.is_none(), "{shown:?}");
        }
    }
}

/// RFC 9209 has a type of its own for it.
#[test]
fn a_head_that_is_too_long_is_told_from_other_faults() {
    let many = "A: b\r\n".repeat(101);
    let long = format!("X: {}\r\n", "x".repeat(Reader::LIMITS.header_section));
    for fields in [many, long] {
        let wire = format!("HTTP/1.1 200 OK\r\n{fields}\r\n");
        for step in [wire.len(), 7] {
            let cuts: Vec<usize> = (step..wire.len()).step_by(step).collect();
            let (_, outcome) = read(wire.as_bytes(), RequestInfo::default(), Reader::LIMITS, &cuts);
            assert!(matches!(outcome, Err(ReplyError::HeadTooLong(_))), "{outcome:?}");
        }
    }
}

/// RFC 9112 §5.1: white space before a colon is removed, and the field counts, however the head is
/// split.
#[test]
fn white_space_before_a_colon_is_removed() {
    let early = "HTTP/1.1 103 Early\r\nLink : </a>\r\n\r\n";
    let wire = format!(
        "{early}HTTP/1.1 200 OK\r\nA : b\r\nC \t: d : e\r\nF\t:\r\nG: h\r\nContent-Length : 5\r\n\
         \r\nA : b"
    );
    let fields = [("A", "b"), ("C", "d : e"), ("F", ""), ("G", "h"), ("Content-Length", "5")];
    let fields = fields.map(|(name, value)| pair(name, value)).to_vec();
    for step in 1..=wire.len() {
        let cuts: Vec<usize> = (step..wire.len()).step_by(step).collect();
        let (record, outcome) =
            read(wire.as_bytes(), RequestInfo::default(), Reader::LIMITS, &cuts);
        assert_eq!(outcome, Ok(()), "{step}");
        assert_eq!(record.interim, [(103, vec![pair("Link", "</a>")])], "{step}");
        assert_eq!(record.head, Some((200, Content::Length(5), fields.clone())), "{step}");
        assert_eq!((&*record.content, record.consumed), (&b"A : b"[..], wire.len()), "{step}");
        assert_eq!(record.end, Some((vec![], Next::Request)), "{step}");
    }
    // Such a field affects the framing.
    let ok = "HTTP/1.1 200 OK\r\n";
    let record = whole(&format!("{ok}Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n")).unwrap();
    assert_eq!(record.head.unwrap().1, Content::Chunked);
    let record = whole(&format!("{ok}Connection\t: close\r\nContent-Length: 0\r\n\r\n")).unwrap();
    assert_eq!(record.end.unwrap().1, Next::Close);
    for both in [
        "Content-Length: 1\r\nContent-Length : 1\r\n\r\nx",
        "Content-Length : 1\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
    ] {
        assert!(matches!(whole(&format!("{ok}{both}")), Err(ReplyError::Syntax(_))), "{both}");
    }
}

/// A length, a coding or an option in the trailers affects neither the content nor the next reply, as
/// in requests.
#[test]
fn trailers_do_not_frame() {
    let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
    for (name, value) in [
        ("Content-Length", "5"),
        ("transfer-encoding", "chunked"),
        ("Connection", "close"),
        ("Trailer", "x"),
    ] {
        let record = whole(&format!("{head}2\r\nab\r\n0\r\n{name}: {value}\r\n\r\n")).unwrap();
        assert_eq!(record.content, b"ab", "{name}");
        assert_eq!(record.end, Some((vec![pair(name, value)], Next::Request)), "{name}");
    }
}

#[test]
fn interim_replies_have_a_limit() {
    let flood = |count: u32| {
        let interim = "HTTP/1.1 100 C\r\n\r\n".repeat(count as usize);
        whole(&format!("{interim}HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"))
    };
    assert_eq!(flood(MAX_INTERIM).unwrap().interim.len(), MAX_INTERIM as usize);
    assert_eq!(flood(MAX_INTERIM + 1), Err(ReplyError::TooManyInterim));
}

#[test]
fn a_premature_end_is_detected() {
    for (wire, bad) in [
        ("", ReplyError::Empty),
        ("HTTP/1.1 20", ReplyError::Truncated),
        ("HTTP/1.1 100 C\r\n\r\n", ReplyError::Truncated),
        ("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nab", ReplyError::Truncated),
        (
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n",
            ReplyError::Truncated,
        ),
    ] {
        assert_eq!(whole(wire).map(|record| record.content), Err(bad), "{wire:?}");
    }
}

#[test]
fn unsolicited_data_is_an_error() {
    let mut reader = Reader::new(Reader::LIMITS);
    assert!(matches!(reader.read(b"").unwrap().event, Event::NeedMore));
    assert_eq!(reader.read(b"HTTP/1.1 408 T\r\n\r\n").err(), Some(ReplyError::Unsolicited));
    // The second of two replies to one request.
    let one = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
    let twice = format!("{one}{one}");
    reader.begin(RequestInfo::default());
    let head = reader.read(twice.as_bytes()).unwrap().consumed;
    assert!(matches!(reader.read(&twice.as_bytes()[head..]).unwrap().event, Event::End { .. }));
    assert_eq!(reader.read(&twice.as_bytes()[head..]).err(), Some(ReplyError::Unsolicited));
}

#[test]
fn content_has_a_limit_in_every_framing() {
    let limits = Limits { body: 4, ..Reader::LIMITS };
    for (fields, fits, long) in [
        ("Content-Length: 4\r\n", "abcd", None),
        ("Content-Length: 5\r\n", "abcde", Some(())),
        ("Transfer-Encoding: chunked\r\n", "4\r\nabcd\r\n0\r\n\r\n", None),
        ("Transfer-Encoding: chunked\r\n", "2\r\nab\r\n3\r\ncde\r\n0\r\n\r\n", Some(())),
        ("", "abcd", None),
        ("", "abcde", Some(())),
    ] {
        let wire = format!("HTTP/1.1 200 OK\r\n{fields}\r\n{fits}");
        let (_, outcome) = read(wire.as_bytes(), RequestInfo::default(), limits, &[]);
        assert_eq!(outcome.err().map(drop), long, "{wire:?}");
    }
}

#[test]
fn hop_by_hop_fields_are_not_forwarded() {
    let wire = b"HTTP/1.1 200 OK\r\nA: 1\r\nConnection: close, x-hop\r\nX-Hop: 2\r\n\
                 keep-alive: timeout=5\r\nUpgrade: h2c\r\nContent-Length: 0\r\nB: 3\r\n\
                 Transfer_Encoding: chunked\r\nProxy_connection: close\r\nC_D: 4\r\n\
                 HTTP2-Settings: x\r\n\r\n";
    let mut reader = Reader::new(Reader::LIMITS);
    reader.begin(RequestInfo::default());
    let Event::Head(head) = reader.read(wire).unwrap().event else { panic!("a head") };
    let names: Vec<_> = owned(head.forwarded()).into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["A", "Content-Length", "B", "C_D"]);
}

/// Regression: each field was compared with all options, however many there were.
#[test]
fn the_options_of_connection_are_limited() {
    let forwarded = |lines: &str| {
        let wire = format!("HTTP/1.1 204 No Content\r\n{lines}X-Hop: 1\r\nB: 2\r\n\r\n");
        let mut reader = Reader::new(Reader::LIMITS);
        reader.begin(RequestInfo::default());
        match reader.read(wire.as_bytes())?.event {
            Event::Head(head) => Ok::<_, ReplyError>(head.forwarded().count()),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(forwarded(""), Ok(2));
    assert_eq!(forwarded(&("Connection: a\r\n".repeat(7) + "Connection: x-hop\r\n")), Ok(1));
    assert_eq!(forwarded(&format!("Connection: {}x-hop\r\n", ",".repeat(1019))), Ok(1));
    for lines in [
        "Connection: a\r\n".repeat(9),
        format!("Connection: {}\r\n", ",".repeat(1025)),
        format!("Connection: {}\r\n", ",".repeat(600)).repeat(2),
    ] {
        assert!(matches!(forwarded(&lines), Err(ReplyError::Syntax(_))), "{lines:.60}");
    }
}

#[test]
fn content_and_a_head_that_come_whole_are_not_copied() {
    let wire = b"HTTP/1.1 200 OK\r\nX-A: value\r\nContent-Length: 5\r\n\r\nhello";
    let lies_in = |bytes: &[u8]| wire.as_ptr_range().contains(&bytes.as_ptr());
    let mut reader = Reader::new(Reader::LIMITS);
    reader.begin(RequestInfo::default());
    let step = reader.read(wire).unwrap();
    let at = step.consumed;
    let Event::Head(head) = step.event else { panic!("a head") };
    assert!(head.fields().all(|field| lies_in(field.name) && lies_in(field.value)));
    let Event::Content(content) = reader.read(&wire[at..]).unwrap().event else {
        panic!("content")
    };
    assert!(lies_in(content));
    assert_eq!(reader.buffered_bytes(), 0);
}

const CORPUS: &[&str] = &[
    "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nA: b\r\n\r\nhello",
    "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n1;a=b\r\n!\r\n0\r\nT: u\r\nV: w\r\n\r\n",
    "HTTP/1.1 100 C\r\nA: b\r\n\r\nHTTP/1.1 103 E\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx",
    "HTTP/1.0 200 OK\r\nServer: x\r\n\r\nuntil the close",
    "HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n",
    "HTTP/1.1 304 Not Modified\r\nETag: \"x\"\r\nContent-Length: 9\r\n\r\n",
    "HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\nrest",
    "HTTP/1.1 999\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nHTTP/1.1 200",
    "HTTP/1.1 200 OK\r\nA  : b\r\nContent-Length : 5\r\nB\t:\r\n\r\nhello",
];

const FRAGMENTS: &[&str] = &[
    "\r",
    "\n",
    "\r\n",
    "\r\n\r\n",
    " ",
    ":",
    " :",
    ",",
    ";",
    "\0",
    "0",
    "1",
    "f",
    "\"",
    "Content-Length: 5\r\n",
    "Transfer-Encoding: chunked\r\n",
    "Connection: close\r\n",
    "HTTP/1.1 200 OK\r\n",
    "HTTP/1.1 100 C\r\n\r\n",
    "\r\n ",
    "0\r\n\r\n",
    "A: b\r\n",
];

const TIGHT: Limits = Limits {
    request_line: 40,
    header_section: 90,
    fields: 4,
    body: 24,
    chunk_line: 12,
    trailer_section: 24,
    https: false,
};

fn wire() -> impl Strategy<Value = Vec<u8>> {
    let change = (any::<Index>(), 0..3u8, prop::sample::select(FRAGMENTS));
    (prop::sample::select(CORPUS), prop::collection::vec(change, 0..4)).prop_map(
        |(start, changes)| {
            let mut wire = start.as_bytes().to_vec();
            for (place, how, fragment) in changes {
                if wire.is_empty() {
                    break;
                }
                let at = place.index(wire.len());
                match how {
                    0 => drop(wire.splice(at..at, fragment.bytes())),
                    1 => drop(wire.remove(at)),
                    _ => wire.truncate(at),
                }
            }
            wire
        },
    )
}

proptest! {
    /// The result does not depend on how the bytes are split. Invalid replies are rejected,
    /// possibly at another offset, but never after different content.
    #[test]
    fn pieces_make_no_difference(
        wire in wire(),
        cuts in prop::collection::vec(any::<Index>(), 0..6),
        head: bool,
        upgrade: bool,
        is_tight: bool,
    ) {
        let request_info = RequestInfo { head, upgrade };
        let limits = if is_tight { TIGHT } else { Reader::LIMITS };
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(wire.len() + 1)).collect();
        cuts.sort_unstable();
        let (record, outcome) = read(&wire, request_info, limits, &[]);
        let single: Vec<usize> = (1..wire.len()).collect();
        for cuts in [cuts, single] {
            let (other, other_outcome) = read(&wire, request_info, limits, &cuts);
            prop_assert_eq!(outcome.is_ok(), other_outcome.is_ok(), "{:?}", other_outcome);
            if outcome.is_ok() {
                prop_assert_eq!(&record, &other);
            } else {
                prop_assert_eq!(&record.interim, &other.interim);
                prop_assert_eq!(&record.head, &other.head);
                let both = record.content.len().min(other.content.len());
                prop_assert_eq!(&record.content[..both], &other.content[..both]);
                prop_assert!(other.end.is_none());
            }
        }
    }

    /// The counting decoder accepts all replies that the strict reader accepts, with the same meaning.
    #[test]
    fn both_decoders_agree(wire in wire(), head: bool) {
        let request_info = RequestInfo { head, upgrade: true };
        let (record, outcome) = read(&wire, request_info, Reader::LIMITS, &[]);
        if outcome.is_err() {
            return Ok(());
        }
        let mut decoder = pollux_http::reply::Decoder::new();
        decoder.begin(head);
        let output = decoder.feed(&wire);
        prop_assert!(output.is_ok(), "{:?}", output);
        let reply = match output.unwrap().reply {
            Some(reply) => reply,
            None => decoder.finish().unwrap(),
        };
        prop_assert_eq!(Some(reply.status), record.head.map(|head| head.0));
        prop_assert_eq!(reply.body, record.content.len() as u64);
    }
}

#[test]
fn the_memory_of_a_reader_serves_another_one() {
    let mut reader = Reader::new(Reader::LIMITS);
    reader.begin(RequestInfo::default());
    assert_eq!(reader.read(b"HTTP/1.1 200 OK\r\nX").unwrap().consumed, 18);
    let buffer = reader.into_buffer();
    let memory = buffer.as_ptr();
    let mut reader = Reader::with_buffer(Reader::LIMITS, buffer);
    reader.begin(RequestInfo::default());
    assert_eq!(reader.buffered_bytes(), 0);
    let head = b"HTTP/1.1 204 No Content\r\n\r\n";
    assert!(matches!(reader.read(head).unwrap().event, Event::Head(head) if head.status == 204));
    let buffer = reader.into_buffer();
    assert_eq!(buffer.as_ptr(), memory);
}
