//! Upgrades from HTTP to another protocol, after which bytes are forwarded in both directions.

use super::*;
use pollux_server::stats::Counter;
use pollux_testkit::{growth_within, origin::Origin};
use std::io::{Read, Write};

const UPGRADE_REQUEST: &str = "GET /chat HTTP/1.1\r\nHost: t\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: x\r\n\r\n";
const SWITCHED: &str =
    "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n";

/// Starts an origin that switches protocols, sends a greeting, and echoes.
fn echoing() -> Origin {
    Origin::start(|request| {
        assert_eq!(request.field("upgrade"), Some("websocket"));
        assert_eq!(request.field("connection"), Some("upgrade"));
        request.say(format!("{SWITCHED}welcome"));
        let mut buffer = [0; 4096];
        while let Ok(received @ 1..) = request.reader().read(&mut buffer) {
            if !request.say(&buffer[..received]) {
                break;
            }
        }
        false
    })
}

fn expect(client: &mut Client, wanted: &[u8]) {
    let mut got = vec![0; wanted.len()];
    client.socket().read_exact(&mut got).unwrap();
    assert_eq!(String::from_utf8_lossy(&got), String::from_utf8_lossy(wanted));
}

/// Reads the head of the 101 response byte by byte, so that no byte after it is lost.
fn switched(client: &mut Client) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        client.socket().read_exact(&mut byte).unwrap();
        head.push(byte[0]);
    }
    String::from_utf8(head).unwrap()
}

#[test]
fn an_upgrade_is_a_tunnel() {
    on_every_engine(|engine| {
        let origin = echoing();
        let fixture = Fixture::new(&[&origin.url()], |config, _| serve_with(config, engine));
        let mut client = fixture.client();
        client.send(format!("{UPGRADE_REQUEST}early"));
        let head = switched(&mut client);
        assert!(head.starts_with("HTTP/1.1 101 "), "{engine}: {head}");
        assert!(
            head.contains("Upgrade: websocket\r\n") && head.contains("Connection: upgrade\r\n")
        );
        expect(&mut client, b"welcomeearly");
        for _ in 0..3 {
            client.socket().write_all(b"ping").unwrap();
            expect(&mut client, b"ping");
        }
        client.socket().shutdown(std::net::Shutdown::Write).unwrap();
        assert!(client.is_closed(), "{engine}");
        wait_until("the end of the tunnel at the origin", || origin.ended() == 1);
        // The tunnel did not count as one of the connections to origins that are limited or kept.
        assert_eq!(fixture.get("/file").text(), "of the site", "{engine}");
        fixture.stop();
    });
}

/// Regression: the last bytes of an origin were lost if it closed its connection while the client sent more.
#[test]
fn what_an_origin_sends_last_reaches_the_client() {
    on_every_engine(|engine| {
        let origin = Origin::start(|request| {
            request.say(SWITCHED);
            let _ = request.reader().read_exact(&mut [0; 10]);
            // The rest is unread, so the connection is reset.
            request.say("goodbye");
            false
        });
        let fixture = Fixture::new(&[&origin.url()], |config, _| serve_with(config, engine));
        // Whether the last bytes were lost depended on the moment, and mostly they were. On a busy machine the
        // reset may overtake them on their way, and then they cannot be read.
        let arrivals = (0..30).filter(|_| {
            let mut client = fixture.client();
            client.send(UPGRADE_REQUEST);
            switched(&mut client);
            let mut stream = client.socket().try_clone().unwrap();
            // The last writes fail, because the tunnel has ended.
            let sending = thread::spawn(move || drop(stream.write_all(&vec![b'x'; 400_000])));
            let got = client.read_to_end_or_reset();
            sending.join().unwrap();
            got == b"goodbye"
        });
        let arrivals = arrivals.count();
        assert!(arrivals >= 20, "{engine}: {arrivals} of 30");
        fixture.stop();
    });
}

/// Starts an origin that sends `head`, and then as much as is taken. When nothing is taken any more, it resets
/// the connection.
fn flooding(head: &'static str) -> Origin {
    Origin::start(move |request| {
        request.say(head);
        // A write that has to wait so long shows that all buffers are full.
        request.socket().set_write_timeout(Some(Duration::from_millis(300))).unwrap();
        while request.say([b'x'; 1 << 16]) {}
        request.reset();
        false
    })
}

