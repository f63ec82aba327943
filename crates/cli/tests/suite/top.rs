//! `pollux top` with a running server.

use pollux_testkit::serve::Serve;
use std::{
    net::TcpListener,
    process::{Command, Output},
};

const BINARY: &str = env!("CARGO_BIN_EXE_pollux");

fn top(arguments: &[&str]) -> Output {
    Command::new(BINARY).arg("top").args(arguments).output().unwrap()
}

#[test]
fn figures_are_shown_once() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("index.html"), "a").unwrap();
    let admin = format!("unix:{}", directory.path().join("admin").display());
    let server = Serve::start(BINARY, directory.path(), &["--admin", &admin]);
    for _ in 0..3 {
        assert_eq!(server.client().get("/").text(), "a");
    }
    // As in `pollux top ADDRESS | head -1`, which ends without a message.
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let closed =
        Command::new("timeout").args(["60", BINARY, "top", &admin]).stdout(writer).output();
    let closed = closed.unwrap();
    assert!(closed.status.success() && closed.stderr.is_empty(), "{closed:?}");
    let output = top(&[&admin, "--once"]);
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let row = text.lines().find(|line| line.contains("so far")).expect("a row of requests");
    assert!(row.contains('3'), "{text}");
    assert!(text.contains("1 of 1"), "{text}");
}

#[test]
fn figures_of_a_hub_are_shown_where_there_is_one() {
    let directory = tempfile::tempdir().unwrap();
    let figures = |name: &str, arguments: &[&str], updates: usize| {
        let admin = format!("unix:{}", directory.path().join(name).display());
        let server =
            Serve::start(BINARY, directory.path(), &[&["--admin", &admin], arguments].concat());
        for _ in 0..updates {
            let url = format!("http://{}", server.address());
            let push = ["push", &url, "--topic", "a", "--data", "x"];
            let push = Command::new(BINARY).args(push).output().unwrap();
            assert!(push.status.success(), "{push:?}");
        }
        let output = top(&[&admin, "--once"]);
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let text = figures("one", &["--hub", "--hub-anonymous", "--hub-publish-anonymous"], 3);
    let row = text.lines().find(|line| line.contains("updates accepted so far"));
    assert!(row.expect("a row of updates").contains('3'), "{text}");
    let text = figures("other", &[], 0);
    assert!(!text.contains("Hub") && !text.contains("updates"), "{text}");
}

#[test]
fn a_path_that_is_too_long_for_a_socket_is_reported_in_plain_words() {
    let output = top(&[&format!("unix:/{}", "long".repeat(30)), "--once"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("the path of a socket has at most 107 bytes"), "{text}");
}

#[test]
fn a_server_without_figures_is_reported() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    drop(listener);
    let output = top(&[&address, "--once"]);
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(text.contains("--admin ADDRESS"), "{text}");
    // An ordinary site is not an admin listener.
    let directory = tempfile::tempdir().unwrap();
    let server = Serve::start(BINARY, directory.path(), &[]);
    let output = top(&[server.address(), "--once"]);
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(text.contains("404"), "{text}");
}
