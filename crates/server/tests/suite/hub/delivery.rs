//! Updates reach the subscribers of their topics, in order, on every mechanism.

use super::*;
use pollux_server::stats::Counter;
use std::collections::HashSet;

#[test]
fn every_mechanism_delivers_to_many_from_many() {
    on_every_mechanism(|mechanism| {
        let hub = Hub::start(2, |config, _| config.mechanism = mechanism.clone());
        let mut all: Vec<_> =
            (0..30).map(|i| hub.subscribe(&format!("match=a&topic=own{i}"), &[])).collect();
        let mut publishers: Vec<_> = (0..3).map(|_| hub.client()).collect();
        for round in 0..20 {
            let publisher = &mut publishers[round % 3];
            let reply = post(publisher, &format!("topic=a&data={round}"), &[]);
            assert_eq!(reply.status, 200, "{mechanism:?}");
        }
        for (index, stream) in all.iter_mut().enumerate() {
            for round in 0..20 {
                assert_eq!(stream.data(), round.to_string(), "{mechanism:?}, subscriber {index}");
            }
        }
        hub.publish("own7", "mine");
        assert_eq!(all[7].data(), "mine", "{mechanism:?}");
        hub.publish("a", "last");
        assert_eq!(all[8].data(), "last", "{mechanism:?}");
    });
}

#[test]
fn a_subscriber_that_does_not_read_delays_no_other_and_catches_up() {
    on_every_mechanism(|mechanism| {
        let hub = Hub::start(1, |config, _| config.mechanism = mechanism.clone());
        let mut slow = hub.subscribe("match=a", &[]);
        let mut quick = hub.subscribe("match=a", &[]);
        let big = "x".repeat(100_000);
        // More than the kernel's buffers hold.
        for round in 0..100 {
            hub.publish("a", &format!("{round}-{big}"));
            assert!(quick.data().starts_with(&format!("{round}-")), "{mechanism:?}");
        }
        for round in 0..100 {
            assert_eq!(slow.data(), format!("{round}-{big}"), "{mechanism:?}");
        }
    });
}

#[test]
fn what_left_the_history_is_skipped_with_a_notice() {
    let hub = Hub::start(1, |_, hub| hub.limits.history_updates = 3);
    let mut slow = hub.subscribe("match=a", &[]);
    let big = "x".repeat(200_000);
    for round in 0..100 {
        hub.publish("a", &format!("{round}-{big}"));
    }
    let mut rounds = Vec::new();
    while rounds.last() != Some(&99) {
        let data = slow.data();
        let (round, content) = data.split_once('-').unwrap();
        assert_eq!(content, big);
        rounds.push(round.parse::<u32>().unwrap());
    }
    assert!(rounds.is_sorted() && rounds.len() < 100, "{rounds:?}");
    assert!(slow.comments.iter().any(|comment| comment.contains("skipped")));
}

#[test]
fn or_a_slow_subscriber_is_disconnected() {
    let hub = Hub::start(1, |_, hub| {
        hub.limits.history_updates = 3;
        hub.on_loss = pollux_hub::subscribers::OnLoss::Disconnect;
    });
    let mut slow = hub.subscribe("match=a", &[]);
    let big = "x".repeat(200_000);
    for round in 0..100 {
        hub.publish("a", &format!("{round}-{big}"));
    }
    let mut count = 0;
    while slow.event().is_some() {
        count += 1;
    }
    assert!(count < 100);
}

/// Regression: all requests that were ready were answered before anything was delivered. What they published beyond the
/// history was lost to subscribers that were never slow, of any topic.
#[test]
fn publishers_that_come_all_at_once_publish_to_all() {
    const PUBLISHERS: usize = 20;
    const EACH: usize = 200;
    let hub = Hub::start(1, |_, hub| {
        hub.limits.history_updates = 2 * EACH;
        hub.on_loss = pollux_hub::subscribers::OnLoss::Disconnect;
    });
    let mut quiet = hub.subscribe("match=quiet", &[]);
    let mut quick = hub.subscribe("match=a", &[]);
    let form = "topic=a&data=x";
    let request = format!(
        "POST {PATH} HTTP/1.1\r\nHost: hub.test\r\nContent-Length: {}\r\n\
         Content-Type: application/x-www-form-urlencoded\r\n\r\n{form}",
        form.len()
    );
    let requests = request.repeat(EACH);
    std::thread::scope(|scope| {
        for _ in 0..PUBLISHERS {
            let mut client = hub.client();
            let requests = &requests;
            scope.spawn(move || {
                client.send(requests);
                (0..EACH).for_each(|_| assert_eq!(client.reply_to("POST").status, 200));
            });
        }
        for number in 0..PUBLISHERS * EACH {
            assert!(quick.event().is_some(), "the stream has ended after {number} updates");
        }
    });
    hub.publish("quiet", "last");
    assert_eq!(quiet.data(), "last");
}

