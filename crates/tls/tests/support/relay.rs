//! A third party that knows the keys of one direction. It divides what rustls sends into other records, and adds what
//! rustls by itself never sends: padding, empty records, warnings, and KeyUpdates in several records.

use super::ends::{Opener, Sealer};
use pollux_tls::{EMPTY_RECORDS_MAX, Role, Suite};
use ring::hmac;
use rustls::KeyLog;
use std::sync::Mutex;

const ALERT: u8 = 21;
const HANDSHAKE: u8 = 22;
const DATA: u8 = 23;
const PLAINTEXT_MAX: usize = 1 << 14;
const KEY_UPDATE: u8 = 24;

/// A line of a key log: the label, the random bytes of the client, and the secret.
type KeyLogLine = (String, Vec<u8>, Vec<u8>);

/// The secrets that rustls logs: label, client's random bytes, secret.
#[derive(Debug, Default)]
pub struct Secrets(Mutex<Vec<KeyLogLine>>);

impl KeyLog for Secrets {
    fn log(&self, label: &str, client_random: &[u8], secret: &[u8]) {
        let entry = (label.to_owned(), client_random.to_vec(), secret.to_vec());
        self.0.lock().unwrap().push(entry);
    }
}

impl Secrets {
    fn find(&self, label: &str) -> (Vec<u8>, Vec<u8>) {
        let all = self.0.lock().unwrap();
        let (_, random, secret) = all.iter().find(|(logged, ..)| logged == label).unwrap();
        (random.clone(), secret.clone())
    }
}

/// Random numbers that a seed repeats (SplitMix64).
pub struct Dice(pub u64);

impl Dice {
    pub fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ mixed >> 31) % limit as u64) as usize
    }

    fn one_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }
}

/// See the module.
pub struct Relay {
    suite: Suite,
    opener: Opener,
    sealer: Sealer,
    /// Records without data since the last data.
    useless: u8,
    /// What was added: warnings, and KeyUpdates that came in several records.
    pub warnings: u32,
    pub divided_updates: u32,
}

impl Relay {
    /// A relay for the records that rustls sends to our end, which has this role.
    pub fn new(suite: Suite, role: Role, secrets: &Secrets, server_random: &[u8]) -> Self {
        let (secret, first) = if suite.is_tls13() {
            let label = match role {
                Role::Server => "CLIENT_TRAFFIC_SECRET_0",
                Role::Client => "SERVER_TRAFFIC_SECRET_0",
            };
            (secrets.find(label).1, 0)
        } else {
            let (client_random, master) = secrets.find("CLIENT_RANDOM");
            let randoms = [server_random, &client_random].concat();
            // Finished was the first record.
            (key_and_iv(suite, role, &master, &randoms), 1)
        };
        let mut opener = Opener::new(suite, secret.clone());
        let mut sealer = Sealer::new(suite, secret);
        opener.continue_at(first);
        sealer.continue_at(first);
        Self { suite, opener, sealer, useless: 0, warnings: 0, divided_updates: 0 }
    }

    /// Returns other records with the same content.
    pub fn pass(&mut self, mut records: &[u8], dice: &mut Dice) -> Vec<u8> {
        let (mut out, mut data) = (Vec::new(), Vec::new());
        while !records.is_empty() {
            let (kind, content, rest) = self.opener.open(records);
            records = rest;
            if kind == DATA {
                data.extend_from_slice(&content);
                continue;
            }
            self.put_data(&std::mem::take(&mut data), dice, &mut out);
            if kind == HANDSHAKE {
                self.put_messages(&content, dice, &mut out);
            } else {
                self.put(kind, &content, dice, &mut out);
            }
        }
        self.put_data(&data, dice, &mut out);
        out
    }

