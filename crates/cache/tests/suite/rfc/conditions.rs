//! Conditions and ranges of clients (RFC 9111 §4.3.2, RFC 9110 §13, §14).

use crate::harness::{Harness, START, at, reply, request};

const FRESH: &str = "Cache-Control: max-age=60\r\n";

/// The status of the response from the store to a request with `fields`.
fn status(stored: &str, fields: &str) -> u16 {
    let mut harness = Harness::default();
    harness.get("/", "", &reply(200, &format!("{FRESH}{stored}"), "0123456789"));
    harness.now += 5;
    let got = harness.get("/", fields, "");
    assert!(got.is_hit());
    if got.status == 304 {
        assert!(got.body.is_empty());
        assert_eq!((got.field("content-length"), got.field("content-type")), (None, None));
        assert!(got.field("age").unwrap().parse::<u64>().unwrap() >= 5);
        assert!(got.field("date").is_some() && got.field("cache-control").is_some());
    }
    got.status
}

#[test]
fn rfc_9111_4_3_2_if_none_match_is_answered_from_the_store() {
    for (tag, fields, expected) in [
        ("\"a\"", "If-None-Match: \"a\"\r\n", 304),
        ("W/\"a\"", "If-None-Match: \"a\"\r\n", 304),
        ("\"a\"", "If-None-Match: \"x\", W/\"a\"\r\n", 304),
        ("\"a\"", "If-None-Match: *\r\n", 304),
        ("\"a\"", "If-None-Match: \"b\"\r\n", 200),
        ("\"a\"", "If-None-Match: a\r\n", 200),
    ] {
        let stored = format!("ETag: {tag}\r\nContent-Type: text/plain\r\n");
        assert_eq!(status(&stored, fields), expected, "{tag} {fields}");
    }
}

#[test]
fn rfc_9111_4_3_2_if_modified_since_is_answered_from_the_store() {
    let changed = format!("Last-Modified: {}\r\nETag: \"a\"\r\n", at(START - 100));
    let since = |second| format!("If-Modified-Since: {}\r\n", at(second));
    assert_eq!(status(&changed, &since(START - 100)), 304);
    assert_eq!(status(&changed, &since(START - 99)), 304);
    assert_eq!(status(&changed, &since(START - 101)), 200);
    // An entity tag takes precedence over a date.
    assert_eq!(status(&changed, &format!("{}If-None-Match: \"b\"\r\n", since(START))), 200);
    assert_eq!(status(&changed, &format!("{}If-None-Match: \"a\"\r\n", since(START - 900))), 304);
    // Without `Last-Modified`, `Date` is used, and without that the time of arrival.
    let date = format!("Date: {}\r\n", at(START - 10));
    assert_eq!(status(&date, &since(START - 10)), 304);
    assert_eq!(status(&date, &since(START - 11)), 200);
    assert_eq!(status("", &since(START)), 304);
    assert_eq!(status("", &since(START - 1)), 200);
}

#[test]
fn rfc_9111_4_3_2_only_a_200_is_conditional() {
    let mut harness = Harness::default();
    harness.get("/", "", &reply(404, &format!("{FRESH}ETag: \"a\"\r\n"), "none"));
    let got = harness.get("/", "If-None-Match: \"a\"\r\nRange: bytes=0-1\r\n", "");
    assert_eq!((got.status, got.text()), (404, "none"));
}

#[test]
fn rfc_9111_4_3_2_a_miss_whose_validator_matches_gets_a_304() {
    let mut harness = Harness::default();
    let wire = reply(200, &format!("{FRESH}ETag: \"a\"\r\nContent-Type: x/y\r\n"), "body");
    let got = harness.get("/", "If-None-Match: \"a\"\r\n", &wire);
    assert_eq!((got.origin_requests, got.status, got.conditions.as_deref()), (1, 304, Some("")));
    assert_eq!((got.field("etag"), got.field("content-type")), (Some("\"a\""), None));
    assert_eq!(harness.get("/", "", "").text(), "body", "the whole was fetched for the store");
}

/// Otherwise the complete representation would be sent each time the client revalidates.
#[test]
fn conditions_are_forwarded_if_nothing_may_be_stored() {
    let mut harness = Harness::default();
    let private = "Cache-Control: private\r\nETag: \"a\"\r\n";
    harness.get("/", "", &reply(200, private, "mine"));
    let got = harness.get("/", "If-None-Match: \"a\"\r\n", &reply(304, private, ""));
    assert_eq!((got.status, got.conditions.as_deref()), (304, None));
    let got = harness.get("/", "If-None-Match: \"b\"\r\n", &reply(200, private, "new"));
    assert_eq!((got.status, got.text(), got.conditions.as_deref()), (200, "new", None));
    // Now it may be stored, and it is stored.
    let shared = format!("{FRESH}ETag: \"a\"\r\n");
    harness.get("/", "If-None-Match: \"b\"\r\n", &reply(200, &shared, "all"));
    assert_eq!(harness.get("/", "", "").text(), "all");
}

