//! Records made by hand, which no correct peer sends. The tests check the reactions that RFC 8446 §5
//! and §6 require.

use pollux_tls::{
    ALERT_MAX, CONTROL_RECORD_MAX, Content, Direction, EMPTY_RECORDS_MAX, Error, HEADER_LEN, Keys,
    PLAINTEXT_MAX, RECORD_MAX, Role, SealProgress, Session, Suite,
};
use ring::{
    aead::{AES_128_GCM, Aad, LessSafeKey, Nonce, UnboundKey},
    hkdf::{HKDF_SHA256, KeyType, Prk},
};

const ALERT: u8 = 21;
const HANDSHAKE: u8 = 22;
const DATA: u8 = 23;

/// A peer that seals the bytes that the test chooses.
struct Forger {
    key: LessSafeKey,
    iv: [u8; 12],
    sequence: u64,
}

struct Len(usize);
impl KeyType for Len {
    fn len(&self) -> usize {
        self.0
    }
}

impl Forger {
    fn new(secret: &[u8; 32]) -> Self {
        let prk = Prk::new_less_safe(HKDF_SHA256, secret);
        let expand = |label: &[u8], out: &mut [u8]| {
            let info: [&[u8]; 4] = [&[0, out.len() as u8], &[label.len() as u8], label, &[0]];
            prk.expand(&info, Len(out.len())).unwrap().fill(out).unwrap();
        };
        let (mut key, mut iv) = ([0; 16], [0; 12]);
        expand(b"tls13 key", &mut key);
        expand(b"tls13 iv", &mut iv);
        let key = LessSafeKey::new(UnboundKey::new(&AES_128_GCM, &key).unwrap());
        Self { key, iv, sequence: 0 }
    }

    /// A record with this inner plaintext: content, type, padding.
    fn seal(&mut self, inner: &[u8]) -> Vec<u8> {
        self.seal_as(DATA, [3, 3], inner)
    }

    fn seal_as(&mut self, outer: u8, version: [u8; 2], inner: &[u8]) -> Vec<u8> {
        let len = (inner.len() + 16) as u16;
        let [high, low] = len.to_be_bytes();
        let header = [outer, version[0], version[1], high, low];
        let mut nonce = self.iv;
        for (byte, of_sequence) in nonce[4..].iter_mut().zip(self.sequence.to_be_bytes()) {
            *byte ^= of_sequence;
        }
        self.sequence += 1;
        let mut body = inner.to_vec();
        let nonce = Nonce::assume_unique_for_key(nonce);
        self.key.seal_in_place_append_tag(nonce, Aad::from(header), &mut body).unwrap();
        [header.as_slice(), &body].concat()
    }

    fn content(&mut self, kind: u8, content: &[u8]) -> Vec<u8> {
        self.seal(&[content, &[kind]].concat())
    }
}

/// A forger, and the server that it sends to.
fn ends() -> (Forger, Session, Keys) {
    let receive = Direction { secret: &[1; 32], sequence: 0 };
    let send = Direction { secret: &[2; 32], sequence: 0 };
    let session = Session::new(Suite::Tls13Aes128Gcm, Role::Server, &receive, &send);
    let keys = session.derive_keys();
    (Forger::new(&[1; 32]), session, keys)
}

/// Opens the records that `forge` makes, one after the other, up to the first error. Returns the
/// server's last result.
fn open<const N: usize>(forge: impl FnOnce(&mut Forger) -> [Vec<u8>; N]) -> Result<Content, Error> {
    let (mut forger, mut session, mut keys) = ends();
    let mut last = Content::Control;
    for mut record in forge(&mut forger) {
        let opening = session.open(&mut keys, &mut record)?;
        assert_eq!(opening.consumed, record.len());
        last = opening.content;
    }
    Ok(last)
}

fn unexpected(result: Result<Content, Error>) -> bool {
    result.is_err_and(|error| error.alert() == Some((2, 10)))
}

#[test]
fn padding_is_removed() {
    for padding in [0, 1, 100, 16_000] {
        let inner = [b"hello".as_slice(), &[DATA], &vec![0; padding]].concat();
        let content = open(|forger| [forger.seal(&inner)]).unwrap();
        assert_eq!(content, Content::Data(HEADER_LEN..HEADER_LEN + 5), "{padding}");
    }
}

