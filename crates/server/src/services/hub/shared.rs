//! The state that the workers of one hub share: the log, the keys, the matchers in use.

use super::{
    announce::Announcements,
    backlog::Backlog,
    care,
    keys::{self, FetchedKeys},
    notifications::{NewsRound, Notifications},
    redis::RedisHubStore,
    store::{HubStore, PublishJob, Store, StoreFile},
    transfer::Transfer,
};
pub(super) use super::{
    lock::lock,
    record::{since_1970, unix_time},
};
use crate::{
    clients::client_key,
    config::{HubConfig, HubStoreConfig},
    reactor::ExchangeId,
    stats::HubStatistics,
    upgrade,
};
use pollux_hub::{
    history::{History, Sequence},
    matcher::MatcherCache,
    rate::RateLimit,
    reject::Reject,
    subscribers::{MaxLifetime, TopicFilter},
    subscriptions::Registry,
    token::Verifier,
    topic::HubUrl,
    update::{Publication, Update},
};
use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc::SyncSender,
    },
    time::{Duration, Instant},
};

/// The part of a hub that its workers share.
#[derive(Debug)]
pub(crate) struct HubShared {
    pub(super) config: Arc<HubConfig>,
    pub(super) url: HubUrl,
    /// The patterns of subscribers, and those of tokens.
    pub(super) matchers: MatcherCache,
    pub(super) token_matchers: MatcherCache,
    pub(super) subscribers: Option<Verifier>,
    pub(super) publishers: Option<Verifier>,
    /// The keys from `--hub-jwks URL` with which tokens are verified; `None` if there are none yet.
    pub(super) fetched_keys: Mutex<Option<FetchedKeys>>,
    /// The maximum time between two checks of a worker.
    pub(super) care_interval: Duration,
    /// The maximum duration of a stream.
    pub(super) max_lifetime: Option<MaxLifetime>,
    /// The log. Workers copy from it, so that no worker holds the lock while it sends.
    pub(super) log: Mutex<History>,
    /// The state of a live upgrade, which decides where updates go.
    pub(super) transfer: Mutex<Transfer>,
    /// After a live upgrade: a position in the log of the former process, and the corresponding position in
    /// this log, if they may differ.
    pub(super) anchor: Mutex<Option<(Sequence, Sequence)>>,
    /// Whether a live upgrade is in progress. It is changed while the log is locked, except at the start and
    /// with Redis.
    pub(super) is_transferring: AtomicBool,
    /// Whether publishers or subscribers may be waiting for an answer.
    pub(super) may_answer: AtomicBool,
    /// The position of the last update in the log, which can be read without the lock.
    pub(super) head: AtomicU64,
    /// The bytes of all updates that were appended to the log. It is changed while the log is locked.
    appended: AtomicU64,
    /// The store that receives updates before they are appended to the log; `None` if the history is only in
    /// memory.
    store: Option<Store>,
    /// The bytes of the updates that wait for the store, or for the other process of an upgrade.
    pub(super) backlog: Backlog,
    /// The answers for waiting exchanges, for each worker.
    answers: Box<[Mutex<Mailbox>]>,
    rate: Mutex<RateLimit>,
    registry: Mutex<Registry>,
    /// The events of subscriptions that the store has not taken yet.
    pub(super) announcements: Mutex<Announcements>,
    /// The number of subscribers of each client, by its key.
    addresses: Mutex<HashMap<u64, u32>>,
    /// Which workers must be woken.
    pub(super) notifications: Notifications,
    started_at: Instant,
}

/// An exchange that waits: a publisher until its update is stored, a subscriber until the log has caught up.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ticket {
    pub(super) worker: WorkerId,
    pub(super) exchange: ExchangeId,
}

/// A worker of the hub. A worker that replaces another one has the same index and the next generation: an
/// answer for an exchange of the former worker must not reach an exchange of the new worker with the same
/// number.
#[derive(Clone, Copy, Debug)]
pub(super) struct WorkerId {
    pub(super) index: usize,
    generation: u32,
}

/// The answers that a worker has not taken yet.
#[derive(Debug, Default)]
struct Mailbox {
    generation: u32,
    answers: Answers,
}

