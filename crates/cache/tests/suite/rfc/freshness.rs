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
