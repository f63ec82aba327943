//! A live upgrade: the former process sends its log to the new process, and then all further updates.
//!
//! The former process stops appending to its log and sends it; after that it forwards the updates that are
//! published there. Positions in the log stay the same, so that subscribers keep their cursors. Until the log
//! has arrived, updates and new subscribers wait in the new process: otherwise two logs would have different
//! updates at one position. A history in a file is handed over in the same way: the former process closes the
//! file first, and the new process opens it when it has the log. With Redis both processes follow one stream,
//! until the former process stops and its log stays unchanged.

use super::{
    keys::FetchedKeys,
    redis::RedisHubStore,
    shared::{HubShared, Ticket, lock},
    store::{HubStore, PublishJob, finish},
};
use crate::config::HubStoreConfig;
use anyhow::{Context, bail, ensure};
use pollux_hub::{history::Sequence, reject::Reject, update::Publication, update::Update};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::{
    io::{BufReader, BufWriter, Read, Write},
    os::unix::net::UnixStream,
    sync::{
        Arc, Weak,
        atomic::Ordering,
        mpsc::{Receiver, SyncSender, TrySendError, sync_channel},
    },
    thread,
    time::Duration,
};

/// The time for which the other process may be silent.
const PATIENCE: Duration = Duration::from_secs(10);
/// The maximum number of updates, and of subscribers, that wait; further ones are answered with 503.
const WAITING_MAX: usize = 4096;
/// The maximum length of a packet, in bytes.
const PACKET_MAX: u32 = 128 << 20;

/// The destination of updates during an upgrade.
#[derive(Debug, Default)]
pub(super) enum Transfer {
    /// There is no upgrade: updates are appended to the log.
    #[default]
    None,
    /// Updates wait: in the new process until the log arrives, in the former process until a failed upgrade
    /// is given up.
    Held(WaitingList),
    /// The new process has the log, and receives the updates.
    Forwarded(SyncSender<PublishJob>),
    /// The new process follows the same Redis.
    Frozen,
}

/// Updates and subscribers that wait for the log.
#[derive(Debug, Default)]
pub(super) struct WaitingList {
    jobs: Vec<PublishJob>,
    subscribers: Vec<Ticket>,
}

/// A packet from the former process, preceded by its length in four bytes.
#[derive(Debug, Serialize, Deserialize)]
enum Packet {
    /// The store of the history, the position of the next update, and with Redis the last entry of the log.
    /// `keys` are those from `--hub-jwks URL`; an earlier version does not send them.
    Begin { store: String, next: Sequence, entry: Option<String>, keys: Option<FetchedKeys> },
    /// An update of the log.
    Entry {
        sequence: Sequence,
        age_ms: u64,
        id: String,
        topics: Vec<String>,
        private: bool,
        text: String,
    },
    /// The log is complete. The new process answers.
    End,
    /// An update that is published now. The new process answers.
    Publish { id: String, publication: Publication },
}

/// An answer from the new process.
#[derive(Debug, Serialize, Deserialize)]
enum Answer {
    Taken,
    Refused(String),
}

impl HubShared {
    /// Converts the position of a subscriber that another process hands over into a position in this log.
    /// Returns `None` if this log does not go back that far.
    pub(super) fn own_position(&self, position: Sequence) -> Option<Sequence> {
        match *lock(&self.anchor) {
            Some((former, own)) => (position + own).checked_sub(former),
            None => Some(position),
        }
    }

    /// Returns a name for the store of the history. The new process takes the history over only if its own
    /// store has the same name.
    fn store_name(&self) -> String {
        match &self.config.store {
            HubStoreConfig::Memory => "memory".into(),
            HubStoreConfig::File(path) => {
                let path = path.canonicalize().unwrap_or_else(|_| path.clone());
                format!("file:{}", path.display())
            }
            HubStoreConfig::Redis(url) => format!("{url} {}", self.config.path),
        }
    }

    /// Returns whether the new process of an upgrade has the log.
    pub(crate) fn is_handed_over(&self) -> bool {
        self.is_transferring.load(Ordering::Acquire)
            && matches!(*lock(&self.transfer), Transfer::Forwarded(_) | Transfer::Frozen)
    }

    /// Makes updates wait for the log in the new process, until [`HubShared::release`] is called.
    pub(super) fn hold(&self) {
        *lock(&self.transfer) = Transfer::Held(WaitingList::default());
        self.may_answer.store(true, Ordering::Release);
        self.is_transferring.store(true, Ordering::Release);
    }

