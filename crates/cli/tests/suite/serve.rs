//! `pollux serve` as a process: limits, signals, memory.

mod clients;
mod command_line;
mod configuration;
mod cors;
mod limits;
mod logs;
mod passwords;
mod pipes;
mod proxy_protocol;
mod rtsig;
mod rules;
pub(crate) mod sandbox;
mod service_manager;
mod signals;
mod user;

use pollux_testkit::serve::Serve;
use std::{fs, path::Path};
use tempfile::TempDir;

const BINARY: &str = env!("CARGO_BIN_EXE_pollux");
const INDEX: &str = "<h1>it works</h1>\n";

/// Creates a site with an index and a file of `large` bytes.
fn site(large: usize) -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("index.html"), INDEX).unwrap();
    fs::write(directory.path().join("large.bin"), content(large)).unwrap();
    directory
}

/// Returns bytes in which a missing or a repeated part can be detected.
fn content(len: usize) -> Vec<u8> {
    (0..len as u64).map(|i| (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect()
}

fn serve(directory: &Path, arguments: &[&str]) -> Serve {
    Serve::start(BINARY, directory, arguments)
}

/// Checks that the server still serves other clients.
fn assert_serves(server: &Serve) {
    let reply = server.client().get("/");
    assert_eq!((reply.status, reply.text().as_str()), (200, INDEX));
}
