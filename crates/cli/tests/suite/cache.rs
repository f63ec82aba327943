//! `pollux serve --origin … --cache …` and `pollux cache` as processes.

mod control;
mod disk;
mod kept;

use pollux_testkit::{http::Reply, origin::Origin, serve::Serve};
use std::{
    path::Path,
    process::{Command, Output},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::SeqCst},
    },
};

const BINARY: &str = env!("CARGO_BIN_EXE_pollux");

/// What the content of a URL is in a version: it names both, and what is missing shows.
fn content(target: &str, version: u32) -> String {
    let sum = target.bytes().fold(7u64, |sum, byte| sum.wrapping_mul(31) + u64::from(byte));
    // Some short, some that lie in the record, some in pieces.
    let repeats = [1, 40, 1500, 6000][(sum % 4) as usize] + (sum / 4 % 7) as usize;
    format!("{target} in version {version}\n").repeat(repeats)
}

/// An origin whose replies all may be kept; the version that it tells can be changed.
fn origin() -> (Origin, Arc<AtomicU32>) {
    let version = Arc::new(AtomicU32::new(1));
    let current = version.clone();
    let origin = Origin::start(move |request| {
        let body = content(request.target(), current.load(SeqCst));
        let (directory, name) = request.target()[1..].split_once('/').unwrap_or(("", ""));
        let mut fields = format!("Surrogate-Key: all {directory}\r\nX-Name: {name}\r\n");
        if directory == "varied" {
            fields.push_str("Vary: Accept-Language\r\n");
        }
        request.say(format!(
            "HTTP/1.1 200 OK\r\nCache-Control: max-age=3600\r\nETag: \"{}\"\r\n{fields}\
             Content-Length: {}\r\n\r\n{body}",
            current.load(SeqCst),
            body.len()
        ))
    });
    (origin, version)
}

/// The command of a server before `origin`, that caches.
fn command(origin: &Origin, arguments: &[&str]) -> Command {
    let mut command = Command::new(BINARY);
    command.args(["serve", "--origin", &origin.url(), "--json", "--listen", "127.0.0.1:0"]);
    command.args(["--cache", "64M"]).args(arguments);
    command
}

fn serve(origin: &Origin, arguments: &[&str]) -> Serve {
    Serve::start_command(command(origin, arguments))
}

fn is_hit(reply: &Reply) -> bool {
    reply.field("cache-status").is_some_and(|status| status.starts_with("Pollux; hit"))
}

/// Runs `pollux cache`.
fn cache(control: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new("timeout");
    command.args(["60", BINARY, "cache"]).args(arguments).arg("--control").arg(control);
    command.output().unwrap()
}

/// What it prints when it succeeds.
fn printed(control: &Path, arguments: &[&str]) -> String {
    let output = cache(control, arguments);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{arguments:?}: {stderr}");
    assert!(stderr.is_empty(), "{arguments:?}: {stderr}");
    String::from_utf8(output.stdout).unwrap()
}

/// A counter of the cache.
fn counter(control: &Path, name: &str) -> u64 {
    let line = printed(control, &["stats", "--json"]);
    let first = line.lines().next().unwrap();
    let event: serde_json::Value = serde_json::from_str(first).unwrap();
    event["counters"][name].as_u64().unwrap_or_else(|| panic!("no {name} in {first}"))
}
