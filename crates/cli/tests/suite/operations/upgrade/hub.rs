//! Subscribers of the hub stay connected, and get every update once, whichever process they are
//! connected to.

use super::*;
use crate::operations::subscriber::{Subscriber, connect, publish};
use pollux_testkit::redis::Redis;
use std::{
    io::Write,
    time::{Duration, Instant},
};

const SUBSCRIBERS: usize = 300;
const HUB: [&str; 5] = ["--hub", "--hub-anonymous", "--hub-publish-anonymous", "--workers", "2"];

#[test]
fn subscribers_stay_connected_and_get_each_update_once() {
    upgrade_under_load(&[], |_| ());
}

/// The history on disk is complete: a server that is started later has all of it.
#[test]
fn a_history_on_disk_goes_along() {
    let directory = tempfile::tempdir().unwrap();
    let store = format!("file:{}", directory.path().join("history").display());
    upgrade_under_load(&["--hub-store", &store], |count| {
        let folder = Folder::new();
        folder.write("", "root = \"a\"");
        let server = folder.serve(&[&HUB[..], &["--hub-store", &store]].concat());
        let socket = connect(server.address());
        let mut late = Subscriber::new(socket, "match=a&lastEventID=earliest", "");
        (0..count).for_each(|number| assert_eq!(late.data(), number.to_string()));
        server.stop();
    });
}

/// Both processes follow the same stream.
#[test]
fn subscribers_of_a_redis_follow() {
    let Some(redis) = Redis::start(&[]) else { return };
    let store = format!("redis://127.0.0.1:{}", redis.port);
    upgrade_under_load(&["--hub-store", &store], |_| ());
}

/// The new process has read only the end of the stream, so that it numbers its updates differently.
#[test]
fn subscribers_of_a_long_stream_follow() {
    const BEFORE: usize = 300;
    let Some(redis) = Redis::start(&[]) else { return };
    let store = format!("redis://127.0.0.1:{}", redis.port);
    let folder = Folder::new();
    folder.write("", "root = \"a\"");
    let store = ["--hub-store", &store, "--hub-history", "50"];
    let mut server = folder.serve(&[&HUB[..], &store].concat());
    let address = server.address().to_owned();
    let mut subscribers: Vec<_> =
        (0..20).map(|_| Subscriber::new(connect(&address), "match=a", "")).collect();
    let mut processes = Vec::new();
    for round in 0..2 {
        let mut publisher = Client::connect(&address);
        for number in 0..BEFORE {
            let data = format!("{round}-{number}");
            publish(&mut publisher, "a", &data);
            subscribers.iter_mut().for_each(|subscriber| assert_eq!(subscriber.data(), data));
        }
        assert!(handed_over(&printed(&folder.ctl("upgrade"))) >= subscribers.len());
        processes.push(successor(&mut server));
    }
    publish(&mut Client::connect(&address), "a", "last");
    subscribers.iter_mut().for_each(|subscriber| assert_eq!(subscriber.data(), "last"));
    end(processes);
}

/// Makes three upgrades while updates are published. When all processes have ended, calls `check` with
/// the number of updates.
fn upgrade_under_load(store: &[&str], check: impl FnOnce(u64)) {
    limits::raise_descriptor_limit();
    let folder = Folder::new();
    folder.write("", "root = \"a\"");
    let mut server = folder.serve(&[&HUB[..], store].concat());
    let mut publisher = server.client();
    let address = server.address().to_owned();
    // The subscribers read different topics, and some use a pattern.
    let queries =
        ["match=a", "match=a&match=b", "matchURLPattern=/.well-known/:topic", "topic=%7Btopic%7D"];
    let mut subscribers: Vec<_> = (0..SUBSCRIBERS)
        .map(|index| Subscriber::new(connect(&address), queries[index % queries.len()], ""))
        .collect();
    publish(&mut publisher, "a", "0");
    let (ends, published) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(1)));
    let publishing = {
        let (ends, published, address) = (ends.clone(), published.clone(), address.clone());
        thread::spawn(move || {
            let mut kept = Client::connect(&address);
            while !ends.load(SeqCst) {
                let number = published.load(SeqCst);
                // Half of the updates are sent on a connection that follows the upgrade, half on a new
                // one.
                let mut fresh = Client::connect(&address);
                let client = if number % 2 == 0 { &mut kept } else { &mut fresh };
                publish(client, "a", &number.to_string());
                published.store(number + 1, SeqCst);
                // The pace of the publisher.
                thread::sleep(Duration::from_millis(2));
            }
        })
    };
    let mut processes = Vec::new();
    for _ in 0..3 {
        let text = printed(&folder.ctl("upgrade"));
        assert!(handed_over(&text) >= SUBSCRIBERS, "{text}");
        processes.push(successor(&mut server));
        // A new subscriber begins with the next update.
        subscribers.push(Subscriber::new(connect(&address), "match=none", ""));
    }
    ends.store(true, SeqCst);
    publishing.join().unwrap();
    let count = published.load(SeqCst);
    for subscriber in &mut subscribers[..SUBSCRIBERS] {
        for number in 0..count {
            assert_eq!(subscriber.data(), number.to_string(), "of {count}");
        }
    }
    // The history was handed over: a new subscriber gets all of it.
    let mut late = Subscriber::new(connect(&address), "match=a&lastEventID=earliest", "");
    (0..count).for_each(|number| assert_eq!(late.data(), number.to_string()));
    server.wait_for_end();
    end(processes);
    check(count);
}

