//! Which workers must be woken because the log has grown or an answer has arrived.
//!
//! An update to few subscribers concerns few workers, and to wake one costs more than to deliver the update. A worker
//! therefore sleeps on until an update may concern it, and reads then, or at its next check, what it has not read. A
//! thread compares each update with what the workers' subscribers read ([`TopicFilter`]).
//!
//! A worker that gets its first subscriber of a topic adds the topic to its filter, and then looks at the end of the
//! log. The thread looks at the end of the log, and then at the filters. So at least one of both notices an update
//! that is published meanwhile.

use super::lock::lock;
use pollux_hub::{
    history::{History, Sequence},
    limits::Limits,
    subscribers::{TopicFilter, TopicKey},
    update::Update,
};
use std::sync::{
    Arc, Condvar, Mutex, PoisonError,
    atomic::{AtomicBool, AtomicU64, Ordering, fence},
};

/// A worker is also woken for updates that do not concern it, if they are more than the history divided by this number:
/// the worker's copy of the history keeps old updates in memory, and to read many at once takes long.
const LAG_SHARE: usize = 8;
/// A worker reads the log before it has published more updates than this, so that it delivers during a long iteration.
const UNREAD_MAX: usize = 256;
/// The number of updates for which the thread keeps memory.
const ROUND_KEPT: usize = 4096;

/// What the thread that wakes workers must know of them.
#[derive(Debug)]
pub(super) struct Notifications {
    news: Mutex<News>,
    has_news: Condvar,
    workers: Box<[WorkerNews]>,
    /// Every update up to this position was compared with the filters.
    compared: AtomicU64,
}

/// Whether something has happened since the thread last looked, and whether the hub has ended.
#[derive(Debug, Default)]
struct News {
    is_there: bool,
    has_ended: bool,
}

#[derive(Debug)]
struct WorkerNews {
    /// Whether the worker was notified, and has not looked since.
    is_notified: AtomicBool,
    /// Whether an answer has arrived for it since the thread last looked.
    has_answer: AtomicBool,
    /// Its subscribers' topics. `None` if there are no other workers.
    filter: Option<Arc<TopicFilter>>,
    position: Mutex<Position>,
}

/// How far a worker has read the log, and what it has yet to read.
#[derive(Debug, Default)]
struct Position {
    read: Sequence,
    /// The oldest and the newest update after `read` that may concern the worker.
    unread: Option<(Sequence, Sequence)>,
    /// The size of the updates since it last read the log.
    lag: Size,
}

/// The size of some updates.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Size {
    pub(super) updates: usize,
    pub(super) bytes: usize,
}

impl Size {
    /// Returns what a worker may leave unread.
    fn most_lag(limits: &Limits) -> Self {
        Self {
            updates: limits.history_updates / LAG_SHARE,
            bytes: limits.history_bytes / LAG_SHARE,
        }
    }

    /// Returns whether a worker that has published these updates should read them now, before they leave the log.
    #[inline]
    pub(super) fn is_burst(self, limits: &Limits) -> bool {
        let most = Self::most_lag(limits);
        self.updates > most.updates.min(UNREAD_MAX) || self.bytes > most.bytes
    }
}

impl Position {
    /// Adds the oldest and the newest one of some updates that may concern the worker. Returns whether the worker has
    /// not read all of them.
    fn add(&mut self, oldest: Sequence, newest: Sequence) -> bool {
        let is_unread = newest > self.read;
        if is_unread {
            let oldest = oldest.max(self.read + 1);
            let former = self.unread.unwrap_or((oldest, newest));
            self.unread = Some((oldest.min(former.0), newest.max(former.1)));
        }
        is_unread
    }

    /// Adds to the size of what the worker may not have read. Returns whether this is too much.
    fn lag(&mut self, size: Size, last: Sequence, most: Size) -> bool {
        if last <= self.read {
            return false;
        }
        self.lag.updates += size.updates;
        self.lag.bytes += size.bytes;
        self.lag.updates > most.updates || self.lag.bytes > most.bytes
    }
}

/// The memory of the thread, which is used again for each round.
#[derive(Debug, Default)]
pub(crate) struct NewsRound {
    updates: Vec<(Sequence, Arc<Update>)>,
    keys: Vec<(Sequence, TopicKey)>,
}

impl Notifications {
    pub(super) fn new(workers: usize) -> Self {
        let worker = |_| WorkerNews {
            is_notified: AtomicBool::new(false),
            has_answer: AtomicBool::new(false),
            filter: (workers > 1).then(|| Arc::new(TopicFilter::new(workers))),
            position: Mutex::default(),
        };
        Self {
            news: Mutex::default(),
            has_news: Condvar::new(),
            workers: (0..workers).map(worker).collect(),
            compared: AtomicU64::new(0),
        }
    }

    /// Returns how many workers there are.
    pub(super) fn workers(&self) -> usize {
        self.workers.len()
    }

    /// Begins with a worker, which may replace one that has panicked. Returns the filter for the topics of its
    /// subscribers.
    pub(super) fn begin_worker(&self, index: usize) -> Option<Arc<TopicFilter>> {
        let worker = &self.workers[index];
        worker.is_notified.store(false, Ordering::SeqCst);
        *lock(&worker.position) = Position::default();
        let filter = worker.filter.as_ref()?;
        filter.clear();
        Some(filter.clone())
    }

