//! Purging: removes the stored responses that an operator names.
//!
//! Purging a URL is one lookup. Other purges examine all stored responses in batches, so that no
//! worker waits for a lock for longer than one batch. A response that is stored during the purge is
//! newer than the purge and remains.

use crate::{
    batch::{BATCH, yield_lock},
    key,
    pending_fetches::PendingFetch,
    record::Object,
    store::{Store, lock},
    tags::has_tag,
};

/// The responses to purge.
#[derive(Clone, Copy, Debug)]
pub enum Purge<'p> {
    /// This URL with all its variants.
    Url(&'p [u8]),
    /// Every URL that begins with this prefix.
    Prefix(&'p [u8]),
    /// Every response that has this tag in one of
    /// [`Config::tag_fields`](crate::Config::tag_fields).
    Tag(&'p [u8]),
    /// Everything.
    Everything,
}

impl Store {
    /// Removes the responses that `purge` selects from both tiers, and prevents pending fetches of such
    /// responses from being stored. Returns the number of removed responses, counted in the tier that
    /// had more.
    ///
    /// ```
    /// use pollux_cache::{Config, Purge, Store};
    ///
    /// let store = Store::new(Config::default());
    /// assert_eq!(store.purge(Purge::Prefix(b"http://example.org/images/")), 0);
    /// assert_eq!(store.purge(Purge::Everything), 0);
    /// ```
    pub fn purge(&self, purge: Purge<'_>) -> usize {
        let owned;
        let purge = match purge {
            Purge::Url(url) => {
                owned = key::from_url(url).unwrap_or_else(|| url.to_vec());
                Purge::Url(&owned)
            }
            Purge::Prefix(prefix) => {
                owned = key::from_prefix(prefix);
                Purge::Prefix(&owned)
            }
            purge => purge,
        };
        // The disk is purged first, so that no response is loaded from it after memory was purged,
        // and again at the end, for responses that were written in between.
        let on_disk = self.purge_disk(purge);
        let in_memory = self.purge_memory(purge);
        in_memory.max(on_disk + self.purge_disk(purge))
    }

    fn purge_memory(&self, purge: Purge<'_>) -> usize {
        if let Purge::Url(url) = purge {
            let hash = self.inner.hash(url);
            let mut shard = self.inner.lock_shard(hash);
            shard.pending_fetches.invalidate(hash, url);
            let count = shard.memory.remove(hash, url);
            shard.statistics.purged += count as u64;
            return count;
        }
        let tag_fields = &self.inner.config.tag_fields;
        let matches = |object: &Object| match purge {
            Purge::Prefix(prefix) => object.key().starts_with(prefix),
            Purge::Tag(tag) => has_tag(object.fields(), tag_fields, tag),
            Purge::Url(_) | Purge::Everything => true,
        };
        let concerns = |fetch: &PendingFetch| match purge {
            Purge::Prefix(prefix) => {
                fetch.key.as_ref().is_some_and(|(_, key)| key.starts_with(prefix))
            }
            // A response that has not begun may have the tag.
            Purge::Tag(tag) => {
                let builder = fetch.builder.as_ref();
                builder.is_none_or(|builder| has_tag(&builder.fields, tag_fields, tag))
            }
            Purge::Url(_) | Purge::Everything => true,
        };
        let mut sum = 0;
        for mutex in &self.inner.shards {
            let hashes = {
                let mut shard = lock(mutex);
                shard.pending_fetches.invalidate_if(concerns);
                shard.memory.hashes()
            };
            for batch in hashes.chunks(BATCH) {
                let mut shard = lock(mutex);
                let gone = batch.iter().map(|&hash| shard.memory.remove_if(hash, matches));
                let count: usize = gone.sum();
                shard.statistics.purged += count as u64;
                sum += count;
                drop(shard);
                yield_lock();
            }
        }
        sum
    }

    fn purge_disk(&self, purge: Purge<'_>) -> usize {
        let Some(disk) = &self.inner.disk else { return 0 };
        match purge {
            Purge::Url(url) => disk.remove(self.inner.hash(url), url),
            Purge::Prefix(prefix) => disk.purge(|key, _| key.starts_with(prefix)),
            Purge::Tag(tag) => disk.purge(|_, tags| tags.iter().any(|other| **other == *tag)),
            Purge::Everything => disk.purge(|_, _| true),
        }
    }
}
