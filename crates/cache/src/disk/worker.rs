//! The disk thread, and the interface through which other threads use it.

use super::{
    directory::Directory,
    file::{FileHeader, HEADER_LEN, header},
    index::{DiskEntry, Index},
};
use crate::{
    batch::{BATCH, yield_lock},
    config::{FIELDS_MAX, KEY_MAX},
    pending_fetches::Ticket,
    record::Object,
    tags::tags_of,
};
use pollux_http::request::Request;
use std::{
    io,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering},
        mpsc::{Receiver, Sender, channel},
    },
    thread,
    time::{Duration, Instant},
};

/// The maximum content that may wait to be written, in bytes. Further responses are not written.
const QUEUE_BYTES_MAX: u64 = 16 << 20;
/// The maximum memory of the file index in bytes: enough for about 600,000 files with short URLs.
const INDEX_BYTES_MAX: u64 = 256 << 20;
/// The maximum number of queued loads. Further requests are forwarded to the origin.
const LOADS_MAX: usize = 1024;
/// The number of groups of keys. A removal cancels all queued writes of its group. With this many groups,
/// which need half a megabyte, those of another URL are rarely among them.
const GROUPS: usize = 1 << 16;

/// The time for which the disk thread waits for a directory that another process uses. A server that
/// is succeeded releases it at the end of the upgrade, which may take a minute.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(120);
/// The pause between two attempts to open such a directory.
const RELEASE_PAUSE: Duration = Duration::from_millis(10);

/// The state of a tier: it waits for its directory, and its index is empty or incomplete. Objects
/// are queued for writing.
const WAITING: u8 = 0;
/// The state of a tier that uses its directory.
const OPEN: u8 = 1;
/// The state of a tier that has released its directory, or never got it. Files are only removed.
const RELEASED: u8 = 2;

/// A job of the disk thread. Jobs run in order, so that a file is written before it is removed.
#[derive(Debug)]
pub(crate) enum Job {
    /// Write an object, unless something in its group was removed since it was queued.
    Write {
        hash: u64,
        object: Object,
        removals: u32,
    },
    /// Read a file and store its object in memory.
    Load {
        hash: u64,
        number: u64,
        ticket: Ticket,
    },
    /// Read a file for an inspection.
    Read {
        number: u64,
        reader: Sender<Option<Object>>,
    },
    /// Delete files that are no longer in the index.
    Remove(Vec<u64>),
    /// Look files up from now on: the index is complete, and the objects that were queued in the
    /// meantime have replaced older files.
    Open,
    /// Let another store use the directory.
    Release,
    Stop,
    /// Report when all earlier jobs are done.
    Flush(Sender<()>),
}

/// The counters of a group of keys.
#[derive(Debug, Default)]
struct Group {
    /// The number of removals of single URLs.
    removals: AtomicU32,
    /// The number of queued writes, whose files are not in the index yet.
    writes: AtomicU32,
}

/// The disk tier as the store uses it.
#[derive(Debug)]
pub(crate) struct DiskTier {
    index: Mutex<Index>,
    jobs: Sender<Job>,
    queued_bytes: AtomicU64,
    queued_loads: AtomicUsize,
    groups: Box<[Group]>,
    /// The number of purges. Each of them is a removal in every group.
    purges: AtomicU32,
    failures: AtomicU64,
    /// [`WAITING`], [`OPEN`] or [`RELEASED`].
    state: AtomicU8,
    limit: u64,
    tag_fields: Vec<Box<str>>,
}

impl DiskTier {
    /// Creates a tier of `limit` bytes, which waits for its directory. Also returns the receiving
    /// end of the job queue, for the disk thread.
    pub(crate) fn new(limit: u64, tag_fields: Vec<Box<str>>) -> (Self, Receiver<Job>) {
        let (jobs, queue) = channel();
        let disk = Self {
            index: Mutex::default(),
            jobs,
            queued_bytes: AtomicU64::new(0),
            queued_loads: AtomicUsize::new(0),
            groups: (0..GROUPS).map(|_| Group::default()).collect(),
            purges: AtomicU32::new(0),
            failures: AtomicU64::new(0),
            state: AtomicU8::new(WAITING),
            limit,
            tag_fields,
        };
        (disk, queue)
    }

