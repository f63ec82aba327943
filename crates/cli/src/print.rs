//! Text on standard output.

use anyhow::Context as _;
use std::io::{self, Write as _};

/// Writes a whole text. A reader that closes the pipe early, such as `head`, is not an error.
///
/// # Errors
/// The error of any other failed write.
pub(crate) fn print_all(text: &str) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => written.context("standard output"),
    }
}
