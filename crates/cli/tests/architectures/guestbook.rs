//! The guestbook, of which no architecture knows: on a file that several processes share, and on a
//! real Redis.

use crate::{ALL, CONCURRENT, in_each, serve, site, stop};
use pollux_testkit::{
    http::{Client, Reply},
    redis::Redis,
    serve::Serve,
};
use std::{
    net::TcpListener,
    thread,
    time::{Duration, Instant},
};

fn visit(client: &mut Client) -> Reply {
    client.get("/guestbook")
}

fn post(client: &mut Client, form: &str) -> Reply {
    client.send(format!(
        "POST /guestbook HTTP/1.1\r\nHost: test\r\nContent-Length: {}\r\n\
         Content-Type: application/x-www-form-urlencoded\r\n\r\n{form}",
        form.len()
    ));
    client.reply_to("POST")
}

/// The number of the visit that a page shows.
fn visitor(page: &Reply) -> u64 {
    let text = page.text();
    let number = text.split("visitor number ").nth(1).and_then(|rest| rest.split('.').next());
    number.and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("no number in {text}"))
}

/// What every store has to do, and everybody who serves.
fn is_a_guestbook(server: &Serve) {
    let mut client = server.client();
    let page = visit(&mut client);
    assert_eq!(page.status, 200, "{}", page.text());
    let first = visitor(&page);
    let posted = post(&mut client, "guest-remarks=%3Cb%3Ehello%3C%2Fb%3E&guest-name=Ada");
    assert_eq!((posted.status, posted.field("location")), (303, Some("/guestbook")));
    drop(client);
    // Somebody else's process, perhaps.
    let mut client = server.client();
    let page = visit(&mut client);
    assert_eq!(visitor(&page), first + 1);
    assert!(page.text().contains("&lt;b&gt;hello&lt;/b&gt; - Ada"), "{}", page.text());
    // Pipelined requests are answered in order, those that wait and those that do not.
    client.send(
        "GET /guestbook HTTP/1.1\r\nHost: t\r\n\r\nGET / HTTP/1.1\r\nHost: t\r\n\r\n\
         HEAD /guestbook HTTP/1.1\r\nHost: t\r\n\r\nGET / HTTP/1.1\r\nHost: t\r\n\r\n",
    );
    assert_eq!(visitor(&client.reply()), first + 2);
    assert_eq!(client.reply().text(), "hello");
    assert_eq!(client.reply_to("HEAD").status, 200);
    assert_eq!(client.reply().text(), "hello");
}

/// Many clients at once: each visit has a number of its own.
fn counts_each_visit_once(server: &Serve) {
    const CLIENTS: u64 = 6;
    const EACH: u64 = 4;
    let first = visitor(&visit(&mut server.client()));
    let mut seen: Vec<u64> = thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|_| {
                scope.spawn(|| {
                    let one = |_| visitor(&visit(&mut server.client()));
                    (0..EACH).map(one).collect::<Vec<_>>()
                })
            })
            .collect();
        clients.into_iter().flat_map(|client| client.join().unwrap()).collect()
    });
    seen.sort_unstable();
    assert_eq!(seen, (first + 1..=first + CLIENTS * EACH).collect::<Vec<_>>());
}

#[test]
fn every_architecture_has_a_guestbook_in_a_file() {
    let site = site(0);
    in_each(&ALL, |architecture| {
        let store = format!("file:{}", site.path().join(format!("book-{architecture}")).display());
        let server = serve(site.path(), architecture, &["--guestbook", "--store", &store]);
        is_a_guestbook(&server);
        counts_each_visit_once(&server);
        stop(server);
    });
}

/// Servers of several architectures have one book, and none of them loses or doubles anything.
#[test]
fn all_share_one_file() {
    let site = site(0);
    let store = format!("file:{}", site.path().join("book").display());
    let servers: Vec<_> = ALL
        .iter()
        .map(|name| serve(site.path(), name, &["--guestbook", "--store", &store]))
        .collect();
    let mut numbers = Vec::new();
    for _ in 0..2 {
        numbers.extend(servers.iter().map(|server| visitor(&visit(&mut server.client()))));
    }
    assert_eq!(numbers, (1..=2 * ALL.len() as u64).collect::<Vec<_>>());
    servers.into_iter().for_each(|server| drop(stop(server)));
}

#[test]
fn every_architecture_has_a_guestbook_on_redis() {
    let site = site(0);
    let Some(redis) = Redis::start(&[]) else { return };
    in_each(&ALL, |architecture| {
        let database = ALL.iter().position(|name| *name == architecture).unwrap();
        for (policy, database) in [("per-request", database), ("pooled:2", database + 8)] {
            let store = format!("redis://127.0.0.1:{}/{database}", redis.port);
            let arguments = ["--guestbook", "--store", &store, "--store-connections", policy];
            let server = serve(site.path(), architecture, &arguments);
            is_a_guestbook(&server);
            counts_each_visit_once(&server);
            stop(server);
        }
    });
}

/// A unit of a pool keeps its connection to the store from client to client, however it waits for
/// the next one; and where the store has hung up meanwhile, it notices before it asks again.
#[test]
fn units_keep_their_connections_and_notice_when_they_end() {
    let site = site(0);
    for (architecture, way) in [
        ("preforked", "exclusive"),
        ("preforked", "blocking"),
        ("preforked", "mutex"),
        ("prethreaded", "blocking"),
    ] {
        let Some(mut redis) = Redis::start(&[]) else { return };
        let store = format!("redis://127.0.0.1:{}/0", redis.port);
        let server = serve(
            site.path(),
            architecture,
            &["--guestbook", "--store", &store, "--pool", "1", "--accept", way],
        );
        let before = redis.info("total_connections_received");
        for number in 1..=10 {
            let mut client = server.client();
            assert_eq!(visitor(&visit(&mut client)), number);
        }
        let made = redis.info("total_connections_received") - before - 1;
        assert_eq!(made, 1, "{architecture}, {way}");
        // All clients but this one are told to go.
        assert_eq!(
            redis.command("CLIENT KILL TYPE normal SKIPME yes"),
            ":1",
            "{architecture}, {way}"
        );
        let page = visit(&mut server.client());
        assert_eq!(page.status, 200, "{architecture}, {way}: {}", page.text());
        // And when nobody is there, that is told, soon.
        redis.kill();
        let started_at = Instant::now();
        assert_eq!(visit(&mut server.client()).status, 503, "{architecture}, {way}");
        assert!(started_at.elapsed() < Duration::from_secs(10));
        stop(server);
    }
}

#[test]
fn a_store_that_is_not_there_is_a_503_in_every_architecture() {
    let site = site(0);
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    in_each(&CONCURRENT, |architecture| {
        let store = format!("redis://{nobody}/0");
        let server = serve(site.path(), architecture, &["--guestbook", "--store", &store]);
        let reply = visit(&mut server.client());
        assert_eq!((reply.status, reply.field("retry-after")), (503, Some("1")), "{architecture}");
        assert_eq!(server.client().get("/").text(), "hello");
        stop(server);
    });
}
