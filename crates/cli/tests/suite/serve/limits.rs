//! Exhausted connections and descriptors, and the memory of an idle connection.

use super::{BINARY, INDEX, assert_serves, serve, site};
use pollux_http::proxy_protocol::{Header, Version, write};
use pollux_testkit::{
    growth_within, http::Client, pairs::poll_within, serve::Serve, with_descriptors,
};
use rustix::event::PollFlags;
use std::{
    net::{Ipv4Addr, SocketAddr},
    thread,
    time::Duration,
};

/// Waits until the server's clock, whose ticks are 100 ms long, has a later time for all workers, so that
/// they tell an earlier use of a connection from a later one and have marked quiet connections as idle.
fn let_ticks_pass(ticks: u32) {
    thread::sleep(Duration::from_millis(100) * ticks + Duration::from_millis(50));
}

/// Opens more connections than the server accepts, and checks that it continues to serve its
/// connections, accepts no others, and accepts again when connections end.
fn flood(mut server: Serve, connections: usize, held: std::ops::RangeInclusive<u64>) {
    let mut clients: Vec<Client> = (0..connections).map(|_| server.client()).collect();
    server.wait_until("accepting to stop", |s| s["accept_pauses"].as_u64() > Some(0));
    let open = server.statistics()["connections"]["open"].as_u64().unwrap();
    assert!(held.contains(&open), "{open} connections are held");
    // Connections are accepted in the order in which they were made.
    assert_eq!(clients[0].get("/").text(), INDEX);
    let waits = || server.statistics()["waits"].as_u64().unwrap();
    let spun = growth_within(Duration::from_millis(300), waits);
    assert!(spun < 20, "{spun} waits while nothing could be accepted: a busy loop");
    let stderr = server.stderr_text();
    assert_eq!(stderr.matches("accepting stops at 20 connections").count(), 1, "{stderr}");
    // When a connection ends, the server accepts another one.
    let last = clients.len() - 1;
    clients[last].send("GET / HTTP/1.1\r\nHost: test\r\n\r\n");
    while clients.len() > 1 {
        clients.remove(0);
    }
    assert_eq!(clients[0].reply().text(), INDEX);
    drop(clients);
    server.wait_until("all to be gone", |s| s["connections"]["open"] == 0);
    let (status, last) = server.stop();
    assert!(status.success());
    assert_eq!(last["connections"]["accepted"], connections, "{last}");
}

#[test]
fn above_the_connection_limit_the_others_wait_their_turn() {
    for mechanism in ["epoll-et", "epoll", "poll"] {
        let site = site(0);
        let arguments =
            ["--max-connections", "20", "--mechanism", mechanism, "--header-timeout", "300s"];
        flood(serve(site.path(), &arguments), 70, 20..=20);
    }
}

#[test]
fn without_descriptors_it_keeps_serving_those_it_has() {
    for mechanism in ["epoll-et", "epoll"] {
        let site = site(0);
        let arguments =
            ["--max-connections", "1000", "--mechanism", mechanism, "--header-timeout", "300s"];
        let server = Serve::start_limited(64, BINARY, site.path(), &arguments);
        // The file must be in the cache: without a descriptor no file can be opened.
        assert_serves(&server);
        let mut clients: Vec<Client> = (0..90).map(|_| server.client()).collect();
        let mut server = server;
        server.wait_until("accepting to stop", |s| s["accept_pauses"].as_u64() > Some(0));
        let reply = clients[0].get("/");
        assert!(
            (reply.status, reply.text().as_str()) == (200, INDEX) || reply.status == 503,
            "{reply:?}"
        );
        clients[89].send("GET / HTTP/1.1\r\nHost: test\r\n\r\n");
        clients.drain(..60);
        let stderr = server.stderr_text();
        assert_eq!(stderr.matches("accepting stops at").count(), 1, "{stderr}");
        assert!(stderr.contains("Too many open files"), "{stderr}");
        let last = clients.len() - 1;
        assert_eq!(clients[last].reply().text(), INDEX);
        assert_serves(&server);
        assert!(server.stop().0.success());
    }
}

#[test]
fn select_takes_as_many_as_it_can_and_the_others_wait() {
    if let Err(reason) = with_descriptors(1_300) {
        eprintln!("skipped: {reason}");
        return;
    }
    let site = site(0);
    let arguments = ["--mechanism", "select", "--header-timeout", "300s"];
    let mut server = serve(site.path(), &arguments);
    let clients: Vec<Client> = (0..1_200).map(|_| server.client()).collect();
    let count = |s: &serde_json::Value, name: &str| s["connections"][name].as_u64().unwrap();
    let full = server.wait_until("as many as fit to be there", |s| count(s, "open") > 900);
    assert!(count(&full, "open") <= 1_024 && count(&full, "refused") == 0, "{full}");
    drop(clients);
    let end = server.wait_until("those that waited to have come, and all to be gone", |s| {
        count(s, "accepted") == 1_200 && count(s, "open") == 0
    });
    assert_eq!(count(&end, "refused"), 0, "{end}");
    assert_serves(&server);
}

