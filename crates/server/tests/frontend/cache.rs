//! The cache before real sockets. Its rules have tests of their own, in its crate.

use super::*;
use pollux_cache::Store;
use pollux_testkit::origin::Origin;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

fn cached(origin: &Origin, change: impl FnOnce(&mut Config)) -> (Fixture, Store) {
    let store = Store::new(pollux_cache::Config::default());
    let fixture = Fixture::new(&[&origin.url()], |config, frontend| {
        frontend.cache = Some(store.clone());
        change(config);
    });
    (fixture, store)
}

fn reply(fields: &str, body: &str) -> String {
    format!("HTTP/1.1 200 OK\r\n{fields}Content-Length: {}\r\n\r\n{body}", body.len())
}

/// An origin that counts what it says, with these fields.
fn counting(fields: &'static str) -> Origin {
    let count = AtomicUsize::new(0);
    Origin::start(move |asked| {
        let number = count.fetch_add(1, SeqCst);
        let body = format!("{} {number}", asked.target());
        let head = if asked.method() == "HEAD" { "" } else { &*body };
        asked.say(reply(fields, &body).strip_suffix(&*body).unwrap()) && asked.say(head)
    })
}

#[test]
fn what_is_stored_is_not_asked_for_on_every_engine() {
    on_every_engine(|engine| {
        let origin = counting("Cache-Control: max-age=60\r\nETag: \"a\"\r\n");
        let (fixture, _) = cached(&origin, |config| serve_with(config, engine));
        let mut client = fixture.client();
        let first = client.get("/a");
        assert!(
            first.field("cache-status").unwrap().contains("fwd=uri-miss"),
            "{engine}: {first:?}"
        );
        for _ in 0..3 {
            let reply = client.get("/a");
            assert_eq!((reply.status, &*reply.text()), (200, "/a 0"), "{engine}");
            assert!(reply.field("cache-status").unwrap().starts_with("Pollux; hit"), "{engine}");
            assert!(reply.field("age").is_some() && reply.field("date").is_some(), "{engine}");
        }
        assert_eq!(client.request("GET", "/a", &["If-None-Match: \"a\""]).status, 304, "{engine}");
        let part = client.request("GET", "/a", &["Range: bytes=0-1"]);
        assert_eq!((part.status, &*part.text()), (206, "/a"), "{engine}");
        assert_eq!(client.request("HEAD", "/a", &[]).field("content-length"), Some("4"));
        assert_eq!(client.request("GET", "/b", &["Cache-Control: only-if-cached"]).status, 504);
        assert_eq!(origin.requests(), 1, "{engine}");
        // Pipelined: a hit, a miss, a hit.
        client.send("GET /a HTTP/1.1\r\nHost: test\r\n\r\nGET /c HTTP/1.1\r\nHost: test\r\n\r\nGET /a HTTP/1.1\r\nHost: test\r\n\r\n");
        for body in ["/a 0", "/c 1", "/a 0"] {
            assert_eq!(client.reply().text(), body, "{engine}");
        }
        client.send("POST /a HTTP/1.1\r\nHost: test\r\nContent-Length: 5\r\n\r\nhello");
        assert_eq!(client.reply().status, 200);
        assert_eq!(client.get("/a").text(), "/a 3", "{engine}: a POST invalidates");
        fixture.stop();
    });
}

#[test]
fn long_content_comes_whole_from_the_store() {
    let body: String = (0..300_000).map(|at| format!("{at} ")).collect();
    let content = body.clone();
    let origin = Origin::start(move |asked| {
        let head =
            "HTTP/1.1 200 OK\r\nCache-Control: max-age=60\r\nTransfer-Encoding: chunked\r\n\r\n";
        asked.say(head);
        for part in content.as_bytes().chunks(70_000) {
            asked.say(format!("{:x}\r\n", part.len()));
            asked.say(part);
            asked.say("\r\n");
        }
        asked.say("0\r\n\r\n")
    });
    let (fixture, _) = cached(&origin, |_| {});
    let mut client = fixture.client();
    for _ in 0..3 {
        assert!(client.get("/").text() == body);
    }
    // One that does not read for a while.
    client.send("GET / HTTP/1.1\r\nHost: test\r\n\r\n".repeat(5));
    thread::sleep(Duration::from_millis(300));
    for _ in 0..5 {
        assert!(client.reply().text() == body);
    }
    assert_eq!(origin.requests(), 1);
    fixture.stop();
}

#[test]
fn clients_that_miss_at_once_make_one_request() {
    let origin = Origin::start(|asked| {
        thread::sleep(Duration::from_millis(500));
        asked.say(reply("Cache-Control: max-age=60\r\n", asked.target()))
    });
    let (fixture, store) = cached(&origin, |config| config.workers = 3);
    let mut clients: Vec<_> = (0..300).map(|_| fixture.client()).collect();
    clients.iter_mut().for_each(|client| client.send("GET /x HTTP/1.1\r\nHost: test\r\n\r\n"));
    for client in &mut clients {
        assert_eq!(client.reply().text(), "/x");
    }
    assert_eq!(origin.requests(), 1, "{:?}", store.statistics());
    fixture.stop();
}