    /// Wakes the thread.
    pub(super) fn announce(&self) {
        lock(&self.news).is_there = true;
        self.has_news.notify_one();
    }

    /// Notes that there is an answer for a worker. The caller calls [`Notifications::announce`] afterwards.
    pub(super) fn add_answer(&self, worker: usize) {
        self.workers[worker].has_answer.store(true, Ordering::Release);
    }

    /// Waits until something has happened since the last call. Returns false if the hub has ended.
    pub(super) fn wait(&self) -> bool {
        let mut news = lock(&self.news);
        while !news.is_there && !news.has_ended {
            news = self.has_news.wait(news).unwrap_or_else(PoisonError::into_inner);
        }
        news.is_there = false;
        !news.has_ended
    }

    /// Ends [`Notifications::wait`].
    pub(super) fn end(&self) {
        lock(&self.news).has_ended = true;
        self.has_news.notify_all();
    }

    pub(super) fn has_ended(&self) -> bool {
        lock(&self.news).has_ended
    }

    /// Returns whether a worker was notified and has not looked since.
    #[inline]
    pub(super) fn is_notified(&self, worker: usize) -> bool {
        self.workers[worker].is_notified.load(Ordering::Acquire)
    }

    /// Clears the mark of a worker that is about to read the log and its answers. What arrives from now on notifies the
    /// worker again, even if this notification was unnecessary.
    pub(super) fn has_looked(&self, worker: usize) {
        // A swap, so that the worker sees whatever the thread saw before it set the mark.
        self.workers[worker].is_notified.swap(false, Ordering::SeqCst);
    }

    /// Notes that a worker has read the log up to `last`, except for the updates up to `lost`, which had left the log.
    /// Returns whether one of these may concern the worker.
    pub(super) fn has_read(&self, worker: usize, lost: Sequence, last: Sequence) -> bool {
        let is_compared = self.compared.load(Ordering::Acquire) >= lost;
        let mut position = lock(&self.workers[worker].position);
        let is_loss = lost > position.read
            && (!is_compared || position.unread.is_some_and(|(oldest, _)| oldest <= lost));
        position.read = position.read.max(last);
        position.lag = Size::default();
        let (_, newest) = position.unread.unwrap_or_default();
        // The oldest one that is left is not known: it may be the next one.
        position.unread = (newest > last).then_some((last + 1, newest));
        is_loss
    }

    /// Calls `wake` for each worker that the log or an answer concerns, and that was not woken since it last looked.
    /// `head` is the position of the newest update; it is read while the log is locked.
    pub(super) fn wake_workers(
        &self,
        log: &Mutex<History>,
        head: &AtomicU64,
        limits: &Limits,
        round: &mut NewsRound,
        mut wake: impl FnMut(usize),
    ) {
        let compared = self.compared.load(Ordering::Relaxed);
        let log = lock(log);
        // A position that was left out behind the newest update counts when the next update is there.
        let (first, last) = (log.first(), log.last().min(head.load(Ordering::Acquire)));
        let fresh = log.entries_after(compared);
        round.updates.extend(fresh.map(|(sequence, update, _)| (sequence, update.clone())));
        drop(log);
        // Some updates left the log before they could be compared.
        let has_gap = first > compared + 1;
        let mut size = Size { updates: round.updates.len(), bytes: 0 };
        for (sequence, update) in round.updates.drain(..) {
            size.bytes += update.bytes();
            round.keys.extend(update.topics.iter().map(|topic| (sequence, TopicKey::of(topic))));
        }
        let most = Size::most_lag(limits);
        // The end of the log was read before the filters: see the description of this module.
        fence(Ordering::SeqCst);
        for (index, worker) in self.workers.iter().enumerate() {
            let span = match &worker.filter {
                Some(filter) if !has_gap => {
                    let is_read = |key: &&(Sequence, TopicKey)| filter.may_read(key.1);
                    let oldest = round.keys.iter().find(is_read);
                    oldest.zip(round.keys.iter().rev().find(is_read)).map(|(a, b)| (a.0, b.0))
                }
                _ => Some((compared + 1, last)),
            };
            let mut position = lock(&worker.position);
            let is_concerned = span.is_some_and(|(oldest, newest)| position.add(oldest, newest));
            // Both are called: each of them changes the position.
            let is_behind = is_concerned | position.lag(size, last, most);
            drop(position);
            let has_answer = worker.has_answer.swap(false, Ordering::AcqRel);
            if (is_behind || has_answer) && !worker.is_notified.swap(true, Ordering::SeqCst) {
                wake(index);
            }
        }
        round.keys.clear();
        round.updates.shrink_to(ROUND_KEPT);
        round.keys.shrink_to(ROUND_KEPT);
        self.compared.store(last, Ordering::Release);
    }

    /// Notes that a worker which has read the log up to `last` has a subscriber more: updates after `last` may concern
    /// it, although they were compared with its filter already.
    pub(super) fn note_subscriber(&self, worker: usize, last: Sequence, head: &AtomicU64) {
        // The filter was written before the end of the log is read: see the description of this module.
        fence(Ordering::SeqCst);
        let head = head.load(Ordering::Acquire);
        if head > last {
            lock(&self.workers[worker].position).add(last + 1, head);
        }
    }
}
