//! RFC 5861, and §4.2.4.

use crate::bench::{Bench, reply, request};
use pollux_cache::{Config, Decision};

const OK: &str = "Cache-Control: max-age=60\r\n";

fn with(control: &str, config: Config, after: u64) -> Bench {
    let mut bench = Bench::new(config);
    bench.get("/", "", &reply(200, &format!("Cache-Control: {control}\r\nETag: \"a\"\r\n"), "old"));
    bench.now += after;
    bench
}

#[test]
fn rfc_5861_3_stale_while_revalidate() {
    let swr = "max-age=10, stale-while-revalidate=20";
    let mut bench = with(swr, Config::default(), 15);
    let first = bench.get("/", "", "");
    assert_eq!((first.text(), first.asked), ("old", 0));
    assert_eq!(first.field("cache-status"), Some("Pollux; hit; ttl=-5"));
    let fetch = first.refresh.expect("the first one refreshes");
    assert!(fetch.is_refresh);
    let again = bench.get("/", "", "");
    assert!(again.is_hit() && again.refresh.is_none(), "one refreshes for all");
    bench.fetched(&request("GET /", ""), fetch, Some(&reply(200, OK, "new")));
    assert_eq!(bench.get("/", "", "").text(), "new");

    let mut late = with(swr, Config::default(), 31);
    assert_eq!(late.get("/", "", &reply(200, OK, "new")).text(), "new");
    for forbids in ["must-revalidate", "proxy-revalidate", "no-cache"] {
        let mut bench = with(&format!("{swr}, {forbids}"), Config::default(), 15);
        assert_eq!(bench.get("/", "", &reply(200, OK, "new")).text(), "new", "{forbids}");
    }
    let mut shared = with("s-maxage=10, stale-while-revalidate=20", Config::default(), 15);
    assert!(
        shared.get("/", "", "").refresh.is_some(),
        "what is said counts before what is implied"
    );
}

#[test]
fn rfc_5861_3_a_lost_refresh_is_made_again() {
    let mut bench = with("max-age=10, stale-while-revalidate=1000", Config::default(), 15);
    assert!(bench.get("/", "", "").refresh.is_some());
    bench.now += 59;
    assert!(bench.get("/", "", "").refresh.is_none());
    bench.now += 1;
    assert!(bench.get("/", "", "").refresh.is_some(), "never stuck in updating");
}

#[test]
fn rfc_5861_4_stale_if_error() {
    let sie = "max-age=10, stale-if-error=20";
    for failure in [None, Some(500), Some(502), Some(503), Some(504)] {
        let mut bench = with(sie, Config::default(), 15);
        let got = match failure {
            None => bench.get_from_nobody("/", ""),
            Some(status) => bench.get("/", "", &reply(status, "", "failed")),
        };
        assert_eq!((got.status, got.text(), got.asked), (200, "old", 1), "{failure:?}");
        assert_eq!(got.field("age"), Some("15"));
        assert!(got.field("cache-status").unwrap().contains("fwd=stale"));
    }
    let mut bench = with(sie, Config::default(), 15);
    assert_eq!(bench.get("/", "", &reply(404, "", "gone")).status, 404, "that is no failure");
    assert_eq!(with(sie, Config::default(), 31).get_from_nobody("/", "").status, 502);
    assert_eq!(with("max-age=10", Config::default(), 15).get_from_nobody("/", "").status, 502);
    for forbids in ["must-revalidate", "proxy-revalidate", "no-cache"] {
        let mut bench = with(&format!("{sie}, {forbids}"), Config::default(), 15);
        assert_eq!(bench.get_from_nobody("/", "").status, 502, "{forbids}");
    }
    let mut bench = with(sie, Config::default(), 5);
    let got = bench.get_from_nobody("/", "Cache-Control: no-cache\r\n");
    assert_eq!(got.status, 502, "the client wanted to know better");
}

#[test]
fn rfc_5861_4_may_be_the_operators_choice() {
    let config = Config { stale_if_error: 20, ..Config::default() };
    assert_eq!(with("max-age=10", config.clone(), 15).get_from_nobody("/", "").text(), "old");
    assert_eq!(with("max-age=10", config.clone(), 31).get_from_nobody("/", "").status, 502);
    assert_eq!(with("s-maxage=10", config, 15).get_from_nobody("/", "").status, 502);
}

#[test]
fn an_origin_that_fails_is_not_asked_for_a_while() {
    let mut bench = with("max-age=10, stale-if-error=1000", Config::default(), 15);
    let mut asked = Vec::new();
    for second in 0..100 {
        let got = bench.get_from_nobody("/", "");
        assert_eq!(got.text(), "old");
        if !got.is_hit() {
            asked.push(second);
        }
        bench.now += 1;
    }
    assert_eq!(asked, [0, 1, 3, 7, 15, 31, 61, 91], "twice as long each time, up to the limit");
    bench.now += 30;
    let got = bench.get("/", "", &reply(200, OK, "new"));
    assert_eq!(got.text(), "new");
}

#[test]
fn what_never_reached_the_origin_says_nothing_of_it() {
    let mut bench = with("max-age=10, stale-if-error=1000", Config::default(), 15);
    for _ in 0..3 {
        let Decision::Fetch(fetch) = bench.ask(&request("GET /", ""), None, false) else {
            panic!()
        };
        let hit = bench.cache.fail_unasked(fetch.ticket, bench.now);
        assert!(hit.is_some(), "the client is answered all the same");
    }
    assert_eq!(bench.cache.store().statistics().stale_if_error, 3);
}

/// Nobody is answered by it.
#[test]
fn a_refresh_that_fails_stands_in_for_nothing() {
    let control = "max-age=10, stale-while-revalidate=1000, stale-if-error=1000";
    for wire in [None, Some(reply(503, "", ""))] {
        let mut bench = with(control, Config::default(), 15);
        let fetch = bench.get("/", "", "").refresh.unwrap();
        bench.fetched(&request("GET /", ""), fetch, wire.as_deref());
        assert_eq!(bench.cache.store().statistics().stale_if_error, 0);
        assert_eq!(bench.get("/", "", "").text(), "old");
    }
}

#[test]
fn a_refresh_that_fails_is_not_repeated_for_each_client() {
    let mut bench = with("max-age=10, stale-while-revalidate=1000", Config::default(), 15);
    let mut refreshes = 0;
    for _ in 0..20 {
        let head = request("GET /", "");
        match bench.ask(&head, None, false) {
            Decision::AnswerAndRefresh(_, fetch) => {
                refreshes += 1;
                assert!(bench.cache.fail(fetch.ticket, bench.now).is_none());
            }
            Decision::Answer(_) => {}
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(refreshes, 1);
}
