//! The alerts that a handshake needs beside those of rustls: rustls makes none for some faults, and for others not the
//! one that the RFCs demand.

use super::{client_hello::ClientHello, record_len};
use crate::record::HEADER_LEN;
use rustls::{AlertDescription, Error, InvalidMessage, PeerIncompatible, PeerMisbehaved};

pub(super) const WARNING: u8 = 1;
pub(super) const FATAL: u8 = 2;

pub(super) const CLOSE_NOTIFY: u8 = 0;
pub(super) const UNEXPECTED_MESSAGE: u8 = 10;
pub(super) const BAD_RECORD_MAC: u8 = 20;
pub(super) const RECORD_OVERFLOW: u8 = 22;
pub(super) const HANDSHAKE_FAILURE: u8 = 40;
const ILLEGAL_PARAMETER: u8 = 47;
pub(super) const DECODE_ERROR: u8 = 50;
pub(super) const PROTOCOL_VERSION: u8 = 70;
pub(super) const INAPPROPRIATE_FALLBACK: u8 = 86;
const MISSING_EXTENSION: u8 = 109;

/// The types of records.
pub(super) const CHANGE_CIPHER_SPEC: u8 = 20;
pub(super) const ALERT: u8 = 21;
pub(super) const HANDSHAKE: u8 = 22;
pub(super) const APPLICATION_DATA: u8 = 23;
/// rustls knows this type, and refuses such records.
pub(super) const HEARTBEAT: u8 = 24;

/// Why this crate refuses a record: rustls accepts it, or sends another alert.
#[derive(Clone, Copy)]
pub(super) enum Fault {
    /// The peer ends the handshake, by close_notify.
    Closed,
    /// The description of the alert, and the reason.
    Refused(u8, &'static str),
}

/// An alert that is not encrypted.
pub(super) fn plain_alert([level, description]: [u8; 2]) -> [u8; 7] {
    [ALERT, 3, 3, 0, 2, level, description]
}

/// The alert that the RFCs demand for an error, if rustls makes another one.
pub(super) fn better_alert(error: &Error, is_old: bool, hello: Option<ClientHello>) -> Option<u8> {
    use PeerIncompatible::{KeyShareExtensionRequired, SignatureAlgorithmsExtensionRequired};
    match error {
        // rustls misses the extension before it looks at the version.
        Error::PeerIncompatible(SignatureAlgorithmsExtensionRequired) if is_old => {
            Some(PROTOCOL_VERSION)
        }
        Error::PeerIncompatible(KeyShareExtensionRequired) => Some(MISSING_EXTENSION),
        Error::PeerIncompatible(reason)
            if hello.is_some_and(|hello| hello.lacks_extension(reason)) =>
        {
            Some(MISSING_EXTENSION)
        }
        // These are faults of a record's header: its type (RFC 8446 §5, RFC 5246 §6) and its length (RFC 8446 §5.1).
        Error::InvalidMessage(InvalidMessage::InvalidContentType) => Some(UNEXPECTED_MESSAGE),
        Error::InvalidMessage(InvalidMessage::MessageTooLarge) => Some(RECORD_OVERFLOW),
        // A change_cipher_spec of other bytes than 1; in TLS 1.2 also an encrypted one.
        Error::InvalidMessage(
            InvalidMessage::InvalidCcs | InvalidMessage::TrailingData("ChangeCipherSpecPayload"),
        ) => Some(UNEXPECTED_MESSAGE),
        _ => None,
    }
}

/// The alert for an error for which rustls makes none.
pub(super) fn missing_alert(error: &Error) -> Option<u8> {
    use PeerMisbehaved::{
        IllegalMiddleboxChangeCipherSpec, IllegalTlsInnerPlaintext,
        MessageInterleavedWithHandshakeMessage, RejectedEarlyDataInterleavedWithHandshakeMessage,
        TooManyEmptyFragments, TooManyWarningAlertsReceived,
    };
    Some(match error {
        Error::InvalidMessage(_) => DECODE_ERROR,
        Error::InappropriateMessage { .. }
        | Error::InappropriateHandshakeMessage { .. }
        | Error::PeerMisbehaved(
            IllegalMiddleboxChangeCipherSpec
            | IllegalTlsInnerPlaintext
            | MessageInterleavedWithHandshakeMessage
            | TooManyEmptyFragments
            | TooManyWarningAlertsReceived,
        ) => UNEXPECTED_MESSAGE,
        // The record could not be decrypted, and is no early data, which ends where a message begins.
        Error::PeerMisbehaved(RejectedEarlyDataInterleavedWithHandshakeMessage) => BAD_RECORD_MAC,
        Error::PeerMisbehaved(_) => ILLEGAL_PARAMETER,
        // The peer has sent an alert itself, or the error is this end's fault.
        _ => return None,
    })
}

/// Whether the peer has ended the handshake by close_notify.
pub(super) fn is_end(error: &Error) -> bool {
    matches!(error, Error::AlertReceived(AlertDescription::CloseNotify))
}

/// Whether a record is close_notify, not encrypted.
pub(super) fn is_close_notify(record: &[u8]) -> bool {
    matches!(record, [ALERT, _, _, 0, 2, WARNING | FATAL, CLOSE_NOTIFY])
}

/// Whether the input begins with a ClientHello of a version before TLS 1.2. A client without TLS 1.2
/// sends no signature_algorithms, and must get the alert protocol_version (RFC 5246 appendix E.1).
pub(super) fn is_old_hello(input: &[u8]) -> bool {
    /// The header of the record, and the type and length of the message.
    const VERSION_AT: usize = HEADER_LEN + 4;
    const CLIENT_HELLO: u8 = 1;
    const TLS12: [u8; 2] = [3, 3];
    input.first() == Some(&HANDSHAKE)
        && input.get(HEADER_LEN) == Some(&CLIENT_HELLO)
        && input.get(VERSION_AT..VERSION_AT + 2).is_some_and(|version| version < &TLS12[..])
}

/// Whether records that rustls wants to send are unencrypted messages: from change_cipher_spec on they may be
/// encrypted. A server also sends change_cipher_spec behind its HelloRetryRequest (RFC 8446 appendix D.4), where
/// nothing is encrypted. Only there is it the last record: in TLS 1.2 Finished follows.
pub(super) fn is_plain(mut records: &[u8], is_server: bool) -> bool {
    while let (Some(&kind), Some(len)) = (records.first(), record_len(records)) {
        let rest = records.get(len..).unwrap_or_default();
        let is_of_retry = is_server && kind == CHANGE_CIPHER_SPEC && rest.is_empty();
        if kind != HANDSHAKE && !is_of_retry {
            return false;
        }
        records = rest;
    }
    true
}

/// Whether a record is an alert: by its type or, where TLS 1.3 hides the type, by its length (2 bytes,
/// the inner type and the tag), which no other message of a handshake has.
pub(super) fn is_alert(record: &[u8]) -> bool {
    match record.first() {
        Some(&ALERT) => true,
        Some(&APPLICATION_DATA) => record.len() == HEADER_LEN + 2 + 1 + 16,
        _ => false,
    }
}
