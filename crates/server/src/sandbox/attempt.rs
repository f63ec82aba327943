//! For tests, and only in debug builds: the running server tries what its sandbox should refuse.

use std::{
    fs, io,
    net::{Ipv4Addr, TcpStream},
    process::{Command, Stdio},
};

/// What to try, separated by commas: `read:PATH`, `connect:PORT`, `exec:PATH`.
const VARIABLE: &str = "POLLUX_TEST_ATTEMPTS";

/// Tries what the environment names, and reports each outcome in the log.
pub(crate) fn run() {
    for attempt in std::env::var(VARIABLE).iter().flat_map(|all| all.split(',')) {
        let outcome = match attempt.split_once(':') {
            Some(("read", path)) => fs::read(path).map(drop),
            Some(("connect", port)) => {
                let port = port.parse().unwrap_or_default();
                TcpStream::connect((Ipv4Addr::LOCALHOST, port)).map(drop)
            }
            Some(("exec", path)) => execute(path),
            _ => Err(io::Error::other("unknown")),
        };
        match outcome {
            Ok(()) => tracing::info!("attempt {attempt}: allowed"),
            Err(error) => tracing::info!("attempt {attempt}: refused: {error}"),
        }
    }
}

fn execute(path: &str) -> io::Result<()> {
    let status = Command::new(path).stdin(Stdio::null()).status()?;
    if status.success() { Ok(()) } else { Err(io::Error::other(status.to_string())) }
}
