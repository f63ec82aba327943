//! Clients that leave while others wait for the response to their request.

use super::*;
use std::net::Shutdown;

/// Regression: the request was sent to the origin once more for each client that waited.
#[test]
fn a_client_that_closes_its_side_does_not_end_others() {
    let is_free = Arc::new(AtomicBool::new(false));
    let gate = is_free.clone();
    let origin = Origin::start(move |request| {
        wait_until("the release", || gate.load(SeqCst));
        request.say(reply("Cache-Control: max-age=60\r\n", "x"))
    });
    let store = Store::new(pollux_cache::Config::default());
    let fixture = Fixture::new(&[&origin.url()], |_, frontend| {
        frontend.cache = Some(store.clone());
        // After this time without a byte from the origin, a half-closed client counts as disconnected.
        frontend.timeout = Duration::from_secs(2);
    });
    let request = "GET /x HTTP/1.1\r\nHost: test\r\n\r\n";
    let (mut first, mut second) = (fixture.client(), fixture.client());
    first.send(request);
    wait_until("the request at the origin", || origin.requests() == 1);
    first.socket().shutdown(Shutdown::Write).unwrap();
    second.send(request);
    wait_until("the second request in the cache", || store.statistics().collapsed == 1);
    assert!(first.is_closed());
    is_free.store(true, SeqCst);
    assert_eq!(second.reply().text(), "x");
    assert_eq!(origin.requests(), 1);
    fixture.stop();
}
