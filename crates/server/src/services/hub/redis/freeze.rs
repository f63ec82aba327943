//! A live upgrade: the new process follows the stream, and the log of the former process stays unchanged.
//!
//! Each process numbers the updates of its log independently. The former process sends the identifier of the
//! last entry in its log. The new process looks up the position of that entry in its own log: the two
//! positions correspond to each other.

use super::{EntryId, RedisHubStore, RedisShared, follow::RECENT, lock};
use crate::services::hub::shared::HubShared;
use pollux_hub::{history::Sequence, reject::Reject};
use std::{
    sync::{PoisonError, atomic::Ordering},
    thread,
    time::{Duration, Instant},
};

/// The maximum time for the new process to read the entries that the former process has.
const PATIENCE: Duration = Duration::from_secs(5);
const LOOK: Duration = Duration::from_millis(5);
/// The time between two checks of a frozen follower whether its hub has ended.
const PAUSE: Duration = Duration::from_secs(1);

impl RedisHubStore {
    /// Stops appending to the log. Returns the last entry that the log has.
    pub(in crate::services::hub) fn freeze(&self, shared: &HubShared) -> String {
        let mut is_frozen = lock(&self.redis.is_frozen);
        *is_frozen = true;
        // Tickets that wait for an entry of the stream would wait in vain.
        self.redis
            .fail_waiting(shared, &Reject::unavailable("the hub is being replaced: try again"));
        lock(&self.redis.progress).position.to_string()
    }

    /// Follows the stream again, from the last position.
    pub(in crate::services::hub) fn thaw(&self) {
        *lock(&self.redis.is_frozen) = false;
        self.redis.thawed.notify_all();
    }

    /// Waits until the log has an entry, and returns the position of the log at that entry. Returns `None` if
    /// the entry does not arrive within `PATIENCE`, or is too old to be remembered.
    pub(in crate::services::hub) fn find(&self, entry: &str) -> Option<Sequence> {
        let entry = EntryId::parse(entry.as_bytes())?;
        if entry == EntryId::default() {
            return Some(0);
        }
        let started_at = Instant::now();
        loop {
            let progress = lock(&self.redis.progress);
            let found = progress.taken.iter().find(|(taken, _)| *taken == entry);
            if found.is_some() || progress.position > entry || started_at.elapsed() > PATIENCE {
                return found.map(|(_, sequence)| *sequence);
            }
            drop(progress);
            thread::sleep(LOOK);
        }
    }
}

impl RedisShared {
    /// Waits while the log is frozen. Returns false if the hub has ended.
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

    /// Notes the position of the log after an entry.
    pub(super) fn note_taken(&self, entry: EntryId, sequence: Sequence) {
        let taken = &mut lock(&self.progress).taken;
        if taken.len() == RECENT {
            taken.pop_front();
        }
        taken.push_back((entry, sequence));
    }
}