#[test]
fn a_record_of_zeros_alone_has_no_type() {
    assert!(unexpected(open(|forger| [forger.seal(&[0; 40])])));
    assert!(unexpected(open(|forger| [forger.seal(&[])])));
}

#[test]
fn plaintext_has_a_limit_with_its_padding() {
    let full = [vec![7; PLAINTEXT_MAX], vec![DATA]].concat();
    assert!(open(|forger| [forger.seal(&full)]).is_ok());
    let too_long = [vec![7; PLAINTEXT_MAX + 1], vec![DATA]].concat();
    assert_eq!(open(|forger| [forger.seal(&too_long)]), Err(Error::RecordOverflow));
    let too_padded = [vec![DATA], vec![0; PLAINTEXT_MAX + 1]].concat();
    assert_eq!(open(|forger| [forger.seal(&too_padded)]), Err(Error::RecordOverflow));
}

#[test]
fn a_record_that_is_too_long_is_refused_before_it_is_complete() {
    let (_, mut session, mut keys) = ends();
    let len = RECORD_MAX - HEADER_LEN + 1;
    let mut header = [DATA, 3, 3, (len >> 8) as u8, len as u8];
    assert_eq!(session.open(&mut keys, &mut header), Err(Error::RecordOverflow));
    let mut allowed = [DATA, 3, 3, ((len - 1) >> 8) as u8, (len - 1) as u8];
    let opening = session.open(&mut keys, &mut allowed).unwrap();
    assert_eq!(opening.content, Content::Incomplete(RECORD_MAX));
}

#[test]
fn a_record_shorter_than_a_tag_is_no_record() {
    for len in 0..16 {
        let (_, mut session, mut keys) = ends();
        let mut record = vec![DATA, 3, 3, 0, len];
        record.extend(vec![0; len.into()]);
        assert_eq!(session.open(&mut keys, &mut record), Err(Error::BadRecordMac), "{len}");
    }
}

#[test]
fn the_version_is_not_looked_at() {
    for version in [[3, 1], [3, 4], [0, 0], [255, 255]] {
        let content = open(|forger| [forger.seal_as(DATA, version, &[b'x', DATA])]);
        assert!(matches!(content, Ok(Content::Data(_))), "{version:?}");
    }
}

#[test]
fn records_that_are_not_encrypted_are_refused() {
    // change_cipher_spec, alert, handshake, heartbeat, none.
    for outer in [20, 21, 22, 24, 0] {
        let (_, mut session, mut keys) = ends();
        let mut record = vec![outer, 3, 3, 0, 1, 1];
        let error = session.open(&mut keys, &mut record).unwrap_err();
        assert_eq!(error.alert(), Some((2, 10)), "{outer}");
        // Records with valid content are refused, too.
        assert!(
            unexpected(open(|forger| [forger.seal_as(outer, [3, 3], &[b'x', DATA])])),
            "{outer}"
        );
    }
}

#[test]
fn inner_types_that_are_unknown_are_refused() {
    for kind in [1, 20, 24, 255] {
        assert!(unexpected(open(|forger| [forger.content(kind, b"x")])), "{kind}");
    }
}

#[test]
fn empty_records_are_allowed_up_to_a_limit() {
    let (mut forger, mut session, mut keys) = ends();
    let mut send = |forger: &mut Forger, content: &[u8]| {
        session.open(&mut keys, &mut forger.content(DATA, content)).map(|opening| opening.content)
    };
    for _ in 0..3 {
        for _ in 0..EMPTY_RECORDS_MAX {
            assert_eq!(send(&mut forger, b""), Ok(Content::Control));
        }
        assert!(matches!(send(&mut forger, b"x"), Ok(Content::Data(_))));
    }
    for _ in 0..EMPTY_RECORDS_MAX {
        assert_eq!(send(&mut forger, b""), Ok(Content::Control));
    }
    assert_eq!(send(&mut forger, b""), Err(Error::TooManyUselessRecords));
}

#[test]
fn handshake_and_alert_records_are_never_empty() {
    // RFC 8446 §5.4, also with padding.
    for kind in [HANDSHAKE, ALERT] {
        assert!(unexpected(open(|forger| [forger.content(kind, b"")])), "{kind}");
        assert!(unexpected(open(|forger| [forger.seal(&[kind, 0, 0, 0])])), "{kind}");
    }
}

