//! A TLS handshake with a hostile peer, as server and as client. The peer is rustls, and between its records, and
//! inside of its encrypted messages, the input alters, adds, repeats and removes what it likes. Whatever arrives:
//!
//! - [`Handshake::advance`] does not panic, and either fails, completes, or waits for more;
//! - it processes each record as soon as the record is complete, and stores a bounded amount of what is not;
//! - it sends whole records, a bounded number of bytes, and after an error one alert as the last of them;
//! - it completes if nothing was altered, and then both ends can read each other;
//! - it does not complete if a message was altered;
//! - the pieces in which the bytes arrive make no difference.

mod peer;

use crate::script::Script;
use peer::{Content, Item, Kind, Origin, Peer, ours};
use pollux_tls::{HANDSHAKE_BYTES_MAX, Handshake, HandshakeError, Progress};

const HANDSHAKE: u8 = 22;
const ALERT: u8 = 21;
const CHANGE_CIPHER_SPEC: u8 = 20;
/// The longest output of a handshake: two small flights.
const OUT_MAX: usize = 16 << 10;
/// What the buffer of a handshake may occupy: a vector doubles its capacity.
const STORED_MAX: usize = 2 * HANDSHAKE_BYTES_MAX;
/// The longest piece that the server receives at once is a record; see its receive buffer.
const PIECE_MAX: usize = 16 << 10;
/// The most bytes of one long message that the input requests.
const LONG_MAX: usize = 100 << 10;

/// The input is the kind of handshake, the size of pieces, and then acts, each a byte with its arguments; or, with the
/// highest bit of the kind, the bytes that arrive.
pub fn check(data: &[u8]) {
    let mut script = Script(data);
    let (Some(flags), Some(piece)) = (script.byte(), script.byte()) else { return };
    let (kind, piece) = (Kind::new(flags), usize::from(piece).max(1));
    if flags & 0x80 != 0 {
        return compare_pieces(kind, piece, script.0);
    }
    let mut drive = Drive::new(kind, piece);
    // A handshake has less than ten flights.
    for _ in 0..10 {
        while let Some(act) = script.byte() {
            if drive.act(act, &mut script).is_none() {
                return;
            }
        }
        if drive.deliver(usize::MAX).is_none() {
            return;
        }
    }
    assert!(!drive.is_honest, "an honest handshake does not end");
}

/// Pieces make no difference, as far as the bytes depend on nothing that our end has sent.
fn compare_pieces(kind: Kind, piece: usize, bytes: &[u8]) {
    let outcome = |piece: usize| {
        let mut handshake = ours(kind);
        if kind.we_are_client {
            handshake.advance(&[], &mut Vec::new()).expect("a hello");
        }
        let mut result = Ok(Progress::NeedsInput);
        for bytes in bytes.chunks(piece) {
            result = handshake.advance(bytes, &mut Vec::new());
            if !matches!(result, Ok(Progress::NeedsInput)) {
                break;
            }
        }
        format!("{result:?}, {} records", handshake.records())
    };
    let (one, other) = (outcome(piece), outcome(PIECE_MAX));
    assert_eq!(one, other, "in pieces of {piece}");
}

/// Both ends of a handshake, and what is between them.
struct Drive {
    ours: Option<Handshake>,
    peer: Peer,
    piece: usize,
    framing: Framing,
    /// Bytes that were sent to us and not delivered.
    wire: Vec<u8>,
    /// The number of bytes that were sent to us before these.
    delivered: usize,
    /// The position of the first byte of which no handshake may depend that succeeds.
    forged_at: usize,
    /// Nothing was altered.
    is_honest: bool,
    sent: usize,
    is_encrypted: bool,
}

impl Drive {
    fn new(kind: Kind, piece: usize) -> Self {
        let peer = Peer::new(kind);
        let mut drive = Self {
            ours: Some(ours(kind)),
            peer,
            piece,
            framing: Framing::default(),
            wire: Vec::new(),
            delivered: 0,
            forged_at: usize::MAX,
            is_honest: true,
            sent: 0,
            is_encrypted: false,
        };
        if kind.we_are_client {
            drive.advance(&[]);
        }
        drive.peer.put();
        drive
    }

