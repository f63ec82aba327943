//! The fields of a request and their consequences, rule by rule. Section numbers are those of RFC
//! 9112 unless another document is named.

use crate::parse_helpers::{accepted, assert_all_rejected, parse, parse_within, reject_status};
use pollux_http::{
    Limits, Status,
    limits::MAX_FIELDS,
    request::{Framing, KnownField},
};

/// A GET with these header lines after a valid Host.
fn with(lines: impl AsRef<[u8]>) -> Vec<u8> {
    [b"GET / HTTP/1.1\r\nHost: a\r\n", lines.as_ref(), b"\r\n"].concat()
}

#[test]
fn host_is_given_once_3_2() {
    assert_all_rejected(
        Status::BadRequest,
        &[
            b"GET / HTTP/1.1\r\n\r\n",
            b"GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n",
            b"GET / HTTP/1.1\r\nHost: a\r\nhOsT: b\r\n\r\n",
            b"GET / HTTP/1.0\r\nHost: a\r\nHost: a\r\n\r\n",
            b"GET http://a/ HTTP/1.1\r\n\r\n",
            b"GET http://a/ HTTP/1.1\r\nHost: b\r\nHost: c\r\n\r\n",
            b"GET http://a/ HTTP/1.1\r\nHost: b c\r\n\r\n",
            b"GET / HTTP/1.1\r\nHost:\r\n\r\n",
            b"GET / HTTP/1.1\r\nHost: \t \r\n\r\n",
            b"GET / HTTP/1.1\r\nHost: a, b\r\n\r\n",
            b"GET / HTTP/1.1\r\nHost: a/b\r\n\r\n",
            b"GET / HTTP/1.1\r\nHost: http://a\r\n\r\n",
            b"GET / HTTP/1.1\r\nHost: u@a\r\n\r\n",
            b"GET / HTTP/1.1\r\nHost: a:b\r\n\r\n",
            b"GET / HTTP/1.1\r\nHost: a b\r\n\r\n",
            b"GET / HTTP/1.1\r\nHost: \xe9\r\n\r\n",
            b"GET / HTTP/1.1\r\nHost: a\x00b\r\n\r\n",
            b"GET / HTTP/1.0\r\nHost: a b\r\n\r\n",
            b"OPTIONS * HTTP/1.1\r\n\r\n",
        ],
    );
    assert_eq!(accepted(b"GET / HTTP/1.0\r\n\r\n").host, None);
    assert_eq!(accepted(b"GET / HTTP/1.0\r\nHost: a\r\n\r\n").host, Some(&b"a"[..]));
    assert_eq!(
        accepted(b"GET / HTTP/1.1\r\nHost:\t[::1]:8080 \r\n\r\n").host,
        Some(&b"[::1]:8080"[..])
    );
    assert_eq!(accepted(b"OPTIONS * HTTP/1.1\r\nHost:\r\n\r\n").host, None);
}

#[test]
fn fields_have_names_that_are_tokens_5_1() {
    for bad in
        (0..=255u8).filter(|b| !b.is_ascii_alphanumeric() && !b"!#$%&'*+-.^_`|~:".contains(b))
    {
        // In the middle of the name, and at its end, which includes "space before the colon".
        for text in [
            with([b"A", &[bad][..], b"B: c\r\n"].concat()),
            with([b"A", &[bad][..], b": c\r\n"].concat()),
        ] {
            assert_eq!(reject_status(&text), Status::BadRequest, "{}", text.escape_ascii());
        }
    }
    for lines in [
        ": a\r\n",
        "A\r\n",
        "A\r\nB: c\r\n",
        " A: b\r\n",
        "\tA: b\r\n",
        "A : b\r\n",
        "A\t: b\r\n",
        "A b: c\r\n",
        "A",
        "(A): b\r\n",
    ] {
        assert_eq!(reject_status(&with(lines)), Status::BadRequest, "{lines:?}");
    }
    assert_all_rejected(
        Status::BadRequest,
        &[
            b"GET / HTTP/1.1\r\n Host: a\r\n\r\n",
            b"GET / HTTP/1.1\r\n\tHost: a\r\n\r\n",
            b"GET / HTTP/1.1\r\n \r\nHost: a\r\n\r\n",
            b"GET / HTTP/1.1\r\nHost : a\r\n\r\n",
        ],
    );
}

