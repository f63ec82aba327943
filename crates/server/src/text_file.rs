//! Files of text that are read as a whole: configurations and passwords.

use pollux_tls::read_operator_file;
use std::{io, path::Path};

/// Reads a UTF-8 file of at most `bytes_max` bytes.
///
/// # Errors
/// The errors of [`read_operator_file`]; also if the file is not UTF-8.
pub(crate) fn read_text(path: &Path, bytes_max: u64) -> io::Result<String> {
    let bytes = std::mem::take(&mut *read_operator_file(path, bytes_max)?);
    String::from_utf8(bytes).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}
