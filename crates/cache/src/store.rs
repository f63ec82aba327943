//! The store that all workers share.
//!
//! It is divided by the key's hash into shards, each with its own lock. A cache per worker would
//! need no lock, but N workers would store N copies of popular responses, a thousand simultaneous
//! misses would become N requests, and a purge would have to reach every worker. The price is one
//! uncontended lock per request. It is held during a table lookup, and never while content is sent
//! or received.

use crate::{
    config::Config,
    disk::{Directory, DiskTier, DiskWorker, Job},
    hit::Hit,
    key::{self, Key},
    lookup::{Decision, Fetch, Lookup, WorkerLookup},
    pending_fetches::{TICKET_BITS, Ticket},
    receive::{ExchangeTimes, ResponseDecision, ResponseSource},
    shard::Shard,
    statistics::Statistics,
};
use pollux_http::{
    reply::ReplyHead,
    request::{Method, Request},
};
use quick_cache::DefaultHashBuilder;
use std::{
    collections::VecDeque,
    fmt,
    hash::{BuildHasher, Hasher},
    io,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock,
        atomic::{AtomicBool, Ordering},
        mpsc::{Receiver, channel},
    },
    thread::{self, ThreadId},
    time::Duration,
};

/// How long dropping a store waits for its disk thread. Jobs that were queued before are completed.
const DIRECTORY_CLOSE_TIMEOUT: Duration = Duration::from_secs(10);

/// The maximum number of shards. A smaller store has fewer, so that each has at least this much.
const SHARDS_MAX: u64 = 16;
const SHARD_LIMIT_MIN: u64 = 32 << 20;

/// A cache that several workers share. Clones refer to the same store.
#[derive(Clone)]
pub struct Store {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) config: Arc<Config>,
    pub(crate) disk: Option<Arc<DiskTier>>,
    pub(crate) shards: Box<[Mutex<Shard>]>,
    hasher: DefaultHashBuilder,
    workers: RwLock<Vec<Option<Arc<WakeupQueue>>>>,
    /// The disk thread, and a channel that closes when the thread has released its directory.
    disk_ended: OnceLock<(ThreadId, Mutex<Receiver<()>>)>,
}

/// The numbers of one worker's requests that need not wait any longer.
#[derive(Default)]
struct WakeupQueue {
    numbers: Mutex<VecDeque<u64>>,
    has_wakeups: AtomicBool,
    notifier: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A thread that panicked while it held the lock left no inconsistent state: at worst an object
    // is missing.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Store {
    /// Creates an empty store.
    pub fn new(config: Config) -> Self {
        let count = (config.limit_bytes / SHARD_LIMIT_MIN).clamp(1, SHARDS_MAX);
        Self { inner: Arc::new(Inner::new(config, count, None)) }
    }

    /// Creates a store with a disk tier of `limit` bytes in `directory`, and indexes its existing
    /// files. Blocking work is done by a new thread. Threads do not survive fork(2), so call this
    /// in the process that uses the store.
    ///
    /// ```no_run
    /// use pollux_cache::{Config, FsDirectory, Store};
    ///
    /// let directory = FsDirectory::open("/var/cache/example".into())?;
    /// let store = Store::with_directory(Config::default(), directory, 10 << 30)?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// The directory cannot be read, or the thread cannot be created.
    pub fn with_directory(
        config: Config,
        directory: impl Directory,
        limit: u64,
    ) -> io::Result<Self> {
        let (inner, disk, queue) = Self::with_tier(config, limit);
        let mut worker = DiskWorker::new(directory);
        worker.load_index(&disk, |key| inner.hash(key))?;
        disk.open_now();
        Self::start_disk(inner, disk, queue, || Some(worker))
    }

    /// Does the same as [`Store::with_directory`], but the new thread opens the directory and indexes
    /// its files: for a process that takes over from another one, which still uses the directory.
    /// `open` is called again and again as long as its error is [`io::ErrorKind::ResourceBusy`], for
    /// at most two minutes. Until the files are indexed, responses are looked up in memory only; those
    /// that are stored meanwhile are written afterwards.
    ///
    /// # Errors
    /// The thread cannot be created. If the directory cannot be opened, this is logged and counted
    /// ([`Statistics::disk_failures`]), and the store works without it.
    pub fn with_directory_in_use<D: Directory>(
        config: Config,
        mut open: impl FnMut() -> io::Result<D> + Send + 'static,
        limit: u64,
    ) -> io::Result<Self> {
        let (inner, disk, queue) = Self::with_tier(config, limit);
        let (tier, hasher) = (disk.clone(), inner.hasher.clone());
        let open = move || {
            let worker = tier.await_directory(|| {
                let mut worker = DiskWorker::new(open()?);
                worker.load_index(&tier, |key| hash_with(&hasher, key))?;
                Ok(worker)
            })?;
            tier.open();
            Some(worker)
        };
        Self::start_disk(inner, disk, queue, open)
    }

