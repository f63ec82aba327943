use crate::harness::{Harness, START, at, reply};
use pollux_cache::Config;

/// Whether a request after `after` seconds is served from the store.
fn is_fresh(fields: &str, after: u64, request: &str) -> bool {
    let mut harness = Harness::default();
    harness.get("/", "", &reply(200, fields, "old"));
    harness.now += after;
    harness.get("/", request, &reply(200, "Cache-Control: no-store\r\n", "new")).is_hit()
}

#[test]
fn rfc_9111_4_2_lifetimes() {
    let expires = format!("Expires: {}\r\nDate: {}\r\n", at(START + 60), at(START));
    for (fields, lifetime) in [
        ("Cache-Control: max-age=60\r\n", 60),
        ("Cache-Control: max-age=9, s-maxage=60\r\n", 60),
        ("Cache-Control: max-age=90\r\nAge: 30\r\n", 60),
        (&expires, 60),
        (&format!("Cache-Control: max-age=9\r\n{expires}"), 9),
        (&format!("Last-Modified: {}\r\n", at(START - 600)), 60),
    ] {
        assert!(is_fresh(fields, lifetime - 1, ""), "{fields}");
        assert!(!is_fresh(fields, lifetime, ""), "{fields}");
    }
    for stale in [
        "Cache-Control: max-age=0\r\nETag: \"a\"\r\n",
        "Cache-Control: max-age=60, max-age=30\r\nETag: \"a\"\r\n",
        "Cache-Control: max-age=60s\r\nETag: \"a\"\r\n",
        "Cache-Control: max-age=60\r\nAge: 60\r\nETag: \"a\"\r\n",
        "Cache-Control: no-cache, max-age=60\r\nETag: \"a\"\r\n",
        "Expires: 0\r\nLast-Modified: Sun, 06 Nov 1994 08:49:37 GMT\r\n",
        "ETag: \"a\"\r\n",
    ] {
        assert!(!is_fresh(stale, 0, ""), "{stale}");
    }
}

/// Regression: a page of one user with a `Last-Modified` was fresh for all. Other caches do not store it.
#[test]
fn rfc_9111_4_2_2_no_heuristics_for_cookies() {
    let changed = format!("Last-Modified: {}\r\n", at(START - 1000));
    let is_for_all = |of_request: &str, fields: &str| {
        let mut harness = Harness::default();
        harness.get("/", of_request, &reply(200, fields, "page"));
        harness.get("/", "", &reply(200, "", "new")).is_hit()
    };
    let cookie = "Cookie: session=1\r\n";
    assert!(is_for_all("", &changed));
    assert!(!is_for_all(cookie, &changed));
    assert!(is_for_all(cookie, &format!("{changed}Cache-Control: public\r\n")));
    assert!(is_for_all(cookie, "Cache-Control: max-age=60\r\n"));
    // It is for all as soon as the origin confirms it for a client without a cookie.
    let mut harness = Harness::default();
    harness.get("/", cookie, &reply(200, &changed, "page"));
    let confirmed = reply(304, &changed, "");
    for (of_request, is_hit) in [(cookie, false), ("", false), (cookie, true)] {
        let got = harness.get("/", of_request, &confirmed);
        assert_eq!((got.is_hit(), got.text()), (is_hit, "page"), "{of_request}");
    }
    harness.now += 110;
    for is_hit in [false, true] {
        assert_eq!(harness.get("/", cookie, &confirmed).is_hit(), is_hit);
    }
}

