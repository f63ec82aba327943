//! Tests that a connection's iteration has a budget: even if one client sends many requests at once, other
//! clients wait for only a few of its responses.
//!
//! The tests count and do not measure time: the responses between two waits are the work that delays other
//! clients, on a slow machine as on a fast one.

use super::seam::Worker;
use crate::{
    services::{Hosts, site::Contents},
    settings::Settings,
};
use pollux_testkit::http::Client;
use std::{
    fs,
    io::{Read, Write},
    net::{Shutdown, TcpStream},
    thread,
};

/// The number of times that a client may be served between two waits: once for its event, and once for
/// remaining work. The same holds for the other client.
const TURNS: u32 = 2;
/// The number of bytes of pipelined requests: as many as one receive takes.
const PIPELINED: usize = 16 << 10;

/// Returns the maximum number of responses between two waits while one client has sent [`PIPELINED`] bytes
/// of requests for a document of `length` bytes, and another repeatedly requests a small one.
fn most_answers(length: usize) -> u32 {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("large"), vec![b'~'; length]).unwrap();
    fs::write(directory.path().join("small"), "s").unwrap();
    let config = Settings::new(directory.path());
    let open = |config: &Settings, rules: &_, _| {
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

/// Regression: without a budget, such a client was answered for as long as the socket had room, and another
/// client waited for 78 to 191 ms.
#[test]
fn a_client_with_a_long_response_does_not_delay_others() {
    // The first document is sent from memory, the second from a file.
    for length in [250 << 10, 300 << 10] {
        let most = most_answers(length);
        assert!((1..=2 * TURNS).contains(&most), "{most} answers of {length} bytes in one pass");
    }
}

/// Several small responses are sent in one call, so their number is limited instead.
#[test]
fn a_client_that_pipelines_many_small_requests_does_not_delay_others() {
    let most = most_answers(1);
    // The other client sends one request at a time.
    let bound = TURNS * crate::protocol::REPLIES_A_TURN + TURNS;
    assert!(most <= bound, "{most} answers in one pass, more than {bound}");
    assert!(most > TURNS, "only {most}: nothing was gathered");
}