    fn with_tier(config: Config, limit: u64) -> (Arc<Inner>, Arc<DiskTier>, Receiver<Job>) {
        let count = (config.limit_bytes / SHARD_LIMIT_MIN).clamp(1, SHARDS_MAX);
        let (disk, queue) = DiskTier::new(limit, config.tag_fields.clone());
        let disk = Arc::new(disk);
        (Arc::new(Inner::new(config, count, Some(disk.clone()))), disk, queue)
    }

    /// Starts the disk thread. It ends at once if `open` returns `None`.
    fn start_disk<D: Directory>(
        inner: Arc<Inner>,
        disk: Arc<DiskTier>,
        queue: Receiver<Job>,
        open: impl FnOnce() -> Option<DiskWorker<D>> + Send + 'static,
    ) -> io::Result<Self> {
        let store = Arc::downgrade(&inner);
        let (ends, ended) = channel::<()>();
        let thread = thread::Builder::new().name("cache-disk".into()).spawn(move || {
            // Variables are dropped in reverse order: the worker releases the directory before the
            // channel closes.
            let _ends = ends;
            let Some(mut worker) = open() else { return };
            for job in queue {
                if matches!(job, Job::Stop) {
                    break;
                }
                worker.run_job(&disk, job, |hash, ticket, object| {
                    if let Some(inner) = store.upgrade() {
                        let mut shard = inner.lock_shard(hash);
                        shard.loaded(hash, ticket, object);
                        inner.deliver(shard, u32::MAX);
                    }
                });
            }
        })?;
        let _ = inner.disk_ended.set((thread.thread().id(), Mutex::new(ended)));
        Ok(Self { inner })
    }

    /// Lets another store use the directory of the disk tier, if there is one, as soon as everything
    /// stored so far is written. This store then works in memory only, and removes the files of
    /// responses that become invalid. Does not wait.
    pub fn release_directory(&self) {
        if let Some(disk) = &self.inner.disk {
            disk.release();
        }
    }

    /// Blocks until everything stored so far is written to the disk tier, if there is one, but for
    /// at most `timeout`. Returns whether it is.
    pub fn flush(&self, timeout: Duration) -> bool {
        self.inner.disk.as_ref().is_none_or(|disk| disk.flush(timeout))
    }

    /// Creates a handle for one more worker.
    pub fn handle(&self) -> Handle {
        let wakeup_queue = Arc::new(WakeupQueue::default());
        let mut workers = self.inner.workers.write().unwrap_or_else(PoisonError::into_inner);
        // Reuse the numbers of workers that have ended: some servers use a new thread per
        // connection.
        let worker = workers.iter().position(Option::is_none).unwrap_or_else(|| {
            workers.push(None);
            workers.len() - 1
        });
        workers[worker] = Some(wakeup_queue.clone());
        drop(workers);
        let worker = worker as u32;
        Handle { store: self.clone(), worker, wakeup_queue, key: Vec::new() }
    }

    /// The settings.
    pub fn config(&self) -> &Config {
        &self.inner.config
    }

    /// The maximum length of stored content in bytes: the configured one, but no more than a shard
    /// reserves for content of pending fetches.
    pub fn max_object(&self) -> u64 {
        lock(&self.inner.shards[0]).max_object()
    }

    /// Returns whether both refer to the same store.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// Returns the counters.
    pub fn statistics(&self) -> Statistics {
        let mut sum = Statistics::default();
        self.inner.shards.iter().for_each(|shard| sum += lock(shard).statistics());
        if let Some(disk) = &self.inner.disk {
            (sum.disk_files, sum.disk_bytes, sum.disk_failures) = disk.usage();
        }
        sum
    }
}

fn hash_with(hasher: &DefaultHashBuilder, key: &[u8]) -> u64 {
    let mut hasher = hasher.build_hasher();
    hasher.write(key);
    hasher.finish()
}

impl Inner {
    fn new(config: Config, count: u64, disk: Option<Arc<DiskTier>>) -> Self {
        let config = Arc::new(config);
        let limit = config.limit_bytes / count;
        let new_shard = |_| {
            let mut shard = Shard::new(config.clone(), limit);
            shard.disk = disk.clone();
            Mutex::new(shard)
        };
        let shards = (0..count).map(new_shard).collect();
        Self {
            config,
            disk,
            shards,
            hasher: Default::default(),
            workers: RwLock::default(),
            disk_ended: OnceLock::new(),
        }
    }

