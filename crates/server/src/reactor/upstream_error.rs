//! The reason why an upstream connection has failed.

use pollux_tls::HandshakeError;
use std::{fmt, io};

/// The reason why an upstream connection could not be established, or has broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpstreamError {
    /// A system call has failed with this kind of error. `UnexpectedEof` means that a TLS stream ended
    /// without close_notify: its last part may be missing.
    Io(io::ErrorKind),
    /// The server's certificate is not valid for the connection: it is not trusted, has another name, has
    /// expired, …
    TlsCertificate,
    /// The server has ended the connection by this alert.
    TlsAlert(u8),
    /// The server's messages are not valid TLS, or the two sides support no common parameters.
    TlsProtocol,
}

impl UpstreamError {
    /// Converts an error of a transport.
    pub(crate) fn of(error: &io::Error) -> Self {
        let inner = error.get_ref();
        let handshake = inner.and_then(|inner| inner.downcast_ref::<HandshakeError>());
        let record = inner.and_then(|inner| inner.downcast_ref::<pollux_tls::Error>());
        match (handshake, record) {
            (Some(error), _) if error.is_certificate() => Self::TlsCertificate,
            (Some(error), _) => error.received_alert().map_or(Self::TlsProtocol, Self::TlsAlert),
            (None, Some(pollux_tls::Error::PeerAlert(alert))) => Self::TlsAlert(*alert),
            (None, Some(_)) => Self::TlsProtocol,
            (None, None) => Self::Io(error.kind()),
        }
    }
}

impl From<io::ErrorKind> for UpstreamError {
    fn from(kind: io::ErrorKind) -> Self {
        Self::Io(kind)
    }
}

impl fmt::Display for UpstreamError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(kind) => kind.fmt(f),
            Self::TlsCertificate => f.write_str("its certificate is not valid for it"),
            Self::TlsAlert(alert) => write!(f, "it ended the TLS connection with alert {alert}"),
            Self::TlsProtocol => f.write_str("it does not speak valid TLS"),
        }
    }
}
