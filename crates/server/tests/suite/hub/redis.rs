//! Hubs that share a Redis: the Redis stops, loses its data, or is not a Redis at all.

use super::*;
use pollux_server::{config::HubStoreConfig, stats::Counter};
use pollux_testkit::redis::Redis;
use std::{net::TcpListener, thread};

fn start_at(address: &str, change: impl FnOnce(&mut HubConfig)) -> Hub {
    Hub::start(2, |_, hub| {
        hub.store = address.parse().unwrap();
        change(hub);
    })
}

fn start(redis: &Redis) -> Hub {
    start_at(&format!("redis://127.0.0.1:{}/3", redis.port), |_| ())
}

fn is_connected(hub: &Hub) -> (bool, u64) {
    let store = hub.statistics().hub.unwrap().store.unwrap();
    (store.is_connected, store.reconnections)
}

/// Publishes repeatedly until the hub accepts the update.
fn publish_at_last(hub: &Hub, data: &str) {
    wait_until("an update that is accepted", || {
        let reply = hub.post(&format!("topic=a&data={data}"), &[]);
        if reply.status != 200 {
            assert_eq!(reply.status, 503, "{}", reply.text());
            assert!(reply.field("retry-after").is_some());
        }
        reply.status == 200
    });
}

#[test]
fn hubs_of_one_redis_are_one_hub() {
    let Some(redis) = Redis::start(&[]) else { return };
    let hubs: Vec<_> = (0..3).map(|_| start(&redis)).collect();
    let mut streams: Vec<_> = hubs.iter().map(|hub| hub.subscribe("match=a", &[])).collect();
    let mut ids = Vec::new();
    for round in 0..30 {
        ids.push(hubs[round % 3].publish("a", &round.to_string()));
    }
    for stream in &mut streams {
        for (round, id) in ids.iter().enumerate() {
            let event = stream.event().unwrap();
            assert_eq!((&event.id, event.data), (id, round.to_string()));
        }
    }
    // An update that another hub has just acknowledged is known to this hub, or this hub waits for it.
    for round in 0..50 {
        let id = hubs[0].publish("a", &format!("at {round}"));
        let mut back = hubs[1].subscribe("match=a", &[&format!("Last-Event-ID: {id}")]);
        assert_eq!(back.field("last-event-id"), Some(id.as_str()));
        hubs[2].publish("a", &format!("behind {round}"));
        assert_eq!(back.data(), format!("behind {round}"));
    }
    // A new hub reads the history. For an identifier that no hub knows, the replay begins with the
    // oldest update.
    let late = start(&redis);
    let mut back = late.subscribe("match=a", &[&format!("Last-Event-ID: {}", ids[27])]);
    assert_eq!((back.data(), back.data()), ("28".into(), "29".into()));
    let mut stranger = late.subscribe("match=a", &["Last-Event-ID: unknown"]);
    assert_eq!(stranger.field("last-event-id"), Some("earliest"));
    assert_eq!(stranger.data(), "0");
    let reply = late.request(
        "GET",
        &format!("{PATH}?match=a"),
        &["Prefer: wait=1", &format!("Last-Event-ID: {}", hubs[0].publish("a", "last"))],
    );
    assert_eq!(reply.status, 204);
}

