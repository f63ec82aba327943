//! The store that all workers share.
//!
//! It is parted by the key's hash into shards with a lock each. Partitioned by workers instead, with no
//! lock at all, N workers would keep N copies of what is asked for most, a thousand clients that miss at
//! once would make N requests, and a purge would have to go round. The price is one uncontended lock
//! a request, which is held while a table is asked and never while octets move.

use crate::{
    Config, Folder, Hit, Statistics,
    disk::{Disk, Job, Worker},
    engine::{Engine, Key},
    flights::{TICKET_BITS, Ticket},
    key,
    lookup::{Ask, Asked, Decision, Fetch},
    receive::{Answer, Sent, Verdict},
    record::Object,
};
use pollux_http::{
    fields::Fields,
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
    },
};

/// The most shards; a smaller store has fewer, so that each has this much.
const SHARDS_MAX: u64 = 16;
const SHARD_LIMIT_MIN: u64 = 32 << 20;

/// A cache that several workers share. Clones are the same store.
#[derive(Clone)]
pub struct Store {
    inner: Arc<Inner>,
}

struct Inner {
    config: Arc<Config>,
    disk: Option<Arc<Disk>>,
    shards: Box<[Mutex<Engine>]>,
    hasher: quick_cache::DefaultHashBuilder,
    workers: RwLock<Vec<Option<Arc<Mailbox>>>>,
}

