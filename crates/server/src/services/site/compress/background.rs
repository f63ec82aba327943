//! Compresses files beside the event loops: a queue that the workers of a process share, and threads that
//! end when it is empty.
//!
//! A result waits here until the worker with the next request for it takes it into the file cache. Meanwhile
//! the budget of the cache is charged for it. The queue, the threads and the results are bounded: if there is
//! no room, a file is sent uncompressed.

use super::{
    super::files::{FileVersion, Key, version_of},
    FILE_MAX, compress,
};
use pollux_sys::{FileTableId, file_table_of_this_thread, spawn_detached};
use std::{
    collections::{HashMap, VecDeque},
    io,
    os::{fd::OwnedFd, unix::fs::FileExt},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
};

/// The maximum number of threads of one process that compress at the same time. There are as many threads, and one more
/// for each further file table with a file that waits; these wait for their turn.
const THREADS_MAX: usize = 2;
/// The maximum number of files that wait for a thread.
const QUEUE_MAX: usize = 64;
/// The maximum number of files whose outcome is stored here.
const OUTCOMES_MAX: usize = 1024;
/// Results that no worker has taken yet use at most one part in this many of the cache.
pub(crate) const SHARE: u64 = 8;

/// The input of a compression.
pub(crate) enum Source {
    /// Bytes in memory, from this offset to the end.
    Memory(Arc<[u8]>, usize),
    /// An open file that is too long to be held in memory.
    File(OwnedFd, u64),
}

/// The outcome of compressing a file in one coding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// A thread compresses the file, or the file waits for a thread.
    Pending,
    /// The compressed bytes.
    Ready(Arc<Vec<u8>>),
    /// The file does not become shorter, or cannot be read.
    Useless,
}

/// Compresses files for the workers of one process.
#[derive(Debug)]
pub(crate) struct Compressor {
    /// The maximum number of bytes of results that wait here.
    bytes_max: u64,
    state: Mutex<CompressorState>,
    /// Notifies threads that another one has finished a file.
    turn: Condvar,
}

/// A file that waits for a thread.
#[derive(Debug)]
struct Job {
    key: Arc<Key>,
    source: Source,
    /// The file table of the worker. Workers may have tables of their own, and in another table the descriptor of
    /// `source` is another file, or a client's connection.
    table: FileTableId,
}

#[derive(Debug, Default)]
struct CompressorState {
    /// For each table with a file here there is a thread.
    queue: VecDeque<Job>,
    /// The table of each thread.
    threads: Vec<FileTableId>,
    /// The number of threads that compress now.
    busy: usize,
    /// The process that has the threads: a forked child has none of its parent's threads.
    process: u32,
    outcomes: HashMap<Arc<Key>, Outcome>,
    /// The keys of finished files, the oldest first.
    finished: VecDeque<Arc<Key>>,
    bytes: u64,
}

impl std::fmt::Debug for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Source")
    }
}

impl Compressor {
    /// Creates a compressor for a cache of this many bytes. With 0 it compresses nothing.
    pub(crate) fn new(cache_bytes: u64) -> Self {
        Self { bytes_max: cache_bytes / SHARE, state: Mutex::default(), turn: Condvar::new() }
    }

    /// Returns the number of bytes of results that no worker has taken yet.
    pub(crate) fn bytes(&self) -> u64 {
        self.state().bytes
    }

    /// Returns the outcome of a file. If none is known, queues the file for a thread, with the input that
    /// `source` returns.
    pub(crate) fn outcome(
        self: &Arc<Self>,
        key: &Key,
        source: impl FnOnce() -> Option<Source>,
    ) -> Outcome {
        // No result would be kept, so no thread spends time on one.
        if self.bytes_max == 0 {
            return Outcome::Useless;
        }
        let mut state = self.state();
        let me = std::process::id();
        if state.process != me {
            *state = CompressorState { process: me, ..CompressorState::default() };
        }
        if let Some(outcome) = state.outcomes.get(key) {
            return outcome.clone();
        }
        if state.queue.len() >= QUEUE_MAX {
            return Outcome::Pending;
        }
        let Some(source) = source() else { return Outcome::Pending };
        let (key, table) = (Arc::new(key.clone()), file_table_of_this_thread());
        state.outcomes.insert(key.clone(), Outcome::Pending);
        state.queue.push_back(Job { key: key.clone(), source, table });
        if state.threads.len() < THREADS_MAX || !state.threads.contains(&table) {
            state.threads.push(table);
            let this = self.clone();
            // The thread has the table of this one.
            if spawn_detached(c"compress", move || this.work(table)).is_err() {
                state.end_thread(table);
                if !state.threads.contains(&table) {
                    // No thread will take the file: the next request tries again.
                    state.queue.pop_back();
                    state.outcomes.remove(&key);
                }
            }
        }
        Outcome::Pending
    }

    /// Removes a result that a worker's index has now.
    pub(crate) fn forget(&self, key: &Key) {
        let mut state = self.state();
        if let Some((key, outcome)) = state.outcomes.remove_entry(key) {
            state.finished.retain(|other| *other != key);
            state.bytes -= outcome.bytes();
        }
    }

    /// Runs a thread with this table.
    fn work(&self, table: FileTableId) {
        loop {
            let mut state = self.state();
            while state.busy >= THREADS_MAX {
                state = self.turn.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            let Some(Job { key, source, .. }) = state.next_job(table) else {
                state.end_thread(table);
                return;
            };
            state.busy += 1;
            drop(state);
            // A panic of an encoder would end the thread without decreasing the number of threads.
            let result =
                std::panic::catch_unwind(|| compress(key.coding, &source.read(&key.version)?));
            let outcome = match result {
                Ok(Ok(Some(bytes))) => Outcome::Ready(Arc::new(bytes)),
                _ => Outcome::Useless,
            };
            self.finish(key, outcome);
        }
    }

    fn finish(&self, key: Arc<Key>, outcome: Outcome) {
        let mut state = self.state();
        state.busy -= 1;
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
        drop(state);
        // All of them: one may find that no file is left for it, and end.
        self.turn.notify_all();
    }

    fn state(&self) -> MutexGuard<'_, CompressorState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl CompressorState {
    /// Takes the next file of this table.
    fn next_job(&mut self, table: FileTableId) -> Option<Job> {
        let at = self.queue.iter().position(|job| job.table == table)?;
        self.queue.remove(at)
    }

    /// Notes that a thread with this table ends.
    fn end_thread(&mut self, table: FileTableId) {
        if let Some(at) = self.threads.iter().position(|other| *other == table) {
            self.threads.swap_remove(at);
        }
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
    fn read(self, version: &FileVersion) -> io::Result<Vec<u8>> {
        match self {
            Self::Memory(bytes, start) => Ok(bytes[start..].to_vec()),
            Self::File(file, len) => {
                if len > FILE_MAX {
                    return Err(io::ErrorKind::FileTooLarge.into());
                }
                let mut bytes = vec![0; len as usize];
                let before = version_of(&file)?;
                let file = std::fs::File::from(file);
                file.read_exact_at(&mut bytes, 0)?;
                if before != *version || version_of(&file.into())? != *version {
                    return Err(io::Error::other("the file changed while it was read"));
                }
                Ok(bytes)
            }
        }
    }
}
