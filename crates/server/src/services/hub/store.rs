//! The history on disk: acknowledged updates are available after a restart.
//!
//! A separate thread writes, for two reasons. Workers may have separate file tables, in which the file is not
//! open. And a commit waits for the disk: further updates accumulate meanwhile, and the next commit contains
//! all of them.
//!
//! Only one process at a time can have the file open. In a live upgrade the former process closes the file
//! before it hands its log over, and then the new process opens it.

use super::{
    backlog::{Backlog, Share},
    record::Record,
    redis::RedisHubStore,
    shared::{HubShared, Ticket, lock, unix_time},
};
use crate::upgrade;
use anyhow::{Context, anyhow, ensure};
use pollux_hub::{
    history::Sequence,
    limits::Limits,
    reject::Reject,
    update::{Publication, Update},
};
use redb::{Database, DatabaseError, ReadableTable, TableDefinition};
use std::{
    fs, io,
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
/// The maximum number of updates that wait for the disk; publishers of further ones receive an error and may
/// retry.
const QUEUE: usize = 4096;
/// The maximum number of updates in one commit.
const BATCH: usize = 1024;
/// The minimum time between two attempts to open the file after a failure.
const REOPEN_PAUSE: Duration = Duration::from_secs(1);
/// The maximum time to open or close the file in an upgrade.
const PATIENCE: Duration = Duration::from_secs(5);

/// The answer to a publisher whose update may be stored nevertheless.
pub(super) const UNCONFIRMED: &str = "the hub's Redis did not confirm the update: try again";

/// An update on its way to the store.
#[derive(Debug)]
pub(super) struct PublishJob {
    pub(super) publication: Publication,
    pub(super) id: String,
    /// The publisher's ticket: it is answered when the update is stored.
    pub(super) ticket: Option<Ticket>,
    /// The channel of a thread that waits for the same outcome, or of the event of a subscription.
    pub(super) waiting: Option<SyncSender<Result<(), Reject>>>,
    /// Its part of the [`Backlog`], once it waits.
    pub(super) share: Option<Share>,
}

impl PublishJob {
    /// Counts the update among those that wait, unless it is already.
    ///
    /// # Errors
    /// Too many bytes wait.
    pub(super) fn admitted(mut self, backlog: &Backlog) -> Result<Self, Reject> {
        if self.share.is_none() {
            let full = || Reject::unavailable("too many large updates wait: try again");
            self.share = Some(backlog.admit(self.bytes()).ok_or_else(full)?);
        }
        Ok(self)
    }

    /// The bytes of the update.
    pub(super) fn bytes(&self) -> usize {
        self.id.len() + self.publication.bytes()
    }
}

/// Sends the outcome of an update to its publisher and to the thread that waits for it.
pub(super) fn finish(
    shared: &HubShared,
    ticket: Option<Ticket>,
    waiting: Option<&SyncSender<Result<(), Reject>>>,
    outcome: Result<Arc<str>, Reject>,
) {
    if let Some(waiting) = waiting {
        // The thread waits for one outcome, and the channel has room for one.
        let _ = waiting.try_send(outcome.clone().map(drop));
    }
    if let Some(ticket) = ticket {
        shared.answer(ticket, outcome);
    }
}

/// A task for the thread.
#[derive(Debug)]
#[allow(
    clippy::large_enum_variant,
    reason = "nearly all tasks are updates; a box would be an allocation for each"
)]
enum StoreTask {
    Store(PublishJob),
    /// Close the file: another process opens it next.
    Close(SyncSender<anyhow::Result<()>>),
    /// Open the file, and read the updates that another process has stored there.
    Open(SyncSender<anyhow::Result<()>>),
}

/// The store that receives updates before they are appended to the log.
#[derive(Debug)]
pub(super) enum Store {
    File(HubStore),
    Redis(RedisHubStore),
}

impl Store {
    /// Queues an update. Its publisher is answered when the update is stored.
    pub(super) fn put(&self, job: PublishJob) -> Result<(), Reject> {
        match self {
            Self::File(store) => store.put(job),
            Self::Redis(store) => store.put(job),
        }
    }

