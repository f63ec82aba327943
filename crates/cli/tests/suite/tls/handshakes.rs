//! Handshakes that are slow, in pieces, incomplete, malformed or of an old version: each ends, and
//! none delays another client.

use super::{
    openssl,
    peer::{End, Peer, config, connect, drive},
    serve, site,
};
use pollux_testkit::{http::PATIENCE, serve::Serve, write_slowly};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustls::{ClientConnection, StreamOwned};
use socket2::{Domain, Socket, Type};
use std::{
    fs,
    io::{ErrorKind, Read as _, Write as _},
    net::{Ipv4Addr, SocketAddr, TcpStream},
    thread,
    time::{Duration, Instant},
};
use tempfile::TempDir;

/// The number of connections that the usual tests have at a time, and that of the slow tests.
const FEW: usize = 200;
const MANY: usize = 10_000;
const UNEXPECTED_MESSAGE: u8 = 10;
const RECORD_OVERFLOW: u8 = 22;
/// The number of client addresses; the server has a limit for each address (4,096 handshakes).
const ADDRESSES: usize = 4;

fn address_of(index: usize) -> Ipv4Addr {
    Ipv4Addr::new(127, 0, 0, 1 + (index % ADDRESSES) as u8)
}

/// Raises the limit of open files; the caller must know whether `count` connections fit.
fn raise_open_files() {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).unwrap();
}

fn assert_serves(serve: &Serve) {
    assert_eq!(Peer::connect(serve.address()).fetch("/"), b"hello\n");
}

/// Runs `count` clients, each of which sends `segment` bytes in a segment and reads at most `read`
/// bytes at a time.
fn fragmented(count: usize, workers: &str, (segment, read): (usize, usize)) {
    raise_open_files();
    let directory = site();
    let more = ["--workers", workers, "--header-timeout", "10m", "--send-timeout", "10m"];
    let mut serve = serve(&directory, &more);
    let config = config();
    let (mut left, mut at_once) = (count, FEW);
    while left > 0 {
        let now = left.min(at_once);
        let started_at = Instant::now();
        let mut peers: Vec<_> = (0..now)
            .map(|index| Peer::with(serve.address(), &config, "localhost", address_of(index)))
            .collect();
        peers.iter_mut().for_each(|peer| peer.get("/"));
        drive(&mut peers, |_| (segment, read), |peer| peer.content().is_some());
        // A handshake may take ten seconds, and in single bytes it is hundreds of segments: a busy machine
        // has time for fewer clients at once.
        let is_late = started_at.elapsed() > Duration::from_secs(9);
        if is_late && at_once > 1 && peers.iter().any(|peer| peer.content().is_none()) {
            at_once /= 2;
            continue;
        }
        for peer in &peers {
            assert_eq!(peer.content(), Some(&b"hello\n"[..]), "{:?}", peer.end);
        }
        left -= now;
    }
    assert!(serve.statistics()["requests"].as_u64().unwrap() >= count as u64);
}

#[test]
fn handshakes_and_requests_may_come_one_byte_a_segment() {
    fragmented(FEW / 2, "1", (1, 7));
}

#[test]
#[ignore = "slow: ten thousand handshakes in a build that is not optimised"]
fn ten_thousand_handshakes_may_come_in_pieces() {
    fragmented(MANY, "2", (16, 100));
}

/// Returns the bytes of a client's first flight.
fn hello() -> Vec<u8> {
    let name = "localhost".try_into().unwrap();
    let mut tls = rustls::ClientConnection::new(config(), name).unwrap();
    let mut bytes = Vec::new();
    tls.write_tls(&mut bytes).unwrap();
    bytes
}

/// Begins `count` handshakes, which stop at different stages.
fn half_open(count: usize, workers: &str) {
    raise_open_files();
    let directory = site();
    let mut serve = serve(&directory, &["--workers", workers, "--header-timeout", "9s"]);
    let hello = hello();
    let beginnings = [&hello[..0], &hello[..1], &hello[..5], &hello[..hello.len() - 1], &hello];
    let mut held = Vec::new();
    for index in 0..count {
        let mut socket = connect(serve.address(), address_of(index));
        // The server may have closed the connection by now, which is the result that the test requires
        // in the end.
        let _ = socket.write_all(beginnings[index % beginnings.len()]);
        held.push(socket);
        if index % (count / 4) == 0 {
            assert_serves(&serve);
        }
    }
    assert_serves(&serve);
    for mut socket in held {
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut bytes = Vec::new();
        if let Err(error) = socket.read_to_end(&mut bytes) {
            assert_ne!(error.kind(), ErrorKind::WouldBlock, "a half handshake has no end");
        }
    }
    serve.wait_until("all to be gone", |s| s["connections"]["open"] == 0);
    assert_serves(&serve);
}