#[test]
fn a_reconnect_gets_what_was_missed_once_and_in_order() {
    let hub = Hub::open();
    let ids: Vec<_> = (0..10).map(|i| hub.publish("a", &i.to_string())).collect();
    let by_field = format!("Last-Event-ID: {}", ids[3]);
    let by_query = format!("match=a&last_event_id={}", ids[7].replace(':', "%3A"));
    let mut one = hub.subscribe("match=a", &[&by_field]);
    assert_eq!(one.field("last-event-id"), Some(ids[3].as_str()));
    assert_eq!(one.field("mercure-last-event-id"), Some(ids[3].as_str()));
    let mut two = hub.subscribe(&by_query, &[]);
    let mut both = hub.subscribe(&by_query, &[&by_field]);
    let mut all = hub.subscribe("match=a&lastEventID=earliest", &[]);
    assert_eq!(all.field("last-event-id"), Some("earliest"));
    let mut unknown = hub.subscribe("match=a", &["Last-Event-ID: nobody-knows"]);
    assert_eq!(unknown.field("last-event-id"), Some("earliest"));
    let mut draft = hub.subscribe(&by_query.replace("last_event_id", "lastEventID"), &[]);
    let mut polyfill = hub.subscribe(&format!("{by_query}&lastEventId={}", ids[8]), &[]);
    let fresh = hub.subscribe("match=a", &[]);
    assert_eq!(fresh.field("last-event-id"), None);
    // With an empty identifier the hub replays no update, but the response has the field.
    let mut empty = hub.subscribe("match=a&last_event_id=", &[]);
    assert_eq!(empty.field("mercure-last-event-id"), Some("earliest"));
    let mut empty_field = hub.subscribe(&by_query, &["Last-Event-ID: "]);
    assert_eq!(empty_field.field("mercure-last-event-id"), Some(ids[7].as_str()));
    hub.publish("a", "10");
    let expect = |stream: &mut Stream, from: usize| {
        for i in from..=10 {
            assert_eq!(stream.data(), i.to_string());
        }
    };
    expect(&mut one, 4);
    expect(&mut two, 8);
    expect(&mut both, 4);
    expect(&mut all, 0);
    expect(&mut unknown, 0);
    expect(&mut draft, 8);
    expect(&mut polyfill, 9);
    expect(&mut empty, 10);
    expect(&mut empty_field, 8);
}

/// Regression: the hub did not know the identifier of a client that encodes fields as Latin-1, as fetch() of Node.js and
/// requests of Python do, and repeated the whole history at each connection.
#[test]
fn an_identifier_may_be_encoded_as_utf_8_or_as_latin_1() {
    let hub = Hub::open();
    for id in ["%C3%A9t%C3%A9", "2"] {
        assert_eq!(hub.post(&format!("topic=a&id={id}&data={id}"), &[]).status, 200);
    }
    for id in ["\u{e9}t\u{e9}".as_bytes(), b"\xe9t\xe9"] {
        let mut client = hub.client();
        let head =
            format!("GET {PATH}?match=a HTTP/1.1\r\nHost: h\r\nPrefer: wait=0\r\nLast-Event-ID: ");
        client.send([head.as_bytes(), id, b"\r\n\r\n"].concat());
        assert_eq!(client.reply_to("GET").text(), "id: 2\ndata: 2\n\n", "{}", id.escape_ascii());
    }
}

/// Regression: the update of another topic with the same identifier counted, and the updates before it were lost.
#[test]
fn an_identifier_may_be_that_of_each_topic() {
    let hub = Hub::open();
    for (topic, id) in [("a", 1), ("a", 2), ("b", 1)] {
        assert_eq!(hub.post(&format!("topic={topic}&id={id}&data={topic}{id}"), &[]).status, 200);
    }
    for (query, missed) in [("match=a", Some("a2")), ("match=b", None), ("match=*", None)] {
        let fields = ["Last-Event-ID: 1", "Prefer: wait=0"];
        let reply = hub.request("GET", &format!("{PATH}?{query}"), &fields);
        assert_eq!(reply.field("mercure-last-event-id"), Some("1"));
        let expected = missed.map(|data| format!("id: 2\ndata: {data}\n\n")).unwrap_or_default();
        assert_eq!(reply.text(), expected, "{query}");
    }
}

/// Regression: a heartbeat ended a long poll before its time was over.
#[test]
fn a_long_poll_outlasts_heartbeats() {
    let hub = Hub::start(1, |_, hub| hub.heartbeat = Duration::from_secs(1));
    let _stream = hub.subscribe("match=a", &[]);
    let started_at = Instant::now();
    let reply = hub.request("GET", &format!("{PATH}?match=a"), &["Prefer: wait=4"]);
    assert_eq!(reply.status, 204);
    assert!(started_at.elapsed() >= Duration::from_millis(3500), "{:?}", started_at.elapsed());
}

