//! The topic sets of a worker, and which of them an update concerns.

use super::{audience::Audience, topic_filter::TopicFilter, topic_set::TopicSet};
use crate::{
    matcher::{Matcher, Selector},
    topic::HubUrl,
    update::Update,
};
use slab::Slab;
use std::{
    collections::{BTreeMap, BTreeSet, HashMap, hash_map::Entry},
    ops::{Index, IndexMut},
    sync::Arc,
};

/// A topic set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SetId(u32);

/// Sets by the topics that they read, apart from patterns.
#[derive(Debug, Default)]
pub(super) struct TopicIndex {
    /// Sets that read a certain topic, by the topic.
    pub(super) exact: HashMap<Arc<str>, BTreeSet<SetId>>,
    /// Sets that read every topic.
    pub(super) any: BTreeSet<SetId>,
}

/// All topic sets. Each audience is there once.
#[derive(Debug, Default)]
pub(super) struct SetTable {
    sets: Slab<TopicSet>,
    by_audience: HashMap<Audience, SetId>,
    /// Sets without patterns: what an update costs here is bounded by the number of sets that read it.
    plain: TopicIndex,
    /// Sets with patterns, in their topics or their grants, by their other topics.
    pub(super) with_patterns: TopicIndex,
    /// Sets that read what a pattern selects. A pattern looks at an update once for all of them.
    pub(super) patterns: BTreeMap<Selector, (Arc<Matcher>, BTreeSet<SetId>)>,
    /// How many sets have patterns.
    pattern_sets: usize,
    /// The topics of all sets, for other threads.
    filter: Option<Arc<TopicFilter>>,
    bytes: usize,
}

impl SetTable {
    /// Creates an empty table, which keeps `filter` up to date.
    pub(super) fn new(filter: Option<Arc<TopicFilter>>) -> Self {
        Self { filter, ..Self::default() }
    }

    pub(super) fn len(&self) -> usize {
        self.sets.len()
    }

    /// An estimate of the memory of sets and indexes.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
            + self.sets.capacity() * size_of::<TopicSet>()
            + table_bytes(&self.by_audience)
            + [&self.plain, &self.with_patterns].map(TopicIndex::bytes).iter().sum::<usize>()
    }

    /// Whether any set has patterns.
    pub(super) fn has_patterns(&self) -> bool {
        self.pattern_sets > 0
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
        self.pattern_sets += usize::from(audience.has_patterns());
        let index = if audience.has_patterns() { &mut self.with_patterns } else { &mut self.plain };
        for rule in audience.routes() {
            let sets = match &*rule.matcher {
                Matcher::Any => &mut index.any,
                Matcher::Exact(topic) => match index.exact.entry(Arc::clone(topic)) {
                    Entry::Occupied(entry) => entry.into_mut(),
                    Entry::Vacant(entry) => {
                        if let Some(filter) = &self.filter {
                            filter.add(topic);
                        }
                        entry.insert(BTreeSet::new())
                    }
                },
                _ => {
                    let entry = self.patterns.entry(rule.selector.clone());
                    &mut entry.or_insert_with(|| (Arc::clone(&rule.matcher), BTreeSet::new())).1
                }
            };
            sets.insert(id);
        }
        self.note_others();
        Some(id)
    }

    /// Notes in the filter how many sets it cannot know by their topics.
    fn note_others(&self) {
        if let Some(filter) = &self.filter {
            let of_any = self.plain.any.len() + self.with_patterns.any.len();
            filter.set_others(of_any + self.patterns.len());
        }
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
        self.pattern_sets -= usize::from(audience.has_patterns());
        let index = if audience.has_patterns() { &mut self.with_patterns } else { &mut self.plain };
        for rule in audience.routes() {
            match &*rule.matcher {
                Matcher::Any => {
                    index.any.remove(&id);
                }
                Matcher::Exact(topic) => {
                    if let Some(sets) = index.exact.get_mut(topic) {
                        sets.remove(&id);
                        if sets.is_empty() {
                            index.exact.remove(topic);
                            if let Some(filter) = &self.filter {
                                filter.remove(topic);
                            }
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
        self.note_others();
    }

    /// Every set.
    pub(super) fn all(&self) -> Vec<SetId> {
        self.sets.iter().filter_map(|(key, _)| u32::try_from(key).ok().map(SetId)).collect()
    }

    pub(super) fn get(&self, id: SetId) -> Option<&TopicSet> {
        self.sets.get(id.0 as usize)
    }

    /// Appends the sets without patterns whose subscribers get an update. One may be there more than once. Those with
    /// patterns are found by a [`Search`](super::search::Search).
    pub(super) fn concerned(&self, update: &Update, hub: &HubUrl, found: &mut Vec<SetId>) {
        let exact = update.topics.iter().filter_map(|topic| self.plain.exact.get(&**topic));
        for id in std::iter::once(&self.plain.any).chain(exact).flatten() {
            if self[*id].audience.may_read(update, hub) {
                found.push(*id);
            }
        }
    }
}

impl TopicIndex {
    fn bytes(&self) -> usize {
        table_bytes(&self.exact) + self.exact.len() * NODE
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
