//! The hub over real connections, on every mechanism.

#[path = "hub/abuse.rs"]
mod abuse;
#[path = "hub/access.rs"]
mod access;
#[path = "hub/delivery.rs"]
mod delivery;
#[path = "hub/faults.rs"]
mod faults;
#[path = "hub/keys.rs"]
mod keys;
#[path = "hub/lifetime.rs"]
mod lifetime;
#[path = "hub/memory.rs"]
mod memory;
#[path = "hub/metrics.rs"]
mod metrics;
#[path = "hub/protocol.rs"]
mod protocol;
#[path = "hub/redis.rs"]
mod redis;

use pollux_event::registry;
use pollux_server::{
    Server, Settings,
    config::{HubConfig, Listen, MechanismChoice},
    stats::Statistics,
};
use pollux_testkit::{
    http::{Client, PATIENCE, Reply},
    wait_until,
};
use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpStream},
    sync::Arc,
    time::{Duration, Instant},
};

const PATH: &str = "/.well-known/mercure";

/// A server with a hub.
struct Hub {
    server: Server,
    address: SocketAddr,
}

impl Hub {
    /// Starts a hub at which every client may subscribe and publish, unless `change` sets other
    /// permissions.
    fn start(workers: usize, change: impl FnOnce(&mut Settings, &mut HubConfig)) -> Self {
        let mut hub = HubConfig::new(PATH);
        hub.anonymous = true;
        hub.publish_anonymous = true;
        hub.origin = Some("http://hub.test".into());
        let mut config = Settings::new("");
        config.site.directory = None;
        config.listen = vec!["127.0.0.1:0".parse().unwrap()];
        config.workers = workers;
        change(&mut config, &mut hub);
        config.hub = Some(Arc::new(hub));
        let server = Server::start(config).unwrap();
        let Listen::Tcp(address) = server.addresses()[0] else { panic!("no address") };
        Self { server, address }
    }

    fn open() -> Self {
        Self::start(1, |_, _| ())
    }

    fn statistics(&self) -> Statistics {
        self.server.statistics()
    }

    fn client(&self) -> Client {
        Client::connect(self.address)
    }

    /// Sends a request with these fields and returns the reply.
    fn request(&self, method: &str, target: &str, fields: &[&str]) -> Reply {
        self.client().request(method, target, fields)
    }

    /// Posts a form and returns the reply.
    fn post(&self, form: &str, fields: &[&str]) -> Reply {
        post(&mut self.client(), form, fields)
    }

    /// Publishes an update of a topic and returns its identifier.
    fn publish(&self, topic: &str, data: &str) -> String {
        let reply = self.post(&format!("topic={topic}&data={data}"), &[]);
        assert_eq!(reply.status, 200, "{}", reply.text());
        reply.text()
    }

    /// Subscribes with this query.
    fn subscribe(&self, query: &str, fields: &[&str]) -> Stream {
        Stream::open(self.address, query, fields)
    }
}

fn post(client: &mut Client, form: &str, fields: &[&str]) -> Reply {
    let mut text = format!(
        "POST {PATH} HTTP/1.1\r\nHost: hub.test\r\nContent-Length: {}\r\n\
         Content-Type: application/x-www-form-urlencoded\r\n",
        form.len()
    );
    for field in fields {
        text.push_str(&format!("{field}\r\n"));
    }
    client.send(format!("{text}\r\n{form}"));
    client.reply_to("POST")
}

/// A subscriber with its own parser of events, which shares no code with the server.
struct Stream {
    reader: BufReader<TcpStream>,
    head: Vec<String>,
    /// The comments received so far, including heartbeats.
    comments: Vec<String>,
    /// The part of the last chunk that `line` has not returned yet.
    text: String,
    /// Whether the chunk that ends the stream has been received.
    has_end: bool,
}

/// An event, field by field.
#[derive(Debug, Default, PartialEq, Eq)]
struct SseEvent {
    id: String,
    event: String,
    retry: String,
    data: String,
}

impl Stream {
    fn open(address: SocketAddr, query: &str, fields: &[&str]) -> Self {
        let mut socket = TcpStream::connect(address).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let fields: String = fields.iter().map(|field| format!("{field}\r\n")).collect();
        let head = format!("GET {PATH}?{query} HTTP/1.1\r\nHost: hub.test\r\n{fields}\r\n");
        socket.write_all(head.as_bytes()).unwrap();
        let mut reader = BufReader::new(socket);
        let mut head = Vec::new();
        loop {
            let mut line = String::new();
            assert_ne!(reader.read_line(&mut line).unwrap(), 0, "no head: {head:?}");
            match line.trim_end() {
                "" => break,
                line => head.push(line.to_owned()),
            }
        }
        assert!(head[0].starts_with("HTTP/1.1 200 "), "{head:?}");
        Self { reader, head, comments: Vec::new(), text: String::new(), has_end: false }
    }

    fn field(&self, name: &str) -> Option<&str> {
        let prefix = format!("{}: ", name.to_ascii_lowercase());
        let is_it = |line: &&String| line.to_ascii_lowercase().starts_with(&prefix);
        self.head.iter().find(is_it).map(|line| &line[prefix.len()..])
    }

    /// Returns the next chunk; `None` at the end.
    fn chunk(&mut self) -> Option<String> {
        let mut line = String::new();
        self.reader.read_line(&mut line).ok().filter(|count| *count > 0)?;
        let len = usize::from_str_radix(line.trim_end(), 16).expect("the length of a chunk");
        let mut chunk = vec![0; len + 2];
        self.reader.read_exact(&mut chunk).ok()?;
        assert!(chunk.ends_with(b"\r\n"));
        chunk.truncate(len);
        self.has_end = len == 0;
        (len > 0).then(|| String::from_utf8(chunk).unwrap())
    }

    fn line(&mut self) -> Option<String> {
        while !self.text.contains('\n') {
            let chunk = self.chunk()?;
            self.text.push_str(&chunk);
        }
        let (line, rest) = self.text.split_once('\n').unwrap();
        let (line, rest) = (line.to_owned(), rest.to_owned());
        self.text = rest;
        Some(line)
    }

    /// Returns the next event, parsed as the HTML Standard defines; `None` at the end of the stream.
    fn event(&mut self) -> Option<SseEvent> {
        let mut event = SseEvent::default();
        let mut has_data = false;
        loop {
            let line = self.line()?;
            if line.is_empty() {
                if has_data {
                    return Some(event);
                }
                continue;
            }
            if let Some(comment) = line.strip_prefix(':') {
                self.comments.push(comment.to_owned());
                continue;
            }
            let (name, value) = line.split_once(": ").unwrap_or((&line, ""));
            match name {
                "id" => event.id = value.to_owned(),
                "event" => event.event = value.to_owned(),
                "retry" => event.retry = value.to_owned(),
                "data" => {
                    if has_data {
                        event.data.push('\n');
                    }
                    event.data.push_str(value);
                    has_data = true;
                }
                other => panic!("no field of an event: {other}"),
            }
        }
    }

    /// Returns the content of the next event.
    fn data(&mut self) -> String {
        self.event().expect("an event").data
    }
}

/// Calls `test` with each mechanism that this kernel has.
fn on_every_mechanism(test: impl Fn(MechanismChoice)) {
    for description in registry::ALL {
        let spec = description.name.parse().unwrap();
        match registry::probe(&spec) {
            Ok(()) => test(MechanismChoice::Named(spec)),
            Err(reason) => println!("{}: skipped, as {reason}", description.name),
        }
    }
}
