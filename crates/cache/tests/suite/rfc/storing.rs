use crate::harness::{Harness, START, at, parse_request, read_reply, reply, request};
use pollux_cache::{Config, Decision, Purge, Tier};

const FRESH: &str = "Cache-Control: max-age=60\r\n";

/// Whether a second request is served from the store after the first received `wire`.
fn is_stored(first: &str, wire: &str) -> bool {
    let mut harness = Harness::default();
    harness.get("/", first, wire);
    harness.get("/", "", &reply(200, "", "new")).is_hit()
}

#[test]
fn rfc_9111_3_a_fresh_response_answers_the_next_request() {
    let mut harness = Harness::default();
    let wire = reply(200, &format!("{FRESH}Content-Type: text/plain\r\nX-A: 1\r\n"), "body");
    let first = harness.get("/a?b", "", &wire);
    assert_eq!((first.status, first.text(), first.origin_requests), (200, "body", 1));
    assert_eq!(
        first.field("cache-status"),
        Some("Pollux; fwd=uri-miss; fwd-status=200; ttl=60; stored")
    );
    harness.now += 59;
    let second = harness.get("/a?b", "", &reply(200, "", "new"));
    assert!(second.is_hit());
    assert_eq!((second.status, second.text()), (200, "body"));
    assert_eq!(second.field("age"), Some("59"));
    assert_eq!(second.field("content-length"), Some("4"));
    assert_eq!(second.field("content-type"), Some("text/plain"));
    assert_eq!(second.field("x-a"), Some("1"));
    assert_eq!(second.field("cache-status"), Some("Pollux; hit; ttl=1"));
    assert_eq!(second.field("date"), Some(&at(START)[..]), "RFC 9110 §6.6.1");
    harness.now += 1;
    assert_eq!(harness.get("/a?b", "", &reply(200, "", "new")).text(), "new");
    assert!(!harness.get("/a?c", "", &wire).is_hit(), "another query is another key");
}

#[test]
fn rfc_9111_3_what_is_not_stored() {
    for (request, wire) in [
        ("", reply(200, "Cache-Control: max-age=60, no-store\r\n", "x")),
        ("", reply(200, "Cache-Control: max-age=60, private\r\n", "x")),
        ("", reply(200, "Cache-Control: max-age=60\r\nVary: *\r\n", "x")),
        ("", reply(200, "", "x")),
        ("", reply(302, "Location: /\r\n", "x")),
        ("Cache-Control: no-store\r\n", reply(200, FRESH, "x")),
        ("Authorization: Basic eA==\r\n", reply(200, FRESH, "x")),
        (
            "Range: bytes=0-0\r\n",
            reply(206, &format!("{FRESH}Content-Range: bytes 0-0/9\r\n"), "x"),
        ),
        // RFC 9110 §15.5.17: a 416 concerns the range of this request.
        ("Range: bytes=99-\r\n", reply(416, FRESH, "")),
        ("", reply(416, FRESH, "")),
    ] {
        assert!(!is_stored(request, &wire), "{request}{wire}");
    }
    // Positive control.
    assert!(is_stored("", &reply(200, FRESH, "x")));
    assert!(is_stored(
        "Authorization: Basic eA==\r\n",
        &reply(200, "Cache-Control: public, max-age=9\r\n", "x")
    ));
    assert!(is_stored("Range: bytes=0-0\r\n", &reply(200, FRESH, "x")));
    assert!(is_stored("Cookie: a=b\r\n", &reply(200, FRESH, "x")));
}

/// A cookie that the origin sets for one client must not be sent to another one.
#[test]
fn rfc_9111_7_3_cookies_are_not_shared() {
    let cookie = |control: &str| {
        reply(200, &format!("Cache-Control: {control}\r\nSet-Cookie: session=1\r\n"), "x")
    };
    let mut harness = Harness::default();
    let first = harness.get("/", "", &cookie("max-age=60"));
    assert_eq!(first.field("set-cookie"), Some("session=1"), "its own client receives it");
    assert!(
        first.field("cache-status").unwrap().ends_with("; detail=set-cookie"),
        "{}",
        first.head
    );
    let second = harness.get("/", "", &reply(200, "", "new"));
    assert_eq!((second.is_hit(), second.field("set-cookie")), (false, None));

    assert!(is_stored("", &cookie("max-age=60, public")));
    let mut harness = Harness::default();
    harness.get("/", "", &cookie("max-age=60, private=\"Set-Cookie\""));
    let stored = harness.get("/", "", "");
    assert_eq!((stored.is_hit(), stored.field("set-cookie")), (true, None));

    let mut harness = Harness::new(Config { cache_set_cookie: true, ..Config::default() });
    harness.get("/", "", &cookie("max-age=60"));
    let stored = harness.get("/", "", "");
    assert_eq!((stored.is_hit(), stored.field("set-cookie")), (true, Some("session=1")));
}

