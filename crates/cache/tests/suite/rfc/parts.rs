//! Partial responses (206): stored, joined, completed (RFC 9111 §3.3, §3.4; RFC 9110 §14, §15.3.7).

use crate::harness::{Harness, START, at, parse_request, read_reply, reply, request};
use pollux_cache::Config;

const WHOLE: &str = "0123456789";
const FRESH: &str = "Cache-Control: max-age=60\r\n";
const TAG: &str = "Cache-Control: max-age=60\r\nETag: \"a\"\r\n";

/// A 206 with the bytes `first..=last` of [`WHOLE`].
fn part(fields: &str, first: usize, last: usize) -> String {
    let range = format!("Content-Range: bytes {first}-{last}/10\r\n");
    reply(206, &format!("{fields}{range}"), &WHOLE[first..=last])
}

fn range(text: &str) -> String {
    format!("Range: bytes={text}\r\n")
}

/// A harness that has fetched these parts of `/`, one after the other.
fn with_parts(fields: &str, parts: &[(usize, usize)]) -> Harness {
    let mut harness = Harness::default();
    for &(first, last) in parts {
        harness.get("/", &range(&format!("{first}-{last}")), &part(fields, first, last));
    }
    harness
}

#[test]
fn rfc_9111_3_3_a_part_serves_the_ranges_it_contains() {
    let mut harness = with_parts(TAG, &[(2, 6)]);
    harness.now += 5;
    for (wanted, expected) in [
        ("2-6", Some("23456")),
        ("3-5", Some("345")),
        ("6-6", Some("6")),
        ("1-3", None),
        ("5-7", None),
        ("5-", None),
        ("-4", None),
        ("0-", None),
        ("3-4,5-5", None),
        ("10-", None),
        ("x", None),
    ] {
        let got = harness.get("/", &range(wanted), &reply(500, "", "forwarded"));
        assert_eq!(got.is_hit(), expected.is_some(), "{wanted}");
        let Some(expected) = expected else {
            assert!(got.field("cache-status").unwrap().contains("fwd=partial"), "{}", got.head);
            continue;
        };
        assert_eq!((got.status, got.text()), (206, expected), "{wanted}");
        let (first, last) = (&expected[..1], &expected[expected.len() - 1..]);
        let content_range = format!("bytes {first}-{last}/10");
        assert_eq!(got.field("content-range"), Some(&content_range[..]));
        assert_eq!(got.head.to_lowercase().matches("content-range").count(), 1, "{}", got.head);
        assert_eq!(got.field("content-length"), Some(&expected.len().to_string()[..]));
        assert_eq!((got.field("age"), got.field("etag")), (Some("5"), Some("\"a\"")));
    }
    // A part answers no other request.
    let head = harness.exchange(&request("HEAD /", ""), Some("HTTP/1.1 200 X\r\n\r\n"));
    assert_eq!(head.origin_requests, 1);
    let got = harness.get("/", "", &reply(200, TAG, WHOLE));
    assert_eq!((got.origin_requests, got.text()), (1, WHOLE));
    assert_eq!(harness.get("/", "", "").text(), WHOLE);
}

#[test]
fn rfc_9110_13_conditions_of_range_requests() {
    for (condition, expected) in [
        ("If-Range: \"a\"\r\n", Some(206)),
        ("If-Range: \"b\"\r\n", None),
        ("If-Range: W/\"a\"\r\n", None),
        ("If-None-Match: \"a\"\r\n", Some(304)),
        ("If-None-Match: \"b\"\r\n", Some(206)),
        ("Cache-Control: no-cache\r\n", None),
    ] {
        let mut harness = with_parts(TAG, &[(0, 4)]);
        let got = harness.get("/", &format!("{}{condition}", range("1-2")), &reply(500, "", ""));
        assert_eq!(got.is_hit().then_some(got.status), expected, "{condition}");
    }
}