#[test]
fn a_long_poll_answers_at_once_later_or_with_nothing() {
    let hub = Hub::open();
    let target = format!("{PATH}?match=a");
    let reply = hub.request("GET", &target, &["Prefer: wait=0"]);
    assert_eq!((reply.status, reply.field("mercure-last-event-id")), (204, Some("earliest")));
    let id = hub.publish("a", "1");
    let since = |id: &str, wait: u32| {
        let fields = [format!("Last-Event-ID: {id}"), format!("Prefer: wait={wait}")];
        hub.request("GET", &target, &[&fields[0], &fields[1]])
    };
    let reply = since("earliest", 10);
    assert_eq!((reply.status, reply.text()), (200, format!("id: {id}\ndata: 1\n\n")));
    assert_eq!(reply.field("content-type"), Some("text/event-stream"));
    std::thread::scope(|scope| {
        let poll = scope.spawn(|| since(&id, 20));
        wait_until("the long poll", || hub.statistics().count(Counter::HubPolls) == 1);
        hub.publish("b", "not this");
        let second = hub.publish("a", "2");
        assert_eq!(poll.join().unwrap().text(), format!("id: {second}\ndata: 2\n\n"));
        assert_eq!(since(&second, 1).status, 204);
    });
    // A client that disconnects while it waits does not disturb the next update.
    let mut gone = hub.client();
    gone.send(format!("GET {target} HTTP/1.1\r\nHost: h\r\nPrefer: wait=20\r\n\r\n"));
    wait_until("the long poll", || hub.statistics().count(Counter::HubPolls) == 1);
    drop(gone);
    wait_until("its end", || hub.statistics().count(Counter::HubPolls) == 0);
    hub.publish("a", "3");
}

/// Regression: after a response that did not fit into the socket, a level-triggered mechanism reported room at every
/// wait while the next request of the client waited.
#[test]
fn a_poll_behind_a_long_response_waits_quietly() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("long"), vec![b'x'; 16 << 20]).unwrap();
    on_every_mechanism(|mechanism| {
        // By its definition epoll2 is always registered for both directions, and each wait reports room.
        if matches!(&mechanism, MechanismChoice::Named(spec) if spec.name == "epoll2") {
            return;
        }
        let hub = Hub::start(1, |config, _| {
            config.mechanism = mechanism.clone();
            config.site.directory = Some(directory.path().to_owned());
        });
        let mut client = hub.client();
        client.send("GET /long HTTP/1.1\r\nHost: h\r\n\r\n");
        client.send(format!("GET {PATH}?match=a HTTP/1.1\r\nHost: h\r\nPrefer: wait=1\r\n\r\n"));
        assert_eq!(client.reply_to("GET").body.len(), 16 << 20);
        let waits = || hub.statistics().count(Counter::Waits);
        let before = waits();
        assert_eq!(client.reply_to("GET").status, 204);
        assert!(waits() - before < 200, "{mechanism:?}: {} waits", waits() - before);
    });
}

#[test]
fn an_http_1_0_client_gets_events_without_chunks() {
    let hub = Hub::open();
    let mut socket = TcpStream::connect(hub.address).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    write!(socket, "GET {PATH}?match=a HTTP/1.0\r\n\r\n").unwrap();
    let mut reader = BufReader::new(socket);
    let mut lines = Vec::new();
    let mut line = String::new();
    while reader.read_line(&mut line).unwrap() > 0 && line != ":\n" {
        lines.push(std::mem::take(&mut line));
    }
    assert!(!lines.iter().any(|line| line.starts_with("Transfer-Encoding")), "{lines:?}");
    let id = hub.publish("a", "old");
    let mut event = String::new();
    for _ in 0..3 {
        reader.read_line(&mut event).unwrap();
    }
    assert_eq!(event, format!("id: {id}\ndata: old\n\n"));
    // Regression: a stop ended the stream with a last chunk, although it has no chunks.
    let Hub { server, .. } = hub;
    server.stop(Duration::from_secs(5)).unwrap();
    let mut rest = String::new();
    reader.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "");
}

#[test]
fn heartbeats_come_and_a_stop_ends_streams_properly() {
    let hub = Hub::start(1, |_, hub| hub.heartbeat = Duration::from_secs(1));
    let mut stream = hub.subscribe("match=a", &[]);
    for _ in 0..3 {
        assert_eq!(stream.chunk().as_deref(), Some(":\n"));
    }
    let Hub { server, .. } = hub;
    server.stop(Duration::from_secs(5)).unwrap();
    assert_eq!(stream.event(), None);
    assert_eq!(stream.reader.read(&mut [0; 8]).unwrap(), 0, "the last chunk, and then the end");
}

