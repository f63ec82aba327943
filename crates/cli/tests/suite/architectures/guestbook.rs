//! The guestbook in every architecture: on a file that several processes share, and on a real Redis.

use super::{ALL, CONCURRENT, in_each, serve, site, stop};
use pollux_testkit::{
    Port,
    guestbook::{counts_each_visit_once, is_a_guestbook, visit, visitor},
    redis::Redis,
    serve::Serve,
};
use rustix::process::Signal;
use std::{
    fs,
    os::unix::fs::PermissionsExt,
    process::Command,
    thread,
    time::{Duration, Instant},
};

/// Checks the behaviour that every store and every architecture must have.
fn has_a_guestbook(server: &Serve) {
    is_a_guestbook(&|| server.client(), "hello");
    counts_each_visit_once(&|| server.client(), 6, 4);
}

#[test]
fn every_architecture_has_a_guestbook_in_a_file() {
    let site = site(0);
    in_each(&ALL, |architecture| {
        let store = format!("file:{}", site.path().join(format!("book-{architecture}")).display());
        let server = serve(site.path(), architecture, &["--guestbook", "--store", &store]);
        has_a_guestbook(&server);
        stop(server);
    });
}

/// A process opens the file once, whichever worker serves a client.
#[test]
fn all_workers_have_the_file() {
    let site = site(0);
    let store = format!("file:{}", site.path().join("book").display());
    let arguments = ["--guestbook", "--store", &store, "--workers", "3"];
    let server = serve(site.path(), "event", &arguments);
    has_a_guestbook(&server);
    // More connections than a fair distribution would give to one worker.
    let mut clients: Vec<_> = (0..24).map(|_| server.client()).collect();
    let first = visitor(&visit(&mut clients[0]));
    for (number, client) in clients.iter_mut().enumerate() {
        assert_eq!(visitor(&visit(client)), first + 1 + number as u64);
    }
    stop(server);
}

/// Servers of several architectures share one file, and none of them loses or repeats a visit.
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
            has_a_guestbook(&server);
            stop(server);
        }
    });
}

/// A worker of a pool keeps its connection to the store from client to client, in whichever way it
/// waits for the next client. If the store has closed the connection in the meantime, the worker
/// notices that before its next query.
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
        // All clients but this one are disconnected.
        assert_eq!(
            redis.command("CLIENT KILL TYPE normal SKIPME yes"),
            ":1",
            "{architecture}, {way}"
        );
        let page = visit(&mut server.client());
        assert_eq!(page.status, 200, "{architecture}, {way}: {}", page.text());
        // An outage of the store is reported soon.
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
    let nobody = Port::reserve();
    in_each(&CONCURRENT, |architecture| {
        let store = format!("redis://{}/0", nobody.address());
        let server = serve(site.path(), architecture, &["--guestbook", "--store", &store]);
        let reply = visit(&mut server.client());
        assert_eq!((reply.status, reply.field("retry-after")), (503, Some("1")), "{architecture}");
        assert_eq!(server.client().get("/").text(), "hello");
        stop(server);
    });
}

/// An outage is logged once, and its end once, however many requests fail.
///
/// Regression: each process logged the outage; with `forking` there is a process for every connection.
#[test]
fn an_outage_of_the_store_is_logged_once() {
    let site = site(0);
    let nobody = Port::reserve();
    for architecture in ["event", "threaded", "forking", "preforked"] {
        let store = format!("redis://{}/0", nobody.address());
        let server = serve(site.path(), architecture, &["--guestbook", "--store", &store]);
        for _ in 0..100 {
            assert_eq!(visit(&mut server.client()).status, 503);
        }
        let stderr = server.stderr_text();
        let lines = stderr.lines().filter(|line| line.contains("the guestbook's store")).count();
        assert_eq!(lines, 1, "{architecture}: {stderr}");
        stop(server);
    }
}

