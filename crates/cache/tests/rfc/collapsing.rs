//! Collapsed requests (§4): who asks, who waits, and that nobody waits in vain.

use crate::bench::{Bench, parsed, read_reply, reply, request};
use pollux_cache::{Ask, Config, Decision, Fetch, Store};

const FRESH: &str = "Cache-Control: max-age=60\r\n";

fn asks(bench: &mut Bench, head: &str, count: u64) -> Vec<Fetch> {
    let mut fetches = Vec::new();
    for number in 0..count {
        match bench.ask(head, Some(number), false) {
            Decision::Fetch(fetch) => fetches.push(fetch),
            Decision::Wait => {}
            other => panic!("{other:?}"),
        }
    }
    fetches
}

fn woken(bench: &mut Bench) -> Vec<u64> {
    std::iter::from_fn(|| bench.cache.next_woken()).collect()
}

#[test]
fn a_thousand_that_miss_make_one_request() {
    let mut bench = Bench::default();
    let head = request("GET /", "");
    let mut fetches = asks(&mut bench, &head, 1000);
    assert_eq!(fetches.len(), 1);
    assert!(bench.cache.is_wanted(fetches[0].ticket));
    assert!(woken(&mut bench).is_empty());
    bench.fetched(&head, fetches.remove(0), Some(&reply(200, FRESH, "x")));
    assert_eq!(woken(&mut bench), (1..1000).collect::<Vec<_>>());
    for number in 1..1000 {
        let Decision::Answer(hit) = bench.ask(&head, Some(number), true) else { panic!() };
        let status = bench.answered(&head, &hit).field("cache-status").unwrap().to_owned();
        assert!(status.ends_with("; fwd=miss; ttl=60; collapsed"), "{status}");
    }
    assert_eq!(bench.cache.store().statistics().collapsed, 999);
}

#[test]
fn those_that_waited_in_vain_go_on_all_at_once() {
    for wire in [
        Some(reply(200, "Cache-Control: private\r\n", "mine")),
        Some(reply(200, &format!("{FRESH}Vary: *\r\n"), "x")),
        Some(reply(200, "Cache-Control: no-cache\r\nETag: \"a\"\r\n", "x")),
        Some(reply(500, "", "failed")),
        Some(format!("HTTP/1.1 200 X\r\n{FRESH}Content-Length: 9\r\n\r\ntorn")),
        None,
    ] {
        let mut bench = Bench::default();
        let head = request("GET /", "");
        let fetch = asks(&mut bench, &head, 100).remove(0);
        bench.fetched(&head, fetch, wire.as_deref());
        assert_eq!(woken(&mut bench).len(), 99);
        for number in 1..100 {
            let decision = bench.ask(&head, Some(number), true);
            assert!(matches!(decision, Decision::Fetch(_)), "{wire:?}: {decision:?}");
        }
    }
}

