//! Connections that are handed over to another process.

use super::*;
use pollux_server::config::{LogConfig, LogTarget};
use pollux_server::stats::Counter;
use pollux_testkit::KillOnDrop;
use std::{
    io::{Read, Write},
    net::TcpStream,
    path::{Path, PathBuf},
    process::Command,
    sync::mpsc::{Receiver, channel},
};

#[path = "../../../examples/handover_receiver.rs"]
#[allow(dead_code, unreachable_pub, reason = "it is a program of its own, too")]
pub(crate) mod receiver;

type ConnectionReceiver = Receiver<(Vec<u8>, TcpStream)>;

/// Starts a receiver that passes the connections to the test.
fn receive(path: &Path) -> ConnectionReceiver {
    let (give, given) = channel();
    let listener = receiver::listen(path).unwrap();
    thread::spawn(move || {
        receiver::receive_all(&listener, move |first, client| {
            let _ = give.send((first, client));
        })
    });
    given
}

fn handing(path: &Path, change: impl FnOnce(&mut Settings, &mut FrontendConfig)) -> Fixture {
    let handover = format!("unix:{}", path.display());
    Fixture::new(&[], |config, frontend| {
        frontend.handovers = vec![handover.parse().unwrap()];
        change(config, frontend);
    })
}

fn place() -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("sock");
    (directory, path)
}

#[test]
fn a_connection_is_given_with_what_was_read_of_it() {
    on_every_engine(|engine| {
        let (_directory, path) = place();
        let given = receive(&path);
        let fixture = handing(&path, |config, _| serve_with(config, engine));
        let mut client = fixture.client();
        assert_eq!(client.get("/file").text(), "of the site", "{engine}: files come first");
        // A request for a file, and then a request for no file with a part of its body, in one write.
        let file = "GET /file HTTP/1.1\r\nHost: t\r\n\r\n";
        let head = "POST /app?x HTTP/1.1\r\nhOST:  t\r\nContent-Length: 10\r\n\r\n";
        client.send(format!("{file}{head}half "));
        assert_eq!(client.reply().text(), "of the site", "{engine}");
        let (first, mut theirs) = given.recv_timeout(PATIENCE).unwrap();
        assert_eq!(String::from_utf8(first).unwrap(), format!("{head}half "), "{engine}");
        let counts = || fixture.server.statistics();
        wait_until("the end of the connection here", || {
            (counts().open(), counts().count(Counter::Closed)) == (0, 1)
        });
        assert_eq!(counts().count(Counter::HandedOver), 1, "{engine}");
        let events = fixture.server.statistics().count(Counter::Events);
        client.send("a body");
        // The descriptor is blocking: otherwise this read would fail with EAGAIN when no input has
        // arrived yet.
        let mut rest = [0; 6];
        theirs.read_exact(&mut rest).unwrap();
        assert_eq!(&rest, b"a body", "{engine}");
        client.send_slowly(Duration::from_millis(2), ["more"; 20]);
        let after = fixture.server.statistics().count(Counter::Events);
        assert!(after < events + 15, "{engine}: {} events of what is not its own", after - events);
        theirs.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\ngiven").unwrap();
        assert_eq!(client.reply().text(), "given", "{engine}");
        // No other process or thread has the connection open.
        drop(theirs);
        let mut end = Vec::new();
        let _ = client.socket().read_to_end(&mut end);
        assert!(end.is_empty(), "{engine}");
        fixture.stop();
    });
}

#[test]
fn very_many_are_given_one_after_the_other() {
    let (_directory, path) = place();
    let listener = receiver::listen(&path).unwrap();
    thread::spawn(move || {
        receiver::receive_all(&listener, |first, client| receiver::answer(first, client).unwrap())
    });
    on_every_engine(|engine| {
        let fixture = handing(&path, |config, _| serve_with(config, engine));
        for number in 0..100 {
            let mut client = fixture.client();
            let reply = client.get(&format!("/{number}"));
            assert!(reply.text().starts_with(&format!("GET /{number} HTTP/1.1\r\n")), "{engine}");
            assert!(client.is_closed(), "{engine}");
        }
        let last = fixture.stop();
        let counts = [Counter::HandedOver, Counter::Closed].map(|counter| last.count(counter));
        assert_eq!((counts, last.open()), ([100, 100], 0), "{engine}");
    });
}

fn has_input(client: &Client) -> bool {
    client.socket().set_nonblocking(true).unwrap();
    let has_input = client.socket().peek(&mut [0]).is_ok();
    client.socket().set_nonblocking(false).unwrap();
    has_input
}

