//! Preconditions in the order of RFC 9110 §13.2.2.

use pollux_http::{
    Limits,
    conditional::{Precondition, Validators, evaluate, range_applies},
    etag::ETag,
    request::{self, ParseStatus},
};

const CHANGED: u64 = 784_111_777; // Sun, 06 Nov 1994 08:49:37 GMT
const SAME: &str = "Sun, 06 Nov 1994 08:49:37 GMT";
const BEFORE: &str = "Sun, 06 Nov 1994 08:49:36 GMT";
const AFTER: &str = "Sun, 06 Nov 1994 08:49:38 GMT";

fn current(weak: bool) -> Validators<'static> {
    let etag = Some(ETag { weak, opaque: b"a,b" });
    Validators { etag, last_modified: Some(CHANGED), now: CHANGED + 100 }
}

fn with_request<T>(
    method: &str,
    lines: &[(&str, &str)],
    with_request: impl Fn(&request::Request<'_>) -> T,
) -> T {
    let lines: String = lines.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let text = format!("{method} / HTTP/1.1\r\nHost: a\r\n{lines}\r\n");
    match request::parse(text.as_bytes(), &Limits::DEFAULT) {
        Ok(ParseStatus::Complete { request, .. }) => with_request(&request),
        other => panic!("{text}: {other:?}"),
    }
}

#[track_caller]
fn is(method: &str, lines: &[(&str, &str)], expected: Precondition) {
    let outcome = with_request(method, lines, |request| evaluate(request, Some(&current(false))));
    assert_eq!(outcome, expected, "{method} {lines:?}");
}

use Precondition::{Failed, NotModified, Proceed};

#[test]
fn if_none_match_13_1_2() {
    is("GET", &[], Proceed);
    is("GET", &[("If-None-Match", "\"a,b\"")], NotModified);
    is("HEAD", &[("If-None-Match", "\"x\", W/\"a,b\"")], NotModified);
    is("GET", &[("If-None-Match", "\"x\""), ("If-None-Match", "\"a,b\"")], NotModified);
    is("GET", &[("If-None-Match", "*")], NotModified);
    is("GET", &[("If-None-Match", "\"a\", \"b\"")], Proceed);
    is("GET", &[("If-None-Match", "a,b")], Proceed);
    is("GET", &[("If-None-Match", "")], Proceed);
    is("GET", &[("If-None-Match", "*, \"x\"")], Proceed);
    is("PUT", &[("If-None-Match", "*")], Failed);
    is("DELETE", &[("If-None-Match", "\"a,b\"")], Failed);
    let absent =
        |lines: &[(&str, &str)]| with_request("PUT", lines, |request| evaluate(request, None));
    assert_eq!(absent(&[("If-None-Match", "*")]), Proceed);
    assert_eq!(absent(&[("If-None-Match", "\"a,b\"")]), Proceed);
}

#[test]
fn if_match_13_1_1() {
    is("GET", &[("If-Match", "\"a,b\"")], Proceed);
    is("GET", &[("If-Match", "*")], Proceed);
    is("GET", &[("If-Match", "\"x\"")], Failed);
    is("GET", &[("If-Match", "W/\"a,b\"")], Failed);
    is("GET", &[("If-Match", "nonsense")], Failed);
    let weak =
        with_request("GET", &[("If-Match", "\"a,b\"")], |r| evaluate(r, Some(&current(true))));
    assert_eq!(weak, Failed);
    assert_eq!(
        with_request("GET", &[("If-Match", "*")], |request| evaluate(request, None)),
        Failed
    );
}

#[test]
fn dates_13_1_3_and_13_1_4() {
    is("GET", &[("If-Modified-Since", SAME)], NotModified);
    is("HEAD", &[("If-Modified-Since", AFTER)], NotModified);
    is("GET", &[("If-Modified-Since", BEFORE)], Proceed);
    is("GET", &[("If-Modified-Since", "nonsense")], Proceed);
    is("GET", &[("If-Modified-Since", SAME), ("If-Modified-Since", SAME)], Proceed);
    is("POST", &[("If-Modified-Since", SAME)], Proceed);
    is("GET", &[("If-Modified-Since", "Sunday, 06-Nov-94 08:49:37 GMT")], NotModified);
    is("GET", &[("If-Unmodified-Since", SAME)], Proceed);
    is("GET", &[("If-Unmodified-Since", BEFORE)], Failed);
    is("PUT", &[("If-Unmodified-Since", BEFORE)], Failed);
    is("PUT", &[("If-Unmodified-Since", "nonsense")], Proceed);
}

/// Regression: such a date was ignored.
#[test]
fn dates_before_1970() {
    for (date, is_date) in [
        ("Fri, 01 Jan 1960 00:00:00 GMT", true),
        ("Mon, 01 Jan 1900 00:00:00 GMT", true),
        ("Wed, 31 Dec 1969 23:59:59 GMT", true),
        ("Fri Jan  1 00:00:00 1960", true),
        ("Sat, 01 Jan 1960 00:00:00 GMT", false),
        ("Mon, 29 Feb 1900 00:00:00 GMT", false),
        ("Fri, 01 Jan 196x 00:00:00 GMT", false),
        ("Fri, 01 Jan 1960 00:00:00", false),
    ] {
        is("GET", &[("If-Unmodified-Since", date)], if is_date { Failed } else { Proceed });
        is("GET", &[("If-Modified-Since", date)], Proceed);
    }
}

#[test]
fn the_order_of_13_2_2() {
    // A tag takes precedence over the date of the same kind, and preconditions of writes over those
    // of reads.
    is("GET", &[("If-Match", "\"a,b\""), ("If-Unmodified-Since", BEFORE)], Proceed);
    is("GET", &[("If-None-Match", "\"x\""), ("If-Modified-Since", AFTER)], Proceed);
    is("GET", &[("If-None-Match", "\"a,b\""), ("If-Modified-Since", BEFORE)], NotModified);
    is("GET", &[("If-Match", "\"x\""), ("If-None-Match", "\"a,b\"")], Failed);
    is("GET", &[("If-Match", "\"a,b\""), ("If-None-Match", "\"a,b\"")], NotModified);
    is("GET", &[("If-Unmodified-Since", BEFORE), ("If-None-Match", "\"a,b\"")], Failed);
}

#[test]
fn methods_without_a_representation_13_2_1() {
    for method in ["OPTIONS", "TRACE"] {
        is(method, &[("If-Match", "\"x\"")], Proceed);
        is(method, &[("If-None-Match", "*")], Proceed);
    }
}

#[test]
fn if_range_13_1_5() {
    let applies = |lines: &[(&str, &str)], validators: &Validators<'_>| {
        with_request("GET", lines, |request| range_applies(request, validators))
    };
    let strong = current(false);
    for (value, expected) in [
        ("\"a,b\"", true),
        ("\"x\"", false),
        ("W/\"a,b\"", false),
        (SAME, true),
        (BEFORE, false),
        (AFTER, false),
        ("nonsense", false),
        ("*", false),
        ("", false),
        ("\"a,b\", \"x\"", false),
    ] {
        assert_eq!(applies(&[("If-Range", value)], &strong), expected, "{value}");
    }
    assert!(applies(&[], &strong));
    assert!(!applies(&[("If-Range", "\"a,b\""), ("If-Range", "\"a,b\"")], &strong));
    assert!(!applies(&[("If-Range", "\"a,b\"")], &current(true)));
    // §8.8.2.2: the representation may change again in the second of its last change.
    let fresh = Validators { now: CHANGED, ..strong };
    assert!(!applies(&[("If-Range", SAME)], &fresh));
}
