//! The cache in a front end over real sockets. The tests of its rules are in its own crate.

mod leaving;
mod stale;

use super::*;
use pollux_cache::Store;
use pollux_testkit::{origin::Origin, wait_until_stalled};
use std::sync::{
    Mutex,
    atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
};

fn cached(origin: &Origin, change: impl FnOnce(&mut Settings)) -> (Fixture, Store) {
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

/// Starts an origin that counts its responses and sends them with these fields.
fn counting(fields: &'static str) -> Origin {
    let count = AtomicUsize::new(0);
    Origin::start(move |request| {
        let number = count.fetch_add(1, SeqCst);
        let body = format!("{} {number}", request.target());
        let head = if request.method() == "HEAD" { "" } else { &*body };
        request.say(reply(fields, &body).strip_suffix(&*body).unwrap()) && request.say(head)
    })
}

/// Sends a request for `path` from all clients at the same time, and checks that each receives `body`.
#[track_caller]
fn all_get(clients: &mut [Client], path: &str, body: &str) {
    let request = format!("GET {path} HTTP/1.1\r\nHost: test\r\n\r\n");
    clients.iter_mut().for_each(|client| client.send(&request));
    clients.iter_mut().for_each(|client| assert_eq!(client.reply().text(), body));
}

/// The origin is like a framework in which a header field can replace the path.
#[test]
fn a_request_with_an_override_field_does_not_poison_the_cache() {
    let origin = Origin::start(|request| {
        let path = request.field("x-original-url").unwrap_or(request.target()).to_owned();
        request.say(reply("Cache-Control: max-age=60\r\nSet-Cookie: a=b\r\n", &path))
    });
    let (fixture, _) = cached(&origin, |_| {});
    let mut client = fixture.client();
    for fields in [&["X-Original-URL: /evil"][..], &[]] {
        let reply = client.request("GET", "/a", fields);
        assert_eq!((reply.text().as_str(), reply.field("set-cookie")), ("/a", Some("a=b")));
    }
    assert_eq!(origin.requests(), 2, "a response with a cookie is not shared");
    fixture.stop();
}

#[test]
fn a_stored_response_is_not_fetched_on_every_engine() {
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

/// RFC 9111 §3: only final responses are stored.
#[test]
fn an_interim_reply_is_passed_on_and_not_kept() {
    let origin = Origin::start(|request| {
        request.say("HTTP/1.1 103 Early Hints\r\nLink: </a>\r\nCache-Control: no-store\r\n\r\n");
        request.say(reply("Cache-Control: max-age=60\r\n", "hello"))
    });
    let (fixture, _) = cached(&origin, |_| {});
    let mut client = fixture.client();
    let hints = client.get("/");
    assert_eq!((hints.status, hints.field("link")), (103, Some("</a>")));
    assert_eq!(client.reply().text(), "hello");
    let kept = client.get("/");
    assert_eq!((kept.status, kept.field("link"), &*kept.text()), (200, None, "hello"));
    assert!(kept.field("cache-status").unwrap().starts_with("Pollux; hit"), "{kept:?}");
    assert_eq!(origin.requests(), 1);
    fixture.stop();
}

/// A client that removes a field from the forwarded request must not choose the response that other
/// clients get.
#[test]
fn a_field_that_connection_names_chooses_no_variant() {
    let origin = Origin::start(|request| {
        let body = request.field("accept-language").unwrap_or("none");
        request.say(reply("Cache-Control: max-age=60\r\nVary: Accept-Language\r\n", body))
    });
    let (fixture, _) = cached(&origin, |_| {});
    let mut client = fixture.client();
    let fields = ["Accept-Language: de", "Connection: Accept-Language"];
    for (count, body) in [(2, "none"), (1, "de"), (0, "none"), (1, "de")] {
        assert_eq!(client.request("GET", "/", &fields[..count]).text(), body, "{count}");
    }
    assert_eq!(origin.requests(), 2);
    fixture.stop();
}

/// Starts an origin that supports ranges of one long text.
fn in_parts(text: Arc<String>) -> Origin {
    Origin::start(move |request| {
        let fields = "Cache-Control: max-age=60\r\nETag: \"a\"\r\n";
        let Some(range) = request.field("range").and_then(|range| range.strip_prefix("bytes="))
        else {
            return request.say(reply(fields, &text));
        };
        let (first, last) = range.split_once('-').unwrap();
        let first: usize = first.parse().unwrap();
        let last = last.parse().unwrap_or(text.len() - 1);
        let part = &text[first..=last];
        let head = format!(
            "HTTP/1.1 206 X\r\n{fields}Content-Range: bytes {first}-{last}/{}\r\n\
             Content-Length: {}\r\n\r\n",
            text.len(),
            part.len()
        );
        request.say(head) && request.say(part)
    })
}

/// RFC 9111 §3.3, §3.4: only the missing parts are requested.
#[test]
fn parts_are_stored_and_made_whole_on_every_engine() {
    let text: String = (0..30_000).map(|at| format!("{at} ")).collect();
    let text = Arc::new(text);
    on_every_engine(|engine| {
        let origin = in_parts(text.clone());
        let (fixture, store) = cached(&origin, |config| serve_with(config, engine));
        let mut client = fixture.client();
        for (range, span) in [("0-999", 0..1000), ("1000-69999", 1000..70_000), ("5-9", 5..10)] {
            let part = client.request("GET", "/", &[&format!("Range: bytes={range}")]);
            assert_eq!(part.status, 206, "{engine}");
            assert!(part.text() == text[span], "{engine}: {range}");
        }
        assert_eq!(origin.requests(), 2, "{engine}");
        for _ in 0..2 {
            let whole = client.get("/");
            assert_eq!((whole.status, whole.field("content-range")), (200, None), "{engine}");
            assert!(whole.text() == *text, "{engine}");
        }
        assert_eq!(origin.requests(), 3, "{engine}");
        assert!(origin.last_head().contains("bytes=70000-"), "{}", origin.last_head());
        assert_eq!(store.statistics().fetching, 0, "{engine}");
        fixture.stop();
    });
}

#[test]
fn long_content_comes_whole_from_the_store() {
    let body: String = (0..300_000).map(|at| format!("{at} ")).collect();
    let content = body.clone();
    let origin = Origin::start(move |request| {
        let head =
            "HTTP/1.1 200 OK\r\nCache-Control: max-age=60\r\nTransfer-Encoding: chunked\r\n\r\n";
        request.say(head);
        for part in content.as_bytes().chunks(70_000) {
            request.say(format!("{:x}\r\n", part.len()));
            request.say(part);
            request.say("\r\n");
        }
        request.say("0\r\n\r\n")
    });
    let (fixture, _) = cached(&origin, |_| {});
    let mut client = fixture.client();
    for _ in 0..3 {
        assert!(client.get("/").text() == body);
    }
    // A client that does not read for a while.
    client.send("GET / HTTP/1.1\r\nHost: test\r\n\r\n".repeat(5));
    wait_until_stalled(client.socket());
    for _ in 0..5 {
        assert!(client.reply().text() == body);
    }
    assert_eq!(origin.requests(), 1);
    fixture.stop();
}

#[test]
fn clients_that_miss_at_once_make_one_request() {
    const CLIENTS: usize = 300;
    let is_free = Arc::new(AtomicBool::new(false));
    let gate = is_free.clone();
    let origin = Origin::start(move |request| {
        wait_until("the release", || gate.load(SeqCst));
        request.say(reply("Cache-Control: max-age=60\r\n", request.target()))
    });
    let (fixture, store) = cached(&origin, |config| config.workers = 3);
    let mut clients: Vec<_> = (0..CLIENTS).map(|_| fixture.client()).collect();
    for client in &mut clients {
        client.send("GET /x HTTP/1.1\r\nHost: test\r\n\r\n");
    }
    wait_until("all but one to wait for the first one's request", || {
        store.statistics().collapsed == CLIENTS as u64 - 1
    });
    is_free.store(true, SeqCst);
    for client in &mut clients {
        assert_eq!(client.reply().text(), "/x");
    }
    assert_eq!(origin.requests(), 1, "{:?}", store.statistics());
    fixture.stop();
}

#[test]
fn clients_that_miss_at_once_make_one_request_for_each_variant() {
    let origin = Origin::start(|request| {
        let reply = reply("Cache-Control: max-age=60\r\nVary: X\r\n", "x");
        request.after(Duration::from_millis(200)).say(reply)
    });
    let (fixture, _) = cached(&origin, |config| config.workers = 2);
    let mut clients: Vec<_> = (0..20).map(|_| fixture.client()).collect();
    for (number, client) in clients.iter_mut().enumerate() {
        client.send(format!("GET /x HTTP/1.1\r\nHost: test\r\nX: {}\r\n\r\n", number % 2));
    }
    for client in &mut clients {
        assert_eq!(client.reply().text(), "x");
    }
    assert_eq!(origin.requests(), 2);
    fixture.stop();
}

#[test]
fn a_client_that_waits_in_vain_gets_its_own_answer() {
    let origin = Origin::start(|request| {
        request.after(Duration::from_millis(200)).say(reply("Cache-Control: private\r\n", "mine"))
    });
    let (fixture, _) = cached(&origin, |config| config.workers = 2);
    let mut clients: Vec<_> = (0..20).map(|_| fixture.client()).collect();
    all_get(&mut clients, "/x", "mine");
    assert_eq!(origin.requests(), 20);
    fixture.stop();
}

#[test]
fn a_client_that_goes_away_does_not_end_others() {
    let is_free = Arc::new(AtomicBool::new(false));
    let gate = is_free.clone();
    let origin = Origin::start(move |request| {
        wait_until("the release", || gate.load(SeqCst));
        request.say(reply("Cache-Control: max-age=60\r\n", "x"))
    });
    let (fixture, store) = cached(&origin, |_| {});
    let mut first = fixture.client();
    first.send("GET /x HTTP/1.1\r\nHost: test\r\n\r\n");
    wait_until("the request at the origin", || origin.requests() == 1);
    let mut second = fixture.client();
    second.send("GET /x HTTP/1.1\r\nHost: test\r\n\r\n");
    wait_until("the second request in the cache", || store.statistics().collapsed == 1);
    reset(first);
    wait_until("the end of the first connection", || fixture.server.statistics().open() == 1);
    is_free.store(true, SeqCst);
    assert_eq!(second.reply().text(), "x");
    assert_eq!(origin.requests(), 1, "it went on for him");
    fixture.stop();
}

#[test]
fn an_origin_that_fails_is_stood_in_for_and_what_is_torn_is_not_kept() {
    let count = AtomicUsize::new(0);
    let origin =
        Origin::start(move |request| match (request.target(), count.fetch_add(1, SeqCst)) {
            ("/sie", 0) => {
                request.say(reply("Cache-Control: max-age=0, stale-if-error=60\r\n", "old"))
            }
            ("/sie", 1) => request.say("HTTP/1.1 503 X\r\nContent-Length: 6\r\n\r\nfailed"),
            ("/torn", _) => {
                request.say(
                    "HTTP/1.1 200 OK\r\nCache-Control: max-age=60\r\nContent-Length: 9\r\n\r\ntorn",
                );
                false
            }
            _ => false,
        });
    let (fixture, store) = cached(&origin, |_| {});
    assert_eq!(fixture.get("/sie").text(), "old");
    let mut gets = 0;
    // An origin that fails is not tried for a while.
    wait_until("the origin to be tried again", || {
        let reply = fixture.get("/sie");
        assert_eq!((reply.status, &*reply.text()), (200, "old"), "{reply:?}");
        gets += 1;
        origin.requests() >= 3
    });
    assert_eq!(store.statistics().stale_if_error + store.statistics().stale_hits, gets);
    let mut client = fixture.client();
    client.send("GET /torn HTTP/1.1\r\nHost: test\r\n\r\n");
    assert!(client.read_to_end_or_reset().ends_with(b"torn"));
    assert_eq!(store.statistics().stored, 1);
    assert_eq!(store.statistics().fetching, 0);
    fixture.stop();
}

#[test]
fn stale_content_is_sent_at_once_and_replaced_behind_it() {
    // The new response stays fresh: otherwise another refresh could change the responses below.
    let (origin, is_free) = held_back();
    is_free.store(true, SeqCst);
    let (fixture, _) = cached(&origin, |_| {});
    assert_eq!(fixture.get("/").text(), "0");
    let mut client = fixture.client();
    assert_eq!(client.request("HEAD", "/", &[]).field("content-length"), Some("1"));
    wait_until("the refreshed reply", || fixture.get("/").text() == "1");
    assert!(origin.last_head().starts_with("GET / "), "a refresh is a GET");
    assert_eq!(client.get("/").text(), "1", "its connection goes on");
    assert_eq!(origin.requests(), 2);
    fixture.stop();
}

#[test]
fn a_304_freshens_and_a_client_with_what_came_gets_one() {
    let origin = Origin::start(|request| match request.field("if-none-match") {
        Some("\"a\"") => {
            request.say("HTTP/1.1 304 X\r\nETag: \"a\"\r\nCache-Control: max-age=60\r\n\r\n")
        }
        _ => request.say(reply("ETag: \"a\"\r\nCache-Control: max-age=0\r\n", "body")),
    });
    let (fixture, _) = cached(&origin, |_| {});
    let mut client = fixture.client();
    assert_eq!(client.request("GET", "/", &["If-None-Match: \"a\""]).status, 304);
    assert_eq!(client.get("/").text(), "body");
    assert_eq!(client.get("/").text(), "body");
    assert_eq!(origin.requests(), 2);
    fixture.stop();
}

fn reset(client: Client) {
    socket2::SockRef::from(client.socket()).set_linger(Some(Duration::ZERO)).unwrap();
}

/// Starts an origin whose first response is stale from the start. The origin sends its later responses
/// to `/` only after the returned flag is set.
fn held_back() -> (Origin, Arc<AtomicBool>) {
    let is_free = Arc::new(AtomicBool::new(false));
    let (count, gate) = (AtomicUsize::new(0), is_free.clone());
    let origin = Origin::start(move |request| {
        if request.target() != "/" {
            return request.ok("other");
        }
        let number = count.fetch_add(1, SeqCst);
        if number > 0 {
            wait_until("the release", || gate.load(SeqCst));
        }
        let fields = "Cache-Control: max-age=100, stale-while-revalidate=600\r\n";
        let age = if number == 0 { "Age: 150\r\n" } else { "" };
        request.say(reply(&format!("{fields}{age}"), &number.to_string()))
    });
    (origin, is_free)
}

/// Starts a front end for the origin of [`held_back`], and a client that has received the stale
/// response, so that a refresh is in progress.
fn refreshing(engine: &str) -> (Origin, Arc<AtomicBool>, Fixture, Store, Client) {
    let (origin, is_free) = held_back();
    let (fixture, store) = cached(&origin, |config| serve_with(config, engine));
    let mut client = fixture.client();
    assert_eq!((&*client.get("/").text(), &*client.get("/").text()), ("0", "0"), "{engine}");
    (origin, is_free, fixture, store, client)
}

#[test]
fn a_refresh_keeps_its_clients_next_request_from_nothing() {
    on_every_engine(|engine| {
        let (origin, is_free, fixture, _, mut client) = refreshing(engine);
        // The origin has not yet answered the refresh.
        assert_eq!(client.get("/other").text(), "other", "{engine}");
        assert_eq!(client.get("/").text(), "0", "{engine}");
        is_free.store(true, SeqCst);
        wait_until("the refreshed reply", || client.get("/").text() == "1");
        assert_eq!(origin.requests(), 3, "{engine}: one refresh");
        fixture.stop();
    });
}

#[test]
fn a_client_that_resets_does_not_end_the_refresh() {
    on_every_engine(|engine| {
        let (origin, is_free, fixture, store, client) = refreshing(engine);
        wait_until("the refresh at the origin", || origin.requests() == 2);
        reset(client);
        wait_until("the end of the connection", || fixture.server.statistics().open() == 0);
        is_free.store(true, SeqCst);
        wait_until("the refreshed reply in the store", || store.statistics().stored == 2);
        assert_eq!((&*fixture.get("/").text(), origin.requests()), ("1", 2), "{engine}");
        fixture.stop();
    });
}

/// A stop does not wait for a refresh. In the shared store, the fetch ends as if it had failed.
#[test]
fn a_stop_ends_a_refresh() {
    on_every_engine(|engine| {
        let (origin, is_free, fixture, store, client) = refreshing(engine);
        wait_until("the refresh at the origin", || origin.requests() == 2);
        drop(client);
        let start = Instant::now();
        fixture.server.stop(Duration::from_secs(100)).unwrap();
        assert!(start.elapsed() < Duration::from_secs(50), "{engine}");
        assert_eq!(store.statistics().fetching, 0, "{engine}");
        is_free.store(true, SeqCst);
    });
}

/// If an origin fails to refresh a stale response, the cache sends it no refresh for a while.
#[test]
fn a_refresh_that_fails_is_not_tried_with_each_request() {
    let count = AtomicUsize::new(0);
    let origin = Origin::start(move |request| {
        count.fetch_add(1, SeqCst) == 0
            && request.say(reply(
                "Cache-Control: max-age=10, stale-while-revalidate=600\r\nAge: 50\r\n",
                "x",
            ))
    });
    let (fixture, store) = cached(&origin, |_| {});
    let mut client = fixture.client();
    assert_eq!(client.get("/").text(), "x");
    let start = Instant::now();
    for _ in 0..200 {
        assert_eq!(client.get("/").text(), "x");
    }
    wait_until("the end of all fetches", || store.statistics().fetching == 0);
    // One for the first response, and two for the first refresh: on the kept connection, then on a new
    // one. The pause before the next attempt is one second, then two, then four. The cache counts whole
    // seconds of the clock, so that the first pause may end milliseconds after it has begun.
    let most = 4 + start.elapsed().as_secs() as usize;
    assert!(origin.requests() <= most, "{} requests", origin.requests());
    fixture.stop();
}

/// An exchange that waits for another worker's fetch is woken by that worker. Only the best of many
/// rounds counts: a busy machine may be late in one round, but a worker that only polls now and then
/// is late in each.
#[test]
fn another_workers_fetch_wakes_waiting_exchanges_at_once() {
    for has_own_tables in [false, true] {
        another_workers_fetch_wakes(has_own_tables);
    }
}

fn another_workers_fetch_wakes(has_own_tables: bool) {
    let ended = Arc::new(Mutex::new(Instant::now()));
    let sent = ended.clone();
    let origin = Origin::start(move |request| {
        request.after(Duration::from_millis(30));
        *sent.lock().unwrap() = Instant::now();
        request.say(reply("Cache-Control: max-age=60\r\n", request.target()))
    });
    let (fixture, store) = cached(&origin, |config| {
        config.workers = 3;
        config.own_file_tables = has_own_tables.then(pollux_testkit::own_file_tables);
    });
    let mut clients: Vec<_> = (0..12).map(|_| fixture.client()).collect();
    let (mut best, mut rounds) = (Duration::MAX, 0);
    // A worker that polls every 200 ms is later than this in each round.
    let is_late = |best| best > Duration::from_millis(150) || store.statistics().collapsed == 0;
    while is_late(best) && rounds < 60 {
        let round = rounds;
        rounds += 1;
        let path = format!("/{round}");
        all_get(&mut clients, &path, &path);
        best = best.min(ended.lock().unwrap().elapsed());
    }
    assert!(!is_late(best), "{best:?} after the fetch");
    assert_eq!(origin.requests(), rounds);
    fixture.stop();
}

/// A server sends 304 to a client that has a copy, and 206 to a client that wants a part (RFC 9110
/// §15.4.5, §15.3.7). The cache requests the whole content without conditions, to store it: then
/// neither is a valid response, whatever copy the client has.
#[test]
fn a_reply_to_another_request_is_no_answer() {
    let count = AtomicUsize::new(0);
    let origin = Origin::start(move |request| {
        let part = "HTTP/1.1 206 X\r\nContent-Range: bytes 0-1/9\r\nContent-Length: 2\r\n\r\nab";
        match request.target() {
            "/206" => request.say(part),
            "/old" if count.fetch_add(1, SeqCst) == 0 => {
                let fields = "ETag: \"a\"\r\nCache-Control: max-age=0, stale-if-error=60\r\n";
                request.say(reply(fields, "old"))
            }
            // The validator is not the one of the stored response.
            _ => request.say("HTTP/1.1 304 X\r\nETag: \"b\"\r\n\r\n"),
        }
    });
    let (fixture, store) = cached(&origin, |_| {});
    let mut client = fixture.client();
    for path in ["/304", "/206"] {
        let reply = client.get(path);
        assert_eq!(error(&reply), (502, "http_protocol_error".into()), "{path}");
        assert_eq!(reply.field("cache-status"), Some("Pollux; fwd=uri-miss"), "{path}");
    }
    let part = client.request("GET", "/206", &["Range: bytes=0-1"]);
    assert_eq!((part.status, &*part.text()), (206, "ab"), "here the client wanted it");
    let own = ["If-None-Match: \"b\"", "Cache-Control: no-store"];
    assert_eq!(client.request("GET", "/304", &own).status, 304, "and here");
    assert_eq!(client.request("POST", "/304", &["Content-Length: 0"]).status, 304);
    // Such a reply does not confirm a stale response either: if its validator differs, the cache sends
    // the request again without conditions.
    assert_eq!(client.get("/old").text(), "old");
    let before = origin.requests();
    let reply = client.get("/old");
    assert_eq!(error(&reply), (502, "http_protocol_error".into()));
    assert_eq!(origin.requests(), before + 2);
    assert_eq!(store.statistics().fetching, 0);
    fixture.stop();
    // Without a cache the front end adds no conditions and removes none, so it forwards the 304.
    let fixture = Fixture::before(&origin.url());
    assert_eq!(fixture.get("/304").status, 304);
    fixture.stop();
}

/// If the cache was consulted, an error page contains the cache's result. A response that is made
/// before that has no such field, as RFC 9211 §2 recommends (SHOULD NOT): see the front end's
/// `own.rs`.
#[test]
fn pages_say_what_the_cache_did_too() {
    let origin = Origin::start(|_| false);
    let (fixture, _) = cached(&origin, |_| {});
    let mut client = fixture.client();
    let reply = client.get("/");
    assert_eq!(error(&reply), (502, "connection_terminated".into()));
    assert_eq!(reply.field("cache-status"), Some("Pollux; fwd=uri-miss"));
    let reply = client.request("DELETE", "/", &[]);
    assert_eq!((reply.status, reply.field("cache-status")), (502, Some("Pollux; fwd=method")));
    let reply = client.request("GET", "/", &["Cache-Control: only-if-cached"]);
    let status = reply.field("cache-status");
    assert_eq!((reply.status, status), (504, Some("Pollux; detail=only-if-cached")));
    let last = client.request("OPTIONS", "/", &["Max-Forwards: 0"]);
    assert_eq!((last.status, last.field("cache-status")), (204, None));
    for (request, status) in [
        ("CONNECT a:80 HTTP/1.1\r\nHost: a:80\r\n\r\n", 405),
        ("GET / HTTP/1.1\r\nHost : a\r\n\r\n", 400),
    ] {
        let mut client = fixture.client();
        client.send(request);
        let reply = client.reply();
        assert_eq!((reply.status, reply.field("cache-status")), (status, None));
        assert_eq!(reply.field("via"), None);
    }
    fixture.stop();
    let fixture = Fixture::before(&origin.url());
    assert_eq!(fixture.get("/").field("cache-status"), None, "there is no cache");
    fixture.stop();
}
