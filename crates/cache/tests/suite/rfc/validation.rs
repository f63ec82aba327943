use crate::harness::{Harness, START, at, reply, request};

const STALE: &str = "Cache-Control: max-age=1\r\n";
const FRESH: &str = "Cache-Control: max-age=60\r\n";

/// A harness with a stale response to `/`.
fn with_stale(fields: &str) -> Harness {
    let mut harness = Harness::default();
    harness.get("/", "", &reply(200, &format!("{STALE}{fields}"), "old"));
    harness.now += 10;
    harness
}

#[test]
fn rfc_9111_4_3_1_both_validators_are_sent() {
    let changed = at(START - 9000);
    for (fields, expected) in [
        ("ETag: \"a\"\r\n".into(), "If-None-Match: \"a\"\r\n".into()),
        ("ETag: W/\"a\"\r\n".into(), "If-None-Match: W/\"a\"\r\n".into()),
        (format!("Last-Modified: {changed}\r\n"), format!("If-Modified-Since: {changed}\r\n")),
        (
            format!("ETag: \"a\"\r\nLast-Modified: {changed}\r\n"),
            format!("If-None-Match: \"a\"\r\nIf-Modified-Since: {changed}\r\n"),
        ),
        (String::new(), String::new()),
        ("ETag: a\r\n".into(), String::new()),
    ] {
        let mut harness = with_stale(&fields);
        let got = harness.get("/", "If-None-Match: \"client\"\r\n", &reply(200, FRESH, "new"));
        assert_eq!(got.conditions, Some(expected), "{fields}");
        assert_eq!(got.text(), "new");
        assert_eq!(harness.get("/", "", "").text(), "new");
    }
}

#[test]
fn rfc_9111_4_3_4_a_304_updates_the_stored_response() {
    let mut harness = with_stale(
        "ETag: \"a\"\r\nX-A: 1\r\nX-B: 1\r\nContent-Type: text/a\r\nContent-Encoding: gzip\r\n",
    );
    let fields = format!(
        "{FRESH}ETag: \"a\"\r\nX-A: 2\r\nX-C: 1\r\nContent-Type: text/b\r\nContent-Encoding: br\r\n\
         Content-Length: 99\r\n"
    );
    let wire = format!("HTTP/1.1 304 X\r\n{fields}\r\n");
    let first = harness.get("/", "", &wire);
    assert_eq!(first.field("cache-status"), Some("Pollux; fwd=stale; fwd-status=304; ttl=60"));
    harness.now += 5;
    let second = harness.get("/", "", "");
    assert_eq!((first.origin_requests, second.origin_requests), (1, 0));
    assert_eq!((first.field("age"), second.field("age")), (Some("0"), Some("5")));
    for got in [first, second] {
        assert_eq!((got.status, got.text()), (200, "old"));
        let fields = ["x-a", "x-b", "x-c", "content-type", "content-encoding", "content-length"];
        let values = fields.map(|name| got.field(name).unwrap());
        assert_eq!(values, ["2", "1", "1", "text/b", "gzip", "3"]);
        assert_eq!(got.head.matches("X-A").count(), 1);
        assert_eq!(got.field("date"), Some(&at(START + 10)[..]));
        assert_eq!(got.field("cache-control"), Some("max-age=60"));
    }
}

#[test]
fn rfc_9111_4_3_4_a_304_that_forbids_storing_removes_the_stored_response() {
    let mut harness = with_stale("ETag: \"a\"\r\n");
    let got = harness.get("/", "", &reply(304, "ETag: \"a\"\r\nCache-Control: no-store\r\n", ""));
    assert_eq!((got.status, got.text()), (200, "old"));
    let got = harness.get("/", "", &reply(200, "", "new"));
    assert_eq!((got.text(), got.conditions.as_deref()), ("new", None));
}

