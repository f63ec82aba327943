//! Subscribers of the hub with their own parser, and a publisher.

use pollux_testkit::http::{Client, PATIENCE};
use std::{
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
};

/// A connection that reads events.
pub(super) struct Subscriber<S>(pub(super) BufReader<S>);

impl<S: Read + Write> Subscriber<S> {
    pub(super) fn new(mut stream: S, query: &str, fields: &str) -> Self {
        write!(stream, "GET /.well-known/mercure?{query} HTTP/1.1\r\nHost: h\r\n{fields}\r\n")
            .unwrap();
        stream.flush().unwrap();
        let mut subscriber = Self(BufReader::new(stream));
        let status = subscriber.line().expect("a response");
        assert!(status.starts_with("HTTP/1.1 200 "), "{status}");
        while subscriber.line().expect("the first comment") != ":\n" {}
        subscriber
    }

    /// Returns the next line; `None` at the end of the connection.
    fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        self.0.read_line(&mut line).is_ok_and(|count| count > 0).then_some(line)
    }

    /// Returns the identifier and the content of the next event; `None` at the end of the connection.
    pub(super) fn event(&mut self) -> Option<(String, String)> {
        let mut id = String::new();
        loop {
            let line = self.line()?;
            if let Some(text) = line.strip_prefix("id: ") {
                id = text.trim_end().to_owned();
            } else if let Some(data) = line.strip_prefix("data: ") {
                return Some((id, data.trim_end().to_owned()));
            }
        }
    }

    /// Returns the content of the next event; the connection must not end before.
    pub(super) fn data(&mut self) -> String {
        self.event().expect("the connection has ended").1
    }

    /// Reads to the end of the stream, which must be complete.
    pub(super) fn read_to_end(&mut self) {
        let mut rest = Vec::new();
        self.0.read_to_end(&mut rest).unwrap();
        assert!(rest.ends_with(b"0\r\n\r\n"), "{}", rest.escape_ascii());
    }
}

pub(super) fn connect(address: &str) -> TcpStream {
    let socket = TcpStream::connect(address).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket.set_nodelay(true).unwrap();
    socket
}

pub(super) fn publish(client: &mut Client, topic: &str, data: &str) {
    let body = format!("topic={topic}&data={data}");
    client.send(format!(
        "POST /.well-known/mercure HTTP/1.1\r\nHost: h\r\nContent-Length: {}\r\n\
         Content-Type: application/x-www-form-urlencoded\r\n\r\n{body}",
        body.len()
    ));
    assert_eq!(client.reply().status, 200);
}