    /// `None` when the handshake is over.
    fn act(&mut self, act: u8, script: &mut Script<'_>) -> Option<()> {
        let act = act % 11;
        if act > 2 {
            self.is_honest = false;
        }
        match act {
            0 => {
                let len = usize::from(script.byte()?) + 1;
                self.deliver(len)?;
            }
            1 => self.deliver(usize::MAX)?,
            // The next record.
            2 => {
                self.take_from_queue();
                self.deliver(self.wire.len())?;
            }
            // A bit of the next record, or of its content.
            10 => {
                let position = script.number()?;
                self.flip(position);
            }
            3 => {
                let len = script.byte()?;
                self.queue_raw(script.bytes(len.into()).to_vec(), Origin::Junk);
            }
            // The next record is lost.
            4 => {
                self.lose();
            }
            // It comes twice.
            5 => {
                if let Some(item) = self.peer.queue.front() {
                    let origin = match &item.origin {
                        Origin::Peer(original) => Origin::Copy(original.clone()),
                        other => other.clone(),
                    };
                    let content = item.content.clone();
                    self.peer.queue.insert(1, Item { content, origin });
                }
            }
            // A record that is not encrypted.
            6 => {
                let (kind, len) = (script.byte()?, script.byte()?);
                let kind =
                    [HANDSHAKE, ALERT, CHANGE_CIPHER_SPEC, 23, 24, kind][usize::from(kind) % 6];
                let content = script.bytes(len.into());
                self.queue_raw(record(kind, content), Origin::Input);
            }
            // A long message in several records, which is perhaps not complete.
            7 => {
                let (kind, len, sent, size) =
                    (script.byte()?, script.number()?, script.number()?, script.byte()?);
                self.queue_long(kind, len * 2, sent * 2, usize::from(size) * 64 + 1);
            }
            // An encrypted record.
            8 if self.peer.can_seal() => {
                let (kind, padding, len) = (script.byte()?, script.byte()?, script.byte()?);
                let kind = [HANDSHAKE, ALERT, CHANGE_CIPHER_SPEC, 23, 24, 0][usize::from(kind) % 6];
                let content = script.bytes(len.into()).to_vec();
                let content = Content::Sealed { kind, content, padding: padding.into() };
                self.peer.queue.push_front(Item { content, origin: Origin::Input });
            }
            // The next encrypted record with other bytes in the place of some of its own.
            9 => {
                let (position, removed, len) = (script.number()?, script.byte()?, script.byte()?);
                let bytes = script.bytes(len.into());
                self.splice(position, removed.into(), bytes);
            }
            _ => {}
        }
        Some(())
    }

    fn lose(&mut self) {
        let Some(Item { origin: Origin::Peer(original), .. }) = self.peer.queue.pop_front() else {
            return;
        };
        if let Some(next) = self.peer.queue.front_mut()
            && let Origin::Copy(original) = &next.origin
        {
            // The copy takes its place.
            next.origin = Origin::Peer(original.clone());
        } else if original.is_message() {
            self.forged_at = self.forged_at.min(self.delivered + self.wire.len());
        }
    }

