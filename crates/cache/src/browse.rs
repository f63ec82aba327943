//! Listing and inspecting stored responses, for operators.

use crate::{
    batch::{BATCH, yield_lock},
    disk::DiskEntry,
    key,
    record::Object,
    response_metadata::ResponseMetadata,
    store::{Store, lock},
};
use pollux_http::fields::Fields;
use std::{collections::HashSet, time::Duration, vec};

/// The longest time that an inspection waits for the disk thread to read a file.
const FILE_READ_TIMEOUT: Duration = Duration::from_secs(10);

/// The tier that stores a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tier {
    /// Only the memory tier.
    Memory,
    /// Only the disk tier: the next request loads it into memory.
    Disk,
    /// Both tiers.
    Both,
}

/// Summary of the responses that are stored for one URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The URL.
    pub url: Vec<u8>,
    /// The number of stored variants.
    pub variants: usize,
    /// The status code of the latest variant.
    pub status: u16,
    /// Size of all variants in bytes: in memory, metadata included, or, if they are only on disk,
    /// of their files.
    pub bytes: u64,
    /// The age of the latest variant in seconds.
    pub age: u64,
    /// Remaining freshness lifetime of the latest variant in seconds; negative when it is stale.
    pub ttl: i64,
    /// Requests that were served from memory since the latest variant was stored.
    pub hits: u32,
    /// The tier that stores it.
    pub tier: Tier,
}

/// Details of one stored response.
#[derive(Clone, Debug)]
pub struct StoredResponse {
    /// The URL.
    pub url: Vec<u8>,
    /// The tier that stores it.
    pub tier: Tier,
    /// The status code.
    pub status: u16,
    /// Its age in seconds when it was received or last validated (RFC 9111 §4.2.3).
    pub initial_age: u64,
    /// The Unix second at which it was received or last validated.
    pub received_at: u64,
    /// Its current age in seconds.
    pub age: u64,
    /// Its freshness lifetime in seconds.
    pub lifetime: u64,
    /// The lifetime is a heuristic, because the response does not state one (RFC 9111 §4.2.2).
    pub is_heuristic: bool,
    /// Remaining freshness lifetime in seconds; negative when it is stale.
    pub ttl: i64,
    /// It must be validated before each use (`no-cache`).
    pub is_no_cache: bool,
    /// A client's `max-stale` does not permit serving it stale.
    pub forbids_stale: bool,
    /// Seconds after its expiry during which it is served while a refresh runs (RFC 5861 §3).
    pub stale_while_revalidate: u64,
    /// Seconds after its expiry during which it is served if the origin fails (RFC 5861 §4).
    pub stale_if_error: u64,
    /// The length of the content in bytes.
    pub content_length: u64,
    /// The memory that it occupies, in bytes.
    pub bytes: u64,
    /// Requests for its URL that were served from memory since it was stored there.
    pub hits: u32,
    /// The request's values of the fields that `Vary` names: `name:value LF`.
    pub vary: Vec<u8>,
    /// The response's field lines, each with its CRLF.
    pub fields: Vec<u8>,
}

/// Iterates over all stored URLs in batches. A URL that stays stored, in the same tier, during the
/// whole iteration is returned exactly once. A URL that is added, removed or moved between tiers
/// meanwhile may or may not be returned.
#[derive(Debug)]
pub struct Walk {
    store: Store,
    prefix: Vec<u8>,
    /// Index of the next shard. The disk tier follows the last shard.
    next: usize,
    position: Position,
}

/// The current position of a [`Walk`].
#[derive(Debug)]
enum Position {
    /// In the shard with this index; the iterator holds the remaining key hashes.
    Shard(usize, vec::IntoIter<u64>),
    Directory(vec::IntoIter<u64>),
    /// Before the next shard or the disk tier.
    Between,
    End,
}

impl Store {
    /// Returns an iterator over the URLs that begin with `prefix`, in no particular order.
    ///
    /// ```
    /// use pollux_cache::{Config, Store};
    ///
    /// let store = Store::new(Config::default());
    /// let mut walk = store.walk(b"http://example.org/");
    /// while let Some(entries) = walk.next_batch(1_700_000_000) {
    ///     for entry in entries {
    ///         println!("{} s left: {}", entry.ttl, String::from_utf8_lossy(&entry.url));
    ///     }
    /// }
    /// ```
    pub fn walk(&self, prefix: &[u8]) -> Walk {
        let prefix = key::from_prefix(prefix);
        Walk { store: self.clone(), prefix, next: 0, position: Position::Between }
    }

