//! Handling a request does not allocate, from its bytes to the head of the response.

use pollux_http::{
    Limits, Status,
    accept_encoding::{Coding, Preferences},
    body::Decoder,
    conditional::{self, Precondition, Validators},
    date::DateCache,
    etag::ETag,
    path::SafePath,
    range, reply,
    request::{self, HeadParser, KnownField, ParseStatus, Request, Target},
    response::Head,
};
use pollux_testkit::allocations::allocations_here;
use std::hint::black_box;

const REQUEST: &[u8] = b"GET /a/b.html?v=3 HTTP/1.1\r\nHost: www.example.org:8080\r\n\
User-Agent: Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0\r\n\
Accept: text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8\r\n\
Accept-Encoding: gzip, deflate;q=0.5\r\nAccept-Encoding: br, zstd\r\nConnection: keep-alive\r\n\
If-None-Match: \"another\", W/\"third\"\r\nIf-Modified-Since: Sun, 06 Nov 1994 08:49:37 GMT\r\n\
Range: bytes=0-99\r\nTransfer-Encoding: chunked\r\nCookie: a=b\r\n\r\n";

const BODY: &[u8] = b"5;name=value\r\nhello\r\n0\r\nTrailer: x\r\n\r\n";

const REPLY: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 1\r\n\r\nx";

fn answer(request: &Request<'_>, out: &mut Vec<u8>, scratch: &mut Vec<u8>, date: &DateCache) {
    let Target::Path { path, .. } = request.target else { panic!("a path") };
    black_box(SafePath::new(path, scratch).expect("a safe path"));
    black_box(SafePath::new(b"/a%20b/../c/", scratch).expect("a safe path"));
    let preferences = Preferences::parse(request.values(KnownField::AcceptEncoding));
    assert_eq!(preferences.choose([Coding::Brotli, Coding::Identity]), Some(Coding::Brotli));
    let validators = Validators {
        etag: Some(ETag { weak: false, opaque: b"1-2" }),
        last_modified: Some(1_000_000_000),
        now: 2_000_000_000,
    };
    assert_eq!(conditional::evaluate(request, Some(&validators)), Precondition::Proceed);
    let range = request.single(KnownField::Range).expect("a range");
    black_box(range::select(range, 6144));
    out.clear();
    Head::new(out, Status::Ok)
        .date(date)
        .lines(b"Server: pollux\r\n")
        .field("ETag", b"\"1-2\"")
        .content_length(6144)
        .connection(true, request.version)
        .end();
}

#[test]
fn from_the_bytes_to_the_head_of_the_response() {
    let limits = Limits::DEFAULT;
    let mut date = DateCache::new(784_111_777);
    let (mut out, mut scratch) = (Vec::with_capacity(1024), Vec::with_capacity(1024));
    let mut replies = reply::Decoder::new();
    let mut reader = reply::Reader::new(reply::Reader::LIMITS);

    let before = allocations_here();
    drop(black_box(Box::new(1)));
    assert_eq!(allocations_here() - before, 1, "the counter does not count");

    let before = allocations_here();
    for round in 0..1_000 {
        date.update(784_111_777 + round);
        let Ok(ParseStatus::Complete { request, len }) = request::parse(REQUEST, &limits) else {
            panic!("a whole request");
        };
        assert_eq!(len, REQUEST.len());
        answer(&request, &mut out, &mut scratch, &date);
        let mut body = Decoder::new(request.framing);
        let mut rest = BODY;
        while !body.is_done() {
            let step = body.decode(rest, &limits).expect("a valid body");
            rest = &rest[step.consumed..];
        }
        let mut parser = HeadParser::new();
        for end in [1, 20, 100, REQUEST.len()] {
            black_box(parser.parse(&REQUEST[..end], &limits)).expect("a valid request");
        }
        black_box(request::parse(b"GET / HTTP/1.1\r\nHost : a\r\n\r\n", &limits))
            .expect_err("a fault");
        replies.begin(false);
        black_box(replies.feed(REPLY)).expect("a valid reply");
        reader.begin(reply::RequestInfo::default());
        let mut rest = REPLY;
        loop {
            let step = black_box(reader.read(rest)).expect("a valid reply");
            rest = &rest[step.consumed..];
            if matches!(step.event, reply::Event::End { .. }) {
                break;
            }
        }
    }
    assert_eq!(allocations_here() - before, 0, "in 1,000 requests");
    assert!(out.starts_with(b"HTTP/1.1 200 OK\r\n"));
}
