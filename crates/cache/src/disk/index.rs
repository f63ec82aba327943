//! The in-memory index of the files: which object is in which file, and which file to evict.

use crate::{
    config::VARIANTS_MAX,
    record::{Freshness, Object},
    vary,
};
use pollux_http::request::Request;
use std::collections::{HashMap, VecDeque};

#[derive(Debug)]
struct FileEntry {
    number: u64,
    bytes: u64,
    key: Box<[u8]>,
    vary: Box<[u8]>,
    tags: Box<[Box<[u8]>]>,
    freshness: Freshness,
    /// It was requested since eviction last examined it, and is kept once more (second chance).
    was_accessed: bool,
}

/// The memory cost of an entry without its texts. Tables and lists may be twice as long as their
/// contents; the last term estimates allocator overhead.
const ENTRY_COST: u64 = (2
    * (size_of::<(u64, Vec<FileEntry>)>() + size_of::<(u64, u64)>() + size_of::<FileEntry>())
    + 64) as u64;

impl FileEntry {
    /// Estimated memory of the entry in bytes.
    fn memory(&self) -> u64 {
        let tags = self.tags.iter().map(|tag| tag.len() + size_of::<Box<[u8]>>() + 16);
        ENTRY_COST + (self.key.len() + self.vary.len() + tags.sum::<usize>()) as u64
    }
}

/// The files of one URL.
#[derive(Clone, Debug)]
pub(crate) struct DiskEntry {
    pub(crate) hash: u64,
    pub(crate) key: Vec<u8>,
    pub(crate) variants: usize,
    pub(crate) bytes: u64,
    /// Freshness of the latest variant.
    pub(crate) latest: Freshness,
}

/// The files by the hash of their keys, and in the order in which they were written.
#[derive(Debug, Default)]
pub(super) struct Index {
    entries: HashMap<u64, Vec<FileEntry>>,
    order: VecDeque<(u64, u64)>,
    bytes: u64,
    /// The memory that the index occupies, in bytes.
    memory: u64,
    count: usize,
    scratch: Vec<u8>,
}

impl Index {
    /// Adds a file. Returns the numbers of the files to delete: those that it replaces and, if the
    /// URL has more than [`VARIANTS_MAX`], the oldest. The number of variants is limited because a
    /// lookup examines all of them under the lock.
    pub(super) fn put(
        &mut self,
        hash: u64,
        number: u64,
        bytes: u64,
        object: &Object,
        tags: Vec<Box<[u8]>>,
    ) -> Vec<u64> {
        let mut gone = self.remove_replaced(hash, object);
        let entry = FileEntry {
            number,
            bytes,
            key: object.key().into(),
            vary: object.vary().into(),
            tags: tags.into(),
            freshness: object.header().freshness(),
            was_accessed: false,
        };
        self.memory += entry.memory();
        // A URL usually has one variant; a default `Vec` would reserve room for four.
        let entries = self.entries.entry(hash).or_insert_with(|| Vec::with_capacity(1));
        entries.push(entry);
        let oldest = entries.first().filter(|_| entries.len() > VARIANTS_MAX);
        let oldest = oldest.map(|entry| entry.number);
        self.order.push_back((hash, number));
        self.bytes += bytes;
        self.count += 1;
        if let Some(oldest) = oldest {
            gone.extend(self.remove_file(hash, oldest));
        }
        gone
    }

    /// Returns the number of the file that answers `request`.
    pub(super) fn find(&mut self, hash: u64, key: &[u8], request: &Request<'_>) -> Option<u64> {
        let scratch = &mut self.scratch;
        let entries = self.entries.get_mut(&hash)?.iter_mut().rev();
        let entry = entries
            .filter(|entry| *entry.key == *key)
            .find(|entry| vary::matches(&entry.vary, request, scratch))?;
        entry.was_accessed = true;
        Some(entry.number)
    }

    /// Removes the entries of `hash` for which `matches` is true, and returns their file numbers.
    fn take(&mut self, hash: u64, matches: impl Fn(&FileEntry) -> bool) -> Vec<u64> {
        let Some(entries) = self.entries.get_mut(&hash) else { return Vec::new() };
        let gone: Vec<_> = entries.extract_if(.., |entry| matches(entry)).collect();
        if entries.is_empty() {
            self.entries.remove(&hash);
        }
        self.bytes -= gone.iter().map(|entry| entry.bytes).sum::<u64>();
        self.memory -= gone.iter().map(FileEntry::memory).sum::<u64>();
        self.count -= gone.len();
        gone.iter().map(|entry| entry.number).collect()
    }

    /// Removes the entries that `object` replaces. As in the memory tier, these include variants by
    /// other fields: the origin's `Vary` has changed, and the old ones would match wrong requests. Of
    /// two URLs with the same hash only one is kept.
    pub(super) fn remove_replaced(&mut self, hash: u64, object: &Object) -> Vec<u64> {
        self.take(hash, |entry| {
            *entry.key != *object.key()
                || *entry.vary == *object.vary()
                || !vary::names(&entry.vary).eq(vary::names(object.vary()))
        })
    }

