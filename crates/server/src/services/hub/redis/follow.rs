//! The thread that follows the stream and copies it to the log.
//!
//! It resumes after the last entry that the log has, so that an interruption of the connection neither loses
//! nor repeats an update. If Redis returns without its newest entries, or with other entries under their
//! identifiers, the thread notices that, and goes back to the newest entry that both have.

use super::{
    BACKOFF, RedisShared, Role, Start,
    connection::{REPLY_TIMEOUT, RedisConnection, RedisError},
    doubled,
    entry::{EntryId, StreamEntry, entries, last_entry, read_entries},
    lock,
    publish::MISSING,
    resp::{Reply, ReplyError},
};
use crate::services::hub::{
    record::Record,
    shared::{HubShared, unix_time},
};
use pollux_hub::{history::Sequence, reject::Reject, update::Update};
use std::{
    collections::{HashMap, VecDeque},
    hash::{DefaultHasher, Hash, Hasher},
    sync::{Arc, Weak, atomic::Ordering},
    time::{Duration, Instant},
};

/// The time that Redis waits for an entry before it replies that there is none.
const BLOCK: Duration = Duration::from_secs(5);
/// The maximum number of entries in one reply. It is reduced to one if the entries are so large that a reply
/// would exceed its limit.
const ENTRIES: usize = 64;
/// The number of the newest entries whose identifiers are remembered, to compare them with the entries of
/// Redis after an interruption.
pub(super) const RECENT: usize = 1024;
/// The first version of Redis that completes the number of an entry (`EPOCH-*`).
const VERSION: u32 = 7;

/// The thread's own state.
pub(super) struct Follower {
    redis: Arc<RedisShared>,
    shared: Weak<HubShared>,
    /// The last entry that the log has.
    position: EntryId,
    /// The newest entries that the log has, with their updates' identifiers.
    recent: VecDeque<(EntryId, Arc<str>)>,
    /// Updates that are not appended again, because the log has them already, when a stream is read again up
    /// to an entry: how often the log has each of them, by its `digest`.
    repeated: (EntryId, HashMap<u64, u32>),
    count: usize,
    is_loaded: bool,
    /// The last time at which the log had everything that the stream had, once it is loaded.
    current_at: Option<Instant>,
    history_age: Duration,
}

impl Follower {
    pub(super) fn new(
        redis: Arc<RedisShared>,
        shared: Weak<HubShared>,
        history_age: Duration,
    ) -> Self {
        Self {
            redis,
            shared,
            position: EntryId::default(),
            recent: VecDeque::new(),
            repeated: (EntryId::default(), HashMap::new()),
            count: ENTRIES,
            is_loaded: false,
            current_at: None,
            history_age,
        }
    }

    /// Runs until the hub has ended.
    pub(super) fn run(mut self) {
        let mut pause = BACKOFF.0;
        let mut is_missing = false;
        while !self.redis.has_ended() {
            let position = self.position;
            let error = match self.follow(&mut is_missing) {
                Ok(()) => return,
                Err(error) => error,
            };
            let Some(shared) = self.shared.upgrade() else { return };
            self.redis.fail_waiting(&shared, &Reject::unavailable(MISSING));
            drop(shared);
            if self.redis.has_ended() {
                return;
            }
            match &error {
                RedisError::Reply(ReplyError::TooLarge(_)) if self.count > 1 => {
                    self.count = 1;
                    continue;
                }
                error if error.is_permanent() => {
                    self.redis.note_start(Err(Start::Refused(error.to_string())));
                }
                _ => self.redis.note_start(Err(Start::Missing)),
            }
            if !is_missing {
                tracing::warn!("--hub-store {}: updates do not arrive: {error}", self.redis.url);
            }
            is_missing = true;
            pause = if self.position == position { doubled(pause) } else { BACKOFF.0 };
            self.redis.pause(pause);
        }
    }