/// When a stop arrives, the server holds one accepted connection back, because it has no small enough
/// descriptor number. An idle connection makes room, so that all waiting clients are served, at each
/// listener.
#[test]
fn at_a_stop_select_serves_waiting_clients() {
    if let Err(reason) = with_descriptors(1_300) {
        eprintln!("skipped: {reason}");
        return;
    }
    let site = site(0);
    let arguments = ["--mechanism", "select", "--listen", "127.0.0.1:0", "--keep-alive", "300s"];
    let mut server = serve(site.path(), &arguments);
    let clients: Vec<Client> = (0..1_050).map(|_| server.client()).collect();
    server.wait_until("accepting to stop", |s| s["accept_pauses"].as_u64() > Some(0));
    let second = server.listening()["addresses"][1].as_str().unwrap();
    let mut late = vec![server.client(), Client::connect(second)];
    for client in &mut late {
        client.send("GET / HTTP/1.1\r\nHost: test\r\n\r\n");
    }
    server.signal(rustix::process::Signal::TERM);
    for client in &mut late {
        assert_eq!(client.reply().text(), INDEX);
    }
    drop((clients, late));
    assert!(server.wait().0.success());
}

#[test]
fn an_idle_connection_costs_at_most_64_bytes() {
    const IDLE: usize = 10_000;
    if let Err(reason) = with_descriptors(IDLE as u64 + 1_000) {
        eprintln!("skipped: {reason}");
        return;
    }
    let site = site(0);
    let arguments = ["--mechanism", "epoll-et", "--keep-alive", "300s"];
    let mut server = serve(site.path(), &arguments);
    let keep_alive = || {
        let mut client = server.client();
        assert_eq!(client.get("/").text(), INDEX);
        client
    };
    // These connections make the server allocate all memory that it allocates only once.
    drop((0..200).map(|_| keep_alive()).collect::<Vec<_>>());
    let before = server.resident_bytes();
    let clients: Vec<Client> = (0..IDLE).map(|_| keep_alive()).collect();
    let growth = server.resident_bytes().saturating_sub(before);
    let open = server.statistics()["connections"]["open"].as_u64().unwrap();
    assert_eq!(open, IDLE as u64);
    let each = growth as f64 / IDLE as f64;
    eprintln!("{each:.1} bytes of user memory for each of {IDLE} idle keep-alive connections");
    assert!(each <= 64.0, "{each:.1} bytes for each of {IDLE} idle connections");
    drop(clients);
}

/// Without eviction, ten clients that do nothing would exclude all others for the keep-alive time.
#[test]
fn idle_connections_give_way_at_the_limit_unless_that_is_off() {
    for mechanism in ["epoll-et", "epoll", "poll"] {
        let site = site(0);
        let arguments = ["--max-connections", "10", "--mechanism", mechanism];
        let mut server = serve(site.path(), &arguments);
        let mut idle: Vec<Client> = (0..10).map(|_| server.client()).collect();
        for client in &mut idle {
            assert_eq!(client.get("/").text(), INDEX);
        }
        // The second connection is not used again in a later tick, so it is the one that has been idle
        // longest.
        let_ticks_pass(2);
        for (_, client) in idle.iter_mut().enumerate().filter(|(index, _)| *index != 1) {
            assert_eq!(client.get("/").text(), INDEX);
        }
        assert_serves(&server);
        assert!(idle.remove(1).is_closed(), "{mechanism}: the longest idle one stays");
        assert_eq!(idle[0].get("/").text(), INDEX, "{mechanism}");
        let counts = server.statistics()["connections"].clone();
        assert_eq!(counts["evicted"], 1, "{counts}");
    }
    let site = site(0);
    let mut server = serve(site.path(), &["--max-connections", "2", "--idle-eviction", "off"]);
    let mut idle: Vec<Client> = (0..2).map(|_| server.client()).collect();
    for client in &mut idle {
        assert_eq!(client.get("/").text(), INDEX);
    }
    let mut late = server.client();
    late.send("GET / HTTP/1.1\r\nHost: test\r\n\r\n");
    server.wait_until("accepting to stop", |s| s["accept_pauses"].as_u64() > Some(0));
    assert_eq!(idle[0].get("/").text(), INDEX);
    idle.pop();
    assert_eq!(late.reply().text(), INDEX);
    assert_eq!(server.statistics()["connections"]["evicted"], 0);
}

