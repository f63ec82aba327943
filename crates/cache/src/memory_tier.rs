//! The memory tier: stored responses by key, within a memory limit; rarely requested ones are
//! evicted.

use crate::{config::VARIANTS_MAX, record::Object, vary};
use pollux_http::request::Request;
use quick_cache::{OptionsBuilder, Weighter, unsync};
use std::{
    cell::Cell,
    hash::{BuildHasherDefault, Hasher},
};

/// The memory cost of an entry without its objects: slots in a slab and an index that may be twice
/// as long as their contents. `tests/memory.rs` measures it.
const ENTRY_COST: u64 = 136;

/// The stored variants of one URL, the latest first. Usually there is one.
#[derive(Clone, Debug)]
pub(crate) enum Variants {
    One(Object),
    #[allow(clippy::box_collection, reason = "a vector would make every slot 8 bytes longer")]
    Many(Box<Vec<Object>>),
}

impl Variants {
    pub(crate) fn objects(&self) -> &[Object] {
        match self {
            Self::One(object) => std::slice::from_ref(object),
            Self::Many(objects) => objects,
        }
    }

    fn of(mut objects: Vec<Object>) -> Option<Self> {
        match objects.len() {
            0 => None,
            1 => objects.pop().map(Self::One),
            _ => Some(Self::Many(Box::new(objects))),
        }
    }
}

#[derive(Debug)]
struct UrlEntry {
    variants: Variants,
    /// Requests that found this entry since it was stored.
    hits: Cell<u32>,
}

#[derive(Clone, Debug)]
struct MemoryWeighter;

impl Weighter<u64, UrlEntry> for MemoryWeighter {
    fn weight(&self, _: &u64, entry: &UrlEntry) -> u64 {
        ENTRY_COST + entry.variants.objects().iter().map(weight).sum::<u64>()
    }
}

/// The weight of one variant in bytes.
fn weight(object: &Object) -> u64 {
    object.weight() + 16
}

/// A hasher that returns its input: the keys of the table are hashes already.
#[derive(Default)]
struct IdentityHasher(u64);

impl Hasher for IdentityHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.0 = self.0.rotate_left(8) ^ u64::from(byte));
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
}

type Table = unsync::Cache<u64, UrlEntry, MemoryWeighter, BuildHasherDefault<IdentityHasher>>;

pub(crate) struct MemoryTier {
    table: Table,
    /// The maximum weight of all variants of one URL, in bytes. All of them are one entry of the table. An
    /// entry without a maximum could displace all other URLs, and the table refuses an entry that is heavier
    /// than its capacity.
    variants_weight_max: u64,
    /// The number of URLs that were evicted.
    evicted: u64,
    scratch: Vec<u8>,
}

/// The stored response for a request.
pub(crate) enum MemoryMatch {
    Object(Object),
    /// The URL is stored, but no variant matches. Contains the latest variant, for its `Vary`
    /// lines.
    OtherVariants(Object),
    Nothing,
}

impl MemoryTier {
    /// Creates a tier with `limit` bytes.
    pub(crate) fn new(limit: u64) -> Self {
        // The assumed average size of an object. It determines how many evicted keys are
        // remembered.
        const AVERAGE: u64 = 4096;
        let options = OptionsBuilder::new()
            .estimated_items_capacity((limit / AVERAGE).max(16) as usize)
            .weight_capacity(limit)
            .build();
        let options = options.unwrap_or_else(|error| unreachable!("all is given: {error:?}"));
        let (hasher, lifecycle) = Default::default();
        Self {
            table: Table::with_options(options, MemoryWeighter, hasher, lifecycle),
            variants_weight_max: limit / 2,
            evicted: 0,
            scratch: Vec::new(),
        }
    }

    /// Returns the latest stored response that matches `request`.
    pub(crate) fn find(&mut self, hash: u64, key: &[u8], request: &Request<'_>) -> MemoryMatch {
        let Some(entry) = self.table.get(&hash) else { return MemoryMatch::Nothing };
        let objects = entry.variants.objects();
        if objects[0].key() != key {
            return MemoryMatch::Nothing;
        }
        let scratch = &mut self.scratch;
        match objects.iter().find(|object| vary::matches(object.vary(), request, scratch)) {
            Some(object) => {
                entry.hits.set(entry.hits.get().saturating_add(1));
                MemoryMatch::Object(object.clone())
            }
            None => MemoryMatch::OtherVariants(objects[0].clone()),
        }
    }

