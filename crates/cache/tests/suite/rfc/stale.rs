//! Stale responses (RFC 5861, §4.2.4).

use crate::harness::{Harness, START, at, parse_request, read_reply, reply, request};
use pollux_cache::{Config, Decision};

const OK: &str = "Cache-Control: max-age=60\r\n";

fn with(control: &str, config: Config, after: u64) -> Harness {
    let mut harness = Harness::new(config);
    harness.get(
        "/",
        "",
        &reply(200, &format!("Cache-Control: {control}\r\nETag: \"a\"\r\n"), "old"),
    );
    harness.now += after;
    harness
}

#[test]
fn rfc_5861_3_stale_while_revalidate() {
    let swr = "max-age=10, stale-while-revalidate=20";
    let mut harness = with(swr, Config::default(), 15);
    let first = harness.get("/", "", "");
    assert_eq!((first.text(), first.origin_requests), ("old", 0));
    assert_eq!(first.field("cache-status"), Some("Pollux; hit; ttl=-5"));
    let fetch = first.refresh.expect("the first one refreshes");
    assert!(fetch.is_refresh);
    let refetch = harness.get("/", "", "");
    assert!(refetch.is_hit() && refetch.refresh.is_none(), "one refreshes for all");
    harness.complete_fetch(&request("GET /", ""), fetch, Some(&reply(200, OK, "new")));
    assert_eq!(harness.get("/", "", "").text(), "new");

    let mut silent = with(swr, Config::default(), 15);
    let only = silent.get("/", "Cache-Control: only-if-cached\r\n", "");
    assert_eq!((only.text(), only.origin_requests, only.refresh.is_none()), ("old", 0, true));
    assert!(silent.get("/", "", "").refresh.is_some(), "the next client refreshes");

    let mut staleness = with(swr, Config::default(), 31);
    assert_eq!(staleness.get("/", "", &reply(200, OK, "new")).text(), "new");
    for forbids in ["must-revalidate", "proxy-revalidate", "no-cache"] {
        let mut harness = with(&format!("{swr}, {forbids}"), Config::default(), 15);
        assert_eq!(harness.get("/", "", &reply(200, OK, "new")).text(), "new", "{forbids}");
    }
    let mut shared = with("s-maxage=10, stale-while-revalidate=20", Config::default(), 15);
    assert!(
        shared.get("/", "", "").refresh.is_some(),
        "an explicit period takes precedence over the implied prohibition"
    );
}

/// Regression: a client whose POST made the origin close the connection kept others from the origin.
#[test]
fn rfc_5861_4_a_failure_of_another_request_is_none_of_get() {
    let mut harness = with("max-age=10, stale-if-error=1000", Config::default(), 15);
    for (line, fields) in [("POST /", ""), ("DELETE /", ""), ("GET /", "Upgrade: websocket\r\n")] {
        assert_eq!(harness.exchange(&request(line, fields), None).status, 502);
    }
    assert_eq!(harness.get_with_origin_down("/", "").origin_requests, 1, "the origin is tried");
    let during_back_off = harness.get("/", "", &reply(200, OK, "new"));
    assert_eq!((during_back_off.text(), during_back_off.origin_requests), ("old", 0));
    harness.now += 1;
    assert_eq!(harness.get("/", "", &reply(200, OK, "new")).text(), "new");
}

#[test]
fn rfc_5861_3_a_lost_refresh_is_made_again() {
    let mut harness = with("max-age=10, stale-while-revalidate=1000", Config::default(), 15);
    assert!(harness.get("/", "", "").refresh.is_some());
    harness.now += 59;
    assert!(harness.get("/", "", "").refresh.is_none());
    harness.now += 1;
    assert!(harness.get("/", "", "").refresh.is_some(), "never stuck in updating");
}

/// The client of a refresh may have sent HEAD. The stale response remains until the new one is complete.
#[test]
fn rfc_5861_3_a_refresh_that_is_incomplete_removes_nothing() {
    for method in ["GET", "HEAD"] {
        let mut harness = with("max-age=10, stale-while-revalidate=20", Config::default(), 15);
        let head = request(&format!("{method} /"), "");
        let decision = harness.lookup(&head, None, false);
        let Decision::ServeAndRefresh(_, fetch) = decision else { panic!("{decision:?}") };
        let (cache, now) = (&mut harness.cache, harness.now);
        let wire = reply(200, &format!("{OK}ETag: \"b\"\r\n"), "new");
        read_reply(&wire, false, |reply| {
            let decision = cache.head(fetch.ticket, &parse_request(&head), reply, now, now);
            assert!(decision.should_store, "{method}");
        });
        cache.abort(fetch.ticket);
        assert_eq!(harness.get("/", "", "").text(), "old", "{method}");
    }
}

