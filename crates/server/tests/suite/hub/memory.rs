//! Clients that wait: what one costs in user memory beyond its connection, and how parked polls end.

use super::*;
use pollux_server::{
    config::{LogConfig, LogTarget},
    stats::Counter,
};
use pollux_testkit::{allocations::bytes_held, raise_descriptor_limit};

/// A power of two, since tables grow to such sizes.
const CLIENTS: usize = 2048;
/// The maximum for a stream and for a long poll, in bytes.
const MAX_BYTES: i64 = 64;

/// Opens connections that have been served once, and sends a request on each. Returns them when all of them wait, with
/// the number of bytes that the waiting of each takes.
fn waiting(hub: &Hub, fields: &str, counter: Counter) -> (Vec<TcpStream>, i64) {
    let before = hub.statistics().count(counter);
    let mut clients: Vec<_> =
        (0..CLIENTS).map(|_| TcpStream::connect(hub.address).unwrap()).collect();
    let mut buffer = vec![0; 4096];
    for client in &mut clients {
        client.write_all(b"GET /none HTTP/1.1\r\nHost: h\r\n\r\n").unwrap();
        assert!(client.read(&mut buffer).unwrap() > 0);
    }
    let request = format!("GET {PATH}?match=a HTTP/1.1\r\nHost: h\r\n{fields}\r\n");
    let held = bytes_held();
    for client in &mut clients {
        client.write_all(request.as_bytes()).unwrap();
    }
    let all = before + CLIENTS as u64;
    wait_until("all to wait", || hub.statistics().count(counter) == all);
    // They are parked within a few iterations, and each of these requests takes one.
    let mut other = hub.client();
    (0..10).for_each(|_| assert_eq!(other.get("/none").status, 404));
    (clients, (bytes_held() - held) / CLIENTS as i64)
}

#[test]
fn a_client_that_waits_costs_at_most_64_bytes() {
    pollux_testkit::alone!(a_client_that_waits_costs_at_most_64_bytes);
    raise_descriptor_limit();
    let costs = [("", Counter::Streams), ("Prefer: wait=50\r\n", Counter::HubPolls)];
    let costs = costs.map(|(field, counter)| {
        let cost = |_| {
            let hub = Hub::open();
            let id = hub.publish("a", "1");
            let fields = format!("{field}Last-Event-ID: {id}\r\n");
            // The buffers of the worker grow with the first ones, and as many more double the tables.
            let (_first, _) = waiting(&hub, &fields, counter);
            let (_second, bytes) = waiting(&hub, &fields, counter);
            bytes
        };
        // On a busy machine more of the second ones may arrive at once than of the first ones, and buffers grow again.
        (0..3).map(cost).min().unwrap()
    });
    println!("a stream, a poll: {costs:?} bytes");
    // Each has a slot among the subscribers: with less, nothing was measured.
    assert!(costs.iter().all(|bytes| (32..=MAX_BYTES).contains(bytes)), "{costs:?}");
}

/// One update answers many parked polls, and their connections continue.
#[test]
fn many_polls_get_one_update() {
    raise_descriptor_limit();
    let hub = Hub::open();
    let (clients, _) = waiting(&hub, "Prefer: wait=50\r\n", Counter::HubPolls);
    let id = hub.publish("a", "news");
    for client in clients {
        let mut client = Client::over(client);
        let reply = client.reply_to("GET");
        assert_eq!((reply.status, reply.text()), (200, format!("id: {id}\ndata: news\n\n")));
        // The connection continues.
        assert_eq!(client.get("/none").status, 404);
    }
    assert_eq!(hub.statistics().count(Counter::HubPolls), 0);
}

/// What a parked poll has in common with each exchange: requests behind it are answered after it, its response has the
/// fields of its request's page, it is logged, and a client that asks for the end of the connection gets it.
#[test]
fn a_parked_poll_ends_like_any_exchange() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("log");
    let hub = Hub::start(1, |config, hub| {
        config.log = LogConfig::clf(LogTarget::File(path.clone()));
        hub.cors = vec!["http://page.test".into()];
    });
    let mut client = hub.client();
    let poll = |wait: u32, fields: &str| {
        format!(
            "GET {PATH}?match=a&who=me HTTP/1.1\r\nHost: h\r\nPrefer: wait={wait}\r\n{fields}\r\n"
        )
    };
    let polls =
        |count| wait_until("it to wait", || hub.statistics().count(Counter::HubPolls) == count);
    client.send(poll(20, "Origin: http://page.test\r\n"));
    polls(1);
    client.send("GET /none HTTP/1.1\r\nHost: h\r\n\r\n");
    client.send(poll(1, "Connection: close\r\n"));
    wait_until("the requests behind it", || hub.statistics().count(Counter::Busy) == 1);
    polls(1);
    let id = hub.publish("a", "1");
    let reply = client.reply_to("GET");
    assert_eq!((reply.status, reply.text()), (200, format!("id: {id}\ndata: 1\n\n")));
    assert_eq!(reply.field("access-control-allow-origin"), Some("http://page.test"));
    assert_eq!(client.reply_to("GET").status, 404);
    let last = client.reply_to("GET");
    assert_eq!((last.status, last.field("connection")), (204, Some("close")));
    assert!(client.is_closed());
    polls(0);
    hub.server.stop(Duration::from_secs(5)).unwrap();
    let log = std::fs::read_to_string(&path).unwrap();
    let lines: Vec<_> =
        log.lines().filter(|line| line.contains("?match=a&who=me HTTP/1.1\"")).collect();
    assert_eq!(lines.len(), 2, "{log}");
    assert!(lines[0].contains("\" 200 ") && lines[1].contains("\" 204 "), "{log}");
}
