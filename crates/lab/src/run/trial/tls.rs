//! Servers that speak https, and clients that trust them.

use super::{Flags, Server, Value};
use crate::peer::TlsFiles;
use std::ffi::OsString;

/// Lets `pollux serve` use the certificate that its peers use.
pub(super) fn serve_with(program: &mut Vec<OsString>, files: &TlsFiles) {
    // The directory that is served comes last.
    let at = program.len() - 1;
    let flags: [OsString; 4] = [
        "--tls-cert".into(),
        files.certificate.clone().into(),
        "--tls-key".into(),
        files.key.clone().into(),
    ];
    program.splice(at..at, flags);
}

/// Lets a client accept the certificate, which signs itself.
pub(super) fn trust(flags: &mut Flags, server: &Server) {
    if server.is_tls {
        flags.insert("insecure".into(), Value::Flag(true));
    }
}