#[test]
fn a_redis_that_stops_and_comes_back_loses_and_repeats_nothing() {
    let Some(mut redis) = Redis::start(&["--appendonly", "yes"]) else { return };
    let hubs: Vec<_> = (0..2).map(|_| start(&redis)).collect();
    let mut streams: Vec<_> = hubs.iter().map(|hub| hub.subscribe("match=a", &[])).collect();
    let before = hubs[0].publish("a", "before");
    assert_eq!(is_connected(&hubs[0]), (true, 0));
    redis.kill();
    wait_until("the end of the connection", || is_connected(&hubs[0]) == (false, 0));
    let reply = hubs[0].post("topic=a&data=refused", &[]);
    assert_eq!(reply.status, 503, "{}", reply.text());
    assert!(reply.field("retry-after").is_some());
    // The hub serves the updates in its log. It cannot serve a request that may need updates that are
    // missing there.
    let known = [&format!("Last-Event-ID: {before}")[..]];
    streams.push(hubs[0].subscribe("match=a", &known));
    let target = format!("{PATH}?match=a");
    assert_eq!(hubs[0].request("GET", &target, &["Last-Event-ID: other"]).status, 503);
    redis.start_again();
    publish_at_last(&hubs[1], "after");
    publish_at_last(&hubs[0], "last");
    wait_until("the new connection", || is_connected(&hubs[0]) == (true, 1));
    assert!(hubs[0].statistics().count(Counter::HubUnavailable) > 0);
    for stream in &mut streams[..2] {
        assert_eq!(stream.data(), "before");
    }
    for stream in &mut streams {
        assert_eq!(stream.data(), "after");
        assert_eq!(stream.data(), "last");
    }
}

/// Regression: Redis closes idle connections if it is configured so (`timeout`), and the next publisher got 503.
#[test]
fn a_connection_that_redis_has_closed_refuses_no_update() {
    let Some(redis) = Redis::start(&[]) else { return };
    let hub = start(&redis);
    let mut stream = hub.subscribe("match=a", &[]);
    for round in 1..=3 {
        let data = round.to_string();
        assert_eq!(hub.post(&format!("topic=a&data={data}"), &[]).status, 200, "{round}");
        assert_eq!(stream.data(), data);
        // The connections of both threads.
        assert!(redis.command("CLIENT KILL TYPE normal").starts_with(':'));
        wait_until("the end of the connections", || is_connected(&hub) == (true, round));
    }
}

/// Regression: the event was lost.
#[test]
fn the_event_of_a_subscription_that_redis_refuses_is_published_later() {
    let Some(redis) = Redis::start(&[]) else { return };
    let address = format!("redis://127.0.0.1:{}/3", redis.port);
    let hub = start_at(&address, |hub| hub.subscriptions = true);
    let length = || redis.script(&["SELECT 3", &format!("XLEN pollux-hub:{PATH}")]);
    // Every command that needs memory is refused.
    assert_eq!(redis.command("CONFIG SET maxmemory 1"), "+OK");
    let _stream = hub.subscribe("match=a", &[]);
    // The event was sent before this update.
    let reply = hub.post("topic=a&data=refused", &[]);
    assert!(reply.status == 503 && reply.text().contains("refused"), "{}", reply.text());
    assert_eq!(length(), ":0");
    assert_eq!(redis.command("CONFIG SET maxmemory 0"), "+OK");
    wait_until("the event", || length() == ":1");
}

#[test]
fn a_redis_that_does_not_reply_is_missing_until_it_does() {
    let Some(redis) = Redis::start(&[]) else { return };
    let hub = start(&redis);
    let mut stream = hub.subscribe("match=a", &[]);
    hub.publish("a", "before");
    redis.pause(true);
    // Redis has received this update, and may still execute it later.
    assert_eq!(hub.post("topic=a&data=unconfirmed", &[]).status, 503);
    assert_eq!(hub.post("topic=a&data=refused", &[]).status, 503);
    redis.pause(false);
    publish_at_last(&hub, "after");
    let mut seen = vec![stream.data()];
    while seen.last().is_none_or(|data| data != "after") {
        seen.push(stream.data());
    }
    seen.retain(|data| data != "unconfirmed" && data != "refused");
    assert_eq!(seen, ["before", "after"]);
}

#[test]
fn a_stream_that_is_removed_is_made_again_and_new_updates_arrive_once() {
    let Some(redis) = Redis::start(&[]) else { return };
    let hubs: Vec<_> = (0..2).map(|_| start(&redis)).collect();
    let mut streams: Vec<_> = hubs.iter().map(|hub| hub.subscribe("match=a", &[])).collect();
    for round in 0..5 {
        hubs[0].publish("a", &format!("old {round}"));
    }
    for stream in &mut streams {
        for round in 0..5 {
            assert_eq!(stream.data(), format!("old {round}"));
        }
    }
    assert_eq!(redis.command("FLUSHALL"), "+OK");
    for round in 0..8 {
        hubs[round % 2].publish("a", &format!("new {round}"));
    }
    for stream in &mut streams {
        for round in 0..8 {
            assert_eq!(stream.data(), format!("new {round}"));
        }
        // The removed updates may include some that the hub had not read.
        assert!(stream.comments.iter().any(|comment| comment.contains("skipped")));
    }
}

