//! Each fault of a client in the handshake gets the alert that the RFCs demand.

use super::{
    alerts::{
        APPLICATION_DATA, CHANGE_CIPHER_SPEC, HANDSHAKE, UNEXPECTED_MESSAGE, WARNING, plain_alert,
    },
    *,
};
use crate::{Cipher, ClientSettings, Keys, ServerSettings, record::ContentType, self_signed};

const BAD_RECORD_MAC: u8 = 20;
const RECORD_OVERFLOW: u8 = 22;
const HANDSHAKE_FAILURE: u8 = 40;
const DECRYPT_ERROR: u8 = 51;
const PROTOCOL_VERSION: u8 = 70;
const INAPPROPRIATE_FALLBACK: u8 = 86;
const MISSING_EXTENSION: u8 = 109;

const GROUPS: u16 = 10;
const SIGNATURES: u16 = 13;
const VERSIONS: u16 = 43;
const SHARES: u16 = 51;

fn server() -> Handshake {
    let certificates = Arc::new(self_signed(vec!["localhost".into()]).unwrap());
    Handshake::server(ServerSettings::default().build(certificates).unwrap()).unwrap()
}

/// A client, and its hello.
fn client(cipher: Option<Cipher>) -> (Handshake, Vec<u8>) {
    let settings = ClientSettings { cipher, ..ClientSettings::trusting_anybody(&[]) };
    let name = ServerName::try_from("localhost").unwrap();
    let mut client = Handshake::client(settings.build().unwrap(), name).unwrap();
    let mut hello = Vec::new();
    client.advance(&[], &mut hello).unwrap();
    (client, hello)
}

fn number(bytes: &[u8]) -> usize {
    usize::from(u16::from_be_bytes([bytes[0], bytes[1]]))
}

fn vector(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u16).to_be_bytes()[..], bytes].concat()
}

fn record(kind: u8, content: &[u8]) -> Vec<u8> {
    [&[kind, 3, 3][..], &vector(content)].concat()
}

/// A hello without the extensions of these kinds, with these suites before the others, and with more extensions.
fn hello(removed: &[u16], more_suites: &[u8], more_extensions: &[u8]) -> Vec<u8> {
    let (_, hello) = client(None);
    let body = &hello[HEADER_LEN + 4..];
    // Version, random, session.
    let (start, rest) = body.split_at(2 + 32 + 1 + usize::from(body[2 + 32]));
    let (suites, rest) = rest[2..].split_at(number(rest));
    let (compression, rest) = rest.split_at(1 + usize::from(rest[0]));
    let (mut extensions, mut rest) = (Vec::new(), &rest[2..]);
    while !rest.is_empty() {
        let (extension, others) = rest.split_at(2 + 2 + number(&rest[2..]));
        if !removed.contains(&(number(extension) as u16)) {
            extensions.extend_from_slice(extension);
        }
        rest = others;
    }
    extensions.extend_from_slice(more_extensions);
    let suites = vector(&[more_suites, suites].concat());
    let body = [start, &suites[..], compression, &vector(&extensions)[..]].concat();
    let [_, high, middle, low] = (body.len() as u32).to_be_bytes();
    record(HANDSHAKE, &[&[1, high, middle, low][..], &body].concat())
}

/// The error for a hello, and the bytes that are sent.
fn refusal(hello: &[u8]) -> (HandshakeError, Vec<u8>) {
    let mut out = Vec::new();
    let error = server().advance(hello, &mut out).expect_err("a fault");
    (error, out)
}

fn assert_is_accepted(hello: &[u8]) -> (Handshake, Vec<u8>) {
    let (mut server, mut out) = (server(), Vec::new());
    assert_eq!(server.advance(hello, &mut out).unwrap(), Progress::NeedsInput);
    (server, out)
}

/// RFC 8446 §9.2. Regression: the alert was handshake_failure.
#[test]
fn an_extension_that_tls13_requires_is_missed() {
    for removed in [&[GROUPS][..], &[SHARES], &[SIGNATURES], &[GROUPS, SHARES]] {
        let (error, out) = refusal(&hello(removed, &[], &[]));
        assert_eq!(out, plain_alert([FATAL, MISSING_EXTENSION]), "{removed:?}: {error}");
    }
    let (_, out) = refusal(&hello(&[VERSIONS, SHARES, SIGNATURES], &[], &[]));
    assert_eq!(out, plain_alert([FATAL, HANDSHAKE_FAILURE]), "TLS 1.2 does not require it");
}

