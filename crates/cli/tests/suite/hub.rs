//! `pollux serve --hub`, `pollux push` and `pollux subscribe`, as a user runs them; also curl.

#[path = "hub/expiry.rs"]
mod expiry;
#[path = "hub/full_disk.rs"]
mod full_disk;
#[path = "hub/generator.rs"]
mod generator;
#[path = "hub/keys.rs"]
mod keys;
#[path = "hub/lifetime.rs"]
mod lifetime;
#[path = "hub/push.rs"]
mod push;

use pollux_testkit::{
    http::{Client, PATIENCE},
    serve::Serve,
};
use std::{
    io::{BufRead, BufReader, Write},
    process::{Child, Command, Stdio},
    sync::mpsc::{Receiver, channel},
    thread,
};

const BINARY: &str = env!("CARGO_BIN_EXE_pollux");

fn serve(arguments: &[&str]) -> (tempfile::TempDir, Serve) {
    let directory = tempfile::tempdir().unwrap();
    let all = [&["--hub", "--hub-anonymous", "--hub-publish-anonymous"], arguments].concat();
    let server = Serve::start(BINARY, directory.path(), &all);
    (directory, server)
}

/// A program whose output is read line by line while it runs.
struct Reader {
    child: Child,
    lines: Receiver<String>,
}

impl Reader {
    fn start(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let (send, lines) = channel();
        thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                let _ = send.send(line);
            }
        });
        Self { child, lines }
    }

    fn subscribe(server: &Serve, arguments: &[&str]) -> Self {
        let url = format!("http://{}", server.address());
        Self::start(Command::new(BINARY).args(["subscribe", &url]).args(arguments))
    }

    fn line(&self) -> String {
        self.lines.recv_timeout(PATIENCE).expect("a line")
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn push(server: &Serve, arguments: &[&str]) -> Command {
    let mut command = Command::new(BINARY);
    command.args(["push", &format!("http://{}", server.address())]).args(arguments);
    command
}

/// The value of the metric whose line begins so.
fn metric(admin: &str, name: &str) -> u64 {
    let metrics = Client::connect(admin).request("GET", "/metrics", &[]).text();
    let value = metrics.lines().find_map(|line| line.strip_prefix(name));
    value.expect(&metrics).parse().unwrap()
}

#[test]
fn what_is_pushed_is_printed() {
    let (_directory, server) = serve(&[]);
    let output = push(&server, &["--topic", "a", "--data", "one"]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let first = String::from_utf8(output.stdout).unwrap();
    assert!(first.starts_with("urn:uuid:"), "{first}");
    let all = ["--topic", "a", "--last-event-id", "earliest"];
    let reader = Reader::subscribe(&server, &all);
    assert_eq!(reader.line(), "one");
    let mut pipe = push(&server, &["--topic", "a", "--type", "t"]);
    let mut child = pipe.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all("two\nthr\u{e9}e\n".as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.stdout.iter().filter(|byte| **byte == b'\n').count(), 2);
    assert_eq!([reader.line(), reader.line()], ["two", "thr\u{e9}e"]);
    let counted = Command::new(BINARY)
        .args(["subscribe", &format!("http://{}", server.address()), "--json", "-n", "3"])
        .args(all)
        .output()
        .unwrap();
    assert!(counted.status.success());
    let text = String::from_utf8(counted.stdout).unwrap();
    let lines: Vec<serde_json::Value> =
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines[0]["id"], first.trim());
    assert_eq!((&lines[1]["data"], &lines[1]["type"]), (&"two".into(), &"t".into()));
}

/// As in `pollux subscribe URL --topic a | head -1`.
#[test]
fn a_reader_that_closes_the_pipe_ends_the_subscription() {
    let (_directory, server) = serve(&[]);
    assert!(push(&server, &["--topic", "a", "--data", "one"]).output().unwrap().status.success());
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut subscribe = Command::new("timeout");
    subscribe.args(["60", BINARY, "subscribe", &format!("http://{}", server.address())]);
    subscribe.args(["--topic", "a", "--last-event-id", "earliest"]);
    let output = subscribe.stdout(writer).output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
}

/// As in `pollux push URL --topic a | head -1`: all lines are published. Regression: the command ended with an error.
#[test]
fn a_reader_that_closes_the_pipe_ends_no_publisher() {
    let (_directory, server) = serve(&[]);
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut command = push(&server, &["--topic", "a"]);
    command.stdin(Stdio::piped()).stdout(writer).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"one\ntwo\n").unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    let reader = Reader::subscribe(&server, &["--topic", "a", "--last-event-id", "earliest"]);
    assert_eq!([reader.line(), reader.line()], ["one", "two"]);
}