    pub(crate) fn hash(&self, key: &[u8]) -> u64 {
        hash_with(&self.hasher, key)
    }

    fn shard_index(&self, hash: u64) -> usize {
        // The tables use the lowest and the highest bits.
        (hash >> 32) as usize % self.shards.len()
    }

    /// Locks the shard of the key with this hash.
    pub(crate) fn lock_shard(&self, hash: u64) -> MutexGuard<'_, Shard> {
        lock(&self.shards[self.shard_index(hash)])
    }

    /// Delivers the wakeups of `shard`. Its lock is released before notifiers are called.
    fn deliver(&self, mut shard: MutexGuard<'_, Shard>, own: u32) {
        let Some(mut waiter) = shard.pending_fetches.next_wakeup() else { return };
        let mut to_notify = Vec::new();
        {
            let workers = self.workers.read().unwrap_or_else(PoisonError::into_inner);
            loop {
                if let Some(Some(wakeup_queue)) = workers.get(waiter.worker as usize) {
                    lock(&wakeup_queue.numbers).push_back(waiter.number);
                    let had_wakeups = wakeup_queue.has_wakeups.swap(true, Ordering::Release);
                    if !had_wakeups && waiter.worker != own {
                        to_notify.push(wakeup_queue.clone());
                    }
                }
                match shard.pending_fetches.next_wakeup() {
                    Some(next) => waiter = next,
                    None => break,
                }
            }
        }
        drop(shard);
        for notifier in to_notify.iter().filter_map(|wakeup_queue| wakeup_queue.notifier.get()) {
            notifier();
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let Some(disk) = &self.disk else { return };
        disk.stop();
        // Wait until the directory is free for the next store. The disk thread itself may drop the
        // last reference to this store, and must not wait for itself.
        if let Some((thread, ended)) = self.disk_ended.get()
            && *thread != thread::current().id()
        {
            let _ = lock(ended).recv_timeout(DIRECTORY_CLOSE_TIMEOUT);
        }
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store").field("shards", &self.inner.shards.len()).finish_non_exhaustive()
    }
}

/// One worker's access to a [`Store`].
pub struct Handle {
    store: Store,
    worker: u32,
    wakeup_queue: Arc<WakeupQueue>,
    /// The key of the current request.
    key: Vec<u8>,
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle").field("worker", &self.worker).finish_non_exhaustive()
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        let workers = self.store.inner.workers.write();
        workers.unwrap_or_else(PoisonError::into_inner)[self.worker as usize] = None;
    }
}

impl Handle {
    /// The store that this handle belongs to.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Sets a function that is called, on any thread, when another worker's fetch ends for which a
    /// request of this worker waits. Only the first one is kept. Without a notifier the worker must
    /// poll [`Handle::has_wakeups`].
    pub fn set_notifier(&self, notifier: impl Fn() + Send + Sync + 'static) {
        let _ = self.wakeup_queue.notifier.set(Box::new(notifier));
    }

    /// Decides what to do with a request that arrives at `now`, a Unix second.
    pub fn lookup(&mut self, lookup: &Lookup<'_, '_>, now: u64) -> Decision {
        let has_key = key::write(lookup.site, lookup.request, &mut self.key);
        let hash = self.store.inner.hash(&self.key);
        let shard_index = self.store.inner.shard_index(hash);
        let key = has_key.then_some(Key { hash, text: &self.key });
        let mut shard = lock(&self.store.inner.shards[shard_index]);
        let mut decision = shard.lookup(WorkerLookup { lookup, worker: self.worker }, key, now);
        if let Decision::Fetch(fetch) | Decision::ServeAndRefresh(_, fetch) = &mut decision {
            fetch.ticket.0 |= (shard_index as u64) << TICKET_BITS;
        }
        // A fetch that took too long may have been given up.
        self.store.inner.deliver(shard, self.worker);
        decision
    }

    /// Locks the shard of `ticket`, and returns the ticket without its shard number.
    fn shard(&self, ticket: Ticket) -> (MutexGuard<'_, Shard>, Ticket) {
        let shard_index = (ticket.0 >> TICKET_BITS) as usize % self.store.inner.shards.len();
        let ticket = Ticket(ticket.0 & ((1 << TICKET_BITS) - 1));
        (lock(&self.store.inner.shards[shard_index]), ticket)
    }