    /// Returns whether the log may lack updates that a subscriber has: those of other hubs if it names one of
    /// them, and all of them before the history has been read. Otherwise a new subscriber would begin before
    /// the history and would be sent all of it.
    pub(super) fn may_lag(&self, last_event_id: Option<&str>) -> bool {
        match self {
            Self::File(_) => false,
            Self::Redis(store) => {
                last_event_id.is_some_and(|id| id != "earliest") || !store.is_loaded()
            }
        }
    }

    /// Answers a ticket once the log has all updates that other hubs have published until now.
    pub(super) fn catch_up(&self, ticket: Ticket) -> Result<(), Reject> {
        match self {
            Self::File(_) => Err(Reject::unavailable("a file has no other hubs")),
            Self::Redis(store) => store.catch_up(ticket),
        }
    }
}

/// The handle of the thread that writes.
#[derive(Debug)]
pub(super) struct HubStore {
    tasks: Option<SyncSender<StoreTask>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl HubStore {
    /// Queues an update for the disk.
    pub(super) fn put(&self, job: PublishJob) -> Result<(), Reject> {
        let stopping = || Reject::unavailable("the hub is stopping: try again later");
        let tasks = self.tasks.as_ref().ok_or_else(stopping)?;
        tasks.try_send(StoreTask::Store(job)).map_err(|error| match error {
            TrySendError::Full(_) => Reject::unavailable("the hub's disk is too slow: try again"),
            TrySendError::Disconnected(_) => stopping(),
        })
    }

    /// Stores the waiting updates, and closes the file.
    ///
    /// # Errors
    /// The thread takes too long, or the hub is stopping.
    pub(super) fn close(&self) -> anyhow::Result<()> {
        self.request(StoreTask::Close)
    }

    /// Opens the file again, and appends the updates that another process has stored there to the log.
    ///
    /// # Errors
    /// The file cannot be opened now. The next update tries again.
    pub(super) fn open(&self) -> anyhow::Result<()> {
        self.request(StoreTask::Open)
    }

    fn request(
        &self,
        task: impl FnOnce(SyncSender<anyhow::Result<()>>) -> StoreTask,
    ) -> anyhow::Result<()> {
        let (send, outcome) = sync_channel(1);
        let tasks = self.tasks.as_ref().context("the hub is stopping")?;
        tasks.send(task(send))?;
        outcome.recv_timeout(PATIENCE).map_err(|_| anyhow!("the hub's disk is too slow"))?
    }
}

impl Drop for HubStore {
    /// Waits until the file is closed, so that it can be opened again.
    fn drop(&mut self) {
        self.tasks = None;
        let thread = self.thread.get_mut().ok().and_then(Option::take);
        if let Some(thread) = thread
            && thread.thread().id() != thread::current().id()
        {
            let _ = thread.join();
        }
    }
}

/// The file, before its thread runs.
#[derive(Debug)]
pub(super) struct StoreFile {
    path: PathBuf,
    limits: Limits,
    /// `None` after a failure, because redb refuses further changes until the file is opened again. Also
    /// `None` while another process has the file open.
    database: Option<Database>,
    /// Whether another process may have stored updates since the file was closed.
    may_be_ahead: bool,
    /// The time of the last attempt to open the file.
    opened_at: Instant,
    tasks: Receiver<StoreTask>,
    /// The first position that the file holds.
    first: Sequence,
    /// The position of the first update of the last batch since the file was closed; 0 if there was none.
    next: Sequence,
    most: u64,
    /// Whether the last batch could not be stored.
    has_failed: bool,
}

/// The content of the file: each update with its position.
pub(super) type Contents = Vec<(Sequence, Record)>;

/// Opens the file, or creates it. Returns its updates within the limits, and the first position that it
/// holds.
fn open_file(path: &Path, limits: &Limits) -> anyhow::Result<(Database, Contents, Sequence)> {
    let is_other = fs::metadata(path).is_ok_and(|metadata| !metadata.is_file());
    ensure!(!is_other, "it is not a regular file");
    let database = Database::create(path)?;
    // The table is created now, so that the following read finds it, and a file that cannot be written to is
    // noticed.
    let change = database.begin_write()?;
    change.open_table(UPDATES)?;
    change.commit()?;
    let (mut contents, mut bytes) = (Vec::new(), 0);
    let view = database.begin_read()?;
    let table = view.open_table(UPDATES)?;
    let horizon = unix_time().saturating_sub(limits.history_age.as_secs());
    for entry in table.iter()?.rev().take(limits.history_updates) {
        let (sequence, text) = entry?;
        let record = Record::decode(text.value())?;
        // The log would drop the others anyway, but not before all of them are in memory.
        bytes += record.publication.bytes();
        let is_old = record.at < horizon || bytes > limits.history_bytes;
        if is_old && !contents.is_empty() {
            break;
        }
        contents.push((sequence.value(), record));
    }
    contents.reverse();
    let first = table.first()?.map_or(1, |(sequence, _)| sequence.value());
    drop(table);
    drop(view);
    Ok((database, contents, first))
}

/// Returns whether another process has the file open.
fn is_in_use(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(DatabaseError::DatabaseAlreadyOpen))
}

