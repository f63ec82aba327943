//! `pollux push` if a connection ends, in front of a hub that the test itself plays.

use super::*;
use std::{
    io::{ErrorKind, Read},
    net::{TcpListener, TcpStream},
};

/// Starts the command, which publishes the lines that it reads.
fn push_lines(listener: &TcpListener) -> Child {
    let url = format!("http://{}", listener.local_addr().unwrap());
    let mut command = Command::new(BINARY);
    command.args(["push", &url, "--topic", "a"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn accept(listener: &TcpListener) -> BufReader<TcpStream> {
    let stream = listener.accept().unwrap().0;
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    BufReader::new(stream)
}

/// Reads a request and returns its form.
fn form(stream: &mut BufReader<TcpStream>) -> String {
    let mut length = 0;
    loop {
        let mut line = String::new();
        assert_ne!(stream.read_line(&mut line).unwrap(), 0, "the connection has ended");
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
        if line == "\r\n" {
            break;
        }
    }
    let mut form = vec![0; length];
    stream.read_exact(&mut form).unwrap();
    String::from_utf8(form).unwrap()
}

fn answer(stream: &mut BufReader<TcpStream>) {
    stream.get_mut().write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nid").unwrap();
}

#[test]
fn an_update_that_may_be_published_is_not_sent_again() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut child = push_lines(&listener);
    child.stdin.take().unwrap().write_all(b"one\ntwo\n").unwrap();
    let mut stream = accept(&listener);
    assert_eq!(form(&mut stream), "topic=a&data=one");
    answer(&mut stream);
    assert_eq!(form(&mut stream), "topic=a&data=two");
    // The hub has the second update, but its answer is lost.
    drop(stream);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("may have published the update"), "{error}");
    listener.set_nonblocking(true).unwrap();
    assert_eq!(listener.accept().unwrap_err().kind(), ErrorKind::WouldBlock, "no second attempt");
}

#[test]
fn a_connection_that_the_hub_has_closed_is_replaced() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut child = push_lines(&listener);
    let mut input = child.stdin.take().unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    for line in ["one", "two"] {
        input.write_all(format!("{line}\n").as_bytes()).unwrap();
        let mut stream = accept(&listener);
        assert_eq!(form(&mut stream), format!("topic=a&data={line}"));
        answer(&mut stream);
        // As a hub does with a connection that was idle for too long.
        drop(stream);
        let mut printed = String::new();
        output.read_line(&mut printed).unwrap();
        assert_eq!(printed, "id\n");
    }
    drop(input);
    assert!(child.wait().unwrap().success());
}