/// A hub whose Redis loses updates that the hub has already delivered.
struct Loser {
    redis: Redis,
    hub: Hub,
    stream: Stream,
}

impl Loser {
    /// Publishes these updates, each an identifier and its content, of which Redis then loses all but the first `kept`.
    fn start(updates: &[(String, String)], kept: usize) -> Option<Self> {
        let redis = Redis::start(&[])?;
        let hub = start(&redis);
        let mut stream = hub.subscribe("match=a", &[]);
        let mut client = hub.client();
        for (number, (id, data)) in updates.iter().enumerate() {
            if number == kept {
                let copy = format!("COPY pollux-hub:{PATH} kept");
                assert_eq!(redis.script(&["SELECT 3", &copy]), ":1");
            }
            let reply = post(&mut client, &format!("topic=a&id={id}&data={data}"), &[]);
            assert_eq!(reply.status, 200, "{}", reply.text());
            assert_eq!(stream.data(), *data);
        }
        let lose = format!("RENAME kept pollux-hub:{PATH}");
        assert_eq!(redis.script(&["SELECT 3", &lose]), "+OK");
        Some(Self { redis, hub, stream })
    }
}

#[test]
fn an_identifier_that_is_used_again_after_a_loss_is_another_update() {
    let updates = [("state", "up"), ("x", "lost"), ("y", "lost too")];
    let updates = updates.map(|(id, data)| (id.to_owned(), data.to_owned()));
    let Some(mut loser) = Loser::start(&updates, 1) else { return };
    assert_eq!(loser.hub.post("topic=a&id=state&data=down", &[]).status, 200);
    assert_eq!(loser.stream.data(), "down");
    assert_eq!(loser.redis.command("PING"), "+PONG");
}

#[test]
fn a_loss_of_very_many_updates_repeats_none() {
    let updates: Vec<_> =
        (0..1200).map(|number| (number.to_string(), format!("data {number}"))).collect();
    let Some(mut loser) = Loser::start(&updates, 10) else { return };
    loser.hub.publish("a", "next");
    assert_eq!(loser.stream.data(), "next");
    assert_eq!(loser.redis.command("PING"), "+PONG");
}

#[test]
fn what_left_the_stream_unread_is_skipped_with_a_notice() {
    let Some(redis) = Redis::start(&[]) else { return };
    let hub = start(&redis);
    let mut stream = hub.subscribe("match=a", &[]);
    hub.publish("a", "first");
    assert_eq!(stream.data(), "first");
    // Simulates that other updates were added and removed before this hub read them.
    let script = "local last = redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1)[1][1] \
                  redis.call('XSETID', KEYS[1], string.match(last, '%d+') .. '-100') return 'ok'";
    let set = format!("EVAL \"{script}\" 1 pollux-hub:{PATH}");
    assert_eq!(redis.script(&["SELECT 3", &set]), "$2");
    publish_at_last(&hub, "next");
    assert_eq!(stream.data(), "next");
    assert!(stream.comments.iter().any(|comment| comment.contains("skipped")));
}

#[test]
fn entries_that_no_hub_wrote_are_left_out() {
    let Some(redis) = Redis::start(&[]) else { return };
    let hub = start(&redis);
    let mut stream = hub.subscribe("match=a", &[]);
    let key = format!("pollux-hub:{PATH}");
    for content in ["u nonsense", "other u", "u {} v 1", "u {}"] {
        let add = format!("XADD {key} * {content}");
        assert!(redis.script(&["SELECT 3", &add]).starts_with('$'), "{content}");
    }
    hub.publish("a", "next");
    assert_eq!(stream.data(), "next");
}

