//! Expanded keys of the connections that are busy: bounded, so that idle ones cost nothing.

use crate::{Keys, Session};

/// A worker's cache of expanded keys, one entry for each of its `slots`.
///
/// A session's entry is chosen by the number that the caller gives with it, its descriptor say; another
/// session with the same entry takes the former one's place, whose keys are derived again when they are
/// wanted. Nothing is searched and nothing allocated after the entry's first use.
pub struct KeyCache {
    entries: Vec<Entry>,
    last_id: u32,
    derivations: u64,
}

#[derive(Default)]
struct Entry {
    /// [`Session::keys_id`] of the owner; 0 if there is none.
    id: u32,
    keys: Option<Box<Keys>>,
}

impl KeyCache {
    /// A cache with a power of two of entries, at least as many as `slots`. An entry in use has some
    /// 1.2 KB.
    pub fn new(slots: usize) -> Self {
        let slots = slots.clamp(1, 1 << 16).next_power_of_two();
        let entries = std::iter::repeat_with(Entry::default).take(slots).collect();
        Self { entries, last_id: 0, derivations: 0 }
    }

    /// The keys of a session, from the cache or derived now.
    pub fn keys_of(&mut self, number: usize, session: &mut Session) -> &mut Keys {
        let slot = number & (self.entries.len() - 1);
        let entry = &mut self.entries[slot];
        let is_cached = entry.id != 0 && entry.id == session.keys_id;
        if !is_cached {
            // Zero means none. A number comes again after 2^32 derivations; should its first owner's keys
            // still be here by then, the check of nonces is what stands behind it.
            self.last_id = self.last_id.checked_add(1).unwrap_or(1);
            self.derivations += 1;
            entry.id = self.last_id;
            session.keys_id = self.last_id;
            // It has been idle for a while: the next response begins with small records.
            session.rest();
            let keys = session.derive_keys();
            match &mut entry.keys {
                Some(place) => **place = keys,
                None => entry.keys = Some(Box::new(keys)),
            }
        }
        entry.keys.as_mut().expect("an entry with a number has keys")
    }

    /// Forgets the keys of a session that ends.
    pub fn forget(&mut self, number: usize, session: &Session) {
        let slot = number & (self.entries.len() - 1);
        let entry = &mut self.entries[slot];
        if entry.id != 0 && entry.id == session.keys_id {
            entry.id = 0;
            // ring does not zero a key that is dropped: another one is written over it.
            if let Some(keys) = &mut entry.keys {
                **keys = Keys::blank(session.suite());
            }
        }
    }

    /// How often keys had to be derived.
    pub fn derivations(&self) -> u64 {
        self.derivations
    }
}