    /// Returns all responses that are stored for `url`, the latest first. The disk thread reads
    /// those that are only on disk.
    pub fn inspect(&self, url: &[u8], now: u64) -> Vec<StoredResponse> {
        let key = key::from_url(url).unwrap_or_else(|| url.to_vec());
        let hash = self.inner.hash(&key);
        let (objects, hits) = {
            let shard = self.inner.lock_shard(hash);
            let hits = shard.memory.at(hash).map_or(0, |(_, hits)| hits);
            (shard.memory.objects(hash, &key).to_vec(), hits)
        };
        let files = self.inner.disk.as_ref().map(|disk| disk.files_of(hash, &key));
        let files = files.unwrap_or_default();
        let mut responses: Vec<_> = objects
            .iter()
            .map(|object| {
                let has_file = files.iter().any(|(vary, _)| **vary == *object.vary());
                self.stored_response(
                    object,
                    if has_file { Tier::Both } else { Tier::Memory },
                    hits,
                    now,
                )
            })
            .collect();
        for (vary, number) in files {
            if objects.iter().any(|object| *object.vary() == *vary) {
                continue;
            }
            let disk = self.inner.disk.as_ref();
            if let Some(object) = disk.and_then(|disk| disk.read(number, FILE_READ_TIMEOUT)) {
                responses.push(self.stored_response(&object, Tier::Disk, 0, now));
            }
        }
        responses
    }

    fn stored_response(&self, object: &Object, tier: Tier, hits: u32, now: u64) -> StoredResponse {
        let header = object.header();
        let fields = Fields::new(object.fields());
        let metadata = ResponseMetadata::read(header.status, fields, &self.inner.config);
        StoredResponse {
            url: object.key().to_vec(),
            tier,
            status: header.status,
            initial_age: header.initial_age.into(),
            received_at: header.received_at,
            age: header.age(now),
            lifetime: header.lifetime.into(),
            is_heuristic: metadata.explicit_lifetime().is_none(),
            ttl: header.time_left(now),
            is_no_cache: header.is_no_cache(),
            forbids_stale: header.forbids_stale(),
            stale_while_revalidate: header.stale_while_revalidate.into(),
            stale_if_error: header.stale_if_error.into(),
            content_length: header.content_len,
            bytes: object.weight(),
            hits,
            vary: object.vary().to_vec(),
            fields: object.fields().to_vec(),
        }
    }
}

impl Walk {
    /// Returns the next entries, possibly none, as of the time `now`; `None` at the end. Holds a lock only while it
    /// reads a few hundred URLs.
    pub fn next_batch(&mut self, now: u64) -> Option<Vec<Entry>> {
        loop {
            match &mut self.position {
                Position::End => return None,
                Position::Between => self.enter_next(),
                Position::Shard(_, rest) | Position::Directory(rest) if rest.len() == 0 => {
                    self.position = Position::Between;
                }
                Position::Shard(index, rest) => {
                    let index = *index;
                    let batch: Vec<u64> = rest.by_ref().take(BATCH).collect();
                    yield_lock();
                    return Some(self.in_memory(index, &batch, now));
                }
                Position::Directory(rest) => {
                    let batch: Vec<u64> = rest.by_ref().take(BATCH).collect();
                    yield_lock();
                    return Some(self.in_directory(&batch, now));
                }
            }
        }
    }

    fn enter_next(&mut self) {
        let inner = &self.store.inner;
        let next = self.next;
        self.next += 1;
        self.position = match (inner.shards.get(next), &inner.disk) {
            (Some(shard), _) => Position::Shard(next, lock(shard).memory.hashes().into_iter()),
            (None, Some(disk)) if next == inner.shards.len() => {
                Position::Directory(disk.hashes().into_iter())
            }
            _ => Position::End,
        };
    }

    fn in_memory(&self, shard_index: usize, batch: &[u64], now: u64) -> Vec<Entry> {
        let inner = &self.store.inner;
        let mut entries = Vec::new();
        {
            let shard = lock(&inner.shards[shard_index]);
            let found = batch.iter().filter_map(|&hash| Some((hash, shard.memory.at(hash)?)));
            for (hash, (objects, hits)) in found {
                if objects[0].key().starts_with(&self.prefix) {
                    entries.push((hash, entry(objects, hits, now)));
                }
            }
        }
        if let Some(disk) = &inner.disk {
            let keys = entries.iter().map(|(hash, entry)| (*hash, &entry.url[..]));
            let on_disk: HashSet<u64> = disk.filter_stored(keys).into_iter().collect();
            for (hash, entry) in &mut entries {
                if on_disk.contains(hash) {
                    entry.tier = Tier::Both;
                }
            }
        }
        entries.into_iter().map(|(_, entry)| entry).collect()
    }

    fn in_directory(&self, batch: &[u64], now: u64) -> Vec<Entry> {
        let inner = &self.store.inner;
        let Some(disk) = &inner.disk else { return Vec::new() };
        let mut entries = disk.list(batch, &self.prefix);
        entries.retain(|DiskEntry { hash, key, .. }| {
            let shard = inner.lock_shard(*hash);
            shard.memory.objects(*hash, key).is_empty()
        });
        let entry = |file: DiskEntry| Entry {
            url: file.key,
            variants: file.variants,
            status: file.latest.status,
            bytes: file.bytes,
            age: file.latest.age(now),
            ttl: file.latest.time_left(now),
            hits: 0,
            tier: Tier::Disk,
        };
        entries.into_iter().map(entry).collect()
    }
}

fn entry(objects: &[Object], hits: u32, now: u64) -> Entry {
    let latest = objects[0].header();
    Entry {
        url: objects[0].key().to_vec(),
        variants: objects.len(),
        status: latest.status,
        bytes: objects.iter().map(Object::weight).sum(),
        age: latest.age(now),
        ttl: latest.time_left(now),
        hits,
        tier: Tier::Memory,
    }
}
