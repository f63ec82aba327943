//! The store that all workers share.
//!
//! It is parted by the key's hash into shards with a lock each. Partitioned by workers instead, with no
//! lock at all, N workers would keep N copies of what is asked for most, a thousand clients that miss at
//! once would make N requests, and a purge would have to go round. The price is one uncontended lock
//! a request, which is held while a table is asked and never while octets move.

use crate::{
    Config, Directory, Hit, Statistics,
    disk::{DiskTier, DiskWorker, Job},
    engine::{Engine, Key},
    key,
    lookup::{Decision, Fetch, Lookup, WorkerLookup},
    pending_fetches::{TICKET_BITS, Ticket},
    receive::{ExchangeTimes, ResponseDecision, ResponseSource},
};
use pollux_http::{
    reply::ReplyHead,
    request::{Method, Request},
};
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

/// How long the end of a store waits for its folder to be let go: what is handed over by then is written.
const DIRECTORY_CLOSE_TIMEOUT: Duration = Duration::from_secs(10);

/// The most shards; a smaller store has fewer, so that each has this much.
const SHARDS_MAX: u64 = 16;
const SHARD_LIMIT_MIN: u64 = 32 << 20;

/// A cache that several workers share. Clones are the same store.
#[derive(Clone)]
pub struct Store {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) config: Arc<Config>,
    pub(crate) disk: Option<Arc<DiskTier>>,
    pub(crate) shards: Box<[Mutex<Engine>]>,
    hasher: quick_cache::DefaultHashBuilder,
    workers: RwLock<Vec<Option<Arc<WakeupQueue>>>>,
    /// Closed at the other end when the second tier's thread has let its folder go.
    disk_ended: OnceLock<(ThreadId, Mutex<Receiver<()>>)>,
}

/// The numbers of those of one worker who wait no more.
#[derive(Default)]
struct WakeupQueue {
    numbers: Mutex<VecDeque<u64>>,
    has_wakeups: AtomicBool,
    notifier: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Who panicked while it held the lock left no half-made change that matters: at worst an object is
    // missing.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Store {
    /// An empty store.
    pub fn new(config: Config) -> Self {
        let count = (config.limit / SHARD_LIMIT_MIN).clamp(1, SHARDS_MAX);
        Self { inner: Arc::new(Inner::new(config, count, None)) }
    }

    /// A store with a second tier of `limit` octets in `directory`, and what that holds already. A thread
    /// does what may block; threads do not survive fork(2), so make it where it is used.
    ///
    /// # Errors
    /// The folder cannot be read, or there can be no thread.
    pub fn with_directory(
        config: Config,
        directory: impl Directory,
        limit: u64,
    ) -> io::Result<Self> {
        let count = (config.limit / SHARD_LIMIT_MIN).clamp(1, SHARDS_MAX);
        let (disk, queue) = DiskTier::new(limit, config.tag_fields.clone());
        let disk = Arc::new(disk);
        let inner = Arc::new(Inner::new(config, count, Some(disk.clone())));
        let mut worker = DiskWorker::new(directory);
        worker.load_index(&disk, |key| inner.hash(key))?;
        let store = Arc::downgrade(&inner);
        let (ends, ended) = channel::<()>();
        let thread = thread::Builder::new().name("cache-disk".into()).spawn(move || {
            // What is bound last is dropped first: the folder is let go before the other end is told.
            let _ends = ends;
            let mut worker = worker;
            for job in queue {
                if matches!(job, Job::Stop) {
                    break;
                }
                worker.run_job(&disk, job, |hash, ticket, object| {
                    if let Some(inner) = store.upgrade() {
                        let mut engine = lock(&inner.shards[inner.shard(hash)]);
                        engine.loaded(hash, ticket, object);
                        inner.deliver(engine, u32::MAX);
                    }
                });
            }
        })?;
        let _ = inner.disk_ended.set((thread.thread().id(), Mutex::new(ended)));
        Ok(Self { inner })
    }

    /// Waits until what was stored so far is in the second tier, if there is one, but not for longer than
    /// `timeout`. False when it is not.
    pub fn flush(&self, timeout: Duration) -> bool {
        self.inner.disk.as_ref().is_none_or(|disk| disk.flush(timeout))
    }