impl StoreFile {
    /// Opens the file, or creates it, and reads its updates within the limits. In a live upgrade the former
    /// process may still have the file open; then it is opened later.
    ///
    /// # Errors
    /// The file cannot be opened, another process has it open, or it has other content.
    pub(super) fn open(path: &Path, limits: &Limits) -> anyhow::Result<(Self, HubStore, Contents)> {
        let (database, contents, first) = match open_file(path, limits) {
            Ok((database, contents, first)) => (Some(database), contents, first),
            Err(error) if upgrade::is_in_progress() && is_in_use(&error) => (None, Vec::new(), 1),
            Err(error) => return Err(error.context(format!("--hub-store file:{}", path.display()))),
        };
        let (send, tasks) = sync_channel(QUEUE);
        let store = HubStore { tasks: Some(send), thread: Mutex::default() };
        let file = Self {
            path: path.to_owned(),
            limits: limits.clone(),
            may_be_ahead: database.is_none(),
            database,
            opened_at: Instant::now(),
            tasks,
            first,
            next: 0,
            most: limits.history_updates.max(1) as u64,
            has_failed: false,
        };
        Ok((file, store, contents))
    }

    /// Starts the thread, which ends when the hub does.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub(super) fn start(mut self, owner: &Arc<HubShared>, store: &HubStore) -> io::Result<()> {
        let shared = Arc::downgrade(owner);
        let thread = thread::Builder::new().name("hub-store".into()).spawn(move || {
            // The hub itself holds the other end of the channel: when the hub is dropped, no more tasks can
            // arrive.
            while let Ok(first) = self.tasks.recv() {
                let Some(shared) = shared.upgrade() else { break };
                let (mut next, mut batch) = (Some(first), Vec::new());
                while let Some(StoreTask::Store(job)) = next {
                    batch.push(job);
                    next = (batch.len() < BATCH).then(|| self.tasks.try_recv().ok()).flatten();
                }
                if !batch.is_empty() {
                    self.store(&shared, batch);
                }
                match next {
                    Some(StoreTask::Close(done)) => {
                        self.close();
                        let _ = done.send(Ok(()));
                    }
                    Some(StoreTask::Open(done)) => {
                        let _ = done.send(self.open_again(&shared));
                    }
                    Some(StoreTask::Store(_)) | None => {}
                }
            }
            self.close();
        })?;
        if let Ok(mut slot) = store.thread.lock() {
            *slot = Some(thread);
        }
        Ok(())
    }

    /// Stores a batch, appends it to the log, and answers its publishers.
    fn store(&mut self, shared: &HubShared, batch: Vec<PublishJob>) {
        let outcome = self.write(shared, &batch);
        match (&outcome, std::mem::replace(&mut self.has_failed, outcome.is_err())) {
            // The error is logged once, not for each update.
            (Err(error), false) => {
                let path = self.path.display();
                tracing::error!("--hub-store file:{path}: updates are refused: {error:#}");
            }
            (Ok(()), true) => tracing::info!("--hub-store: updates are stored again"),
            _ => {}
        }
        for PublishJob { publication, id, ticket, waiting, .. } in batch {
            let answer = match &outcome {
                Ok(()) => Ok(shared.append(&id, &publication)),
                Err(_) => Err(Reject::unavailable("the hub cannot write to its disk: try later")),
            };
            finish(shared, ticket, waiting.as_ref(), answer);
        }
        shared.notify_workers();
    }

    /// Commits a batch, which is on the disk when this returns. After a failure the file is opened again, but not for
    /// each update: the disk may stay full.
    fn write(&mut self, shared: &HubShared, batch: &[PublishJob]) -> anyhow::Result<()> {
        if self.database.is_none() {
            ensure!(self.opened_at.elapsed() >= REOPEN_PAUSE, "the last failure was just now");
            self.open_again(shared)?;
        }
        let database = self.database.take().context("the file is closed")?;
        let first = lock(&shared.log).first();
        self.next = shared.head() + 1;
        self.commit(&database, first, batch)?;
        self.database = Some(database);
        Ok(())
    }

    /// Closes the file, for another process or for a later start. Updates of a commit that has failed must not appear
    /// there: their publishers got an error.
    fn close(&mut self) {
        let next = std::mem::take(&mut self.next);
        if self.has_failed && next > 0 {
            match self.remove_from(next) {
                Ok(()) => self.has_failed = false,
                Err(error) => {
                    let path = self.path.display();
                    tracing::error!(
                        "--hub-store file:{path}: updates that were refused may be in it: {error:#}"
                    );
                }
            }
        }
        self.database = None;
        self.may_be_ahead = true;
    }

    fn remove_from(&mut self, next: Sequence) -> anyhow::Result<()> {
        let database = match self.database.take() {
            Some(database) => database,
            None => Database::create(&self.path)?,
        };
        let change = database.begin_write()?;
        change.open_table(UPDATES)?.retain_in(next.., |_, _| false)?;
        Ok(change.commit()?)
    }

    /// Opens the file after a failure, or after another process had it.
    fn open_again(&mut self, shared: &HubShared) -> anyhow::Result<()> {
        if self.database.is_some() {
            return Ok(());
        }
        self.opened_at = Instant::now();
        if !self.may_be_ahead {
            self.database = Some(Database::create(&self.path)?);
            return Ok(());
        }
        let (database, contents, first) = open_file(&self.path, &self.limits)?;
        self.first = first;
        for (sequence, record) in contents {
            // `append_at` ignores updates that the log has already.
            let update = Update::new(&record.id, &record.publication);
            shared.append_at(sequence, update, shared.now().saturating_sub(record.age()));
        }
        self.may_be_ahead = false;
        self.database = Some(database);
        shared.notify_workers();
        Ok(())
    }

    /// Commits a batch, and removes the updates that have left the log, which begins at `first`.
    fn commit(
        &mut self,
        database: &Database,
        first: Sequence,
        batch: &[PublishJob],
    ) -> anyhow::Result<()> {
        let next = self.next;
        let change = database.begin_write()?;
        let end = next + batch.len() as u64;
        let first = self.first.max(first).max(end.saturating_sub(self.most));
        {
            let mut table = change.open_table(UPDATES)?;
            if self.has_failed {
                // A failure does not say what has reached the disk. The publishers were told that their updates were not
                // stored, so none of them may appear after a restart.
                table.retain_in(next.., |_, _| false)?;
            }
            for (sequence, job) in (next..).zip(batch) {
                let record = Record::encode(&job.id, &job.publication)?;
                table.insert(sequence, record.as_slice())?;
            }
            table.retain_in(self.first..first, |_, _| false)?;
        }
        change.commit()?;
        self.first = first;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{HubConfig, HubStoreConfig};
    use pollux_testkit::{wait_for, wait_until};
    use redb::ReadableTableMetadata;

    /// Opens a hub with this file and a history of this size, publishes updates of 1000 bytes, and closes it.
    fn publish(path: &Path, history_bytes: usize, count: u64) {
        let mut config = HubConfig::new("/hub");
        config.store = HubStoreConfig::File(path.to_owned());
        config.limits.history_bytes = history_bytes;
        let shared = HubShared::open(&Arc::new(config), "http://h", 1).unwrap();
        for _ in 0..count {
            let (topics, data) = (vec!["t".to_owned()], "x".repeat(1000));
            let before = shared.head();
            let publication = Publication { topics, data, ..Publication::default() };
            assert_eq!(shared.publish(publication, None).unwrap(), None);
            wait_until("the update in the log", || shared.head() > before);
        }
    }

    fn stored(path: &Path) -> u64 {
        // The thread of the store may still have it open.
        let database = wait_for("the database", || Database::create(path).ok());
        let view = database.begin_read().unwrap();
        view.open_table(UPDATES).unwrap().len().unwrap()
    }

    #[test]
    fn updates_of_a_commit_that_failed_do_not_come_back() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("history");
        publish(&path, 1_000_000, 5);
        let limits = Limits::default();
        let (mut file, _queue, _) = wait_for("the file", || StoreFile::open(&path, &limits).ok());
        // As if the last three had reached the disk although their commit had failed.
        let shared = HubShared::open(&Arc::new(HubConfig::new("/hub")), "http://h", 1).unwrap();
        let publication = Publication { topics: vec!["t".into()], ..Publication::default() };
        for id in ["1", "2"] {
            shared.append(id, &publication);
        }
        file.has_failed = true;
        let job =
            PublishJob { publication, id: "3".into(), ticket: None, waiting: None, share: None };
        file.write(&shared, &[job]).unwrap();
        drop(file);
        let (_, contents, _) = open_file(&path, &limits).unwrap();
        let stored: Vec<_> =
            contents.iter().map(|(sequence, record)| (*sequence, &*record.id)).collect();
        assert_eq!((stored.len(), stored[2]), (3, (3, "3")));
    }

    /// Regression: a process that opened the file next, after an upgrade or a restart, took them for its history.
    #[test]
    fn nor_do_they_when_the_file_is_closed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("history");
        publish(&path, 1_000_000, 5);
        let limits = Limits::default();
        for (failed, left) in [(false, 5), (true, 2)] {
            let (mut file, _queue, _) =
                wait_for("the file", || StoreFile::open(&path, &limits).ok());
            (file.has_failed, file.next) = (failed, 3);
            // A failed commit leaves the file to be opened again.
            file.database = None;
            file.close();
            assert_eq!(stored(&path), left);
        }
    }

    #[test]
    fn the_file_has_no_more_bytes_than_the_history() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("history");
        publish(&path, 10_000, 40);
        let count = stored(&path);
        assert!((2..=11).contains(&count), "{count} updates of 1000 bytes");
    }

    #[test]
    fn a_start_reads_no_more_of_a_file_than_the_history_holds() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("history");
        publish(&path, 1_000_000, 40);
        assert_eq!(stored(&path), 40);
        let limits = Limits { history_bytes: 10_000, ..Limits::default() };
        let (_, contents, _) = open_file(&path, &limits).unwrap();
        assert!((2..=10).contains(&contents.len()), "{}", contents.len());
        assert_eq!(contents.last().unwrap().0, 40, "the newest ones");
        // One that is larger than the history is read nevertheless, as the log would keep it.
        let limits = Limits { history_bytes: 10, ..Limits::default() };
        let opened = wait_for("the file", || open_file(&path, &limits).ok());
        assert_eq!(opened.1.len(), 1);
    }
}
