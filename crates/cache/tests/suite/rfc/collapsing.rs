//! Collapsed requests (§4): which requests are forwarded, which wait, and that none waits for long
//! without result.

use crate::harness::{Harness, parse_request, read_reply, reply, request};
use pollux_cache::{Config, Decision, Fetch, Lookup, Store};

const FRESH: &str = "Cache-Control: max-age=60\r\n";

fn lookup_many(harness: &mut Harness, head: &str, count: u64) -> Vec<Fetch> {
    let mut fetches = Vec::new();
    for number in 0..count {
        match harness.lookup(head, Some(number), false) {
            Decision::Fetch(fetch) => fetches.push(fetch),
            Decision::Wait => {}
            other => panic!("{other:?}"),
        }
    }
    fetches
}

fn drain_wakeups(harness: &mut Harness) -> Vec<u64> {
    std::iter::from_fn(|| harness.cache.next_wakeup()).collect()
}

#[test]
fn a_thousand_misses_make_one_request() {
    let mut harness = Harness::default();
    let head = request("GET /", "");
    let mut fetches = lookup_many(&mut harness, &head, 1000);
    assert_eq!(fetches.len(), 1);
    assert!(harness.cache.is_wanted(fetches[0].ticket));
    assert!(drain_wakeups(&mut harness).is_empty());
    harness.complete_fetch(&head, fetches.remove(0), Some(&reply(200, FRESH, "x")));
    assert_eq!(drain_wakeups(&mut harness), (1..1000).collect::<Vec<_>>());
    for number in 1..1000 {
        let Decision::Serve(hit) = harness.lookup(&head, Some(number), true) else { panic!() };
        let status = harness.serve_hit(&head, &hit).field("cache-status").unwrap().to_owned();
        assert!(status.ends_with("; fwd=miss; ttl=60; collapsed"), "{status}");
    }
    assert_eq!(harness.cache.store().statistics().collapsed, 999);
}

#[test]
fn requests_that_waited_without_result_are_forwarded_at_once() {
    for wire in [
        Some(reply(200, "Cache-Control: private\r\n", "mine")),
        Some(reply(200, &format!("{FRESH}Vary: *\r\n"), "x")),
        Some(reply(200, "Cache-Control: no-cache\r\nETag: \"a\"\r\n", "x")),
        Some(reply(500, "", "failed")),
        Some(format!("HTTP/1.1 200 X\r\n{FRESH}Content-Length: 9\r\n\r\ntorn")),
        None,
    ] {
        let mut harness = Harness::default();
        let head = request("GET /", "");
        let fetch = lookup_many(&mut harness, &head, 100).remove(0);
        harness.complete_fetch(&head, fetch, wire.as_deref());
        assert_eq!(drain_wakeups(&mut harness).len(), 99);
        for number in 1..100 {
            let decision = harness.lookup(&head, Some(number), true);
            assert!(matches!(decision, Decision::Fetch(_)), "{wire:?}: {decision:?}");
        }
    }
}

/// At first no variants are known. Requests that waited for one variant and need another one wait
/// together for that one.
#[test]
fn each_variant_is_fetched_once() {
    let [gzip, br] =
        ["gzip", "br"].map(|coding| request("GET /", &format!("Accept-Encoding: {coding}\r\n")));
    let wire = |fields: &str| reply(200, &format!("{FRESH}Vary: Accept-Encoding\r\n{fields}"), "x");
    let refetch = |harness: &mut Harness, numbers: std::ops::Range<u64>| {
        let mut fetches = Vec::new();
        for number in numbers {
            match harness.lookup(&br, Some(number), true) {
                Decision::Fetch(fetch) => fetches.push(fetch),
                Decision::Wait => {}
                other => panic!("{other:?}"),
            }
        }
        fetches
    };
    for outcome in
        [Some(wire("")), Some(reply(500, "", "")), Some(wire("Cache-Control: private\r\n"))]
    {
        let mut harness = Harness::default();
        let first = lookup_many(&mut harness, &gzip, 1).remove(0);
        assert_eq!(lookup_many(&mut harness, &br, 100).len(), 0);
        harness.complete_fetch(&gzip, first, Some(&wire("")));
        assert_eq!(drain_wakeups(&mut harness).len(), 100);
        let mut fetches = refetch(&mut harness, 0..100);
        assert_eq!(fetches.len(), 1);
        assert!(matches!(harness.lookup(&br, None, true), Decision::Fetch(_)), "it does not wait");
        let is_stored = outcome == Some(wire(""));
        harness.complete_fetch(&br, fetches.remove(0), outcome.as_deref());
        assert_eq!(drain_wakeups(&mut harness).len(), 99);
        match is_stored {
            true => assert!(matches!(harness.lookup(&br, Some(1), true), Decision::Serve(_))),
            // Now all are forwarded at once.
            false => assert_eq!(refetch(&mut harness, 1..100).len(), 99),
        }
    }
}

