//! Files of text that are read as a whole: configurations and passwords.

use std::{fs, io, path::Path};

/// Reads a UTF-8 file of at most `bytes_max` bytes.
///
/// # Errors
/// The errors of open(2) and read(2); also if the file is longer or is not UTF-8.
pub(crate) fn read_text(path: &Path, bytes_max: u64) -> io::Result<String> {
    use io::Read;
    let mut text = String::new();
    fs::File::open(path)?.take(bytes_max + 1).read_to_string(&mut text)?;
    if text.len() as u64 > bytes_max {
        return Err(io::Error::other(format!("it is longer than {bytes_max} bytes")));
    }
    Ok(text)
}
