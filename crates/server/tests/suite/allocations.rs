//! A request on a keep-alive connection allocates no memory.
//!
//! The test runs in its own process, since the allocator counts all new threads.

use pollux_server::{
    Server, Settings,
    config::{Listen, MechanismChoice},
};
use pollux_testkit::{
    allocations::{allocations_of_new_threads, watch_new_threads},
    http::Client,
};
use std::{
    fs::{self, File},
    time::{Duration, SystemTime},
};

const REQUESTS: usize = 1_000;

/// A request as browsers send it: many fields, and a condition that does not hold.
const LONG: &str = "GET /six HTTP/1.1\r\nHost: www.example.org:8080\r\n\
User-Agent: Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0\r\n\
Accept: text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8\r\n\
Accept-Language: en-US,en;q=0.5\r\nAccept-Encoding: gzip, deflate, br, zstd\r\n\
Referer: https://www.example.org/index.html\r\nConnection: keep-alive\r\n\
Cookie: session=0123456789abcdef\r\nIf-None-Match: \"another\"\r\n\r\n";

/// Returns the number of the worker's allocations while it answers `request` `REQUESTS` times, on a
/// connection on which it has answered the request before.
fn count(client: &mut Client, request: &str, answers: usize, status: u16) -> u64 {
    let mut send = |times: usize| {
        for _ in 0..times {
            client.send(request);
            for _ in 0..answers {
                assert_eq!(client.reply().status, status);
            }
        }
    };
    send(20);
    let before = allocations_of_new_threads();
    send(REQUESTS);
    allocations_of_new_threads() - before
}

#[test]
fn a_keep_alive_request_allocates_nothing() {
    pollux_testkit::alone!(a_keep_alive_request_allocates_nothing);
    let directory = tempfile::tempdir().unwrap();
    let long_ago = SystemTime::now() - Duration::from_secs(3600);
    for (name, content) in [("one", &b"x"[..]), ("six", &[b'y'; 6 << 10]), ("big", &[b'z'; 60_000])]
    {
        let path = directory.path().join(name);
        fs::write(&path, content).unwrap();
        // The server reads a file that was modified just now again when it next compares the file with
        // the disk.
        File::options().write(true).open(&path).unwrap().set_modified(long_ago).unwrap();
    }
    let get = |path: &str| format!("GET {path} HTTP/1.1\r\nHost: test\r\n\r\n");

    // The worker is a new thread. The client runs in the test's own thread, which is not counted.
    // Positive control: the counter sees the allocations of a new thread.
    watch_new_threads();
    let before = allocations_of_new_threads();
    std::thread::spawn(|| drop(std::hint::black_box(Box::new(1)))).join().unwrap();
    assert!(allocations_of_new_threads() > before, "the counter is deaf");

    for mechanism in ["epoll-et", "epoll", "poll"] {
        let mut config = Settings::new(directory.path());
        config.mechanism = MechanismChoice::Named(mechanism.parse().unwrap());
        let server = Server::start(config).unwrap();
        let Listen::Tcp(address) = server.addresses()[0].clone() else { panic!("a TCP address") };
        let mut client = Client::connect(address);
        for (what, request, answers, status) in [
            ("one byte", get("/one"), 1, 200),
            ("6 KiB", get("/six"), 1, 200),
            ("60 kB, sent from where they are", get("/big"), 1, 200),
            ("eight at once", get("/one").repeat(8), 8, 200),
            ("a browser's", LONG.into(), 1, 200),
        ] {
            let allocated = count(&mut client, &request, answers, status);
            assert_eq!(allocated, 0, "{mechanism}: {what}: in {REQUESTS} requests");
        }
        // Positive control for the server: it creates an error page for each such request, which needs
        // an allocation.
        let allocated = count(&mut client, &get("/none"), 1, 404);
        assert!(allocated >= REQUESTS as u64, "{allocated} for {REQUESTS} error pages");
        drop(client);
        server.stop(Duration::from_secs(10)).unwrap();
    }
}
