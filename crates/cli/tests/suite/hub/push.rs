//! `pollux push` and `pollux subscribe` in front of a hub that the test itself plays: connections that end, and all
//! framings of answers.

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

/// Regression test: the refusal once was lost, and the error said that the update may have been published.
#[test]
fn a_hub_may_refuse_an_update_before_it_has_read_all_of_it() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut child = push_lines(&listener);
    // More than the buffers of the two sockets take.
    child.stdin.take().unwrap().write_all("x".repeat(12 << 20).as_bytes()).unwrap();
    let mut stream = accept(&listener);
    stream.read_line(&mut String::new()).unwrap();
    let refusal = "HTTP/1.1 413 Content Too Large\r\nContent-Length: 8\r\n\r\ntoo much";
    stream.get_mut().write_all(refusal.as_bytes()).unwrap();
    // The rest of the update is not read, so this is a reset.
    drop(stream);
    let output = child.wait_with_output().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(error.contains("413: too much") && !error.contains("may have published"), "{error}");
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

#[test]
fn an_answer_may_have_any_framing() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut child = push_lines(&listener);
    child.stdin.take().unwrap().write_all(b"x\nx\nx\n").unwrap();
    let mut stream = accept(&listener);
    for bytes in [
        "HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nid",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;a=b\r\ni\r\n1\r\nd\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\n\r\nid",
    ] {
        assert_eq!(form(&mut stream), "topic=a&data=x");
        stream.get_mut().write_all(bytes.as_bytes()).unwrap();
    }
    drop(stream);
    let output = child.wait_with_output().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{error}");
    assert_eq!(output.stdout, b"id\nid\nid\n");
}

#[test]
fn a_stream_may_have_any_framing() {
    const EVENTS: &str = "id: 1\ndata: one\n\nid: 2\ndata: two\n\n";
    let head =
        "HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n";
    let length = EVENTS.len();
    for rest in [
        format!("Transfer-Encoding: chunked\r\n\r\n{length:x};a=b\r\n{EVENTS}\r\n"),
        format!("Connection: close\r\n\r\n{EVENTS}"),
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let mut command = Command::new(BINARY);
        command.args(["subscribe", &url, "--topic", "a", "--count", "2"]);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = command.spawn().unwrap();
        let mut stream = accept(&listener);
        assert_eq!(form(&mut stream), "", "a GET has none");
        stream.get_mut().write_all(format!("{head}{rest}").as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{error}");
        assert_eq!(output.stdout, b"one\ntwo\n");
    }
}

/// Regression test: the command once fetched such an update again and again.
#[test]
fn an_update_that_is_too_long_is_skipped() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let mut command = Command::new(BINARY);
    command.args(["subscribe", &url, "--topic", "a", "--count", "2"]).stdin(Stdio::null());
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stream = accept(&listener);
    form(&mut stream);
    let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n";
    let long = "x".repeat((16 << 20) + 1);
    let events = format!("id: 1\ndata: one\n\nid: 2\ndata: {long}\n\n");
    // The command ends the connection, and this write fails, if it does not read on.
    stream.get_mut().write_all(format!("{head}{events}").as_bytes()).unwrap();
    drop(stream);
    let mut stream = accept(&listener);
    let mut request = String::new();
    while !request.ends_with("\r\n\r\n") {
        assert_ne!(stream.read_line(&mut request).unwrap(), 0, "{request}");
    }
    assert!(request.contains("\r\nLast-Event-ID: 2\r\n"), "{request}");
    stream.get_mut().write_all(format!("{head}id: 3\ndata: three\n\n").as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{error}");
    assert_eq!(output.stdout, b"one\nthree\n");
    assert_eq!(error, "an event of more than 16777216 bytes was skipped (id \"2\")\n");
}

/// Regression test: the message once ended in a colon.
#[test]
fn an_answer_without_a_text_is_described() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let mut command = Command::new(BINARY);
    command.args(["subscribe", &url, "--topic", "a"]).stdin(Stdio::null());
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stream = accept(&listener);
    form(&mut stream);
    stream.get_mut().write_all(b"HTTP/1.1 204 No Content\r\n\r\n").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "pollux: the hub answers 204\n");
}

