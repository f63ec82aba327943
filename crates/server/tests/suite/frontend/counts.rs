//! The server's own statistics include the cache and the origins.

use super::*;
use pollux_cache::Store;
use pollux_server::Statistics;
use pollux_server::stats::Counter;
use pollux_sys::Call;
use pollux_testkit::{Port, origin::Origin};
use serde_json::Value;

/// Returns the statistics as the program prints them.
fn printed(statistics: &Statistics) -> Value {
    serde_json::from_str(&statistics.to_json("")).unwrap()
}

/// Starts a front end with a cache.
fn start(origins: &[&str]) -> Fixture {
    Fixture::new(origins, |_, frontend| {
        frontend.cache = Some(Store::new(pollux_cache::Config::default()));
    })
}

#[test]
fn statistics_count_outcomes_and_connections_to_origins() {
    let origin = Origin::start(|request| {
        request.say("HTTP/1.1 200 OK\r\nCache-Control: max-age=60\r\nContent-Length: 1\r\n\r\nx")
    });
    let nobody = Port::reserve();
    let dead = format!("http://{}", nobody.address());
    let fixture = start(&[&origin.url()]);
    assert_eq!(printed(&fixture.server.statistics())["origins"]["opened"], 0);
    let mut client = fixture.client();
    for target in ["/1", "/2", "/3", "/1", "/1"] {
        assert_eq!(client.get(target).status, 200);
    }
    drop(client);
    wait_until("the end of the client's connection", || {
        fixture.server.statistics().count(Counter::Closed) == 1
    });
    let counted = printed(&fixture.server.statistics());
    let origins = &counted["origins"];
    assert_eq!((&origins["opened"], &origins["reused"]), (&1.into(), &2.into()), "{counted}");
    assert_eq!((&origins["failures"], &origins["retries"]), (&0.into(), &0.into()));
    let cache = &counted["cache"];
    assert_eq!((&cache["misses"], &cache["hits"]), (&3.into(), &2.into()), "{counted}");
    assert_eq!(cache["entries"], 3);
    let last = printed(&fixture.stop());
    assert_eq!((&last["origins"], &last["cache"]["hits"]), (origins, &2.into()));

    // One of two origins does not run: requests that are assigned to it are sent again to the
    // other.
    let fixture = start(&[&origin.url(), &dead]);
    let mut client = fixture.client();
    for target in ["/1", "/2", "/3", "/4"] {
        assert_eq!(client.get(target).status, 200);
    }
    let last = fixture.stop();
    let failures = last.count(Counter::OriginFailures);
    assert!(failures >= 1 && failures == last.count(Counter::OriginRetries), "{last:?}");
}

#[test]
fn a_short_hit_is_one_receive_and_one_send() {
    let origin = Origin::start(|request| {
        let body = "y".repeat(if request.target() == "/short" { 1000 } else { 50_000 });
        request.say(format!(
            "HTTP/1.1 200 OK\r\nCache-Control: max-age=60\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        ))
    });
    let fixture = start(&[&origin.url()]);
    let mut client = fixture.client();
    for (target, sends, of_two) in [("/short", 100, 0), ("/long", 0, 100)] {
        client.get(target);
        client.get(target);
        let before = fixture.server.statistics().system_calls;
        for _ in 0..100 {
            assert_eq!(client.get(target).status, 200);
        }
        let calls = fixture.server.statistics().system_calls.since(&before);
        assert_eq!(calls.of(Call::Recv), 100, "{target}: {calls:?}");
        // Bytes that do not fit into the socket at once are sent by further calls.
        if sends > 0 {
            assert_eq!((calls.of(Call::Send), calls.of(Call::Sendmsg)), (sends, of_two));
        } else {
            assert!(calls.of(Call::Sendmsg) >= of_two, "{target}: {calls:?}");
        }
    }
}