/// RFC 9211 §2.6: `collapsed` means that the response to another request served this one.
#[test]
fn a_request_that_waited_without_result_was_not_collapsed() {
    for (wire, expected) in [
        (
            Some(reply(200, FRESH, "x")),
            "Pollux; fwd=uri-miss; fwd-status=200; ttl=60; stored; collapsed=?0",
        ),
        (
            Some(reply(500, "", "x")),
            "Pollux; fwd=uri-miss; fwd-status=500; collapsed=?0; detail=status",
        ),
    ] {
        let mut harness = Harness::default();
        let head = request("GET /", "");
        let first = lookup_many(&mut harness, &head, 2).remove(0);
        harness.complete_fetch(&head, first, None);
        let Decision::Fetch(second) = harness.lookup(&head, Some(1), true) else { panic!() };
        let got = harness.complete_fetch(&head, second, wire.as_deref());
        assert_eq!(got.field("cache-status"), Some(expected));
    }
}

#[test]
fn requests_do_not_wait_after_an_unshareable_response() {
    let mut harness = Harness::default();
    let head = request("GET /", "");
    let fetch = lookup_many(&mut harness, &head, 1).remove(0);
    harness.complete_fetch(&head, fetch, Some(&reply(200, "Cache-Control: private\r\n", "mine")));
    assert_eq!(lookup_many(&mut harness, &head, 10).len(), 10);
    harness.now += 10;
    assert_eq!(lookup_many(&mut harness, &head, 10).len(), 1, "that may have changed");
}

/// Regression: while a redirection to a login page was fetched, each request for it waited for the one
/// before, without result.
#[test]
fn a_status_that_is_never_stored_is_not_waited_for() {
    for (status, waits) in [
        (201, false),
        (302, false),
        (307, false),
        (403, false),
        (429, true),
        (500, true),
        (503, true),
    ] {
        let mut harness = Harness::default();
        let head = request("GET /", "");
        let fetch = lookup_many(&mut harness, &head, 1).remove(0);
        harness.complete_fetch(&head, fetch, Some(&reply(status, "", "x")));
        let expected = if waits { 1 } else { 10 };
        assert_eq!(lookup_many(&mut harness, &head, 10).len(), expected, "{status}");
    }
}

/// `Authorization` concerns one request, not the URL.
#[test]
fn an_authorized_request_does_not_disable_coalescing() {
    let mut harness = Harness::default();
    let head = request("GET /", "");
    harness.get("/", "Authorization: x\r\n", &reply(200, FRESH, "mine"));
    assert_eq!(lookup_many(&mut harness, &head, 10).len(), 1);
}

#[test]
fn requests_are_woken_when_the_head_shows_an_unshareable_response() {
    let mut harness = Harness::default();
    let head = request("GET /", "");
    let fetch = lookup_many(&mut harness, &head, 3).remove(0);
    let wire = reply(200, "Cache-Control: max-age=0\r\nETag: \"a\"\r\n", "x");
    let now = harness.now;
    let (decision, content) = read_reply(&wire, false, |reply| {
        harness.cache.head(fetch.ticket, &parse_request(&head), reply, now, now)
    });
    assert!(decision.should_store, "it can be validated later");
    assert_eq!(drain_wakeups(&mut harness), [1, 2]);
    assert!(harness.cache.append(fetch.ticket, &content));
    harness.cache.finish(fetch.ticket);
    let Decision::Fetch(fetch) = harness.lookup(&head, None, false) else { panic!() };
    assert_eq!(
        fetch.conditions,
        pollux_cache::Conditions::Replaced(b"If-None-Match: \"a\"\r\n".into())
    );
}

#[test]
fn an_aborted_fetch_wakes_waiting_requests() {
    let mut harness = Harness::default();
    let head = request("GET /", "");
    let fetch = lookup_many(&mut harness, &head, 3).remove(0);
    harness.cache.abort(fetch.ticket);
    assert_eq!(drain_wakeups(&mut harness), [1, 2]);
    assert!(!harness.cache.is_wanted(fetch.ticket));
    // Later calls for the ended fetch have no effect.
    assert!(!harness.cache.append(fetch.ticket, b"x"));
    harness.cache.finish(fetch.ticket);
    assert!(harness.cache.fail(fetch.ticket, harness.now).is_none());
    assert_eq!(harness.cache.store().statistics().fetching, 0);
}

#[test]
fn requests_do_not_wait_long_for_a_lost_fetch() {
    let mut harness = Harness::default();
    let head = request("GET /", "");
    assert_eq!(lookup_many(&mut harness, &head, 3).len(), 1);
    harness.now += 59;
    assert_eq!(lookup_many(&mut harness, &head, 1).len(), 0);
    harness.now += 1;
    assert_eq!(lookup_many(&mut harness, &head, 1).len(), 1, "another request starts a new fetch");
    assert_eq!(drain_wakeups(&mut harness), [1, 2, 0]);
}

#[test]
fn some_requests_are_never_shared() {
    let mut harness = Harness::default();
    for fields in ["Authorization: x\r\n", "Range: bytes=0-1\r\n", "Cache-Control: no-store\r\n"] {
        assert_eq!(lookup_many(&mut harness, &request("GET /", fields), 3).len(), 3, "{fields}");
    }
    assert_eq!(lookup_many(&mut harness, &request("HEAD /", ""), 3).len(), 3);
    assert_eq!(lookup_many(&mut harness, &request("POST /", ""), 3).len(), 3);
    assert_eq!(
        lookup_many(&mut harness, &request("GET /", ""), 3).len(),
        1,
        "the positive control"
    );
}

