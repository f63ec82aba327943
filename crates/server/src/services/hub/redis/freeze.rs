//! A live upgrade: the new process follows the stream, and the log of the former one stays as it is.
//!
//! Each process numbers the updates of its log itself. The former process names the last entry that its log has; where
//! that entry is in the log of the new one, the two positions are the same place.

use super::{EntryId, Link, RedisStore, follow::RECENT, lock};
use crate::services::hub::{shared::HubShared, store::unavailable};
use pollux_hub::history::Sequence;
use std::{
    sync::{PoisonError, atomic::Ordering},
    thread,
    time::{Duration, Instant},
};

/// How long the new process may need to read what the former one has.
const PATIENCE: Duration = Duration::from_secs(5);
const LOOK: Duration = Duration::from_millis(5);
/// How often a follower that is frozen looks whether its hub has ended.
const PAUSE: Duration = Duration::from_secs(1);

impl RedisStore {
    /// Has the log stay as it is from now on. Returns the last entry that it has.
    pub(in crate::services::hub) fn freeze(&self, shared: &HubShared) -> String {
        let mut is_frozen = lock(&self.link.is_frozen);
        *is_frozen = true;
        // What waits for an entry of the stream would wait in vain.
        self.link.fail_waiting(shared, &unavailable("the hub is being replaced: try again"));
        lock(&self.link.progress).position.to_string()
    }

    /// Follows the stream again, from where it was left.
    pub(in crate::services::hub) fn thaw(&self) {
        *lock(&self.link.is_frozen) = false;
        self.link.thawed.notify_all();
    }

    /// Waits until the log has an entry, and returns the position of the log at that entry. `None` if the entry is not
    /// there within some time, or was there too long ago.
    pub(in crate::services::hub) fn find(&self, entry: &str) -> Option<Sequence> {
        let entry = EntryId::parse(entry.as_bytes())?;
        if entry == EntryId::default() {
            return Some(0);
        }
        let started_at = Instant::now();
        loop {
            let progress = lock(&self.link.progress);
            let found = progress.taken.iter().find(|(taken, _)| *taken == entry);
            if found.is_some() || progress.position > entry || started_at.elapsed() > PATIENCE {
                return found.map(|(_, sequence)| *sequence);
            }
            drop(progress);
            thread::sleep(LOOK);
        }
    }
}

impl Link {
    /// Waits while the log is to stay as it is. False when the hub has ended.
    pub(super) fn wait_while_frozen(&self) -> bool {
        let mut is_frozen = lock(&self.is_frozen);
        while *is_frozen && !self.has_ended() {
            let waited = self.thawed.wait_timeout(is_frozen, PAUSE);
            is_frozen = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        if !*is_frozen {
            self.is_following.store(true, Ordering::SeqCst);
        }
        !*is_frozen
    }

    /// Notes where the log is after an entry.
    pub(super) fn note_taken(&self, entry: EntryId, sequence: Sequence) {
        let taken = &mut lock(&self.progress).taken;
        if taken.len() == RECENT {
            taken.pop_front();
        }
        taken.push_back((entry, sequence));
    }
}