    fn group(&self, hash: u64) -> &Group {
        &self.groups[hash as usize % GROUPS]
    }

    /// The number of removals in the group of a key so far. A write that was queued before a removal
    /// must not take effect after it.
    fn removals(&self, hash: u64) -> u32 {
        // Both numbers only grow, so their sum is the same only if both are.
        let single = self.group(hash).removals.load(Ordering::SeqCst);
        single.wrapping_add(self.purges.load(Ordering::SeqCst))
    }

    fn index(&self) -> MutexGuard<'_, Index> {
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn state(&self) -> u8 {
        self.state.load(Ordering::Acquire)
    }

    /// Returns whether the state was `from`; then it is `to` now.
    fn change_state(&self, from: u8, to: u8) -> bool {
        self.state.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Begins to look files up: the index is complete, and nothing is queued.
    pub(crate) fn open_now(&self) {
        self.state.store(OPEN, Ordering::Release);
    }

    /// Notes that the index is complete. The files are found after the jobs that are queued by now.
    pub(crate) fn open(&self) {
        let _ = self.jobs.send(Job::Open);
    }

    /// Calls `open` until the directory is not in use by another process. Returns `None` if that
    /// takes too long, or if the directory cannot be opened, or if it is no longer needed.
    pub(crate) fn await_directory<F>(&self, open: impl FnMut() -> io::Result<F>) -> Option<F> {
        let opened = self.await_release(open);
        if let Err(error) = &opened
            && self.change_state(WAITING, RELEASED)
        {
            tracing::warn!("cache directory: {error}; responses are kept in memory only");
            self.failures.fetch_add(1, Ordering::Relaxed);
        }
        opened.ok()
    }

    fn await_release<F>(&self, mut open: impl FnMut() -> io::Result<F>) -> io::Result<F> {
        let until = Instant::now() + RELEASE_TIMEOUT;
        loop {
            match open() {
                Err(error)
                    if error.kind() == io::ErrorKind::ResourceBusy
                        && self.state() == WAITING
                        && Instant::now() < until =>
                {
                    thread::sleep(RELEASE_PAUSE);
                }
                outcome => return outcome,
            }
        }
    }

    /// Lets another store use the directory, after the jobs that are queued by now. Files are no
    /// longer read or written for requests; only those of URLs that become invalid are removed.
    pub(crate) fn release(&self) {
        self.state.store(RELEASED, Ordering::Release);
        let _ = self.jobs.send(Job::Release);
    }

    /// Queues `object` for writing. If too much is queued already, it remains in memory only, and the
    /// files of its URL are removed: an older response must not follow it when it is evicted.
    pub(crate) fn write(&self, hash: u64, object: &Object) {
        let bytes = object.weight();
        if self.state() == RELEASED {
            return;
        }
        if self.queued_bytes.load(Ordering::Relaxed) + bytes > QUEUE_BYTES_MAX {
            // A removal may also cancel queued writes of other URLs, so it is made only if it may be
            // needed. The index is examined last: a write leaves the queue when its file is there.
            let is_incomplete = self.state() == WAITING;
            let is_queued = || self.group(hash).writes.load(Ordering::SeqCst) > 0;
            if is_incomplete || is_queued() || self.index().has(hash, object.key()) {
                self.remove(hash, object.key());
            }
            return;
        }
        self.queued_bytes.fetch_add(bytes, Ordering::Relaxed);
        self.group(hash).writes.fetch_add(1, Ordering::SeqCst);
        let removals = self.removals(hash);
        let _ = self.jobs.send(Job::Write { hash, object: object.clone(), removals });
    }

    /// Returns the number of the file that answers `request`, unless too many loads are queued.
    pub(crate) fn find(&self, hash: u64, key: &[u8], request: &Request<'_>) -> Option<u64> {
        let is_busy = self.queued_loads.load(Ordering::Relaxed) >= LOADS_MAX;
        if is_busy || self.state() != OPEN { None } else { self.index().find(hash, key, request) }
    }

    /// Queues a load. `ticket` identifies the pending fetch that waits for it.
    pub(crate) fn load(&self, hash: u64, number: u64, ticket: Ticket) {
        self.queued_loads.fetch_add(1, Ordering::Relaxed);
        let _ = self.jobs.send(Job::Load { hash, number, ticket });
    }

    /// Removes all files of a URL and returns how many there were.
    pub(crate) fn remove(&self, hash: u64, key: &[u8]) -> usize {
        self.group(hash).removals.fetch_add(1, Ordering::SeqCst);
        let gone = self.index().remove(hash, key);
        self.discard(gone)
    }

    /// Removes the files for which `matches`, given key and tags, is true.
    pub(crate) fn purge(&self, matches: impl Fn(&[u8], &[Box<[u8]>]) -> bool) -> usize {
        self.purges.fetch_add(1, Ordering::SeqCst);
        let hashes = self.hashes();
        let mut count = 0;
        for batch in hashes.chunks(BATCH) {
            let gone = {
                let mut index = self.index();
                batch.iter().flat_map(|&hash| index.purge(hash, &matches)).collect()
            };
            count += self.discard(gone);
            yield_lock();
        }
        count
    }

    /// Returns the hashes that have files.
    pub(crate) fn hashes(&self) -> Vec<u64> {
        self.index().hashes()
    }

    /// Summarises the files of these hashes whose keys begin with `prefix`.
    pub(crate) fn list(&self, hashes: &[u64], prefix: &[u8]) -> Vec<DiskEntry> {
        let index = self.index();
        hashes.iter().filter_map(|&hash| index.at(hash, prefix)).collect()
    }

    /// Returns the hashes of those keys that have a file.
    pub(crate) fn filter_stored<'k>(
        &self,
        keys: impl Iterator<Item = (u64, &'k [u8])>,
    ) -> Vec<u64> {
        let index = self.index();
        keys.filter(|(hash, key)| index.has(*hash, key)).map(|(hash, _)| hash).collect()
    }

    /// Returns the files of a URL, the latest first, each with its `Vary` lines.
    pub(crate) fn files_of(&self, hash: u64, key: &[u8]) -> Vec<(Box<[u8]>, u64)> {
        self.index().files_of(hash, key)
    }

    /// Reads a file; blocks for at most `timeout`.
    pub(crate) fn read(&self, number: u64, timeout: Duration) -> Option<Object> {
        let (reader, read) = channel();
        self.jobs.send(Job::Read { number, reader }).ok()?;
        read.recv_timeout(timeout).ok().flatten()
    }

    fn discard(&self, gone: Vec<u64>) -> usize {
        let count = gone.len();
        if count > 0 {
            let _ = self.jobs.send(Job::Remove(gone));
        }
        count
    }

    /// Blocks until all queued jobs are done, but for at most `timeout`. Returns whether they are.
    /// Does not wait for a directory that another process uses.
    pub(crate) fn flush(&self, timeout: Duration) -> bool {
        if self.state() == WAITING {
            return true;
        }
        let (done, wait) = channel();
        self.jobs.send(Job::Flush(done)).is_ok() && wait.recv_timeout(timeout).is_ok()
    }

    /// Ends the thread after the jobs queued so far.
    pub(crate) fn stop(&self) {
        // The thread may still wait for its directory.
        let _ = self.change_state(WAITING, RELEASED);
        let _ = self.jobs.send(Job::Stop);
    }

    /// The number of files, their size in bytes, and the number of failed reads and writes.
    pub(crate) fn usage(&self) -> (u64, u64, u64) {
        let index = self.index();
        (index.count() as u64, index.bytes(), self.failures.load(Ordering::Relaxed))
    }
}

/// The state of the disk thread.
pub(crate) struct DiskWorker<F> {
    directory: F,
    next: u64,
    /// The time of the last failed write, while the failure is logged and not yet over.
    failed_at: Option<Instant>,
    /// Whether another store may use the directory.
    is_released: bool,
}

/// A nearly full disk may accept short files and reject long ones. Recovery is logged only after no
/// write has failed for this long.
const RECOVERY_QUIET_TIME: Duration = Duration::from_secs(60);

const OBJECT_SUFFIX: &str = ".object";
const TEMPORARY_SUFFIX: &str = ".new";

fn name(number: u64) -> String {
    format!("{number:016x}{OBJECT_SUFFIX}")
}

impl<F: Directory> DiskWorker<F> {
    pub(crate) fn new(directory: F) -> Self {
        Self { directory, next: 0, failed_at: None, is_released: false }
    }

