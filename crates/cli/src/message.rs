//! Messages on standard error. It may be gone: a pipe whose reader has ended, a terminal that was
//! closed. A message that nobody can read is lost and nothing else: a server goes on, and a
//! measurement keeps its exit status. `eprintln!` would end the program (status 101).

use crate::terminal;
use std::io::{self, Write};

/// Writes one message, a line or several, if there is still anybody to read it.
pub(crate) fn say(message: std::fmt::Arguments<'_>) {
    let _ = writeln!(io::stderr().lock(), "{message}");
}

/// Standard error, on which nothing ever fails.
struct Stderr;

impl Write for Stderr {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let _ = io::stderr().write_all(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What the crates have to say goes to standard error; RUST_LOG chooses which (default: info).
pub(crate) fn init() {
    let filter = tracing_subscriber::EnvFilter::builder()
        .with_default_directive(tracing::level_filters::LevelFilter::INFO.into())
        .from_env_lossy();
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(|| Stderr)
        // It tells of a writer that fails with eprintln!, and so would end the program.
        .log_internal_errors(false)
        .with_ansi(terminal::has_colours(&io::stderr()))
        .without_time()
        .with_target(false)
        .init();
}
