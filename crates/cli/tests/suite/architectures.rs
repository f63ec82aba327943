//! The same service in every architecture, as `pollux serve` runs it: the abilities and the limits of
//! each architecture, and the processes of those that fork.

mod attacks;
mod conformance;
mod frontend;
mod guestbook;
mod limits;
mod pools;
mod processes;
mod service;
mod threads;
mod tree;

use pollux_testkit::serve::{Serve, describe};
use std::{fs, path::Path, thread};
use tempfile::TempDir;

const BINARY: &str = env!("CARGO_BIN_EXE_pollux");

const ALL: [&str; 6] = ["iterative", "forking", "preforked", "threaded", "prethreaded", "event"];
/// The architectures that serve several connections at a time.
const CONCURRENT: [&str; 5] = ["forking", "preforked", "threaded", "prethreaded", "event"];
/// The architectures that use processes.
const PROCESSES: [&str; 2] = ["forking", "preforked"];

/// Runs `test` in each of these architectures, all at once.
fn in_each(architectures: &[&'static str], test: impl Fn(&'static str) + Sync) {
    thread::scope(|scope| {
        for &architecture in architectures {
            let test = &test;
            let thread = thread::Builder::new().name(architecture.into());
            thread.spawn_scoped(scope, move || test(architecture)).unwrap();
        }
    });
}

/// Creates a site with an index and a file of `large` bytes.
fn site(large: usize) -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("index.html"), "hello").unwrap();
    fs::write(directory.path().join("large"), content(large)).unwrap();
    directory
}

/// Returns bytes in which a missing or a repeated part can be detected.
fn content(len: usize) -> Vec<u8> {
    (0..len as u64).map(|i| (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect()
}

/// Starts a server whose timeouts are so long that no connection times out only because the machine is
/// busy, unless `arguments` set them.
fn serve(directory: &Path, architecture: &str, arguments: &[&str]) -> Serve {
    let mut all = vec!["--architecture", architecture];
    if architecture.starts_with("pre") && !arguments.contains(&"--pool") {
        all.extend(["--pool", "8"]);
    }
    for (name, value) in [("--keep-alive", "300s"), ("--header-timeout", "300s")] {
        if !arguments.contains(&name) {
            all.extend([name, value]);
        }
    }
    all.extend(arguments);
    let server = Serve::start(BINARY, directory, &all);
    assert_eq!(server.listening()["architecture"], architecture);
    server
}

/// Stops the server, checks that it ends successfully, and returns its last statistics.
fn stop(server: Serve) -> serde_json::Value {
    let children = tree::children(server.pid());
    let (status, last) = server.stop();
    assert!(status.success(), "{}", describe(status));
    assert!(!children.into_iter().any(tree::is_alive), "it leaves children behind");
    last
}

/// A request after which the server closes the connection.
const LAST: &str = "GET / HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n";