#[test]
fn rfc_9111_3_1_fields_that_are_not_stored() {
    let mut harness = Harness::default();
    let fields = "Cache-Control: max-age=60, no-cache=\"a, B\", private=\"c\"\r\nConnection: d\r\n\
                  a: 1\r\nb: 2\r\nc: 3\r\nd: 4\r\ne: 5\r\nProxy-Authenticate: x\r\nAge: 7\r\n\
                  f: 6\r\nConnection: x, F\r\nContent_Length: 9\r\nKeep_Alive: 1\r\n\
                  Cache-Status: Near; hit\r\n";
    harness.get("/", "", &reply(200, fields, "x"));
    let got = harness.get("/", "", "");
    for name in ["a", "b", "c", "d", "f", "connection", "proxy-authenticate"] {
        assert_eq!(got.field(name), None, "{name}");
    }
    // Some programs read such a name as the one with a hyphen.
    assert_eq!((got.field("content_length"), got.field("keep_alive")), (None, None));
    assert_eq!((got.field("e"), got.field("age")), (Some("5"), Some("7")));
    assert!(
        got.head.contains("Cache-Status: Near; hit\r\n"),
        "RFC 9211 §2: caches add to the list"
    );
    assert_eq!(got.head.matches("Age:").count(), 1);
}

#[test]
fn rfc_9111_3_incomplete_or_too_long_content_is_not_stored() {
    let config = Config { max_object_bytes: 100_000, ..Config::default() };
    let wire = |announced: usize, sent: usize| {
        format!("HTTP/1.1 200 OK\r\n{FRESH}Content-Length: {announced}\r\n\r\n{}", "x".repeat(sent))
    };
    let chunked = |sent: usize| {
        format!("HTTP/1.1 200 OK\r\n{FRESH}Transfer-Encoding: chunked\r\n\r\n{}", "x".repeat(sent))
    };
    for (wire, expected) in [
        (wire(5, 5), true),
        (wire(6, 5), false),
        (wire(100_000, 100_000), true),
        (wire(100_001, 100_001), false),
        // The harness does not decode chunks.
        (chunked(100_000), true),
        (chunked(100_001), false),
    ] {
        let mut harness = Harness::new(config.clone());
        let first = harness.get("/", "", &wire);
        let second = harness.get("/", "", &reply(200, "", ""));
        assert_eq!(second.is_hit(), expected, "{}", first.head);
        assert!(!expected || second.body == first.body);
    }
}

#[test]
fn rfc_9111_4_1_variants() {
    let mut harness = Harness::default();
    let wire = |body: &str| reply(200, &format!("{FRESH}Vary: Accept-Encoding\r\n"), body);
    harness.get("/", "Accept-Encoding: gzip, br\r\n", &wire("both"));
    let other = harness.get("/", "Accept-Encoding: gzip\r\n", &wire("gzip"));
    assert!(other.field("cache-status").unwrap().contains("fwd=vary-miss"));
    harness.get("/", "", &wire("none"));
    for (fields, body) in [
        ("Accept-Encoding: BR;q=1.0,gzip\r\n", "both"),
        ("Accept-Encoding: x-gzip\r\n", "gzip"),
        ("", "none"),
    ] {
        let got = harness.get("/", fields, "");
        assert!(got.is_hit());
        assert_eq!(got.text(), body);
    }
    assert_eq!(harness.stored("http://a/"), 3);
    // The origin's `Vary` has changed: the old variants would match wrong requests.
    harness.get("/", "Accept-Encoding: zstd\r\n", &reply(200, &format!("{FRESH}Vary: X\r\n"), "x"));
    assert_eq!(harness.get("/", "Accept-Encoding: gzip\r\n", "").text(), "x");
}