#[test]
fn nothing_may_come_inside_a_handshake_message() {
    let begin = |forger: &mut Forger| forger.content(HANDSHAKE, &[24, 0]);
    assert!(unexpected(open(|forger| [begin(forger), forger.content(DATA, b"x")])));
    assert!(unexpected(open(|forger| [begin(forger), forger.content(ALERT, &[1, 0])])));
    let rest = open(|forger| [begin(forger), forger.content(HANDSHAKE, &[0, 1, 0])]);
    assert_eq!(rest, Ok(Content::Control));
}

#[test]
fn handshake_messages_other_than_a_key_update_are_refused() {
    // ClientHello, NewSessionTicket, CertificateRequest, Finished.
    for kind in [1, 4, 13, 20] {
        assert!(
            unexpected(open(|forger| [forger.content(HANDSHAKE, &[kind, 0, 0, 1, 0])])),
            "{kind}"
        );
    }
}

#[test]
fn the_next_record_after_a_key_update_has_the_next_key() {
    let (mut forger, mut session, mut keys) = ends();
    let mut update = forger.content(HANDSHAKE, &[24, 0, 0, 1, 1]);
    session.open(&mut keys, &mut update).unwrap();
    assert!(session.owes_key_update());
    // The peer's next record still uses the old key.
    let mut old = forger.content(DATA, b"x");
    assert_eq!(session.open(&mut keys, &mut old), Err(Error::BadRecordMac));
    // Our KeyUpdate is sent before the next data, and only once.
    let mut out = [0; 256];
    let with_update = session.seal(&mut keys, b"x", &mut out).unwrap().written;
    assert!(!session.owes_key_update());
    let without = session.seal(&mut keys, b"x", &mut out).unwrap().written;
    assert_eq!(with_update, without + HEADER_LEN + 5 + 1 + 16);
}

#[test]
fn data_waits_for_room_with_the_key_update_before_it() {
    let (mut forger, mut session, mut keys) = ends();
    let mut update = forger.content(HANDSHAKE, &[24, 0, 0, 1, 1]);
    session.open(&mut keys, &mut update).unwrap();
    // Data alone would fit from 30 bytes on.
    for room in 0..CONTROL_RECORD_MAX {
        let sealing = session.seal(&mut keys, b"x", &mut vec![0; room]).unwrap();
        assert_eq!(sealing, SealProgress::default(), "{room}");
    }
    let sealing = session.seal(&mut keys, b"x", &mut [0; CONTROL_RECORD_MAX]).unwrap();
    assert_eq!((sealing.plaintext, session.owes_key_update()), (0, false));
}

#[test]
fn alerts_are_fatal_whatever_their_level() {
    for level in [1, 2, 77] {
        let result = open(|forger| [forger.content(ALERT, &[level, 40])]);
        assert_eq!(result, Err(Error::PeerAlert(40)), "{level}");
        let close = open(|forger| [forger.content(ALERT, &[level, 0])]);
        assert_eq!(close, Ok(Content::Closed), "{level}");
        let canceled = open(|forger| [forger.content(ALERT, &[level, 90])]);
        assert_eq!(canceled, Ok(Content::Control), "{level}");
    }
    for malformed in [[2].as_slice(), &[2, 40, 0], &[1, 0, 1, 0]] {
        let result = open(|forger| [forger.content(ALERT, malformed)]);
        assert_eq!(result, Err(Error::Decode("length of an alert")));
    }
}

#[test]
fn an_error_is_sent_once_and_nothing_after_it() {
    let (_, mut session, mut keys) = ends();
    let mut out = [0; 64];
    let len = session.seal_alert(&mut keys, Error::BadRecordMac, &mut out);
    assert_eq!(len, HEADER_LEN + 2 + 1 + 16);
    assert!(session.has_sent_close());
    assert_eq!(session.seal_alert(&mut keys, Error::BadRecordMac, &mut out), 0);
    // An alert to a peer that has ended the connection itself would be useless.
    let (_, mut session, mut keys) = ends();
    assert_eq!(session.seal_alert(&mut keys, Error::PeerAlert(40), &mut out), 0);
    // Not even close_notify is sent.
    assert!(session.has_sent_close());
}

