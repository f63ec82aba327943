//! Handshakes of a worker with rustls' client, over pairs of sockets.

use super::{worker::Worker, *};
use crate::config::TlsConfig;
use pollux_sys as sys;
use pollux_tls::{ClientSettings, RECORD_MAX};
use rustls::ClientConnection;
use std::{
    io::{Read as _, Write as _},
    os::{fd::AsFd as _, unix::net::UnixStream},
    time::{Duration, Instant},
};

/// A worker, and the clients that are connected to it.
struct Fixture {
    worker: Worker,
    server: Arc<Tls>,
    buffer: Vec<u8>,
}

impl Fixture {
    fn new(config: &TlsConfig) -> Self {
        let server = Arc::new(Tls::new(config).unwrap());
        Self { worker: Worker::default(), server, buffer: vec![0; RECORD_MAX] }
    }

    /// Returns the two ends of a new connection: the worker's, and the client's.
    fn connect(&mut self) -> (UnixStream, UnixStream) {
        self.connect_from(None)
    }

    fn connect_from(&mut self, client: Option<IpAddr>) -> (UnixStream, UnixStream) {
        let (near, far) = UnixStream::pair().unwrap();
        self.worker.accept(near.as_fd(), client, &self.server).unwrap();
        (near, far)
    }

    fn receive(&mut self, near: &UnixStream) -> io::Result<usize> {
        self.worker.receive(near.as_fd(), &mut self.buffer, sys::recv_now)
    }

    fn shake_hands(
        &mut self,
        near: &UnixStream,
        far: &mut UnixStream,
        client: &mut ClientConnection,
    ) {
        while client.is_handshaking() {
            client.write_tls(far).unwrap();
            assert_eq!(self.receive(near).unwrap_err().kind(), io::ErrorKind::WouldBlock);
            if client.wants_read() {
                client.read_tls(far).unwrap();
                client.process_new_packets().unwrap();
            }
        }
        client.write_tls(far).unwrap();
        assert_eq!(self.receive(near).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    }
}

fn client() -> ClientConnection {
    let config = ClientSettings::trusting_anybody(&[b"http/1.1"]).build().unwrap();
    ClientConnection::new(config, "localhost".try_into().unwrap()).unwrap()
}

fn hello() -> Vec<u8> {
    let mut bytes = Vec::new();
    client().write_tls(&mut bytes).unwrap();
    bytes
}

/// The clients send the first byte early, so that their handshakes have begun, and the rest at once.
#[test]
fn an_iteration_makes_a_limited_number_of_signatures() {
    const STEPS: usize = 16;
    let mut fixture = Fixture::new(&TlsConfig::default());
    let hello = hello();
    let mut connections: Vec<_> = (0..3 * STEPS).map(|_| fixture.connect()).collect();
    for (near, far) in &mut connections {
        far.write_all(&hello[..1]).unwrap();
        let error = fixture.receive(near).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock, "one byte needs no time");
        far.write_all(&hello[1..]).unwrap();
    }
    // The last connection of an iteration is called again in the next one, where it needs no time.
    for left in [2 * STEPS + 1, STEPS + 1, 1, 0] {
        fixture.worker.limits.begin_iteration();
        let mut late = Vec::new();
        for (near, far) in connections.drain(..) {
            match fixture.receive(&near).unwrap_err().kind() {
                io::ErrorKind::WouldBlock => {}
                io::ErrorKind::Interrupted => late.push((near, far)),
                other => panic!("{other}"),
            }
        }
        assert_eq!(late.len(), left);
        connections = late;
    }
}