#[test]
fn values_have_no_control_characters_rfc_9110_5_5() {
    for bad in (0..=0x1f).chain([0x7f]).filter(|&b| b != b'\t') {
        // Short and long values, since long ones are searched many bytes at a time.
        for before in [&b""[..], b"a", &[b'x'; 7], &[b'x'; 31], &[b'x'; 64]] {
            let text = with([b"A: ", before, &[bad], b"b\r\n"].concat());
            assert_eq!(reject_status(&text), Status::BadRequest, "{bad:#x} after {}", before.len());
        }
    }
    let text = with(b"A: \t b\xe9\tc \t\r\nB:\r\nC: \r\n");
    let request = accepted(&text);
    assert_eq!(request.field(b"a"), Some(&b"b\xe9\tc"[..]));
    assert_eq!(request.field(b"b"), Some(&b""[..]));
    assert_eq!(request.field(b"c"), Some(&b""[..]));
}

#[test]
fn folded_lines_are_refused_5_2() {
    for lines in
        ["A: b\r\n c\r\n", "A: b\r\n\tc\r\n", "A:\r\n b\r\n", "A: b\r\n \r\n", "A: b\r\n c: d\r\n"]
    {
        assert_eq!(reject_status(&with(lines)), Status::BadRequest, "{lines:?}");
    }
}

#[test]
fn repeated_list_fields_are_one_list_rfc_9110_5_3() {
    let text = with("If-None-Match: \"a\"\r\nX: y\r\nif-none-match: \"b\"\r\nRange: bytes=0-1\r\n");
    let request = accepted(&text);
    let values: Vec<&[u8]> = request.values(KnownField::IfNoneMatch).collect();
    assert_eq!(values, [&b"\"a\""[..], b"\"b\""]);
    assert_eq!(request.single(KnownField::IfNoneMatch), None);
    assert_eq!(request.single(KnownField::Range), Some(&b"bytes=0-1"[..]));
    assert_eq!(request.values(KnownField::IfMatch).count(), 0);
    assert!(request.has(KnownField::IfNoneMatch) && !request.has(KnownField::IfMatch));
    let names: Vec<&[u8]> = request.fields().map(|field| field.name).collect();
    assert_eq!(names, [&b"Host"[..], b"If-None-Match", b"X", b"if-none-match", b"Range"]);
}

