//! Values that make no sense, and those that nearly do: nothing panics, nothing hangs, and what comes out
//! is a head that can be read.

use crate::bench::{Bench, reply, request};
use pollux_cache::Config;
use pollux_http::reply::{Asked, Event, Reader};
use proptest::prelude::*;

/// Values out of the pieces that parsers look at.
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
    ]);
    prop::collection::vec(piece, 0..8).prop_map(|pieces| pieces.concat())
}

fn fields(names: &'static [&'static str]) -> impl Strategy<Value = String> {
    prop::collection::vec((prop::sample::select(names), value()), 0..6).prop_map(|fields| {
        fields.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect()
    })
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
];

fn check(head: &str) {
    let wire = format!("{head}\r\n");
    let mut reader = Reader::new(Reader::LIMITS);
    reader.begin(Asked { head: true, upgrade: false });
    let event = reader.read(wire.as_bytes()).map(|step| step.event);
    assert!(matches!(event, Ok(Event::Head(_))), "{wire:?}: {event:?}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, ..ProptestConfig::default() })]

    #[test]
    fn nothing_that_peers_say_does_harm(
        exchanges in prop::collection::vec(
            (
                prop::sample::select(vec!["GET", "GET", "GET", "HEAD", "POST", "X"]),
                prop::sample::select(vec!["/", "/?", "/a/b?c", "http://a:80/"]),
                fields(OF_REQUESTS),
                prop::sample::select(vec![200u16, 200, 200, 204, 206, 301, 304, 404, 503, 999]),
                fields(OF_RESPONSES),
                0..100u64,
            ),
            1..12,
        ),
    ) {
        let mut bench = Bench::new(Config { stale_if_error: 50, negative: 5, ..Config::default() });
        for (method, target, of_request, status, of_response, later) in exchanges {
            bench.now += later;
            let head = request(&format!("{method} {target}"), &of_request);
            let body = if method == "HEAD" { "" } else { "body" };
            let mut wire = reply(status, &of_response, body);
            if status == 304 {
                // One that speaks of what nobody has is asked for again: the bench would for ever.
                wire = reply(304, &of_response.replace("ETag", "X").replace("Last-Modified", "X"), "");
            }
            let got = bench.exchange(&head, Some(&wire));
            if got.is_hit() && got.status != 504 {
                check(&got.head);
            }
        }
        bench.cache.store().purge(pollux_cache::Purge::Tag(b"a"));
        prop_assert_eq!(bench.cache.store().statistics().fetching, 0);
    }
}
