//! `pollux serve --origin … --cache …` and `pollux cache` as processes.

mod control;
mod disk;
mod stored;

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

/// Returns the content of a URL in a version. It names both, so that a missing part can be detected.
fn content(target: &str, version: u32) -> String {
    let sum = target.bytes().fold(7u64, |sum, byte| sum.wrapping_mul(31) + u64::from(byte));
    // Some contents are short, some are stored within the record, some in pieces.
    let repeats = [1, 40, 1500, 6000][(sum % 4) as usize] + (sum / 4 % 7) as usize;
    format!("{target} in version {version}\n").repeat(repeats)
}

/// Starts an origin whose replies may all be stored. The version in its replies can be changed.
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

/// Returns the command of a caching server for `origin`.
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

/// Returns the output of `pollux cache`, which must succeed.
fn printed(control: &Path, arguments: &[&str]) -> String {
    let output = cache(control, arguments);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{arguments:?}: {stderr}");
    assert!(stderr.is_empty(), "{arguments:?}: {stderr}");
    String::from_utf8(output.stdout).unwrap()
}

/// Returns a counter of the cache.
fn counter(control: &Path, name: &str) -> u64 {
    let line = printed(control, &["stats", "--json"]);
    let first = line.lines().next().unwrap();
    let event: serde_json::Value = serde_json::from_str(first).unwrap();
    event["counters"][name].as_u64().unwrap_or_else(|| panic!("no {name} in {first}"))
}
