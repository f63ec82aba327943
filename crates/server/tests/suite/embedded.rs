//! The server in a program that has its own open descriptors: the workers do not use them.

use pollux_server::{Server, Settings, config::Listen};
use pollux_testkit::http::Client;
use std::{
    fs::File,
    io::{self, ErrorKind, Read, Write},
    time::Duration,
};

/// How many descriptors the program has open: more than a worker has before its first connection.
const OPEN: usize = 64;

/// A program's log, opened under as many numbers as the program has descriptors. If these numbers
/// referred to a worker's own descriptors and not to the program's, one of them would certainly be a
/// client's connection.
struct Log(Vec<File>);

impl Write for &Log {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        for mut file in &self.0 {
            // Errors are ignored: an error on one descriptor must not hide that another one no longer
            // refers to a file of the program.
            let _ = file.write_all(line);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_workers_message_goes_to_the_programs_log_and_to_no_client() {
    pollux_testkit::alone!(a_workers_message_goes_to_the_programs_log_and_to_no_client);
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("log");
    let first = File::options().create(true).append(true).open(&path).unwrap();
    let mut files: Vec<_> = (1..OPEN).map(|_| first.try_clone().unwrap()).collect();
    files.push(first);
    let log: &'static Log = Box::leak(Box::new(Log(files)));
    tracing_subscriber::fmt().with_ansi(false).with_writer(move || log).init();

    let site = tempfile::tempdir().unwrap();
    std::fs::write(site.path().join("a"), "content").unwrap();
    let mut config = Settings::new(site.path());
    // The server is full with the first connection, and the worker logs that.
    config.max_connections = Some(1);
    // With idle eviction the worker logs it only when another client waits.
    config.idle_eviction = pollux_server::config::IdleEviction::Off;
    let server = Server::start(config).unwrap();
    let Listen::Tcp(address) = server.addresses()[0] else { panic!("a TCP address") };
    let mut client = Client::connect(address);
    let deadline = std::time::Instant::now() + Duration::from_secs(20);
    let is_warned = || std::fs::read_to_string(&path).unwrap().contains("accepting stops at 1");
    client.socket().set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    while !is_warned() {
        let mut bytes = [0; 400];
        match client.socket().read(&mut bytes) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            got => panic!(
                "before any request the client got {got:?}: {:?}",
                String::from_utf8_lossy(&bytes)
            ),
        }
        assert!(std::time::Instant::now() < deadline, "the worker says nothing");
    }
    client.socket().set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let reply = client.get("/a");
    assert_eq!((reply.status, reply.text().as_str()), (200, "content"));
    server.stop(Duration::from_secs(5)).unwrap();
}
