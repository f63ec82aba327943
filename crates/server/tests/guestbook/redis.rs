//! On a real Redis: every policy, every way in, and what it says when it cannot.

use super::*;
use pollux_testkit::redis::Redis;
use std::{num::NonZeroUsize, time::Instant};

fn at(url: &str) -> Store {
    url.parse().unwrap()
}

fn pooled(count: usize) -> StoreConnections {
    StoreConnections::Pooled(NonZeroUsize::new(count).unwrap())
}

/// The next visit, tried again until it is answered, within ten seconds.
fn recovers(fixture: &Fixture) -> Reply {
    let start = Instant::now();
    loop {
        let reply = visit(&mut fixture.client());
        if reply.status == 200 {
            return reply;
        }
        assert_eq!(reply.status, 503);
        assert!(start.elapsed() < Duration::from_secs(10), "it does not recover");
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn every_mechanism_and_policy_has_a_guestbook() {
    for mechanism in MECHANISMS {
        if pollux_event::registry::probe(&mechanism.parse().unwrap()).is_err() {
            println!("skipped: {mechanism} is not there");
            continue;
        }
        for policy in [StoreConnections::PerRequest, pooled(1), pooled(8)] {
            let Some(redis) = Redis::start(&[]) else { return };
            let fixture =
                Fixture::new(mechanism, at(&format!("redis://127.0.0.1:{}", redis.port)), policy);
            let before = redis.info("total_connections_received");
            is_a_guestbook(&fixture);
            counts_each_visit_once(&fixture);
            let made = redis.info("total_connections_received") - before - 1;
            match policy {
                StoreConnections::PerRequest => assert!(made > 200, "{made} connections"),
                StoreConnections::Pooled(most) => {
                    assert!((1..=most.get() as u64).contains(&made), "{made} connections")
                }
            }
            fixture.stop();
        }
    }
}

#[test]
fn names_passwords_databases_and_unix_sockets_lead_to_it() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("redis.sock");
    let path = socket.to_str().unwrap();
    let Some(redis) = Redis::start(&["--unixsocket", path, "--requirepass", "se cret"]) else {
        return;
    };
    let port = redis.port;
    for url in [
        format!("redis://localhost:{port}/0?").replace('?', ""),
        format!("redis://:wrong@127.0.0.1:{port}"),
    ] {
        let fixture = Fixture::new("epoll-et", at(&url), StoreConnections::default());
        let refused = visit(&mut fixture.client());
        assert_eq!((refused.status, refused.field("retry-after")), (503, Some("30")), "{url}");
        fixture.stop();
    }
    for url in [
        format!("redis://:se%20cret@localhost:{port}/3"),
        format!("redis://default:se%20cret@127.0.0.1:{port}"),
        format!("unix://{path}?db=5&password=se+cret"),
    ] {
        let fixture = Fixture::new("epoll-et", at(&url), StoreConnections::default());
        // Each in a database of its own: the first visit there.
        assert_eq!(visitor(&visit(&mut fixture.client())), 1, "{url}");
        is_a_guestbook(&fixture);
        fixture.stop();
    }
}

#[test]
fn a_redis_that_dies_is_told_of_and_found_again() {
    for policy in [StoreConnections::PerRequest, pooled(2)] {
        let Some(mut redis) = Redis::start(&[]) else { return };
        let store = at(&format!("redis://127.0.0.1:{}", redis.port));
        let fixture = Fixture::new("epoll-et", store, policy);
        assert_eq!(visit(&mut fixture.client()).status, 200);
        redis.kill();
        for _ in 0..5 {
            let start = Instant::now();
            let reply = visit(&mut fixture.client());
            assert_eq!((reply.status, reply.field("retry-after")), (503, Some("1")));
            assert!(
                start.elapsed() < Duration::from_secs(4),
                "nobody is there: that is known soon"
            );
        }
        assert_eq!(fixture.client().get("/").text(), "static");
        redis.start_again();
        recovers(&fixture);
        fixture.stop();
    }
}

#[test]
fn a_redis_that_is_silent_holds_up_nobody_for_long() {
    let Some(redis) = Redis::start(&[]) else { return };
    let store = at(&format!("redis://127.0.0.1:{}", redis.port));
    let fixture = Fixture::new("epoll-et", store, pooled(2));
    assert_eq!(visit(&mut fixture.client()).status, 200);
    redis.pause(true);
    let mut waiting: Vec<_> = (0..10).map(|_| fixture.client()).collect();
    let start = Instant::now();
    for client in &mut waiting {
        client.send("GET /guestbook HTTP/1.1\r\nHost: test\r\n\r\n");
    }
    // The loop goes on meanwhile.
    assert_eq!(fixture.client().get("/").text(), "static");
    assert!(start.elapsed() < Duration::from_secs(4));
    // One of them goes away while it waits.
    waiting.pop();
    for client in &mut waiting {
        assert_eq!(client.reply().status, 503);
    }
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
    redis.pause(false);
    recovers(&fixture);
    fixture.stop();
}

#[test]
fn what_redis_refuses_is_told_and_ends_when_it_does() {
    let Some(redis) = Redis::start(&[]) else { return };
    let store = at(&format!("redis://127.0.0.1:{}", redis.port));
    let fixture = Fixture::new("epoll-et", store, StoreConnections::default());
    recovers(&fixture);
    for (refuse, allow) in [
        ("CONFIG SET maxmemory 1", "CONFIG SET maxmemory 0"),
        ("REPLICAOF 127.0.0.1 1", "REPLICAOF NO ONE"),
        ("CONFIG SET requirepass x", ""),
    ] {
        assert_eq!(redis.command(refuse), "+OK");
        if allow.is_empty() {
            // Who is in stays in: a new connection meets it.
            redis.command("AUTH x");
            let other = at(&format!("redis://127.0.0.1:{}", redis.port));
            let other = Fixture::new("epoll-et", other, StoreConnections::PerRequest);
            assert_eq!(visit(&mut other.client()).status, 503);
            other.stop();
            continue;
        }
        let mut client = fixture.client();
        let reply = post(&mut client, "guest-remarks=lost");
        assert_eq!((reply.status, reply.field("retry-after")), (503, Some("30")), "{refuse}");
        assert_eq!(visit(&mut client).status, 503);
        assert_eq!(redis.command(allow), "+OK");
        let page = recovers(&fixture);
        assert!(!page.text().contains("lost"), "what was refused is not kept");
    }
    fixture.stop();
}