    /// Indexes the existing files, the oldest first, and deletes damaged ones, and those of a group
    /// in which anything was removed since the tier exists.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub(crate) fn load_index(
        &mut self,
        disk: &DiskTier,
        hash: impl Fn(&[u8]) -> u64,
    ) -> io::Result<()> {
        let mut names = self.directory.list()?;
        names.sort_unstable();
        for old in names {
            let number =
                old.strip_suffix(OBJECT_SUFFIX).and_then(|hex| u64::from_str_radix(hex, 16).ok());
            let Some(number) = number.filter(|number| name(*number) == old) else {
                if old.ends_with(TEMPORARY_SUFFIX) {
                    let _ = self.directory.remove(&old);
                }
                continue;
            };
            self.next = self.next.max(number + 1);
            let start = self
                .directory
                .read(&old, (HEADER_LEN + 64 + 2 * KEY_MAX + FIELDS_MAX + (64 << 10)) as u64);
            let start = start.unwrap_or_default();
            let found =
                FileHeader::read(&start).and_then(|header| Some((header.record(&start)?, header)));
            let Some((object, header)) = found else {
                let _ = self.directory.remove(&old);
                continue;
            };
            let tags = tags_of(object.fields(), &disk.tag_fields);
            let hash = hash(object.key());
            let gone = {
                let mut index = disk.index();
                // Responses may be removed while the files are being indexed.
                let is_removed = disk.removals(hash) != 0;
                let mut gone = if is_removed {
                    vec![number]
                } else {
                    index.put(hash, number, header.file_len(), &object, tags)
                };
                // Limit the index now: the directory may hold more files than it has memory for.
                // The limit of the files is applied after all are indexed, because later files may
                // replace earlier ones.
                gone.extend(index.shrink(u64::MAX, INDEX_BYTES_MAX));
                gone
            };
            self.remove(&gone);
        }
        let gone = disk.index().shrink(disk.limit, INDEX_BYTES_MAX);
        self.remove(&gone);
        Ok(())
    }

