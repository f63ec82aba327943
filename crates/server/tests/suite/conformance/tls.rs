//! The same requests over TLS, with a client that uses rustls alone.

use super::{DISCIPLINES, TestServer};
use pollux_server::{
    Settings,
    config::{Architecture, Discipline, TlsConfig},
    settings::Tls,
};
use pollux_testkit::{
    conformance::{Segmentation, Site, check_over_tls},
    http::Client,
    tls::{TlsStream, Version},
};
use socket2::{Domain, Socket, Type};
use std::{
    fs,
    io::{Read as _, Write as _},
    net::TcpStream,
    path::Path,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

const VERSIONS: [Version; 2] = [Version::Tls12, Version::Tls13];

/// A way to serve: on a mechanism, or in an architecture of threads.
const SETTINGS: [&str; 4] = ["epoll", "epoll-et", "poll", "prethreaded"];

/// Serves `directory` with a certificate that signs itself.
fn serve(directory: &Path, setting: &str, interest: Discipline) -> TestServer {
    serve_with(directory, setting, |config| config.interest = interest)
}

fn serve_with(directory: &Path, setting: &str, change: impl FnOnce(&mut Settings)) -> TestServer {
    TestServer::start(directory, |config: &mut Settings| {
        config.tls = Some(Arc::new(Tls::new(&TlsConfig::default()).unwrap()));
        match setting.parse::<Architecture>() {
            Ok(architecture) => config.architecture = architecture,
            Err(_) => config.mechanism = super::MechanismChoice::Named(setting.parse().unwrap()),
        }
        change(config);
    })
}

#[test]
fn the_corpus_over_tls() {
    let site = Site::make();
    thread::scope(|scope| {
        for setting in SETTINGS {
            let site = &site;
            scope.spawn(move || {
                let server = serve(&site.root(), setting, Discipline::Eager);
                for version in VERSIONS {
                    let name = format!("{setting}, {version:?}");
                    check_over_tls(server.address(), version, Segmentation::Whole, &name);
                }
            });
        }
    });
}

/// The replies do not depend on how the bytes are divided into records.
#[test]
fn the_corpus_over_tls_in_pieces() {
    let site = Site::make();
    thread::scope(|scope| {
        for interest in DISCIPLINES {
            let site = &site;
            scope.spawn(move || {
                let server = serve(&site.root(), "epoll-et", interest);
                for pieces in [Segmentation::Bytes, Segmentation::Halves] {
                    let name = format!("{interest:?}, {pieces:?}");
                    check_over_tls(server.address(), Version::Tls13, pieces, &name);
                }
            });
        }
    });
}

/// More bytes than the sockets' buffers hold at once.
const LEN: usize = 24 << 20;

/// A client that reads a long file slowly gets all of it, while others are served, and the connection
/// serves further requests.
#[test]
fn a_slow_reader_gets_a_long_file() {
    let directory = tempfile::tempdir().unwrap();
    let content: Vec<u8> =
        (0..LEN as u32).map(|at| (at.wrapping_mul(0x9e37_79b1) >> 24) as u8).collect();
    fs::write(directory.path().join("long"), &content).unwrap();
    fs::write(directory.path().join("short"), "short").unwrap();
    thread::scope(|scope| {
        for (setting, interest) in [
            ("epoll", Discipline::Eager),
            ("epoll-et", Discipline::Eager),
            ("epoll-et", Discipline::PerState),
            ("prethreaded", Discipline::Eager),
        ] {
            let (directory, content) = (directory.path(), &content);
            scope.spawn(move || {
                let server = serve(directory, setting, interest);
                for version in VERSIONS {
                    read_slowly(&server, content, version, &format!("{setting}, {interest:?}"));
                }
            });
        }
    });
}

fn read_slowly(server: &TestServer, content: &[u8], version: Version, setting: &str) {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.set_recv_buffer_size(32 << 10).unwrap();
    socket.connect(&server.address().into()).unwrap();
    let mut stream = TlsStream::new(socket.into(), version);
    stream.write_all(b"GET /long HTTP/1.1\r\nHost: test\r\n\r\n").unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).unwrap();
    assert!(head.contains(&format!("Content-Length: {LEN}\r\n")), "{setting}: {head}");
    let mut at = 0;
    let mut buffer = vec![0; 300_000];
    for piece in 0_u64.. {
        let room = buffer.len().min(LEN - at);
        if room == 0 {
            break;
        }
        // A slow reader: the server's socket is full several times.
        if piece.is_multiple_of(16) {
            thread::sleep(Duration::from_millis(40));
        }
        stream.read_exact(&mut buffer[..room]).unwrap();
        assert!(buffer[..room] == content[at..][..room], "{setting}: other bytes behind {at}");
        at += room;
        if piece == 8 {
            let other = TcpStream::connect(server.address()).unwrap();
            let mut other = Client::over(TlsStream::new(other, version));
            assert_eq!(other.get("/short").text(), "short", "{setting}");
        }
    }
    let mut client = Client::over(stream);
    assert_eq!(client.get("/short").text(), "short", "{setting}");
}

/// After a request, a client begins a record and sends a byte of it from time to time. It must not stay longer than one
/// that does the same with a request.
#[test]
fn a_record_must_be_complete_in_time() {
    const HEADER_TIMEOUT: Duration = Duration::from_secs(1);
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("page"), "content").unwrap();
    thread::scope(|scope| {
        for setting in SETTINGS {
            let directory = directory.path();
            scope.spawn(move || {
                let server = serve_with(directory, setting, |config| {
                    config.timeouts.header = HEADER_TIMEOUT;
                    config.timeouts.keep_alive = Duration::from_secs(600);
                });
                let socket = TcpStream::connect(server.address()).unwrap();
                let mut stream = TlsStream::new(socket, Version::Tls13);
                for _ in 0..20 {
                    stream.write_all(b"GET /page HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
                    let mut reply = Vec::new();
                    while !reply.ends_with(b"content") {
                        let mut buffer = [0; 1000];
                        let len = stream.read(&mut buffer).unwrap();
                        assert!(len > 0, "{setting}");
                        reply.extend_from_slice(&buffer[..len]);
                    }
                }
                let mut socket = stream.socket();
                let begun = Instant::now();
                socket.write_all(&[23, 3, 3, 0x10, 0]).unwrap();
                socket.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
                loop {
                    assert!(begun.elapsed() < 10 * HEADER_TIMEOUT, "{setting}: it is still open");
                    // The end of the stream, after close_notify, or a reset.
                    let outcome = socket.read(&mut [0; 100]);
                    match outcome {
                        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                        Ok(len) if len > 0 => {}
                        _ => break,
                    }
                    if socket.write_all(&[0]).is_err() {
                        break;
                    }
                }
                assert!(begun.elapsed() >= HEADER_TIMEOUT / 2, "{setting}: it has ended too soon");
            });
        }
    });
}
