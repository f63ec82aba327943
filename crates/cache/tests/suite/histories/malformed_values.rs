//! Malformed and nearly valid field values: nothing panics or hangs, and the output is a valid
//! head.

use crate::harness::{Harness, reply, request};
use pollux_cache::Config;
use pollux_http::reply::{Event, Reader, RequestInfo};
use proptest::prelude::*;

/// Values built from the fragments that parsers look for.
fn value() -> impl Strategy<Value = String> {
    let piece = prop::sample::select(vec![
        "max-age",
        "s-maxage",
        "private",
        "no-cache",
        "no-store",
        "public",
        "=",
        "\"",
        "\\",
        ",",
        ";",
        " ",
        "\t",
        "1",
        "0",
        "99999999999999999999",
        "-1",
        "*",
        "a",
        "Accept-Encoding",
        "gzip",
        "q=",
        "bytes",
        "W/",
        "GMT",
        "Sun, 06 Nov 1994 08:49:37 GMT",
        "/",
        "//",
        "http://a",
        "(",
        ")",
        ":",
        "?1",
        "%41",
        "\u{e9}",
        "stale-if-error",
        "stale-while-revalidate",
        "only-if-cached",
        "close",
        "X",
    ]);
    prop::collection::vec(piece, 0..8).prop_map(|pieces| pieces.concat())
}

/// Lines of these fields, some of them valid: otherwise almost nothing would be stored.
fn fields(
    names: &'static [&'static str],
    sensible: &'static [&'static str],
) -> impl Strategy<Value = String> {
    let any = (prop::sample::select(names), value());
    let line = prop_oneof![
        any.prop_map(|(name, value)| format!("{name}: {value}\r\n")),
        prop::sample::select(sensible).prop_map(|line| format!("{line}\r\n")),
    ];
    prop::collection::vec(line, 0..6).prop_map(|lines| lines.concat())
}

const OF_REQUESTS: &[&str] = &[
    "Cache-Control",
    "Pragma",
    "Range",
    "If-Range",
    "If-None-Match",
    "If-Modified-Since",
    "Accept-Encoding",
    "X",
    "Authorization",
    "Connection",
];
const OF_RESPONSES: &[&str] = &[
    "Cache-Control",
    "CDN-Cache-Control",
    "Expires",
    "Date",
    "Age",
    "ETag",
    "Last-Modified",
    "Vary",
    "Location",
    "Content-Location",
    "Surrogate-Key",
    "Set-Cookie",
    "X",
    "Connection",
    "Content-Range",
];

const SENSIBLE_OF_REQUESTS: &[&str] = &[
    "Range: bytes=0-1",
    "Range: bytes=9-",
    "If-None-Match: \"a\"",
    "Cache-Control: no-cache",
    "X: a",
];
const SENSIBLE_OF_RESPONSES: &[&str] = &[
    "Cache-Control: max-age=60",
    "Cache-Control: max-age=0",
    "ETag: \"a\"",
    "ETag: \"b\"",
    "Vary: X",
    "Content-Range: bytes 0-1/4",
];

fn check(head: &str) {
    let wire = format!("{head}\r\n");
    let mut reader = Reader::new(Reader::LIMITS);
    reader.begin(RequestInfo { head: true, upgrade: false });
    let event = reader.read(wire.as_bytes()).map(|step| step.event);
    assert!(matches!(event, Ok(Event::Head(_))), "{wire:?}: {event:?}");
    let ranges = head.lines().filter(|line| line.starts_with("Content-Range:")).count();
    assert!(ranges == 1 || !head.starts_with("HTTP/1.1 206"), "{wire:?}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, ..ProptestConfig::default() })]

    #[test]
    fn malformed_values_do_no_harm(
        exchanges in prop::collection::vec(
            (
                prop::sample::select(vec!["GET", "GET", "GET", "HEAD", "POST", "X"]),
                prop::sample::select(vec!["/", "/?", "/a/b?c", "http://a:80/"]),
                fields(OF_REQUESTS, SENSIBLE_OF_REQUESTS),
                prop::sample::select(vec![
                    200u16, 200, 200, 204, 206, 301, 304, 404, 416, 500, 502, 503, 504, 999,
                ]),
                fields(OF_RESPONSES, SENSIBLE_OF_RESPONSES),
                0..100u64,
            ),
            1..12,
        ),
    ) {
        let mut harness = Harness::new(Config { stale_if_error_s: 50, negative_lifetime_s: 5, ..Config::default() });
        for (method, target, of_request, status, of_response, later) in exchanges {
            harness.now += later;
            let head = request(&format!("{method} {target}"), &of_request);
            let body = if method == "HEAD" { "" } else { "body" };
            let got = harness.exchange(&head, Some(&reply(status, &of_response, body)));
            if got.is_hit() && got.status != 504 {
                check(&got.head);
                let wants_part = of_request.lines().any(|line| line.starts_with("Range:"));
                prop_assert!(wants_part || !matches!(got.status, 206 | 416), "{}", got.head);
            }
        }
        harness.cache.store().purge(pollux_cache::Purge::Tag(b"a"));
        prop_assert_eq!(harness.cache.store().statistics().fetching, 0);
    }
}