/// Answers, each with the exchange that waits for it.
pub(super) type Answers = Vec<(ExchangeId, Result<Arc<str>, Reject>)>;

impl HubShared {
    /// Reads the keys and opens the store. `origin` is the server's URL if none is configured.
    ///
    /// # Errors
    /// A key cannot be read or is invalid, or the store cannot be opened.
    pub(crate) fn open(
        config: &Arc<HubConfig>,
        origin: &str,
        workers: usize,
    ) -> anyhow::Result<Arc<Self>> {
        let url = config.url(origin)?;
        let (subscribers, publishers) = config.read_keys()?;
        let verifier = |keys| {
            let resource = url.as_str().to_owned();
            let verifier = Verifier::new(keys, config.dialect, resource, config.issuers.clone());
            if config.origin.is_some() { verifier.with_public_resource() } else { verifier }
        };
        let mut log = History::new(&config.limits);
        let (mut file, mut redis, mut store) = (None, None, None);
        match &config.store {
            HubStoreConfig::Memory => {}
            HubStoreConfig::File(path) => {
                let (opened, queue, contents) = StoreFile::open(path, &config.limits)?;
                for (sequence, record) in contents {
                    let update = Arc::new(Update::new(&record.id, &record.publication));
                    // The clock of the log begins at this age.
                    let at = config.limits.history_age.saturating_sub(record.age());
                    log.append_at(sequence, update, at);
                }
                file = Some(opened);
                store = Some(Store::File(queue));
            }
            HubStoreConfig::Redis(url) => {
                let (queue, prepared) = RedisHubStore::new(url, config);
                redis = Some(prepared);
                store = Some(Store::Redis(queue));
            }
        }
        let care_interval = care::interval(config);
        let shared = Arc::new(Self {
            head: AtomicU64::new(log.last()),
            appended: AtomicU64::new(0),
            transfer: Mutex::default(),
            anchor: Mutex::default(),
            is_transferring: AtomicBool::new(false),
            may_answer: AtomicBool::new(store.is_some()),
            store,
            backlog: Backlog::default(),
            answers: (0..workers).map(|_| Mutex::default()).collect(),
            subscribers: subscribers.map(verifier),
            publishers: publishers.map(verifier),
            fetched_keys: Mutex::default(),
            matchers: MatcherCache::default(),
            token_matchers: MatcherCache::for_tokens(),
            max_lifetime: MaxLifetime::new(config.max_lifetime, care_interval),
            care_interval,
            log: Mutex::new(log),
            rate: Mutex::new(RateLimit::new(config.limits.updates_per_second)),
            registry: Mutex::default(),
            announcements: Mutex::default(),
            addresses: Mutex::default(),
            notifications: Notifications::new(workers),
            started_at: Instant::now(),
            config: config.clone(),
            url,
        });
        match (&shared.store, file, redis) {
            (Some(Store::File(store)), Some(file), _) => file.start(&shared, store)?,
            (Some(Store::Redis(store)), _, Some(redis)) => store.start(redis, &shared)?,
            _ => {}
        }
        keys::watch(config, {
            let hub = Arc::downgrade(&shared);
            move |news| {
                let Some(hub) = hub.upgrade().filter(|hub| !hub.has_ended()) else { return false };
                if let Some((keys, text)) = news {
                    hub.set_keys(keys, text);
                }
                true
            }
        })?;
        if upgrade::is_in_progress() && shared.redis().is_none() {
            shared.hold();
        }
        Ok(shared)
    }

    /// Returns whether [`HubShared::end`] was called.
    pub(super) fn has_ended(&self) -> bool {
        self.notifications.has_ended()
    }

    /// Returns whether workers need the thread that notifies them of the actions of other threads.
    pub(crate) fn needs_news(&self) -> bool {
        self.notifications.workers() > 1 || self.may_answer.load(Ordering::Acquire)
    }

    /// Publishes an update. Returns its identifier, or `None` if the answer comes later, because the update
    /// must be stored first.
    pub(super) fn publish(
        &self,
        publication: Publication,
        ticket: Option<Ticket>,
    ) -> Result<Option<Arc<str>>, Reject> {
        self.publish_for(publication, ticket, None)
    }