#[test]
fn the_framing_6_3() {
    let framing = |lines: &str| parse(&with(lines)).map(|r| r.unwrap().0.framing);
    let bad = Err(Status::BadRequest);
    assert_eq!(framing(""), Ok(Framing::None));
    assert_eq!(framing("Content-Length: 0\r\n"), Ok(Framing::None));
    assert_eq!(framing("Content-Length: 5\r\n"), Ok(Framing::Length(5)));
    assert_eq!(framing("Content-Length: 0005\r\n"), Ok(Framing::Length(5)));
    assert_eq!(framing("Transfer-Encoding: chunked\r\n"), Ok(Framing::Chunked));
    assert_eq!(framing("Transfer-Encoding: ,Chunked ,\r\n"), Ok(Framing::Chunked));
    for length in [
        "", "+5", "-5", "5 5", "5, 5", "5,5", "5,6", "0x5", "5;", "5.0", "1e1", "\"5\"",
        "5\u{661}", "five", " ", ",", "5,",
    ] {
        assert_eq!(framing(&format!("Content-Length: {length}\r\n")), bad, "{length:?}");
    }
    assert_eq!(framing("Content-Length: 5\r\nContent-Length: 5\r\n"), bad);
    assert_eq!(framing("Content-Length: 0\r\ncontent-length: 0\r\n"), bad);
    assert_eq!(framing("Content-Length: 5\r\nContent-Length: 6\r\n"), bad);
    assert_eq!(framing("Content-Length: 5\r\nTransfer-Encoding: chunked\r\n"), bad);
    assert_eq!(framing("Transfer-Encoding: chunked\r\nContent-Length: 5\r\n"), bad);
    assert_eq!(framing("Transfer-Encoding: chunked\r\nContent-Length: 0\r\n"), bad);
    for codings in [
        "",
        ",",
        "gzip",
        "identity",
        "chunked, gzip",
        "chunked, chunked",
        "chunked, identity",
        "chunked;q=1",
        "gzip, chunked, gzip",
        "\"chunked\"",
        "chunked chunked",
        "xchunked",
        "chunke",
        "chunked, chunked;a=b",
        "chunked=1",
        "gzip, gzip",
    ] {
        assert_eq!(framing(&format!("Transfer-Encoding: {codings}\r\n")), bad, "{codings:?}");
    }
    assert_eq!(framing("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n"), bad);
    assert_eq!(framing("Transfer-Encoding: chunked\r\nTransfer-Encoding: gzip\r\n"), bad);
    for codings in ["gzip, chunked", "x-unheard;a=b, chunked", "identity, chunked"] {
        let got = framing(&format!("Transfer-Encoding: {codings}\r\n"));
        assert_eq!(got, Err(Status::NotImplemented), "{codings}");
    }
    // `chunked` has no parameters, so this is not another coding before it.
    assert_eq!(framing("Transfer-Encoding: chunked;q=1, chunked\r\n"), bad);
    let lines = "Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n";
    assert_eq!(framing(lines), Err(Status::NotImplemented));
}

#[test]
fn a_transfer_coding_in_http_1_0_is_a_fault_6_1() {
    let text = b"POST / HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
    assert_eq!(reject_status(text), Status::BadRequest);
    let text = b"POST / HTTP/1.0\r\nContent-Length: 1\r\n\r\n";
    assert_eq!(accepted(text).framing, Framing::Length(1));
}

#[test]
fn a_body_above_the_limit_is_refused_rfc_9110_15_5_14() {
    let limits = Limits { body: 100, ..Limits::DEFAULT };
    let length = |length: &str| {
        let text = with(format!("Content-Length: {length}\r\n"));
        parse_within(&text, &limits).map(|parsed| parsed.unwrap().0.framing)
    };
    assert_eq!(length("100"), Ok(Framing::Length(100)));
    for above in ["101", "4294967396", "9223372036854775808", "18446744073709551614"] {
        assert_eq!(length(above), Err(Status::ContentTooLarge), "{above}");
    }
    // Numbers that some recipients may wrap are rejected (RFC 9110 §8.6).
    for beyond in
        ["18446744073709551615", "18446744073709551616", "340282366920938463463374607431768211457"]
    {
        assert_eq!(length(beyond), Err(Status::BadRequest), "{beyond}");
    }
}

#[test]
fn persistence_9_3() {
    let keeps = |version: &str, lines: &str| {
        accepted(format!("GET / HTTP/{version}\r\nHost: a\r\n{lines}\r\n").as_bytes()).keep_alive
    };
    for (lines, in_1_1, in_1_0) in [
        ("", true, false),
        ("Connection: keep-alive\r\n", true, true),
        ("Connection: Keep-Alive\r\n", true, true),
        ("Connection: close\r\n", false, false),
        ("Connection: CLOSE\r\n", false, false),
        ("Connection: a, close ,b\r\n", false, false),
        ("Connection: close, keep-alive\r\n", false, false),
        ("Connection: keep-alive\r\nConnection: close\r\n", false, false),
        ("Connection: ,, keep-alive,\r\n", true, true),
        ("Connection: closed\r\n", true, false),
        ("Connection: not close\r\n", true, false),
        ("Connection:\r\n", true, false),
        ("Proxy-Connection: keep-alive\r\n", true, false),
        ("Keep-Alive: timeout=5\r\n", true, false),
    ] {
        assert_eq!(keeps("1.1", lines), in_1_1, "1.1 {lines:?}");
        assert_eq!(keeps("1.0", lines), in_1_0, "1.0 {lines:?}");
    }
}