    fn remove(&mut self, numbers: &[u64]) {
        for number in numbers {
            // A file that cannot be deleted is found again at the next start.
            let _ = self.directory.remove(&name(*number));
        }
    }

    /// Runs `job`. `loaded` receives the outcome of a load: the object, or `None` if it failed.
    pub(crate) fn run_job(
        &mut self,
        disk: &DiskTier,
        job: Job,
        loaded: impl FnOnce(u64, Ticket, Option<Object>),
    ) {
        match job {
            Job::Write { hash, object, removals } => {
                // A worker may have queued it while the directory was being released.
                let written = match self.is_released {
                    true => Ok(()),
                    false => self.write(disk, hash, &object, removals),
                };
                if written.is_err() {
                    disk.failures.fetch_add(1, Ordering::Relaxed);
                }
                self.log_write_outcome(written);
                disk.group(hash).writes.fetch_sub(1, Ordering::SeqCst);
                disk.queued_bytes.fetch_sub(object.weight(), Ordering::Relaxed);
            }
            Job::Load { hash, number, ticket } => {
                let object = self.load(number);
                if object.is_none() {
                    let gone = disk.index().remove_file(hash, number);
                    // A file that was replaced or removed since it was looked up is no failure.
                    disk.failures.fetch_add(gone.len() as u64, Ordering::Relaxed);
                    self.remove(&gone);
                }
                disk.queued_loads.fetch_sub(1, Ordering::Relaxed);
                loaded(hash, ticket, object);
            }
            Job::Read { number, reader } => {
                let _ = reader.send(self.load(number));
            }
            Job::Remove(numbers) => self.remove(&numbers),
            Job::Open => {
                // It may have been released while the files were being indexed.
                let _ = disk.change_state(WAITING, OPEN);
            }
            Job::Release => {
                self.is_released = true;
                self.directory.release();
            }
            Job::Stop => {}
            Job::Flush(done) => {
                let _ = done.send(());
            }
        }
    }