/// Changing or removing the template while the server runs breaks nothing.
#[test]
fn the_template_is_read_at_the_start() {
    let site = site(0);
    in_each(&["threaded", "forking", "preforked"], |architecture| {
        let template = site.path().join(format!("template-{architecture}"));
        fs::write(&template, "visitor number $VISITOR_COUNT$. $GUEST_REMARKS$").unwrap();
        let store = format!("file:{}", site.path().join(format!("t-{architecture}")).display());
        let template_text = template.to_str().unwrap();
        let server = serve(
            site.path(),
            architecture,
            &["--guestbook", "--store", &store, "--guestbook-template", template_text],
        );
        fs::remove_file(&template).unwrap();
        assert_eq!(server.client().get("/").text(), "hello", "{architecture}");
        assert_eq!(visitor(&visit(&mut server.client())), 1, "{architecture}");
        stop(server);
    });
}

/// With a connection to Redis for each request, there is a descriptor for each of these connections.
#[test]
fn as_many_clients_as_have_descriptors_have_connections_to_redis() {
    const CLIENTS: usize = 400;
    let site = site(0);
    let Some(redis) = Redis::start(&[]) else { return };
    let store = format!("redis://127.0.0.1:{}/0", redis.port);
    let arguments = ["--guestbook", "--store", &store, "--store-connections", "per-request"];
    let server = Serve::start_limited(600, super::BINARY, site.path(), &arguments);
    redis.pause(true);
    let mut clients: Vec<_> = (0..CLIENTS).map(|_| server.client()).collect();
    for client in &mut clients {
        client.send("GET /guestbook HTTP/1.1\r\nHost: test\r\n\r\n");
    }
    // By now, the clients that are served normally have their connections to Redis; the other clients
    // wait in the queue.
    thread::sleep(Duration::from_millis(300));
    redis.pause(false);
    for mut client in clients {
        assert_eq!(client.reply().status, 200);
    }
    stop(server);
}

/// A server that was suspended sends the reply that arrived in the meantime, although the store's
/// timeout is over.
#[test]
fn an_answer_that_has_come_is_given_although_it_is_late() {
    in_each(&["epoll-et", "poll", "threaded"], |how| {
        let site = site(0);
        let Some(redis) = Redis::start(&[]) else { return };
        let store = format!("redis://127.0.0.1:{}/0", redis.port);
        let mut arguments = vec!["--guestbook", "--store", &store];
        let architecture = if how == "threaded" { how } else { "event" };
        if architecture == "event" {
            arguments.extend(["--mechanism", how]);
        }
        let server = serve(site.path(), architecture, &arguments);
        let mut client = server.client();
        assert_eq!(visit(&mut client).status, 200);
        redis.pause(true);
        let requested_at = Instant::now();
        client.send(
            "POST /guestbook HTTP/1.1\r\nHost: test\r\nContent-Length: 18\r\n\
             Content-Type: application/x-www-form-urlencoded\r\n\r\nguest-remarks=late",
        );
        redis.wait_until_request_pending();
        server.freeze();
        // On a very busy machine this takes longer than a store may be silent (5 s): the server has given up then, and no
        // reply will arrive.
        if requested_at.elapsed() > Duration::from_secs(4) {
            eprintln!("skipped: {how}: it took {:?} to suspend the server", requested_at.elapsed());
            redis.pause(false);
            server.signal(Signal::CONT);
            stop(server);
            return;
        }
        redis.pause(false);
        redis.wait_until_reply_pending();
        // Longer than a store may be silent (5 s).
        thread::sleep(Duration::from_secs(6));
        server.signal(Signal::CONT);
        let status = client.reply_to("POST").status;
        assert_eq!(status, 303, "{how}");
        stop(server);
    });
}

/// A server with a guestbook and nothing else, which needs no preparation.
#[test]
fn a_guestbook_needs_no_directory() {
    let state = tempfile::tempdir().unwrap();
    in_each(&["event", "preforked", "iterative"], |architecture| {
        let mut command = Command::new(super::BINARY);
        command.env("XDG_STATE_HOME", state.path().join(architecture));
        command.args(["serve", "--architecture", architecture, "--json"]);
        command.args(["--listen", "127.0.0.1:0", "--guestbook"]);
        let server = Serve::start_command(command);
        let page = visit(&mut server.client());
        assert_eq!((page.status, visitor(&page)), (200, 1), "{architecture}: {}", page.text());
        assert_eq!(server.client().get("/").status, 404, "{architecture}");
        let directory = fs::metadata(state.path().join(architecture).join("pollux")).unwrap();
        assert_eq!(directory.permissions().mode() & 0o777, 0o700);
        stop(server);
    });
}
