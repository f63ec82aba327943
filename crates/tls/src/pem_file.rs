//! PEM files of operators: how they are read, and why one cannot be used.

use crate::read_operator_file;
use rustls::pki_types::pem;
use std::{borrow::Cow, io, path::Path};
use zeroize::Zeroizing;

/// The maximum size of a PEM file. That of all authorities of a system has some 250 KB.
const FILE_BYTES_MAX: u64 = 64 << 20;

/// Reads a file, without the byte order mark that some editors put in front: with it the parser would skip the first
/// section without an error.
pub(crate) fn read(path: &Path) -> io::Result<Zeroizing<Vec<u8>>> {
    const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";
    let mut bytes = read_operator_file(path, FILE_BYTES_MAX)?;
    if bytes.starts_with(BYTE_ORDER_MARK) {
        drop(bytes.drain(..BYTE_ORDER_MARK.len()));
    }
    Ok(bytes)
}

/// Explains an error of the parser. Its own words contain the line at fault in full: the whole private key, if the key
/// has lost its line ends.
pub(crate) fn explain(error: &pem::Error) -> Cow<'static, str> {
    match error {
        pem::Error::MissingSectionEnd { .. } => {
            "a section has no line that ends it (-----END …-----), or has no line ends at all"
                .into()
        }
        pem::Error::IllegalSectionStart { .. } => {
            "a line that begins a section is malformed, or is not the whole line: -----BEGIN …-----"
                .into()
        }
        error => error.to_string().into(),
    }
}