/// `Connection` removes fields from the forwarded request. A client must not use that to have a
/// response stored under values that the origin never saw.
#[test]
fn rfc_9111_4_1_fields_that_were_not_forwarded_count_as_absent() {
    let mut harness = Harness::default();
    let wire = |body: &str| reply(200, &format!("{FRESH}Vary: Accept-Language\r\n"), body);
    let hidden = "Accept-Language: de\r\nConnection: accept-language\r\n";
    harness.get("/", hidden, &wire("any"));
    let got = harness.get("/", "Accept-Language: de\r\n", &wire("de"));
    assert_eq!((got.origin_requests, got.text()), (1, "de"));
    for (fields, body) in [("", "any"), (hidden, "any"), ("Accept-Language: de\r\n", "de")] {
        let got = harness.get("/", fields, "");
        assert_eq!((got.is_hit(), got.text()), (true, body), "{fields}");
    }
    // The proxy rewrites these fields, so the client's own values have no meaning.
    for field in ["Forwarded", "X-Forwarded-For", "Via", "TE"] {
        assert!(!is_stored("", &reply(200, &format!("{FRESH}Vary: {field}\r\n"), "x")), "{field}");
    }
}

/// Regression: behind a balancer that ends TLS, a redirect to https was also sent to clients of https.
#[test]
fn every_response_varies_by_the_implied_fields() {
    let implied_vary = vec!["x-forwarded-proto".into()];
    let mut harness = Harness::new(Config { implied_vary, ..Config::default() });
    let [http, https] = ["http", "https"].map(|proto| format!("X-Forwarded-Proto: {proto}\r\n"));
    let fields = format!("{FRESH}ETag: \"a\"\r\n");
    assert_eq!(harness.get("/", &http, &reply(200, &fields, "one")).text(), "one");
    assert_eq!(harness.get("/", &https, &reply(200, &fields, "two")).text(), "two");
    assert_eq!(harness.get("/", "", &reply(200, &fields, "none")).text(), "none");
    harness.now += 100;
    let confirmed = harness.get("/", &https, &reply(304, &fields, ""));
    assert_eq!((confirmed.origin_requests, confirmed.text()), (1, "two"));
    assert_eq!((harness.get("/", &https, "").is_hit(), harness.stored("")), (true, 3));
    // A field that `Connection` names is not forwarded.
    let hidden = format!("{https}Connection: x-forwarded-proto\r\n");
    assert_eq!(harness.get("/", &hidden, &reply(304, &fields, "")).text(), "none");
    assert_eq!(harness.cache.store().purge(Purge::Url(b"http://a/")), 3);
}

#[test]
fn rfc_9111_4_1_the_number_of_variants_is_bounded() {
    let mut harness = Harness::default();
    for number in 0..3 * pollux_cache::VARIANTS_MAX {
        let wire = reply(200, &format!("{FRESH}Vary: X\r\n"), "x");
        harness.get("/", &format!("X: {number}\r\n"), &wire);
    }
    assert_eq!(harness.stored(""), pollux_cache::VARIANTS_MAX);
}

/// Regression: when they were too long together, all variants were lost, the latest one included.
#[test]
fn rfc_9111_4_1_the_length_of_all_variants_is_bounded() {
    let mut harness = Harness::new(Config { limit_bytes: 8 << 20, ..Config::default() });
    let long = reply(200, &format!("{FRESH}Vary: X\r\n"), &"x".repeat(900_000));
    for number in 0..12 {
        let field = format!("X: {number}\r\n");
        harness.get("/", &field, &long);
        assert!(harness.get("/", &field, &reply(200, "", "new")).is_hit(), "{number}");
    }
    let count = harness.stored("http://a/");
    assert!((3..=4).contains(&count), "{count} variants have half of the memory");
}

#[test]
fn rfc_9213_2_targeted_fields_take_precedence() {
    for (fields, expected) in [
        ("CDN-Cache-Control: max-age=60\r\nCache-Control: no-store\r\n", true),
        ("CDN-Cache-Control: no-store\r\nCache-Control: max-age=60\r\n", false),
        ("CDN-Cache-Control: max-age=60, &\r\nCache-Control: no-store\r\n", false),
        ("CDN-Cache-Control: max-age=0\r\nExpires: Fri, 31 Dec 9999 23:59:59 GMT\r\n", false),
        ("Pollux-Cache-Control: max-age=60\r\nCDN-Cache-Control: no-store\r\n", true),
    ] {
        assert_eq!(is_stored("", &reply(200, fields, "x")), expected, "{fields}");
    }
}

