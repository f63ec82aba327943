//! Text on standard output.

use anyhow::Context as _;
use std::io::{self, StdoutLock, Write as _};

/// Prints what `write` writes, at once. Returns false if the reader has closed the pipe early, as [`has_reader`].
///
/// # Errors
/// The write failed for another reason.
pub(crate) fn print_with(
    write: impl FnOnce(&mut StdoutLock<'static>) -> io::Result<()>,
) -> io::Result<bool> {
    let mut out = io::stdout().lock();
    has_reader(write(&mut out).and_then(|()| out.flush()))
}

/// Returns false if a write to standard output failed because the reader has closed the pipe early, as `head` does.
/// This is not an error.
///
/// # Errors
/// Any other error.
pub(crate) fn has_reader(written: io::Result<()>) -> io::Result<bool> {
    match written {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(error),
    }
}

/// Writes a whole text, as [`print_with`].
///
/// # Errors
/// As there.
pub(crate) fn print_all(text: &str) -> anyhow::Result<()> {
    print_with(|out| out.write_all(text.as_bytes())).context("standard output")?;
    Ok(())
}