    /// Makes a subscriber wait for the log. Returns false if it need not wait.
    pub(super) fn hold_subscriber(&self, ticket: Ticket) -> Result<bool, Reject> {
        if !self.is_transferring.load(Ordering::Acquire) {
            return Ok(false);
        }
        match &mut *lock(&self.transfer) {
            Transfer::Held(held) if held.subscribers.len() < WAITING_MAX => {
                held.subscribers.push(ticket);
                Ok(true)
            }
            Transfer::Held(_) => Err(Reject::unavailable("the hub is starting: try again")),
            Transfer::None | Transfer::Forwarded(_) | Transfer::Frozen => Ok(false),
        }
    }

    /// Publishes an update while an upgrade is in progress. Returns `None` if the answer comes later. If the
    /// upgrade has ended meanwhile, returns the result of [`HubShared::publish_here`].
    pub(super) fn publish_in_transfer(&self, job: PublishJob) -> Result<Option<Arc<str>>, Reject> {
        match &mut *lock(&self.transfer) {
            Transfer::Held(held) if held.jobs.len() < WAITING_MAX => {
                held.jobs.push(job.admitted(&self.backlog)?);
                return Ok(None);
            }
            Transfer::Held(_) => return Err(Reject::unavailable("the hub is starting: try again")),
            Transfer::Forwarded(jobs) => {
                return match jobs.try_send(job.admitted(&self.backlog)?) {
                    Ok(()) => Ok(None),
                    Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => {
                        Err(Reject::unavailable("the hub is being replaced: try again"))
                    }
                };
            }
            Transfer::None | Transfer::Frozen => {}
        }
        self.publish_here(job)
    }

    /// Sends the log from the former process to the new one, and then all updates that are published here.
    /// Returns whether the new process has a hub that accepts them.
    ///
    /// # Errors
    /// The log was not handed over. Until [`HubShared::stay`] is called, updates wait, or the log does not
    /// follow Redis.
    pub(crate) fn hand_over(self: &Arc<Self>, socket: UnixStream) -> anyhow::Result<bool> {
        socket.set_write_timeout(Some(PATIENCE))?;
        socket.set_read_timeout(Some(PATIENCE))?;
        if let Some(redis) = self.redis() {
            return self.leave_redis(redis, &socket);
        }
        let (sender, jobs) = sync_channel(WAITING_MAX);
        {
            let _log = lock(&self.log);
            *lock(&self.transfer) = Transfer::Forwarded(sender);
            self.may_answer.store(true, Ordering::Release);
            self.is_transferring.store(true, Ordering::Release);
        }
        let outcome = self.send_log(&socket);
        if !matches!(outcome, Ok(Answer::Taken)) {
            // Until it is certain that the new process does not have the file, updates wait here.
            let _log = lock(&self.log);
            *lock(&self.transfer) = Transfer::Held(WaitingList::default());
        }
        match outcome {
            Ok(Answer::Taken) => {
                let hub = Arc::downgrade(self);
                let run = move || forward(&hub, &socket, &jobs);
                thread::Builder::new().name("hub-forward".into()).spawn(run)?;
                Ok(true)
            }
            Ok(Answer::Refused(reason)) => {
                self.hold_again(&jobs);
                self.release();
                tracing::warn!("upgrade: {reason}: subscribers have to connect again");
                Ok(false)
            }
            Err(error) => {
                self.hold_again(&jobs);
                Err(error)
            }
        }
    }

    /// Stops following Redis, because the new process does so.
    fn leave_redis(&self, redis: &RedisHubStore, socket: &UnixStream) -> anyhow::Result<bool> {
        *lock(&self.transfer) = Transfer::Frozen;
        self.is_transferring.store(true, Ordering::Release);
        let entry = Some(redis.freeze(self));
        let (store, next) = (self.store_name(), self.head() + 1);
        let keys = lock(&self.fetched_keys).clone();
        let begin = Packet::Begin { store, next, entry, keys };
        let mut out = socket;
        let answer = write(&mut out, &begin)
            .and_then(|()| write(&mut out, &Packet::End))
            .and_then(|()| read(&mut out))
            .context("the hub's history")?;
        match answer {
            Answer::Taken => Ok(true),
            Answer::Refused(reason) => {
                self.release();
                tracing::warn!("upgrade: {reason}: subscribers have to connect again");
                Ok(false)
            }
        }
    }