/// Regression: with a level-triggered mechanism, a reset of the origin woke the worker without end while the
/// client did not read.
#[test]
fn a_reset_causes_no_busy_loop_while_the_client_does_not_read() {
    on_every_engine(|engine| {
        for head in ["HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n", SWITCHED] {
            let origin = flooding(head);
            let fixture = Fixture::new(&[&origin.url()], |config, _| serve_with(config, engine));
            let mut client = fixture.client();
            client.send(UPGRADE_REQUEST);
            wait_until("the reset", || origin.ended() == 1);
            let waits = || fixture.server.statistics().count(Counter::Waits);
            let spun = growth_within(Duration::from_millis(300), waits);
            assert!(spun < 100, "{engine}: {spun} waits: a busy loop");
            // What arrived before the reset is forwarded.
            let got = client.read_to_end_or_reset();
            assert!(got.len() > 1 << 16, "{engine}: {} bytes", got.len());
            fixture.stop();
        }
    });
}

#[test]
fn an_upgrade_may_be_declined() {
    let origin = Origin::start(|request| request.ok("no"));
    let fixture = Fixture::before(&origin.url());
    let mut client = fixture.client();
    client.send(UPGRADE_REQUEST);
    assert_eq!(client.reply().text(), "no");
    assert_eq!(client.get("/").text(), "no");
    fixture.stop();
}

/// RFC 9110 §15.5.22: a 426 names the protocols. Regression: `Upgrade` was never passed on.
#[test]
fn a_426_names_the_protocols_to_which_a_client_can_switch() {
    for (protocols, expected) in [
        ("websocket", Some("websocket")),
        ("h2c, websocket, TLS/1.0, echo/1", Some("websocket, echo/1")),
        ("HTTP/2.0", None),
    ] {
        let origin = Origin::start(move |request| {
            request.say(format!(
                "HTTP/1.1 426 Upgrade Required\r\nUpgrade: {protocols}\r\nConnection: upgrade\r\n\
                 Content-Length: 2\r\n\r\nno"
            ))
        });
        let fixture = Fixture::before(&origin.url());
        let mut client = fixture.client();
        for _ in 0..2 {
            let reply = client.get("/");
            assert_eq!((reply.status, &*reply.text()), (426, "no"), "{protocols}");
            assert_eq!(reply.field("upgrade"), expected, "{protocols}");
            assert_eq!(reply.field("connection"), expected.map(|_| "upgrade"), "{protocols}");
        }
        fixture.stop();
    }
}

/// Regression: a tunnel was counted among the idle connections, which can be closed or handed over.
#[test]
fn a_tunnel_is_an_active_connection() {
    let origin = echoing();
    let fixture = Fixture::before(&origin.url());
    let mut client = fixture.client();
    client.send(UPGRADE_REQUEST);
    switched(&mut client);
    expect(&mut client, b"welcome");
    let busy = || fixture.server.statistics().count(Counter::Busy);
    // The first statistics follow the iteration that has made the tunnel.
    busy();
    assert_eq!(busy(), 1);
    drop(client);
    wait_until("the end of the tunnel", || busy() == 0);
    fixture.stop();
}

/// Returns whether a TCP connection of this machine with these ports has a timer for keep-alive probes, which
/// the kernel shows as 02.
fn is_probed(is_meant: impl Fn(u16, u16) -> bool) -> bool {
    let table = std::fs::read_to_string("/proc/thread-self/net/tcp").unwrap();
    table.lines().skip(1).any(|line| {
        let words: Vec<_> = line.split_whitespace().collect();
        let port = |index: usize| {
            let hex = words[index].rsplit(':').next()?;
            u16::from_str_radix(hex, 16).ok()
        };
        let ports = port(1).zip(port(2));
        ports.is_some_and(|(own, other)| is_meant(own, other)) && words[5].starts_with("02:")
    })
}

/// Regression: a tunnel stayed for ever if its client had vanished without closing its connection.
#[test]
fn the_peers_of_a_tunnel_are_probed() {
    let origin = echoing();
    let fixture = Fixture::before(&origin.url());
    let mut client = fixture.client();
    let (own, other) = (client.socket().local_addr().unwrap().port(), origin.address().port());
    let server = fixture.address().port();
    assert!(!is_probed(|near, far| (near, far) == (server, own)));
    client.send(UPGRADE_REQUEST);
    switched(&mut client);
    expect(&mut client, b"welcome");
    wait_until("the timer for the client", || is_probed(|near, far| (near, far) == (server, own)));
    wait_until("the timer for the origin", || is_probed(|_, far| far == other));
    drop(client);
    fixture.stop();
}
