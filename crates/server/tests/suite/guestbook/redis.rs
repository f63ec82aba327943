//! The guestbook on a real Redis: every connection policy, every kind of address, and the errors.

use super::*;
use pollux_testkit::{redis::Redis, wait_for, wait_until};
use std::{io::ErrorKind, num::NonZeroUsize, time::Instant};

fn at(url: &str) -> Store {
    url.parse().unwrap()
}

fn pooled(count: usize) -> StoreConnections {
    StoreConnections::Pooled(NonZeroUsize::new(count).unwrap())
}

/// Visits until the response is not a 503.
fn recovers(fixture: &Fixture) -> Reply {
    wait_for("the recovery of the guestbook", || {
        let reply = visit(&mut fixture.client());
        assert!(matches!(reply.status, 200 | 503), "{reply:?}");
        (reply.status == 200).then_some(reply)
    })
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
            has_a_guestbook(&fixture);
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
    for url in [format!("redis://localhost:{port}/0"), format!("redis://:wrong@127.0.0.1:{port}")] {
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
        // Each URL selects another database, so this is the first visit there.
        assert_eq!(visitor(&visit(&mut fixture.client())), 1, "{url}");
        has_a_guestbook(&fixture);
        fixture.stop();
    }
}

/// Commands that follow a refused login are not executed, neither as another user nor in another
/// database.
#[test]
fn nothing_is_done_behind_a_login_that_is_refused() {
    let Some(redis) = Redis::start(&[]) else { return };
    assert_eq!(redis.command("ACL SETUSER ada on >right ~* +@all"), "+OK");
    let port = redis.port;
    for url in [
        format!("redis://127.0.0.1:{port}/99"),
        format!("redis://ada:wrong@127.0.0.1:{port}"),
        format!("redis://ada@127.0.0.1:{port}"),
        format!("redis://nobody@127.0.0.1:{port}"),
    ] {
        for policy in [StoreConnections::PerRequest, pooled(1)] {
            let fixture = Fixture::new("epoll-et", at(&url), policy);
            assert_eq!(post(&mut fixture.client(), "guest-remarks=x").status, 503, "{url}");
            assert_eq!(visit(&mut fixture.client()).status, 503, "{url}");
            assert_eq!(redis.command("EXISTS guestbook_remarks visitor_count"), ":0", "{url}");
            fixture.stop();
        }
    }
    let url = format!("redis://ada:right@127.0.0.1:{port}/1");
    let fixture = Fixture::new("epoll-et", at(&url), StoreConnections::default());
    has_a_guestbook(&fixture);
    fixture.stop();
}

/// An ACL user without a password (`nopass`) is used as that user, and not as the default user.
#[test]
fn a_user_without_a_password_is_that_user() {
    let Some(redis) = Redis::start(&[]) else { return };
    for command in ["ACL SETUSER ada on nopass ~* +@all", "ACL SETUSER default off"] {
        assert_eq!(redis.command(command), "+OK");
    }
    for url in ["redis://ada@", "redis://ada:@", "redis://"] {
        let store = at(&format!("{url}127.0.0.1:{}", redis.port));
        let fixture = Fixture::new("epoll-et", store, StoreConnections::default());
        let wanted = if url.contains("ada") { 200 } else { 503 };
        assert_eq!(visit(&mut fixture.client()).status, wanted, "{url}");
        fixture.stop();
    }
}

/// Clients that reset their connections while Redis is silent leave no open connections to Redis.
#[test]
fn clients_that_reset_leave_no_connections_to_redis() {
    const CLIENTS: usize = 50;
    let Some(redis) = Redis::start(&[]) else { return };
    let store = at(&format!("redis://127.0.0.1:{}", redis.port));
    let fixture = Fixture::new("epoll-et", store, StoreConnections::PerRequest);
    redis.pause(true);
    let mut clients: Vec<_> = (0..CLIENTS).map(|_| fixture.client()).collect();
    for client in &mut clients {
        client.send("GET /guestbook HTTP/1.1\r\nHost: test\r\n\r\n");
    }
    wait_until("a connection for each client", || established_to(redis.port) == CLIENTS);
    for client in clients {
        socket2::SockRef::from(client.socket()).set_linger(Some(Duration::ZERO)).unwrap();
    }
    wait_until("the end of all connections", || established_to(redis.port) == 0);
    redis.pause(false);
    recovers(&fixture);
    fixture.stop();
}

/// Returns the number of established connections of this host to this port (proc_pid_net(5)).
fn established_to(port: u16) -> usize {
    const ESTABLISHED: &str = "01";
    let remote = format!(":{port:04X}");
    let table = std::fs::read_to_string("/proc/self/net/tcp").unwrap();
    let is_one = |line: &&str| {
        let mut columns = line.split_whitespace().skip(2);
        columns.next().is_some_and(|address| address.ends_with(&remote))
            && columns.next() == Some(ESTABLISHED)
    };
    table.lines().skip(1).filter(is_one).count()
}

#[test]
fn a_redis_that_dies_is_reported_and_found_again() {
    for policy in [StoreConnections::PerRequest, pooled(2)] {
        let Some(mut redis) = Redis::start(&[]) else { return };
        let store = at(&format!("redis://127.0.0.1:{}", redis.port));
        let fixture = Fixture::new("epoll-et", store, policy);
        assert_eq!(visit(&mut fixture.client()).status, 200);
        redis.kill();
        for _ in 0..5 {
            let reply = visit(&mut fixture.client());
            assert_eq!((reply.status, reply.field("retry-after")), (503, Some("1")));
        }
        assert_eq!(fixture.client().get("/").text(), "static");
        redis.start_again();
        recovers(&fixture);
        fixture.stop();
    }
}

#[test]
fn a_silent_redis_delays_no_client_for_long() {
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
    // The event loop continues: this request is answered, and none of the waiting ones is.
    assert_eq!(fixture.client().get("/").text(), "static");
    for client in &waiting {
        client.socket().set_nonblocking(true).unwrap();
        let early = client.socket().peek(&mut [0]).map_err(|error| error.kind());
        client.socket().set_nonblocking(false).unwrap();
        // On a very busy machine the timeout of these requests may be over by now.
        assert!(early == Err(ErrorKind::WouldBlock) || start.elapsed() > Duration::from_secs(4));
    }
    // One of the clients disconnects while it waits.
    waiting.pop();
    for client in &mut waiting {
        assert_eq!(client.reply().status, 503);
    }
    redis.pause(false);
    recovers(&fixture);
    fixture.stop();
}

#[test]
fn an_error_of_redis_is_reported_and_ends_when_redis_recovers() {
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
            // Connections that are logged in stay logged in; a new connection is refused.
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