/// A new process takes over the log and dies: the former process opens the file again, and continues
/// with the updates that waited.
#[test]
fn a_successor_that_dies_leaves_the_history_on_disk() {
    let folder = Folder::new();
    folder.write("", "root = \"a\"");
    let program = own_program(&folder);
    let store = format!("file:{}", folder.0.path().join("history").display());
    let mut command = Command::new(&program);
    command.args(["serve", "--json", "--listen", "127.0.0.1:0", "--config"]);
    command.arg(folder.config()).arg("--control").arg(folder.control());
    command.args(HUB).args(["--hub-store", &store]);
    let mut server = Serve::start_command(command);
    let address = server.address().to_owned();
    let mut subscribers: Vec<_> =
        (0..20).map(|_| Subscriber::new(connect(&address), "match=a", "")).collect();
    let (ends, published) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let publishing = {
        let (ends, published, address) = (ends.clone(), published.clone(), address.clone());
        thread::spawn(move || {
            let mut client = Client::connect(&address);
            while !ends.load(SeqCst) {
                publish(&mut client, "a", &published.fetch_add(1, SeqCst).to_string());
                // The pace of the publisher.
                thread::sleep(Duration::from_millis(2));
            }
        })
    };
    // The program reports that it is ready, and reads nothing.
    super::failures::replace(&program, &format!("{}; sleep 0.5", super::failures::READY));
    let started_at = published.load(SeqCst);
    let reason = refused(&folder.ctl("upgrade"));
    assert!(!reason.contains("version"), "it was refused before it took the log over: {reason}");
    wait_until("100 more updates", || published.load(SeqCst) >= started_at + 100);
    ends.store(true, SeqCst);
    publishing.join().unwrap();
    let count = published.load(SeqCst);
    for subscriber in &mut subscribers {
        (0..count).for_each(|number| assert_eq!(subscriber.data(), number.to_string()));
    }
    fs::remove_file(&program).unwrap();
    fs::hard_link(BINARY, &program).or_else(|_| fs::copy(BINARY, &program).map(drop)).unwrap();
    assert!(handed_over(&printed(&folder.ctl("upgrade"))) >= subscribers.len());
    let process = successor(&mut server);
    publish(&mut Client::connect(&address), "a", "last");
    subscribers.iter_mut().for_each(|subscriber| assert_eq!(subscriber.data(), "last"));
    end(vec![process]);
}

/// An upgrade hands over the remaining time of a stream and does not extend it.
#[test]
fn a_stream_ends_when_it_would_have_ended_without_the_upgrade() {
    let folder = Folder::new();
    folder.write("", "root = \"a\"");
    let mut server = folder.serve(&[&HUB[..], &["--hub-max-lifetime", "12s"]].concat());
    let subscribe = |_| Subscriber::new(connect(server.address()), "match=a", "");
    let mut subscribers: Vec<_> = (0..10).map(subscribe).collect();
    let started_at = Instant::now();
    // The streams end after 6 to 12 seconds; if their time began again at the upgrade, they would end
    // after 11 to 17.
    std::thread::sleep(Duration::from_secs(5));
    assert_eq!(handed_over(&printed(&folder.ctl("upgrade"))), 10);
    let process = successor(&mut server);
    for subscriber in &mut subscribers {
        subscriber.read_to_end();
    }
    let elapsed = started_at.elapsed();
    assert!((5..13).contains(&elapsed.as_secs()), "{elapsed:?}");
    end(vec![process]);
}

