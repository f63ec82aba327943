//! Keys of session tickets that rotate by themselves, and are the same in all workers without
//! communication between them.
//!
//! They form a ratchet: each period's key is derived from the previous one, which is then forgotten.
//! Workers, and processes, that began with the same first key reach the same keys as time passes. A
//! ticket that was encrypted two periods ago cannot be decrypted any more, even with a worker's memory.
//! The ratchet advances when a ticket is made or read: a process that has keys and no handshakes, such as
//! one that only forks workers, keeps the key of the last period in which it had one.

use ring::{
    aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey},
    hkdf::{HKDF_SHA256, Prk},
    rand::{SecureRandom, SystemRandom},
};
use rustls::server::ProducesTickets;
use std::{
    sync::{Mutex, PoisonError},
    time::{SystemTime, UNIX_EPOCH},
};
use zeroize::Zeroize;

/// The time for which a key encrypts; it decrypts for the same time after that.
pub const TICKET_PERIOD_S: u64 = 6 * 3600;
/// A key's name, in front of each of its tickets.
const NAME_LEN: usize = 8;

/// Encrypts session tickets (RFC 5077, RFC 8446 §4.6.1) with keys that rotate every
/// [`TICKET_PERIOD_S`]. Create it before workers are forked or started, so that they share its keys.
pub struct TicketKeys {
    ratchet: Mutex<Ratchet>,
    random: SystemRandom,
}

struct Ratchet {
    period: u64,
    present: PeriodKey,
    former: Option<PeriodKey>,
}

struct PeriodKey {
    /// The value from which the next period's key is derived.
    chain: [u8; 32],
    aead: LessSafeKey,
    name: [u8; NAME_LEN],
}

impl TicketKeys {
    /// Begins with a key from the system's random numbers.
    ///
    /// # Errors
    /// The system provides no random numbers.
    pub fn new() -> Result<Self, ring::error::Unspecified> {
        let random = SystemRandom::new();
        let mut chain = [0; 32];
        random.fill(&mut chain)?;
        let present = PeriodKey::new(chain);
        let ratchet = Ratchet { period: period_of(now()), present, former: None };
        Ok(Self { ratchet: Mutex::new(ratchet), random })
    }

    fn seal(&self, plain: &[u8], now: u64) -> Option<Vec<u8>> {
        let mut nonce = [0; NONCE_LEN];
        self.random.fill(&mut nonce).ok()?;
        let mut ratchet = self.ratchet.lock().unwrap_or_else(PoisonError::into_inner);
        ratchet.advance(period_of(now));
        let key = &ratchet.present;
        let mut ticket = Vec::with_capacity(NAME_LEN + NONCE_LEN + plain.len() + 16);
        ticket.extend_from_slice(&key.name);
        ticket.extend_from_slice(&nonce);
        ticket.extend_from_slice(plain);
        let content = &mut ticket[NAME_LEN + NONCE_LEN..];
        let nonce = Nonce::assume_unique_for_key(nonce);
        let tag = key.aead.seal_in_place_separate_tag(nonce, Aad::from(key.name), content).ok()?;
        ticket.extend_from_slice(tag.as_ref());
        Some(ticket)
    }

    fn open(&self, ticket: &[u8], now: u64) -> Option<Vec<u8>> {
        let (&name, rest) = ticket.split_first_chunk::<NAME_LEN>()?;
        let (&nonce, content) = rest.split_first_chunk::<NONCE_LEN>()?;
        let mut ratchet = self.ratchet.lock().unwrap_or_else(PoisonError::into_inner);
        ratchet.advance(period_of(now));
        // A name is public, because it precedes the ticket.
        let keys = [Some(&ratchet.present), ratchet.former.as_ref()];
        let key = keys.into_iter().flatten().find(|key| key.name == name)?;
        let mut content = content.to_vec();
        let nonce = Nonce::assume_unique_for_key(nonce);
        let len = key.aead.open_in_place(nonce, Aad::from(name), &mut content).ok()?.len();
        content.truncate(len);
        Some(content)
    }
}