#[test]
fn half_handshakes_are_closed_and_hold_nobody_up() {
    half_open(2 * FEW, "1");
}

#[test]
#[ignore = "slow: ten thousand connections until their timeout"]
fn ten_thousand_half_handshakes_are_closed_and_hold_nobody_up() {
    half_open(MANY, "2");
}

#[test]
fn a_handshake_may_take_ten_seconds() {
    let directory = site();
    let serve = serve(&directory, &["--header-timeout", "5m"]);
    let started_at = Instant::now();
    let hello = hello();
    let silent = TcpStream::connect(serve.address()).unwrap();
    let mut stuck = TcpStream::connect(serve.address()).unwrap();
    stuck.write_all(&hello).unwrap();
    let dripping = TcpStream::connect(serve.address()).unwrap();
    let mut other_end = dripping.try_clone().unwrap();
    let drip = thread::spawn(move || {
        write_slowly(dripping, Duration::from_millis(300), hello.chunks(1)).is_err()
    });
    for socket in [&silent, &stuck, &other_end] {
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
    }
    for mut socket in [silent, stuck] {
        let mut bytes = Vec::new();
        socket.read_to_end(&mut bytes).unwrap();
    }
    let mut bytes = Vec::new();
    // If a byte is on its way when the server closes, the connection is reset.
    if let Err(error) = other_end.read_to_end(&mut bytes) {
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    }
    assert!(drip.join().unwrap(), "the dripping client could send everything");
    let elapsed = started_at.elapsed();
    assert!(elapsed > Duration::from_secs(9), "{elapsed:?}");
    assert_serves(&serve);
}

/// The limit holds for a worker that serves one client at a time, and behind a PROXY protocol header,
/// too. After its handshake a client has the whole time for its first request.
#[test]
fn the_ten_seconds_are_for_every_handshake_and_for_nothing_else() {
    let cases: [(&[&str], &str); 3] = [
        (&[], ""),
        (&["--architecture", "prethreaded", "--pool", "4"], ""),
        (&["--proxy-protocol", "127.0.0.1"], "PROXY UNKNOWN\r\n"),
    ];
    let check = |arguments: &[&str], header: &str| {
        let directory = site();
        let serve = serve(&directory, &[arguments, &["--header-timeout", "5m"]].concat());
        let connect = || {
            let mut socket = TcpStream::connect(serve.address()).unwrap();
            socket.set_read_timeout(Some(PATIENCE)).unwrap();
            socket.write_all(header.as_bytes()).unwrap();
            socket
        };
        let started_at = Instant::now();
        let mut silent = connect();
        let name = "localhost".try_into().unwrap();
        let client = ClientConnection::new(config(), name).unwrap();
        let mut established = StreamOwned::new(client, connect());
        established.conn.complete_io(&mut established.sock).unwrap();

        assert_eq!(silent.read_to_end(&mut Vec::new()).unwrap(), 0, "{arguments:?}");
        assert!(started_at.elapsed() > Duration::from_secs(9), "{arguments:?}");
        // The time of a handshake is over for this connection too, which has ended its handshake.
        thread::sleep(Duration::from_secs(2));
        let request = b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
        established.write_all(request).unwrap();
        let mut reply = String::new();
        established.read_to_string(&mut reply).unwrap();
        assert!(reply.ends_with("hello\n"), "{arguments:?}: {reply}");
    };
    thread::scope(|scope| {
        for (arguments, header) in cases {
            scope.spawn(move || check(arguments, header));
        }
    });
}

