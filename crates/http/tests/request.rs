//! Requests, rule by rule. Section numbers are those of RFC 9112 where no other is named.

use pollux_http::{
    Limits, Reject, Status,
    host::Authority,
    limits::MAX_FIELDS,
    request::{self, Framing, Known, Method, Parsed, Request, Target, Version},
};

fn parse_within<'b>(
    text: &'b [u8],
    limits: &Limits,
) -> Result<Option<(Request<'b>, usize)>, Status> {
    match request::parse(text, limits) {
        Ok(Parsed::Partial) => Ok(None),
        Ok(Parsed::Complete { request, len }) => Ok(Some((request, len))),
        Err(Reject { status, .. }) => Err(status),
    }
}

fn parse(text: &[u8]) -> Result<Option<(Request<'_>, usize)>, Status> {
    parse_within(text, &Limits::DEFAULT)
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

/// Each text is refused with this status.
#[track_caller]
fn all_refused(status: Status, texts: &[&[u8]]) {
    for text in texts {
        assert_eq!(refused(text), status, "{}", text.escape_ascii());
    }
}

/// A GET with these header lines after a valid Host.
fn with(lines: impl AsRef<[u8]>) -> Vec<u8> {
    [b"GET / HTTP/1.1\r\nHost: a\r\n", lines.as_ref(), b"\r\n"].concat()
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
    assert_eq!(request.field(b"Accep"), None);
    assert!(request.keep_alive && !request.expect_continue);
    assert_eq!(request.framing, Framing::None);
}

#[test]
fn every_prefix_of_a_request_is_partial() {
    for text in [
        &b"POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\n"[..],
        b"\r\nGET http://a/ HTTP/1.0\r\nA:\r\n\r\n",
        b"CONNECT a:1 HTTP/1.1\r\nHost: a:1\r\n\r\n",
        b"OPTIONS * HTTP/1.9\r\nHost:\r\n\r\n",
    ] {
        for end in 0..text.len() {
            let got = parse(&text[..end]);
            assert!(matches!(got, Ok(None)), "{}: {got:?}", text[..end].escape_ascii());
        }
        taken(text);
    }
}

#[test]
fn one_empty_line_before_the_request_is_skipped_2_2() {
    assert_eq!(taken(b"\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n").line, b"GET / HTTP/1.1");
    all_refused(
        Status::BadRequest,
        &[
            b"\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n",
            b"\nGET / HTTP/1.1\r\nHost: a\r\n\r\n",
            b"\rGET / HTTP/1.1\r\nHost: a\r\n\r\n",
            b" GET / HTTP/1.1\r\nHost: a\r\n\r\n",
            b"\r\n GET / HTTP/1.1\r\nHost: a\r\n\r\n",
            b"\0GET / HTTP/1.1\r\nHost: a\r\n\r\n",
            b"\xef\xbb\xbfGET / HTTP/1.1\r\nHost: a\r\n\r\n",
        ],
    );
}

#[test]
fn lines_end_in_crlf_2_2() {
    all_refused(
        Status::BadRequest,
        &[
            b"GET / HTTP/1.1\nHost: a\r\n\r\n",
            b"GET / HTTP/1.1\rHost: a\r\n\r\n",
            b"GET / HTTP/1.1\r\r\nHost: a\r\n\r\n",
            b"GET / HTTP/1.1\r\nHost: a\n\r\n",
            b"GET / HTTP/1.1\r\nHost: a\r\n\n",
            b"GET / HTTP/1.1\r\nHost: a\n\n",
            b"GET / HTTP/1.1\r\nHost: a\nA: b\r\n\r\n",
            b"GET / HTTP/1.1\r\nHost: a\r\nA: b\n\r\n",
            b"GET / HTTP/1.1\r\nHost: a\r\nA: b\nC: d\r\n\r\n",
            b"GET / HTTP/1.1\r\nHost: a\r\nA: b\r\n\nGET / HTTP/1.1",
            b"GET / HTTP/1.1\r\nHost: a\r\r\n\r\n",
            b"GET / HTTP/1.1\r\nHost: a\rb\r\n\r\n",
            b"GET / HTTP/1.1\r\nHost: a\r\n\r\r\n",
            b"GET / HTTP/1.1\r\nHost: a\r\nA:\n\r\n",
            b"GET / HTTP/1.1\r\nHost: a\r\nA:\r\r\n\r\n",
            b"GET / HTTP/1.1\r\n\nHost: a\r\n\r\n",
            b"GET / HTTP/1.0\r\n\n",
            b"GET / HTTP/1.0\n\r\n",
        ],
    );
}

#[test]
fn the_request_line_has_two_single_spaces_3() {
    all_refused(
        Status::BadRequest,
        &[
            b"GET  / HTTP/1.1\r\nHost: a\r\n\r\n",
            b"GET /  HTTP/1.1\r\nHost: a\r\n\r\n",
            b"GET / HTTP/1.1 \r\nHost: a\r\n\r\n",
            b"GET\t/ HTTP/1.1\r\nHost: a\r\n\r\n",
            b"GET /\tHTTP/1.1\r\nHost: a\r\n\r\n",
            b"GET /\x0bHTTP/1.1\r\nHost: a\r\n\r\n",
            b"GET / a HTTP/1.1\r\nHost: a\r\n\r\n",
            b"GET /\r\n",
            b"GET / \r\n",
            b"GET\r\n",
            b"GET \r\n\r\n",
            b"GET HTTP/1.1\r\nHost: a\r\n\r\n",
            b"/ HTTP/1.1\r\n\r\n",
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        ],
    );
}

#[test]
fn methods_are_tokens_and_case_matters_3_1() {
    for (name, method) in [
        ("GET", Method::Get),
        ("HEAD", Method::Head),
        ("POST", Method::Post),
        ("PUT", Method::Put),
        ("DELETE", Method::Delete),
        ("TRACE", Method::Trace),
        ("PATCH", Method::Patch),
        ("OPTIONS", Method::Options),
        ("get", Method::Other(b"get")),
        ("GETX", Method::Other(b"GETX")),
        ("M-SEARCH", Method::Other(b"M-SEARCH")),
        ("!#$%&'*+-.^_`|~09az", Method::Other(b"!#$%&'*+-.^_`|~09az")),
    ] {
        let text = format!("{name} / HTTP/1.1\r\nHost: a\r\n\r\n");
        let request = taken(text.as_bytes());
        assert_eq!(request.method, method);
        assert_eq!(request.method.as_bytes(), name.as_bytes());
    }
    for bad in 0..=255u8 {
        if bad.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~ ".contains(&bad) {
            continue;
        }
        let text = [b"GE", &[bad][..], b"T / HTTP/1.1\r\nHost: a\r\n\r\n"].concat();
        assert_eq!(refused(&text), Status::BadRequest, "{bad:#x}");
    }
}