/// RFC 7507 §3, RFC 5746 §3.6. Regression: both were ignored.
#[test]
fn a_fallback_and_a_renegotiation_are_refused_in_tls12() {
    let suite = [0x56, 0];
    let (error, out) = refusal(&hello(&[VERSIONS], &suite, &[]));
    assert!(matches!(error, HandshakeError::Refused(_)), "{error}");
    assert_eq!(out, plain_alert([FATAL, INAPPROPRIATE_FALLBACK]));
    assert_is_accepted(&hello(&[], &suite, &[]));

    let renegotiation = [0xff, 1, 0, 3, 2, 7, 7];
    let (error, out) = refusal(&hello(&[VERSIONS], &[], &renegotiation));
    assert!(matches!(error, HandshakeError::Refused(_)), "{error}");
    assert_eq!(out, plain_alert([FATAL, HANDSHAKE_FAILURE]));
    assert_is_accepted(&hello(&[VERSIONS], &[], &[0xff, 1, 0, 1, 0]));
    assert_is_accepted(&hello(&[], &[], &renegotiation));
}

/// RFC 8446 appendix D.5. Regression: TLS 1.3 was used.
#[test]
fn a_legacy_version_of_ssl_is_refused() {
    for (version, is_refused) in
        [([3, 0], true), ([2, 0], true), ([0, 2], true), ([3, 1], false), ([3, 4], false)]
    {
        let mut hello = hello(&[], &[], &[]);
        hello[HEADER_LEN + 4..][..2].copy_from_slice(&version);
        if is_refused {
            assert_eq!(refusal(&hello).1, plain_alert([FATAL, PROTOCOL_VERSION]), "{version:?}");
        } else {
            assert_is_accepted(&hello);
        }
    }
}

/// RFC 8446 §5.1. Regression: 2,048 bytes more were accepted.
#[test]
fn a_plain_record_has_2_to_the_14_bytes_at_most() {
    let header = |len: u16| [&[HANDSHAKE, 3, 1][..], &len.to_be_bytes()].concat();
    assert_is_accepted(&header(1 << 14));
    let (_, out) = refusal(&header((1 << 14) + 1));
    assert_eq!(out, plain_alert([FATAL, RECORD_OVERFLOW]));
}

/// Regression: the rest of the record was waited for, for the time of a handshake.
#[test]
fn a_record_of_an_unknown_type_is_refused_by_its_header() {
    // A hello of SSL 2.0 that offers TLS 1.3: the length of its record would be 772.
    for header in [[0x80, 0x2e, 1, 3, 4], [25, 3, 3, 1, 0], [19, 3, 3, 0, 1]] {
        let (_, out) = refusal(&header);
        assert_eq!(out, plain_alert([FATAL, UNEXPECTED_MESSAGE]), "{header:?}");
    }
}

/// Regression: rustls ignores close_notify, and the connection stayed open for the time of a handshake.
#[test]
fn close_notify_ends_a_handshake() {
    let end = plain_alert([WARNING, 0]);
    let (mut server, mut out) = assert_is_accepted(&hello(&[VERSIONS, SHARES], &[], &[]));
    out.clear();
    assert!(matches!(server.advance(&end, &mut out), Err(HandshakeError::Closed)));
    assert_eq!(out, end);
}

/// As in TLS 1.3 (RFC 8446 §5). Regression: the alert was decode_error.
#[test]
fn another_change_cipher_spec_than_1_is_unexpected_in_tls12() {
    for content in [&[2][..], &[1, 1]] {
        let (mut server, mut out) = assert_is_accepted(&hello(&[VERSIONS, SHARES], &[], &[]));
        out.clear();
        assert!(server.advance(&record(CHANGE_CIPHER_SPEC, content), &mut out).is_err());
        assert_eq!(out, plain_alert([FATAL, UNEXPECTED_MESSAGE]), "{content:?}");
    }
}

/// The client's record layer in the handshake.
fn sealer(server: &Handshake) -> (Session, Keys) {
    let secret = server.secrets.client_handshake.as_ref().unwrap();
    let session = server.session_at_zero(secret).unwrap();
    let keys = session.derive_keys();
    (session, keys)
}

fn sealed((session, keys): &mut (Session, Keys), kind: ContentType, content: &[u8]) -> Vec<u8> {
    let mut record = vec![0; crate::CONTROL_RECORD_MAX + content.len()];
    let len = session.seal_control(keys, kind, content, &mut record);
    record.truncate(len);
    record
}

/// A server of TLS 1.3 that has sent all of its messages, and the record layer of its client.
fn answered(cipher: Cipher) -> (Handshake, Session) {
    let (mut client, hello) = client(Some(cipher));
    let (server, answer) = assert_is_accepted(&hello);
    assert_eq!(client.advance(&answer, &mut Vec::new()).unwrap(), Progress::Complete);
    (server, client.finish().unwrap().session)
}