#[test]
fn a_key_is_replaced_before_it_has_sealed_too_much() {
    let limit = 1 << 23;
    let receive = Direction { secret: &[1; 32], sequence: 0 };
    let send = Direction { secret: &[2; 32], sequence: limit - 1 };
    let mut session = Session::new(Suite::Tls13Aes128Gcm, Role::Server, &receive, &send);
    let mut client = Session::new(Suite::Tls13Aes128Gcm, Role::Client, &send, &receive);
    let (mut keys, mut client_keys) = (session.derive_keys(), client.derive_keys());
    let mut lengths = Vec::new();
    for _ in 0..3 {
        let mut out = [0; 256];
        let written = session.seal(&mut keys, b"data", &mut out).unwrap().written;
        lengths.push(written);
        let mut rest = &mut out[..written];
        while !rest.is_empty() {
            let opening = client.open(&mut client_keys, rest).unwrap();
            rest = &mut rest[opening.consumed..];
        }
    }
    assert_eq!(lengths, [26, 26 + 27, 26], "a KeyUpdate before the second record");
}

/// One call seals several records: the last one that the key may seal can be any of them.
#[test]
fn a_key_is_replaced_inside_a_batch() {
    let data: Vec<u8> = (0..40_000).map(|byte: u32| byte as u8).collect();
    for suite in Suite::ALL {
        let limit = match suite {
            Suite::Tls13ChaCha20 | Suite::Tls12ChaCha20 => 1 << 31,
            _ => 1 << 23,
        };
        let (one, other) = (vec![1; secret_len(suite)], vec![2; secret_len(suite)]);
        let there = Direction { secret: &one, sequence: limit - 1 };
        let back = Direction { secret: &other, sequence: 0 };
        let mut session = Session::new(suite, Role::Server, &back, &there);
        let mut client = Session::new(suite, Role::Client, &there, &back);
        let (mut keys, mut client_keys) = (session.derive_keys(), client.derive_keys());
        let mut out = vec![0; 70_000];
        let (mut sealed, mut received) = (0, Vec::new());
        let mut calls = 0;
        while sealed < data.len() {
            let Ok(sealing) = session.seal(&mut keys, &data[sealed..], &mut out) else { break };
            sealed += sealing.plaintext;
            calls += 1;
            let mut rest = &mut out[..sealing.written];
            while !rest.is_empty() {
                let opening = client.open(&mut client_keys, rest).unwrap();
                if let Content::Data(range) = opening.content {
                    received.extend_from_slice(&rest[range]);
                }
                rest = &mut rest[opening.consumed..];
            }
        }
        assert_eq!(received, data[..sealed], "{suite:?}");
        if suite.is_tls13() {
            assert_eq!((sealed, calls), (data.len(), 2), "{suite:?}");
        } else {
            // The key's last record, and then the error.
            assert!(sealed > 0 && calls == 1, "{suite:?}: {sealed}");
        }
    }
}

/// A buffer of [`RECORD_MAX`] bytes is enough: otherwise the receiver would wait for bytes for which it has no room.
#[test]
fn no_record_is_awaited_that_is_longer_than_the_longest() {
    let suites = [
        Suite::Tls13Aes128Gcm,
        Suite::Tls13ChaCha20,
        Suite::Tls12Aes128Gcm,
        Suite::Tls12Aes256Gcm,
        Suite::Tls12ChaCha20,
    ];
    for suite in suites {
        let secret = vec![1; secret_len(suite)];
        let direction = || Direction { secret: &secret, sequence: 0 };
        let mut session = Session::new(suite, Role::Server, &direction(), &direction());
        let mut keys = session.derive_keys();
        for len in 0..=u16::MAX {
            let [high, low] = len.to_be_bytes();
            let result = session.open(&mut keys, &mut [DATA, 3, 3, high, low]);
            match result.map(|opening| opening.content) {
                Ok(Content::Incomplete(needed)) => assert!(needed <= RECORD_MAX, "{suite:?} {len}"),
                Err(Error::BadRecordMac) => assert!(len < 24, "{suite:?} {len}"),
                other => assert_eq!(other, Err(Error::RecordOverflow), "{suite:?} {len}"),
            }
        }
    }
}

fn secret_len(suite: Suite) -> usize {
    match suite {
        Suite::Tls13Aes256Gcm => 48,
        Suite::Tls12Aes128Gcm => 28,
        Suite::Tls12Aes256Gcm | Suite::Tls12ChaCha20 => 44,
        _ => 32,
    }
}