#[test]
fn versions_2_3_and_rfc_9110_2_5() {
    let version = |version: &str| {
        parse(format!("GET / {version}\r\nHost: a\r\n\r\n").as_bytes())
            .map(|parsed| parsed.unwrap().0.version)
    };
    assert_eq!(version("HTTP/1.1"), Ok(Version::Http11));
    assert_eq!(version("HTTP/1.0"), Ok(Version::Http10));
    assert_eq!(version("HTTP/1.2"), Ok(Version::Http11));
    assert_eq!(version("HTTP/1.9"), Ok(Version::Http11));
    for other in ["HTTP/2.0", "HTTP/0.9", "HTTP/3.0", "HTTP/9.9", "HTTP/0.0"] {
        assert_eq!(version(other), Err(Status::VersionNotSupported), "{other}");
    }
    for bad in [
        "HTTP/1.d",
        "HTTP/d.1",
        "HTTP/#.1",
        "HTTP/1.#",
        "http/1.1",
        "Http/1.1",
        "HTTP/1.10",
        "HTTP/1",
        "HTTP/1.",
        "HTTP/11",
        "HTTP/1,1",
        "HTTP/01.1",
        "HTTP1.1",
        "HTTP /1.1",
        "HTTP/ 1.1",
        "HTTP/1.1x",
        "HTTPS/1.1",
        "HTTP/-1.1",
        "HTTP/2",
        "",
        "HTTP/1.\u{661}",
    ] {
        assert_eq!(version(bad), Err(Status::BadRequest), "{bad:?}");
    }
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    assert_eq!(refused(preface), Status::VersionNotSupported);
}

