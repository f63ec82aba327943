//! Handshakes of a worker with rustls' client, over pairs of sockets.

use super::{worker::Worker, *};
use pollux_sys as sys;
use pollux_tls::{ClientSettings, RECORD_MAX};
use rustls::ClientConnection;
use std::{
    io::Write as _,
    os::{fd::AsFd as _, unix::net::UnixStream},
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
        let (near, far) = UnixStream::pair().unwrap();
        self.worker.accept(near.as_fd(), &self.server).unwrap();
        (near, far)
    }

    fn receive(&mut self, near: &UnixStream) -> io::Result<usize> {
        self.worker.receive(near.as_fd(), &mut self.buffer, sys::recv_now)
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
    for _ in 0..3 {
        fixture.worker.limits.begin_iteration();
        let mut late = Vec::new();
        for (near, far) in connections.drain(..) {
            match fixture.receive(&near).unwrap_err().kind() {
                io::ErrorKind::WouldBlock => {}
                io::ErrorKind::Interrupted => late.push((near, far)),
                other => panic!("{other}"),
            }
        }
        connections = late;
    }
    assert!(connections.is_empty());
}