    /// Removes all entries of a URL.
    pub(super) fn remove(&mut self, hash: u64, key: &[u8]) -> Vec<u64> {
        self.take(hash, |entry| *entry.key == *key)
    }

    /// Removes one file.
    pub(super) fn remove_file(&mut self, hash: u64, number: u64) -> Vec<u64> {
        self.take(hash, |entry| entry.number == number)
    }

    /// Removes the entries of `hash` for which `matches`, given key and tags, is true.
    pub(super) fn purge(
        &mut self,
        hash: u64,
        matches: impl Fn(&[u8], &[Box<[u8]>]) -> bool,
    ) -> Vec<u64> {
        self.take(hash, |entry| matches(&entry.key, &entry.tags))
    }

    /// Returns the hashes that have entries.
    pub(super) fn hashes(&self) -> Vec<u64> {
        self.entries.keys().copied().collect()
    }

    /// Summarises the entries of `hash`, if their key begins with `prefix`.
    pub(super) fn at(&self, hash: u64, prefix: &[u8]) -> Option<DiskEntry> {
        let entries = self.entries.get(&hash)?;
        let latest = entries.last().filter(|entry| entry.key.starts_with(prefix))?;
        Some(DiskEntry {
            hash,
            key: latest.key.to_vec(),
            variants: entries.len(),
            bytes: entries.iter().map(|entry| entry.bytes).sum(),
            latest: latest.freshness,
        })
    }

    /// Whether the URL has a file.
    pub(super) fn has(&self, hash: u64, key: &[u8]) -> bool {
        self.entries.get(&hash).is_some_and(|entries| entries.iter().any(|e| *e.key == *key))
    }

    /// Returns the files of a URL, the latest first, each with its `Vary` lines.
    pub(super) fn files_of(&self, hash: u64, key: &[u8]) -> Vec<(Box<[u8]>, u64)> {
        let entries = self.entries.get(&hash).into_iter().flatten().rev();
        let own = entries.filter(|entry| *entry.key == *key);
        own.map(|entry| (entry.vary.clone(), entry.number)).collect()
    }

    /// Removes files until they have at most `limit` bytes and the index has at most `memory`
    /// bytes. The oldest are removed first, except those that were requested since.
    pub(super) fn shrink(&mut self, limit: u64, memory: u64) -> Vec<u64> {
        let mut gone = Vec::new();
        while self.bytes > limit || self.memory > memory {
            let Some((hash, number)) = self.order.pop_front() else { break };
            let entries = self.entries.get_mut(&hash).into_iter().flatten();
            match entries.into_iter().find(|entry| entry.number == number) {
                Some(entry) if entry.was_accessed => {
                    entry.was_accessed = false;
                    self.order.push_back((hash, number));
                }
                Some(_) => gone.extend(self.remove_file(hash, number)),
                None => {}
            }
        }
        // Entries that were removed in other ways are still in `order`, so it is cleaned up from time
        // to time.
        if self.order.len() > 2 * self.count + 1024 {
            let entries = &self.entries;
            self.order.retain(|(hash, number)| {
                let entries = entries.get(hash).into_iter().flatten();
                entries.into_iter().any(|entry| entry.number == *number)
            });
        }
        gone
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn count(&self) -> usize {
        self.count
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Config,
        record::{FreshnessTimes, RecordTexts},
        response_metadata::ResponseMetadata,
    };
    use pollux_http::fields::Fields;

    fn object(key: &[u8]) -> Object {
        let metadata = ResponseMetadata::read(200, Fields::new(b""), &Config::default());
        let times = FreshnessTimes {
            received_at: 1000,
            initial_age: 0,
            lifetime: 60,
            stale_while_revalidate: 0,
            stale_if_error: 0,
            arrival_delay: 0,
        };
        Object::new(&metadata, times, RecordTexts { key, vary: b"", fields: b"" }, b"x", None)
    }

    #[test]
    fn the_index_has_a_bound_of_its_own_beside_that_of_the_files() {
        const MEMORY: u64 = 100_000;
        let mut index = Index::default();
        let mut gone = 0;
        for number in 0..10_000 {
            let key = format!("http://a/{number}");
            index.put(number, number, 100, &object(key.as_bytes()), Vec::new());
            gone += index.shrink(u64::MAX, MEMORY).len();
            assert!(index.memory <= MEMORY, "{}", index.memory);
        }
        assert!(index.count() > 100, "{} are left", index.count());
        assert_eq!(index.count() + gone, 10_000);
        assert_eq!(index.bytes(), 100 * index.count() as u64);
        for number in 0..10_000 {
            index.remove_file(number, number);
        }
        assert_eq!((index.memory, index.bytes(), index.count()), (0, 0, 0));
    }
}