/// The remaining time of the token is handed over, and so is a TLS session.
#[test]
fn a_stream_over_tls_ends_with_its_token_in_the_new_process() {
    const SECRET: &str = "0123456789abcdef0123456789abcdef";
    let folder = Folder::new();
    let (cert, key) = super::tls::make_certificate(&folder);
    folder.write("", "root = \"a\"");
    let secret = folder.0.path().join("hub.key").display().to_string();
    fs::write(&secret, SECRET).unwrap();
    let tls = ["--tls-cert", &cert, "--tls-key", &key];
    let mut server = folder.serve(&[&tls[..], &["--hub", "--hub-jwt-key", &secret]].concat());
    let config = super::tls::trusting(&cert);
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let token = |seconds: u64| {
        let claims = serde_json::json!({
            "exp": now.as_secs() + seconds,
            "mercure": {"subscribe": ["*"], "publish": ["*"]},
        });
        let token = pollux_testkit::token::sign(&serde_json::json!({}), &claims, SECRET);
        format!("Authorization: Bearer {token}\r\n")
    };
    let subscribe = |seconds: u64| {
        let stream = super::tls::open(server.address(), &config);
        Subscriber::new(stream, "match=a", &token(seconds))
    };
    let (mut short, mut long) = (subscribe(12), subscribe(600));
    assert_eq!(handed_over(&printed(&folder.ctl("upgrade"))), 2);
    let process = successor(&mut server);
    let mut publisher = super::tls::open(server.address(), &config);
    let body = "topic=a&data=x&private";
    write!(
        publisher,
        "POST /.well-known/mercure HTTP/1.1\r\nHost: h\r\n{}Content-Length: {}\r\n\
         Content-Type: application/x-www-form-urlencoded\r\n\r\n{body}",
        token(600),
        body.len()
    )
    .unwrap();
    publisher.flush().unwrap();
    let mut status = [0; 12];
    publisher.read_exact(&mut status).unwrap();
    assert_eq!(&status, b"HTTP/1.1 200");
    // The update is private: the permission was handed over.
    assert_eq!((short.data().as_str(), long.data().as_str()), ("x", "x"));
    let started_at = Instant::now();
    short.read_to_end();
    assert!(started_at.elapsed() < Duration::from_secs(14));
    drop(long);
    end(vec![process]);
}

/// A subscriber that has not received all of its data yet follows to the new process later.
#[test]
fn a_slow_subscriber_follows_later() {
    let folder = Folder::new();
    folder.write("", "root = \"a\"");
    let mut server = folder.serve(&HUB);
    let address = server.address().to_owned();
    let mut slow = Subscriber::new(connect(&address), "match=a", "");
    let mut publisher = server.client();
    let big = "x".repeat(500_000);
    (0..20).for_each(|number| publish(&mut publisher, "a", &format!("{number}-{big}")));
    printed(&folder.ctl("upgrade"));
    let process = successor(&mut server);
    assert!(server.is_running(), "it has something to send");
    publish(&mut publisher, "a", "20-");
    for number in 0..=20 {
        assert!(slow.data().starts_with(&format!("{number}-")), "{number}");
    }
    server.wait_for_end();
    publish(&mut publisher, "a", "21-");
    assert_eq!(slow.data(), "21-");
    end(vec![process]);
}

/// Regression: a long poll stayed with the former process, which learns of no further updates, until its time was over.
#[test]
fn a_long_poll_is_answered_and_its_client_follows() {
    let folder = Folder::new();
    folder.write("", "root = \"a\"");
    let mut server = folder.serve(&HUB);
    let mut client = server.client();
    let poll = "GET /.well-known/mercure?match=a HTTP/1.1\r\nHost: h\r\nPrefer: wait=50\r\n";
    client.send(format!("{poll}\r\n"));
    server.wait_until("the long poll", |statistics| statistics["hub"]["polls"] == 1);
    let started_at = Instant::now();
    printed(&folder.ctl("upgrade"));
    let process = successor(&mut server);
    let reply = client.reply();
    assert_eq!((reply.status, reply.field("mercure-last-event-id")), (204, Some("earliest")));
    assert!(started_at.elapsed() < Duration::from_secs(20), "{:?}", started_at.elapsed());
    server.wait_for_end();
    // The same connection now leads to the new process.
    client.send(format!("{poll}Last-Event-ID: earliest\r\n\r\n"));
    publish(&mut Client::connect(server.address()), "a", "new");
    assert!(client.reply().text().ends_with("data: new\n\n"));
    end(vec![process]);
}

/// A new process that cannot serve leaves the subscribers and the log with the former one.
#[test]
fn an_upgrade_that_fails_changes_nothing_for_subscribers() {
    let folder = Folder::new();
    folder.write("", "root = \"a\"");
    let server = folder.serve(&HUB);
    let address = server.address().to_owned();
    let mut subscriber = Subscriber::new(connect(&address), "match=a", "");
    let mut publisher = server.client();
    publish(&mut publisher, "a", "1");
    folder.write("no-such-key = 1", "root = \"a\"");
    refused(&folder.ctl("upgrade"));
    publish(&mut publisher, "a", "2");
    assert_eq!([subscriber.data(), subscriber.data()], ["1", "2"]);
}
