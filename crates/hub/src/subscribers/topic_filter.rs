//! Which topics the subscribers of a worker read, for other threads.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    sync::atomic::{AtomicU8, AtomicUsize, Ordering},
};

/// Buckets for each worker of the hub, and their maximum. Many workers share many subscribers, so that each has few of the
/// topics.
const BUCKETS_PER_WORKER: usize = 1024;
const BUCKETS_MAX: usize = 65_536;
/// A bucket that has ever counted so many topics counts no longer: it is never empty again.
const STUCK: u8 = u8::MAX;

/// The topics that the subscribers of a worker read: a counting Bloom filter with one hash function. One thread writes it;
/// others determine from it whether an update may concern the worker.
#[derive(Debug)]
pub struct TopicFilter {
    /// How many topics each bucket has. A topic that is in two indexes counts twice.
    buckets: Box<[AtomicU8]>,
    /// How many sets read every topic, or what a pattern selects.
    others: AtomicUsize,
}

/// The hash of a topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TopicKey(u64);

impl TopicKey {
    /// Returns the key of a topic. If two topics have the same key, an update of one wakes the workers that read the
    /// other, and they find nothing to do. So the hash need not be secret.
    #[must_use]
    pub fn of(topic: &str) -> Self {
        let mut hasher = DefaultHasher::new();
        topic.hash(&mut hasher);
        Self(hasher.finish())
    }
}

impl TopicFilter {
    /// Creates the empty filter of one of `workers`.
    #[must_use]
    pub fn new(workers: usize) -> Self {
        let buckets = workers.saturating_mul(BUCKETS_PER_WORKER).clamp(1, BUCKETS_MAX);
        Self {
            buckets: (0..buckets.next_power_of_two()).map(|_| AtomicU8::new(0)).collect(),
            others: AtomicUsize::new(0),
        }
    }

    /// Removes all topics.
    pub fn clear(&self) {
        self.buckets.iter().for_each(|bucket| bucket.store(0, Ordering::Relaxed));
        self.others.store(0, Ordering::Relaxed);
    }

    /// Returns whether a subscriber may read updates of a topic. If the result is false, none does.
    #[must_use]
    pub fn may_read(&self, key: TopicKey) -> bool {
        self.others.load(Ordering::Relaxed) > 0 || self.bucket(key).load(Ordering::Relaxed) > 0
    }

    /// Adds a topic: once for each index of sets that has it, however many subscribers read it.
    pub(super) fn add(&self, topic: &str) {
        let bucket = self.bucket(TopicKey::of(topic));
        let topics = bucket.load(Ordering::Relaxed);
        bucket.store(topics.saturating_add(1), Ordering::Relaxed);
    }

    /// Removes a topic that was added.
    pub(super) fn remove(&self, topic: &str) {
        let bucket = self.bucket(TopicKey::of(topic));
        let topics = bucket.load(Ordering::Relaxed);
        if topics != STUCK {
            bucket.store(topics - 1, Ordering::Relaxed);
        }
    }

    /// Notes how many sets read every topic, or what a pattern selects.
    pub(super) fn set_others(&self, others: usize) {
        self.others.store(others, Ordering::Relaxed);
    }

    #[expect(clippy::cast_possible_truncation, reason = "the lower bits select the bucket")]
    fn bucket(&self, key: TopicKey) -> &AtomicU8 {
        &self.buckets[key.0 as usize & (self.buckets.len() - 1)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_topic_is_read_until_it_is_removed() {
        let filter = TopicFilter::new(2);
        let (a, b) = (TopicKey::of("a"), TopicKey::of("b"));
        filter.add("a");
        assert!(filter.may_read(a) && !filter.may_read(b));
        filter.remove("a");
        assert!(!filter.may_read(a));
        filter.set_others(1);
        assert!(filter.may_read(b));
        filter.clear();
        assert!(!filter.may_read(b));
    }

    #[test]
    fn a_bucket_that_is_full_never_hides_a_topic() {
        let filter = TopicFilter::new(1);
        for _ in 0..300 {
            filter.add("a");
        }
        for _ in 0..299 {
            filter.remove("a");
        }
        assert!(filter.may_read(TopicKey::of("a")));
    }
}