    /// Removes the files that an object replaces that is not written itself. Otherwise they would be
    /// found when it has left the memory, and after a restart.
    fn remove_replaced(&mut self, disk: &DiskTier, hash: u64, object: &Object) {
        let gone = disk.index().remove_replaced(hash, object);
        self.remove(&gone);
    }

    /// Logs once when writes start to fail, and once when they succeed again.
    fn log_write_outcome(&mut self, written: io::Result<()>) {
        match (written, self.failed_at) {
            (Err(error), before) => {
                self.failed_at = Some(Instant::now());
                if before.is_none() {
                    tracing::warn!(
                        "cache directory: {error}; responses that cannot be written are kept in memory only"
                    );
                }
            }
            (Ok(()), Some(at)) if at.elapsed() > RECOVERY_QUIET_TIME => {
                self.failed_at = None;
                tracing::info!("cache directory: files can be written again");
            }
            (Ok(()), _) => {}
        }
    }

    fn load(&mut self, number: u64) -> Option<Object> {
        let file = self.directory.read(&name(number), u64::MAX).ok()?;
        FileHeader::read(&file)?.object(&file)
    }

    fn write(
        &mut self,
        disk: &DiskTier,
        hash: u64,
        object: &Object,
        removals: u32,
    ) -> io::Result<()> {
        let number = self.next;
        self.next += 1;
        let header = header(object);
        let bytes = (header.len() + object.record().len()) as u64 + object.header().content_len;
        let Some(room_for_others) = disk.limit.checked_sub(bytes) else {
            self.remove_replaced(disk, hash, object);
            return Ok(());
        };
        // Make room first, so that the limit holds at every moment.
        let gone = disk.index().shrink(room_for_others, INDEX_BYTES_MAX);
        self.remove(&gone);
        let is_wanted = || disk.removals(hash) == removals;
        if !is_wanted() {
            // Another URL of the group may have been removed. What the object replaces is outdated.
            self.remove_replaced(disk, hash, object);
            return Ok(());
        }
        let new = format!("{number:016x}{TEMPORARY_SUFFIX}");
        let mut parts = vec![&header[..], object.record()];
        parts.extend(object.content_parts());
        let written = self
            .directory
            .write(&new, &parts)
            .and_then(|()| self.directory.rename(&new, &name(number)));
        if let Err(error) = written {
            let _ = self.directory.remove(&new);
            self.remove_replaced(disk, hash, object);
            return Err(error);
        }
        let tags = tags_of(object.fields(), &disk.tag_fields);
        let gone = {
            // Check under the lock: a concurrent removal is either seen here, or finds this entry.
            let mut index = disk.index();
            if is_wanted() {
                index.put(hash, number, bytes, object, tags)
            } else {
                let mut gone = index.remove_replaced(hash, object);
                gone.push(number);
                gone
            }
        };
        self.remove(&gone);
        Ok(())
    }
}