/// Nobody knows at first that there are variants. Those who waited for one, and want another, wait for
/// one of them.
#[test]
fn each_variant_is_fetched_once() {
    let [gzip, br] =
        ["gzip", "br"].map(|coding| request("GET /", &format!("Accept-Encoding: {coding}\r\n")));
    let wire = |fields: &str| reply(200, &format!("{FRESH}Vary: Accept-Encoding\r\n{fields}"), "x");
    let again = |bench: &mut Bench, numbers: std::ops::Range<u64>| {
        let mut fetches = Vec::new();
        for number in numbers {
            match bench.ask(&br, Some(number), true) {
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
        let mut bench = Bench::default();
        let first = asks(&mut bench, &gzip, 1).remove(0);
        assert_eq!(asks(&mut bench, &br, 100).len(), 0);
        bench.fetched(&gzip, first, Some(&wire("")));
        assert_eq!(woken(&mut bench).len(), 100);
        let mut fetches = again(&mut bench, 0..100);
        assert_eq!(fetches.len(), 1);
        assert!(matches!(bench.ask(&br, None, true), Decision::Fetch(_)), "it does not wait");
        let is_stored = outcome == Some(wire(""));
        bench.fetched(&br, fetches.remove(0), outcome.as_deref());
        assert_eq!(woken(&mut bench).len(), 99);
        match is_stored {
            true => assert!(matches!(bench.ask(&br, Some(1), true), Decision::Answer(_))),
            // Now they go on all at once.
            false => assert_eq!(again(&mut bench, 1..100).len(), 99),
        }
    }
}

/// RFC 9211 §2.6: `collapsed` says that what came for another request was of use to this one.
#[test]
fn who_waited_in_vain_was_not_collapsed() {
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
        let mut bench = Bench::default();
        let head = request("GET /", "");
        let first = asks(&mut bench, &head, 2).remove(0);
        bench.fetched(&head, first, None);
        let Decision::Fetch(second) = bench.ask(&head, Some(1), true) else { panic!() };
        let got = bench.fetched(&head, second, wire.as_deref());
        assert_eq!(got.field("cache-status"), Some(expected));
    }
}

#[test]
fn what_is_not_shared_is_not_waited_for_the_next_time() {
    let mut bench = Bench::default();
    let head = request("GET /", "");
    let fetch = asks(&mut bench, &head, 1).remove(0);
    bench.fetched(&head, fetch, Some(&reply(200, "Cache-Control: private\r\n", "mine")));
    assert_eq!(asks(&mut bench, &head, 10).len(), 10);
    bench.now += 10;
    assert_eq!(asks(&mut bench, &head, 10).len(), 1, "that may have changed");
}

/// Authorization is a matter of one request, not of the URL.
#[test]
fn one_clients_authorization_sends_the_others_nowhere() {
    let mut bench = Bench::default();
    let head = request("GET /", "");
    bench.get("/", "Authorization: x\r\n", &reply(200, FRESH, "mine"));
    assert_eq!(asks(&mut bench, &head, 10).len(), 1);
}

#[test]
fn they_are_let_go_as_soon_as_the_head_shows_that_they_wait_in_vain() {
    let mut bench = Bench::default();
    let head = request("GET /", "");
    let fetch = asks(&mut bench, &head, 3).remove(0);
    let wire = reply(200, "Cache-Control: max-age=0\r\nETag: \"a\"\r\n", "x");
    let now = bench.now;
    let (verdict, content) = read_reply(&wire, false, |reply| {
        bench.cache.head(fetch.ticket, &parsed(&head), reply, now, now)
    });
    assert!(verdict.keep, "it can be validated later");
    assert_eq!(woken(&mut bench), [1, 2]);
    assert!(bench.cache.append(fetch.ticket, &content));
    bench.cache.finish(fetch.ticket);
    let Decision::Fetch(fetch) = bench.ask(&head, None, false) else { panic!() };
    assert_eq!(
        fetch.conditions,
        pollux_cache::Conditions::Replaced(b"If-None-Match: \"a\"\r\n".into())
    );
}

#[test]
fn a_client_that_goes_away_takes_nobody_with_it() {
    let mut bench = Bench::default();
    let head = request("GET /", "");
    let fetch = asks(&mut bench, &head, 3).remove(0);
    bench.cache.abort(fetch.ticket);
    assert_eq!(woken(&mut bench), [1, 2]);
    assert!(!bench.cache.is_wanted(fetch.ticket));
    // Whatever comes of it later is harmless.
    assert!(!bench.cache.append(fetch.ticket, b"x"));
    bench.cache.finish(fetch.ticket);
    assert!(bench.cache.fail(fetch.ticket, bench.now).is_none());
    assert_eq!(bench.cache.store().statistics().fetching, 0);
}

#[test]
fn a_fetch_that_is_lost_keeps_nobody_waiting() {
    let mut bench = Bench::default();
    let head = request("GET /", "");
    assert_eq!(asks(&mut bench, &head, 3).len(), 1);
    bench.now += 59;
    assert_eq!(asks(&mut bench, &head, 1).len(), 0);
    bench.now += 1;
    assert_eq!(asks(&mut bench, &head, 1).len(), 1, "somebody else asks");
    assert_eq!(woken(&mut bench), [1, 2, 0]);
}

#[test]
fn some_go_alone() {
    let mut bench = Bench::default();
    for fields in ["Authorization: x\r\n", "Range: bytes=0-1\r\n", "Cache-Control: no-store\r\n"] {
        assert_eq!(asks(&mut bench, &request("GET /", fields), 3).len(), 3, "{fields}");
    }
    assert_eq!(asks(&mut bench, &request("HEAD /", ""), 3).len(), 3);
    assert_eq!(asks(&mut bench, &request("POST /", ""), 3).len(), 3);
    assert_eq!(asks(&mut bench, &request("GET /", ""), 3).len(), 1, "the positive control");
}

#[test]
fn validations_are_collapsed_too() {
    let mut bench = Bench::default();
    bench.get("/", "", &reply(200, "Cache-Control: max-age=1\r\nETag: \"a\"\r\n", "old"));
    bench.now += 10;
    let head = request("GET /", "");
    let mut fetches = asks(&mut bench, &head, 100);
    assert_eq!(fetches.len(), 1);
    bench.fetched(&head, fetches.remove(0), Some(&reply(304, FRESH, "")));
    assert_eq!(woken(&mut bench).len(), 99);
    assert!(matches!(bench.ask(&head, Some(1), true), Decision::Answer(_)));
}

/// What came while a client waited is as young as it wanted it.
#[test]
fn reloads_are_collapsed_too() {
    let mut bench = Bench::default();
    bench.get("/", "", &reply(200, FRESH, "old"));
    let head = request("GET /", "Cache-Control: max-age=0\r\n");
    let mut fetches = asks(&mut bench, &head, 100);
    assert_eq!(fetches.len(), 1);
    bench.fetched(&head, fetches.remove(0), Some(&reply(200, FRESH, "new")));
    assert_eq!(woken(&mut bench).len(), 99);
    assert!(matches!(bench.ask(&head, Some(1), true), Decision::Answer(_)));
}

#[test]
fn those_of_other_workers_wait_with_them() {
    let store = Store::new(Config::default());
    let (mut one, mut two) = (store.handle(), store.handle());
    let rung = std::sync::Arc::new(std::sync::atomic::AtomicU32::new(0));
    let bell = rung.clone();
    two.set_bell(move || {
        bell.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    });
    let head = request("GET /", "");
    let request = parsed(&head);
    let ask =
        |waiter| Ask { request: &request, site: b"", waiter: Some(waiter), has_waited: false };
    let Decision::Fetch(fetch) = one.lookup(&ask(1), 100) else { panic!() };
    for waiter in [7, 8] {
        assert!(matches!(two.lookup(&ask(waiter), 100), Decision::Wait));
    }
    let ((), _) = read_reply(&reply(200, FRESH, ""), false, |reply| {
        assert!(one.head(fetch.ticket, &request, reply, 100, 100).keep);
    });
    one.finish(fetch.ticket);
    assert_eq!((one.has_mail(), two.has_mail()), (false, true));
    assert_eq!([two.next_woken(), two.next_woken(), two.next_woken()], [Some(7), Some(8), None]);
    assert!(!two.has_mail());
    assert_eq!(rung.load(std::sync::atomic::Ordering::Relaxed), 1, "one ring for all");
    let waited = Ask { has_waited: true, ..ask(7) };
    assert!(matches!(two.lookup(&waited, 100), Decision::Answer(_)));
}