/// RFC 8446 §6.1. Regression: the answer was decode_error.
#[test]
fn close_notify_is_answered_behind_the_servers_messages_too() {
    let (mut server, mut session) = answered(Cipher::Aes128Gcm);
    let mut out = Vec::new();
    let end = sealed(&mut sealer(&server), ContentType::Alert, &[WARNING, 0]);
    assert!(server.advance(&end, &mut out).is_err());
    let opened = session.open(&mut session.derive_keys(), &mut out).unwrap();
    assert_eq!((opened.content, opened.consumed), (crate::Content::Closed, out.len()));
}

/// RFC 8446 §4.2.10. Regression: rustls skips 2^14 bytes of ciphertext, which is less than a full record.
#[test]
fn early_data_is_skipped_behind_a_retry_too() {
    // The client offers early data, and no share.
    let (mut server, mut out) =
        assert_is_accepted(&hello(&[SHARES], &[], &[0, 42, 0, 0, 0, 51, 0, 2, 0, 0]));
    out.clear();
    let data = record(APPLICATION_DATA, &[7; (1 << 14) + 17]);
    assert_eq!(server.advance(&data, &mut out).unwrap(), Progress::NeedsInput);
    assert!(out.is_empty());
    assert_eq!(server.advance(&hello(&[], &[], &[]), &mut out).unwrap(), Progress::NeedsInput);
    assert!(server.secrets.server.is_some());
    assert_eq!(server.records(), 3);
}

/// Faults behind the messages of a TLS 1.3 server, which rustls reports by no alert, or by another one.
#[test]
fn faults_behind_the_servers_messages_get_an_encrypted_alert() {
    use ContentType::{Alert, ApplicationData, Handshake as Message};
    let change = record(CHANGE_CIPHER_SPEC, &[1]);
    type PlantedFault = (&'static str, fn(&mut (Session, Keys)) -> Vec<u8>, u8);
    let faults: [PlantedFault; 12] = [
        (
            "many change_cipher_spec",
            |_| record(CHANGE_CIPHER_SPEC, &[1]).repeat(9),
            UNEXPECTED_MESSAGE,
        ),
        ("a message in the clear", |_| record(HANDSHAKE, &[20, 0, 0, 1, 7]), UNEXPECTED_MESSAGE),
        ("an unknown type", |_| record(99, &[1]), UNEXPECTED_MESSAGE),
        ("a header with a long length", |_| vec![23, 3, 3, 0x41, 0x01], RECORD_OVERFLOW),
        ("an empty alert", |sealer| sealed(sealer, Alert, &[]), UNEXPECTED_MESSAGE),
        ("an empty record", |sealer| sealed(sealer, Message, &[]), UNEXPECTED_MESSAGE),
        (
            "data between the parts of a message",
            |sealer| {
                let part = sealed(sealer, Message, &[20, 0, 0, 32, 7]);
                [part, sealed(sealer, ApplicationData, b"x")].concat()
            },
            UNEXPECTED_MESSAGE,
        ),
        (
            "a message of 16 MiB",
            |sealer| sealed(sealer, Message, &[20, 255, 255, 255]),
            DECODE_ERROR,
        ),
        ("a short Finished", |sealer| sealed(sealer, Message, &[20, 0, 0, 2, 7, 7]), DECODE_ERROR),
        (
            "a long Finished",
            |sealer| sealed(sealer, Message, &[&[20, 0, 0, 80][..], &[7; 80]].concat()),
            DECODE_ERROR,
        ),
        (
            "a wrong Finished",
            |sealer| {
                let mac = vec![7; sealer.0.suite().secret_len()];
                sealed(sealer, Message, &[&[20, 0, 0, mac.len() as u8][..], &mac].concat())
            },
            DECRYPT_ERROR,
        ),
        ("noise", |_| record(23, &[7; 60]), BAD_RECORD_MAC),
    ];
    for cipher in [Cipher::Aes128Gcm, Cipher::Aes256Gcm, Cipher::ChaCha20Poly1305] {
        for (what, fault, alert) in &faults {
            let (mut server, mut session) = answered(cipher);
            let bytes = fault(&mut sealer(&server));

            let mut out = Vec::new();
            let result = server.advance(&[&change[..], &bytes].concat(), &mut out);
            assert!(result.is_err(), "{what}");
            let mut keys = session.derive_keys();
            let opened = session.open(&mut keys, &mut out);
            assert_eq!(opened, Err(Error::PeerAlert(*alert)), "{what}");
        }
    }
}
