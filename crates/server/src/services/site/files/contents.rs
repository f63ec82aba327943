//! Contents of files that all threads of a process share, and their common budget.
//!
//! Each worker finds a file in its own index, and a request for a file in that index touches no data of
//! another thread: no lock, and no count that other threads change. A worker uses this module only if its
//! index has no entry, which costs system calls in any case: to find a content that another worker has read
//! already, and to get room. So a content is in memory once, however many workers serve it.
//!
//! The budget is charged for each content once, and for the index of each worker. A content stays here as
//! long as the index of some worker has it; each index decides itself which contents it keeps. If there is no
//! room, a worker evicts the contents that it serves least, because no worker can remove an entry from
//! another worker's index. Idle workers evict nothing. So that they cannot exclude others for ever, a part of
//! the budget is reserved for the others ([`RESERVED`]).

use super::{
    super::compress::background::Compressor, representation::PreparedContent, tree::FileVersion,
};
use pollux_http::accept_encoding::Coding;
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// If there are several workers, one part of the budget in this many is divided among them permanently.
const RESERVED: u64 = 4;

/// The identity of one content, prepared with its head. Two workers with the same key would read the same
/// file and prepare the same head.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    pub(crate) version: FileVersion,
    pub(crate) content_type: String,
    pub(crate) coding: Coding,
    pub(crate) varies: bool,
    /// Whether the server has compressed the content; otherwise the file itself has the coding.
    pub(crate) is_compressed: bool,
    /// Fields for the path of the file: lines with CRLF.
    pub(crate) fields: Vec<u8>,
}

/// The contents that the threads of a process share.
#[derive(Debug)]
pub(crate) struct Contents {
    /// `None` if there is a single worker, whose index is a sufficient limit.
    limits: Option<Limits>,
    /// Compresses files beside the event loops.
    compressor: Arc<Compressor>,
    accounting: Mutex<Accounting>,
}

/// The limits of the budget, in bytes.
#[derive(Debug)]
struct Limits {
    all: u64,
    /// The limit for every worker.
    common: u64,
    /// A worker that has no more than this has room up to `all`.
    of_worker: u64,
}

#[derive(Debug, Default)]
struct Accounting {
    charged: u64,
    shared: HashMap<Arc<Key>, SharedContent>,
}

/// A content that some worker has. The budget is charged for the entry, too ([`Contents::bytes`]), which
/// limits the number of entries.
#[derive(Debug)]
struct SharedContent {
    prepared: PreparedContent,
    /// The number of [`Charge`]s for it.
    holders: usize,
}

/// A charge to the budget, which ends when this value is dropped.
#[derive(Debug)]
pub(crate) struct Charge {
    contents: Arc<Contents>,
    bytes: u64,
    /// The key of the content, if other workers may share it.
    key: Option<Arc<Key>>,
}

impl Contents {
    /// Creates the contents for this many workers, which together may use `capacity` bytes.
    pub(crate) fn new(capacity: u64, workers: usize) -> Arc<Self> {
        let limits = (workers > 1).then(|| {
            let of_worker = capacity / RESERVED / workers as u64;
            Limits { all: capacity, common: Self::of_index(capacity, workers), of_worker }
        });
        let compressor = Arc::new(Compressor::new(capacity));
        Arc::new(Self { limits, compressor, accounting: Mutex::default() })
    }

    /// Creates the contents of a worker that shares them with no other worker and serves one connection. No thread
    /// compresses files for it: hardly any result would be ready before the connection ends.
    pub(crate) fn of_one_connection() -> Arc<Self> {
        // For one worker the capacity limits only what the compressor keeps.
        Self::new(0, 1)
    }

    /// Returns the maximum part of `capacity` that the index of one of `workers` workers can have.
    pub(crate) fn of_index(capacity: u64, workers: usize) -> u64 {
        if workers > 1 { capacity - capacity / RESERVED } else { capacity }
    }

    /// Returns the charge for a content: its bytes, and its entry here, if it has one.
    pub(crate) fn bytes(key: Option<&Key>, prepared: &PreparedContent) -> u64 {
        let entry = |key: &Key| {
            size_of::<Key>()
                + size_of::<SharedContent>()
                + 2 * (key.content_type.len() + key.fields.len())
        };
        key.map_or(0, entry) as u64 + prepared.wire_bytes()
    }

    /// Finds a content that some worker has.
    pub(crate) fn find(self: &Arc<Self>, key: &Key) -> Option<(PreparedContent, Charge)> {
        self.find_in(&mut self.accounting(), key)
    }

    fn find_in(
        self: &Arc<Self>,
        accounting: &mut Accounting,
        key: &Key,
    ) -> Option<(PreparedContent, Charge)> {
        let own_key = accounting.shared.get_key_value(key)?.0.clone();
        let shared = accounting.shared.get_mut(key)?;
        shared.holders += 1;
        let bytes = Self::bytes(Some(key), &shared.prepared);
        Some((
            shared.prepared.clone(),
            Charge { contents: self.clone(), bytes, key: Some(own_key) },
        ))
    }

