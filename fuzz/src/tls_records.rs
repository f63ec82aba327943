//! The TLS record layer after a handshake: a session opens what an independent sealer has made, in whatever pieces it
//! comes, exactly as a model of RFC 8446 §5, §6 and §4.6 expects, refuses every damaged, repeated or lost record, and
//! seals what an independent opener reads.

mod model;

use crate::{
    ends::{self, Opener, Sealer},
    script::Script,
};
use model::{Expectation, Model};
use pollux_tls::{
    ALERT_MAX, CONTROL_RECORD_MAX, Content, Direction, Error, Keys, RECORD_MAX, Role, Session,
    Suite,
};

const SUITES: [Suite; 6] = [
    Suite::Tls13Aes128Gcm,
    Suite::Tls13Aes256Gcm,
    Suite::Tls13ChaCha20,
    Suite::Tls12Aes128Gcm,
    Suite::Tls12Aes256Gcm,
    Suite::Tls12ChaCha20,
];

/// The longest content that one of our sends has.
const SEND_MAX: usize = 40_000;

/// The input is suite and role, the size of pieces, and then acts, each a byte with its arguments.
pub fn check(data: &[u8]) {
    let mut script = Script(data);
    let (Some(first), Some(piece)) = (script.byte(), script.byte()) else { return };
    let suite = SUITES[usize::from(first & 7) % SUITES.len()];
    let role = if first & 8 == 0 { Role::Server } else { Role::Client };
    let mut connection = Connection::new(suite, role, usize::from(piece).max(1));
    while let Some(act) = script.byte() {
        if connection.act(act, &mut script).is_none() {
            return;
        }
    }
}

/// Both ends.
struct Connection {
    session: Session,
    keys: Keys,
    peer: Sealer,
    reader: Opener,
    model: Model,
    role: Role,
    piece: usize,
    last_record: Vec<u8>,
}

impl Connection {
    fn new(suite: Suite, role: Role, piece: usize) -> Self {
        let (receive, send) = (ends::secret(suite, 1), ends::secret(suite, 2));
        let session = Session::new(
            suite,
            role,
            &Direction { secret: &receive, sequence: 0 },
            &Direction { secret: &send, sequence: 0 },
        );
        Self {
            keys: session.derive_keys(),
            session,
            peer: Sealer::new(suite, receive),
            reader: Opener::new(suite, send),
            model: Model::new(suite, role),
            role,
            piece,
            last_record: Vec::new(),
        }
    }

    /// `None` when the connection is over.
    fn act(&mut self, act: u8, script: &mut Script<'_>) -> Option<()> {
        match act % 9 {
            // A record of any type, with any content and padding.
            0 => {
                let kind = [23, 22, 21, 20, 24, 0][usize::from(script.byte()?) % 6];
                let (padding, len) = (usize::from(script.byte()?), script.byte()?);
                let content = script.bytes(len.into());
                self.record(kind, content, padding)
            }
            // A long one.
            1 => {
                let len = script.number()? % (RECORD_MAX + 300);
                let content: Vec<_> = (0..len).map(|at| (at % 251) as u8 + 1).collect();
                self.record(23, &content, 0)
            }
            2 => self.record(22, &[24, 0, 0, 1, script.byte()?], 0),
            // A KeyUpdate in two records, perhaps with another one between.
            3 => {
                let message = [24, 0, 0, 1, script.byte()? & 1];
                let (start, end) = message.split_at(1 + usize::from(script.byte()?) % 4);
                self.record(22, start, 0)?;
                if script.byte()? & 1 == 1 {
                    self.record(23, b"between", 0)?;
                }
                self.record(22, end, 0)
            }
            4 => {
                let alert = [script.byte()?, script.byte()?];
                self.record(21, &alert, 0)
            }
            // Damage, of any bit of a record.
            5 => {
                let len = usize::from(script.byte()?);
                let mut record = self.peer.seal(23, &vec![b'd'; len], 0);
                let bit = script.number()? % (record.len() * 8);
                record[bit / 8] ^= 1 << (bit % 8);
                self.refuses(record, true)
            }
            // A record that comes again, one that is lost, or bytes that are no record.
            6 => {
                let which = script.byte()? % 3;
                let record = match which {
                    0 if !self.last_record.is_empty() => self.last_record.clone(),
                    0 | 1 => {
                        self.peer.seal(23, b"lost", 0);
                        self.peer.seal(23, b"behind it", 0)
                    }
                    _ => {
                        let len = script.byte()?;
                        script.bytes(len.into()).to_vec()
                    }
                };
                self.refuses(record, which == 1)
            }
            7 => {
                let (len, room) = (script.number()? % SEND_MAX, script.number()?);
                self.send(len, room);
                Some(())
            }
            // It has been idle, or another process goes on with it.
            _ => {
                self.session.rest();
                if script.byte()? & 1 == 1
                    && let Some(bytes) = self.session.park()
                {
                    self.session = Session::unpark(&bytes).expect("a session was parked");
                }
                self.keys = self.session.derive_keys();
                Some(())
            }
        }
    }