#[test]
fn rfc_9111_3_3_what_is_not_stored() {
    let is_stored = |fields: &str, wire: &str| {
        let mut harness = Harness::default();
        harness.get("/", fields, wire);
        harness.get("/", &range("1-1"), &reply(500, "", "")).is_hit()
    };
    let first_half = range("0-4");
    assert!(is_stored(&first_half, &part(TAG, 0, 4)), "the positive control");
    for fields in [
        "Content-Range: bytes 0-4/*\r\n",
        "Content-Range: bytes */10\r\n",
        "Content-Range: bytes 0-3/10\r\n",
        "Content-Range: bytes 0-5/10\r\n",
        "Content-Range: bytes 0-4/10\r\nContent-Range: bytes 5-9/10\r\n",
        "Content-Range: bytes 0-4/10\r\nContent-Type: multipart/byteranges; boundary=x\r\n",
        "Content-Range: lines 0-4/10\r\n",
        "",
    ] {
        assert!(
            !is_stored(&first_half, &reply(206, &format!("{TAG}{fields}"), "01234")),
            "{fields}"
        );
    }
    assert!(!is_stored("", &part(TAG, 0, 4)), "no part was requested");
    let private = "Cache-Control: private, max-age=60\r\n";
    assert!(!is_stored(&first_half, &part(private, 0, 4)));
    assert!(!is_stored(&format!("{first_half}Authorization: x\r\n"), &part(TAG, 0, 4)));
    assert!(!is_stored(&format!("{first_half}Cache-Control: no-store\r\n"), &part(TAG, 0, 4)));
    let torn = part(TAG, 0, 4);
    assert!(
        !is_stored(&first_half, &torn[..torn.len() - 1]),
        "RFC 9111 §3.3: it could be, shorter"
    );
    // The size limit applies to the part.
    let mut harness = Harness::new(Config { max_object_bytes: 4, ..Config::default() });
    harness.get("/", &first_half, &part(TAG, 0, 4));
    assert!(!harness.get("/", &range("1-1"), &part(TAG, 1, 1)).is_hit());
    assert!(harness.get("/", &range("1-1"), "").is_hit());
}

#[test]
fn rfc_9111_3_4_adjacent_parts_are_joined() {
    for parts in [&[(0, 4), (5, 9)][..], &[(5, 9), (0, 4)], &[(0, 2), (2, 5), (4, 9)], &[(0, 9)]] {
        let mut harness = with_parts(TAG, parts);
        assert_eq!(harness.stored(""), 1);
        let got = harness.get("/", "", "");
        assert_eq!((got.is_hit(), got.status, got.text()), (true, 200, WHOLE), "{parts:?}");
        assert_eq!((got.field("content-range"), got.field("content-length")), (None, Some("10")));
        assert_eq!(harness.get("/", &range("3-8"), "").text(), "345678");
    }
    let mut harness = with_parts(TAG, &[(1, 3), (4, 6)]);
    let got = harness.get("/", &range("2-5"), "");
    assert_eq!((got.status, got.text()), (206, "2345"));
    // If two parts have a gap between them, the new one is stored.
    let mut harness = with_parts(TAG, &[(0, 2), (5, 9)]);
    assert!(harness.get("/", &range("6-7"), "").is_hit());
    assert!(!harness.get("/", &range("0-1"), &reply(500, "", "")).is_hit());
}

#[test]
fn rfc_9111_3_4_only_parts_of_one_representation_are_joined() {
    let (staleness, early) = (at(START - 10), at(START - 1000));
    for (fields, other, expected) in [
        ("ETag: \"a\"\r\n".to_owned(), "ETag: \"a\"\r\n".to_owned(), true),
        ("ETag: \"a\"\r\n".into(), "ETag: \"b\"\r\n".into(), false),
        ("ETag: W/\"a\"\r\n".into(), "ETag: W/\"a\"\r\n".into(), false),
        (String::new(), String::new(), false),
        (format!("Last-Modified: {early}\r\n"), format!("Last-Modified: {early}\r\n"), true),
        (
            format!("Last-Modified: {staleness}\r\n"),
            format!("Last-Modified: {staleness}\r\n"),
            false,
        ),
    ] {
        let with = |fields: &str| format!("Cache-Control: max-age=60\r\n{fields}");
        let mut harness = with_parts(&with(&fields), &[(0, 4)]);
        harness.get("/", &range("5-9"), &part(&with(&other), 5, 9));
        let got = harness.get("/", "", &reply(500, "", ""));
        assert_eq!(got.is_hit(), expected, "{fields}{other}");
        assert!(harness.get("/", &range("5-6"), "").is_hit());
        assert_eq!(harness.get("/", &range("1-2"), &reply(500, "", "")).is_hit(), expected);
    }
    // Another total length means another representation.
    let mut harness = with_parts(TAG, &[(0, 4)]);
    let longer = reply(206, &format!("{TAG}Content-Range: bytes 5-9/11\r\n"), "56789");
    harness.get("/", &range("5-9"), &longer);
    assert!(!harness.get("/", &range("1-2"), &reply(500, "", "")).is_hit());
}