    /// Stores `object` in place of the same variant. Variants by other fields are removed, because
    /// the origin's `Vary` has changed. The oldest variants are removed if there are too many, or if all
    /// together are too long.
    pub(crate) fn put(&mut self, hash: u64, object: Object) {
        let mut room = self.variants_weight_max.saturating_sub(weight(&object));
        let mut objects = vec![object];
        if let Some(UrlEntry { variants, .. }) = self.table.peek(&hash) {
            let is_other = |other: &&Object| {
                let object = &objects[0];
                other.key() == object.key()
                    && other.vary() != object.vary()
                    && vary::names(other.vary()).eq(vary::names(object.vary()))
            };
            let others: Vec<_> = variants.objects().iter().filter(is_other).cloned().collect();
            let fits = |other: &Object| {
                let left = room.checked_sub(weight(other));
                room = left.unwrap_or(0);
                left.is_some()
            };
            objects.extend(others.into_iter().take(VARIANTS_MAX - 1).take_while(fits));
        }
        self.insert(hash, objects, 0);
    }

    fn insert(&mut self, hash: u64, objects: Vec<Object>, hits: u32) {
        let Some(variants) = Variants::of(objects) else { return };
        let before = self.table.len() + usize::from(!self.table.contains_key(&hash));
        self.table.insert(hash, UrlEntry { variants, hits: Cell::new(hits) });
        self.evicted += (before - self.table.len()) as u64;
    }

    /// Replaces the variant with the URL and the `Vary` lines of `old` by `new`. Returns false if there is none.
    pub(crate) fn replace(&mut self, hash: u64, old: &Object, new: Object) -> bool {
        let Some(UrlEntry { variants, hits }) = self.table.peek(&hash) else { return false };
        let (mut objects, hits) = (variants.objects().to_vec(), hits.get());
        let same = |object: &&mut Object| object.key() == old.key() && object.vary() == old.vary();
        let Some(stored) = objects.iter_mut().find(same) else { return false };
        *stored = new;
        self.insert(hash, objects, hits);
        true
    }

    /// Returns all variants of the URL.
    pub(crate) fn objects(&self, hash: u64, key: &[u8]) -> &[Object] {
        let objects = self.at(hash).map_or(&[][..], |(objects, _)| objects);
        if objects.first().is_some_and(|object| object.key() == key) { objects } else { &[] }
    }

    /// Removes all variants of the URL and returns how many there were.
    pub(crate) fn remove(&mut self, hash: u64, key: &[u8]) -> usize {
        let count = self.objects(hash, key).len();
        if count > 0 {
            self.table.remove(&hash);
        }
        count
    }

    /// Removes the variant with the URL and the `Vary` lines of `object`, also if it has been replaced since.
    pub(crate) fn remove_one(&mut self, hash: u64, object: &Object) {
        let objects = self.objects(hash, object.key());
        let is_other = |other: &&Object| other.vary() != object.vary();
        let others: Vec<_> = objects.iter().filter(is_other).cloned().collect();
        if others.is_empty() {
            self.remove(hash, object.key());
        } else if others.len() < objects.len() {
            let hits = self.at(hash).map_or(0, |(_, hits)| hits);
            self.insert(hash, others, hits);
        }
    }

    /// Removes all variants under `hash` if `matches` is true for one of them. Returns how many
    /// were removed.
    pub(crate) fn remove_if(&mut self, hash: u64, matches: impl Fn(&Object) -> bool) -> usize {
        let removed =
            self.table.remove_if(&hash, |entry| entry.variants.objects().iter().any(matches));
        removed.map_or(0, |(_, entry)| entry.variants.objects().len())
    }

    /// Returns the variants under `hash` and the number of requests that found them.
    pub(crate) fn at(&self, hash: u64) -> Option<(&[Object], u32)> {
        self.table.peek(&hash).map(|entry| (entry.variants.objects(), entry.hits.get()))
    }

    /// Returns all hashes, in no particular order. They need little memory compared with the tier.
    pub(crate) fn hashes(&self) -> Vec<u64> {
        let mut hashes = Vec::with_capacity(self.table.len());
        hashes.extend(self.table.iter().map(|(hash, _)| *hash));
        hashes
    }

    /// The number of URLs that were evicted so far.
    pub(crate) fn evicted(&self) -> u64 {
        self.evicted
    }

    /// The number of stored URLs.
    pub(crate) fn len(&self) -> usize {
        self.table.len()
    }

    /// The memory in bytes, metadata included.
    pub(crate) fn bytes(&self) -> u64 {
        self.table.weight()
    }
}