#[test]
fn rfc_9111_5_2_1_request_directives() {
    const FRESH: &str = "Cache-Control: max-age=60\r\nETag: \"a\"\r\n";
    for (request, after, expected) in [
        ("Cache-Control: max-age=10\r\n", 10, true),
        ("Cache-Control: max-age=10\r\n", 11, false),
        ("Cache-Control: max-age=0\r\n", 0, false),
        ("Cache-Control: max-age=0\r\n", 1, false),
        ("Cache-Control: max-age=1\r\n", 0, true),
        ("Cache-Control: max-age=x\r\n", 0, false),
        ("Cache-Control: max-age=x\r\n", 1, false),
        ("Cache-Control: min-fresh=20\r\n", 40, true),
        ("Cache-Control: min-fresh=20\r\n", 41, false),
        ("Cache-Control: no-cache\r\n", 0, false),
        ("Pragma: no-cache\r\n", 0, false),
        ("Pragma: no-cache\r\nCache-Control: max-age=60\r\n", 0, true),
        ("Cache-Control: max-stale\r\n", 1000, true),
        ("Cache-Control: max-stale=10\r\n", 70, true),
        ("Cache-Control: max-stale=10\r\n", 71, false),
        ("Cache-Control: max-stale=x\r\n", 61, false),
        ("Cache-Control: max-stale, max-age=60\r\n", 61, false),
        ("Cache-Control: only-if-cached\r\n", 59, true),
    ] {
        assert_eq!(is_fresh(FRESH, after, request), expected, "{request} {after}");
    }
    for forbids in ["must-revalidate", "proxy-revalidate", "s-maxage=60", "no-cache"] {
        let fields = format!("Cache-Control: max-age=60, {forbids}\r\nETag: \"a\"\r\n");
        assert!(!is_fresh(&fields, 61, "Cache-Control: max-stale\r\n"), "{forbids}");
    }
}

/// An immutable response is not validated for a reload, only for `no-cache`.
#[test]
fn rfc_8246_2_1_immutable() {
    for (immutable, request, after, expected) in [
        ("immutable", "Cache-Control: max-age=0\r\n", 0, true),
        ("immutable", "Cache-Control: max-age=0\r\n", 59, true),
        ("IMMUTABLE=x, immutable", "Cache-Control: max-age=5\r\n", 59, true),
        ("immutable", "Cache-Control: max-age=0\r\n", 60, false),
        ("immutable, stale-while-revalidate=60", "Cache-Control: max-age=0\r\n", 60, false),
        ("immutable", "Cache-Control: no-cache\r\n", 0, false),
        ("immutable", "Pragma: no-cache\r\n", 0, false),
        ("immutable", "Cache-Control: min-fresh=20\r\n", 41, false),
        ("immutable, no-cache", "", 0, false),
        ("x", "Cache-Control: max-age=0, immutable\r\n", 0, false),
    ] {
        let fields = format!("Cache-Control: max-age=60, {immutable}\r\nETag: \"a\"\r\n");
        assert_eq!(is_fresh(&fields, after, request), expected, "{immutable} {request} {after}");
    }
}

#[test]
fn rfc_9111_5_2_1_request_directives_may_be_ignored() {
    let mut harness = Harness::new(Config { honors_client_directives: false, ..Config::default() });
    harness.get("/", "", &reply(200, "Cache-Control: max-age=60\r\n", "old"));
    assert!(harness.get("/", "Cache-Control: no-cache\r\n", "").is_hit());
    assert!(harness.get("/", "Pragma: no-cache\r\n", "").is_hit());
}

#[test]
fn rfc_9111_5_2_1_7_only_if_cached() {
    let mut harness = Harness::default();
    let only = "Cache-Control: only-if-cached\r\n";
    assert_eq!(harness.get("/", only, "").status, 504);
    harness.get("/", "", &reply(200, "Cache-Control: max-age=60\r\n", "x"));
    assert_eq!(harness.get("/", only, "").text(), "x");
    harness.now += 60;
    assert_eq!(harness.get("/", only, "").status, 504);
    assert_eq!(harness.get("/", "Cache-Control: only-if-cached, max-stale\r\n", "").text(), "x");
}

#[test]
fn setting_the_clock_back_does_no_harm() {
    let mut harness = Harness::default();
    harness.get("/", "", &reply(200, "Cache-Control: max-age=60\r\n", "x"));
    harness.now -= 1_000_000;
    let got = harness.get("/", "", "");
    assert_eq!((got.is_hit(), got.field("age")), (true, Some("0")));
}
