//! The guestbook over real sockets: on a file, on a real Redis, and on servers that misbehave.

mod file;
mod misbehaving;
mod redis;

use pollux_server::{
    Config, Server,
    config::{GuestbookConfig, Listen, MechanismChoice, Store, StoreConnections},
};
use pollux_testkit::http::{Client, Reply};
use std::{sync::Arc, time::Duration};
use tempfile::TempDir;

/// Mechanisms of every kind: level, edge, scanning, ring. What /dev/poll and signals add to a link
/// is the engine's, whose own tests have it on all of them.
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
        let mut config = Config::new(directory.path());
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

/// What every store has to do.
fn is_a_guestbook(fixture: &Fixture) {
    let mut client = fixture.client();
    let page = visit(&mut client);
    assert_eq!(page.status, 200, "{}", page.text());
    assert_eq!(page.field("cache-control"), Some("no-store"));
    assert_eq!(page.field("content-type"), Some("text/html; charset=utf-8"));
    let first = visitor(&page);
    let posted = post(&mut client, "guest-remarks=%3Cb%3Ehello%3C%2Fb%3E&guest-name=Ada");
    assert_eq!((posted.status, posted.field("location")), (303, Some("/guestbook")));
    let page = visit(&mut client);
    assert_eq!(visitor(&page), first + 1);
    assert!(page.text().contains("&lt;b&gt;hello&lt;/b&gt; - Ada"), "{}", page.text());
    assert!(!page.text().contains("<b>hello"));
    // The newest three, the oldest of them first.
    for text in ["two", "three", "four"] {
        assert_eq!(post(&mut client, &format!("guest-remarks={text}")).status, 303);
    }
    let text = visit(&mut client).text();
    let places: Vec<_> = ["two", "three", "four"].map(|t| text.find(t).expect(t)).into();
    assert!(places.is_sorted() && !text.contains("Ada"), "{text}");
    // Pipelined requests are answered in order, those that wait and those that do not.
    client.send(
        "GET /guestbook HTTP/1.1\r\nHost: t\r\n\r\nGET / HTTP/1.1\r\nHost: t\r\n\r\n\
         HEAD /guestbook HTTP/1.1\r\nHost: t\r\n\r\nGET / HTTP/1.1\r\nHost: t\r\n\r\n",
    );
    assert_eq!(visitor(&client.reply()), first + 3);
    assert_eq!(client.reply().text(), "static");
    assert_eq!(client.reply_to("HEAD").status, 200);
    assert_eq!(client.reply().text(), "static");
}

/// Many clients at once: each visit has a number of its own, and every remark is kept.
fn counts_each_visit_once(fixture: &Fixture) {
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
fn what_is_no_visit_and_no_remark_is_told() {
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
    client.send("POST /guestbook HTTP/1.1\r\nHost: t\r\nContent-Length: 2\r\n\r\n{}");
    assert_eq!(client.reply_to("POST").status, 415);
    assert_eq!(client.get("/guestbook/").status, 404);
    // A form that is longer than any remark: the connection ends, nothing is kept.
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
