//! A bounded cache of the expanded keys of busy connections. Idle connections hold no expanded keys.

use crate::{Keys, Session};

/// A worker's cache of expanded keys, one entry for each of its `slots`.
///
/// The caller's number for a session, for example its descriptor, selects the entry. Two sessions may
/// share an entry: the second replaces the keys of the first, which are derived again when they are
/// needed. A look-up searches nothing, and allocates only at the first use of an entry.
pub struct KeyCache {
    entries: Vec<Entry>,
    last_id: u32,
    derivations: u64,
}

#[derive(Default)]
struct Entry {
    /// [`Session::keys_id`] of the owner; 0 if there is none.
    id: u32,
    /// The owner's number.
    number: usize,
    keys: Option<Box<Keys>>,
}

impl Entry {
    /// Whether the keys are those of this session, which has this number.
    fn is_of(&self, number: usize, session: &Session) -> bool {
        self.id != 0 && self.id == session.keys_id && self.number == number
    }
}

impl KeyCache {
    /// Makes a cache whose number of entries is `slots`, rounded up to a power of two. An entry in use
    /// takes about 1.2 KB.
    pub fn new(slots: usize) -> Self {
        let slots = slots.clamp(1, 1 << 16).next_power_of_two();
        let entries = std::iter::repeat_with(Entry::default).take(slots).collect();
        Self { entries, last_id: 0, derivations: 0 }
    }

    /// The keys of a session, from the cache or derived now.
    pub fn keys_of(&mut self, number: usize, session: &mut Session) -> &mut Keys {
        let slot = number & (self.entries.len() - 1);
        let entry = &mut self.entries[slot];
        if !entry.is_of(number, session) {
            // Zero means none. IDs repeat after 2^32 derivations; the number then tells the sessions of an
            // entry apart.
            self.last_id = self.last_id.checked_add(1).unwrap_or(1);
            self.derivations += 1;
            (entry.id, entry.number) = (self.last_id, number);
            session.keys_id = self.last_id;
            // The session has been idle for a while: its next response begins with small records.
            session.rest();
            let keys = session.derive_keys();
            match &mut entry.keys {
                Some(former) => **former = keys,
                None => entry.keys = Some(Box::new(keys)),
            }
        }
        entry.keys.as_mut().expect("an entry with an ID has keys")
    }

    /// Removes the keys of a session that ends.
    pub fn forget(&mut self, number: usize, session: &Session) {
        let slot = number & (self.entries.len() - 1);
        let entry = &mut self.entries[slot];
        if entry.is_of(number, session) {
            entry.id = 0;
            // ring does not zero a key that is dropped, so another key overwrites it.
            if let Some(keys) = &mut entry.keys {
                **keys = Keys::blank(session.suite());
            }
        }
    }

    /// The number of derivations of keys.
    pub fn derivations(&self) -> u64 {
        self.derivations
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Direction, Role, Suite};

    fn session(byte: u8) -> Session {
        let direction = Direction { secret: &[byte; 32], sequence: 0 };
        Session::new(Suite::Tls13Aes128Gcm, Role::Server, &direction, &direction)
    }

    #[test]
    fn an_id_that_repeats_is_not_another_sessions() {
        let mut cache = KeyCache::new(1);
        let (mut one, mut other) = (session(1), session(2));
        cache.keys_of(0, &mut one);
        // The state after 2^32 derivations.
        cache.last_id = 0;
        cache.keys_of(1, &mut other);
        assert_eq!(one.keys_id, other.keys_id);
        // The end of one session leaves the keys of the other.
        cache.forget(0, &one);
        cache.keys_of(1, &mut other);
        assert_eq!(cache.derivations(), 2);
        cache.keys_of(0, &mut one);
        assert_eq!(cache.derivations(), 3);
    }
}