/// A flight of the server that does not fit into its socket is sent as the client reads it. Meanwhile
/// the client sends nothing, so the server must wait for room.
#[test]
fn a_chain_longer_than_the_sockets_buffer_is_sent() {
    // rustls' client takes up to 64 KiB. The buffer of a socket with short segments has 46 KB.
    const CHAIN: usize = 60_000;
    let directory = site();
    let path = directory.path().join("a.pem");
    let certificate = fs::read_to_string(&path).unwrap();
    fs::write(&path, certificate.repeat(CHAIN / (der(&directory, "a.pem").len() + 5))).unwrap();
    let cases: [&[&str]; 5] = [
        &["--mechanism", "epoll"],
        &["--mechanism", "epoll-et"],
        &["--mechanism", "epoll-et", "--interest", "per-state"],
        &["--mechanism", "poll", "--interest", "per-state"],
        &["--architecture", "prethreaded", "--pool", "2"],
    ];
    for arguments in cases {
        let serve = serve(&directory, arguments);
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.set_recv_buffer_size(4096).unwrap();
        socket.set_tcp_mss(536).unwrap();
        let address: SocketAddr = serve.address().parse().unwrap();
        socket.connect(&address.into()).unwrap();
        let mut socket = TcpStream::from(socket);
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let name = "localhost".try_into().unwrap();
        let mut client = ClientConnection::new(config(), name).unwrap();
        client.write_tls(&mut socket).unwrap();
        let started_at = Instant::now();
        // A slow client: the server's reply does not fit into its receive buffer.
        thread::sleep(Duration::from_millis(300));
        let mut stream = StreamOwned::new(client, socket);
        stream
            .write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            .unwrap();
        let mut reply = String::new();
        stream.read_to_string(&mut reply).unwrap();
        assert!(reply.ends_with("hello\n"), "{arguments:?}: {reply}");
        // Far less than the time of a handshake.
        assert!(started_at.elapsed() < Duration::from_secs(8), "{arguments:?}");
    }
}

/// Sends bytes and returns everything that the server sends until the end.
fn reply_to(serve: &Serve, bytes: &[u8]) -> Vec<u8> {
    let mut socket = TcpStream::connect(serve.address()).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let _ = socket.write_all(bytes);
    let mut reply = Vec::new();
    if let Err(error) = socket.read_to_end(&mut reply) {
        assert_ne!(error.kind(), ErrorKind::WouldBlock, "the server does not close: {bytes:?}");
    }
    reply
}

#[test]
fn records_that_no_handshake_has_get_an_alert_at_once() {
    let directory = site();
    let serve = serve(&directory, &[]);
    let hello = hello();
    let cases: [(&str, Vec<u8>); 9] = [
        ("an empty handshake record", vec![22, 3, 1, 0, 0]),
        ("many of them", [22, 3, 1, 0, 0].repeat(1000)),
        ("a record that is too long", vec![22, 3, 1, 0xff, 0xff]),
        ("a record that is a little too long", vec![22, 3, 1, 0x48, 0x01]),
        ("an unknown type", vec![99, 3, 1, 0, 1, 0]),
        ("data before the handshake", vec![23, 3, 3, 0, 1, 0]),
        ("empty data before the handshake", vec![23, 3, 3, 0, 0]),
        ("a message that is too long", vec![22, 3, 1, 0, 4, 1, 0xff, 0xff, 0xff]),
        ("a second hello", [hello.as_slice(), &hello].concat()),
    ];
    for (what, bytes) in cases {
        let started_at = Instant::now();
        let reply = reply_to(&serve, &bytes);
        // After the server's flight the alert is encrypted, and rustls sends none for a long message.
        let has_other = ["a second hello", "a message that is too long"].contains(&what);
        let is_alert = reply.first() == Some(&21) || has_other;
        // The timeout would close the connection as well, but later.
        assert!(started_at.elapsed() < Duration::from_secs(9), "{what}");
        assert!(is_alert, "{what}: {reply:?}");
        // Regression: it was decode_error.
        let alert = match what {
            "a record that is too long" | "a record that is a little too long" => {
                Some(RECORD_OVERFLOW)
            }
            "an unknown type" | "data before the handshake" => Some(UNEXPECTED_MESSAGE),
            _ => None,
        };
        if let Some(alert) = alert {
            assert_eq!(reply, [21, 3, 3, 0, 2, 2, alert], "{what}");
        }
    }
    assert_serves(&serve);
}

/// Returns a hello as clients sent it before TLS 1.3: without a list of versions. Clients without TLS 1.2
/// do not send their signature algorithms either.
fn old_hello(version: u8, has_signatures: bool) -> Vec<u8> {
    let mut body = vec![3, version];
    body.extend([7; 32]);
    body.push(0);
    // ECDHE-ECDSA with AES-128-GCM and with AES-128-CBC.
    body.extend([0, 4, 0xc0, 0x2b, 0xc0, 0x09, 1, 0]);
    let mut extensions = [
        // Groups: P-256.
        &[0, 10, 0, 4, 0, 2, 0, 23][..],
        // Uncompressed points.
        &[0, 11, 0, 2, 1, 0],
    ]
    .concat();
    if has_signatures {
        // ecdsa_secp256r1_sha256.
        extensions.extend([0, 13, 0, 4, 0, 2, 4, 3]);
    }
    body.extend((extensions.len() as u16).to_be_bytes());
    body.extend(extensions);
    let len = body.len() as u16;
    let mut record = vec![22, 3, 1];
    record.extend((len + 4).to_be_bytes());
    record.extend([1, 0]);
    record.extend(len.to_be_bytes());
    record.extend(body);
    record
}