#[test]
fn validations_are_collapsed_too() {
    let mut harness = Harness::default();
    harness.get("/", "", &reply(200, "Cache-Control: max-age=1\r\nETag: \"a\"\r\n", "old"));
    harness.now += 10;
    let head = request("GET /", "");
    let mut fetches = lookup_many(&mut harness, &head, 100);
    assert_eq!(fetches.len(), 1);
    harness.complete_fetch(&head, fetches.remove(0), Some(&reply(304, FRESH, "")));
    assert_eq!(drain_wakeups(&mut harness).len(), 99);
    assert!(matches!(harness.lookup(&head, Some(1), true), Decision::Serve(_)));
}

/// A response that arrives while a client waits is young enough for `max-age=0`.
#[test]
fn reloads_are_collapsed_too() {
    let mut harness = Harness::default();
    harness.get("/", "", &reply(200, FRESH, "old"));
    let head = request("GET /", "Cache-Control: max-age=0\r\n");
    let mut fetches = lookup_many(&mut harness, &head, 100);
    assert_eq!(fetches.len(), 1);
    harness.complete_fetch(&head, fetches.remove(0), Some(&reply(200, FRESH, "new")));
    assert_eq!(drain_wakeups(&mut harness).len(), 99);
    assert!(matches!(harness.lookup(&head, Some(1), true), Decision::Serve(_)));
}

/// The time that the origin takes is no reason to send the request of each waiting client too.
#[test]
fn reloads_of_a_slow_origin_are_collapsed_too() {
    let mut harness = Harness::default();
    harness.get("/", "", &reply(200, FRESH, "old"));
    let head = request("GET /", "Cache-Control: max-age=0\r\n");
    let mut fetches = lookup_many(&mut harness, &head, 100);
    assert_eq!(fetches.len(), 1);
    let (ticket, requested_at) = (fetches.remove(0).ticket, harness.now);
    harness.now += 3;
    let (cache, now) = (&mut harness.cache, harness.now);
    let ((), content) = read_reply(&reply(200, FRESH, "new"), false, |reply| {
        let decision = cache.head(ticket, &parse_request(&head), reply, requested_at, now);
        assert!(decision.should_store);
    });
    assert!(cache.append(ticket, &content));
    cache.finish(ticket);
    assert_eq!(drain_wakeups(&mut harness).len(), 99);
    assert!(matches!(harness.lookup(&head, Some(1), true), Decision::Serve(_)));
    assert!(matches!(harness.lookup(&head, None, false), Decision::Fetch(_)), "a later reload");
}

/// A response that arrives while a client waits does not satisfy `no-cache` (RFC 9111 §5.2.1.4).
#[test]
fn requests_with_no_cache_do_not_wait_in_vain() {
    let mut harness = Harness::default();
    harness.get("/", "", &reply(200, FRESH, "old"));
    for fields in ["Cache-Control: no-cache\r\n", "Pragma: no-cache\r\n"] {
        let fetches = lookup_many(&mut harness, &request("GET /", fields), 3);
        assert_eq!(fetches.len(), 3, "{fields}");
    }
    // Others may share such a fetch.
    let reload = request("GET /", "Cache-Control: max-age=0\r\n");
    assert!(lookup_many(&mut harness, &reload, 3).is_empty());
}

#[test]
fn requests_of_several_workers_share_a_fetch() {
    let store = Store::new(Config::default());
    let (mut one, mut two) = (store.handle(), store.handle());
    let notifications = std::sync::Arc::new(std::sync::atomic::AtomicU32::new(0));
    let counter = notifications.clone();
    two.set_notifier(move || {
        counter.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    });
    let head = request("GET /", "");
    let request = parse_request(&head);
    let lookup =
        |waiter| Lookup { request: &request, site: b"", waiter: Some(waiter), has_waited: false };
    let Decision::Fetch(fetch) = one.lookup(&lookup(1), 100) else { panic!() };
    for waiter in [7, 8] {
        assert!(matches!(two.lookup(&lookup(waiter), 100), Decision::Wait));
    }
    let ((), _) = read_reply(&reply(200, FRESH, ""), false, |reply| {
        assert!(one.head(fetch.ticket, &request, reply, 100, 100).should_store);
    });
    one.finish(fetch.ticket);
    assert_eq!((one.has_wakeups(), two.has_wakeups()), (false, true));
    assert_eq!([two.next_wakeup(), two.next_wakeup(), two.next_wakeup()], [Some(7), Some(8), None]);
    assert!(!two.has_wakeups());
    assert_eq!(
        notifications.load(std::sync::atomic::Ordering::Relaxed),
        1,
        "one notification for both"
    );
    let waited = Lookup { has_waited: true, ..lookup(7) };
    assert!(matches!(two.lookup(&waited, 100), Decision::Serve(_)));
}