    /// Publishes an update. A later answer is sent to `waiting`, too.
    pub(super) fn publish_for(
        &self,
        publication: Publication,
        ticket: Option<Ticket>,
        waiting: Option<SyncSender<Result<(), Reject>>>,
    ) -> Result<Option<Arc<str>>, Reject> {
        let id = match &publication.id {
            Some(id) => id.clone(),
            None => format!("urn:uuid:{}", uuid::Uuid::new_v4()),
        };
        self.publish_job(PublishJob { publication, id, ticket, waiting, share: None })
    }

    /// Publishes an update, here or in the other process of a live upgrade.
    pub(super) fn publish_job(&self, job: PublishJob) -> Result<Option<Arc<str>>, Reject> {
        if self.store.is_none() {
            // The update is encoded before the lock is taken, because it may be large.
            let update = Arc::new(Update::new(&job.id, &job.publication));
            let log = lock(&self.log);
            if self.is_transferring.load(Ordering::Acquire) {
                drop(log);
                return self.publish_in_transfer(job);
            }
            let id = self.append_to(log, update, self.now());
            self.notify_workers();
            return Ok(Some(id));
        }
        if self.redis().is_some() {
            // Redis numbers the updates of both processes of an upgrade.
            return self.publish_here(job);
        }
        // The lock prevents an upgrade from beginning before this update is queued; the file is closed after
        // it.
        let log = lock(&self.log);
        if self.is_transferring.load(Ordering::Acquire) {
            drop(log);
            return self.publish_in_transfer(job);
        }
        self.publish_here(job)
    }

    /// Publishes an update in this process.
    pub(super) fn publish_here(&self, job: PublishJob) -> Result<Option<Arc<str>>, Reject> {
        if let Some(store) = &self.store {
            return store.put(job.admitted(&self.backlog)?).map(|()| None);
        }
        let id = self.append(&job.id, &job.publication);
        self.notify_workers();
        Ok(Some(id))
    }

    /// Returns the Redis store of the history, if there is one.
    pub(super) fn redis(&self) -> Option<&RedisHubStore> {
        match &self.store {
            Some(Store::Redis(store)) => Some(store),
            _ => None,
        }
    }

    /// Returns the file store of the history, if there is one.
    pub(super) fn file(&self) -> Option<&HubStore> {
        match &self.store {
            Some(Store::File(store)) => Some(store),
            _ => None,
        }
    }

    /// Appends an update to the log.
    pub(super) fn append(&self, id: &str, publication: &Publication) -> Arc<str> {
        self.append_aged(id, publication, Duration::ZERO)
    }

    /// Appends an update that was published some time ago.
    pub(super) fn append_aged(
        &self,
        id: &str,
        publication: &Publication,
        age: Duration,
    ) -> Arc<str> {
        let update = Arc::new(Update::new(id, publication));
        self.append_to(lock(&self.log), update, self.now().saturating_sub(age))
    }

    /// Appends an update of another process, at the position and the time that it had there.
    pub(super) fn append_at(&self, sequence: Sequence, update: Update, at: Duration) {
        let mut log = lock(&self.log);
        self.count_appended(&update);
        log.append_at(sequence, Arc::new(update), at);
        self.head.store(log.last(), Ordering::Release);
    }

    fn append_to(
        &self,
        mut log: MutexGuard<'_, History>,
        update: Arc<Update>,
        at: Duration,
    ) -> Arc<str> {
        let id = update.id.clone();
        self.count_appended(&update);
        let sequence = log.append(update, at);
        self.head.store(sequence, Ordering::Release);
        id
    }

    /// Counts an update that is about to be appended to the log, which is locked.
    fn count_appended(&self, update: &Update) {
        let bytes = self.appended() + update.bytes() as u64;
        self.appended.store(bytes, Ordering::Relaxed);
    }

    /// Returns the bytes of all updates that were appended to the log.
    #[inline]
    pub(super) fn appended(&self) -> u64 {
        self.appended.load(Ordering::Relaxed)
    }

    /// Leaves out a position, because updates were lost between the last one and the next one. Subscribers
    /// then receive the notice that updates were skipped.
    pub(super) fn skip_one(&self) {
        lock(&self.log).leave_gap();
    }