#[test]
fn rfc_9111_3_4_the_fields_of_both_parts_are_combined() {
    let fields = |life: u32, number: u32| {
        format!("Cache-Control: max-age={life}\r\nETag: \"a\"\r\nX-A: {number}\r\n")
    };
    let mut harness = with_parts(&format!("{}X-B: 1\r\n", fields(60, 1)), &[(0, 4)]);
    harness.now += 50;
    harness.get("/", &range("5-9"), &part(&fields(30, 2), 5, 9));
    harness.now += 20;
    let got = harness.get("/", "", "");
    assert_eq!((got.text(), got.field("age")), (WHOLE, Some("20")));
    assert_eq!((got.field("x-a"), got.field("x-b")), (Some("2"), Some("1")));
    harness.now += 10;
    assert!(!harness.get("/", "", &reply(500, "", "")).is_hit());
}

#[test]
fn rfc_9111_3_4_only_the_remainder_of_a_prefix_is_requested() {
    let mut harness = with_parts(&format!("{TAG}X-A: 1\r\nX-B: 1\r\n"), &[(0, 4)]);
    harness.now += 10;
    let got = harness.get("/", "", &part(&format!("{TAG}X-A: 2\r\n"), 5, 9));
    assert_eq!(got.conditions.as_deref(), Some("Range: bytes=5-\r\nIf-Range: \"a\"\r\n"));
    assert_eq!((got.origin_requests, got.status, got.text()), (1, 200, WHOLE));
    assert_eq!((got.field("content-range"), got.field("age")), (None, Some("0")));
    assert_eq!((got.field("x-a"), got.field("x-b")), (Some("2"), Some("1")));
    let cache_status = got.field("cache-status").unwrap();
    assert_eq!(cache_status, "Pollux; fwd=partial; fwd-status=206; ttl=60; stored");
    let got = harness.get("/", "", "");
    assert_eq!((got.is_hit(), got.status, got.text()), (true, 200, WHOLE));
}

#[test]
fn rfc_9110_13_1_5_a_response_that_is_not_the_remainder_is_not_joined() {
    // The representation has changed: `If-Range` makes the origin send all of it.
    let mut harness = with_parts(TAG, &[(0, 4)]);
    let other = "Cache-Control: max-age=60\r\nETag: \"b\"\r\n";
    let got = harness.get("/", "", &reply(200, other, "ABCDEFGHIJ"));
    assert_eq!((got.origin_requests, got.text()), (1, "ABCDEFGHIJ"));
    assert_eq!(harness.get("/", "", "").text(), "ABCDEFGHIJ");
    // After an invalid response the complete representation is requested.
    let chunked = format!(
        "HTTP/1.1 206 X\r\n{TAG}Content-Range: bytes 5-9/10\r\nTransfer-Encoding: chunked\r\n\r\n"
    );
    for wire in [
        part(other, 5, 9),
        part("Cache-Control: max-age=60\r\nETag: W/\"a\"\r\n", 5, 9),
        part(TAG, 6, 9),
        part(TAG, 5, 8),
        part(TAG, 0, 9),
        reply(206, &format!("{TAG}Content-Range: bytes 5-9/11\r\n"), "56789"),
        chunked,
        reply(416, "Content-Range: bytes */4\r\n", ""),
        reply(304, TAG, ""),
    ] {
        let mut harness = with_parts(TAG, &[(0, 4)]);
        let head = request("GET /", "");
        let pollux_cache::Decision::Fetch(fetch) = harness.lookup(&head, None, false) else {
            panic!()
        };
        let (decision, _) = read_reply(&wire, false, |reply| {
            harness.cache.head(fetch.ticket, &parse_request(&head), reply, START, START)
        });
        let pollux_cache::ResponseSource::Refetch(refetch) = decision.source else {
            panic!("{decision:?}")
        };
        let got = harness.complete_fetch(&head, refetch, Some(&reply(200, other, "ABCDEFGHIJ")));
        assert_eq!((got.conditions.as_deref(), got.text()), (Some(""), "ABCDEFGHIJ"), "{wire}");
        assert_eq!(harness.get("/", "", "").text(), "ABCDEFGHIJ");
    }
    // No remainder is requested for a conditional request, or without a strong entity tag.
    let weak = "Cache-Control: max-age=60\r\nETag: W/\"a\"\r\n";
    for (fields, first, condition) in [
        (TAG, 0, "If-None-Match: \"x\"\r\n"),
        (TAG, 0, "Cache-Control: no-cache\r\n"),
        (TAG, 1, ""),
        (weak, 0, ""),
        (FRESH, 0, ""),
    ] {
        let mut harness = with_parts(fields, &[(first, 4)]);
        let got = harness.get("/", condition, &reply(200, TAG, WHOLE));
        assert_eq!((got.origin_requests, got.text()), (1, WHOLE));
        assert!(got.conditions.unwrap_or_default().is_empty(), "{fields}{first}{condition}");
    }
}