    /// Stores a content, for a worker whose index uses `taken` bytes; or returns the one that another worker
    /// has stored meanwhile. A content without a key is not shared. Returns `None` if there is no room.
    pub(crate) fn put(
        self: &Arc<Self>,
        key: Option<&Key>,
        prepared: &PreparedContent,
        taken: u64,
    ) -> Option<(PreparedContent, Charge)> {
        let Some(key) = key else {
            return Some((prepared.clone(), self.charge(prepared.wire_bytes(), taken)?));
        };
        let mut accounting = self.accounting();
        if let Some(found) = self.find_in(&mut accounting, key) {
            return Some(found);
        }
        let bytes = Self::bytes(Some(key), prepared);
        if !self.has_room(&accounting, bytes, taken) {
            return None;
        }
        accounting.charged += bytes;
        let key = Arc::new(key.clone());
        accounting
            .shared
            .insert(key.clone(), SharedContent { prepared: prepared.clone(), holders: 1 });
        Some((prepared.clone(), Charge { contents: self.clone(), bytes, key: Some(key) }))
    }

    /// Charges `bytes` to the budget, for a worker whose index uses `taken` bytes. Returns `None` if there is
    /// no room.
    pub(crate) fn charge(self: &Arc<Self>, bytes: u64, taken: u64) -> Option<Charge> {
        let mut accounting = self.accounting();
        self.has_room(&accounting, bytes, taken).then(|| {
            accounting.charged += bytes;
            Charge { contents: self.clone(), bytes, key: None }
        })
    }

    fn has_room(&self, accounting: &Accounting, bytes: u64, taken: u64) -> bool {
        let Some(limits) = &self.limits else { return true };
        let limit = if taken + bytes <= limits.of_worker { limits.all } else { limits.common };
        accounting.charged + self.compressor.bytes() + bytes <= limit
    }

    /// Returns the compressor, which works beside the event loops.
    pub(crate) fn compressor(&self) -> &Arc<Compressor> {
        &self.compressor
    }

    fn accounting(&self) -> MutexGuard<'_, Accounting> {
        self.accounting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of bytes that are charged now.
    #[cfg(test)]
    pub(crate) fn charged(&self) -> u64 {
        self.accounting().charged
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        let mut accounting = self.contents.accounting();
        let mut gone = None;
        if let Some(key) = &self.key {
            let Some(shared) = accounting.shared.get_mut(key) else { return };
            shared.holders -= 1;
            if shared.holders > 0 {
                return;
            }
            gone = accounting.shared.remove(key);
        }
        accounting.charged -= self.bytes;
        // The memory is freed after the lock is released, so that no thread waits for that.
        drop(accounting);
        drop(gone);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::services::site::{compress::background::Outcome, files::Representation};
    use std::thread;

    fn prepared(bytes: usize) -> PreparedContent {
        Representation::in_memory(&vec![b'x'; bytes]).into_prepared()
    }

    fn key(inode: u64) -> Key {
        let content_type = "text/plain".into();
        Key {
            version: FileVersion::of_test(inode),
            content_type,
            coding: Coding::Identity,
            varies: false,
            is_compressed: false,
            fields: Vec::new(),
        }
    }

    /// Regression: a process of one connection compressed long files, at the cost of up to seconds of CPU time, and
    /// almost always ended before it could send the result.
    #[test]
    fn nothing_is_compressed_beside_one_connection() {
        let contents = Contents::of_one_connection();
        let outcome = contents.compressor().outcome(&key(1), || panic!("the file is not opened"));
        assert_eq!(outcome, Outcome::Useless);
    }

    #[test]
    fn threads_share_one_copy_which_is_charged_once() {
        let contents = Contents::new(1 << 20, 2);
        let put =
            |contents: &Arc<Contents>| contents.put(Some(&key(1)), &prepared(100_000), 0).unwrap();
        let (first, charge) = put(&contents);
        let charged = contents.charged();
        assert!((100_000..102_000).contains(&charged), "{charged}");
        let of_other = contents.clone();
        let (second, other_charge) = thread::spawn(move || put(&of_other)).join().unwrap();
        let (third, third_charge) = contents.find(&key(1)).unwrap();
        assert!(first.shares_bytes_with(&second) && first.shares_bytes_with(&third));
        assert_eq!(contents.charged(), charged);
        // If a holder drops its charge, the others keep the content.
        drop((charge, third_charge));
        assert_eq!(contents.charged(), charged);
        assert!(contents.find(&key(1)).is_some() && contents.find(&key(2)).is_none());
        drop(other_charge);
        assert_eq!(contents.charged(), 0);
        assert!(contents.find(&key(1)).is_none());
    }

    #[test]
    fn all_units_together_take_no_more_than_there_is() {
        let capacity = 1 << 20;
        let contents = Contents::new(capacity, 4);
        let mut charges = Vec::new();
        while let Some(charge) = contents.charge(10_000, 1 << 19) {
            charges.push(charge);
        }
        let common = Contents::of_index(capacity, 4);
        assert!((common - 10_000..=common).contains(&contents.charged()));
        // A worker that has little still has room, but not without limit.
        let mut small = Vec::new();
        while let Some(charge) = contents.charge(10_000, 20_000) {
            small.push(charge);
        }
        assert!((capacity - 10_000..=capacity).contains(&contents.charged()));
        charges.truncate(10);
        assert!(contents.charge(10_000, 1 << 19).is_some(), "there is room again");
    }

    #[test]
    fn a_content_that_is_not_shared_is_charged_each_time() {
        let contents = Contents::new(1 << 20, 2);
        let one = contents.put(None, &prepared(1_000), 0).unwrap();
        let charged = contents.charged();
        let two = contents.put(None, &prepared(1_000), 0).unwrap();
        assert!(!one.0.shares_bytes_with(&two.0));
        assert_eq!(contents.charged(), 2 * charged);
        drop((one, two));
        assert_eq!(contents.charged(), 0);
    }
}