/// Opens a TLS 1.2 record of this type after the handshake, as a peer with this role.
fn open_tls12(role: Role, kind: u8, content: &[u8]) -> Result<Content, Error> {
    let key_and_iv = [3; 28];
    let direction = || Direction { secret: &key_and_iv, sequence: 0 };
    let mut session = Session::new(Suite::Tls12Aes128Gcm, role, &direction(), &direction());
    let mut keys = session.derive_keys();
    let key = LessSafeKey::new(UnboundKey::new(&AES_128_GCM, &[3; 16]).unwrap());
    let mut nonce = [3; 12];
    nonce[4..].fill(0);
    let mut body = content.to_vec();
    let aad = [0, 0, 0, 0, 0, 0, 0, 0, kind, 3, 3, 0, content.len() as u8];
    let nonce = Nonce::assume_unique_for_key(nonce);
    key.seal_in_place_append_tag(nonce, Aad::from(aad), &mut body).unwrap();
    let header = [kind, 3, 3, 0, (8 + body.len()) as u8];
    let mut record = [header.as_slice(), &[0; 8], &body].concat();
    session.open(&mut keys, &mut record).map(|opening| opening.content)
}

#[test]
fn in_tls12_the_level_of_an_alert_decides() {
    for description in [40, 90, 100] {
        let open = |level| open_tls12(Role::Server, ALERT, &[level, description]);
        assert_eq!(open(1), Ok(Content::Control), "{description}");
        assert_eq!(open(2), Err(Error::PeerAlert(description)));
    }
}

#[test]
fn only_a_hello_asks_a_tls12_peer_to_renegotiate() {
    let hellos = [(Role::Server, 1), (Role::Client, 0)];
    for (role, hello) in hellos {
        for kind in [0, 1, 2, 4, 11, 14, 16, 20, 24, 255] {
            let result = open_tls12(role, HANDSHAKE, &[kind, 0, 0, 0]);
            if kind == hello {
                assert_eq!(result, Err(Error::Renegotiation), "{role:?}");
            } else {
                assert!(unexpected(result), "{role:?} {kind}");
            }
        }
        assert!(unexpected(open_tls12(role, HANDSHAKE, b"")), "{role:?}");
    }
}

/// RFC 5246 §7.2.1. Regression: the connection ended without close_notify.
#[test]
fn renegotiation_is_refused_by_a_warning_and_the_end() {
    let direction = Direction { secret: &[3; 28], sequence: 1 };
    let mut server = Session::new(Suite::Tls12Aes128Gcm, Role::Server, &direction, &direction);
    let mut client = Session::new(Suite::Tls12Aes128Gcm, Role::Client, &direction, &direction);
    let mut out = [0; ALERT_MAX];
    let len = server.seal_alert(&mut server.derive_keys(), Error::Renegotiation, &mut out);
    assert!(server.has_sent_close());
    let mut keys = client.derive_keys();
    let warning = client.open(&mut keys, &mut out[..len]).unwrap();
    assert_eq!(warning.content, Content::Control);
    let end = client.open(&mut keys, &mut out[warning.consumed..len]).unwrap();
    assert_eq!(end.content, Content::Closed);
}

#[test]
fn tls12_has_no_key_update_and_ends() {
    let key_and_iv = [3; 28];
    let receive = Direction { secret: &key_and_iv, sequence: 0 };
    let send = Direction { secret: &key_and_iv, sequence: 1 << 23 };
    let mut session = Session::new(Suite::Tls12Aes128Gcm, Role::Server, &receive, &send);
    let mut keys = session.derive_keys();
    let mut out = [0; 256];
    assert_eq!(session.seal(&mut keys, b"data", &mut out), Err(Error::KeyExhausted));
    // The alert about that can still be sent.
    assert!(session.seal_alert(&mut keys, Error::KeyExhausted, &mut out) > 0);
}

#[test]
fn a_nonce_is_never_used_twice() {
    let (_, session, mut keys) = ends();
    let mut out = [0; 256];
    let mut first = session;
    first.seal(&mut keys, b"x", &mut out).unwrap();
    // A second session with the same secrets and the first session's keys, as after a fork.
    let (_, mut second, _) = ends();
    let sealing = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        second.seal(&mut keys, b"y", &mut out)
    }));
    assert!(sealing.is_err());
}
