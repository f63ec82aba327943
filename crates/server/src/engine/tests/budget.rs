//! A connection's iteration has a budget: however many requests one client sends at once, other
//! clients wait for a few of its answers and not for all of them.
//!
//! Counted and not timed: answers between two waits are what somebody else waits for, on a slow
//! machine as on a fast one.

use super::seam::Worker;
use crate::{
    config::Config,
    services::{Hosts, site::Contents},
};
use pollux_testkit::http::Client;
use std::{
    fs,
    io::{Read, Write},
    net::{Shutdown, TcpStream},
    thread,
};

/// A client may be served once for its event and once more where something was left, and so may
/// the other.
const TURNS: u32 = 2;
/// Bytes of pipelined requests: as many as one receive takes.
const PIPELINED: usize = 16 << 10;

/// The most answers between two waits while one client has sent [`PIPELINED`] bytes of requests for
/// a document of `length` bytes, and another requests a small one again and again.
fn most_answers(length: usize) -> u32 {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("large"), vec![b'~'; length]).unwrap();
    fs::write(directory.path().join("small"), "s").unwrap();
    let config = Config::new(directory.path());
    let open = |config: &Config, rules: &_, _| {
        Hosts::open(config, rules, Contents::new(config.site.cache_bytes, 1)).unwrap()
    };
    let worker = Worker::serve(config, open, || ());

    let request = "GET /large HTTP/1.1\r\nHost: t\r\n\r\n";
    let count = PIPELINED / request.len();
    let mut greedy = TcpStream::connect(worker.address).unwrap();
    greedy.set_read_timeout(Some(pollux_testkit::http::PATIENCE)).unwrap();
    greedy.write_all(request.repeat(count).as_bytes()).unwrap();
    greedy.shutdown(Shutdown::Write).unwrap();
    let reader = thread::spawn(move || {
        let mut buffer = vec![0; 1 << 20];
        let mut got = 0;
        loop {
            match greedy.read(&mut buffer).unwrap() {
                0 => return got,
                more => got += more,
            }
        }
    });
    let mut other = Client::connect(worker.address);
    while !reader.is_finished() {
        assert_eq!(other.get("/small").text(), "s");
    }
    let got = reader.join().unwrap();
    assert!(got > count * length, "only {got} bytes of {count} answers came");
    worker.stop().unwrap().most_begun
}

/// Before there was a budget, such a client was answered for as long as the socket took more:
/// another waited for 78 to 191 ms.
#[test]
fn a_client_with_a_long_response_does_not_delay_others() {
    // From memory, and from a file.
    for length in [250 << 10, 300 << 10] {
        let most = most_answers(length);
        assert!((1..=2 * TURNS).contains(&most), "{most} answers of {length} bytes in one pass");
    }
}

/// Small answers gather in one send, and are counted instead.
#[test]
fn a_client_that_pipelines_many_small_requests_does_not_delay_others() {
    let most = most_answers(1);
    // The other client sends one request at a time.
    let bound = TURNS * crate::protocol::REPLIES_A_TURN + TURNS;
    assert!(most <= bound, "{most} answers in one pass, more than {bound}");
    assert!(most > TURNS, "only {most}: nothing was gathered");
}