#[test]
fn rfc_9111_4_3_4_a_304_for_another_representation_causes_a_refetch() {
    let mut harness = with_stale("ETag: \"a\"\r\n");
    let head = request("GET /", "");
    let pollux_cache::Decision::Fetch(fetch) = harness.lookup(&head, None, false) else { panic!() };
    let wire = reply(304, "ETag: \"b\"\r\n", "");
    let request = crate::harness::parse_request(&head);
    let now = harness.now;
    let (decision, _) = crate::harness::read_reply(&wire, false, |reply| {
        harness.cache.head(fetch.ticket, &request, reply, now, now)
    });
    let pollux_cache::ResponseSource::Refetch(refetch) = decision.source else {
        panic!("{decision:?}")
    };
    assert_eq!(refetch.ticket, fetch.ticket);
    let got = harness.complete_fetch(&head, refetch, Some(&reply(200, FRESH, "new")));
    assert_eq!((got.text(), got.conditions.as_deref()), ("new", Some("")));
    assert_eq!(harness.get("/", "", "").text(), "new");
}

/// §3.2 requires the stored response to have the new `Vary` from then on; §4.1 then forbids serving
/// it to requests with other values.
#[test]
fn rfc_9111_4_1_a_304_may_change_vary() {
    let wire = reply(304, &format!("{FRESH}ETag: \"a\"\r\nVary: X\r\n"), "");
    let mut harness = with_stale("ETag: \"a\"\r\n");
    assert_eq!(harness.get("/", "X: 1\r\n", &wire).text(), "old");
    assert_eq!(harness.get("/", "X: 2\r\n", &reply(200, "", "new")).text(), "new");
    let got = harness.get("/", "X: 1\r\n", "");
    assert_eq!((got.is_hit(), got.field("vary")), (true, Some("X")));
    // Variants by other fields are removed.
    let mut harness = Harness::default();
    for number in 1..=2 {
        let wire = reply(200, &format!("{STALE}ETag: \"a\"\r\nVary: Y\r\n"), "old");
        harness.get("/", &format!("Y: {number}\r\n"), &wire);
    }
    harness.now += 10;
    harness.get("/", "X: 1\r\nY: 1\r\n", &wire);
    assert_eq!(harness.stored(""), 1);
    assert_eq!(harness.get("/", "X: 1\r\nY: 2\r\n", "").text(), "old");
}

#[test]
fn a_304_with_too_long_vary_still_serves_its_client() {
    let names: Vec<String> = (0..12_900).map(|number| format!("{number:04x}")).collect();
    let fields = format!("{FRESH}ETag: \"a\"\r\nVary: {}\r\n", names.join(","));
    let mut harness = with_stale("ETag: \"a\"\r\n");
    let long = format!("0000: {}\r\n", "x".repeat(10_000));
    let got = harness.get("/", &long, &reply(304, &fields, ""));
    assert_eq!((got.text(), got.field("etag")), ("old", Some("\"a\"")));
    assert!(got.head.starts_with("HTTP/1.1 200 OK\r\nCache-Control: "), "{:.99}", got.head);
    assert_eq!(harness.stored(""), 0);
}

/// The client that validates receives the cookie; the stored response stays as it is.
#[test]
fn rfc_9111_7_3_the_cookie_of_a_304_is_not_stored() {
    let mut harness = with_stale("ETag: \"a\"\r\n");
    let wire = reply(304, &format!("{FRESH}ETag: \"a\"\r\nSet-Cookie: session=1\r\n"), "");
    let first = harness.get("/", "", &wire);
    assert_eq!((first.text(), first.field("set-cookie")), ("old", Some("session=1")));
    let without = reply(304, &format!("{FRESH}ETag: \"a\"\r\n"), "");
    let second = harness.get("/", "", &without);
    assert_eq!((second.text(), second.field("set-cookie")), ("old", None));
    assert!(harness.get("/", "", "").is_hit());
}

#[test]
fn rfc_9111_4_3_3_weak_tags_validate_too() {
    let mut harness = with_stale("ETag: W/\"a\"\r\n");
    let got = harness.get("/", "", &reply(304, &format!("{FRESH}ETag: \"a\"\r\n"), ""));
    assert_eq!((got.origin_requests, got.text()), (1, "old"));
}