impl Ratchet {
    /// Advances to a later period. If the clock is set back, nothing changes.
    fn advance(&mut self, period: u64) {
        // A clock set millennia ahead must not keep a worker busy. Workers then have different keys,
        // and the only effect is that clients perform full handshakes.
        const STEPS_MAX: u64 = 100_000;
        let steps = period.saturating_sub(self.period).min(STEPS_MAX);
        for _ in 0..steps {
            let next = self.present.next();
            self.former = Some(std::mem::replace(&mut self.present, next));
        }
        self.period = self.period.max(period);
    }
}

impl PeriodKey {
    fn new(chain: [u8; 32]) -> Self {
        let prk = Prk::new_less_safe(HKDF_SHA256, &chain);
        let expand = |label: &[u8]| {
            let mut out = [0; 32];
            let label = [label];
            let okm = prk.expand(&label, HKDF_SHA256);
            okm.and_then(|okm| okm.fill(&mut out)).expect("one hash is not too long");
            out
        };
        let mut key = expand(b"pollux ticket key");
        let aead = UnboundKey::new(&AES_256_GCM, &key).expect("a key of 32 bytes");
        key.zeroize();
        let [a, b, c, d, e, f, g, h, ..] = expand(b"pollux ticket name");
        Self { chain, aead: LessSafeKey::new(aead), name: [a, b, c, d, e, f, g, h] }
    }

    fn next(&self) -> Self {
        let prk = Prk::new_less_safe(HKDF_SHA256, &self.chain);
        let mut chain = [0; 32];
        let okm = prk.expand(&[b"pollux ticket chain"], HKDF_SHA256);
        okm.and_then(|okm| okm.fill(&mut chain)).expect("one hash is not too long");
        Self::new(chain)
    }
}

impl Drop for PeriodKey {
    fn drop(&mut self) {
        self.chain.zeroize();
    }
}

impl ProducesTickets for TicketKeys {
    fn enabled(&self) -> bool {
        true
    }

    fn lifetime(&self) -> u32 {
        TICKET_PERIOD_S as u32
    }

    fn encrypt(&self, plain: &[u8]) -> Option<Vec<u8>> {
        self.seal(plain, now())
    }

    fn decrypt(&self, cipher: &[u8]) -> Option<Vec<u8>> {
        self.open(cipher, now())
    }
}

impl std::fmt::Debug for TicketKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TicketKeys").finish_non_exhaustive()
    }
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

fn period_of(now: u64) -> u64 {
    now / TICKET_PERIOD_S
}

#[cfg(test)]
mod tests {
    use super::*;

    fn workers() -> (TicketKeys, TicketKeys) {
        let worker = || TicketKeys {
            ratchet: Mutex::new(Ratchet {
                period: 10,
                present: PeriodKey::new([7; 32]),
                former: None,
            }),
            random: SystemRandom::new(),
        };
        (worker(), worker())
    }

    #[test]
    fn workers_agree_however_late_each_looks_at_the_clock() {
        let (a, b) = workers();
        for period in [10, 11, 14, 15, 40] {
            let at = period * TICKET_PERIOD_S;
            let ticket = a.seal(b"state", at).unwrap();
            assert_eq!(b.open(&ticket, at).as_deref(), Some(b"state".as_slice()), "{period}");
            // The next period still decrypts it; b advances by one period, and a follows.
            assert_eq!(b.open(&ticket, at + TICKET_PERIOD_S).as_deref(), Some(b"state".as_slice()));
            let ticket = b.seal(b"later", at + TICKET_PERIOD_S).unwrap();
            assert_eq!(a.open(&ticket, at + TICKET_PERIOD_S).as_deref(), Some(b"later".as_slice()));
        }
    }

    #[test]
    fn a_ticket_ends_after_two_periods_and_cannot_be_altered() {
        let (a, _) = workers();
        let ticket = a.seal(b"state", 10 * TICKET_PERIOD_S).unwrap();
        for index in 0..ticket.len() {
            let mut altered = ticket.clone();
            altered[index] ^= 1;
            assert_eq!(a.open(&altered, 10 * TICKET_PERIOD_S), None);
            assert_eq!(a.open(&ticket[..index], 10 * TICKET_PERIOD_S), None);
        }
        assert_eq!(a.open(&ticket, 12 * TICKET_PERIOD_S), None);
    }
}
