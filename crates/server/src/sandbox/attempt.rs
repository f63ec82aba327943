//! For tests in debug builds: the running server tries actions that its sandbox should refuse.

use std::{
    fs, io,
    net::{Ipv4Addr, TcpStream},
    process::{Command, Stdio},
};

/// The environment variable with the attempts, separated by commas: `read:PATH`, `connect:PORT`,
/// `exec:PATH`.
const VARIABLE: &str = "POLLUX_TEST_ATTEMPTS";

/// Makes the attempts that the environment names, and logs each outcome.
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
