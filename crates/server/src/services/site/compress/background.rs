//! Compresses files beside the event loops: a queue that the workers of a process share, and threads that
//! end when it is empty.
//!
//! A result waits here until the worker with the next request for it takes it into the file cache. Meanwhile the
//! budget of the cache is charged for it. Queue, threads and results are bounded: where there is no room, a
//! file is sent as it is.

use super::{
    super::files::{Key, Stamp, stamp_of},
    FILE_MAX, compress,
};
use pollux_sys::spawn_detached;
use std::{
    collections::{HashMap, VecDeque},
    io,
    os::{fd::OwnedFd, unix::fs::FileExt},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// Threads of one process that compress at the same time.
const THREADS_MAX: usize = 2;
/// Files that wait for a thread.
const QUEUE_MAX: usize = 64;
/// Files of which the outcome is known here.
const OUTCOMES_MAX: usize = 1024;
/// Results that nobody has taken yet have at most one part in so many of the cache.
pub(crate) const SHARE: u64 = 8;

/// What is compressed.
pub(crate) enum Source {
    /// A range of bytes in memory.
    Memory(Arc<[u8]>, usize),
    /// An open file that is too long to be held in memory.
    File(OwnedFd, u64),
}

/// What is known of a file in one coding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// A thread has it, or it waits for one.
    Pending,
    /// The compressed bytes.
    Ready(Arc<Vec<u8>>),
    /// It does not become shorter, or cannot be read.
    Useless,
}

/// Compresses files for the workers of one process.
#[derive(Debug)]
pub(crate) struct Compressor {
    /// Bytes of results that may wait here.
    bytes_max: u64,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    queue: VecDeque<(Arc<Key>, Source)>,
    threads: usize,
    /// The process that has the threads: a fork has none of its parent's.
    process: u32,
    outcomes: HashMap<Arc<Key>, Outcome>,
    /// Finished ones, the oldest first.
    finished: VecDeque<Arc<Key>>,
    bytes: u64,
}

impl std::fmt::Debug for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Source")
    }
}

impl Compressor {
    /// For a cache of so many bytes.
    pub(crate) fn new(cache_bytes: u64) -> Self {
        Self { bytes_max: cache_bytes / SHARE, state: Mutex::default() }
    }

    /// Bytes of results that nobody has taken yet.
    pub(crate) fn bytes(&self) -> u64 {
        self.state().bytes
    }

    /// What has become of a file. Where nothing is known, `source` gives it to a thread.
    pub(crate) fn outcome(
        self: &Arc<Self>,
        key: &Key,
        source: impl FnOnce() -> Option<Source>,
    ) -> Outcome {
        let mut state = self.state();
        let me = std::process::id();
        if state.process != me {
            *state = State { process: me, ..State::default() };
        }
        if let Some(outcome) = state.outcomes.get(key) {
            return outcome.clone();
        }
        if state.queue.len() >= QUEUE_MAX {
            return Outcome::Pending;
        }
        let Some(source) = source() else { return Outcome::Pending };
        let key = Arc::new(key.clone());
        state.outcomes.insert(key.clone(), Outcome::Pending);
        state.queue.push_back((key.clone(), source));
        if state.threads < THREADS_MAX {
            state.threads += 1;
            let this = self.clone();
            if spawn_detached(c"compress", move || this.work()).is_err() {
                state.threads -= 1;
                if state.threads == 0 {
                    // No thread will come for it: the next request tries once more.
                    state.queue.pop_back();
                    state.outcomes.remove(&key);
                }
            }
        }
        Outcome::Pending
    }

    /// A worker's index has this result now.
    pub(crate) fn forget(&self, key: &Key) {
        let mut state = self.state();
        if let Some((key, outcome)) = state.outcomes.remove_entry(key) {
            state.finished.retain(|other| *other != key);
            state.bytes -= outcome.bytes();
        }
    }

    /// The life of a thread.
    fn work(&self) {
        loop {
            let mut state = self.state();
            let Some((key, source)) = state.queue.pop_front() else {
                state.threads -= 1;
                return;
            };
            drop(state);
            // A panic of an encoder would end the thread, and nobody would count it out.
            let result =
                std::panic::catch_unwind(|| compress(key.coding, &source.read(&key.stamp)?));
            let outcome = match result {
                Ok(Ok(Some(bytes))) => Outcome::Ready(Arc::new(bytes)),
                _ => Outcome::Useless,
            };
            self.finish(key, outcome);
        }
    }

    fn finish(&self, key: Arc<Key>, outcome: Outcome) {
        let mut state = self.state();
        let outcome = if outcome.bytes() > self.bytes_max { Outcome::Useless } else { outcome };
        state.bytes += outcome.bytes();
        state.outcomes.insert(key.clone(), outcome);
        state.finished.push_back(key);
        while state.bytes > self.bytes_max || state.finished.len() > OUTCOMES_MAX {
            let Some(oldest) = state.finished.pop_front() else { break };
            if let Some(outcome) = state.outcomes.remove(&oldest) {
                state.bytes -= outcome.bytes();
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Outcome {
    fn bytes(&self) -> u64 {
        match self {
            Self::Ready(bytes) => bytes.len() as u64,
            Self::Pending | Self::Useless => 0,
        }
    }
}

impl Source {
    fn read(self, stamp: &Stamp) -> io::Result<Vec<u8>> {
        match self {
            Self::Memory(bytes, start) => Ok(bytes[start..].to_vec()),
            Self::File(file, len) => {
                if len > FILE_MAX {
                    return Err(io::ErrorKind::FileTooLarge.into());
                }
                let mut bytes = vec![0; len as usize];
                let before = stamp_of(&file)?;
                let file = std::fs::File::from(file);
                file.read_exact_at(&mut bytes, 0)?;
                if before != *stamp || stamp_of(&file.into())? != *stamp {
                    return Err(io::Error::other("the file changed while it was read"));
                }
                Ok(bytes)
            }
        }
    }
}