/// The numbers of those of one worker who wait no more.
#[derive(Default)]
struct Mailbox {
    numbers: Mutex<VecDeque<u64>>,
    has_mail: AtomicBool,
    bell: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

/// What to remove.
#[derive(Clone, Copy, Debug)]
pub enum Purge<'p> {
    /// This URL, in all its representations.
    Url(&'p [u8]),
    /// Every URL that begins like this.
    Prefix(&'p [u8]),
    /// Every response that has this member in one of [`Config::tag_fields`].
    Tag(&'p [u8]),
    /// All.
    Everything,
}

/// A stored response, for people to read.
#[derive(Clone, Debug)]
pub struct Listed {
    /// Its key.
    pub url: Vec<u8>,
    /// Its status code.
    pub status: u16,
    /// Its age in seconds.
    pub age: u64,
    /// For how many seconds it is fresh yet; negative when it is stale.
    pub ttl: i64,
    /// Octets of content.
    pub content_length: u64,
    /// Octets of memory.
    pub octets: u64,
    /// What requests said in its varying fields: `name:value LF`.
    pub vary: Vec<u8>,
    /// Its fields, each line with its CRLF.
    pub fields: Vec<u8>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
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

    /// A store with a second tier of `limit` octets in `folder`, and what that holds already. A thread
    /// does what may block; threads do not survive fork(2), so make it where it is used.
    ///
    /// # Errors
    /// The folder cannot be read, or there can be no thread.
    pub fn with_folder(config: Config, folder: impl Folder, limit: u64) -> io::Result<Self> {
        let count = (config.limit / SHARD_LIMIT_MIN).clamp(1, SHARDS_MAX);
        let (disk, queue) = Disk::new(limit, config.tag_fields.clone());
        let disk = Arc::new(disk);
        let inner = Arc::new(Inner::new(config, count, Some(disk.clone())));
        let mut worker = Worker::new(folder);
        worker.enter(&disk, |key| inner.hash(key))?;
        let store = Arc::downgrade(&inner);
        std::thread::Builder::new().name("cache-disk".into()).spawn(move || {
            for job in queue {
                if matches!(job, Job::Stop) {
                    break;
                }
                worker.work(&disk, job, |hash, ticket, object| {
                    if let Some(inner) = store.upgrade() {
                        let mut engine = locked(&inner.shards[inner.shard(hash)]);
                        engine.loaded(hash, ticket, object);
                        inner.deliver(engine, u32::MAX);
                    }
                });
            }
        })?;
        Ok(Self { inner })
    }

    /// Waits until what was stored so far is in the second tier, if there is one.
    pub fn flush(&self) {
        if let Some(disk) = &self.inner.disk {
            disk.flush();
        }
    }

    /// For one more worker.
    pub fn handle(&self) -> Handle {
        let mailbox = Arc::new(Mailbox::default());
        let mut workers = self.inner.workers.write().unwrap_or_else(PoisonError::into_inner);
        // The place of one that is gone is taken first: threads that serve a connection each come and go.
        let worker = workers.iter().position(Option::is_none).unwrap_or_else(|| {
            workers.push(None);
            workers.len() - 1
        });
        workers[worker] = Some(mailbox.clone());
        drop(workers);
        let worker = worker as u32;
        Handle { store: self.clone(), worker, mailbox, key: Vec::new() }
    }

    /// The settings.
    pub fn config(&self) -> &Config {
        &self.inner.config
    }

    /// The longest content that is stored: what the settings say, and no more than a shard's part for
    /// content on its way.
    pub fn max_object(&self) -> u64 {
        locked(&self.inner.shards[0]).max_object()
    }

    /// The counters.
    pub fn statistics(&self) -> Statistics {
        let mut sum = Statistics::default();
        self.inner.shards.iter().for_each(|shard| sum += locked(shard).statistics());
        if let Some(disk) = &self.inner.disk {
            (sum.disk_files, sum.disk_octets, sum.disk_failures) = disk.figures();
        }
        sum
    }

    /// Removes what `purge` names, and keeps what is on its way from being stored; how many responses
    /// went, from that tier that had more. By URL it is one look-up; otherwise all that is stored is
    /// looked at, shard by shard.
    pub fn purge(&self, purge: Purge<'_>) -> usize {
        // First, so that what is removed from memory is not loaded again; and once more, for what was
        // stored in between.
        let on_disk = self.purge_disk(purge);
        let url = if let Purge::Url(url) = purge { Some(url) } else { None };
        let shards = match url {
            Some(url) => {
                std::slice::from_ref(&self.inner.shards[self.inner.shard(self.inner.hash(url))])
            }
            None => &self.inner.shards,
        };
        let in_memory = shards.iter().fold(0, |sum, shard| {
            let mut engine = locked(shard);
            engine.flights.doom(url);
            let count = self.purge_shelf(purge, &mut engine);
            engine.statistics.purged += count as u64;
            sum + count
        });
        in_memory.max(on_disk + self.purge_disk(purge))
    }

    fn purge_shelf(&self, purge: Purge<'_>, engine: &mut Engine) -> usize {
        let tag_fields = &self.inner.config.tag_fields;
        match purge {
            Purge::Url(url) => engine.shelf.remove(self.inner.hash(url), url),
            Purge::Prefix(prefix) => engine.shelf.purge(|object| object.key().starts_with(prefix)),
            Purge::Tag(tag) => engine.shelf.purge(|object| has_tag(object, tag_fields, tag)),
            Purge::Everything => engine.shelf.purge(|_| true),
        }
    }

    fn purge_disk(&self, purge: Purge<'_>) -> usize {
        let Some(disk) = &self.inner.disk else { return 0 };
        match purge {
            Purge::Url(url) => disk.remove(self.inner.hash(url), url),
            Purge::Prefix(prefix) => disk.purge(|key, _| key.starts_with(prefix)),
            Purge::Tag(tag) => disk.purge(|_, tags| tags.iter().any(|other| **other == *tag)),
            Purge::Everything => disk.purge(|_, _| true),
        }
    }

    /// At most `max` of the stored responses whose URLs begin with `prefix`, in no order.
    pub fn list(&self, prefix: &[u8], max: usize, now: u64) -> Vec<Listed> {
        let mut listed = Vec::new();
        for shard in &self.inner.shards {
            let engine = locked(shard);
            let objects = engine.shelf.iter().filter(|object| object.key().starts_with(prefix));
            listed.extend(objects.take(max - listed.len()).map(|object| {
                let numbers = object.numbers();
                Listed {
                    url: object.key().to_vec(),
                    status: numbers.status,
                    age: numbers.age(now),
                    ttl: numbers.time_left(now),
                    content_length: numbers.content_len,
                    octets: object.weight(),
                    vary: object.vary().to_vec(),
                    fields: object.fields().to_vec(),
                }
            }));
        }
        listed
    }
}

impl Inner {
    fn new(config: Config, count: u64, disk: Option<Arc<Disk>>) -> Self {
        let config = Arc::new(config);
        let limit = config.limit / count;
        let shard = |_| {
            let mut engine = Engine::new(config.clone(), limit);
            engine.disk = disk.clone();
            Mutex::new(engine)
        };
        let shards = (0..count).map(shard).collect();
        Self { config, disk, shards, hasher: Default::default(), workers: RwLock::default() }
    }

    fn hash(&self, key: &[u8]) -> u64 {
        let mut hasher = self.hasher.build_hasher();
        hasher.write(key);
        hasher.finish()
    }

    fn shard(&self, hash: u64) -> usize {
        // Neither the lowest bits nor the highest, which the tables use.
        (hash >> 32) as usize % self.shards.len()
    }

    /// Hands the mail of `engine` out; its lock is released before a bell is rung.
    fn deliver(&self, mut engine: MutexGuard<'_, Engine>, own: u32) {
        let Some(mut waiter) = engine.flights.next_mail() else { return };
        let mut rung = Vec::new();
        {
            let workers = self.workers.read().unwrap_or_else(PoisonError::into_inner);
            loop {
                if let Some(Some(mailbox)) = workers.get(waiter.worker as usize) {
                    locked(&mailbox.numbers).push_back(waiter.number);
                    let had_mail = mailbox.has_mail.swap(true, Ordering::Release);
                    if !had_mail && waiter.worker != own {
                        rung.push(mailbox.clone());
                    }
                }
                match engine.flights.next_mail() {
                    Some(next) => waiter = next,
                    None => break,
                }
            }
        }
        drop(engine);
        for bell in rung.iter().filter_map(|mailbox| mailbox.bell.get()) {
            bell();
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Some(disk) = &self.disk {
            disk.stop();
        }
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store").field("shards", &self.inner.shards.len()).finish_non_exhaustive()
    }
}

/// The members of the fields with tags.
pub(crate) fn tags_of(lines: &[u8], fields: &[Box<str>]) -> Vec<Box<[u8]>> {
    members(lines, fields).map(Box::from).collect()
}

/// Members are parted by white space (`Surrogate-Key`, `xkey`) or commas (`Cache-Tag`).
fn members<'f>(lines: &'f [u8], fields: &'f [Box<str>]) -> impl Iterator<Item = &'f [u8]> {
    Fields::new(lines)
        .filter(|field| fields.iter().any(|name| field.is(name.as_bytes())))
        .flat_map(|field| field.value.split(|b| matches!(b, b' ' | b'\t' | b',')))
        .filter(|member| !member.is_empty())
}

fn has_tag(object: &Object, fields: &[Box<str>], tag: &[u8]) -> bool {
    members(object.fields(), fields).any(|member| member == tag)
}

/// One worker's way into a [`Store`].
pub struct Handle {
    store: Store,
    worker: u32,
    mailbox: Arc<Mailbox>,
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
    /// Only the first bell is kept. Without one [`Handle::has_mail`] is to be asked now and then.
    pub fn set_bell(&self, bell: impl Fn() + Send + Sync + 'static) {
        let _ = self.mailbox.bell.set(Box::new(bell));
    }

    /// What to do with a request that comes at `now`, a Unix second.
    pub fn lookup(&mut self, ask: &Ask<'_, '_>, now: u64) -> Decision {
        let has_key = key::put(ask.site, ask.request, &mut self.key);
        let hash = self.store.inner.hash(&self.key);
        let shard = self.store.inner.shard(hash);
        let key = has_key.then_some(Key { hash, text: &self.key });
        let mut engine = locked(&self.store.inner.shards[shard]);
        let mut decision = engine.lookup(Asked { ask, worker: self.worker }, key, now);
        if let Decision::Fetch(fetch) | Decision::AnswerAndRefresh(_, fetch) = &mut decision {
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
        (locked(&self.store.inner.shards[shard]), ticket)
    }

    /// The head of the origin's final response to what was sent on for `request` at `asked_at`.
    ///
    /// Invalidates what an unsafe method may have changed (RFC 9111 §4.4).
    pub fn head(
        &mut self,
        ticket: Ticket,
        request: &Request<'_>,
        reply: &ReplyHead<'_>,
        asked_at: u64,
        now: u64,
    ) -> Verdict {
        let is_safe =
            matches!(request.method, Method::Get | Method::Head | Method::Options | Method::Trace);
        let (mut engine, inner) = self.engine(ticket);
        let key = if is_safe {
            None
        } else {
            engine.flights.get(inner).and_then(|fetching| fetching.key.clone())
        };
        let mut verdict = engine.head(inner, request, reply, Sent { asked_at, now });
        self.store.inner.deliver(engine, self.worker);
        if let Answer::AskAgain(Fetch { ticket: again, .. }) = &mut verdict.answer {
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
                if let Some(other) = key::of_reference(&key, request, field.value) {
                    self.invalidate(&other);
                }
            }
        }
        verdict
    }

    fn invalidate(&self, key: &[u8]) {
        let hash = self.store.inner.hash(key);
        locked(&self.store.inner.shards[self.store.inner.shard(hash)]).invalidate(hash, key);
    }

    /// Content of a response that is kept. False when it is no longer wanted: nothing more is to be told
    /// of it then.
    pub fn append(&mut self, ticket: Ticket, octets: &[u8]) -> bool {
        let (mut engine, inner) = self.engine(ticket);
        let is_wanted = engine.append(inner, octets);
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
    pub fn fail(&mut self, ticket: Ticket, now: u64) -> Option<Hit> {
        let (mut engine, inner) = self.engine(ticket);
        let hit = engine.fail(inner, now);
        self.store.inner.deliver(engine, self.worker);
        hit
    }

    /// Whether a fetch is worth going on with when its own client is gone: others wait for it, or it is
    /// being stored.
    pub fn is_wanted(&self, ticket: Ticket) -> bool {
        let (mut engine, inner) = self.engine(ticket);
        let fetching = engine.flights.get(inner);
        fetching.is_some_and(|f| f.has_waiters() || f.kept.is_some() || f.is_refresh)
    }

    /// Whether [`Handle::next_woken`] has something. Costs no lock.
    pub fn has_mail(&self) -> bool {
        self.mailbox.has_mail.load(Ordering::Acquire)
    }

    /// The next of this worker's numbers whose waiting is over. Ask after each call that ends a fetch,
    /// and when the bell rang.
    pub fn next_woken(&mut self) -> Option<u64> {
        if !self.has_mail() {
            return None;
        }
        let mut numbers = locked(&self.mailbox.numbers);
        let number = numbers.pop_front();
        if numbers.is_empty() {
            self.mailbox.has_mail.store(false, Ordering::Release);
        }
        number
    }
}