    /// Follows the stream over one connection. Returns when the hub has ended.
    fn follow(&mut self, is_missing: &mut bool) -> Result<(), RedisError> {
        let mut connection = self.redis.connect(Role::Follow)?;
        if !self.is_loaded {
            check_version(&mut connection)?;
        }
        let mut end = self.find_position(&mut connection)?;
        if !self.redis.wait_while_frozen() {
            return Ok(());
        }
        if std::mem::take(is_missing) {
            self.redis.reconnections.fetch_add(1, Ordering::Relaxed);
            tracing::info!("--hub-store {}: updates arrive again", self.redis.url);
        }
        loop {
            if !self.is_loaded && self.position >= end {
                self.is_loaded = true;
                self.current_at = Some(Instant::now());
                self.redis.note_start(Ok(()));
            }
            let asked_at = Instant::now();
            let entries = self.read(&mut connection)?;
            let Some(shared) = self.shared.upgrade() else { return Ok(()) };
            let redis = self.redis.clone();
            let is_frozen = lock(&redis.is_frozen);
            if *is_frozen {
                drop((is_frozen, shared));
                if !self.redis.wait_while_frozen() {
                    return Ok(());
                }
                // These entries are read again: the position has not changed.
                continue;
            }
            if entries.is_empty() {
                drop(is_frozen);
                drop(shared);
                if self.is_loaded {
                    self.current_at = Some(asked_at);
                }
                // No entry has arrived, or an older stream has replaced this one.
                end = self.find_position(&mut connection)?;
                continue;
            }
            let is_all = entries.len() < self.count;
            self.count = ENTRIES;
            for entry in entries {
                let id = entry.0;
                self.take(&shared, entry, end);
                self.redis.note_taken(id, shared.head());
            }
            if self.is_loaded && is_all {
                self.current_at = Some(asked_at);
            }
            self.redis.advance(&shared, self.position);
            drop(is_frozen);
            shared.notify_workers();
        }
    }

    /// Reads the entries after the position, or waits for one.
    fn read(&self, connection: &mut RedisConnection) -> Result<Vec<StreamEntry>, RedisError> {
        let count = self.count.to_string();
        let block = BLOCK.as_millis().to_string();
        let position = self.position.to_string();
        let (key, count) = (self.redis.key.as_bytes(), count.as_bytes());
        let (block, position) = (block.as_bytes(), position.as_bytes());
        let words: [&[u8]; 8] =
            [b"XREAD", b"COUNT", count, b"BLOCK", block, b"STREAMS", key, position];
        read_entries(connection.command_within(&words, BLOCK + REPLY_TIMEOUT)?)
    }

    /// Appends an entry to the log. `end` is the last entry that the stream had when it began to be read.
    fn take(&mut self, shared: &HubShared, (entry, record): StreamEntry, end: EntryId) {
        if entry <= self.position {
            return;
        }
        let is_gap = self.is_loaded && self.position.leaves_out(entry);
        self.position = entry;
        let record = match record {
            Ok(record) => record,
            Err(error) => {
                tracing::warn!("--hub-store {}: entry {entry}: {error:#}", self.redis.url);
                return;
            }
        };
        if self.recent.len() == RECENT {
            self.recent.pop_front();
        }
        self.recent.push_back((entry, record.id.as_str().into()));
        let horizon = unix_time().saturating_sub(self.history_age.as_secs());
        // The newest update stays in the history, whatever its age.
        if !self.is_loaded && record.at < horizon && entry < end {
            return;
        }
        if entry <= self.repeated.0 && self.is_repeated(&record) {
            return;
        }
        if is_gap {
            tracing::warn!(
                "--hub-store {}: entries before {entry} left the stream, or were removed, before they were read",
                self.redis.url
            );
            shared.skip_one();
        }
        // An update cannot be older than the time since which the log may lack it. With this limit, a hub whose clock
        // is wrong does not make its updates expire at other hubs before their subscribers have them.
        let most = self.current_at.map_or(Duration::MAX, |at| at.elapsed());
        shared.append_aged(&record.id, &record.publication, record.age().min(most));
    }

