//! The topic sets of a worker, and which of them an update concerns.

use super::{audience::Audience, topic_set::TopicSet};
use crate::{
    matcher::{Matcher, Selector},
    topic::HubUrl,
    update::Update,
};
use slab::Slab;
use std::{
    collections::{BTreeSet, HashMap},
    ops::{Index, IndexMut},
    sync::Arc,
};

/// A topic set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SetId(u32);

/// All topic sets. Each audience is there once.
#[derive(Debug, Default)]
pub(super) struct SetTable {
    sets: Slab<TopicSet>,
    by_audience: HashMap<Audience, SetId>,
    /// Sets that read a certain topic, by the topic.
    exact: HashMap<Arc<str>, BTreeSet<SetId>>,
    /// Sets that read every topic.
    any: BTreeSet<SetId>,
    /// Sets that read what a pattern selects. A pattern looks at an update once for all of them.
    patterns: HashMap<Selector, (Arc<Matcher>, BTreeSet<SetId>)>,
    bytes: usize,
}

impl SetTable {
    pub(super) fn len(&self) -> usize {
        self.sets.len()
    }

    /// An estimate of the memory of sets and indexes.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
            + self.sets.capacity() * size_of::<TopicSet>()
            + table_bytes(&self.by_audience)
            + table_bytes(&self.exact)
            + self.exact.len() * NODE
    }

    /// The set of an audience, with one member more.
    pub(super) fn join(&mut self, audience: &Audience) -> Option<SetId> {
        if let Some(id) = self.by_audience.get(audience) {
            self.sets[id.0 as usize].members += 1;
            return Some(*id);
        }
        let id = SetId(u32::try_from(self.sets.vacant_key()).ok()?);
        let mut set = TopicSet::new(audience.clone());
        set.members = 1;
        self.sets.insert(set);
        self.by_audience.insert(audience.clone(), id);
        self.bytes += audience.bytes();
        for rule in audience.routes() {
            let sets = match &*rule.matcher {
                Matcher::Any => &mut self.any,
                Matcher::Exact(topic) => self.exact.entry(Arc::clone(topic)).or_default(),
                _ => {
                    let entry = self.patterns.entry(rule.selector.clone());
                    &mut entry.or_insert_with(|| (Arc::clone(&rule.matcher), BTreeSet::new())).1
                }
            };
            sets.insert(id);
        }
        Some(id)
    }

    /// One member has left; with the last one the set goes.
    pub(super) fn leave(&mut self, id: SetId) {
        let set = &mut self[id];
        set.members -= 1;
        if set.members > 0 {
            return;
        }
        let audience = self.sets.remove(id.0 as usize).audience;
        self.by_audience.remove(&audience);
        self.bytes -= audience.bytes();
        for rule in audience.routes() {
            match &*rule.matcher {
                Matcher::Any => {
                    self.any.remove(&id);
                }
                Matcher::Exact(topic) => {
                    if let Some(sets) = self.exact.get_mut(topic) {
                        sets.remove(&id);
                        if sets.is_empty() {
                            self.exact.remove(topic);
                        }
                    }
                }
                _ => {
                    if let Some((_, sets)) = self.patterns.get_mut(&rule.selector) {
                        sets.remove(&id);
                        if sets.is_empty() {
                            self.patterns.remove(&rule.selector);
                        }
                    }
                }
            }
        }
    }

    /// Every set.
    pub(super) fn all(&self) -> Vec<SetId> {
        self.sets.iter().filter_map(|(key, _)| u32::try_from(key).ok().map(SetId)).collect()
    }

    pub(super) fn get(&self, id: SetId) -> Option<&TopicSet> {
        self.sets.get(id.0 as usize)
    }

    /// Appends the sets whose subscribers get an update. One may be there more than once.
    pub(super) fn concerned(&self, update: &Update, hub: &HubUrl, found: &mut Vec<SetId>) {
        let mut consider = |sets: &BTreeSet<SetId>| {
            for id in sets {
                if !update.private || self[*id].audience.may_read(update, hub) {
                    found.push(*id);
                }
            }
        };
        consider(&self.any);
        for topic in &update.topics {
            if let Some(sets) = self.exact.get(&**topic) {
                consider(sets);
            }
        }
        for (matcher, sets) in self.patterns.values() {
            if update.candidates(hub).any(|candidate| matcher.matches(candidate)) {
                consider(sets);
            }
        }
    }
}

/// The smallest node of a set of [`SetId`].
const NODE: usize = 64;

/// A hash table has a byte of its own for each entry, and is at most seven eighths full.
fn table_bytes<K, V>(table: &HashMap<K, V>) -> usize {
    table.capacity() * 8 / 7 * (size_of::<(K, V)>() + 1)
}

impl Index<SetId> for SetTable {
    type Output = TopicSet;

    fn index(&self, id: SetId) -> &TopicSet {
        &self.sets[id.0 as usize]
    }
}

impl IndexMut<SetId> for SetTable {
    fn index_mut(&mut self, id: SetId) -> &mut TopicSet {
        &mut self.sets[id.0 as usize]
    }
}
