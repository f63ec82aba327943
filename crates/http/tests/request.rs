//! Requests, rule by rule. Section numbers are those of RFC 9112 where no other is named.

use pollux_http::{
    Limits, Status,
    request::{self, Framing, Known, Method, Parsed, Request, Target, Version},
};

fn parse(text: &[u8]) -> Result<Option<(Request<'_>, usize)>, Status> {
    match request::parse(text, &Limits::DEFAULT) {
        Ok(Parsed::Partial) => Ok(None),
        Ok(Parsed::Complete { request, len }) => Ok(Some((request, len))),
        Err(reject) => Err(reject.status),
    }
}

#[track_caller]
fn taken(text: &[u8]) -> Request<'_> {
    match parse(text) {
        Ok(Some((request, len))) => {
            assert_eq!(len, text.len(), "{}", text.escape_ascii());
            request
        }
        other => panic!("{}: {other:?}", text.escape_ascii()),
    }
}

#[track_caller]
fn refused(text: &[u8]) -> Status {
    match parse(text) {
        Err(status) => status,
        Ok(other) => panic!("{}: {other:?}", text.escape_ascii()),
    }
}

/// A GET with these header lines after a valid Host.
fn with(lines: &str) -> Vec<u8> {
    format!("GET / HTTP/1.1\r\nHost: a\r\n{lines}\r\n").into_bytes()
}

#[test]
fn a_whole_request_and_the_next_ones_place() {
    let text = b"GET /x?y HTTP/1.1\r\nHost: example.org\r\nAccept: */*\r\n\r\nGET /2 ";
    let (request, len) = parse(text).unwrap().unwrap();
    assert_eq!(&text[len..], b"GET /2 ");
    assert_eq!(request.method, Method::Get);
    assert_eq!(request.target, Target::Path { path: b"/x", query: Some(b"y") });
    assert_eq!(request.version, Version::Http11);
    assert_eq!(request.host, Some(&b"example.org"[..]));
    assert_eq!(request.line, b"GET /x?y HTTP/1.1");
    assert_eq!(request.field(b"ACCEPT"), Some(&b"*/*"[..]));
    assert!(request.keep_alive && !request.expect_continue);
    assert_eq!(request.framing, Framing::None);
}

#[test]
fn every_prefix_of_a_request_is_partial() {
    let text = b"POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\n";
    for end in 0..text.len() {
        assert!(matches!(parse(&text[..end]), Ok(None)), "{end}");
    }
    assert_eq!(taken(text).framing, Framing::Length(3));
}

#[test]
fn repeated_list_fields_are_one_list_rfc_9110_5_3() {
    let text = with("If-None-Match: \"a\"\r\nX: y\r\nif-none-match: \"b\"\r\nRange: bytes=0-1\r\n");
    let request = taken(&text);
    let values: Vec<&[u8]> = request.values(Known::IfNoneMatch).collect();
    assert_eq!(values, [&b"\"a\""[..], b"\"b\""]);
    assert_eq!(request.single(Known::IfNoneMatch), None);
    assert_eq!(request.single(Known::Range), Some(&b"bytes=0-1"[..]));
    assert_eq!(request.values(Known::IfMatch).count(), 0);
}

#[test]
fn rules_of_the_framing_6_3() {
    let framing = |lines: &str| parse(&with(lines)).map(|r| r.unwrap().0.framing);
    let bad = Err(Status::BadRequest);
    assert_eq!(framing("Content-Length: 0\r\n"), Ok(Framing::None));
    assert_eq!(framing("Content-Length: 0005\r\n"), Ok(Framing::Length(5)));
    assert_eq!(framing("Transfer-Encoding: chunked\r\n"), Ok(Framing::Chunked));
    assert_eq!(framing("Transfer-Encoding: Chunked \r\n"), Ok(Framing::Chunked));
    assert_eq!(framing("Content-Length: 5\r\nTransfer-Encoding: chunked\r\n"), bad);
    assert_eq!(framing("Content-Length: 5\r\nContent-Length: 5\r\n"), bad);
    assert_eq!(framing("Content-Length: 5, 5\r\n"), bad);
    assert_eq!(framing("Transfer-Encoding: gzip\r\n"), bad);
    assert_eq!(framing("Transfer-Encoding: gzip, chunked\r\n"), Err(Status::NotImplemented));
    assert_eq!(framing("Content-Length: 99999999999999999999\r\n"), Err(Status::ContentTooLarge));
}

#[test]
fn other_versions_rfc_9110_2_5() {
    assert_eq!(taken(b"GET / HTTP/1.7\r\nHost: a\r\n\r\n").version, Version::Http11);
    assert_eq!(taken(b"GET / HTTP/1.0\r\n\r\n").version, Version::Http10);
    assert_eq!(refused(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), Status::VersionNotSupported);
    assert_eq!(refused(b"GET / http/1.1\r\nHost: a\r\n\r\n"), Status::BadRequest);
}
