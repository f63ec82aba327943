//! The history on disk: what was acknowledged is there after a restart.
//!
//! A thread of its own writes, for two reasons. Workers may have file tables of their own, in which
//! the file is not open. And a commit waits for the disk: meanwhile further updates collect, and
//! the next commit takes all of them.

use super::{
    record::Record,
    redis::RedisStore,
    shared::{HubShared, Ticket, unix_time},
};
use anyhow::{Context, ensure};
use pollux_hub::{history::Sequence, limits::Limits, reject::Reject, update::Publication};
use redb::{Database, ReadableTable, TableDefinition};
use std::{
    io,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        mpsc::{Receiver, SyncSender, TrySendError, sync_channel},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

/// Updates by their position in the log, as JSON.
const UPDATES: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("mercure-updates-1");
/// Updates that may wait for the disk; publishers of further ones receive an error and may retry.
const QUEUE: usize = 4096;
/// Updates of one commit.
const BATCH: usize = 1024;
/// Between two tries to open a file that could not be written to.
const REOPEN_PAUSE: Duration = Duration::from_secs(1);

/// An update on its way to the store.
#[derive(Clone, Debug)]
pub(super) struct Job {
    pub(super) publication: Publication,
    pub(super) id: String,
    /// The publisher's ticket: it is answered when the update is stored.
    pub(super) ticket: Option<Ticket>,
}

/// Where updates go before they are in the log.
#[derive(Debug)]
pub(super) enum Store {
    File(HubStore),
    Redis(RedisStore),
}

impl Store {
    /// Hands an update over. Its publisher is answered when it is stored.
    pub(super) fn put(&self, job: Job) -> Result<(), Reject> {
        match self {
            Self::File(store) => store.put(job),
            Self::Redis(store) => store.put(job),
        }
    }

    /// Whether the log may lack updates of other hubs that a client has.
    pub(super) fn may_lag(&self, last_event_id: &str) -> bool {
        match self {
            Self::File(_) => false,
            Self::Redis(store) => last_event_id != "earliest" || !store.is_loaded(),
        }
    }

    /// Answers a ticket once the log has what other hubs have published until now.
    pub(super) fn catch_up(&self, ticket: Ticket) -> Result<(), Reject> {
        match self {
            Self::File(_) => Err(unavailable("a file has no other hubs")),
            Self::Redis(store) => store.catch_up(ticket),
        }
    }
}

/// The way to the thread that writes.
#[derive(Debug)]
pub(super) struct HubStore {
    jobs: Option<SyncSender<Job>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl HubStore {
    /// Hands an update over.
    pub(super) fn put(&self, job: Job) -> Result<(), Reject> {
        let stopping = || unavailable("the hub is stopping: try again later");
        let jobs = self.jobs.as_ref().ok_or_else(stopping)?;
        jobs.try_send(job).map_err(|error| match error {
            TrySendError::Full(_) => unavailable("the hub's disk is too slow: try again"),
            TrySendError::Disconnected(_) => stopping(),
        })
    }
}

impl Drop for HubStore {
    /// Waits until the file is closed, so that it can be opened again.
    fn drop(&mut self) {
        self.jobs = None;
        let thread = self.thread.get_mut().ok().and_then(Option::take);
        if let Some(thread) = thread
            && thread.thread().id() != thread::current().id()
        {
            let _ = thread.join();
        }
    }
}

/// The store cannot take it now.
pub(super) fn unavailable(message: &'static str) -> Reject {
    Reject { status: 503, code: None, message: message.into() }
}

/// A file that is open, before its thread runs.
#[derive(Debug)]
pub(super) struct StoreFile {
    path: PathBuf,
    /// `None` after a failure: redb refuses further changes until the file is opened again.
    database: Option<Database>,
    /// When it was last opened, or could not be.
    opened_at: Instant,
    jobs: Receiver<Job>,
    /// The first position that the file holds.
    first: Sequence,
    most: u64,
}

/// What the file holds: each update with its position.
pub(super) type Contents = Vec<(Sequence, String, Publication)>;

impl StoreFile {
    /// Opens the file, or creates it, and reads what it holds within the limits.
    ///
    /// # Errors
    /// It cannot be opened, another process has it open, or it holds something else.
    pub(super) fn open(path: &Path, limits: &Limits) -> anyhow::Result<(Self, HubStore, Contents)> {
        let named = || format!("--hub-store file:{}", path.display());
        let database = Database::create(path).with_context(named)?;
        // The table is made now, so that reading finds it, and that the file can be written to.
        let change = database.begin_write().with_context(named)?;
        change.open_table(UPDATES).with_context(named)?;
        change.commit().with_context(named)?;
        let mut contents = Vec::new();
        let view = database.begin_read().with_context(named)?;
        let table = view.open_table(UPDATES).with_context(named)?;
        let horizon = unix_time().saturating_sub(limits.history_age.as_secs());
        for entry in table.iter().with_context(named)?.rev().take(limits.history_updates) {
            let (sequence, bytes) = entry.with_context(named)?;
            let record = Record::decode(bytes.value()).with_context(named)?;
            if record.at < horizon && !contents.is_empty() {
                break;
            }
            contents.push((sequence.value(), record.id, record.publication));
        }
        contents.reverse();
        let first = table.first().with_context(named)?.map_or(1, |(sequence, _)| sequence.value());
        drop(table);
        drop(view);
        let (send, jobs) = sync_channel(QUEUE);
        let most = limits.history_updates.max(1) as u64;
        let store = HubStore { jobs: Some(send), thread: Mutex::default() };
        let (path, opened_at) = (path.to_owned(), Instant::now());
        Ok((Self { path, database: Some(database), opened_at, jobs, first, most }, store, contents))
    }

    /// Starts the thread, which ends when the hub does.
    ///
    /// # Errors
    /// There is no thread.
    pub(super) fn start(mut self, owner: &Arc<HubShared>, store: &HubStore) -> io::Result<()> {
        let shared = Arc::downgrade(owner);
        let thread = thread::Builder::new().name("hub-store".into()).spawn(move || {
            // The hub itself holds the other end: when it is gone, nothing more can come.
            let mut has_failed = false;
            while let Ok(first) = self.jobs.recv() {
                let Some(shared) = shared.upgrade() else { return };
                let mut batch = vec![first];
                batch.extend(self.jobs.try_iter().take(BATCH - 1));
                let next = shared.head() + 1;
                let outcome = self.write(next, &batch);
                match (&outcome, std::mem::replace(&mut has_failed, outcome.is_err())) {
                    // Written once, not for each update.
                    (Err(error), false) => {
                        let path = self.path.display();
                        tracing::error!("--hub-store file:{path}: updates are refused: {error:#}");
                    }
                    (Ok(()), true) => tracing::info!("--hub-store: updates are stored again"),
                    _ => {}
                }
                for Job { publication, id, ticket } in batch {
                    let answer = match &outcome {
                        Ok(()) => Ok(shared.append(&id, &publication)),
                        Err(_) => Err(unavailable("the hub cannot write to its disk: try later")),
                    };
                    if let Some(ticket) = ticket {
                        shared.answer(ticket, answer);
                    }
                }
                shared.tell();
            }
        })?;
        if let Ok(mut place) = store.thread.lock() {
            *place = Some(thread);
        }
        Ok(())
    }

    /// Commits a batch, which is on the disk when this returns. After a failure the file is opened again, but not for
    /// each update: the disk may stay full.
    fn write(&mut self, next: Sequence, batch: &[Job]) -> anyhow::Result<()> {
        let database = match self.database.take() {
            Some(database) => database,
            None => {
                ensure!(self.opened_at.elapsed() >= REOPEN_PAUSE, "the last failure was just now");
                self.opened_at = Instant::now();
                Database::create(&self.path)?
            }
        };
        self.commit(&database, next, batch)?;
        self.database = Some(database);
        Ok(())
    }

    /// Commits a batch, and removes what left the history.
    fn commit(&mut self, database: &Database, next: Sequence, batch: &[Job]) -> anyhow::Result<()> {
        let change = database.begin_write()?;
        let end = next + batch.len() as u64;
        let first = self.first.max(end.saturating_sub(self.most));
        {
            let mut table = change.open_table(UPDATES)?;
            for (sequence, job) in (next..).zip(batch) {
                let record = Record::encode(&job.id, &job.publication)?;
                table.insert(sequence, record.as_slice())?;
            }
            for sequence in self.first..first {
                table.remove(sequence)?;
            }
        }
        change.commit()?;
        self.first = first;
        Ok(())
    }
}