#[test]
fn rfc_9111_4_3_3_any_other_response_replaces_the_stored_one() {
    let mut harness = with_stale("ETag: \"a\"\r\n");
    let got = harness.get("/", "", &reply(200, "Cache-Control: private\r\n", "mine"));
    assert_eq!(got.text(), "mine");
    let got = harness.get("/", "", &reply(200, "", "new"));
    assert_eq!(
        (got.text(), got.conditions.as_deref()),
        ("new", None),
        "the stored response is outdated"
    );
}

#[test]
fn rfc_9111_3_5_an_authorized_response_does_not_replace_the_shared_one() {
    let with_token = "Authorization: x\r\nCache-Control: no-cache\r\n";
    let fields = format!("{FRESH}ETag: \"a\"\r\n");
    for wire in [reply(200, FRESH, "mine"), reply(304, &fields, "")] {
        let mut harness = Harness::default();
        harness.get("/", "", &reply(200, &fields, "all"));
        harness.now += 10;
        assert_eq!(harness.get("/", with_token, &wire).origin_requests, 1);
        let got = harness.get("/", "", "");
        assert_eq!((got.is_hit(), got.text(), got.field("age")), (true, "all", Some("10")));
    }
}

#[test]
fn rfc_9111_4_3_5_head_freshens() {
    let head = request("HEAD /", "");
    let etag = "ETag: \"a\"\r\n";
    for (fields, is_kept) in [
        (format!("{FRESH}{etag}X-A: 2\r\nContent-Length: 3\r\n"), true),
        (format!("{FRESH}X-A: 2\r\n"), true),
        (format!("{FRESH}ETag: \"b\"\r\n"), false),
        (format!("{FRESH}{etag}Content-Length: 4\r\n"), false),
        (format!("{FRESH}{etag}Last-Modified: {}\r\n", at(START - 1)), false),
    ] {
        let mut harness = with_stale(&format!("{etag}X-A: 1\r\nX-B: 1\r\n"));
        let wire = format!("HTTP/1.1 200 X\r\n{fields}\r\n");
        let got = harness.exchange(&head, Some(&wire));
        assert_eq!((got.origin_requests, got.status, got.text()), (1, 200, ""));
        assert_eq!(got.conditions.as_deref(), Some("If-None-Match: \"a\"\r\n"));
        let got = harness.get("/", "", &reply(200, "", "new"));
        assert_eq!(got.is_hit(), is_kept, "{fields}");
        if is_kept {
            assert_eq!((got.field("x-a"), got.field("x-b")), (Some("2"), Some("1")));
        }
    }
}

#[test]
fn rfc_9111_4_head_is_served_from_a_stored_get() {
    let mut harness = Harness::default();
    harness.get("/", "", &reply(200, FRESH, "body"));
    let got = harness.exchange(&request("HEAD /", ""), None);
    assert!(got.is_hit());
    assert_eq!((got.status, got.field("content-length"), got.text()), (200, Some("4"), ""));
    let got = harness.exchange(&request("HEAD /other", ""), Some("HTTP/1.1 200 X\r\n\r\n"));
    assert_eq!(got.origin_requests, 1);
    assert!(!harness.get("/other", "", &reply(200, "", "")).is_hit(), "a HEAD stores nothing");
}

/// Starts two fetches of the same resource, as clients do that cannot share one.
fn two_fetches(harness: &mut Harness) -> [pollux_cache::Fetch; 2] {
    [(); 2].map(|()| match harness.lookup(&request("GET /", ""), None, false) {
        pollux_cache::Decision::Fetch(fetch) => fetch,
        other => panic!("{other:?}"),
    })
}

#[test]
fn rfc_9111_4_3_4_a_late_304_does_not_bring_an_older_response_back() {
    let mut harness = with_stale("ETag: \"a\"\r\n");
    let [slow, fast] = two_fetches(&mut harness);
    let head = request("GET /", "");
    let fresh = |tag: &str| format!("Cache-Control: max-age=60\r\nETag: \"{tag}\"\r\n");
    harness.complete_fetch(&head, fast, Some(&reply(200, &fresh("b"), "new")));
    let late = harness.complete_fetch(&head, slow, Some(&reply(304, &fresh("a"), "")));
    assert_eq!(
        (late.status, late.field("etag")),
        (200, Some("\"a\"")),
        "its client gets what it validated"
    );
    assert_eq!(harness.get("/", "", "").text(), "new");
}

