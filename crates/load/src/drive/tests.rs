//! Tests of connections that the server closes before they have a request.

use crate::{
    config::Config,
    plan::Plan,
    schedule::Length,
    thread::{Gauges, Worker},
};
use std::{
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    sync::atomic::AtomicBool,
    time::Duration,
};

/// A listener, and the plan of a run of one request that has opened one connection to it before.
fn plan() -> (TcpListener, Plan) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let url = format!("http://{address}/").parse().unwrap();
    let mut config = Config::new(url, 100.0, Duration::from_secs(1));
    config.length = Length::Requests(1);
    config.connections = Some(1);
    config.requests_per_connection = None;
    config.check().unwrap();
    let plan = Plan::new(&config, address).unwrap();
    (listener, plan)
}

/// Regression test: the connection counted as free, and the next request was sent on it.
#[test]
fn a_connection_that_is_closed_with_its_handshake_is_dropped() {
    for banner in [&b""[..], b"220 ready\r\n"] {
        let (listener, plan) = plan();
        let gauges = Gauges::default();
        let mut worker = Worker::new(&plan, &gauges, 0).unwrap();
        worker.opening.is_setup = true;
        worker.open(plan.now_ns(), None).unwrap();
        // One event reports the end of the handshake, the data and the close.
        let (mut peer, _) = listener.accept().unwrap();
        peer.write_all(banner).unwrap();
        drop(peer);
        assert_eq!(worker.set.wait_precisely(Duration::from_secs(30)).unwrap(), 1);
        worker.drain_events();
        assert_eq!((worker.pool.open(), worker.pool.pop_free()), (0, None));
        let connections = worker.recorder.connections;
        assert_eq!((connections.opened, connections.dropped_idle), (1, 1));
    }
}

/// Regression test: the first request was once sent on such a connection, and failed.
#[test]
fn a_connection_that_is_closed_before_the_start_gets_no_request() {
    let (listener, plan) = plan();
    let gauges = Gauges::default();
    let stop = AtomicBool::new(false);
    let mut worker = Worker::new(&plan, &gauges, 0).unwrap();
    worker.set_up(&stop).unwrap();
    drop(listener.accept().unwrap());
    let result = std::thread::scope(|scope| {
        scope.spawn(|| {
            let (mut peer, _) = listener.accept().unwrap();
            // A request without a body fits in one segment.
            let received = peer.read(&mut [0; 4096]).unwrap();
            assert!(received > 0);
            peer.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").unwrap();
        });
        let result = worker.run(plan.now_ns(), &stop).unwrap();
        // Without a request the thread would wait for this connection.
        drop(TcpStream::connect(plan.destination));
        result
    });
    let recorder = &result.recorder;
    assert_eq!((recorder.completed, recorder.failures.total()), (1, 0));
    assert_eq!(recorder.connections.dropped_idle, 1);
}