    /// Requests an answer to a ticket for the time when the log has all updates that other hubs have
    /// published until now. Returns false if no wait is necessary: the log is never behind, or the log has
    /// what this subscriber needs in any case.
    pub(super) fn catch_up(
        &self,
        last_event_id: Option<&str>,
        ticket: Ticket,
    ) -> Result<bool, Reject> {
        match &self.store {
            Some(store) if store.may_lag(last_event_id) => store.catch_up(ticket).map(|()| true),
            _ => Ok(false),
        }
    }

    /// Requests that the workers are notified, because the log has grown or there are answers.
    pub(super) fn notify_workers(&self) {
        self.notifications.announce();
    }

    /// Registers a worker, which may replace one that has panicked. Answers for the replaced worker are
    /// dropped. Returns the filter for the topics of the worker's subscribers, if there are other workers.
    pub(super) fn begin_worker(&self, index: usize) -> (WorkerId, Option<Arc<TopicFilter>>) {
        let filter = self.notifications.begin_worker(index);
        let mut mailbox = lock(&self.answers[index]);
        let generation = mailbox.generation.wrapping_add(1);
        *mailbox = Mailbox { generation, answers: Answers::new() };
        (WorkerId { index, generation }, filter)
    }

    /// Queues the answer for an exchange. The answer is dropped if the worker of the exchange was replaced.
    pub(super) fn answer(&self, ticket: Ticket, answer: Result<Arc<str>, Reject>) {
        let mut mailbox = lock(&self.answers[ticket.worker.index]);
        if mailbox.generation == ticket.worker.generation {
            mailbox.answers.push((ticket.exchange, answer));
            self.notifications.add_answer(ticket.worker.index);
        }
    }

    /// Returns whether there are answers for a worker.
    #[inline]
    pub(super) fn has_answers(&self, worker: usize) -> bool {
        self.may_answer.load(Ordering::Acquire) && !lock(&self.answers[worker]).answers.is_empty()
    }

    /// Takes the answers for the exchanges of a worker.
    pub(super) fn take_answers(&self, worker: usize) -> Answers {
        std::mem::take(&mut lock(&self.answers[worker]).answers)
    }

    /// Counts a publisher's update. Returns whether it is within the rate limit.
    pub(super) fn allows_update(&self) -> bool {
        let now = self.now();
        lock(&self.rate).allow(now)
    }

    /// Returns the position of the newest update.
    #[inline]
    pub(super) fn head(&self) -> Sequence {
        self.head.load(Ordering::Acquire)
    }

    /// Copies new updates to a worker's history, and calls `note` for each. If updates that may concern the worker left
    /// the log before it read them, `note` is called once for all of them, with the last of their positions and without
    /// an update.
    pub(super) fn read_on(
        &self,
        worker: usize,
        history: &mut History,
        mut note: impl FnMut(Sequence, Option<&Arc<Update>>),
    ) {
        // The mark is cleared before the log is read, so that an update that is appended later notifies the
        // worker again, if it may concern the worker.
        self.notifications.has_looked(worker);
        let now = self.now();
        let mut log = lock(&self.log);
        log.expire(now);
        let from = (history.last() + 1).max(log.first());
        let fresh: Vec<_> = log
            .entries_after(history.last())
            .map(|(sequence, update, at)| (sequence, update.clone(), at))
            .collect();
        drop(log);
        if let Some((last, ..)) = fresh.last()
            && self.notifications.has_read(worker, from - 1, *last)
        {
            note(from - 1, None);
        }
        for (sequence, update, at) in fresh {
            history.append_at(sequence, update.clone(), at);
            note(sequence, Some(&update));
        }
        history.expire(now);
    }

    /// Removes updates from the log that have become too old.
    pub(super) fn expire(&self) {
        lock(&self.log).expire(self.now());
    }

    /// Returns the time on the clock of the log. The clock begins at `history_age`, so that the times of
    /// updates from a former process can be expressed.
    pub(super) fn now(&self) -> Duration {
        self.config.limits.history_age.saturating_add(self.started_at.elapsed())
    }

    /// Returns the present size of the history, and the state of its store.
    pub(crate) fn statistics(&self) -> HubStatistics {
        let (updates, bytes) = lock(&self.log).size();
        HubStatistics {
            history_updates: updates as u64,
            history_bytes: bytes as u64,
            store: self.redis().map(RedisHubStore::statistics),
        }
    }