#[test]
fn rfc_5861_4_stale_if_error() {
    let sie = "max-age=10, stale-if-error=20";
    for failure in [None, Some(500), Some(502), Some(503), Some(504)] {
        let mut harness = with(sie, Config::default(), 15);
        let got = match failure {
            None => harness.get_with_origin_down("/", ""),
            Some(status) => harness.get("/", "", &reply(status, "", "failed")),
        };
        assert_eq!((got.status, got.text(), got.origin_requests), (200, "old", 1), "{failure:?}");
        assert_eq!(got.field("age"), Some("15"));
        assert!(got.field("cache-status").unwrap().contains("fwd=stale"));
    }
    let mut harness = with(sie, Config::default(), 15);
    assert_eq!(harness.get("/", "", &reply(404, "", "gone")).status, 404, "that is no failure");
    assert_eq!(with(sie, Config::default(), 31).get_with_origin_down("/", "").status, 502);
    assert_eq!(with("max-age=10", Config::default(), 15).get_with_origin_down("/", "").status, 502);
    for forbids in ["must-revalidate", "proxy-revalidate", "no-cache"] {
        let mut harness = with(&format!("{sie}, {forbids}"), Config::default(), 15);
        assert_eq!(harness.get_with_origin_down("/", "").status, 502, "{forbids}");
    }
    let mut harness = with(sie, Config::default(), 5);
    let got = harness.get_with_origin_down("/", "Cache-Control: no-cache\r\n");
    assert_eq!(got.status, 502, "the client requires validation");
}

/// "When used as a request Cache-Control extension, its scope of application is the request it appears
/// in."
#[test]
fn rfc_5861_4_may_be_the_clients_choice() {
    let accepts = "Cache-Control: stale-if-error=20\r\n";
    for failure in [None, Some(503)] {
        let mut harness = with("max-age=10", Config::default(), 15);
        let wire = failure.map(|status| reply(status, "", "failed"));
        let got = harness.exchange(&request("GET /", accepts), wire.as_deref());
        assert_eq!((got.text(), got.origin_requests), ("old", 1), "{failure:?}");
        let got = harness.get_with_origin_down("/", accepts);
        assert_eq!((got.text(), got.origin_requests), ("old", 0), "the origin fails");
        assert_eq!(harness.get_with_origin_down("/", "").status, 502, "another client");
    }
    assert_eq!(
        with("max-age=10", Config::default(), 31).get_with_origin_down("/", accepts).status,
        502
    );
    for forbids in ["must-revalidate", "proxy-revalidate", "no-cache", "s-maxage=10"] {
        let mut harness = with(&format!("max-age=10, {forbids}"), Config::default(), 15);
        assert_eq!(harness.get_with_origin_down("/", accepts).status, 502, "{forbids}");
    }
    for control in ["stale-if-error", "stale-if-error=x", "stale-if-error=20, no-cache"] {
        let mut harness = with("max-age=10", Config::default(), 15);
        let fields = format!("Cache-Control: {control}\r\n");
        assert_eq!(harness.get_with_origin_down("/", &fields).status, 502, "{control}");
    }
}

/// Regression: with `max-stale` a client got the page that was stored for another user, if the
/// application had sent an entity tag and no `Cache-Control`.
#[test]
fn a_client_cannot_demand_what_says_nothing_about_caching() {
    let changed = format!("Last-Modified: {}\r\n", at(START - 9));
    for (control, wish, expected) in [
        ("", "max-stale", false),
        ("", "max-stale=100", false),
        ("", "only-if-cached, max-stale", false),
        ("", "stale-if-error=100", false),
        (&*changed, "max-stale", false),
        ("Cache-Control: no-transform\r\n", "max-stale", false),
        ("Cache-Control: max-age=0\r\n", "max-stale", true),
        ("Cache-Control: public\r\n", "max-stale", true),
        ("Expires: 0\r\n", "stale-if-error=100", true),
    ] {
        let mut harness = Harness::default();
        harness.get("/", "", &reply(200, &format!("ETag: \"a\"\r\n{control}"), "page"));
        harness.now += 10;
        let got = harness.get_with_origin_down("/", &format!("Cache-Control: {wish}\r\n"));
        assert_eq!(got.status == 200, expected, "{control} {wish}");
        let confirmed = harness.get("/", "", &reply(304, "ETag: \"a\"\r\n", ""));
        assert_eq!((confirmed.origin_requests, confirmed.text()), (1, "page"));
    }
}