    /// Handles the head of the origin's final response to a fetch for `request`, sent at
    /// `requested_at`.
    ///
    /// Invalidates what an unsafe method may have changed (RFC 9111 §4.4). A 304 to an
    /// unconditional request, or a 206 to a request without `Range`, is an invalid response: call
    /// [`Handle::fail`] instead.
    pub fn head(
        &mut self,
        ticket: Ticket,
        request: &Request<'_>,
        reply: &ReplyHead<'_>,
        requested_at: u64,
        now: u64,
    ) -> ResponseDecision {
        let is_safe =
            matches!(request.method, Method::Get | Method::Head | Method::Options | Method::Trace);
        let (mut shard, inner) = self.shard(ticket);
        let key = if is_safe {
            None
        } else {
            shard.pending_fetches.get(inner).and_then(|fetching| fetching.key.clone())
        };
        let mut decision = shard.head(inner, request, reply, ExchangeTimes { requested_at, now });
        self.store.inner.deliver(shard, self.worker);
        if let ResponseSource::Refetch(Fetch { ticket: again, .. }) = &mut decision.source {
            *again = ticket;
        }
        if let Some((_, key)) = key
            && matches!(reply.status, 200..=399)
        {
            self.invalidate(&key);
            let is_reference = |name: &[u8]| {
                name.eq_ignore_ascii_case(b"location")
                    || name.eq_ignore_ascii_case(b"content-location")
            };
            for field in reply.fields().filter(|field| is_reference(field.name)) {
                if let Some(other) = key::from_reference(&key, request, field.value) {
                    self.invalidate(&other);
                }
            }
        }
        decision
    }

    fn invalidate(&self, key: &[u8]) {
        let hash = self.store.inner.hash(key);
        self.store.inner.lock_shard(hash).invalidate(hash, key);
    }

    /// Appends content of a response that is being stored. Returns false if it is no longer stored;
    /// then make no further calls for this fetch.
    pub fn append(&mut self, ticket: Ticket, bytes: &[u8]) -> bool {
        let (mut shard, inner) = self.shard(ticket);
        let is_wanted = shard.append(inner, bytes);
        self.store.inner.deliver(shard, self.worker);
        is_wanted
    }

    /// Stores the response: its content is complete.
    pub fn finish(&mut self, ticket: Ticket) {
        let (mut shard, inner) = self.shard(ticket);
        shard.finish(inner);
        self.store.inner.deliver(shard, self.worker);
    }

    /// Ends a fetch: its content is incomplete or no longer needed. Waiting requests are woken.
    pub fn abort(&mut self, ticket: Ticket) {
        let (mut shard, inner) = self.shard(ticket);
        shard.abort(inner);
        self.store.inner.deliver(shard, self.worker);
    }

    /// Ends a fetch without a valid response: no connection, a timeout, or an invalid reply.
    /// Returns the stale response to serve instead. The origin then receives no request for a while
    /// if a stale response can be served.
    pub fn fail(&mut self, ticket: Ticket, now: u64) -> Option<Hit> {
        self.fail_for(ticket, true, now)
    }

    /// Like [`Handle::fail`], for a failure that was not the origin's: no back-off follows.
    pub fn fail_locally(&mut self, ticket: Ticket, now: u64) -> Option<Hit> {
        self.fail_for(ticket, false, now)
    }

    fn fail_for(&mut self, ticket: Ticket, is_origin_failure: bool, now: u64) -> Option<Hit> {
        let (mut shard, inner) = self.shard(ticket);
        let hit = shard.fail(inner, is_origin_failure, now);
        self.store.inner.deliver(shard, self.worker);
        hit
    }

    /// Whether a fetch should continue after its own client has left: other requests wait for it,
    /// or it is being stored.
    pub fn is_wanted(&self, ticket: Ticket) -> bool {
        let (mut shard, inner) = self.shard(ticket);
        let fetching = shard.pending_fetches.get(inner);
        fetching.is_some_and(|f| f.has_waiters() || f.builder.is_some() || f.is_refresh)
    }

    /// Whether [`Handle::next_wakeup`] has an item. Takes no lock.
    pub fn has_wakeups(&self) -> bool {
        self.wakeup_queue.has_wakeups.load(Ordering::Acquire)
    }

    /// Returns the number of the next request of this worker that need not wait any longer. Call it
    /// after each call that ends a fetch, and after the notifier was called.
    pub fn next_wakeup(&mut self) -> Option<u64> {
        if !self.has_wakeups() {
            return None;
        }
        let mut numbers = lock(&self.wakeup_queue.numbers);
        let number = numbers.pop_front();
        if numbers.is_empty() {
            self.wakeup_queue.has_wakeups.store(false, Ordering::Release);
        }
        number
    }
}