#[test]
fn expectations_rfc_9110_10_1_1() {
    let parse_parts = |version: &str, lines: &str| {
        let text = format!("POST / HTTP/{version}\r\nHost: a\r\n{lines}\r\n");
        parse(text.as_bytes()).map(|parsed| parsed.unwrap().0.expect_continue)
    };
    assert_eq!(parse_parts("1.1", "Content-Length: 1\r\nExpect: 100-continue\r\n"), Ok(true));
    assert_eq!(
        parse_parts("1.1", "Transfer-Encoding: chunked\r\nExpect: 100-Continue\r\n"),
        Ok(true)
    );
    assert_eq!(parse_parts("1.1", "Content-Length: 1\r\nExpect:\r\n"), Ok(false));
    // Without a body there is nothing to wait for.
    assert_eq!(parse_parts("1.1", "Expect: 100-continue\r\n"), Ok(false));
    assert_eq!(parse_parts("1.0", "Content-Length: 1\r\nExpect: 100-continue\r\n"), Ok(false));
    assert_eq!(parse_parts("1.0", "Expect: else\r\n"), Ok(false));
    for value in ["else", "100-continue, else", "else, 100-continue", "100-continue=1", "200-ok"] {
        let got = parse_parts("1.1", &format!("Content-Length: 1\r\nExpect: {value}\r\n"));
        assert_eq!(got, Err(Status::ExpectationFailed), "{value}");
    }
}

#[test]
fn the_header_section_is_limited_rfc_6585_5() {
    let section = "Host: a\r\nB: cdefg\r\n\r\n";
    let text = format!("GET / HTTP/1.1\r\n{section}trailing bytes do not count");
    let within = |bytes: usize, text: &str| {
        let limits = Limits { header_section: bytes, ..Limits::DEFAULT };
        parse_within(text.as_bytes(), &limits).map(|parsed| parsed.is_some())
    };
    assert_eq!(within(section.len(), &text), Ok(true));
    assert_eq!(within(section.len() - 1, &text), Err(Status::FieldsTooLarge));
    let part = &text[..16 + section.len() - 1];
    assert_eq!(within(section.len() - 1, part), Ok(false));
    assert_eq!(within(section.len() - 2, part), Err(Status::FieldsTooLarge));
}

#[test]
fn the_number_of_fields_is_limited_rfc_6585_5() {
    let parse_parts = |fields: usize, most: usize| {
        let limits = Limits { fields: most, ..Limits::DEFAULT };
        // Host is one of them, and the last fields must be seen too.
        let lines: String = (2..fields).map(|i| format!("X{i}: y\r\n")).collect();
        let text = with(format!("{lines}Content-Length: 7\r\n"));
        parse_within(&text, &limits).map(|parsed| parsed.unwrap().0.framing)
    };
    for (fields, most) in
        [(2, 2), (3, 3), (15, 15), (16, 16), (17, 17), (40, 40), (MAX_FIELDS, MAX_FIELDS)]
    {
        assert_eq!(parse_parts(fields, most), Ok(Framing::Length(7)), "{fields}");
        assert_eq!(parse_parts(fields + 1, most), Err(Status::FieldsTooLarge), "{fields}");
        assert_eq!(parse_parts(fields, most.max(MAX_FIELDS)), Ok(Framing::Length(7)), "{fields}");
    }
    // The array has the final limit.
    assert_eq!(parse_parts(MAX_FIELDS + 1, usize::MAX), Err(Status::FieldsTooLarge));
}
