//! What is stored, in memory: by key, within a limit, the rarely asked for going first.

use crate::{config::VARIANTS_MAX, record::Object, vary};
use pollux_http::request::Request;
use quick_cache::{OptionsBuilder, Weighter, unsync};
use std::{
    cell::Cell,
    hash::{BuildHasherDefault, Hasher},
};

/// What an entry takes in the table beside the object itself: a place in a slab that may be twice as
/// long as what is in it, and in the index likewise. `tests/memory.rs` measures it.
const ENTRY_COST: u64 = 120;

/// The representations of one URL, the latest first. Mostly there is one.
#[derive(Clone, Debug)]
pub(crate) enum Slot {
    One(Object),
    #[allow(clippy::box_collection, reason = "a vector would make every slot 8 octets longer")]
    Many(Box<Vec<Object>>),
}

impl Slot {
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

#[derive(Clone, Debug)]
struct ByMemory;

impl Weighter<u64, Slot> for ByMemory {
    fn weight(&self, _: &u64, slot: &Slot) -> u64 {
        ENTRY_COST + slot.objects().iter().map(|object| object.weight() + 16).sum::<u64>()
    }
}

/// The keys are hashes already.
#[derive(Default)]
struct AsItIs(u64);

impl Hasher for AsItIs {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, octets: &[u8]) {
        octets.iter().for_each(|&octet| self.0 = self.0.rotate_left(8) ^ u64::from(octet));
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
}

type Table = unsync::Cache<u64, Slot, ByMemory, BuildHasherDefault<AsItIs>>;

/// The store.
pub(crate) struct Shelf {
    table: Table,
    scratch: Vec<u8>,
}

/// What is there for a request.
pub(crate) enum Found {
    Object(Object),
    /// Nothing for its varying fields, but something for its URL; these are the lines of its `Vary`.
    OtherVariants(Object),
    Nothing,
}

impl Shelf {
    /// For `limit` octets.
    pub(crate) fn new(limit: u64) -> Self {
        // An object of average size; it decides how many of those gone are remembered.
        const AVERAGE: u64 = 4096;
        let options = OptionsBuilder::new()
            .estimated_items_capacity((limit / AVERAGE).max(16) as usize)
            .weight_capacity(limit)
            .build();
        let options = options.unwrap_or_else(|error| unreachable!("all is given: {error:?}"));
        let (hasher, lifecycle) = Default::default();
        Self {
            table: Table::with_options(options, ByMemory, hasher, lifecycle),
            scratch: Vec::new(),
        }
    }

    /// The latest response that answers `request`.
    pub(crate) fn find(&mut self, hash: u64, key: &[u8], request: &Request<'_>) -> Found {
        let Some(slot) = self.table.get(&hash) else { return Found::Nothing };
        let objects = slot.objects();
        if objects[0].key() != key {
            return Found::Nothing;
        }
        let scratch = &mut self.scratch;
        match objects.iter().find(|object| vary::matches(object.vary(), request, scratch)) {
            Some(object) => Found::Object(object.clone()),
            None => Found::OtherVariants(objects[0].clone()),
        }
    }

    /// Keeps `object` instead of that for the same varying fields. Those that vary by other fields
    /// go: the origin has changed its mind.
    pub(crate) fn put(&mut self, hash: u64, object: Object) {
        let mut objects = vec![object];
        if let Some(slot) = self.table.peek(&hash) {
            let is_other = |other: &&Object| {
                let object = &objects[0];
                other.key() == object.key()
                    && other.vary() != object.vary()
                    && vary::names(other.vary()).eq(vary::names(object.vary()))
            };
            let others: Vec<_> = slot.objects().iter().filter(is_other).cloned().collect();
            objects.extend(others.into_iter().take(VARIANTS_MAX - 1));
        }
        if let Some(slot) = Slot::of(objects) {
            self.table.insert(hash, slot);
        }
    }

    /// Puts `new` where `old` is; nowhere if that has gone meanwhile.
    pub(crate) fn replace(&mut self, hash: u64, old: &Object, new: Object) -> bool {
        let Some(slot) = self.table.peek(&hash) else { return false };
        let mut objects = slot.objects().to_vec();
        let same = |object: &&mut Object| object.key() == old.key() && object.vary() == old.vary();
        let Some(place) = objects.iter_mut().find(same) else { return false };
        *place = new;
        if let Some(slot) = Slot::of(objects) {
            self.table.insert(hash, slot);
        }
        true
    }

    /// Every representation of the URL.
    pub(crate) fn objects(&self, hash: u64, key: &[u8]) -> &[Object] {
        let objects = self.table.peek(&hash).map_or(&[][..], Slot::objects);
        if objects.first().is_some_and(|object| object.key() == key) { objects } else { &[] }
    }

    /// Removes every representation of the URL; how many there were.
    pub(crate) fn remove(&mut self, hash: u64, key: &[u8]) -> usize {
        let count = self.objects(hash, key).len();
        if count > 0 {
            self.table.remove(&hash);
        }
        count
    }

    /// Removes the representation that `object` is.
    pub(crate) fn remove_one(&mut self, hash: u64, object: &Object) {
        let objects = self.objects(hash, object.key());
        let others = objects.iter().filter(|other| other.vary() != object.vary()).cloned();
        match Slot::of(others.collect()) {
            Some(slot) => self.table.insert(hash, slot),
            None => drop(self.remove(hash, object.key())),
        }
    }

    /// Removes what `is_gone` says of one of its representations; how many objects went.
    pub(crate) fn purge(&mut self, is_gone: impl Fn(&Object) -> bool) -> usize {
        let count = Cell::new(0);
        self.table.retain(|_, slot| {
            let goes = slot.objects().iter().any(&is_gone);
            count.set(count.get() + if goes { slot.objects().len() } else { 0 });
            !goes
        });
        count.get()
    }

    /// All that is stored.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Object> {
        self.table.iter().flat_map(|(_, slot)| slot.objects())
    }

    /// URLs.
    pub(crate) fn len(&self) -> usize {
        self.table.len()
    }

    /// Octets, metadata included.
    pub(crate) fn octets(&self) -> u64 {
        self.table.weight()
    }
}
