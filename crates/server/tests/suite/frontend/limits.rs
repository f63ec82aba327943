//! Limits: connections to origins, and the queue for them.

use super::*;
use pollux_testkit::origin::Origin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

#[test]
fn a_request_that_finds_all_connections_in_use_waits_for_one() {
    static NOW: AtomicUsize = AtomicUsize::new(0);
    static MOST: AtomicUsize = AtomicUsize::new(0);
    let origin = Origin::start(|request| {
        let now = NOW.fetch_add(1, SeqCst) + 1;
        MOST.fetch_max(now, SeqCst);
        request.after(Duration::from_millis(20));
        NOW.fetch_sub(1, SeqCst);
        request.ok("done")
    });
    let fixture = Fixture::new(&[&origin.url()], |_, frontend| {
        frontend.connections = 3.try_into().unwrap();
        frontend.connect_timeout = Duration::from_secs(60);
    });
    let mut clients: Vec<Client> = (0..30).map(|_| fixture.client()).collect();
    for client in &mut clients {
        client.send("GET / HTTP/1.1\r\nHost: t\r\n\r\n");
    }
    // Some clients disconnect while they wait.
    clients.truncate(25);
    for client in &mut clients {
        assert_eq!(client.reply().text(), "done");
    }
    assert!(MOST.load(SeqCst) <= 3 && origin.connections() <= 3 + 5, "{}", origin.connections());
    fixture.stop();
}

#[test]
fn a_request_that_waits_too_long_gets_an_error() {
    let is_free = Arc::new(AtomicBool::new(false));
    let gate = is_free.clone();
    let origin = Origin::start(move |request| {
        if request.target() == "/long" {
            wait_until("the release", || gate.load(SeqCst));
        }
        request.ok("done")
    });
    let fixture = Fixture::new(&[&origin.url()], |_, frontend| {
        frontend.connections = 1.try_into().unwrap();
        // The time for which a request waits in the queue; a connection attempt may take as long.
        frontend.connect_timeout = Duration::from_secs(3);
    });
    let mut first = fixture.client();
    first.send("GET /long HTTP/1.1\r\nHost: t\r\n\r\n");
    wait_until("the request at the origin", || origin.requests() == 1);
    let refused = fixture.get("/");
    assert_eq!(error(&refused), (503, "connection_limit_reached".into()));
    assert_eq!(refused.field("retry-after"), Some("1"));
    is_free.store(true, SeqCst);
    assert_eq!(first.reply().text(), "done");
    assert_eq!(fixture.get("/").text(), "done");
    fixture.stop();
}

#[test]
fn connections_are_kept_as_many_and_as_long_as_it_says() {
    for (timeout, ended) in [(Duration::from_secs(600), 4), (Duration::from_millis(500), 6)] {
        let count = AtomicUsize::new(0);
        let origin = Origin::start(move |request| {
            // The origin answers no request before all have a connection, so that none of them is free
            // for another request.
            count.fetch_add(1, SeqCst);
            wait_until("all requests at the origin", || count.load(SeqCst) >= 6);
            request.ok("done")
        });
        let fixture = Fixture::new(&[&origin.url()], |_, frontend| {
            frontend.keep = 2;
            frontend.keep_timeout = timeout;
        });
        let mut clients: Vec<Client> = (0..6).map(|_| fixture.client()).collect();
        for client in &mut clients {
            client.send("GET / HTTP/1.1\r\nHost: t\r\n\r\n");
        }
        for client in &mut clients {
            assert_eq!(client.reply().text(), "done");
        }
        assert_eq!(origin.connections(), 6);
        wait_until("the end of connections too many or too old", || origin.ended() == ended);
        assert_eq!(fixture.get("/").text(), "done");
        assert_eq!(origin.connections(), if ended == 4 { 6 } else { 7 }, "{timeout:?}");
        fixture.stop();
    }
}