#[test]
fn negative_caching_is_what_is_configured() {
    let mut harness = Harness::new(Config { negative_lifetime_s: 10, ..Config::default() });
    harness.get("/", "", &reply(404, "", "none"));
    assert!(harness.get("/", "", "").is_hit());
    harness.now += 10;
    assert!(!harness.get("/", "", &reply(200, FRESH, "there")).is_hit());
    assert_eq!(harness.get("/", "", "").text(), "there");
    assert!(!is_stored("", &reply(404, "", "none")), "the default is none");
}

#[test]
fn rfc_9111_5_2_1_unsupported_requests_are_forwarded_unchanged() {
    let mut harness = Harness::default();
    harness.get("/", "", &reply(200, FRESH, "old"));
    for fields in [
        "If-Match: \"a\"\r\n",
        "If-Unmodified-Since: Sun, 06 Nov 1994 08:49:37 GMT\r\n",
        "Upgrade: websocket\r\nConnection: upgrade\r\n",
        "Cache-Control: no-store\r\n",
    ] {
        let got = harness.get("/", fields, &reply(200, "", "new"));
        assert_eq!((got.text(), got.conditions.is_none()), ("new", true), "{fields}");
        assert!(got.field("cache-status").unwrap().contains("fwd=bypass"));
    }
    for method in ["OPTIONS", "TRACE", "POST", "PUT", "QUERY"] {
        let head = request(&format!("{method} /other"), "");
        let got = harness.exchange(&head, Some(&reply(200, FRESH, "")));
        assert!(got.field("cache-status").unwrap().contains("fwd=method"), "{method}");
    }
    assert!(harness.get("/", "", "").is_hit());
    assert!(!harness.get("/other", "", &reply(200, "", "")).is_hit());
}

/// RFC 9110 §7.8: a server may ignore `Upgrade`. Regression: clients that offer HTTP/2 with every request
/// got nothing from the store.
#[test]
fn an_offer_of_another_http_does_not_bypass_the_store() {
    let mut harness = Harness::default();
    harness.get("/", "", &reply(200, FRESH, "stored"));
    for (protocols, is_hit) in [
        ("h2c", true),
        ("H2C, HTTP/2.0", true),
        ("TLS/1.0", true),
        ("", true),
        ("websocket", false),
        ("h2c, echo/1", true),
        ("https/1", false),
    ] {
        let fields = format!("Connection: Upgrade\r\nUpgrade: {protocols}\r\n");
        let got = harness.get("/", &fields, &reply(200, "", "other"));
        assert_eq!(got.is_hit(), is_hit, "{protocols}");
    }
}

#[test]
fn purges_by_url_prefix_and_tag() {
    use pollux_cache::Purge::{Everything, Prefix, Tag, Url};
    let mut harness = Harness::default();
    let tagged = |tags: &str| reply(200, &format!("{FRESH}{tags}Vary: X\r\n"), "x");
    let fill = |harness: &mut Harness| {
        harness.get("/a/1", "", &tagged("Surrogate-Key: one both\r\n"));
        harness.get("/a/1", "X: 1\r\n", &tagged(""));
        harness.get("/a/2", "", &tagged("Cache-Tag: two,both\r\n"));
        harness.get("/b", "", &tagged("X-Other: one\r\n"));
    };
    for (purge, count) in [
        (Url(b"http://a/a/1"), 2),
        (Url(b"http://a/a"), 0),
        (Url(b"HTTP://A:80/a/1#x"), 2),
        (Prefix(b"http://a/a/"), 3),
        (Prefix(b"HTTP://A:80/b"), 1),
        (Prefix(b"http://a"), 4),
        (Tag(b"one"), 2),
        (Tag(b"both"), 3),
        (Tag(b"on"), 0),
        (Everything, 4),
    ] {
        fill(&mut harness);
        let before = harness.stored("");
        assert_eq!(before, 4);
        assert_eq!(harness.cache.store().purge(purge), count, "{purge:?}");
        assert_eq!(harness.stored(""), 4 - count);
    }
}