#[test]
fn targets_of_the_four_forms_3_2() {
    let ask = |method: &str, target: &str| {
        let text = format!("{method} {target} HTTP/1.1\r\nHost: other\r\n\r\n");
        parse(text.as_bytes()).map(|parsed| {
            let request = parsed.unwrap().0;
            let host = String::from_utf8(request.host.unwrap().to_vec()).unwrap();
            match request.target {
                Target::Path { path, query } => {
                    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
                    (text(path), query.map(text), host)
                }
                Target::Asterisk => ("*".into(), None, host),
                Target::Authority(Authority { host: name, port }) => {
                    let name = String::from_utf8(name.to_vec()).unwrap();
                    (name, port.map(|port| port.to_string()), host)
                }
            }
        })
    };
    let is = |path: &str, query: Option<&str>, host: &str| {
        Ok((path.to_string(), query.map(str::to_string), host.to_string()))
    };
    let bad = Err(Status::BadRequest);
    // §3.2.1
    assert_eq!(ask("GET", "/"), is("/", None, "other"));
    assert_eq!(ask("GET", "/a?"), is("/a", Some(""), "other"));
    assert_eq!(ask("GET", "/a?b?c=/d"), is("/a", Some("b?c=/d"), "other"));
    assert_eq!(ask("GET", "//a/b"), is("//a/b", None, "other"));
    assert_eq!(ask("GET", "/[a]{b}|c^d`e?[f]"), is("/[a]{b}|c^d`e", Some("[f]"), "other"));
    // §3.2.2: the authority of the target overrides Host.
    assert_eq!(ask("GET", "http://a.b:80/c?d"), is("/c", Some("d"), "a.b:80"));
    assert_eq!(ask("GET", "HTTP://a.b"), is("/", None, "a.b"));
    assert_eq!(ask("GET", "https://[::1]?q"), is("/", Some("q"), "[::1]"));
    for target in [
        "http:///c",
        "http://",
        "http://u@a/",
        "http://u:p@a/",
        "http://a:b/",
        "http://a\\b/",
        "ftp://a/",
        "a",
        "a/b",
        "a:80",
        "*",
        "http:/a",
        "http:a",
        "//",
        "?a",
        "http://a:99999/",
    ] {
        if target != "//" {
            assert_eq!(ask("GET", target), bad, "{target}");
        }
    }
    // §3.2.3
    assert_eq!(ask("CONNECT", "a.b:443"), is("a.b", Some("443"), "a.b:443"));
    assert_eq!(ask("CONNECT", "[::1]:443"), is("[::1]", Some("443"), "[::1]:443"));
    for target in ["a.b", "a.b:", "/", "http://a/", "*", ":443", "u@a:1", "a:1/"] {
        assert_eq!(ask("CONNECT", target), bad, "{target}");
    }
    // §3.2.4
    assert_eq!(ask("OPTIONS", "*"), is("*", None, "other"));
    assert_eq!(ask("OPTIONS", "http://a.b:1"), is("*", None, "a.b:1"));
    assert_eq!(ask("OPTIONS", "http://a.b/"), is("/", None, "a.b"));
    assert_eq!(ask("OPTIONS", "**"), bad);
    assert_eq!(ask("OPTIONS", "*?a"), bad);
}

#[test]
fn targets_are_visible_ascii_3_2() {
    for bad in (0..=0x20).chain([b'"', b'#', b'<', b'>', 0x7f]).chain(0x80..=0xff) {
        for target in [b"/a\x00b", b"/?\x00b"] {
            let mut text = [b"GET ", &target[..], b" HTTP/1.1\r\nHost: a\r\n\r\n"].concat();
            let at = text.iter().position(|&b| b == 0).unwrap();
            text[at] = bad;
            assert_eq!(refused(&text), Status::BadRequest, "{bad:#x}");
        }
    }
}