    /// Makes the updates that the new process did not receive wait.
    fn hold_again(&self, jobs: &Receiver<PublishJob>) {
        if let Transfer::Held(held) = &mut *lock(&self.transfer) {
            held.jobs.splice(0..0, jobs.try_iter());
        }
    }

    /// Closes the file, if there is one, and sends the log.
    fn send_log(&self, socket: &UnixStream) -> anyhow::Result<Answer> {
        if let Some(file) = self.file() {
            file.close().context("the hub's history")?;
        }
        let (next, entries) = {
            let log = lock(&self.log);
            let entries: Vec<_> =
                log.entries().map(|(at, update, time)| (at, update.clone(), time)).collect();
            (log.last() + 1, entries)
        };
        let now = self.now();
        let sent = (|| {
            let mut out = BufWriter::new(socket);
            let (store, keys) = (self.store_name(), lock(&self.fetched_keys).clone());
            write(&mut out, &Packet::Begin { store, next, entry: None, keys })?;
            for (sequence, update, at) in entries {
                let age = now.saturating_sub(at).as_millis();
                let entry = Packet::Entry {
                    sequence,
                    age_ms: u64::try_from(age).unwrap_or(u64::MAX),
                    id: update.id.to_string(),
                    topics: update.topics.iter().map(ToString::to_string).collect(),
                    private: update.private,
                    text: String::from_utf8_lossy(update.frame.text()).into_owned(),
                };
                write(&mut out, &entry)?;
            }
            write(&mut out, &Packet::End)?;
            out.flush()?;
            drop(out);
            read::<Answer>(&mut &*socket)
        })();
        sent.context("the hub's history")
    }
    /// Gives the upgrade up in the former process, after the new process has ended: updates are appended to
    /// this log again.
    pub(crate) fn stay(&self) {
        self.release();
    }

    /// Receives the log of the former process in the new process, and then each update that is published in
    /// the former process.
    ///
    /// # Errors
    /// The received data is not a valid log, or the connection or the file fails.
    pub(crate) fn take_over(self: &Arc<Self>, socket: UnixStream) -> anyhow::Result<()> {
        socket.set_read_timeout(Some(PATIENCE))?;
        let mut input = BufReader::new(socket.try_clone()?);
        let (mut can_take, mut begin, mut last_entry) = (false, 0, None);
        let now = self.now();
        loop {
            let (sequence, age_ms, update) = match read(&mut input)? {
                Packet::Begin { store, next, entry, keys } => {
                    (can_take, begin, last_entry) = (store == self.store_name(), next, entry);
                    if let Some(keys) = keys {
                        self.adopt_keys(keys);
                    }
                    continue;
                }
                Packet::Entry { sequence, age_ms, id, topics, private, text } => {
                    (sequence, age_ms, Update::encoded(&id, &topics, private, &text))
                }
                Packet::End => break,
                Packet::Publish { .. } => bail!("an update before the log is complete"),
            };
            if can_take {
                let at = now.saturating_sub(Duration::from_millis(age_ms));
                self.append_at(sequence, update, at);
            }
        }
        if can_take && let Some(redis) = self.redis() {
            let own = last_entry.and_then(|entry| redis.find(&entry));
            *lock(&self.anchor) = own.map(|own| (begin.saturating_sub(1), own));
            let answer = match own {
                Some(_) => Answer::Taken,
                None => Answer::Refused("the new process reads other updates of Redis".into()),
            };
            return write(&mut &socket, &answer);
        }
        if can_take {
            // The updates of a log determine its next position; for an empty log it is set here.
            let mut log = lock(&self.log);
            log.begin_at(begin);
            self.head.store(log.last(), Ordering::Release);
            drop(log);
            // The file is opened before updates and subscribers continue: if that fails, the former process
            // must still be able to use the file.
            self.file().map_or(Ok(()), HubStore::open).with_context(|| self.store_name())?;
        }
        self.release();
        if !can_take {
            let reason = "the new process keeps its hub's history elsewhere".to_owned();
            return write(&mut &socket, &Answer::Refused(reason));
        }
        write(&mut &socket, &Answer::Taken)?;
        socket.set_read_timeout(None)?;
        let hub = Arc::downgrade(self);
        let run = move || publish_forwarded(&hub, &socket, input);
        thread::Builder::new().name("hub-forwarded".into()).spawn(run)?;
        Ok(())
    }

