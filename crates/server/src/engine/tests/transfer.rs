//! Connections that another process hands over.

use super::seam::Worker;
use crate::{
    stats::Counter,
    upgrade::{
        channel::Channel,
        message::{IdleConnection, Message},
    },
};
use pollux_testkit::http::PATIENCE;
use std::{
    io::Read,
    net::{TcpListener, TcpStream},
    os::fd::AsFd,
    time::Instant,
};

/// Regression: a stream that the service does not continue was counted as taken over, too.
#[test]
fn a_stream_that_the_service_refuses_is_not_taken_over() {
    let worker = Worker::start(|| ());
    let (near, far) = Channel::pair().unwrap();
    worker.adopt(&far);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let [(_idle, idle_socket), (mut stream, stream_socket)] = std::array::from_fn(|_| {
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (client, listener.accept().unwrap().0)
    });
    let connection = |stream: &[u8]| IdleConnection {
        remaining_ms: 60_000,
        session: Vec::new(),
        stream: stream.to_vec(),
        ..IdleConnection::default()
    };
    let message = Message::Connections(vec![connection(b""), connection(b"state")]);
    near.send(&message, &[idle_socket.as_fd(), stream_socket.as_fd()]).unwrap();
    drop((idle_socket, stream_socket));
    let (answer, _) = near.expect(Instant::now() + PATIENCE).unwrap();
    assert_eq!(answer, Message::Accepted { connections: 2 });
    let statistics = worker.statistics();
    let counts = [Counter::Accepted, Counter::TakenOver, Counter::Closed];
    assert_eq!(counts.map(|counter| statistics.count(counter)), [2, 1, 1]);
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    assert_eq!(stream.read(&mut [0]).unwrap(), 0, "it is closed");
    worker.stop().unwrap();
}