#[test]
fn the_start_says_what_is_wrong_with_a_redis() {
    let Some(redis) = Redis::start(&["--requirepass", "secret"]) else { return };
    let address = format!("127.0.0.1:{}/3", redis.port);
    let error = |store: String| {
        let mut config = HubConfig::new(PATH);
        config.anonymous = true;
        config.publish_anonymous = true;
        config.store = store.parse().unwrap();
        let mut server = Settings::new("");
        server.site.directory = None;
        server.listen = vec!["127.0.0.1:0".parse().unwrap()];
        server.hub = Some(Arc::new(config));
        format!("{:#}", Server::start(server).expect_err("it starts"))
    };
    let refused = error(format!("redis://{address}"));
    assert!(refused.contains("--hub-store redis://127.0.0.1") && refused.contains("NOAUTH"));
    let refused = error(format!("redis://:wrong@{address}"));
    assert!(refused.contains("WRONGPASS") && !refused.contains("wrong@"), "{refused}");
    assert!("rediss://host".parse::<HubStoreConfig>().unwrap_err().contains("TLS"));
}

/// Regression: a hub that started without its Redis sent the whole history to its subscribers, as new updates, when
/// Redis came.
#[test]
fn a_hub_that_starts_without_its_redis_has_subscribers_only_when_it_has_the_history() {
    let Some(mut redis) = Redis::start(&["--appendonly", "yes"]) else { return };
    let former = start(&redis);
    (0..3).for_each(|round| drop(former.publish("a", &format!("old {round}"))));
    former.server.stop(Duration::from_secs(5)).unwrap();
    redis.kill();
    let hub = start(&redis);
    let target = format!("{PATH}?match=a");
    for field in ["X: y", "Last-Event-ID: earliest"] {
        let reply = hub.request("GET", &target, &[field]);
        assert_eq!(reply.status, 503, "{}", reply.text());
        assert!(reply.field("retry-after").is_some());
    }
    assert_eq!(hub.post("topic=a&data=x", &[]).status, 503);
    redis.start_again();
    wait_until("the history", || hub.request("HEAD", &target, &[]).status == 200);
    let mut stream = hub.subscribe("match=a", &[]);
    publish_at_last(&hub, "here");
    assert_eq!(stream.data(), "here");
}

#[test]
fn hostile_servers_make_errors_and_no_harm() {
    for reply in [
        &b"HTTP/1.1 400 Bad Request\r\n\r\n"[..],
        b"*999999999\r\n",
        b"$9223372036854775807\r\n",
        b"+OK\r\n",
        b"*1\r\n*2\r\n$3\r\n0-x\r\n*0\r\n",
        b"-ERR \x1b[2Jno\r\n",
        b":1\r\n:1\r\n:1\r\n",
        b"",
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        // The thread runs until the process ends, because it may be waiting for input.
        thread::spawn(move || {
            while let Ok((mut socket, _)) = listener.accept() {
                let mut request = [0; 4096];
                while socket.read(&mut request).is_ok_and(|count| count > 0) {
                    if socket.write_all(reply).is_err() || reply.is_empty() {
                        break;
                    }
                }
            }
        });
        let mut config = HubConfig::new(PATH);
        config.anonymous = true;
        config.publish_anonymous = true;
        config.store = format!("redis://127.0.0.1:{port}").parse().unwrap();
        let mut server = Settings::new("");
        server.site.directory = None;
        server.listen = vec!["127.0.0.1:0".parse().unwrap()];
        server.hub = Some(Arc::new(config));
        // The hub is refused at the start, or it refuses updates because the store is not usable.
        if let Ok(server) = Server::start(server) {
            let Listen::Tcp(address) = server.addresses()[0] else { panic!("no address") };
            let hub = Hub { server, address };
            assert_eq!(hub.post("topic=a&data=x", &[]).status, 503, "{}", reply.escape_ascii());
        }
    }
}
