//! The guestbook over real sockets: on a file, on a real Redis, and on servers that misbehave.

mod file;
mod misbehaving;
mod redis;

use pollux_server::{
    Server, Settings,
    config::{Listen, MechanismChoice, Store, StoreConnections},
    settings::GuestbookConfig,
};
use pollux_testkit::{
    guestbook::{is_a_guestbook, post, visit, visitor},
    http::{Client, Reply},
};
use std::{sync::Arc, time::Duration};
use tempfile::TempDir;

/// Mechanisms of every kind: level, edge, scanning, ring. The engine's own tests check an upstream
/// connection on all mechanisms, including those with /dev/poll and signals.
const MECHANISMS: [&str; 4] = ["epoll", "epoll-et", "poll", "uring-poll"];

/// A server with a guestbook, and a file beside it.
struct Fixture {
    _directory: TempDir,
    server: Server,
}

impl Fixture {
    fn new(mechanism: &str, store: Store, connections: StoreConnections) -> Self {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("index.html"), "static").unwrap();
        let mut config = Settings::new(directory.path());
        config.listen = vec!["127.0.0.1:0".parse().unwrap()];
        config.mechanism = MechanismChoice::Named(mechanism.parse().unwrap());
        let mut guestbook = GuestbookConfig::new("/guestbook", store);
        guestbook.connections = connections;
        guestbook.shown = 3;
        config.guestbook = Some(Arc::new(guestbook));
        Self { _directory: directory, server: Server::start(config).unwrap() }
    }

    fn client(&self) -> Client {
        let Listen::Tcp(address) = &self.server.addresses()[0] else { panic!("no TCP address") };
        Client::connect(*address)
    }

    fn stop(self) {
        self.server.stop(Duration::from_secs(10)).unwrap();
    }
}

/// Checks the behaviour that every store must have.
fn has_a_guestbook(fixture: &Fixture) {
    is_a_guestbook(&|| fixture.client(), "static");
    shows_the_newest(fixture);
    counts_visits_of_many(fixture);
}

/// Checks that the page shows the newest three remarks, the oldest of them first.
fn shows_the_newest(fixture: &Fixture) {
    let mut client = fixture.client();
    for text in ["one", "two", "three", "four"] {
        assert_eq!(post(&mut client, &format!("guest-remarks={text}")).status, 303);
    }
    let text = visit(&mut client).text();
    let places: Vec<_> = ["two", "three", "four"].map(|t| text.find(t).expect(t)).into();
    assert!(places.is_sorted() && !text.contains("one"), "{text}");
}

/// Checks many clients with open connections: each visit has its own number.
fn counts_visits_of_many(fixture: &Fixture) {
    const CLIENTS: u64 = 50;
    const VISITS: u64 = 4;
    let first = visitor(&visit(&mut fixture.client()));
    let mut clients: Vec<_> = (0..CLIENTS).map(|_| fixture.client()).collect();
    let mut seen = Vec::new();
    for _ in 0..VISITS {
        for client in &mut clients {
            client.send("GET /guestbook HTTP/1.1\r\nHost: test\r\n\r\n");
        }
        seen.extend(clients.iter_mut().map(|client| visitor(&client.reply())));
    }
    seen.sort_unstable();
    assert_eq!(seen, (first + 1..=first + CLIENTS * VISITS).collect::<Vec<_>>());
}

#[test]
fn a_request_that_is_no_visit_and_no_remark_gets_an_error() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::File(directory.path().join("remarks"));
    let fixture = Fixture::new("epoll-et", store, StoreConnections::default());
    let mut client = fixture.client();
    assert_eq!(post(&mut client, "guest-remarks=").status, 400);
    assert_eq!(post(&mut client, "guest-remarks=%ff").status, 400);
    assert_eq!(post(&mut client, &format!("guest-remarks={}", "x".repeat(5000))).status, 413);
    let options = client.request("OPTIONS", "/guestbook", &[]);
    assert_eq!((options.status, options.field("allow")), (204, Some("GET, HEAD, POST, OPTIONS")));
    assert_eq!(client.request("DELETE", "/guestbook", &[]).status, 405);
    // The fields of a 415 say what would be accepted (RFC 9110 §15.5.16).
    let accepts = |reply: &Reply| {
        let field = |name| reply.field(name).map(str::to_owned);
        (reply.status, field("accept"), field("accept-encoding"))
    };
    client.send("POST /guestbook HTTP/1.1\r\nHost: t\r\nContent-Length: 2\r\n\r\n{}");
    let form = "application/x-www-form-urlencoded".to_owned();
    assert_eq!(accepts(&client.reply_to("POST")), (415, Some(form), None));
    // The server does not decode a content coding (RFC 9110 §8.4).
    let mut coded = fixture.client();
    coded.send(
        "POST /guestbook HTTP/1.1\r\nHost: t\r\nContent-Length: 2\r\nContent-Encoding: gzip\r\n\
         Content-Type: application/x-www-form-urlencoded\r\n\r\n{}",
    );
    let identity = "identity".to_owned();
    assert_eq!(accepts(&coded.reply_to("POST")), (415, None, Some(identity)));
    // A refusal is sent instead of 100 Continue, and says that the connection ends.
    let mut waiting = fixture.client();
    waiting.send(
        "POST /guestbook HTTP/1.1\r\nHost: t\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n",
    );
    let refused = waiting.reply_to("POST");
    assert_eq!((refused.status, refused.field("connection")), (415, Some("close")));
    // If the announced length of a form is too large, the server does not send 100 Continue.
    let mut long = fixture.client();
    long.send(
        "POST /guestbook HTTP/1.1\r\nHost: t\r\nContent-Length: 100000\r\nExpect: 100-continue\r\n\
         Content-Type: application/x-www-form-urlencoded\r\n\r\n",
    );
    assert_eq!(long.reply_to("POST").status, 413);
    // The path is decoded and normalized as everywhere else.
    for path in ["/%67uestbook", "/x/../guestbook", "//guestbook"] {
        assert_eq!(client.request("OPTIONS", path, &[]).status, 204, "{path}");
    }
    assert_eq!(client.get("/guestbook/").status, 404);
    // A form that is longer than any remark: the server closes the connection and stores nothing.
    client.send(format!(
        "POST /guestbook HTTP/1.1\r\nHost: t\r\nContent-Length: 100000\r\n\
         Content-Type: application/x-www-form-urlencoded\r\n\r\n{}",
        "x".repeat(20_000)
    ));
    let refused = client.reply_to("POST");
    assert_eq!((refused.status, refused.field("connection")), (413, Some("close")));
    let page = visit(&mut fixture.client()).text();
    assert!(!page.contains("guest-entry\">"), "{page}");
    fixture.stop();
}