/// A response to an authorized request is stored only if it permits that (§3.5), which few do.
#[test]
fn conditions_of_authorized_requests_are_forwarded() {
    let mut harness = Harness::default();
    let wire = reply(304, "ETag: \"a\"\r\n", "");
    for validator in ["If-None-Match: \"a\"\r\n", &format!("If-Modified-Since: {}\r\n", at(START))]
    {
        let fields = format!("Authorization: x\r\n{validator}");
        let got = harness.get("/", &fields, &wire);
        assert_eq!((got.status, got.conditions.as_deref()), (304, None), "{validator}");
    }
    // A stored response is validated for all clients.
    let shared = "Cache-Control: s-maxage=0\r\nETag: \"b\"\r\n";
    harness.get("/", "Authorization: x\r\n", &reply(200, shared, "all"));
    let got =
        harness.get("/", "Authorization: x\r\nIf-None-Match: \"a\"\r\n", &reply(304, shared, ""));
    assert_eq!((got.status, got.text()), (200, "all"));
    assert_eq!(got.conditions.as_deref(), Some("If-None-Match: \"b\"\r\n"));
}

#[test]
fn rfc_9110_14_2_ranges_of_what_is_stored() {
    let mut harness = Harness::default();
    let changed = at(START - 100);
    let fields = format!("{FRESH}ETag: \"a\"\r\nLast-Modified: {changed}\r\n");
    harness.get("/", "", &reply(200, &fields, "0123456789"));
    let (since, came) = (format!("If-Range: {changed}\r\n"), at(START));
    for (range, condition, status, body) in [
        ("bytes=0-1", "", 206, "01"),
        ("bytes=8-", "", 206, "89"),
        ("bytes=-3", "", 206, "789"),
        ("bytes=5-99", "", 206, "56789"),
        ("bytes=10-", "", 416, ""),
        ("bytes=0-1,3-4", "", 200, "0123456789"),
        ("bytes=x", "", 200, "0123456789"),
        ("bytes=0-1", "If-Range: \"a\"\r\n", 206, "01"),
        ("bytes=0-1", "If-Range: \"b\"\r\n", 200, "0123456789"),
        ("bytes=0-1", "If-Range: W/\"a\"\r\n", 200, "0123456789"),
        ("bytes=0-1", &since, 206, "01"),
        ("bytes=0-1", "If-Range: Sun, 06 Nov 1994 08:49:37 GMT\r\n", 200, "0123456789"),
        ("bytes=0-1", "If-None-Match: \"a\"\r\n", 304, ""),
    ] {
        let got = harness.get("/", &format!("Range: {range}\r\n{condition}"), "");
        assert!(got.is_hit());
        assert_eq!((got.status, got.text()), (status, body), "{range} {condition}");
        match status {
            206 => assert!(got.field("content-range").unwrap().ends_with("/10")),
            416 => {
                assert_eq!(got.field("content-range"), Some("bytes */10"));
                assert_eq!((got.field("date"), got.field("etag")), (Some(&*came), Some("\"a\"")));
                assert_eq!((got.field("cache-control"), got.field("last-modified")), (None, None));
            }
            _ => assert_eq!(got.field("content-range"), None),
        }
    }
    let head = harness.exchange(&request("HEAD /", "Range: bytes=0-1\r\n"), None);
    assert_eq!((head.status, head.field("content-length")), (200, Some("10")));
}

#[test]
fn rfc_9110_14_4_a_part_has_one_content_range() {
    let mut harness = Harness::default();
    let fields = format!("{FRESH}Content-Range: bytes 0-1/9\r\n");
    harness.get("/", "", &reply(200, &fields, "0123456789"));
    let got = harness.get("/", "Range: bytes=2-3\r\n", "");
    assert_eq!((got.status, got.text()), (206, "23"));
    assert_eq!(got.head.to_lowercase().matches("content-range").count(), 1, "{}", got.head);
    assert_eq!(got.field("content-range"), Some("bytes 2-3/10"));
}

#[test]
fn rfc_9110_14_2_a_range_that_misses_is_forwarded_as_a_range() {
    let mut harness = Harness::default();
    let part = reply(206, &format!("{FRESH}Content-Range: bytes 0-1/10\r\n"), "01");
    let got = harness.get("/", "Range: bytes=0-1\r\n", &part);
    assert_eq!((got.status, got.conditions), (206, None));
    let got = harness.get("/", "", &reply(200, FRESH, "0123456789"));
    assert_eq!(
        (got.origin_requests, got.text()),
        (1, "0123456789"),
        "a part answers for nothing else"
    );
}
