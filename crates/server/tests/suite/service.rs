//! The public service interface, as another crate uses it: the examples, framing, trailers, the memory
//! of a stream, and a service that wakes all of its streams.

#[allow(dead_code, reason = "`main` is for the example alone")]
#[path = "../../examples/clock.rs"]
mod clock;
#[allow(dead_code, reason = "`main` is for the example alone")]
#[path = "../../examples/hello.rs"]
mod hello;

use pollux_server::{
    Server, Settings,
    config::Listen,
    service::{
        Event, ExchangeId, Flow, Part, Request, RequestContext, ResponseWriter, Service, Status,
        Target, WakeReason,
    },
};
use pollux_testkit::{
    allocations::bytes_held,
    http::{Client, PATIENCE},
};
use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    sync::Arc,
    time::Duration,
};

fn address(server: &Server) -> SocketAddr {
    let Listen::Tcp(address) = server.addresses()[0] else { panic!("a TCP address") };
    address
}

fn connect(server: &Server) -> TcpStream {
    let client = TcpStream::connect(address(server)).unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    client
}

/// Sends a request and reads until `text` has arrived.
fn read_until(client: &mut TcpStream, request: &str, text: &str) -> String {
    client.write_all(request.as_bytes()).unwrap();
    let mut got = Vec::new();
    let mut buffer = [0; 4096];
    while !String::from_utf8_lossy(&got).contains(text) {
        let count = client.read(&mut buffer).unwrap();
        assert!(count > 0, "ended after {:?}", String::from_utf8_lossy(&got));
        got.extend_from_slice(&buffer[..count]);
    }
    String::from_utf8(got).unwrap()
}

fn to_end(client: &mut TcpStream, request: &str) -> String {
    client.write_all(request.as_bytes()).unwrap();
    let mut text = String::new();
    client.read_to_string(&mut text).unwrap();
    text
}

#[test]
fn hello_says_hello_and_keeps_the_connection() {
    let server = Server::start_with(Settings::new("."), || Ok(hello::Hello)).unwrap();
    let mut client = Client::connect(address(&server));
    for _ in 0..3 {
        let reply = client.get("/anything");
        assert_eq!((reply.status, reply.text().as_str()), (200, "hello\n"));
    }
    server.stop(Duration::from_secs(5)).unwrap();
}

#[test]
fn clock_sends_events_until_the_client_leaves() {
    let server = Server::start_with(Settings::new("."), || Ok(clock::Clock::default())).unwrap();
    let mut client = connect(&server);
    let text = read_until(&mut client, "GET / HTTP/1.1\r\nHost: t\r\n\r\n", "data: ");
    assert!(text.contains("Content-Type: text/event-stream\r\n"), "{text}");
    assert!(text.contains("Transfer-Encoding: chunked\r\n"), "{text}");
    read_until(&mut client, "", "data: ");
    drop(client);
    server.stop(Duration::ZERO).unwrap();
}

/// A service that answers in each way that the writer offers; the path selects the way.
#[derive(Default)]
struct Ways {
    streams: Vec<ExchangeId>,
}

impl Service for Ways {
    type Exchange = ();

    fn begin(
        &mut self,
        context: &mut RequestContext<'_>,
        request: &Request<'_>,
        response: &mut ResponseWriter<'_>,
    ) -> Flow<()> {
        let Target::Path { path, .. } = request.target else { return Flow::Cut };
        let head = response.head(context, Status::Ok);
        match path {
            b"/short" => {
                let mut body = head.length(10);
                body.data(b"short");
                body.end()
            }
            b"/long" => {
                let mut body = head.length(4);
                body.data(b"longer");
                body.end()
            }
            b"/shared" => {
                let bytes: Arc<[u8]> = (*b"0123456789").into();
                let mut body = head.stream();
                body.shared(&bytes, 2..6);
                body.data(b"");
                body.data(b"!");
                body.end()
            }
            b"/trailers" => {
                let mut body = head.field("Trailer", b"Sum").stream();
                body.data(b"content");
                body.end_with_trailers(&[("Sum", b"7")])
            }
            b"/empty" => head.empty(),
            b"/stream" => {
                let _open = head.stream();
                self.streams.push(context.id());
                Flow::Waiting(())
            }
            b"/wake" => {
                for &stream in &self.streams {
                    context.reactor.wake(stream, WakeReason::Ready);
                }
                let mut body = head.length(4);
                body.data(b"done");
                body.end()
            }
            b"/upload" => {
                let _open = head.stream();
                Flow::NeedBody(())
            }
            _ => head.empty(),
        }
    }

    fn body(
        &mut self,
        _context: &mut RequestContext<'_>,
        (): (),
        part: Part<'_>,
        response: &mut ResponseWriter<'_>,
    ) -> Flow<()> {
        let mut body = response.body().expect("the head is written");
        match part {
            Part::Data(bytes) => {
                body.data(bytes);
                Flow::NeedBody(())
            }
            Part::End { .. } => body.end(),
        }
    }