#[test]
fn host_is_given_once_3_2() {
    all_refused(
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
    assert_eq!(taken(b"GET / HTTP/1.0\r\n\r\n").host, None);
    assert_eq!(taken(b"GET / HTTP/1.0\r\nHost: a\r\n\r\n").host, Some(&b"a"[..]));
    assert_eq!(
        taken(b"GET / HTTP/1.1\r\nHost:\t[::1]:8080 \r\n\r\n").host,
        Some(&b"[::1]:8080"[..])
    );
    assert_eq!(taken(b"OPTIONS * HTTP/1.1\r\nHost:\r\n\r\n").host, None);
}

#[test]
fn fields_have_names_that_are_tokens_5_1() {
    for bad in
        (0..=255u8).filter(|b| !b.is_ascii_alphanumeric() && !b"!#$%&'*+-.^_`|~:".contains(b))
    {
        // In the middle of the name and at its end: the latter is also "space before the colon".
        for text in [
            with([b"A", &[bad][..], b"B: c\r\n"].concat()),
            with([b"A", &[bad][..], b": c\r\n"].concat()),
        ] {
            assert_eq!(refused(&text), Status::BadRequest, "{}", text.escape_ascii());
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
        assert_eq!(refused(&with(lines)), Status::BadRequest, "{lines:?}");
    }
    all_refused(
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
        // Short and long, since long runs are searched many octets at a time.
        for before in [&b""[..], b"a", &[b'x'; 7], &[b'x'; 31], &[b'x'; 64]] {
            let text = with([b"A: ", before, &[bad], b"b\r\n"].concat());
            assert_eq!(refused(&text), Status::BadRequest, "{bad:#x} after {}", before.len());
        }
    }
    let text = with(b"A: \t b\xe9\tc \t\r\nB:\r\nC: \r\n");
    let request = taken(&text);
    assert_eq!(request.field(b"a"), Some(&b"b\xe9\tc"[..]));
    assert_eq!(request.field(b"b"), Some(&b""[..]));
    assert_eq!(request.field(b"c"), Some(&b""[..]));
}

#[test]
fn folded_lines_are_refused_5_2() {
    for lines in
        ["A: b\r\n c\r\n", "A: b\r\n\tc\r\n", "A:\r\n b\r\n", "A: b\r\n \r\n", "A: b\r\n c: d\r\n"]
    {
        assert_eq!(refused(&with(lines)), Status::BadRequest, "{lines:?}");
    }
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
    assert!(request.has(Known::IfNoneMatch) && !request.has(Known::IfMatch));
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
    let lines = "Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n";
    assert_eq!(framing(lines), Err(Status::NotImplemented));
}

#[test]
fn a_transfer_coding_in_http_1_0_is_a_fault_6_1() {
    let text = b"POST / HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
    assert_eq!(refused(text), Status::BadRequest);
    let text = b"POST / HTTP/1.0\r\nContent-Length: 1\r\n\r\n";
    assert_eq!(taken(text).framing, Framing::Length(1));
}

#[test]
fn a_body_above_the_limit_is_refused_rfc_9110_15_5_14() {
    let limits = Limits { body: 100, ..Limits::DEFAULT };
    let length = |length: &str| {
        let text = with(format!("Content-Length: {length}\r\n"));
        parse_within(&text, &limits).map(|parsed| parsed.unwrap().0.framing)
    };
    assert_eq!(length("100"), Ok(Framing::Length(100)));
    for above in
        ["101", "18446744073709551615", "18446744073709551616", "99999999999999999999999999"]
    {
        assert_eq!(length(above), Err(Status::ContentTooLarge), "{above}");
    }
}

#[test]
fn persistence_9_3() {
    let keeps = |version: &str, lines: &str| {
        taken(format!("GET / HTTP/{version}\r\nHost: a\r\n{lines}\r\n").as_bytes()).keep_alive
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
    let ask = |version: &str, lines: &str| {
        let text = format!("POST / HTTP/{version}\r\nHost: a\r\n{lines}\r\n");
        parse(text.as_bytes()).map(|parsed| parsed.unwrap().0.expect_continue)
    };
    assert_eq!(ask("1.1", "Content-Length: 1\r\nExpect: 100-continue\r\n"), Ok(true));
    assert_eq!(ask("1.1", "Transfer-Encoding: chunked\r\nExpect: 100-Continue\r\n"), Ok(true));
    assert_eq!(ask("1.1", "Content-Length: 1\r\nExpect:\r\n"), Ok(false));
    // Without a body there is nothing to wait for.
    assert_eq!(ask("1.1", "Expect: 100-continue\r\n"), Ok(false));
    assert_eq!(ask("1.0", "Content-Length: 1\r\nExpect: 100-continue\r\n"), Ok(false));
    assert_eq!(ask("1.0", "Expect: else\r\n"), Ok(false));
    for value in ["else", "100-continue, else", "else, 100-continue", "100-continue=1", "200-ok"] {
        let got = ask("1.1", &format!("Content-Length: 1\r\nExpect: {value}\r\n"));
        assert_eq!(got, Err(Status::ExpectationFailed), "{value}");
    }
}

#[test]
fn the_request_line_is_limited_3() {
    let limits = Limits { request_line: 50, ..Limits::DEFAULT };
    let line = |len: usize| format!("GET /{} HTTP/1.1", "x".repeat(len - 14));
    let rest = "\r\nHost: a\r\n\r\n";
    let whole = format!("{}{rest}", line(50));
    assert_eq!(parse_within(whole.as_bytes(), &limits).unwrap().unwrap().0.line.len(), 50);
    let whole = format!("\r\n{}{rest}", line(50));
    assert!(parse_within(whole.as_bytes(), &limits).unwrap().is_some());
    for text in [format!("{}{rest}", line(51)), line(53), format!("GET /{}", "x".repeat(60))] {
        assert_eq!(
            parse_within(text.as_bytes(), &limits).unwrap_err(),
            Status::UriTooLong,
            "{text}"
        );
    }
    // A method without end is a line without end.
    let text = "G".repeat(60);
    assert_eq!(parse_within(text.as_bytes(), &limits).unwrap_err(), Status::UriTooLong);
}

#[test]
fn the_header_section_is_limited_rfc_6585_5() {
    let section = "Host: a\r\nB: cdefg\r\n\r\n";
    let text = format!("GET / HTTP/1.1\r\n{section}trailing octets do not count");
    let within = |octets: usize, text: &str| {
        let limits = Limits { header_section: octets, ..Limits::DEFAULT };
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
    let ask = |fields: usize, most: usize| {
        let limits = Limits { fields: most, ..Limits::DEFAULT };
        // Host is one of them, and the last ones must be seen too.
        let lines: String = (2..fields).map(|i| format!("X{i}: y\r\n")).collect();
        let text = with(format!("{lines}Content-Length: 7\r\n"));
        parse_within(&text, &limits).map(|parsed| parsed.unwrap().0.framing)
    };
    for (fields, most) in
        [(2, 2), (3, 3), (15, 15), (16, 16), (17, 17), (40, 40), (MAX_FIELDS, MAX_FIELDS)]
    {
        assert_eq!(ask(fields, most), Ok(Framing::Length(7)), "{fields}");
        assert_eq!(ask(fields + 1, most), Err(Status::FieldsTooLarge), "{fields}");
        assert_eq!(ask(fields, most.max(MAX_FIELDS)), Ok(Framing::Length(7)), "{fields}");
    }
    // The array is the last word.
    assert_eq!(ask(MAX_FIELDS + 1, usize::MAX), Err(Status::FieldsTooLarge));
}

#[test]
fn a_reject_says_what_was_wrong() {
    let reject = request::parse(b"GET / HTTP/1.1\r\n\r\n", &Limits::DEFAULT).unwrap_err();
    assert_eq!(reject.to_string(), "400 Bad Request: Host is missing");
}
