//! The errors of a connection after its handshake, and the alerts that report them.

use rustls::{CertificateError, OtherError};
use std::fmt;

/// The reason why a connection must end. Every variant is fatal (RFC 8446 §6.2, RFC 5246 §7.2.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// A record failed authentication, or is too short to carry a tag.
    BadRecordMac,
    /// A record is longer than RFC 8446 §5.2 or RFC 5246 §6.2.3 allows.
    RecordOverflow,
    /// A record or message of a type that is not allowed now; the text says which.
    UnexpectedMessage(&'static str),
    /// A message whose length or content is malformed; the text says which.
    Decode(&'static str),
    /// A KeyUpdate whose request is neither 0 nor 1 (RFC 8446 §4.6.3).
    IllegalParameter,
    /// The peer wants to renegotiate TLS 1.2, which is not supported.
    Renegotiation,
    /// The peer ended the connection with this fatal alert (RFC 8446 §6).
    PeerAlert(u8),
    /// More useless records than a connection may send: empty ones, warnings, KeyUpdates.
    TooManyUselessRecords,
    /// A TLS 1.2 connection has sealed as many records as its key allows.
    KeyExhausted,
}

impl Error {
    /// The alert to send to the peer, as (level, description); `None` if the peer has ended the
    /// connection itself.
    pub fn alert(self) -> Option<(u8, u8)> {
        const WARNING: u8 = 1;
        const FATAL: u8 = 2;
        Some(match self {
            Self::UnexpectedMessage(_) | Self::TooManyUselessRecords => (FATAL, 10),
            Self::BadRecordMac => (FATAL, 20),
            Self::RecordOverflow => (FATAL, 22),
            Self::IllegalParameter => (FATAL, 47),
            Self::Decode(_) => (FATAL, 50),
            Self::KeyExhausted => (FATAL, 80),
            // RFC 5246 §7.2.2: "always a warning". The connection is closed nevertheless.
            Self::Renegotiation => (WARNING, 100),
            Self::PeerAlert(_) => return None,
        })
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BadRecordMac => f.write_str("a TLS record could not be authenticated"),
            Self::RecordOverflow => f.write_str("a TLS record is longer than the protocol allows"),
            Self::UnexpectedMessage(what) => write!(f, "unexpected TLS message: {what}"),
            Self::Decode(what) => write!(f, "malformed TLS message: {what}"),
            Self::IllegalParameter => f.write_str("a KeyUpdate asks for neither yes nor no"),
            Self::Renegotiation => f.write_str("the peer asks for TLS 1.2 renegotiation"),
            Self::PeerAlert(code) => write!(f, "the peer sent the fatal TLS alert {code}"),
            Self::TooManyUselessRecords => {
                f.write_str("the peer sends TLS records that carry no data without end")
            }
            Self::KeyExhausted => {
                f.write_str("a TLS 1.2 key has sealed as many records as it may; reconnect")
            }
        }
    }
}

impl std::error::Error for Error {}

/// The reason why a configuration cannot be used, in one sentence that names the file at fault.
#[derive(Debug)]
pub struct ConfigError(String);

impl ConfigError {
    pub(crate) fn new(reason: String) -> Self {
        Self(reason)
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ConfigError {}

/// The reason for which webpki rejects a certificate, if rustls has no variant of its own for it.
pub(crate) fn webpki_error(error: &rustls::Error) -> Option<&webpki::Error> {
    let rustls::Error::InvalidCertificate(CertificateError::Other(OtherError(inner))) = error
    else {
        return None;
    };
    inner.downcast_ref()
}