    fn put_data(&mut self, mut data: &[u8], dice: &mut Dice, out: &mut Vec<u8>) {
        // Many records of one byte would take long in a debug build.
        let is_short = data.len() <= 300;
        while !data.is_empty() {
            if dice.one_in(2) && self.may_be_useless() {
                self.put_useless(dice, out);
            }
            let len = match dice.below(4) {
                0 if is_short => 1,
                1 if is_short => 1 + dice.below(20),
                2 => 1 + dice.below(3000),
                _ => 1 + dice.below(PLAINTEXT_MAX),
            };
            let (piece, rest) = data.split_at(len.min(data.len()));
            self.put(DATA, piece, dice, out);
            self.useless = 0;
            data = rest;
        }
    }

    fn put_messages(&mut self, content: &[u8], dice: &mut Dice, out: &mut Vec<u8>) {
        let is_update = content[0] == KEY_UPDATE;
        let mut rest = content;
        while is_update && rest.len() > 1 && dice.one_in(2) && self.may_be_useless() {
            let (piece, behind) = rest.split_at(1 + dice.below(rest.len() - 1));
            self.put(HANDSHAKE, piece, dice, out);
            self.divided_updates += u32::from(rest.len() == content.len());
            rest = behind;
        }
        self.put(HANDSHAKE, rest, dice, out);
        if is_update {
            self.opener.update();
            self.sealer.update();
        } else {
            // A ticket.
            self.useless += 1;
        }
    }

    /// An empty record, or a warning that ends nothing.
    fn put_useless(&mut self, dice: &mut Dice, out: &mut Vec<u8>) {
        if dice.one_in(2) {
            return self.put(DATA, &[], dice, out);
        }
        // user_canceled; TLS 1.2 has others, such as no_renegotiation.
        let description = if self.suite.is_tls13() || dice.one_in(2) { 90 } else { 100 };
        self.warnings += 1;
        self.put(ALERT, &[1, description], dice, out);
    }

    fn may_be_useless(&mut self) -> bool {
        let may_be = self.useless < EMPTY_RECORDS_MAX;
        self.useless += u8::from(may_be);
        may_be
    }

    fn put(&mut self, kind: u8, content: &[u8], dice: &mut Dice, out: &mut Vec<u8>) {
        let padding = if self.suite.is_tls13() && dice.one_in(3) { dice.below(300) } else { 0 };
        let padding = padding.min(PLAINTEXT_MAX - content.len());
        out.extend(self.sealer.seal(kind, content, padding));
    }
}

/// The key and the IV with which rustls seals records of TLS 1.2 (RFC 5246 §6.3). rustls takes the half of the nonce
/// that records carry from the end of the key block.
fn key_and_iv(suite: Suite, role: Role, master: &[u8], randoms: &[u8]) -> Vec<u8> {
    let (key_len, fixed_len, hash) = match suite {
        Suite::Tls12Aes128Gcm => (16, 4, hmac::HMAC_SHA256),
        Suite::Tls12Aes256Gcm => (32, 4, hmac::HMAC_SHA384),
        _ => (32, 12, hmac::HMAC_SHA256),
    };
    let explicit_len = 12 - fixed_len;
    let block =
        prf(hash, master, b"key expansion", randoms, 2 * (key_len + fixed_len) + explicit_len);
    let (keys, ivs) = block.split_at(2 * key_len);
    // The client's key comes first. Our end's peer has the other role.
    let at = usize::from(role == Role::Client);
    let key = &keys[at * key_len..][..key_len];
    let fixed = &ivs[at * fixed_len..][..fixed_len];
    [key, fixed, &ivs[2 * fixed_len..]].concat()
}

/// The pseudorandom function of TLS 1.2 (RFC 5246 §5).
fn prf(hash: hmac::Algorithm, secret: &[u8], label: &[u8], seed: &[u8], len: usize) -> Vec<u8> {
    let key = hmac::Key::new(hash, secret);
    let seed = [label, seed].concat();
    let mut a = hmac::sign(&key, &seed);
    let mut out = Vec::new();
    while out.len() < len {
        out.extend_from_slice(hmac::sign(&key, &[a.as_ref(), &seed].concat()).as_ref());
        a = hmac::sign(&key, a.as_ref());
    }
    out.truncate(len);
    out
}