    /// Ends an upgrade, or gives it up: waiting updates and subscribers continue.
    pub(crate) fn release(&self) {
        if !self.is_transferring.load(Ordering::Acquire) {
            return;
        }
        if let Some(redis) = self.redis() {
            redis.thaw();
        }
        if let Some(Err(error)) = self.file().map(HubStore::open) {
            tracing::error!("--hub-store {}: updates are refused: {error:#}", self.store_name());
        }
        let held = {
            let log = lock(&self.log);
            let transfer = std::mem::take(&mut *lock(&self.transfer));
            self.is_transferring.store(false, Ordering::Release);
            drop(log);
            match transfer {
                Transfer::Held(held) => held,
                Transfer::None | Transfer::Forwarded(_) | Transfer::Frozen => return,
            }
        };
        for job in held.jobs {
            let (ticket, waiting) = (job.ticket, job.waiting.clone());
            // Otherwise the store sends the outcome.
            if let Some(outcome) = self.publish_here(job).transpose() {
                finish(self, ticket, waiting.as_ref(), outcome);
            }
        }
        for ticket in held.subscribers {
            self.answer(ticket, Ok("".into()));
        }
        self.notify_workers();
    }
}

/// Tells the former process that the new process has no hub.
///
/// # Errors
/// The received data is not a valid log, or the connection fails.
pub(crate) fn refuse(socket: UnixStream) -> anyhow::Result<()> {
    socket.set_read_timeout(Some(PATIENCE))?;
    let mut input = BufReader::new(socket.try_clone()?);
    while !matches!(read(&mut input)?, Packet::End) {}
    write(&mut &socket, &Answer::Refused("the new process has no hub".into()))
}

/// Sends updates that are published in the former process, one at a time.
fn forward(hub: &Weak<HubShared>, mut socket: &UnixStream, jobs: &Receiver<PublishJob>) {
    // `_share` counts the update among those that wait until it is answered.
    while let Ok(PublishJob { publication, id, ticket, waiting, share: _share }) = jobs.recv() {
        let packet = Packet::Publish { id: id.clone(), publication };
        let answer = write(&mut socket, &packet).and_then(|()| read(&mut socket));
        let outcome = match answer {
            Ok(Answer::Taken) => Ok(id.into()),
            Ok(Answer::Refused(_)) | Err(_) => {
                Err(Reject::unavailable("the hub is being replaced: try again"))
            }
        };
        let Some(hub) = hub.upgrade() else { return };
        finish(&hub, ticket, waiting.as_ref(), outcome);
        hub.notify_workers();
    }
}

/// Publishes the updates that the former process forwards, until that process ends.
fn publish_forwarded(
    hub: &Weak<HubShared>,
    mut socket: &UnixStream,
    mut input: BufReader<UnixStream>,
) {
    while let Ok(Packet::Publish { id, publication }) = read(&mut input) {
        let Some(hub) = hub.upgrade() else { return };
        let (waiting, is_stored) = sync_channel(1);
        let job = PublishJob { publication, id, ticket: None, waiting: Some(waiting), share: None };
        let outcome = match hub.publish_job(job) {
            Ok(Some(_)) => Ok(()),
            // The wait ends when the update is stored, or when the thread of the store ends.
            Ok(None) => {
                is_stored.recv().unwrap_or_else(|_| Err(Reject::unavailable("the hub is stopping")))
            }
            Err(reject) => Err(reject),
        };
        let answer = match outcome {
            Ok(()) => Answer::Taken,
            Err(reject) => Answer::Refused(reject.message.into_owned()),
        };
        if write(&mut socket, &answer).is_err() {
            return;
        }
    }
}

fn write(out: &mut impl Write, packet: &impl Serialize) -> anyhow::Result<()> {
    let bytes = serde_json::to_vec(packet)?;
    let length = u32::try_from(bytes.len()).ok().filter(|length| *length <= PACKET_MAX);
    let length = length.context("an update is too long to be handed over")?;
    out.write_all(&length.to_be_bytes())?;
    Ok(out.write_all(&bytes)?)
}

fn read<P: DeserializeOwned>(input: &mut impl Read) -> anyhow::Result<P> {
    let mut length = [0; 4];
    input.read_exact(&mut length)?;
    let length = u32::from_be_bytes(length);
    ensure!(length <= PACKET_MAX, "a packet of {length} bytes");
    let mut bytes = Vec::new();
    input.take(length.into()).read_to_end(&mut bytes)?;
    serde_json::from_slice(&bytes).context("a packet is malformed")
}