#[test]
fn a_refusal_is_reported() {
    let (directory, server) = serve(&["--hub-max-update", "100"]);
    let long = "x".repeat(200);
    let output = push(&server, &["--topic", "a", "--data", &long]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.contains("413") && stderr.contains("larger than 100 bytes"), "{stderr}");
    let url = format!("http://{}", server.address());
    let output = Command::new(BINARY).args(["subscribe", &url, "-p", "/:a("]).output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.contains("400") && stderr.contains("pattern"), "{stderr}");
    // Regression: the command requested this page again and again.
    std::fs::write(directory.path().join("page.html"), "page").unwrap();
    let page = format!("{url}/page.html");
    let output = Command::new(BINARY).args(["subscribe", &page, "-t", "a"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.contains("text/event-stream"), "{stderr}");
    let output = Command::new(BINARY).args(["push", "ftp://a", "--topic", "x"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn curl_publishes_and_subscribes() {
    let Ok(version) = Command::new("curl").arg("--version").output() else {
        println!("skipped: there is no curl");
        return;
    };
    assert!(version.status.success());
    let (_directory, server) = serve(&["--workers", "2"]);
    let hub = format!("http://{}/.well-known/mercure", server.address());
    let stream = Reader::start(Command::new("curl").args(["-sN", &format!("{hub}?match=a")]));
    assert_eq!(stream.line(), ":", "the stream is open");
    let post = Command::new("curl").args(["-s", "-d", "topic=a", "-d", "data=x", &hub]).output();
    let id = String::from_utf8(post.unwrap().stdout).unwrap();
    let lines: Vec<_> =
        std::iter::repeat_with(|| stream.line()).filter(|line| line != ":").take(3).collect();
    assert_eq!(lines, [format!("id: {id}"), "data: x".into(), String::new()]);
}

#[test]
fn a_subscriber_goes_on_where_it_was_when_the_hub_is_back() {
    let (directory, mut server) = serve(&[]);
    let address = server.address().to_owned();
    let reader = Reader::subscribe(&server, &["--topic", "a"]);
    server.wait_until("the subscriber", |now| now["connections"]["streams"] == 1);
    assert!(push(&server, &["--topic", "a", "--data", "1"]).status().unwrap().success());
    assert_eq!(reader.line(), "1");
    server.signal(rustix::process::Signal::TERM);
    let (status, _) = server.wait();
    assert!(status.success(), "{status}");
    let again = Serve::start(
        BINARY,
        directory.path(),
        &["--hub", "--hub-anonymous", "--hub-publish-anonymous", "--listen", &address],
    );
    // The history of the new hub is empty: it sends its updates from the beginning.
    assert!(push(&again, &["--topic", "a", "--data", "2"]).status().unwrap().success());
    assert_eq!(reader.line(), "2");
}

#[test]
fn the_example_connects_again_after_an_error() {
    let page = include_bytes!("../../../../examples/push/index.html");
    let mut node = Command::new("node");
    let node = node.args(["-e", include_str!("hub/page.js")]).stdin(Stdio::piped()).spawn();
    let Ok(mut node) = node else {
        println!("skipped: there is no node");
        return;
    };
    node.stdin.take().unwrap().write_all(page).unwrap();
    assert!(node.wait().unwrap().success());
}
