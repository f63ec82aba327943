//! What a cache answers while its origin fails.

use super::*;
use pollux_testkit::Port;

/// RFC 5861 §4: when an origin fails, freshness is ignored, including the freshness that a client
/// demands. A client's demand to use nothing that the origin has not confirmed (RFC 9111 §5.2.1.4) is
/// not ignored.
#[test]
fn a_wish_for_something_younger_is_none_for_an_error() {
    for is_down in [false, true] {
        let count = AtomicUsize::new(0);
        let origin = Origin::start(move |request| match count.fetch_add(1, SeqCst) {
            0 => request
                .say(reply("Cache-Control: max-age=600, stale-if-error=600\r\nAge: 5\r\n", "old")),
            _ if is_down => false,
            _ => request.say("HTTP/1.1 503 X\r\nContent-Length: 6\r\n\r\nfailed"),
        });
        let (fixture, _) = cached(&origin, |_| {});
        let mut client = fixture.client();
        assert_eq!(client.get("/").text(), "old");
        for wish in ["max-age=0", "min-fresh=1000"] {
            let reply = client.request("GET", "/", &[&format!("Cache-Control: {wish}")]);
            assert_eq!((reply.status, &*reply.text()), (200, "old"), "{wish}");
            let status = reply.field("cache-status").unwrap();
            assert!(
                status.contains("fwd=request") && status.contains("stale-if-error"),
                "{status}"
            );
        }
        for wish in ["Cache-Control: no-cache", "Pragma: no-cache"] {
            let reply = client.request("GET", "/", &[wish]);
            assert_eq!(reply.status, if is_down { 502 } else { 503 }, "{wish}");
        }
        assert_eq!(client.get("/").text(), "old");
        fixture.stop();
    }
}

/// Regression: a refresh was given up with its first connection, while a client's request was tried again.
#[test]
fn a_refresh_is_tried_again_like_any_request() {
    let reserved = Port::reserve();
    let nobody = format!("http://{}", reserved.address());
    // In the second case the origin closes the kept connection when the refresh arrives.
    for (has_other, closes) in [(true, false), (false, true)] {
        let count = AtomicUsize::new(0);
        let origin = Origin::start(move |request| {
            if closes && request.number == 2 {
                return false;
            }
            let (age, body) =
                if count.fetch_add(1, SeqCst) == 0 { (50, "old") } else { (0, "new") };
            let fields = "Cache-Control: max-age=40, stale-while-revalidate=600";
            request.say(reply(&format!("{fields}\r\nAge: {age}\r\n"), body))
        });
        let store = Store::new(pollux_cache::Config::default());
        let urls = [nobody.clone(), origin.url()];
        let urls: Vec<&str> = urls[usize::from(!has_other)..].iter().map(|url| &**url).collect();
        let fixture = Fixture::new(&urls, |_, frontend| frontend.cache = Some(store.clone()));
        let mut client = fixture.client();
        for _ in 0..2 {
            assert_eq!(client.get("/").text(), "old");
        }
        wait_until("the end of the refresh", || store.statistics().fetching == 0);
        assert_eq!(client.get("/").text(), "new", "{has_other}");
        assert_eq!(store.statistics().refreshes, 1, "{has_other}");
        fixture.stop();
    }
}