/// The client sends on after the answer; what is received of it cannot reset the connection.
#[test]
fn plain_http_is_discarded_behind_its_answer_up_to_a_limit() {
    let mut fixture = Fixture::new(&TlsConfig::default());
    let (near, mut far) = fixture.connect();
    far.write_all(b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n")
        .unwrap();
    far.write_all(&[b'x'; 60_000]).unwrap();
    assert_eq!(fixture.receive(&near).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    assert_eq!(fixture.worker.limits.running(), 0);
    let mut reply = String::new();
    far.read_to_string(&mut reply).unwrap();
    assert!(reply.starts_with("HTTP/1.1 400 "), "{reply}");
    let mut sent = 60_000;
    let error = loop {
        far.write_all(&[b'x'; 60_000]).unwrap();
        sent += 60_000;
        let error = fixture.receive(&near).unwrap_err().kind();
        if error != io::ErrorKind::WouldBlock {
            break error;
        }
    };
    assert!(error == io::ErrorKind::ConnectionAborted && sent < 400_000, "{error}, {sent}");

    let (near, mut far) = fixture.connect();
    far.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    assert_eq!(fixture.receive(&near).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    far.read_to_string(&mut reply).unwrap();
    drop(far);
    assert_eq!(fixture.receive(&near).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    fixture.worker.forget(near.as_raw_fd());
    assert_eq!((fixture.worker.limits.running(), fixture.worker.failed), (0, 2));
}

/// Behind a load balancer all connections come from its address.
#[test]
fn a_handshake_is_counted_for_the_client_that_is_known() {
    let mut fixture = Fixture::new(&TlsConfig::default());
    let cases = [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.8", "192.0.2.8"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::"),
    ];
    for (client, counted) in cases {
        let (near, _far) = fixture.connect_from(Some(client.parse().unwrap()));
        assert_eq!(fixture.receive(&near).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        let counted = counted.parse().unwrap();
        assert_eq!(fixture.worker.limits.running_for(counted), 1, "{client}");
        fixture.worker.forget(near.as_raw_fd());
        assert_eq!(fixture.worker.limits.running_for(counted), 0, "{client}");
    }
}

/// Clients that send most of a long message occupy no more memory than all handshakes may.
#[test]
fn unfinished_messages_occupy_a_limited_amount_of_memory() {
    let mut fixture = Fixture::new(&TlsConfig::default());
    // Others store all but 1 MB of 32 MiB.
    assert!(fixture.worker.limits.store(0, (32 << 20) - 1_000_000));
    // The header of a record of 16 KiB, with the header of a hello of 60,000 bytes.
    let mut record = vec![22, 3, 1, 0x40, 0, 1, 0, 0xea, 0x60];
    record.resize(5 + (16 << 10), 7);
    let mut connections = Vec::new();
    let refusal = loop {
        let (near, mut far) = fixture.connect();
        fixture.worker.limits.begin_iteration();
        let mut outcome = io::ErrorKind::WouldBlock;
        for _ in 0..3 {
            far.write_all(&record).unwrap();
            outcome = fixture.receive(&near).unwrap_err().kind();
        }
        connections.push(near);
        if outcome != io::ErrorKind::WouldBlock {
            break outcome;
        }
        assert!(connections.len() < 100, "no end");
    };
    assert_eq!(refusal, io::ErrorKind::Other);
    // At least 48 KB each.
    assert!(connections.len() <= 1_000_000 / 48_000 + 1, "{}", connections.len());
    let (near, mut far) = fixture.connect();
    far.write_all(&hello()[..100]).unwrap();
    assert_eq!(fixture.receive(&near).unwrap_err().kind(), io::ErrorKind::WouldBlock);
}

/// A wait is for a whole record: a client that sends single bytes would prolong it with each of them.
#[test]
fn a_part_of_a_record_ends_a_wait() {
    let mut fixture = Fixture::new(&TlsConfig::default());
    let (near, mut far) = fixture.connect();
    fixture.shake_hands(&near, &mut far, &mut client());
    assert!(!fixture.worker.has_part_of_record(near.as_fd()));
    near.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    let begun = Instant::now();
    far.write_all(&[23, 3, 3, 0x10, 0]).unwrap();
    let outcome = fixture.worker.receive(near.as_fd(), &mut fixture.buffer, sys::recv);
    assert_eq!(outcome.unwrap_err().kind(), io::ErrorKind::WouldBlock);
    assert!(begun.elapsed() < Duration::from_secs(3), "it has waited for the rest");
    assert!(fixture.worker.has_part_of_record(near.as_fd()));
}

/// A client replaces the keys of a connection that it will not use for long.
#[test]
fn a_request_for_a_key_update_is_answered_at_once() {
    /// The header of a record, the message, the inner type and the tag.
    const RECORD: usize = 5 + 5 + 1 + 16;
    let mut fixture = Fixture::new(&TlsConfig::default());
    let (near, mut far) = fixture.connect();
    let mut client = client();
    fixture.shake_hands(&near, &mut far, &mut client);
    // The ticket.
    while sys::recv_now(far.as_fd(), &mut [0; 4096]).is_ok() {}
    for _ in 0..3 {
        client.refresh_traffic_keys().unwrap();
        client.write_tls(&mut far).unwrap();
        assert_eq!(fixture.receive(&near).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        assert_eq!(sys::recv_now(far.as_fd(), &mut [0; 4096]).unwrap(), RECORD);
        let (session, extra) = fixture.worker.sessions.get_mut(near.as_raw_fd() as usize).unwrap();
        assert!(!session.owes_key_update() && extra.is_none());
    }
}

/// The server's flight does not fit into the socket.
#[test]
fn a_handshake_tells_that_it_needs_room() {
    let mut fixture = Fixture::new(&TlsConfig::default());
    let (near, mut far) = fixture.connect();
    // The kernel's minimum.
    socket2::SockRef::from(&near).set_send_buffer_size(1).unwrap();
    while sys::send_now(near.as_fd(), &[0; 64], false).is_ok() {}
    far.write_all(&hello()).unwrap();
    for _ in 0..2 {
        assert_eq!(fixture.receive(&near).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        assert!(fixture.worker.awaits_room(near.as_fd()));
    }
    // The filler is read, and then the flight fits.
    while sys::recv_now(far.as_fd(), &mut [0; 4096]).is_ok() {}
    while fixture.worker.awaits_room(near.as_fd()) {
        assert_eq!(fixture.receive(&near).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        while sys::recv_now(far.as_fd(), &mut [0; 4096]).is_ok() {}
    }
}
