//! One shard of the store: its stored responses, pending fetches and key history. `lookup.rs`
//! handles requests, `receive.rs` handles the origin's responses.

use crate::{
    cache_status::{CacheStatus, Forward},
    config::Config,
    content_range::PARTIAL,
    directives::{RequestDirectives, RequestDirectivesReader},
    disk::DiskTier,
    history::History,
    hit::Hit,
    memory_tier::MemoryTier,
    part,
    pending_fetches::{PendingFetch, PendingFetches, Ticket},
    record::Object,
    statistics::Statistics,
    vary,
};
use pollux_http::{request::Request, upgrade::may_be_forwarded};
use std::sync::Arc;

pub(crate) struct Shard {
    pub(crate) config: Arc<Config>,
    pub(crate) memory: MemoryTier,
    pub(crate) pending_fetches: PendingFetches,
    pub(crate) history: History,
    pub(crate) statistics: Statistics,
    /// Content of pending fetches that is being stored, in bytes, and its maximum.
    pub(crate) pending_bytes: u64,
    pub(crate) pending_bytes_max: u64,
    /// The disk tier, shared by all shards.
    pub(crate) disk: Option<Arc<DiskTier>>,
}

/// Cache-related properties of a request that are collected in one pass over its fields.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestMetadata {
    pub(crate) directives: RequestDirectives,
    pub(crate) is_authorized: bool,
    pub(crate) has_upgrade: bool,
    pub(crate) has_cookie: bool,
}

impl Shard {
    /// Creates a shard with `limit` bytes of memory. An eighth is reserved for content of pending
    /// fetches.
    pub(crate) fn new(config: Arc<Config>, limit: u64) -> Self {
        let pending_bytes_max = limit / 8;
        Self {
            config,
            memory: MemoryTier::new(limit - pending_bytes_max),
            pending_fetches: PendingFetches::default(),
            history: History::default(),
            statistics: Statistics::default(),
            pending_bytes: 0,
            pending_bytes_max,
            disk: None,
        }
    }

    /// The maximum length of stored content in bytes.
    pub(crate) fn max_object(&self) -> u64 {
        self.config.max_object_bytes.min(self.pending_bytes_max)
    }

    pub(crate) fn request_metadata(&self, request: &Request<'_>) -> RequestMetadata {
        let mut reader = RequestDirectivesReader::default();
        let (mut is_authorized, mut has_upgrade, mut has_cookie) = (false, false, false);
        for field in request.fields() {
            match field.name.len() {
                6 if field.is(b"pragma") => reader.add_pragma(field.value),
                6 => has_cookie |= field.is(b"cookie"),
                7 => has_upgrade |= field.is(b"upgrade") && may_be_forwarded(field.value),
                13 if field.is(b"cache-control") => reader.add_cache_control(field.value),
                13 => is_authorized |= field.is(b"authorization"),
                _ => {}
            }
        }
        let mut directives = reader.directives();
        if !self.config.honors_client_directives {
            let RequestDirectives { no_store, only_if_cached, .. } = directives;
            directives =
                RequestDirectives { no_store, only_if_cached, ..RequestDirectives::default() };
        }
        RequestMetadata { directives, is_authorized, has_upgrade, has_cookie }
    }

    pub(crate) fn status(&self, forward: Option<Forward>, key: &[u8]) -> CacheStatus {
        let mut status = CacheStatus::new(&self.config.name, forward);
        status.key = self.config.reports_key.then(|| Arc::from(key));
        status
    }

    /// Builds a hit for `object` with the given `Cache-Status`.
    pub(crate) fn hit(&self, object: Object, mut cache_status: CacheStatus, now: u64) -> Hit {
        cache_status.ttl = Some(object.header().time_left(now));
        Hit { object, cache_status, total_len: None }
    }

    /// Ends a fetch and releases the memory of its content.
    pub(crate) fn end(&mut self, ticket: Ticket) -> Option<Box<PendingFetch>> {
        let fetching = self.pending_fetches.end(ticket)?;
        if let Some(builder) = &fetching.builder {
            self.pending_bytes -= builder.len();
        }
        Some(fetching)
    }

    /// Stores `object` in both tiers.
    pub(crate) fn put(&mut self, hash: u64, object: Object) {
        if let Some(disk) = &self.disk {
            disk.write(hash, &object);
        }
        self.memory.put(hash, object);
    }

    /// Stores a part (§3.3), joined with the stored part of the same representation if possible.
    pub(crate) fn put_part(&mut self, hash: u64, new: Object) {
        let objects = self.memory.objects(hash, new.key());
        let old = objects.iter().find(|old| old.vary() == new.vary()).cloned();
        if let Some(old) = old.as_ref().filter(|old| old.header().status == 200) {
            // The complete response arrived in the meantime and takes precedence.
            if !part::supersedes(&new, old) {
                return;
            }
            self.remove_one(hash, old);
        }
        let object = part::joined(old.as_ref(), new, self.max_object(), &self.config);
        if object.header().status == PARTIAL {
            self.memory.put(hash, object);
        } else {
            self.put(hash, object);
        }
    }

    /// Replaces `old` by `new`, if `old` is still stored.
    pub(crate) fn replace(&mut self, hash: u64, old: &Object, new: &Object) {
        if self.memory.replace(hash, old, new.clone())
            && let Some(disk) = &self.disk
        {
            disk.write(hash, new);
        }
    }

    /// Removes `object` from memory, and all files of its URL from disk.
    pub(crate) fn remove_one(&mut self, hash: u64, object: &Object) {
        self.memory.remove_one(hash, object);
        if let Some(disk) = &self.disk {
            disk.remove(hash, object.key());
        }
    }

    /// Completes a load from disk. `object` is `None` if the file was damaged.
    pub(crate) fn loaded(&mut self, hash: u64, ticket: Ticket, object: Option<Object>) {
        let Some(fetching) = self.pending_fetches.get(ticket) else { return };
        let (is_invalidated, began) = (fetching.is_invalidated, fetching.began);
        let has_key =
            |object: &Object| fetching.key.as_ref().is_some_and(|(_, key)| **key == *object.key());
        if let Some(object) = object.filter(|object| !is_invalidated && has_key(object)) {
            let stored = self.memory.objects(hash, object.key());
            // A response that arrived from the origin in the meantime is newer. So is one that shows
            // that the origin's `Vary` has changed.
            let is_newer = |other: &Object| {
                other.vary() == object.vary()
                    || !vary::names(other.vary()).eq(vary::names(object.vary()))
            };
            if !stored.iter().any(is_newer) {
                self.memory.put(hash, object.clone());
                self.history.loaded(hash, began);
                self.statistics.loaded += 1;
                // It does not fit into the memory, and would be loaded in vain for each request.
                if self.memory.objects(hash, object.key()).is_empty()
                    && let Some(disk) = &self.disk
                {
                    disk.remove(hash, object.key());
                }
            }
        }
        self.end(ticket);
    }

    /// Removes everything that is stored for `key`, and prevents pending fetches from being stored.
    pub(crate) fn invalidate(&mut self, hash: u64, key: &[u8]) {
        self.statistics.invalidated += self.memory.remove(hash, key) as u64;
        if let Some(disk) = &self.disk {
            disk.remove(hash, key);
        }
        self.pending_fetches.invalidate(hash, key);
    }

    pub(crate) fn statistics(&self) -> Statistics {
        Statistics {
            entries: self.memory.len() as u64,
            bytes: self.memory.bytes() + self.pending_bytes,
            fetching: self.pending_fetches.len() as u64,
            evicted: self.memory.evicted(),
            ..self.statistics
        }
    }
}