#[test]
fn a_receiver_that_is_missing_or_full_is_a_503() {
    on_every_engine(|engine| {
        let (_directory, path) = place();
        let fixture = handing(&path, |config, _| serve_with(config, engine));
        let mut client = fixture.client();
        let reply = client.get("/app");
        assert_eq!(error(&reply), (503, "destination_unavailable".into()), "{engine}");
        assert_eq!(reply.field("retry-after"), Some("1"), "{engine}");
        assert_eq!(client.get("/file").text(), "of the site", "{engine}: it goes on");
        drop(client);
        // The receiver listens but accepts no connection, so that its queue becomes full at last.
        let listener = receiver::listen(&path).unwrap();
        let mut held = Vec::new();
        let full = (0..20_000).find_map(|_| {
            let mut client = fixture.client();
            // A long head fills the queue sooner.
            client.send(format!("GET /app HTTP/1.1\r\nHost: t\r\nX: {}\r\n\r\n", "x".repeat(7000)));
            let is_given = || fixture.server.statistics().count(Counter::HandedOver) as usize;
            let before = held.len();
            let mut answered = false;
            wait_until("the handover or the answer", || {
                answered = has_input(&client);
                answered || is_given() > before
            });
            let reply = answered.then(|| client.reply());
            held.push(client);
            reply
        });
        let reply = full.expect("a queue has an end");
        assert_eq!(error(&reply), (503, "destination_unavailable".into()), "{engine}");
        let mut client = held.pop().unwrap();
        // The messages in the queue are lost when the process that should accept them ends; the server
        // finds the next process.
        drop(listener);
        std::fs::remove_file(&path).unwrap();
        let given = receive(&path);
        client.send("GET /app HTTP/1.1\r\nHost: t\r\n\r\n");
        let (_, mut theirs) = given.recv_timeout(PATIENCE).unwrap();
        theirs.write_all(b"HTTP/1.1 204 X\r\n\r\n").unwrap();
        assert_eq!(client.reply().status, 204, "{engine}");
        drop((client, theirs, held));
        fixture.stop();
    });
}

#[test]
fn replies_to_earlier_requests_leave_first() {
    on_every_engine(|engine| {
        let (_directory, path) = place();
        let given = receive(&path);
        let fixture = handing(&path, |config, _| serve_with(config, engine));
        let long = "y".repeat(8 << 20);
        std::fs::write(fixture.directory.path().join("long"), &long).unwrap();
        let mut client = fixture.client();
        client.send("GET /long HTTP/1.1\r\nHost: t\r\n\r\nGET /app HTTP/1.1\r\nHost: t\r\n\r\n");
        // The client has not read the first response yet.
        assert!(given.recv_timeout(Duration::from_millis(300)).is_err(), "{engine}");
        assert!(client.reply().text() == long, "{engine}");
        let (first, mut theirs) = given.recv_timeout(PATIENCE).unwrap();
        assert!(first.starts_with(b"GET /app "), "{engine}");
        theirs.write_all(b"HTTP/1.1 204 X\r\n\r\n").unwrap();
        assert_eq!(client.reply().status, 204, "{engine}");
        drop(client);
        fixture.stop();
    });
}

#[test]
fn a_path_is_handed_over_whatever_files_there_are_and_logged() {
    let (directory, path) = place();
    let given = receive(&path);
    let log = directory.path().join("log");
    let handover = format!("/file=unix:{}", path.display());
    let fixture = Fixture::new(&[], |config, frontend| {
        frontend.handovers = vec![handover.parse().unwrap()];
        config.log = LogConfig::clf(LogTarget::File(log.clone()));
    });
    assert_eq!(fixture.get("/else").status, 404);
    let mut client = fixture.client();
    client.send("GET /file HTTP/1.1\r\nHost: t\r\n\r\n");
    let (_, theirs) = given.recv_timeout(PATIENCE).unwrap();
    wait_until("the count of the handover", || {
        fixture.server.statistics().count(Counter::HandedOver) == 1
    });
    drop((client, theirs));
    fixture.stop();
    let log = std::fs::read_to_string(log).unwrap();
    assert!(
        log.contains("127.0.0.1 - - [") && log.contains("\"GET /file HTTP/1.1\" 000 0\n"),
        "{log}"
    );
}

/// The program in docs/handover.md can receive the server's messages.
#[test]
fn the_receiver_of_the_documentation_works() {
    if Command::new("python3").arg("-V").output().is_err() {
        return eprintln!("skipped: there is no python3");
    }
    let text = include_str!("../../../../../docs/handover.md");
    let program = text.split("```python\n").nth(1).unwrap().split("```").next().unwrap();
    let (_directory, path) = place();
    let child = Command::new("python3").arg("-c").arg(program).arg(&path).spawn().unwrap();
    let _killed = KillOnDrop(child);
    wait_until("the receiver's socket", || path.exists());
    let fixture = handing(&path, |_, _| {});
    wait_until("the receiver's answer", || {
        fixture.get("/app").text() == "You asked: GET /app HTTP/1.1\n"
    });
    fixture.stop();
}