    /// For one more worker.
    pub fn handle(&self) -> Handle {
        let wakeup_queue = Arc::new(WakeupQueue::default());
        let mut workers = self.inner.workers.write().unwrap_or_else(PoisonError::into_inner);
        // The place of one that is gone is taken first: threads that serve a connection each come and go.
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

    /// The longest content that is stored: what the settings say, and no more than a shard's part for
    /// content on its way.
    pub fn max_object(&self) -> u64 {
        lock(&self.inner.shards[0]).max_object()
    }

    /// The counters.
    pub fn statistics(&self) -> Statistics {
        let mut sum = Statistics::default();
        self.inner.shards.iter().for_each(|shard| sum += lock(shard).statistics());
        if let Some(disk) = &self.inner.disk {
            (sum.disk_files, sum.disk_bytes, sum.disk_failures) = disk.usage();
        }
        sum
    }
}

impl Inner {
    fn new(config: Config, count: u64, disk: Option<Arc<DiskTier>>) -> Self {
        let config = Arc::new(config);
        let limit = config.limit / count;
        let shard = |_| {
            let mut engine = Engine::new(config.clone(), limit);
            engine.disk = disk.clone();
            Mutex::new(engine)
        };
        let shards = (0..count).map(shard).collect();
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
        let mut hasher = self.hasher.build_hasher();
        hasher.write(key);
        hasher.finish()
    }

    pub(crate) fn shard(&self, hash: u64) -> usize {
        // Neither the lowest bits nor the highest, which the tables use.
        (hash >> 32) as usize % self.shards.len()
    }