/// Regression: a keep-alive time of 90 years counted as none, and idle connections never gave way.
#[test]
fn idle_connections_give_way_however_long_they_may_stay() {
    let site = site(0);
    let mut server = serve(site.path(), &["--max-connections", "2", "--keep-alive", "90y"]);
    let mut idle: Vec<Client> = (0..2).map(|_| server.client()).collect();
    for client in &mut idle {
        assert_eq!(client.get("/").text(), INDEX);
    }
    assert_serves(&server);
    assert_eq!(server.statistics()["connections"]["evicted"], 1);
}

/// Regression: at the limit of the mechanism idle connections stayed, and new clients waited for the keep-alive time.
#[test]
fn idle_connections_give_way_at_the_limit_of_select() {
    const CLIENTS: usize = 200;
    let site = site(0);
    let mut server = serve(site.path(), &["--mechanism", "select:descriptors=128"]);
    let clients: Vec<Client> = (0..CLIENTS)
        .map(|_| {
            let mut client = server.client();
            assert_eq!(client.get("/").text(), INDEX);
            client
        })
        .collect();
    let counts = server.statistics()["connections"].clone();
    let count = |name: &str| counts[name].as_u64().unwrap() as usize;
    assert_eq!((count("accepted"), count("refused")), (CLIENTS, 0), "{counts}");
    assert!(count("open") < 128 && count("evicted") == CLIENTS - count("open"), "{counts}");
    drop(clients);
}

/// In a pool each worker has one connection, and so has each process or thread that is started for a
/// connection.
#[test]
fn idle_connections_give_way_in_blocking_architectures() {
    const UNITS: usize = 4;
    for (architecture, limit, accept) in [
        ("prethreaded", "--pool", None),
        ("prethreaded", "--pool", Some("exclusive")),
        ("prethreaded", "--pool", Some("mutex")),
        ("preforked", "--pool", None),
        ("preforked", "--pool", Some("mutex")),
        ("threaded", "--max-connections", None),
        ("forking", "--max-connections", None),
    ] {
        let what = format!("{architecture}, {accept:?}");
        let site = site(0);
        let units = UNITS.to_string();
        let mut arguments = vec!["--architecture", architecture, limit, &units];
        arguments.extend(accept.iter().flat_map(|way| ["--accept", way]));
        let mut server = serve(site.path(), &arguments);
        let mut idle: Vec<Client> = (0..UNITS).map(|_| server.client()).collect();
        for client in &mut idle {
            assert_eq!(client.get("/").text(), INDEX, "{what}");
        }
        let_ticks_pass(2);
        for (_, client) in idle.iter_mut().enumerate().filter(|(index, _)| *index != 1) {
            assert_eq!(client.get("/").text(), INDEX, "{what}");
        }
        // The keep-alive time is far longer than a client waits.
        let mut late = server.client();
        assert_eq!(late.get("/").text(), INDEX, "{what}");
        assert!(idle.remove(1).is_closed(), "{what}: the longest idle one stays");
        assert_eq!(idle[0].get("/").text(), INDEX, "{what}");
        server
            .wait_until(&format!("one to give way: {what}"), |s| s["connections"]["evicted"] == 1);
        // All remaining idle connections give way one after another, and each only to a client that is
        // waiting. Before that, their workers have noticed that they are idle.
        let_ticks_pass(2);
        let mut more: Vec<Client> = (0..UNITS).map(|_| server.client()).collect();
        for client in &mut more {
            assert_eq!(client.get("/").text(), INDEX, "{what}");
        }
        assert!(late.is_closed(), "{what}");
        assert_eq!(server.statistics()["connections"]["evicted"], 1 + UNITS, "{what}");
    }
}

/// The maximum number of connections in the tests of addresses.
const ROOM: &str = "12";

/// Tests a server that has room for [`ROOM`] connections, which one client fills: new clients evict
/// its idle connections, and not those of an earlier client. `connect` opens a connection of the
/// client with this number, and sends a request.
fn many_of_one_client_give_way(
    mut server: Serve,
    what: &[&str],
    connect: impl Fn(&Serve, u8) -> Client,
) {
    let mut older: Vec<Client> = (0..2).map(|_| connect(&server, 3)).collect();
    let_ticks_pass(2);
    let mut many: Vec<Client> = (0..10).map(|_| connect(&server, 2)).collect();
    // After this time each worker has marked its connection as idle. The workers do so in any order.
    let_ticks_pass(5);
    let mut new: Vec<Client> = (4..6).map(|client| connect(&server, client)).collect();
    for client in older.iter_mut().chain(&mut new) {
        assert_eq!(client.get("/").text(), INDEX, "{what:?}");
    }
    let evicted = format!("two to give way: {what:?}");
    server.wait_until(&evicted, |s| s["connections"]["evicted"] == 2);
    if !what.contains(&"--architecture") {
        assert!(many[..2].iter_mut().all(Client::is_closed), "{what:?}");
    }
}