#[test]
fn a_hello_of_an_old_version_gets_protocol_version() {
    let directory = site();
    let serve = serve(&directory, &[]);
    for (version, has_signatures) in
        [(0, true), (1, true), (2, true), (0, false), (1, false), (2, false)]
    {
        let reply = reply_to(&serve, &old_hello(version, has_signatures));
        assert_eq!(reply.len(), 7, "{version}: {reply:?}");
        let alert = (reply[0], &reply[3..]);
        assert_eq!(alert, (21, &[0, 2, 2, 70][..]), "{version}, {has_signatures}");
    }
    // Without signature algorithms, TLS 1.2 has another fault.
    let reply = reply_to(&serve, &old_hello(3, false));
    assert_eq!((reply[0], reply.last()), (21, Some(&40)), "{reply:?}");
    // A record of SSL 2.0.
    let reply = reply_to(&serve, &[0x80, 0x2e, 1, 0, 2, 0, 0x15, 0, 0, 0, 0x10]);
    assert!(reply.is_empty() || reply[0] == 21, "{reply:?}");
    assert_serves(&serve);
}

#[test]
fn a_hello_of_tls_1_2_gets_the_sentinel_that_reveals_a_downgrade() {
    let directory = site();
    let serve = serve(&directory, &[]);
    let mut socket = TcpStream::connect(serve.address()).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket.write_all(&old_hello(3, true)).unwrap();
    // The header of the record, the header of the message, the version, and the random value.
    let mut reply = [0; 5 + 4 + 2 + 32];
    socket.read_exact(&mut reply).unwrap();
    assert_eq!((reply[0], reply[5], &reply[9..11]), (22, 2, &[3, 3][..]), "{reply:?}");
    assert_eq!(&reply[35..], b"DOWNGRD\x01");
}

#[test]
fn a_client_without_a_known_name_gets_the_first_certificate() {
    let directory = site();
    openssl(directory.path(), "b", "b.example");
    let path = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let (certificate, key) = (path("b.pem"), path("b.key"));
    let serve = serve(&directory, &["--tls-cert", &certificate, "--tls-key", &key]);
    let without_name = {
        let mut config = (*config()).clone();
        config.enable_sni = false;
        config.into()
    };
    let cases = [
        (&config(), "localhost", "a.pem"),
        (&config(), "b.example", "b.pem"),
        (&config(), "unknown.example", "a.pem"),
        (&without_name, "b.example", "a.pem"),
    ];
    for (config, name, expected) in cases {
        let mut peer = Peer::with(serve.address(), config, name, Ipv4Addr::LOCALHOST);
        assert_eq!(peer.fetch("/"), b"hello\n", "{name}");
        let shown = peer.tls.peer_certificates().unwrap()[0].to_vec();
        assert!(shown == der(&directory, expected), "{name} gets another than {expected}");
    }
}

fn der(directory: &TempDir, name: &str) -> Vec<u8> {
    use rustls::pki_types::{CertificateDer, pem::PemObject as _};
    let bytes = fs::read(directory.path().join(name)).unwrap();
    CertificateDer::from_pem_slice(&bytes).unwrap().to_vec()
}

#[test]
fn plain_http_gets_its_400_in_pieces_and_with_content() {
    let directory = site();
    let serve = serve(&directory, &[]);
    let long = format!(
        "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 12000\r\n\r\n{}",
        "x".repeat(12_000)
    );
    for request in ["G", "OPTIONS * HTTP/1.1\r\n", &long] {
        let reply = String::from_utf8(reply_to(&serve, request.as_bytes())).unwrap();
        assert!(reply.starts_with("HTTP/1.1 400 Bad Request\r\n"), "{reply}");
        assert!(reply.ends_with("begins with \"https://\".\n"), "{reply}");
    }
    // Inside TLS this page is not sent, so no client can mistake it for a response.
    let mut peer = Peer::connect(serve.address());
    peer.send(b"not a request\r\n\r\n");
    peer.run(|_| false);
    let reply = String::from_utf8_lossy(&peer.received);
    assert!(reply.starts_with("HTTP/1.1 400 ") && !reply.contains("speaks HTTPS"), "{reply}");
    assert_eq!(peer.end, Some(End::Closed));
}
