//! What is stored, for people to read.

use crate::{
    Store,
    disk::DiskEntry,
    key,
    purge::{BATCH, yield_lock},
    record::Object,
    response_metadata::ResponseMetadata,
    store::lock,
};
use pollux_http::fields::Fields;
use std::{collections::HashSet, time::Duration, vec};

/// How long to wait for a file that only the second tier has.
const FILE_READ_TIMEOUT: Duration = Duration::from_secs(10);

/// Where something is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tier {
    /// In memory alone.
    Memory,
    /// In the folder alone: the next request loads it.
    Disk,
    /// In both.
    Both,
}

/// What is stored for one URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The URL.
    pub url: Vec<u8>,
    /// Representations.
    pub variants: usize,
    /// The status code of the latest one.
    pub status: u16,
    /// Octets that all take: of memory, metadata included, or else of the folder.
    pub bytes: u64,
    /// The age of the latest one in seconds.
    pub age: u64,
    /// For how many seconds that is fresh yet; negative when it is stale.
    pub ttl: i64,
    /// Requests that found it in memory since it was stored there.
    pub hits: u32,
    /// Where it is.
    pub tier: Tier,
}

/// One stored response.
#[derive(Clone, Debug)]
pub struct StoredResponse {
    /// Its URL.
    pub url: Vec<u8>,
    /// Where it is.
    pub tier: Tier,
    /// Its status code.
    pub status: u16,
    /// Its age in seconds when it came, or was last validated (RFC 9111 §4.2.3).
    pub initial_age: u64,
    /// The Unix second of that.
    pub received_at: u64,
    /// Its age in seconds.
    pub age: u64,
    /// How long it is fresh, in seconds of its age.
    pub lifetime: u64,
    /// It does not say so itself: that is a guess (RFC 9111 §4.2.2).
    pub is_heuristic: bool,
    /// For how many seconds it is fresh yet; negative when it is stale.
    pub ttl: i64,
    /// It is validated before each use.
    pub is_no_cache: bool,
    /// It is never used stale because a client would take it.
    pub forbids_stale: bool,
    /// For so many seconds more it is used while it is refreshed (RFC 5861 §3).
    pub stale_while_revalidate: u64,
    /// For so many seconds more it is used when the origin fails (RFC 5861 §4).
    pub stale_if_error: u64,
    /// Octets of content.
    pub content_length: u64,
    /// Octets that it takes.
    pub bytes: u64,
    /// Requests that found its URL in memory since it was stored there.
    pub hits: u32,
    /// What requests said in its varying fields: `name:value LF`.
    pub vary: Vec<u8>,
    /// Its fields, each line with its CRLF.
    pub fields: Vec<u8>,
}

/// A walk through all that is stored, some URLs at a time. What is there all the while is met once;
/// what comes or goes, or changes its tier, meanwhile is met or not.
#[derive(Debug)]
pub struct Walk {
    store: Store,
    prefix: Vec<u8>,
    /// Which shard is next; behind the last one it is the folder.
    next: usize,
    position: Position,
}

/// Where a walk is.
#[derive(Debug)]
enum Position {
    /// In this shard, with these hashes of keys before it.
    Shard(usize, vec::IntoIter<u64>),
    Directory(vec::IntoIter<u64>),
    /// Between two of them.
    Between,
    End,
}

impl Store {
    /// A walk through the URLs that begin with `prefix`, in no order.
    pub fn walk(&self, prefix: &[u8]) -> Walk {
        let prefix = key::from_prefix(prefix);
        Walk { store: self.clone(), prefix, next: 0, position: Position::Between }
    }

    /// All that is stored for `url`, the latest first. What is in the folder alone is read there, by the
    /// thread that reads for all.
    pub fn inspect(&self, url: &[u8], now: u64) -> Vec<StoredResponse> {
        let key = key::from_url(url).unwrap_or_else(|| url.to_vec());
        let hash = self.inner.hash(&key);
        let (objects, hits) = {
            let engine = lock(&self.inner.shards[self.inner.shard(hash)]);
            let hits = engine.memory.at(hash).map_or(0, |(_, hits)| hits);
            (engine.memory.objects(hash, &key).to_vec(), hits)
        };
        let files = self.inner.disk.as_ref().map(|disk| disk.files_of(hash, &key));
        let files = files.unwrap_or_default();
        let mut stored_response: Vec<_> = objects
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
                stored_response.push(self.stored_response(&object, Tier::Disk, 0, now));
            }
        }
        stored_response
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
    /// Some more of what there is, perhaps nothing, at the time `now`; `None` at the end. A lock is held
    /// for as long as a few hundred URLs take.
    pub fn next_batch(&mut self, now: u64) -> Option<Vec<Entry>> {
        loop {
            match &mut self.position {
                Position::End => return None,
                Position::Between => self.enter_next(),
                Position::Shard(_, rest) | Position::Directory(rest) if rest.len() == 0 => {
                    self.position = Position::Between;
                }
                Position::Shard(shard, rest) => {
                    let shard = *shard;
                    let batch: Vec<u64> = rest.by_ref().take(BATCH).collect();
                    yield_lock();
                    return Some(self.in_memory(shard, &batch, now));
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

    fn in_memory(&self, shard: usize, batch: &[u64], now: u64) -> Vec<Entry> {
        let inner = &self.store.inner;
        let mut entries = Vec::new();
        {
            let engine = lock(&inner.shards[shard]);
            let found = batch.iter().filter_map(|&hash| Some((hash, engine.memory.at(hash)?)));
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
            let engine = lock(&inner.shards[inner.shard(*hash)]);
            engine.memory.objects(*hash, key).is_empty()
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