    /// Returns the active subscriptions.
    pub(super) fn registry(&self) -> MutexGuard<'_, Registry> {
        lock(&self.registry)
    }

    /// Returns the identifier of the newest update, or `earliest`.
    pub(super) fn last_id(&self) -> String {
        lock(&self.log).last_id().to_owned()
    }

    /// Counts one more subscriber of an address. Returns false if the address has too many. The addresses of
    /// an IPv6 network (/64) count as one.
    pub(super) fn enter(&self, address: IpAddr) -> bool {
        let most = self.config.limits.subscribers_per_address;
        let mut addresses = lock(&self.addresses);
        let count = addresses.entry(client_key(address)).or_insert(0);
        let has_room = most == 0 || *count < most;
        *count += u32::from(has_room);
        has_room
    }

    /// Counts a subscriber that another process has admitted, even if the address has too many meanwhile.
    pub(super) fn enter_again(&self, address: IpAddr) {
        *lock(&self.addresses).entry(client_key(address)).or_insert(0) += 1;
    }

    /// Removes one subscriber from the count of an address.
    pub(super) fn leave(&self, address: IpAddr) {
        let mut addresses = lock(&self.addresses);
        let key = client_key(address);
        if let Some(count) = addresses.get_mut(&key) {
            *count -= 1;
            if *count == 0 {
                addresses.remove(&key);
            }
        }
    }

    /// Waits until the log has grown, or an answer has arrived, since the last call. Returns false if the hub has ended.
    pub(crate) fn wait_for_news(&self) -> bool {
        self.notifications.wait()
    }

    /// Ends [`HubShared::wait_for_news`].
    pub(crate) fn end(&self) {
        self.notifications.end();
    }

    /// Calls `wake` for each worker that the log or an answer concerns, and that was not woken since it last looked.
    pub(crate) fn wake_workers(&self, round: &mut NewsRound, wake: impl FnMut(usize)) {
        let Self { notifications, log, head, config, .. } = self;
        notifications.wake_workers(log, head, &config.limits, round, wake);
    }

    /// Notes that a worker which has read the log up to `last` has a subscriber more.
    pub(super) fn note_subscriber(&self, worker: usize, last: Sequence) {
        self.notifications.note_subscriber(worker, last, &self.head);
    }

    /// Notifies the workers as their thread does, and returns which ones.
    #[cfg(test)]
    pub(super) fn woken(&self) -> Vec<usize> {
        let mut woken = Vec::new();
        self.wake_workers(&mut NewsRound::default(), |index| woken.push(index));
        woken
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reactor::ClientId;

    #[test]
    fn answers_for_a_worker_that_has_panicked_do_not_reach_the_next() {
        let config = Arc::new(HubConfig::new("/hub"));
        let shared = HubShared::open(&config, "http://h", 1).unwrap();
        let exchange = ExchangeId { client: ClientId { fd: 7, generation: 1 }, number: 1 };
        let former = Ticket { worker: shared.begin_worker(0).0, exchange };
        shared.answer(former, Ok("waits".into()));
        let present = Ticket { worker: shared.begin_worker(0).0, exchange };
        shared.answer(former, Ok("late".into()));
        assert!(shared.take_answers(0).is_empty());
        shared.answer(present, Ok("own".into()));
        assert_eq!(shared.take_answers(0), [(exchange, Ok("own".into()))]);
    }

    #[test]
    fn updates_that_wait_are_bounded_by_their_bytes() {
        let config = Arc::new(HubConfig::new("/hub"));
        let shared = HubShared::open(&config, "http://h", 1).unwrap();
        let publish = || {
            let (topics, data) = (vec!["t".to_owned()], "x".repeat(1 << 20));
            shared.publish(Publication { topics, data, ..Publication::default() }, None)
        };
        // As in a new process that waits for the log of the former one.
        shared.hold();
        let accepted = (0..100).take_while(|_| publish().is_ok()).count();
        assert_eq!(accepted, 63, "of 1 MiB each, with 64 MiB in all");
        assert_eq!(publish().unwrap_err().status, 503);
        shared.release();
        assert_eq!(shared.head(), 63);
        shared.hold();
        assert_eq!(publish().unwrap(), None);
    }
}
