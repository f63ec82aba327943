//! System calls of the loop that fail: what passes is borne, what stays is said, and a stop is
//! always heard.

use super::seam::{FaultAt, Worker, fail};
use crate::config::{Config, Discipline};
use pollux_sys::Call;
use pollux_testkit::http::Client;
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};
use std::{
    collections::BTreeMap,
    io::{Read, Write},
    net::TcpStream,
    thread,
    time::Duration,
};

/// From now on this thread's calls of the system call with this number fail so.
fn forbid(call: i64, errno: i32) {
    let rules = BTreeMap::from([(call, Vec::new())]);
    let arch = std::env::consts::ARCH.try_into().expect("a known architecture");
    let filter: BpfProgram =
        SeccompFilter::new(rules, SeccompAction::Allow, SeccompAction::Errno(errno as u32), arch)
            .expect("a filter")
            .try_into()
            .expect("a program");
    seccompiler::apply_filter(&filter).expect("the filter is in force");
}

/// Before, the first of these was asked for without end once a stop was to take in what waits, and
/// the worker never ended.
#[test]
fn who_may_not_accept_does_not_spin_and_hears_a_stop() {
    for errno in [libc::EPERM, libc::EACCES, libc::EOPNOTSUPP, libc::EMFILE, libc::ENOMEM] {
        let worker = Worker::start(move || forbid(libc::SYS_accept4, errno));
        let _client = Client::connect(worker.address);
        thread::sleep(Duration::from_millis(300));
        let statistics = worker.stop().unwrap().statistics;
        let calls = statistics.system_calls.of(Call::Accept);
        assert!((1..=4).contains(&calls), "errno {errno}: {calls} calls of accept4");
        assert_eq!(statistics.connections.accepted, 0);
    }
}

#[test]
fn connections_that_died_before_they_were_accepted_end_nothing() {
    for errno in [libc::ECONNABORTED, libc::EPROTO, libc::ENETDOWN] {
        let worker = Worker::start(move || forbid(libc::SYS_accept4, errno));
        let _client = Client::connect(worker.address);
        thread::sleep(Duration::from_millis(100));
        let statistics = worker.stop().unwrap().statistics;
        assert!(statistics.system_calls.of(Call::Accept) >= 1);
    }
}

/// Before, the first failure of this kind ended the worker.
#[test]
fn a_wait_that_fails_for_a_moment_is_tried_again() {
    for errno in [libc::ENOMEM, libc::EAGAIN, libc::EBUSY] {
        let worker = Worker::start(move || fail(FaultAt::Wait, 3, errno));
        assert_eq!(Client::connect(worker.address).get("/most").status, 200, "errno {errno}");
        worker.stop().unwrap();
    }
}

#[test]
fn a_wait_that_fails_for_good_ends_the_worker_with_its_reason() {
    let worker = Worker::start(|| fail(FaultAt::Wait, u32::MAX, libc::EBADF));
    let error = format!("{:#}", worker.stop().unwrap_err());
    assert!(error.contains("epoll_wait"), "{error}");
}

/// A request, and whether anything is answered before the connection ends.
fn is_answered(worker: &Worker) -> bool {
    let mut stream = TcpStream::connect(worker.address).unwrap();
    stream.set_read_timeout(Some(pollux_testkit::http::PATIENCE)).unwrap();
    // A connection that the worker has closed already refuses it.
    let _ = stream.write_all(b"GET /most HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n");
    let mut answer = Vec::new();
    match stream.read_to_end(&mut answer) {
        Ok(_) => !answer.is_empty(),
        Err(error) => {
            let is_reset = error.kind() == std::io::ErrorKind::ConnectionReset;
            assert!(is_reset, "the connection neither answers nor ends: {error}");
            false
        }
    }
}

/// A connection that cannot be read from or written to is closed, once, and only that.
#[test]
fn a_socket_that_fails_ends_its_connection_and_nothing_else() {
    for (number, call) in [(libc::SYS_recvfrom, Call::Recv), (libc::SYS_sendto, Call::Send)] {
        for errno in [libc::ECONNRESET, libc::ENOMEM, libc::EIO, libc::EPIPE, libc::ETIMEDOUT] {
            let worker = Worker::start(move || forbid(number, errno));
            for _ in 0..3 {
                assert!(!is_answered(&worker), "{} fails with {errno}", call.name());
            }
            let statistics = worker.stop().unwrap().statistics;
            assert_eq!(statistics.connections.accepted, 3);
            assert_eq!(statistics.connections.closed, 3);
            let calls = statistics.system_calls.of(call);
            assert_eq!(calls, 3, "{} fails with {errno}", call.name());
        }
    }
}

/// EINTR says nothing about the socket: it is tried again, also when that goes on for long, and a
/// stop is heard meanwhile.
#[test]
fn a_receive_that_is_interrupted_for_ever_does_not_hold_the_worker() {
    let worker = Worker::start(|| forbid(libc::SYS_recvfrom, libc::EINTR));
    let mut stream = TcpStream::connect(worker.address).unwrap();
    stream.write_all(b"GET /most HTTP/1.1\r\nHost: t\r\n\r\n").unwrap();
    thread::sleep(Duration::from_millis(50));
    let statistics = worker.stop().unwrap().statistics;
    assert!(statistics.system_calls.of(Call::Recv) > 1);
}

/// Who cannot be added is refused, who cannot be changed is closed; the next is served.
#[test]
fn an_interest_that_cannot_be_set_ends_its_connection_and_nothing_else() {
    for errno in [libc::ENOMEM, libc::ENOSPC] {
        let worker = Worker::start(move || fail(FaultAt::Add, 1, errno));
        assert!(!is_answered(&worker), "add fails with {errno}");
        assert!(is_answered(&worker), "add has failed with {errno} before");
        let connections = worker.stop().unwrap().statistics.connections;
        assert_eq!((connections.refused, connections.accepted), (1, 1));

        // By its state a connection registers for writing before each answer.
        let mut config = Config::new(".");
        config.interest = Discipline::PerState;
        let worker = Worker::start_with(config, move || fail(FaultAt::Modify, 1, errno));
        assert!(!is_answered(&worker), "modify fails with {errno}");
        assert!(is_answered(&worker), "modify has failed with {errno} before");
        let connections = worker.stop().unwrap().statistics.connections;
        assert_eq!((connections.accepted, connections.closed), (2, 2));
    }
}