/// The idle connections of a client that opens many connections are evicted first, and not those of
/// earlier clients.
#[test]
fn the_address_that_holds_most_idle_connections_gives_way_first() {
    for arguments in [
        &["--max-connections", ROOM][..],
        &["--max-connections", ROOM, "--mechanism", "poll"],
        &["--architecture", "prethreaded", "--pool", ROOM],
        &["--architecture", "prethreaded", "--pool", ROOM, "--accept", "exclusive"],
        &["--architecture", "preforked", "--pool", ROOM],
        &["--architecture", "threaded", "--max-connections", ROOM],
        &["--architecture", "forking", "--max-connections", ROOM],
    ] {
        let site = site(0);
        many_of_one_client_give_way(serve(site.path(), arguments), arguments, |server, host| {
            let source = Ipv4Addr::new(127, 0, 0, host).into();
            let mut client = Client::connect_from(source, server.address());
            assert_eq!(client.get("/").text(), INDEX, "{arguments:?}");
            client
        });
    }
}

/// Behind a balancer all connections have its address, so the address in the PROXY protocol header
/// counts.
#[test]
fn behind_a_balancer_the_client_that_holds_most_idle_connections_gives_way_first() {
    for arguments in [
        &["--max-connections", ROOM][..],
        &["--max-connections", ROOM, "--mechanism", "poll"],
        &["--architecture", "prethreaded", "--pool", ROOM],
        &["--architecture", "preforked", "--pool", ROOM],
        &["--architecture", "threaded", "--max-connections", ROOM],
        &["--architecture", "forking", "--max-connections", ROOM],
    ] {
        for version in [Version::V1, Version::V2] {
            let site = site(0);
            let arguments = [arguments, &["--proxy-protocol", "127.0.0.1"]].concat();
            let server = serve(site.path(), &arguments);
            many_of_one_client_give_way(server, &arguments, |server, host| {
                let source = SocketAddr::new(Ipv4Addr::new(192, 0, 2, host).into(), 1234);
                let mut header = Vec::new();
                write(&mut header, version, Header::Proxied { source, destination: source });
                let mut client = server.client();
                client.send(&header);
                assert_eq!(client.get("/").text(), INDEX, "{arguments:?}");
                client
            });
        }
    }
}

/// If there are more idle connections than addresses that the server reads, a random sample shows
/// which address has most of them.
#[test]
fn a_sample_shows_the_address_that_holds_most_idle_connections() {
    const LIMIT: usize = 400;
    let site = site(0);
    let mut server = serve(site.path(), &["--max-connections", "400", "--keep-alive", "300s"]);
    let connect = |host: u8| {
        let source = Ipv4Addr::new(127, 0, 0, host).into();
        let mut client = Client::connect_from(source, server.address());
        assert_eq!(client.get("/").text(), INDEX);
        client
    };
    let mut older: Vec<Client> = (0..LIMIT / 4).map(|_| connect(3)).collect();
    let_ticks_pass(2);
    let _many: Vec<Client> = (0..LIMIT * 3 / 4).map(|_| connect(2)).collect();
    let_ticks_pass(2);
    // More new clients than one look at the table finds candidates for.
    let _new: Vec<Client> = (10..50).map(connect).collect();
    for client in &mut older {
        assert_eq!(client.get("/").text(), INDEX);
    }
    assert_eq!(server.statistics()["connections"]["evicted"], 40);
}

/// With SO_REUSEPORT a waiting connection belongs to one worker, so the client of this worker gives
/// way.
#[test]
fn a_unit_with_its_own_listener_gives_way_itself() {
    let site = site(0);
    let arguments = ["--architecture", "prethreaded", "--pool", "1", "--accept", "reuseport"];
    let server = serve(site.path(), &arguments);
    let mut idle = server.client();
    assert_eq!(idle.get("/").text(), INDEX);
    assert_eq!(server.client().get("/").text(), INDEX);
    assert!(idle.is_closed());
}

#[test]
fn a_pool_without_eviction_has_new_clients_wait() {
    let site = site(0);
    let arguments = ["--architecture", "prethreaded", "--pool", "1", "--idle-eviction", "off"];
    let mut server = serve(site.path(), &arguments);
    let mut idle = server.client();
    assert_eq!(idle.get("/").text(), INDEX);
    let mut late = server.client();
    late.send("GET / HTTP/1.1\r\nHost: test\r\n\r\n");
    let answered = poll_within(late.socket(), PollFlags::IN, Duration::from_millis(300));
    assert!(answered.is_empty(), "the only worker is not free");
    assert_eq!(idle.get("/").text(), INDEX);
    drop(idle);
    assert_eq!(late.reply().text(), INDEX);
    assert_eq!(server.statistics()["connections"]["evicted"], 0);
}