/// The remainder would be lost, and all waiting requests would be forwarded at once.
#[test]
fn a_remainder_that_could_not_be_joined_is_not_requested() {
    const SIZE: usize = 2 << 20;
    let whole = "x".repeat(SIZE);
    let from_to = |first: usize, end: usize| {
        let content_range = format!("{TAG}Content-Range: bytes {first}-{}/{SIZE}\r\n", end - 1);
        reply(206, &content_range, &whole[first..end])
    };
    for (prefix_len, is_joined) in [(64 << 10, true), (SIZE - 100, true), (100, false)] {
        let mut harness = Harness::default();
        harness.get("/", &range(&format!("0-{}", prefix_len - 1)), &from_to(0, prefix_len));
        let wire = if is_joined { from_to(prefix_len, SIZE) } else { reply(200, TAG, &whole) };
        let got = harness.get("/", "", &wire);
        assert_eq!((got.origin_requests, got.conditions.is_some()), (1, is_joined), "{prefix_len}");
        assert!(got.text() == whole, "{prefix_len}");
        let got = harness.get("/", "", &reply(500, "", ""));
        assert!(got.is_hit() && got.text() == whole, "{prefix_len}");
    }
}

/// The remainder is not stored, but this client still receives the complete response.
#[test]
fn a_private_remainder_is_sent_but_not_stored() {
    let mut harness = with_parts(TAG, &[(0, 4)]);
    let private = "Cache-Control: private\r\nETag: \"a\"\r\n";
    let got = harness.get("/", "", &part(private, 5, 9));
    assert_eq!((got.status, got.text()), (200, WHOLE));
    assert!(!harness.get("/", "", &reply(500, "", "")).is_hit());
    assert_eq!(harness.cache.store().statistics().fetching, 0);
}

#[test]
fn a_stale_part_is_requested_again() {
    let mut harness = with_parts(TAG, &[(0, 4)]);
    harness.now += 60;
    let got = harness.get("/", &range("1-2"), &part(TAG, 1, 2));
    assert_eq!((got.origin_requests, got.status, got.conditions), (1, 206, None));
    assert!(got.head.contains("fwd=stale"), "{}", got.head);
    assert!(harness.get("/", &range("0-4"), "").is_hit(), "the new part confirms the stored one");
}

#[test]
fn rfc_9111_4_1_parts_have_variants() {
    let fields = format!("{TAG}Vary: X\r\n");
    let mut harness = Harness::default();
    let variant_range = |number: u32, text: &str| format!("X: {number}\r\n{}", range(text));
    harness.get("/", &variant_range(1, "0-4"), &part(&fields, 0, 4));
    harness.get("/", &variant_range(2, "5-9"), &part(&fields, 5, 9));
    assert_eq!(harness.stored(""), 2);
    assert_eq!(harness.get("/", &variant_range(1, "1-2"), "").text(), "12");
    assert!(!harness.get("/", &variant_range(2, "1-2"), &reply(500, "", "")).is_hit());
}