/// Regression: a stop waited for the end of long polls, and closed those that were left without an answer.
#[test]
fn a_stop_answers_long_polls() {
    let hub = Hub::open();
    let poll = format!("GET {PATH}?match=a HTTP/1.1\r\nHost: h\r\nPrefer: wait=50\r\n\r\n");
    let mut parked = hub.client();
    parked.send(&poll);
    // One that has a request behind it is not parked.
    let mut other = hub.client();
    other.send(format!("{poll}GET / HTTP/1.1\r\nHost: h\r\n\r\n"));
    let mut late = hub.client();
    let (half, rest) = poll.split_at(poll.len() - 2);
    late.send(half);
    wait_until("the long polls", || hub.statistics().count(Counter::HubPolls) == 2);
    let Hub { mut server, .. } = hub;
    let started_at = Instant::now();
    server.begin_stop(Duration::from_secs(20));
    for client in [&mut parked, &mut other] {
        assert_eq!(client.reply_to("GET").status, 204);
    }
    late.send(rest);
    assert_eq!(late.reply_to("GET").status, 204);
    drop((parked, other, late));
    server.wait().unwrap();
    assert!(started_at.elapsed() < Duration::from_secs(15), "{:?}", started_at.elapsed());
}

/// Regression: such a stream lasted until the stop no longer waited, and was cut off.
#[test]
fn a_stream_that_begins_during_a_stop_ends_properly() {
    let hub = Hub::open();
    let mut stream = hub.subscribe("match=a", &[]);
    let mut late = hub.client();
    late.send(format!("GET {PATH}?match=a HTTP/1.1\r\nHost: h\r\n"));
    let Hub { mut server, .. } = hub;
    let started_at = Instant::now();
    server.begin_stop(Duration::from_secs(20));
    assert_eq!(stream.event(), None);
    late.send("\r\n");
    let reply = late.reply_to("GET");
    assert_eq!((reply.status, reply.text().as_str()), (200, ":\n"));
    drop((stream, late));
    server.wait().unwrap();
    assert!(started_at.elapsed() < Duration::from_secs(15), "{:?}", started_at.elapsed());
}

#[test]
fn subscribers_that_come_and_go_leave_nothing_behind() {
    let hub = Hub::start(2, |_, _| ());
    let mut stayer = hub.subscribe("match=a", &[]);
    let mut seen = HashSet::new();
    for round in 0..20 {
        let visitors: Vec<_> =
            (0..10).map(|_| hub.subscribe("match=a&matchURLPattern=/x/:y", &[])).collect();
        seen.insert(hub.publish("a", &round.to_string()));
        drop(visitors);
        assert_eq!(stayer.data(), round.to_string());
    }
    assert_eq!(seen.len(), 20);
}

#[test]
fn a_history_on_disk_survives_a_restart() {
    use pollux_server::config::HubStoreConfig;
    let directory = tempfile::tempdir().unwrap();
    let start = |workers: usize| {
        Hub::start(workers, |_, hub| {
            hub.store = HubStoreConfig::File(directory.path().join("history"));
            hub.limits.history_updates = 5;
        })
    };
    let hub = start(2);
    let mut live = hub.subscribe("match=a", &[]);
    let ids: Vec<_> = (0..8).map(|i| hub.publish("a", &i.to_string())).collect();
    for i in 0..8 {
        assert_eq!(live.data(), i.to_string());
    }
    hub.server.stop(Duration::from_secs(5)).unwrap();
    // The thread of the store closes the file when it notices the end of the server.
    let file = std::fs::File::open(directory.path().join("history")).unwrap();
    wait_until("the file's lock", || file.try_lock().is_ok());
    drop(file);
    let hub = start(1);
    let mut after = hub.subscribe("match=a", &[&format!("Last-Event-ID: {}", ids[5])]);
    assert_eq!(after.field("last-event-id"), Some(ids[5].as_str()));
    let mut all = hub.subscribe("match=a&lastEventID=earliest", &[]);
    hub.publish("a", "8");
    for i in 6..9 {
        assert_eq!(after.data(), i.to_string());
    }
    for i in 3..9 {
        assert_eq!(all.data(), i.to_string());
    }
    // No other server may open the file.
    let mut config = HubConfig::new(PATH);
    config.anonymous = true;
    config.publish_anonymous = true;
    config.store = HubStoreConfig::File(directory.path().join("history"));
    let mut server = Settings::new("");
    server.site.directory = None;
    server.listen = vec!["127.0.0.1:0".parse().unwrap()];
    server.hub = Some(Arc::new(config));
    let error = format!("{:#}", Server::start(server).expect_err("it starts"));
    assert!(error.contains("--hub-store"), "{error}");
}