    fn resume(
        &mut self,
        _context: &mut RequestContext<'_>,
        (): (),
        event: Event<'_>,
        response: &mut ResponseWriter<'_>,
    ) -> Flow<()> {
        match (event, response.body()) {
            (Event::Woken(_), Some(mut body)) => {
                body.data(b"woken\n");
                Flow::Waiting(())
            }
            _ => Flow::Waiting(()),
        }
    }
}

fn ways() -> Server {
    Server::start_with(Settings::new("."), || Ok(Ways::default())).unwrap()
}

#[test]
fn the_protocol_frames_what_a_service_writes() {
    let server = ways();
    let get = |path: &str, version: &str| {
        let request = format!("GET {path} HTTP/{version}\r\nHost: t\r\nConnection: close\r\n\r\n");
        to_end(&mut connect(&server), &request)
    };
    // Excess content is not sent; if content is missing, the connection ends in the middle of the
    // response.
    assert!(get("/long", "1.1").ends_with("Content-Length: 4\r\nConnection: close\r\n\r\nlong"));
    assert!(get("/short", "1.1").ends_with("\r\n\r\nshort"));
    let chunked = get("/shared", "1.1");
    assert!(chunked.ends_with("\r\n\r\n4\r\n2345\r\n1\r\n!\r\n0\r\n\r\n"), "{chunked}");
    let old = get("/shared", "1.0");
    assert!(!old.contains("chunked") && old.ends_with("\r\n\r\n2345!"), "{old}");
    assert!(get("/trailers", "1.1").ends_with("7\r\ncontent\r\n0\r\nSum: 7\r\n\r\n"));
    assert!(get("/trailers", "1.0").ends_with("\r\n\r\ncontent"));
    assert!(get("/empty", "1.1").contains("Content-Length: 0\r\n"));
    let head = "HEAD /long HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n";
    let text = to_end(&mut connect(&server), head);
    assert!(text.contains("Content-Length: 4\r\n") && text.ends_with("\r\n\r\n"), "{text}");
    let upload =
        "POST /upload HTTP/1.1\r\nHost: t\r\nConnection: close\r\nContent-Length: 4\r\n\r\nbody";
    assert!(to_end(&mut connect(&server), upload).ends_with("4\r\nbody\r\n0\r\n\r\n"));
    server.stop(Duration::from_secs(5)).unwrap();
}

#[test]
fn a_service_that_is_woken_writes_to_each_of_its_streams() {
    let server = ways();
    let mut streams: Vec<_> = (0..50).map(|_| connect(&server)).collect();
    for stream in &mut streams {
        read_until(stream, "GET /stream HTTP/1.1\r\nHost: t\r\n\r\n", "\r\n\r\n");
    }
    let mut client = Client::connect(address(&server));
    for _ in 0..3 {
        assert_eq!(client.get("/wake").text(), "done");
        for stream in &mut streams {
            read_until(stream, "", "6\r\nwoken\n\r\n");
        }
    }
    server.stop(Duration::ZERO).unwrap();
}

/// A stream that has nothing to send owns only the state of its exchange and one pointer.
#[test]
fn a_stream_that_waits_costs_at_most_64_bytes_beyond_its_connection() {
    pollux_testkit::alone!(a_stream_that_waits_costs_at_most_64_bytes_beyond_its_connection);
    const STREAMS: usize = 400;
    const EACH: i64 = STREAMS as i64;
    let make = || Ok(Ways { streams: Vec::with_capacity(STREAMS) });
    let server = Server::start_with(Settings::new("."), make).unwrap();
    let mut clients: Vec<_> = (0..STREAMS).map(|_| connect(&server)).collect();
    let mut send = |path: &str, end: &str| {
        for client in &mut clients {
            read_until(client, &format!("GET {path} HTTP/1.1\r\nHost: t\r\n\r\n"), end);
        }
        bytes_held()
    };
    send("/empty", "\r\n\r\n");
    let idle = send("/empty", "\r\n\r\n");
    let waiting = send("/stream", "\r\n\r\n");
    let each = (waiting - idle) / EACH;
    assert!(each > 0 && each <= 64, "a waiting stream costs {each} bytes");
    println!("a waiting stream costs {each} bytes");
    // It costs no more after it has sent something.
    let mut client = Client::connect(address(&server));
    let mut wake = |clients: &mut [TcpStream]| {
        assert_eq!(client.get("/wake").text(), "done");
        read_event_of_each(clients);
        bytes_held()
    };
    // The first round allocates the worker's queue of wake-ups, which the worker keeps and uses again.
    let before = wake(&mut clients);
    println!("a first event leaves {} bytes for each stream", (before - waiting) / EACH);
    let after = (wake(&mut clients) - before) / EACH;
    assert!(after <= 8, "a stream that has sent something keeps {after} bytes");
    drop(clients);
    server.stop(Duration::ZERO).unwrap();
}

/// Reads the event that was sent to each stream.
fn read_event_of_each(streams: &mut [TcpStream]) {
    for stream in streams {
        read_until(stream, "", "6\r\nwoken\n\r\n");
    }
}