/// Runs `pollux push` in front of a server that answers so. Returns the exit status, the output and the error.
fn pushed(arguments: &[&str], answer: &str) -> (Option<i32>, String, String) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let mut command = Command::new(BINARY);
    command
        .args(["push", &url, "--topic", "a", "--data", "x"])
        .args(arguments)
        .stdin(Stdio::null());
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stream = accept(&listener);
    form(&mut stream);
    stream.get_mut().write_all(answer.as_bytes()).unwrap();
    drop(stream);
    let output = child.wait_with_output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

/// Regression test: any text of another web server was once printed as an identifier, with exit status 0.
#[test]
fn an_answer_without_an_identifier_is_no_hubs() {
    let html = "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n";
    for answer in [
        format!("{html}<html>hi</html>"),
        format!("{html}two\nlines"),
        format!("{html}\x1b[2J"),
        html.to_owned(),
        "HTTP/1.1 204 No Content\r\n\r\n".to_owned(),
    ] {
        let (code, out, error) = pushed(&[], &answer);
        assert_eq!((code, out.as_str()), (Some(1), ""), "{answer:?}: {error}");
        assert!(error.contains("is this the URL of a hub?"), "{error}");
    }
    // The protocol asks for no media type, and allows each status of success.
    let (code, out, error) = pushed(&[], "HTTP/1.1 201 Created\r\n\r\n#7\n");
    assert_eq!((code, out.as_str()), (Some(0), "#7\n"), "{error}");
    // An identifier of the publisher's own is no IRI.
    let (code, out, error) = pushed(&["--id", "a <b>"], &format!("{html}a <b>"));
    assert_eq!((code, out.as_str()), (Some(0), "a <b>\n"), "{error}");
}

/// Regression test: the text of a refusal once reached the terminal as it was.
#[test]
fn the_text_of_a_refusal_cannot_control_the_terminal() {
    let refusal = "HTTP/1.1 403 Forbidden\r\n\r\nno\x1b[2J\nnever";
    let (code, _, error) = pushed(&[], refusal);
    assert_eq!(code, Some(1));
    assert_eq!(error, "pollux: the hub answers 403: no\\u{1b}[2J\nnever\n");
}

/// Regression test: the value once went into the request as it was, and one command sent two requests.
#[test]
fn an_identifier_that_would_begin_another_request_is_refused() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    for id in ["1\r\nX-Evil: 1\r\n\r\nGET /second HTTP/1.1\r\nHost: x", "1\n2", "\x1b[2J", "\x7f"] {
        let subscribe = ["subscribe", &url, "--topic", "a", "--last-event-id", id];
        let output =
            Command::new("timeout").arg("60").arg(BINARY).args(subscribe).output().unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{id:?}: {error}");
        assert!(
            error.contains("--last-event-id") && error.contains("control character"),
            "{error}"
        );
        assert!(!error.contains(['\r', '\x1b']), "{error:?}");
    }
    listener.set_nonblocking(true).unwrap();
    assert_eq!(listener.accept().unwrap_err().kind(), ErrorKind::WouldBlock, "no connection");
}

/// No other text of the command line can begin another request either.
#[test]
fn a_topic_or_an_address_begins_no_other_request() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let evil = "a\r\nX-Evil: 1\r\n\r\n";
    let url = format!("http://{}/{evil}?{evil}#{evil}", listener.local_addr().unwrap());
    let mut command = Command::new(BINARY);
    command.args(["subscribe", &url, "--topic", evil, "--pattern", evil, "--count", "1"]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let child = command.spawn().unwrap();
    let mut stream = accept(&listener);
    let mut request = String::new();
    while !request.ends_with("\r\n\r\n") {
        assert_ne!(stream.read_line(&mut request).unwrap(), 0, "{request}");
    }
    let stream_head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n";
    stream.get_mut().write_all(format!("{stream_head}data: x\n\n").as_bytes()).unwrap();
    assert!(child.wait_with_output().unwrap().status.success());
    assert!(!request.contains("\nX-Evil"), "{request}");
    let mut rest = String::new();
    stream.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "", "one request");
}

#[test]
fn a_url_with_a_password_is_refused() {
    let url = "http://me:secret@127.0.0.1:9";
    let output = Command::new(BINARY).args(["push", url, "-t", "a", "-d", "x"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8(output.stderr).unwrap().contains("--token-file"));
}
