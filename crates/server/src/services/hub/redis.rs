//! The history on a Redis server: several hubs with the same history act as one hub.
//!
//! Updates are entries of one stream. Redis numbers them (`XADD KEY EPOCH-*`), so that every hub has the same
//! order, and detects missed updates by a gap in the numbers. The epoch is the time at which the stream was
//! created: entries of a new stream come after those of the old one. Two threads work beside the event loops,
//! each with its own connection: one [appends](publish) updates to the stream, the other [follows](follow)
//! the stream and copies it to the log. Updates that a hub publishes reach its own subscribers in that way
//! too.

mod connection;
mod entry;
mod follow;
mod freeze;
mod publish;
mod resp;
mod start;

use super::{
    lock::lock,
    shared::{HubShared, Ticket},
    store::PublishJob,
};
use crate::{config::HubConfig, stats::HubStoreStatistics};
use connection::Socket;
use entry::EntryId;
use pollux_guestbook::redis::Url;
use pollux_hub::{history::Sequence, reject::Reject};
use std::{
    collections::VecDeque,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc::{Receiver, SyncSender, TrySendError, sync_channel},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

/// The maximum number of tasks that wait for Redis; publishers of further updates get 503.
const QUEUE: usize = 4096;
/// The maximum length of a reply in bytes, unless a single update may be larger.
const REPLY_BYTES: usize = 64 << 20;
/// The factor by which an update may grow as JSON, which escapes a control character with six bytes.
const ESCAPED: usize = 8;
/// The maximum time that the start waits for the history. A hub whose Redis is not available starts without
/// it.
const START_WAIT: Duration = Duration::from_secs(10);
/// The pauses between two attempts to reach Redis: the first and the longest.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));

/// A task for the thread that appends.
#[derive(Debug)]
enum StreamTask {
    Publish(PublishJob),
    /// Answer once the log has everything that the stream has now.
    CatchUp(Ticket),
}

/// The hub's handle for the two threads.
#[derive(Debug)]
pub(super) struct RedisHubStore {
    tasks: Option<SyncSender<StreamTask>>,
    redis: Arc<RedisShared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// The state that the threads and the hub share.
#[derive(Debug)]
struct RedisShared {
    url: Url,
    /// The key of the stream.
    key: String,
    /// The minimum number of updates that the stream keeps.
    length: usize,
    reply_bytes: usize,
    /// Whether the history was read. It is read for each new subscriber, so without a lock.
    is_loaded: AtomicBool,
    /// Whether the log follows the stream now, so that a ticket can wait for an entry.
    is_following: AtomicBool,
    /// The number of times that the log followed the stream again after a failure.
    reconnections: AtomicU64,
    /// The position of the log in the stream, and the tickets that wait for an entry.
    progress: Mutex<Progress>,
    /// Whether the log no longer follows the stream, because another process does. The lock is held while
    /// entries are appended to the log.
    is_frozen: Mutex<bool>,
    thawed: Condvar,
    state: Mutex<ThreadState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Progress {
    /// The last entry that is in the log.
    position: EntryId,
    waiting: Vec<(Ticket, EntryId)>,
    /// The newest entries, each with the position of the log after it.
    taken: VecDeque<(EntryId, Sequence)>,
}

#[derive(Debug, Default)]
struct ThreadState {
    has_ended: bool,
    /// The result of reading the history at the start.
    start: Option<Result<(), Start>>,
    /// The connections of the two threads.
    sockets: [Option<Socket>; 2],
}

/// The reason why the history was not read at the start.
#[derive(Clone, Debug)]
enum Start {
    /// Redis is not available yet.
    Missing,
    /// An operator has to change something; the text is the reason.
    Refused(String),
}

/// The thread to which a connection belongs.
#[derive(Clone, Copy)]
enum Role {
    Publish,
    Follow,
}

impl RedisHubStore {
    /// Creates the store before its threads run, and the values that the threads need.
    pub(super) fn new(url: &Url, config: &HubConfig) -> (Self, ThreadSetup) {
        let redis = Arc::new(RedisShared {
            url: url.clone(),
            key: format!("pollux-hub:{}", config.path),
            length: config.limits.history_updates.max(1),
            reply_bytes: REPLY_BYTES.max(config.limits.update_bytes.saturating_mul(ESCAPED)),
            is_loaded: AtomicBool::new(false),
            is_following: AtomicBool::new(false),
            reconnections: AtomicU64::new(0),
            progress: Mutex::default(),
            is_frozen: Mutex::default(),
            thawed: Condvar::new(),
            state: Mutex::default(),
            changed: Condvar::new(),
        });
        let (send, tasks) = sync_channel(QUEUE);
        let history_age = config.limits.history_age;
        (
            Self { tasks: Some(send), redis, threads: Mutex::default() },
            ThreadSetup { tasks, history_age },
        )
    }

    /// Queues an update for Redis.
    pub(super) fn put(&self, job: PublishJob) -> Result<(), Reject> {
        self.submit(StreamTask::Publish(job))
    }

    /// Answers a ticket once the log has everything that the stream has now.
    pub(super) fn catch_up(&self, ticket: Ticket) -> Result<(), Reject> {
        self.submit(StreamTask::CatchUp(ticket))
    }

    fn submit(&self, task: StreamTask) -> Result<(), Reject> {
        let stopping = || Reject::unavailable("the hub is stopping: try again later");
        let tasks = self.tasks.as_ref().ok_or_else(stopping)?;
        tasks.try_send(task).map_err(|error| match error {
            TrySendError::Full(_) => Reject::unavailable("the hub's Redis is too slow: try again"),
            TrySendError::Disconnected(_) => stopping(),
        })
    }

    /// Returns the present state of the connection.
    pub(super) fn statistics(&self) -> HubStoreStatistics {
        HubStoreStatistics {
            is_connected: self.redis.is_following.load(Ordering::Relaxed),
            reconnections: self.redis.reconnections.load(Ordering::Relaxed),
        }
    }

    /// Returns whether the history was read successfully.
    pub(super) fn is_loaded(&self) -> bool {
        self.redis.is_loaded.load(Ordering::Acquire)
    }
}

/// The values that the threads need.
#[derive(Debug)]
pub(super) struct ThreadSetup {
    tasks: Receiver<StreamTask>,
    history_age: Duration,
}

impl Drop for RedisHubStore {
    fn drop(&mut self) {
        self.tasks = None;
        self.redis.end();
        for thread in std::mem::take(&mut *lock(&self.threads)) {
            if thread.thread().id() != thread::current().id() {
                let _ = thread.join();
            }
        }
    }
}

impl RedisShared {
    fn state(&self) -> MutexGuard<'_, ThreadState> {
        lock(&self.state)
    }

    /// Ends both threads, and interrupts their waiting.
    fn end(&self) {
        let mut state = self.state();
        state.has_ended = true;
        for socket in state.sockets.iter().flatten() {
            socket.shut_down();
        }
        drop(state);
        self.changed.notify_all();
        self.thawed.notify_all();
    }

    fn has_ended(&self) -> bool {
        self.state().has_ended
    }

    /// Connects, and stores the socket, so that [`RedisShared::end`] can interrupt a thread that waits for
    /// a reply.
    fn connect(&self, role: Role) -> Result<connection::RedisConnection, connection::RedisError> {
        let connection = connection::RedisConnection::open(&self.url, self.reply_bytes)?;
        let socket = connection.socket()?;
        let mut state = self.state();
        if state.has_ended {
            socket.shut_down();
        }
        state.sockets[role as usize] = Some(socket);
        Ok(connection)
    }

    /// Waits for `time`, or until the hub has ended.
    fn pause(&self, time: Duration) {
        let until = Instant::now() + time;
        let mut state = self.state();
        while !state.has_ended {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            let waited = self.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Notes the result of reading the history. Results after a success are ignored.
    fn note_start(&self, outcome: Result<(), Start>) {
        let mut state = self.state();
        if outcome.is_ok() {
            self.is_loaded.store(true, Ordering::Release);
        }
        if !matches!(state.start, Some(Ok(()))) {
            state.start = Some(outcome);
        }
        drop(state);
        self.changed.notify_all();
    }

    fn wait_for_start(&self) -> Option<Result<(), Start>> {
        let until = Instant::now() + START_WAIT;
        let mut state = self.state();
        while state.start.is_none() && !state.has_ended {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let waited = self.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        state.start.clone()
    }

    /// Notes that the log has the stream up to `position`, and answers the tickets that wait for that.
    fn advance(&self, shared: &HubShared, position: EntryId) {
        let mut progress = lock(&self.progress);
        progress.position = position;
        let mut is_answered = false;
        progress.waiting.retain(|&(ticket, wanted)| {
            let is_waiting = wanted > position;
            if !is_waiting {
                shared.answer(ticket, Ok("".into()));
                is_answered = true;
            }
            is_waiting
        });
        drop(progress);
        if is_answered {
            shared.notify_workers();
        }
    }

    /// Answers all tickets that wait for an entry with an error, because the log no longer follows the
    /// stream.
    fn fail_waiting(&self, shared: &HubShared, answer: &Reject) {
        self.is_following.store(false, Ordering::SeqCst);
        let waiting = std::mem::take(&mut lock(&self.progress).waiting);
        if waiting.is_empty() {
            return;
        }
        for (ticket, _) in waiting {
            shared.answer(ticket, Err(answer.clone()));
        }
        shared.notify_workers();
    }
}

fn doubled(pause: Duration) -> Duration {
    (pause * 2).min(BACKOFF.1)
}