    /// Returns whether the log has an update of a stream that is read again. Each update of the log counts once, because a
    /// publisher may use an identifier again.
    fn is_repeated(&mut self, record: &Record) -> bool {
        let update = Update::new(&record.id, &record.publication);
        match self.repeated.1.get_mut(&digest(&update)) {
            Some(count @ 1..) => {
                *count -= 1;
                true
            }
            _ => false,
        }
    }

    /// Determines the position at which to continue. Returns the last entry of the stream.
    fn find_position(&mut self, connection: &mut RedisConnection) -> Result<EntryId, RedisError> {
        let end = last_entry(self.range(connection, "+", "-", 1)?)?;
        let end = end.map_or_else(EntryId::default, |(id, _)| id);
        let start = EntryId::default();
        if self.position == start {
            // From a long stream, only the part that fits into the log is read.
            let number = end.number.saturating_sub(self.redis.length as u64);
            if !self.is_loaded && number > 0 {
                self.position = EntryId { epoch: end.epoch, number };
            }
        } else if end == start {
            // The stream was removed. If it is created again, its entries come after the position.
        } else if end < self.position || !self.has_position(connection)? {
            self.go_back(connection, end)?;
        }
        Ok(end)
    }

    /// Returns whether the entry at the position is the one that the log has, or has left the stream.
    fn has_position(&self, connection: &mut RedisConnection) -> Result<bool, RedisError> {
        let Some((entry, id)) = self.recent.back() else { return Ok(true) };
        let name = entry.to_string();
        Ok(match last_entry(self.range(connection, &name, &name, 1)?)? {
            Some((_, Ok(record))) => record.id == **id,
            Some((_, Err(_))) => false,
            None => true,
        })
    }

    /// Goes back to the newest entry that the stream and the log both have.
    fn go_back(
        &mut self,
        connection: &mut RedisConnection,
        end: EntryId,
    ) -> Result<(), RedisError> {
        let Some(shared) = self.shared.upgrade() else { return Ok(()) };
        tracing::error!(
            "--hub-store {}: Redis has lost updates that it had accepted; see appendfsync",
            self.redis.url
        );
        // The search goes back from the newest entry, in replies that are not larger than those of XREAD.
        let mut from = Some(self.position);
        let mut common = None;
        'search: while let Some(newest) = from {
            let older = entries(self.range(connection, &newest.to_string(), "-", self.count)?)?;
            let Some(&(oldest, _)) = older.last() else { break };
            for (entry, record) in older {
                let Ok(record) = record else { continue };
                let is_it =
                    |(other, id): &(EntryId, Arc<str>)| *other == entry && **id == *record.id;
                if self.recent.iter().any(is_it) {
                    common = Some(entry);
                    break 'search;
                }
            }
            let is_known = |(first, _): &(EntryId, Arc<str>)| *first < oldest;
            from = oldest.before().filter(|_| self.recent.front().is_some_and(is_known));
        }
        let position = common.unwrap_or_default();
        self.recent.retain(|(entry, _)| *entry <= position);
        let mut progress = lock(&self.redis.progress);
        progress.taken.retain(|(entry, _)| *entry <= position);
        let common = progress.taken.back().map_or(0, |(_, sequence)| *sequence);
        drop(progress);
        // Updates that both have under different identifiers are not appended a second time.
        self.repeated = (end, digests_after(&shared, common));
        self.position = position;
        // The tickets wait for entries of a stream that no longer exists, so all of them are answered.
        self.redis.advance(&shared, EntryId::MAX);
        self.redis.advance(&shared, position);
        Ok(())
    }

    fn range(
        &self,
        connection: &mut RedisConnection,
        from: &str,
        to: &str,
        count: usize,
    ) -> Result<Reply, RedisError> {
        let key = self.redis.key.as_bytes();
        let count = count.to_string();
        connection.command(&[
            b"XREVRANGE",
            key,
            from.as_bytes(),
            to.as_bytes(),
            b"COUNT",
            count.as_bytes(),
        ])
    }
}

