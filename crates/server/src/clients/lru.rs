//! A map with a maximum: what has been unused longest gives way. All operations cost constant time.

use std::collections::HashMap;

/// The end of the list.
const NONE: u32 = u32::MAX;

/// A map of at most `limit` entries.
#[derive(Debug)]
pub(super) struct LruMap<V> {
    limit: usize,
    index: HashMap<u128, u32>,
    entries: Vec<Entry<V>>,
    /// Used last.
    newest: u32,
    /// The next to give way.
    oldest: u32,
}

#[derive(Debug)]
struct Entry<V> {
    key: u128,
    value: V,
    newer: u32,
    older: u32,
}

impl<V: Default> LruMap<V> {
    /// An empty map; `limit` is at least 1.
    pub(super) fn new(limit: usize) -> Self {
        Self {
            limit: limit.clamp(1, NONE as usize),
            index: HashMap::new(),
            entries: Vec::new(),
            newest: NONE,
            oldest: NONE,
        }
    }

    /// The value of `key`, which is the newest entry then. A new one begins with the default, and takes
    /// the place of the oldest one if the map is full.
    pub(super) fn entry(&mut self, key: u128) -> &mut V {
        let at = match self.index.get(&key) {
            Some(&at) => {
                self.unlink(at);
                at
            }
            None => self.insert(key),
        };
        self.link_as_newest(at);
        &mut self.entries[at as usize].value
    }

    /// Entries that there are.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    fn insert(&mut self, key: u128) -> u32 {
        let (older, newer) = (NONE, NONE);
        let entry = Entry { key, value: V::default(), newer, older };
        let at = if self.entries.len() < self.limit {
            self.entries.push(entry);
            (self.entries.len() - 1) as u32
        } else {
            let at = self.oldest;
            self.unlink(at);
            let former = std::mem::replace(&mut self.entries[at as usize], entry);
            self.index.remove(&former.key);
            at
        };
        self.index.insert(key, at);
        at
    }

    fn unlink(&mut self, at: u32) {
        let Entry { newer, older, .. } = self.entries[at as usize];
        match self.entries.get_mut(newer as usize) {
            Some(entry) => entry.older = older,
            None => self.newest = older,
        }
        match self.entries.get_mut(older as usize) {
            Some(entry) => entry.newer = newer,
            None => self.oldest = newer,
        }
    }

    fn link_as_newest(&mut self, at: u32) {
        let former = std::mem::replace(&mut self.newest, at);
        let entry = &mut self.entries[at as usize];
        (entry.newer, entry.older) = (NONE, former);
        match self.entries.get_mut(former as usize) {
            Some(entry) => entry.newer = at,
            None => self.oldest = at,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Against a list that is searched from its beginning.
        #[test]
        fn it_forgets_what_has_been_unused_longest(
            limit in 1_usize..6, keys in proptest::collection::vec(0_u128..10, 0..100),
        ) {
            let mut map = LruMap::<u32>::new(limit);
            let mut model: Vec<(u128, u32)> = Vec::new();
            for key in keys {
                let value = map.entry(key);
                *value += 1;
                let known = model.iter().position(|(other, _)| *other == key);
                let count = known.map_or(0, |at| model.remove(at).1) + 1;
                model.push((key, count));
                if model.len() > limit {
                    model.remove(0);
                }
                prop_assert_eq!(*value, count);
                prop_assert_eq!(map.index.len(), model.len());
            }
        }
    }
}