    /// Hands the mail of `engine` out; its lock is released before a bell is rung.
    fn deliver(&self, mut engine: MutexGuard<'_, Engine>, own: u32) {
        let Some(mut waiter) = engine.pending_fetches.next_wakeup() else { return };
        let mut to_notify = Vec::new();
        {
            let workers = self.workers.read().unwrap_or_else(PoisonError::into_inner);
            loop {
                if let Some(Some(wakeup_queue)) = workers.get(waiter.worker as usize) {
                    lock(&wakeup_queue.numbers).push_back(waiter.number);
                    let had_mail = wakeup_queue.has_wakeups.swap(true, Ordering::Release);
                    if !had_mail && waiter.worker != own {
                        to_notify.push(wakeup_queue.clone());
                    }
                }
                match engine.pending_fetches.next_wakeup() {
                    Some(next) => waiter = next,
                    None => break,
                }
            }
        }
        drop(engine);
        for notifier in to_notify.iter().filter_map(|wakeup_queue| wakeup_queue.notifier.get()) {
            notifier();
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let Some(disk) = &self.disk else { return };
        disk.stop();
        // So that the folder is free for who opens it next. The thread may be the last one to have known
        // this store, and must not wait for itself.
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

/// One worker's way into a [`Store`].
pub struct Handle {
    store: Store,
    worker: u32,
    wakeup_queue: Arc<WakeupQueue>,
    /// The key of the request at hand.
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
    /// The store.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Rung, on any thread, when another worker's fetch is over that an exchange of this one waits for.
    /// Only the first bell is kept. Without one [`Handle::has_wakeups`] is to be asked now and then.
    pub fn set_notifier(&self, notifier: impl Fn() + Send + Sync + 'static) {
        let _ = self.wakeup_queue.notifier.set(Box::new(notifier));
    }

    /// What to do with a request that comes at `now`, a Unix second.
    pub fn lookup(&mut self, lookup: &Lookup<'_, '_>, now: u64) -> Decision {
        let has_key = key::write(lookup.site, lookup.request, &mut self.key);
        let hash = self.store.inner.hash(&self.key);
        let shard = self.store.inner.shard(hash);
        let key = has_key.then_some(Key { hash, text: &self.key });
        let mut engine = lock(&self.store.inner.shards[shard]);
        let mut decision = engine.lookup(WorkerLookup { lookup, worker: self.worker }, key, now);
        if let Decision::Fetch(fetch) | Decision::ServeAndRefresh(_, fetch) = &mut decision {
            fetch.ticket.0 |= (shard as u64) << TICKET_BITS;
        }
        // An old flight may have been given up.
        self.store.inner.deliver(engine, self.worker);
        decision
    }

    /// The engine of a ticket, and the ticket as that knows it.
    fn engine(&self, ticket: Ticket) -> (MutexGuard<'_, Engine>, Ticket) {
        let shard = (ticket.0 >> TICKET_BITS) as usize % self.store.inner.shards.len();
        let ticket = Ticket(ticket.0 & ((1 << TICKET_BITS) - 1));
        (lock(&self.store.inner.shards[shard]), ticket)
    }

    /// The head of the origin's final response to what was sent on for `request` at `requested_at`.
    ///
    /// Invalidates what an unsafe method may have changed (RFC 9111 §4.4). A 304 to what had no conditions
    /// when it was sent, or a 206 to what had no `Range`, is no answer: tell [`Handle::fail`] instead.
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
        let (mut engine, inner) = self.engine(ticket);
        let key = if is_safe {
            None
        } else {
            engine.pending_fetches.get(inner).and_then(|fetching| fetching.key.clone())
        };
        let mut verdict = engine.head(inner, request, reply, ExchangeTimes { requested_at, now });
        self.store.inner.deliver(engine, self.worker);
        if let ResponseSource::Refetch(Fetch { ticket: again, .. }) = &mut verdict.source {
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
        verdict
    }

    fn invalidate(&self, key: &[u8]) {
        let hash = self.store.inner.hash(key);
        lock(&self.store.inner.shards[self.store.inner.shard(hash)]).invalidate(hash, key);
    }

    /// Content of a response that is kept. False when it is no longer wanted: nothing more is to be told
    /// of it then.
    pub fn append(&mut self, ticket: Ticket, bytes: &[u8]) -> bool {
        let (mut engine, inner) = self.engine(ticket);
        let is_wanted = engine.append(inner, bytes);
        self.store.inner.deliver(engine, self.worker);
        is_wanted
    }

    /// The content of a response that is kept is whole: it is stored.
    pub fn finish(&mut self, ticket: Ticket) {
        let (mut engine, inner) = self.engine(ticket);
        engine.finish(inner);
        self.store.inner.deliver(engine, self.worker);
    }

    /// The content broke off, or nobody wants it any more. Whoever waits for it is let go.
    pub fn abort(&mut self, ticket: Ticket) {
        let (mut engine, inner) = self.engine(ticket);
        engine.abort(inner);
        self.store.inner.deliver(engine, self.worker);
    }

    /// No response came: no connection, none in time, or none that makes sense. What may be sent instead.
    /// The origin is left alone for a while where there is something to answer with.
    pub fn fail(&mut self, ticket: Ticket, now: u64) -> Option<Hit> {
        self.fail_for(ticket, true, now)
    }

    /// As [`Handle::fail`], where the origin had no part in it: it is asked again the next time.
    pub fn fail_locally(&mut self, ticket: Ticket, now: u64) -> Option<Hit> {
        self.fail_for(ticket, false, now)
    }

    fn fail_for(&mut self, ticket: Ticket, is_origin_failure: bool, now: u64) -> Option<Hit> {
        let (mut engine, inner) = self.engine(ticket);
        let hit = engine.fail(inner, is_origin_failure, now);
        self.store.inner.deliver(engine, self.worker);
        hit
    }

    /// Whether a fetch is worth going on with when its own client is gone: others wait for it, or it is
    /// being stored.
    pub fn is_wanted(&self, ticket: Ticket) -> bool {
        let (mut engine, inner) = self.engine(ticket);
        let fetching = engine.pending_fetches.get(inner);
        fetching.is_some_and(|f| f.has_waiters() || f.builder.is_some() || f.is_refresh)
    }

    /// Whether [`Handle::next_wakeup`] has something. Costs no lock.
    pub fn has_wakeups(&self) -> bool {
        self.wakeup_queue.has_wakeups.load(Ordering::Acquire)
    }

    /// The next of this worker's numbers whose waiting is over. Ask after each call that ends a fetch,
    /// and when the bell rang.
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