#[test]
fn rfc_5861_4_may_be_the_operators_choice() {
    let config = Config { stale_if_error_s: 20, ..Config::default() };
    assert_eq!(with("max-age=10", config.clone(), 15).get_with_origin_down("/", "").text(), "old");
    assert_eq!(with("max-age=10", config.clone(), 31).get_with_origin_down("/", "").status, 502);
    assert_eq!(with("s-maxage=10", config, 15).get_with_origin_down("/", "").status, 502);
}

/// Regression: while the origin failed, every client got the page that was stored for one user, if the
/// application had sent no `Cache-Control`.
#[test]
fn the_operators_choice_excludes_what_may_be_for_one_user() {
    let config = Config { stale_if_error_s: 60, ..Config::default() };
    let cookie = "Cookie: session=1\r\n";
    let changed = format!("Last-Modified: {}\r\n", at(START - 1000));
    for (of_request, fields, lifetime, expected) in [
        ("", "", 0, true),
        (cookie, "", 0, false),
        (cookie, "ETag: \"a\"\r\n", 0, false),
        (cookie, "Cache-Control: no-transform\r\n", 0, false),
        (cookie, "Cache-Control: max-age=5\r\n", 5, true),
        (cookie, "Cache-Control: public\r\n", 0, true),
        (cookie, "Cache-Control: stale-if-error=60\r\n", 0, true),
        (cookie, &*changed, 100, false),
        ("", &*changed, 100, true),
    ] {
        let mut harness = Harness::new(config.clone());
        harness.get("/", of_request, &reply(200, fields, "page"));
        harness.now += lifetime + 10;
        let got = harness.get_with_origin_down("/", "");
        assert_eq!(got.status == 200, expected, "{of_request}{fields}");
    }
    // A page for one user does not take the place of the one for all.
    let mut harness = Harness::new(config.clone());
    harness.get("/", "", &reply(200, "", "all"));
    assert_eq!(harness.get("/", cookie, &reply(200, "", "mine")).text(), "mine");
    harness.now += 10;
    assert_eq!(harness.get_with_origin_down("/", cookie).text(), "all");
    // One that the origin confirms remains for all.
    let tag = "ETag: \"a\"\r\n";
    let mut harness = Harness::new(config);
    harness.get("/", "", &reply(200, tag, "all"));
    assert_eq!(harness.get("/", cookie, &reply(304, tag, "")).text(), "all");
    harness.now += 10;
    assert_eq!(harness.get_with_origin_down("/", "").text(), "all");
}

#[test]
fn a_failing_origin_receives_no_requests_for_a_while() {
    let mut harness = with("max-age=10, stale-if-error=1000", Config::default(), 15);
    let mut request_times = Vec::new();
    for second in 0..100 {
        let got = harness.get_with_origin_down("/", "");
        assert_eq!(got.text(), "old");
        if !got.is_hit() {
            request_times.push(second);
        }
        harness.now += 1;
    }
    assert_eq!(
        request_times,
        [0, 1, 3, 7, 15, 31, 61, 91],
        "twice as long each time, up to the limit"
    );
    harness.now += 30;
    let got = harness.get("/", "", &reply(200, OK, "new"));
    assert_eq!(got.text(), "new");
}

#[test]
fn local_failures_do_not_start_a_back_off() {
    let mut harness = with("max-age=10, stale-if-error=1000", Config::default(), 15);
    for _ in 0..3 {
        let Decision::Fetch(fetch) = harness.lookup(&request("GET /", ""), None, false) else {
            panic!()
        };
        let hit = harness.cache.fail_locally(fetch.ticket, harness.now);
        assert!(hit.is_some(), "the client is still served");
    }
    assert_eq!(harness.cache.store().statistics().stale_if_error, 3);
}

/// It serves no client, so it is not counted.
#[test]
fn a_failed_refresh_is_not_counted_as_stale_if_error() {
    let control = "max-age=10, stale-while-revalidate=1000, stale-if-error=1000";
    for wire in [None, Some(reply(503, "", ""))] {
        let mut harness = with(control, Config::default(), 15);
        let fetch = harness.get("/", "", "").refresh.unwrap();
        harness.complete_fetch(&request("GET /", ""), fetch, wire.as_deref());
        assert_eq!(harness.cache.store().statistics().stale_if_error, 0);
        assert_eq!(harness.get("/", "", "").text(), "old");
    }
}

#[test]
fn a_failed_refresh_is_not_repeated_for_each_client() {
    let mut harness = with("max-age=10, stale-while-revalidate=1000", Config::default(), 15);
    let mut refreshes = 0;
    for _ in 0..20 {
        let head = request("GET /", "");
        match harness.lookup(&head, None, false) {
            Decision::ServeAndRefresh(_, fetch) => {
                refreshes += 1;
                assert!(harness.cache.fail(fetch.ticket, harness.now).is_none());
            }
            Decision::Serve(_) => {}
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(refreshes, 1);
}
