//! Limits per client address, allow and deny lists. All clients of a test have the address 127.0.0.1.

use super::{INDEX, serve, site};
use pollux_testkit::{http::Client, serve::Serve};

/// The architectures whose workers serve several clients at a time together.
const ARCHITECTURES: [&[&str]; 5] = [
    &["--workers", "2"],
    &["--architecture", "prethreaded", "--pool", "4"],
    &["--architecture", "threaded"],
    &["--architecture", "preforked", "--pool", "4"],
    &["--architecture", "forking"],
];

fn refused(server: &mut Serve, reason: &str) -> u64 {
    server.statistics()["clients"][reason].as_u64().unwrap()
}

fn with<'a>(arguments: &[&'a str], more: &[&'a str]) -> Vec<&'a str> {
    [arguments, more].concat()
}

#[test]
fn one_address_has_no_more_connections_than_allowed() {
    for architecture in ARCHITECTURES {
        let site = site(0);
        let arguments = with(architecture, &["--limit-connections-per-address", "2"]);
        let mut server = serve(site.path(), &arguments);
        let mut clients: Vec<Client> = (0..2).map(|_| server.client()).collect();
        for client in &mut clients {
            assert_eq!(client.get("/").text(), INDEX);
        }
        let mut third = server.client();
        assert!(third.is_closed(), "{architecture:?}");
        // The statistics of a blocking worker without a connection are current.
        server.wait_until("one to be refused", |s| s["clients"]["over_connections"] == 1);
        drop(clients);
        server.wait_until("both to be gone", |s| s["connections"]["open"] == 0);
        assert_eq!(server.client().get("/").text(), INDEX, "{architecture:?}");
    }
}

#[test]
fn a_client_that_connects_too_often_is_refused() {
    for architecture in ARCHITECTURES {
        let site = site(0);
        let arguments = with(architecture, &["--limit-accept-rate", "1/m:2"]);
        let mut server = serve(site.path(), &arguments);
        for _ in 0..2 {
            assert_eq!(server.client().get("/").text(), INDEX, "{architecture:?}");
        }
        assert!(server.client().is_closed(), "{architecture:?}");
        server.wait_until("one to be refused", |s| s["clients"]["over_accept_rate"] == 1);
    }
}

#[test]
fn too_many_requests_are_answered_with_429_and_the_time_to_wait() {
    for architecture in ARCHITECTURES {
        let site = site(0);
        let arguments = with(architecture, &["--limit-request-rate", "1/m:2"]);
        let server = serve(site.path(), &arguments);
        let mut client = server.client();
        for _ in 0..2 {
            assert_eq!(client.get("/").status, 200);
        }
        let reply = client.get("/");
        assert_eq!(reply.status, 429, "{architecture:?}");
        let wait: u64 = reply.field("retry-after").unwrap().parse().unwrap();
        assert!((1..=60).contains(&wait), "{wait}");
        // The connection stays open, also after a body that the server discards, and a reply to HEAD
        // has no content.
        client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc");
        assert_eq!(client.reply().status, 429);
        assert_eq!(client.request("HEAD", "/", &[]).status, 429);
        // Another connection of the same address counts as the same client.
        let mut other = server.client();
        assert_eq!(other.get("/").status, 429);
        drop((client, other));
        let mut server = server;
        // The thread of a connection counts its last refusal when it ends.
        server.wait_until("both to be gone, with four refusals", |s| {
            s["connections"]["open"] == 0 && s["clients"]["over_request_rate"] == 4
        });
        assert_eq!(refused(&mut server, "over_request_rate"), 4, "{architecture:?}");
    }
}

#[test]
fn lists_decide_which_clients_are_served_in_every_architecture() {
    let site = site(0);
    for architecture in ["event", "iterative", "forking", "preforked", "threaded", "prethreaded"] {
        let arguments = ["--architecture", architecture];
        let denied = with(&arguments, &["--deny", "127.0.0.0/8"]);
        let mut server = serve(site.path(), &denied);
        assert!(server.client().is_closed(), "{architecture}");
        server.wait_until("one to be refused", |s| s["clients"]["denied"] == 1);
        let allowed = with(&denied, &["--allow", "127.0.0.1"]);
        assert_eq!(serve(site.path(), &allowed).client().get("/").text(), INDEX, "{architecture}");
        let others = with(&arguments, &["--allow", "192.0.2.0/24"]);
        assert!(serve(site.path(), &others).client().is_closed(), "{architecture}");
    }
}