#[test]
fn a_complete_response_is_not_replaced_by_its_part() {
    for (tag, is_kept) in [("\"a\"", true), ("\"b\"", false)] {
        let mut harness = Harness::default();
        let head = request("GET /", &range("0-4"));
        let pollux_cache::Decision::Fetch(fetch) = harness.lookup(&head, None, false) else {
            panic!()
        };
        harness.get("/", "", &reply(200, TAG, WHOLE));
        let fields = format!("Cache-Control: max-age=60\r\nETag: {tag}\r\n");
        harness.complete_fetch(&head, fetch, Some(&part(&fields, 0, 4)));
        assert_eq!(harness.get("/", "", &reply(500, "", "")).is_hit(), is_kept, "{tag}");
    }
}

#[test]
fn rfc_9111_4_3_5_a_head_that_differs_ends_a_part() {
    for (fields, is_kept) in [
        ("ETag: \"a\"\r\nContent-Length: 10\r\n", true),
        ("ETag: \"b\"\r\n", false),
        ("Content-Length: 11\r\n", false),
    ] {
        let mut harness = with_parts(TAG, &[(0, 4)]);
        harness.exchange(&request("HEAD /", ""), Some(&format!("HTTP/1.1 200 X\r\n{fields}\r\n")));
        let got = harness.get("/", &range("1-2"), &reply(500, "", ""));
        assert_eq!(got.is_hit(), is_kept, "{fields}");
    }
}

#[test]
fn rfc_9111_4_4_an_unsafe_method_ends_a_part() {
    let mut harness = with_parts(TAG, &[(0, 4)]);
    harness.exchange(&request("POST /", ""), Some(&reply(200, "", "")));
    assert!(!harness.get("/", &range("1-2"), &reply(500, "", "")).is_hit());
}

/// RFC 9530 §2: `Content-Digest` is about the content of one message, `Repr-Digest` about the representation.
#[test]
fn rfc_9530_2_other_content_has_no_digest_of_the_stored_content() {
    let digests =
        "Content-Digest: sha-256=:AA==:\r\nContent-MD5: AA==\r\nRepr-Digest: sha-256=:BB==:\r\n";
    let of = |got: &crate::harness::ClientResult| {
        ["content-digest", "content-md5", "repr-digest"].map(|name| got.field(name).is_some())
    };
    let mut harness = Harness::default();
    harness.get("/", "", &reply(200, &format!("{TAG}{digests}"), WHOLE));
    assert_eq!(of(&harness.get("/", "", "")), [true; 3]);
    assert_eq!(of(&harness.get("/", &range("0-9"), "")), [true; 3], "the same content");
    assert_eq!(of(&harness.get("/", &range("0-3"), "")), [false, false, true]);
    assert_eq!(of(&harness.get("/", "If-None-Match: \"a\"\r\n", "")), [false, false, true]);
    // A part as it was received, a part of it, and two joined parts.
    let mut harness = with_parts(&format!("{TAG}{digests}"), &[(0, 4)]);
    assert_eq!(of(&harness.get("/", &range("0-4"), "")), [true; 3]);
    assert_eq!(of(&harness.get("/", &range("0-2"), "")), [false, false, true]);
    harness.get("/", &range("5-9"), &part(&format!("{TAG}{digests}"), 5, 9));
    let got = harness.get("/", "", "");
    assert_eq!((got.text(), of(&got)), (WHOLE, [false, false, true]));
}

/// RFC 9110 §8.8.2.2: a date is a strong validator only if the origin sent the response later.
#[test]
fn rfc_9110_13_1_5_a_date_of_the_second_of_the_response_is_no_strong_validator() {
    let changed = at(START - 100);
    for (sent, expected) in [(START - 100, 200), (START - 99, 206)] {
        let mut harness = Harness::default();
        let fields = format!(
            "Cache-Control: max-age=600\r\nDate: {}\r\nLast-Modified: {changed}\r\n",
            at(sent)
        );
        harness.get("/", "", &reply(200, &fields, WHOLE));
        let request_fields = format!("Range: bytes=0-3\r\nIf-Range: {changed}\r\n");
        let got = harness.get("/", &request_fields, "");
        assert_eq!((got.is_hit(), got.status), (true, expected));
    }
}