#[test]
fn who_waits_in_vain_gets_his_own_answer() {
    let origin = Origin::start(|asked| {
        thread::sleep(Duration::from_millis(200));
        asked.say(reply("Cache-Control: private\r\n", "mine"))
    });
    let (fixture, _) = cached(&origin, |config| config.workers = 2);
    let mut clients: Vec<_> = (0..20).map(|_| fixture.client()).collect();
    clients.iter_mut().for_each(|client| client.send("GET /x HTTP/1.1\r\nHost: test\r\n\r\n"));
    for client in &mut clients {
        assert_eq!(client.reply().text(), "mine");
    }
    assert_eq!(origin.requests(), 20);
    fixture.stop();
}

#[test]
fn a_client_that_goes_away_takes_nobody_with_it() {
    let origin = Origin::start(|asked| {
        thread::sleep(Duration::from_millis(300));
        asked.say(reply("Cache-Control: max-age=60\r\n", "x"))
    });
    let (fixture, _) = cached(&origin, |_| {});
    let mut first = fixture.client();
    first.send("GET /x HTTP/1.1\r\nHost: test\r\n\r\n");
    until("asked", || origin.requests() == 1);
    let mut second = fixture.client();
    second.send("GET /x HTTP/1.1\r\nHost: test\r\n\r\n");
    thread::sleep(Duration::from_millis(50));
    drop(first);
    assert_eq!(second.reply().text(), "x");
    fixture.stop();
}

#[test]
fn an_origin_that_fails_is_stood_in_for_and_what_is_torn_is_not_kept() {
    let count = AtomicUsize::new(0);
    let origin = Origin::start(move |asked| match (asked.target(), count.fetch_add(1, SeqCst)) {
        ("/sie", 0) => asked.say(reply("Cache-Control: max-age=0, stale-if-error=60\r\n", "old")),
        ("/sie", 1) => asked.say("HTTP/1.1 503 X\r\nContent-Length: 6\r\n\r\nfailed"),
        ("/torn", _) => {
            asked.say(
                "HTTP/1.1 200 OK\r\nCache-Control: max-age=60\r\nContent-Length: 9\r\n\r\ntorn",
            );
            false
        }
        _ => false,
    });
    let (fixture, store) = cached(&origin, |_| {});
    assert_eq!(fixture.get("/sie").text(), "old");
    for _ in 0..3 {
        let reply = fixture.get("/sie");
        assert_eq!((reply.status, &*reply.text()), (200, "old"), "{reply:?}");
        // So that it is asked again: an origin that fails is left alone for a while.
        thread::sleep(Duration::from_millis(1100));
    }
    assert!(origin.requests() >= 3, "{}", origin.requests());
    assert_eq!(store.statistics().stale_if_error + store.statistics().stale_hits, 3);
    let mut client = fixture.client();
    client.send("GET /torn HTTP/1.1\r\nHost: test\r\n\r\n");
    assert!(client.read_to_the_end().ends_with(b"torn"));
    assert_eq!(store.statistics().stored, 1);
    assert_eq!(store.statistics().fetching, 0);
    fixture.stop();
}

#[test]
fn stale_content_is_sent_at_once_and_replaced_behind_it() {
    let origin = counting("Cache-Control: max-age=1, stale-while-revalidate=600\r\n");
    let (fixture, _) = cached(&origin, |_| {});
    assert_eq!(fixture.get("/").text(), "/ 0");
    thread::sleep(Duration::from_millis(2100));
    let mut client = fixture.client();
    assert_eq!(client.request("HEAD", "/", &[]).field("content-length"), Some("3"));
    until("refreshed", || fixture.get("/").text() == "/ 1");
    assert!(origin.last_head().starts_with("GET / "), "a refresh is a GET");
    assert_eq!(client.get("/").text(), "/ 1", "its connection goes on");
    fixture.stop();
}

#[test]
fn a_304_freshens_and_a_client_with_what_came_gets_one() {
    let origin = Origin::start(|asked| match asked.field("if-none-match") {
        Some("\"a\"") => {
            asked.say("HTTP/1.1 304 X\r\nETag: \"a\"\r\nCache-Control: max-age=60\r\n\r\n")
        }
        _ => asked.say(reply("ETag: \"a\"\r\nCache-Control: max-age=0\r\n", "body")),
    });
    let (fixture, _) = cached(&origin, |_| {});
    let mut client = fixture.client();
    assert_eq!(client.request("GET", "/", &["If-None-Match: \"a\""]).status, 304);
    assert_eq!(client.get("/").text(), "body");
    assert_eq!(client.get("/").text(), "body");
    assert_eq!(origin.requests(), 2);
    fixture.stop();
}