/// Counts the updates after a position of the log by their digests. This happens only after Redis has lost updates.
/// Meanwhile nothing is appended.
fn digests_after(shared: &HubShared, position: Sequence) -> HashMap<u64, u32> {
    let mut digests = HashMap::new();
    for (_, update, _) in lock(&shared.log).entries_after(position) {
        *digests.entry(digest(update)).or_default() += 1;
    }
    digests
}

/// Returns a hash of an update's identifier, topics and content. In practice other updates have other hashes.
fn digest(update: &Update) -> u64 {
    let mut hasher = DefaultHasher::new();
    (&update.topics, update.private, update.frame.text()).hash(&mut hasher);
    hasher.finish()
}

/// Checks that Redis is new enough. Without the permission for INFO the check is skipped.
fn check_version(connection: &mut RedisConnection) -> Result<(), RedisError> {
    let Ok(Reply::Text(info)) = connection.command(&[b"INFO", b"server"]) else { return Ok(()) };
    let info = String::from_utf8_lossy(&info);
    let version = info.lines().find_map(|line| line.strip_prefix("redis_version:"));
    let major = version.and_then(|version| version.split('.').next()?.parse::<u32>().ok());
    match (version, major) {
        (Some(version), Some(major)) if major < VERSION => Err(RedisError::Refused(format!(
            "this is Redis {version}; a hub needs Redis {VERSION} or Valkey"
        ))),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        config::{HubConfig, HubStoreConfig},
        services::hub::{record::Record, redis::RedisHubStore, shared},
    };
    use pollux_hub::update::Publication;

    /// Returns a hub, and a follower of its Redis, which is not connected.
    fn follower() -> (Arc<HubShared>, Follower) {
        let config = Arc::new(HubConfig::new("/hub"));
        let owner = HubShared::open(&config, "http://h", 1).unwrap();
        let HubStoreConfig::Redis(url) = "redis://127.0.0.1:1".parse().unwrap() else {
            panic!("another store")
        };
        let (store, _) = RedisHubStore::new(&url, &config);
        let age = config.limits.history_age;
        let follower = Follower::new(store.redis.clone(), Arc::downgrade(&owner), age);
        (owner, follower)
    }

    #[test]
    fn an_update_has_its_age_but_not_more_than_the_log_can_have_missed() {
        let (owner, mut follower) = follower();
        let take = |follower: &mut Follower, number: u64| {
            let publication = Publication { topics: vec!["a".into()], ..Publication::default() };
            let record = Record { id: number.to_string(), at: unix_time() - 60, publication };
            let entry = EntryId { epoch: 1, number };
            follower.take(&owner, (entry, Ok(record)), EntryId::default());
        };
        take(&mut follower, 1);
        follower.is_loaded = true;
        follower.current_at = Some(Instant::now());
        take(&mut follower, 2);
        let log = shared::lock(&owner.log);
        let ages: Vec<_> = log.entries().map(|(.., at)| (owner.now() - at).as_secs()).collect();
        assert!(matches!(ages[..], [old, new] if old >= 60 && new < 50), "{ages:?}");
    }

    /// Regression: a hub whose updates were all older than the history after a restart did not know the newest one
    /// any more, which its subscribers name when they connect again.
    #[test]
    fn the_newest_update_is_loaded_whatever_its_age() {
        let (owner, mut follower) = follower();
        let end = EntryId { epoch: 1, number: 3 };
        for number in 1..=3 {
            let publication = Publication { topics: vec!["a".into()], ..Publication::default() };
            let at = unix_time() - follower.history_age.as_secs() - 60;
            let record = Record { id: number.to_string(), at, publication };
            follower.take(&owner, (EntryId { epoch: 1, number }, Ok(record)), end);
        }
        let log = shared::lock(&owner.log);
        let ids: Vec<_> = log.entries().map(|(_, update, _)| &*update.id).collect();
        assert_eq!(ids, ["3"]);
    }
}