    fn flip(&mut self, position: usize) {
        let Some(item) = self.peer.queue.front_mut() else { return };
        let (Content::Raw(bytes) | Content::Sealed { content: bytes, .. }) = &mut item.content;
        if !bytes.is_empty() {
            let bit = position % (bytes.len() * 8);
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
    }

    fn splice(&mut self, position: usize, removed: usize, bytes: &[u8]) {
        let Some(item) = self.peer.queue.front_mut() else { return };
        let Content::Sealed { content, .. } = &mut item.content else { return };
        let start = position % (content.len() + 1);
        let end = (start + removed).min(content.len());
        content.splice(start..end, bytes.iter().copied());
    }

    fn queue_raw(&mut self, bytes: Vec<u8>, origin: Origin) {
        self.peer.queue.push_front(Item { content: Content::Raw(bytes), origin });
    }

    fn queue_long(&mut self, kind: u8, len: usize, sent: usize, size: usize) {
        let sent = sent.min(LONG_MAX);
        let [_, high, middle, low] = (len as u32).to_be_bytes();
        let mut message = vec![kind, high, middle, low];
        message.resize(4 + sent, 7);
        let records: Vec<u8> =
            message.chunks(size).flat_map(|content| record(HANDSHAKE, content)).collect();
        self.queue_raw(records, Origin::Input);
    }

    /// Sends the peer's next record. Returns whether there is one.
    fn take_from_queue(&mut self) -> bool {
        let Some(item) = self.peer.queue.pop_front() else { return false };
        // The fault: an honest message is believed to be forged.
        if item.is_forged() || (crate::planted() && item.content.is_message()) {
            self.forged_at = self.forged_at.min(self.delivered + self.wire.len());
        }
        self.wire.extend(self.peer.encode(item.content));
        true
    }

    /// Delivers up to `len` bytes of what the peer has sent. `None` when the handshake is over.
    fn deliver(&mut self, len: usize) -> Option<()> {
        while self.wire.len() < len && self.take_from_queue() {}
        let rest = self.wire.split_off(len.min(self.wire.len()));
        let bytes = std::mem::replace(&mut self.wire, rest);
        // A long input in single bytes would take as many calls.
        let piece = self.piece.max(bytes.len() / 200).min(PIECE_MAX);
        for bytes in bytes.chunks(piece) {
            self.delivered += bytes.len();
            self.advance(bytes)?;
        }
        self.peer.put();
        Some(())
    }

    /// One call, and all that must be true of it.
    fn advance(&mut self, bytes: &[u8]) -> Option<()> {
        let ours = self.ours.as_mut()?;
        let mut out = Vec::new();
        let result = ours.advance(bytes, &mut out);
        self.framing.take(bytes);
        let last = self.check_output(&out);
        let ours = self.ours.as_mut()?;
        assert!(ours.records() <= self.framing.records + u32::from(result.is_err()));
        self.peer.take(&out);
        match result {
            Ok(Progress::NeedsInput) => {
                assert_eq!(ours.records(), self.framing.records, "a whole record waits");
                assert!(ours.stored() <= STORED_MAX, "{} bytes are stored", ours.stored());
                assert_ne!(last, Some(ALERT), "an alert without an error");
                Some(())
            }
            Ok(Progress::Complete) => {
                self.complete();
                None
            }
            Err(error) => {
                assert!(!self.is_honest, "an honest handshake fails: {error}");
                match &error {
                    HandshakeError::PlainHttp => assert!(out.is_empty()),
                    // The peer has ended the handshake itself.
                    HandshakeError::Tls(
                        rustls::Error::AlertReceived(_) | rustls::Error::General(_),
                    ) => {}
                    _ if self.is_encrypted => {}
                    _ => assert_eq!(last, Some(ALERT), "{error:?} without an alert"),
                }
                None
            }
        }
    }

    /// Output is whole records, of which only the last may be an alert. Returns the type of the last one.
    fn check_output(&mut self, out: &[u8]) -> Option<u8> {
        self.sent += out.len();
        assert!(self.sent <= OUT_MAX, "{} bytes were sent", self.sent);
        let (mut rest, mut last) = (out, None);
        while !rest.is_empty() {
            let &[kind, _, _, high, low, ..] = rest else { panic!("a part of a header: {rest:?}") };
            let len = 5 + usize::from(u16::from_be_bytes([high, low]));
            assert!((20..=23).contains(&kind) && len <= rest.len(), "{rest:?}");
            assert_ne!(last, Some(ALERT), "a record behind an alert");
            self.is_encrypted |= kind == CHANGE_CIPHER_SPEC || kind == 23;
            last = Some(kind);
            rest = &rest[len..];
        }
        last
    }

    /// The handshake has succeeded.
    fn complete(&mut self) {
        let Some(ours) = self.ours.take() else { return };
        let mut established = ours.finish().expect("a complete handshake");
        let used = self.delivered - established.input.len();
        assert!(used <= self.forged_at, "a handshake with a forged message succeeds");
        assert!(!self.peer.is_handshaking(), "only one end has succeeded");
        let mut keys = established.session.derive_keys();
        let mut out = [0; 200];
        let sealing = established.session.seal(&mut keys, b"ours", &mut out).expect("a young key");
        self.peer.take(&out[..sealing.written]);
        assert_eq!(self.peer.data(), b"ours");
        let mut records = self.peer.send(b"theirs");
        let mut rest = records.as_mut_slice();
        let mut data = Vec::new();
        while !rest.is_empty() {
            let opening = established.session.open(&mut keys, rest).expect("honest records");
            if let pollux_tls::Content::Data(range) = opening.content {
                data.extend_from_slice(&rest[range]);
            }
            rest = &mut rest[opening.consumed..];
        }
        assert_eq!(data, b"theirs");
    }
}

fn record(kind: u8, content: &[u8]) -> Vec<u8> {
    let [high, low] = (content.len() as u16).to_be_bytes();
    [&[kind, 3, 3, high, low], content].concat()
}

/// Counts whole records.
#[derive(Default)]
struct Framing {
    records: u32,
    header: Vec<u8>,
    /// What is missing of the present record.
    missing: usize,
}

impl Framing {
    fn take(&mut self, mut bytes: &[u8]) {
        while let Some((&byte, rest)) = bytes.split_first() {
            if self.missing > 0 {
                let len = self.missing.min(bytes.len());
                self.missing -= len;
                bytes = &bytes[len..];
            } else {
                self.header.push(byte);
                bytes = rest;
                if self.header.len() < 5 {
                    continue;
                }
                self.missing = usize::from(u16::from_be_bytes([self.header[3], self.header[4]]));
                self.header.clear();
            }
            self.records += u32::from(self.missing == 0);
        }
    }
}
