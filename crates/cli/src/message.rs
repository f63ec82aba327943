//! Messages on standard error. A write to it may fail: the reader of a pipe has ended, or the
//! terminal was closed. Then only the message is lost: a server goes on, and a measurement keeps
//! its exit status. `eprintln!` would end the program (status 101).

use crate::terminal;
use std::io::{self, Write};

/// Writes one message of one or more lines. A failed write is ignored.
pub(crate) fn say(message: std::fmt::Arguments<'_>) {
    let _ = writeln!(io::stderr().lock(), "{message}");
}

/// Standard error; writes to it never fail.
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

/// Sends the messages of the crates to standard error. RUST_LOG selects the messages (default:
/// info).
pub(crate) fn init() {
    let filter = tracing_subscriber::EnvFilter::builder()
        .with_default_directive(tracing::level_filters::LevelFilter::INFO.into())
        .from_env_lossy();
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(|| Stderr)
        // The subscriber would report a failed writer with eprintln!, which would end the program.
        .log_internal_errors(false)
        .with_ansi(terminal::has_colours(&io::stderr()))
        .without_time()
        .with_target(false)
        .init();
}