#[test]
fn rfc_9111_4_a_late_end_does_not_bring_an_older_response_back() {
    let wire = |text| reply(200, "Cache-Control: max-age=60\r\n", text);
    for has_content in [false, true] {
        let mut harness = Harness::default();
        let [slow, fast] = two_fetches(&mut harness);
        let head = request("GET /", "");
        let (cache, now) = (&mut harness.cache, harness.now);
        let client_request = crate::harness::parse_request(&head);
        let ((), content) = crate::harness::read_reply(&wire("old"), false, |reply| {
            assert!(cache.head(slow.ticket, &client_request, reply, now, now).should_store);
        });
        if has_content {
            assert!(cache.append(slow.ticket, &content));
        }
        harness.complete_fetch(&head, fast, Some(&wire("new")));
        if has_content || harness.cache.append(slow.ticket, &content) {
            harness.cache.finish(slow.ticket);
        }
        assert_eq!(harness.get("/", "", "").text(), "new", "{has_content}");
    }
}

/// RFC 9111 §5.2.2.7 and §5.2.2.4 forbid to store the field, not to send it to the client whose request the
/// origin has just answered.
#[test]
fn rfc_9111_5_2_2_7_a_304_brings_its_client_a_field_that_is_not_stored() {
    for directive in ["private", "no-cache"] {
        let fields = |number: u32| {
            format!(
                "Cache-Control: max-age=1, {directive}=\"Set-Cookie\"\r\nETag: \"a\"\r\nSet-Cookie: s={number}\r\n"
            )
        };
        let mut harness = Harness::default();
        let got = harness.get("/", "", &reply(200, &fields(1), "old"));
        assert_eq!(got.field("set-cookie"), Some("s=1"), "{directive}");
        assert_eq!(harness.get("/", "", "").field("set-cookie"), None, "{directive}");
        harness.now += 10;
        let got = harness.get("/", "", &reply(304, &fields(2), ""));
        assert_eq!((got.status, got.text()), (200, "old"), "{directive}");
        assert_eq!(got.field("set-cookie"), Some("s=2"), "{directive}");
        let got = harness.get("/", "", "");
        assert_eq!((got.is_hit(), got.field("set-cookie")), (true, None), "{directive}");
        harness.now += 10;
        let got = harness.get("/", "If-None-Match: \"a\"\r\n", &reply(304, &fields(3), ""));
        assert_eq!((got.status, got.field("set-cookie")), (304, Some("s=3")), "{directive}");
    }
}

/// The stored bytes are only equivalent to those of the strong tag, so that a range must not be joined to them.
#[test]
fn rfc_9111_4_3_4_a_strong_304_leaves_the_weak_tag_of_the_stored_response() {
    let mut harness = with_stale("ETag: W/\"a\"\r\n");
    let got = harness.get("/", "", &reply(304, &format!("{FRESH}ETag: \"a\"\r\n"), ""));
    assert_eq!((got.status, got.text(), got.field("etag")), (200, "old", Some("W/\"a\"")));
    let got = harness.get("/", "Range: bytes=0-0\r\nIf-Range: \"a\"\r\n", "");
    assert_eq!((got.is_hit(), got.status, got.text()), (true, 200, "old"));
}

#[test]
fn rfc_9110_13_2_2_the_condition_of_a_head_is_evaluated_if_the_cache_replaced_it() {
    for (condition, expected) in [("\"b\"", 304), ("\"c\"", 200)] {
        let mut harness = with_stale("ETag: \"a\"\r\n");
        let head = request("HEAD /", &format!("If-None-Match: {condition}\r\n"));
        let wire = format!("HTTP/1.1 200 X\r\n{FRESH}ETag: \"b\"\r\nContent-Length: 3\r\n\r\n");
        let got = harness.exchange(&head, Some(&wire));
        assert_eq!(got.conditions.as_deref(), Some("If-None-Match: \"a\"\r\n"));
        assert_eq!((got.status, got.field("etag")), (expected, Some("\"b\"")), "{condition}");
    }
}