    /// Seals a record of the peer's and has it opened; both must agree with the model.
    fn record(&mut self, kind: u8, content: &[u8], padding: usize) -> Option<()> {
        let mut expected = self.model.expect(kind, content, padding);
        if let (true, Expectation::Data(data)) = (crate::planted(), &mut expected) {
            // The fault: the first byte of data is another one.
            data[0] ^= 1;
        }
        let record = self.peer.seal(kind, content, padding);
        let got = self.open(&record);
        match (&expected, &got) {
            (Expectation::Error(expected), Err(error)) => {
                assert_eq!(expected, &error.alert(), "{kind} {content:?} {padding}: {error}");
                self.say_goodbye(*error);
                return None;
            }
            (Expectation::Closed, Ok(OpenedRecord::Closed)) => {
                assert!(self.session.has_received_close())
            }
            (Expectation::Data(expected), Ok(OpenedRecord::Data(data))) => {
                assert!(expected == data, "other data than was sent");
            }
            (Expectation::KeyUpdate { .. } | Expectation::Control, Ok(OpenedRecord::Control)) => {}
            (Expectation::Tickets, Ok(OpenedRecord::Tickets(tickets))) => {
                assert!(self.role == Role::Client && tickets == content);
            }
            _ => panic!("{kind} {content:?} {padding}: {expected:?} was expected, not {got:?}"),
        }
        if let Expectation::KeyUpdate { is_requested } = expected {
            assert!(!is_requested || self.session.owes_key_update());
            self.peer.update();
        }
        self.last_record = record;
        Some(())
    }

    /// What must not be accepted; and nothing behind it, where it had a number of its own. Else a caller who goes on after
    /// an error, which he must not, would find the next record in its place.
    fn refuses(&mut self, record: Vec<u8>, has_number: bool) -> Option<()> {
        if record.is_empty() {
            return Some(());
        }
        let got = self.open(&record);
        match got {
            // The length has grown, or the bytes are too few: the next record is taken for the rest.
            Err(_) | Ok(OpenedRecord::Incomplete) => {}
            Ok(OpenedRecord::Closed) if self.model.is_closed => return Some(()),
            Ok(opened) => panic!("{record:?} was accepted as {opened:?}"),
        }
        if !has_number {
            return None;
        }
        let next = self.peer.seal(23, b"next", 0);
        let both = match got {
            Ok(OpenedRecord::Incomplete) => [record, next].concat(),
            _ => next,
        };
        let got = self.open(&both);
        assert!(matches!(got, Err(_) | Ok(OpenedRecord::Incomplete)), "{got:?} behind damage");
        None
    }

    /// Opens the first record of `bytes`, which come in pieces.
    fn open(&mut self, bytes: &[u8]) -> Result<OpenedRecord, Error> {
        let mut end = 0;
        loop {
            end = (end + self.piece).min(bytes.len());
            // A long record in small pieces would take as many copies.
            if end > 64 {
                end = bytes.len();
            }
            let mut buffer = bytes[..end].to_vec();
            let opening = self.session.open(&mut self.keys, &mut buffer)?;
            let opened = match opening.content {
                Content::Incomplete(wanted) => {
                    assert_eq!(opening.consumed, 0);
                    assert!(wanted > end && wanted <= RECORD_MAX, "{wanted} of {end}");
                    if end == bytes.len() {
                        return Ok(OpenedRecord::Incomplete);
                    }
                    continue;
                }
                Content::Data(range) => OpenedRecord::Data(buffer[range].to_vec()),
                Content::Tickets(range) => OpenedRecord::Tickets(buffer[range].to_vec()),
                Content::Control => OpenedRecord::Control,
                Content::Closed => OpenedRecord::Closed,
            };
            assert!(opening.consumed >= 5 && opening.consumed <= end);
            return Ok(opened);
        }
    }

    /// Seals, and has an independent opener read it.
    fn send(&mut self, len: usize, room: usize) {
        let plaintext: Vec<_> = (0..len).map(|at| (at % 253) as u8).collect();
        let mut out = vec![0; room];
        let owes = self.session.owes_key_update();
        let sealing = self.session.seal(&mut self.keys, &plaintext, &mut out).expect("a young key");
        let (mut data, mut updates) = (Vec::new(), 0);
        let mut rest = &out[..sealing.written];
        while !rest.is_empty() {
            let (kind, content, behind) = self.reader.open(rest);
            rest = behind;
            match kind {
                23 => data.extend_from_slice(&content),
                22 => {
                    assert_eq!(content, [24, 0, 0, 1, 0]);
                    assert!(data.is_empty(), "a KeyUpdate goes first");
                    self.reader.update();
                    updates += 1;
                }
                _ => panic!("a record of type {kind}"),
            }
        }
        assert!(data == plaintext[..sealing.plaintext], "other data than was given");
        // It goes before all data, or waits with it for room.
        assert_eq!(updates, u32::from(owes && room >= CONTROL_RECORD_MAX));
        assert!(!self.session.owes_key_update() || data.is_empty());
    }

    /// The alert that says why, once.
    fn say_goodbye(&mut self, error: Error) {
        let mut out = [0; ALERT_MAX];
        let len = self.session.seal_alert(&mut self.keys, error, &mut out);
        match error.alert() {
            None => assert_eq!(len, 0),
            Some((level, description)) => {
                let (kind, content, mut rest) = self.reader.open(&out[..len]);
                assert!(kind == 21 && content == [level, description]);
                if error == Error::Renegotiation {
                    let (kind, content, end) = self.reader.open(rest);
                    assert!(kind == 21 && content == [1, 0]);
                    rest = end;
                }
                assert!(rest.is_empty());
            }
        }
        assert!(error.alert().is_none() || self.session.has_sent_close());
    }
}

/// What the session made of a record.
#[derive(Debug)]
enum OpenedRecord {
    Incomplete,
    Data(Vec<u8>),
    Tickets(Vec<u8>),
    Control,
    Closed,
}