/// Regression: a purge kept all responses that were being fetched from being stored, and each request that
/// waited for one of them was forwarded.
#[test]
fn a_purge_concerns_only_the_fetches_that_it_selects() {
    use pollux_cache::Purge::{Everything, Prefix, Tag, Url};
    for (purge, left_if_unbegun, left_if_begun) in [
        (Url(b"http://a/a/1"), 1, 1),
        (Prefix(b"http://a/a/"), 1, 1),
        (Tag(b"one"), 0, 1),
        (Everything, 0, 0),
    ] {
        for (has_begun, left) in [(false, left_if_unbegun), (true, left_if_begun)] {
            let mut harness = Harness::default();
            let pending = [("/a/1", "Cache-Tag: one\r\n"), ("/b", "")].map(|(path, tags)| {
                let head = request(&format!("GET {path}"), "");
                let Decision::Fetch(fetch) = harness.lookup(&head, None, false) else { panic!() };
                (head, fetch.ticket, reply(200, &format!("{FRESH}{tags}"), "x"))
            });
            let begin = |harness: &mut Harness| {
                for (head, ticket, wire) in &pending {
                    let now = harness.now;
                    read_reply(wire, false, |reply| {
                        harness.cache.head(*ticket, &parse_request(head), reply, now, now);
                    });
                }
            };
            if has_begun {
                begin(&mut harness);
            }
            harness.cache.store().purge(purge);
            if !has_begun {
                begin(&mut harness);
            }
            for (_, ticket, _) in &pending {
                if harness.cache.append(*ticket, b"x") {
                    harness.cache.finish(*ticket);
                }
            }
            assert_eq!(harness.stored(""), left, "{purge:?} {has_begun}");
            assert_eq!(harness.cache.store().statistics().fetching, 0);
        }
    }
}

#[test]
fn a_walk_returns_each_url_once() {
    const COUNT: usize = 1000;
    let mut harness = Harness::new(Config { limit_bytes: 256 << 20, ..Config::default() });
    let wire = reply(200, &format!("{FRESH}Age: 5\r\nVary: X\r\n"), "content");
    for number in 0..COUNT {
        harness.get(&format!("/{number}"), "", &wire);
    }
    harness.get("/7", "X: 1\r\n", &wire);
    for _ in 0..3 {
        assert!(harness.get("/7", "", "").is_hit());
    }
    harness.now += 10;
    let mut walk = harness.cache.store().walk(b"");
    let mut entries = Vec::new();
    let mut longest = 0;
    while let Some(batch) = walk.next_batch(harness.now) {
        longest = longest.max(batch.len());
        if entries.is_empty() {
            // Changes during the walk do no harm.
            harness.get("/new", "", &wire);
            harness.cache.store().purge(Purge::Url(b"http://a/0"));
        }
        entries.extend(batch);
    }
    assert!(longest < COUNT / 2, "{longest} at once");
    entries.sort_by(|one, other| one.url.cmp(&other.url));
    let urls: Vec<_> = entries.iter().map(|entry| &entry.url).collect();
    for number in 1..COUNT {
        let url = format!("http://a/{number}").into_bytes();
        assert_eq!(urls.iter().filter(|other| ***other == url).count(), 1, "{number}");
    }
    let seven = entries.iter().find(|entry| entry.url == b"http://a/7").unwrap();
    assert_eq!((seven.variants, seven.hits, seven.age), (2, 3, 15));
    assert_eq!((seven.status, seven.tier), (200, Tier::Memory));
    let seven = harness.cache.store().inspect(b"http://A/7", harness.now);
    assert_eq!(seven.len(), 2);
    assert_eq!((seven[0].vary.as_slice(), seven[1].vary.as_slice()), (&b"x:1\n"[..], &b"x\n"[..]));
    let first = &seven[0];
    assert_eq!((first.initial_age, first.age, first.received_at), (5, 15, START));
    assert_eq!(first.ttl, first.lifetime as i64 - 15);
    assert_eq!((first.content_length, first.is_heuristic), (7, false));
    assert!(harness.cache.store().inspect(b"http://a/none", harness.now).is_empty());
}

#[test]
fn evictions_are_counted() {
    let mut harness = Harness::new(Config { limit_bytes: 1 << 20, ..Config::default() });
    for number in 0..400 {
        harness.get(&format!("/{number}"), "", &reply(200, FRESH, &"x".repeat(8000)));
    }
    let counted = harness.cache.store().statistics();
    assert!(counted.evicted > 200, "{counted:?}");
    assert_eq!(counted.stored, counted.entries + counted.evicted);
}
