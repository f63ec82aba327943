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
    time::Duration,
};

const VERSIONS: [Version; 2] = [Version::Tls12, Version::Tls13];

/// A way to serve: on a mechanism, or in an architecture of threads.
const SETTINGS: [&str; 4] = ["epoll", "epoll-et", "poll", "prethreaded"];

/// Serves `directory` with a certificate that signs itself.
fn serve(directory: &Path, setting: &str, interest: Discipline) -> TestServer {
    TestServer::start(directory, |config: &mut Settings| {
        config.tls = Some(Arc::new(Tls::new(&TlsConfig::default()).unwrap()));
        config.interest = interest;
        match setting.parse::<Architecture>() {
            Ok(architecture) => config.architecture = architecture,
            Err(_) => config.mechanism = super::MechanismChoice::Named(setting.parse().unwrap()),
        }
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
