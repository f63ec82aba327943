//! The request line and the whole head, rule by rule. Section numbers are those of RFC 9112 unless
//! another document is named.

use crate::parse_helpers::{accepted, assert_all_rejected, parse, parse_within, reject_status};
use pollux_http::{
    Limits, Status,
    host::Authority,
    request::{self, Framing, Method, ParseStatus, Target, Version},
};

#[test]
fn a_complete_request_and_the_start_of_the_next() {
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
        accepted(text);
    }
}

#[test]
fn one_empty_line_before_the_request_is_skipped_2_2() {
    assert_eq!(accepted(b"\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n").line, b"GET / HTTP/1.1");
    assert_all_rejected(
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
    assert_all_rejected(
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
    assert_all_rejected(
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
        let request = accepted(text.as_bytes());
        assert_eq!(request.method, method);
        assert_eq!(request.method.as_bytes(), name.as_bytes());
    }
    for bad in 0..=255u8 {
        if bad.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~ ".contains(&bad) {
            continue;
        }
        let text = [b"GE", &[bad][..], b"T / HTTP/1.1\r\nHost: a\r\n\r\n"].concat();
        assert_eq!(reject_status(&text), Status::BadRequest, "{bad:#x}");
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
    assert_eq!(reject_status(preface), Status::VersionNotSupported);
}

/// Regression: they were refused over TLS too.
#[test]
fn https_targets_are_accepted_where_the_connection_has_tls_3_2_2() {
    let limits = Limits { https: true, ..Limits::DEFAULT };
    let parse_over_tls = |line: &str| {
        let text = format!("{line} HTTP/1.1\r\nHost: other\r\n\r\n");
        match request::parse(text.as_bytes(), &limits) {
            Ok(ParseStatus::Complete { request, .. }) => {
                let host = request.host.map(|host| String::from_utf8(host.to_vec()).unwrap());
                let target = match request.target {
                    Target::Path { path, query: None } => String::from_utf8(path.to_vec()).unwrap(),
                    Target::Asterisk => "*".to_owned(),
                    other => panic!("{line}: {other:?}"),
                };
                Ok((target, host.unwrap()))
            }
            Ok(ParseStatus::Partial) => panic!("{line} is complete"),
            Err(reject) => Err(reject.status),
        }
    };
    let is = |target: &str, host: &str| Ok((target.to_owned(), host.to_owned()));
    assert_eq!(parse_over_tls("GET https://a:443/c"), is("/c", "a:443"));
    assert_eq!(parse_over_tls("GET HTTPS://a"), is("/", "a"));
    assert_eq!(parse_over_tls("OPTIONS https://a"), is("*", "a"));
    assert_eq!(parse_over_tls("GET http://a/c"), is("/c", "a"));
    for line in ["GET https://", "GET https://u@a/", "GET ftp://a/"] {
        assert_eq!(parse_over_tls(line), Err(Status::BadRequest), "{line}");
    }
}

#[test]
fn targets_of_the_four_forms_3_2() {
    let parse_parts = |method: &str, target: &str| {
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
    assert_eq!(parse_parts("GET", "/"), is("/", None, "other"));
    assert_eq!(parse_parts("GET", "/a?"), is("/a", Some(""), "other"));
    assert_eq!(parse_parts("GET", "/a?b?c=/d"), is("/a", Some("b?c=/d"), "other"));
    assert_eq!(parse_parts("GET", "//a/b"), is("//a/b", None, "other"));
    assert_eq!(parse_parts("GET", "/[a]{b}|c^d`e?[f]"), is("/[a]{b}|c^d`e", Some("[f]"), "other"));
    // §3.2.2: the authority of the target overrides Host.
    assert_eq!(parse_parts("GET", "http://a.b:80/c?d"), is("/c", Some("d"), "a.b:80"));
    assert_eq!(parse_parts("GET", "HTTP://a.b"), is("/", None, "a.b"));
    assert_eq!(parse_parts("GET", "http://[::1]?q"), is("/", Some("q"), "[::1]"));
    // RFC 9110 §7.4: https only over TLS.
    for target in ["https://a/c", "HTTPS://a", "https://"] {
        assert_eq!(parse_parts("GET", target), Err(Status::MisdirectedRequest), "{target}");
        assert_eq!(parse_parts("OPTIONS", target), Err(Status::MisdirectedRequest), "{target}");
    }
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
            assert_eq!(parse_parts("GET", target), bad, "{target}");
        }
    }
    // §3.2.3
    assert_eq!(parse_parts("CONNECT", "a.b:443"), is("a.b", Some("443"), "a.b:443"));
    assert_eq!(parse_parts("CONNECT", "[::1]:443"), is("[::1]", Some("443"), "[::1]:443"));
    for target in ["a.b", "a.b:", "/", "http://a/", "*", ":443", "u@a:1", "a:1/"] {
        assert_eq!(parse_parts("CONNECT", target), bad, "{target}");
    }
    // §3.2.4
    assert_eq!(parse_parts("OPTIONS", "*"), is("*", None, "other"));
    assert_eq!(parse_parts("OPTIONS", "http://a.b:1"), is("*", None, "a.b:1"));
    assert_eq!(parse_parts("OPTIONS", "http://a.b/"), is("/", None, "a.b"));
    assert_eq!(parse_parts("OPTIONS", "**"), bad);
    assert_eq!(parse_parts("OPTIONS", "*?a"), bad);
}

#[test]
fn targets_are_visible_ascii_3_2() {
    for bad in (0..=0x20).chain([b'"', b'#', b'<', b'>', 0x7f]).chain(0x80..=0xff) {
        for target in [b"/a\x00b", b"/?\x00b"] {
            let mut text = [b"GET ", &target[..], b" HTTP/1.1\r\nHost: a\r\n\r\n"].concat();
            let at = text.iter().position(|&b| b == 0).unwrap();
            text[at] = bad;
            assert_eq!(reject_status(&text), Status::BadRequest, "{bad:#x}");
        }
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
    // A method that is too long does not exist, also after an empty line.
    for text in ["G".repeat(60), format!("\r\n{}", "G".repeat(60))] {
        assert_eq!(parse_within(text.as_bytes(), &limits).unwrap_err(), Status::NotImplemented);
    }
}

#[test]
fn a_head_request_is_recognised_before_it_is_complete() {
    for (text, expected) in [
        ("HEAD / HTTP/1.1\r\n\r\n", true),
        ("\r\nHEAD ", true),
        ("HEAD", false),
        ("HEADER / HTTP/1.1\r\n", false),
        ("head / HTTP/1.1\r\n", false),
        ("GET / HTTP/1.1\r\nHEAD ", false),
        ("", false),
    ] {
        assert_eq!(request::is_head(text.as_bytes()), expected, "{text:?}");
    }
}

#[test]
fn a_reject_says_what_was_wrong() {
    let reject = request::parse(b"GET / HTTP/1.1\r\n\r\n", &Limits::DEFAULT).unwrap_err();
    assert_eq!(reject.to_string(), "400 Bad Request: Host is missing");
}
