//! Servers that use HTTPS, and clients that trust them.

use super::{Flags, Server, Value};
use crate::peer::TlsFiles;
use std::ffi::OsString;

/// Makes `pollux serve` use the certificate that its peers use.
pub(super) fn serve_with(program: &mut Vec<OsString>, files: &TlsFiles) {
    // The served directory is the last argument.
    let at = program.len() - 1;
    let flags: [OsString; 4] = [
        "--tls-cert".into(),
        files.certificate.clone().into(),
        "--tls-key".into(),
        files.key.clone().into(),
    ];
    program.splice(at..at, flags);
}

/// Makes a client accept the self-signed certificate.
pub(super) fn trust(flags: &mut Flags, server: &Server) {
    if server.is_tls {
        flags.insert("insecure".into(), Value::Flag(true));
    }
}
