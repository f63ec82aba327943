//! A live upgrade: the log goes to the new process, and after it all further updates.
//!
//! The former process stops appending to its log and sends it; from then on it forwards what is published there.
//! Positions in the log stay the same, so that subscribers follow with their cursors. Until the log has arrived, the
//! new process holds updates and new subscribers back: two logs would have different updates at one position. Only the
//! history in memory is handed over like this; other stores are open to one process, or number updates themselves.

use super::{
    shared::{HubShared, Ticket, lock},
    store::{Job, unavailable},
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

/// How long the other process may be silent.
const PATIENCE: Duration = Duration::from_secs(10);
/// Updates and subscribers that may wait; further ones are answered with 503.
const WAITING_MAX: usize = 4096;
/// The longest packet, in bytes.
const PACKET_MAX: u32 = 128 << 20;

/// What becomes of updates during an upgrade.
#[derive(Debug, Default)]
pub(super) enum Transfer {
    /// There is none: they are appended to the log.
    #[default]
    None,
    /// The log of the former process has not arrived yet.
    Held(Held),
    /// The new process has the log, and gets the updates.
    Forwarded(SyncSender<Job>),
}

/// What waits for the log.
#[derive(Debug, Default)]
pub(super) struct Held {
    jobs: Vec<Job>,
    subscribers: Vec<Ticket>,
}

/// From the former process, each after its length in four bytes.
#[derive(Debug, Serialize, Deserialize)]
enum Packet {
    /// The position of the next update of an empty log.
    Begin { next: Sequence },
    /// An update of the log.
    Entry {
        sequence: Sequence,
        age_ms: u64,
        id: String,
        topics: Vec<String>,
        private: bool,
        text: String,
    },
    /// The log is complete: the new process is to answer.
    End,
    /// An update that is published now: the new process is to answer.
    Publish { id: String, publication: Publication },
}

/// From the new process.
#[derive(Debug, Serialize, Deserialize)]
enum Answer {
    Taken,
    Refused(String),
}

impl HubShared {
    /// Whether a live upgrade hands the log and the subscribers over.
    pub(crate) fn can_be_handed_over(&self) -> bool {
        matches!(self.config.store, HubStoreConfig::Memory)
    }

    /// Whether the new process of an upgrade has the log.
    pub(crate) fn is_handed_over(&self) -> bool {
        self.is_transferring.load(Ordering::Acquire)
            && matches!(*lock(&self.transfer), Transfer::Forwarded(_))
    }

    /// In the new process: updates wait for the log, until [`HubShared::release`].
    pub(super) fn hold(&self) {
        *lock(&self.transfer) = Transfer::Held(Held::default());
        self.may_answer.store(true, Ordering::Release);
        self.is_transferring.store(true, Ordering::Release);
    }

    /// Has a subscriber wait for the log. False if it need not.
    pub(super) fn hold_subscriber(&self, ticket: Ticket) -> Result<bool, Reject> {
        if !self.is_transferring.load(Ordering::Acquire) {
            return Ok(false);
        }
        match &mut *lock(&self.transfer) {
            Transfer::Held(held) if held.subscribers.len() < WAITING_MAX => {
                held.subscribers.push(ticket);
                Ok(true)
            }
            Transfer::Held(_) => Err(unavailable("the hub is starting: try again")),
            Transfer::None | Transfer::Forwarded(_) => Ok(false),
        }
    }

    /// Publishes an update while an upgrade is in progress. Its identifier, if that is over meanwhile.
    pub(super) fn publish_in_transfer(&self, job: Job) -> Result<Option<Arc<str>>, Reject> {
        match &mut *lock(&self.transfer) {
            Transfer::Held(held) if held.jobs.len() < WAITING_MAX => {
                held.jobs.push(job);
                return Ok(None);
            }
            Transfer::Held(_) => return Err(unavailable("the hub is starting: try again")),
            Transfer::Forwarded(jobs) => {
                return match jobs.try_send(job) {
                    Ok(()) => Ok(None),
                    Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => {
                        Err(unavailable("the hub is being replaced: try again"))
                    }
                };
            }
            Transfer::None => {}
        }
        let id = self.append(&job.id, &job.publication);
        self.tell();
        Ok(Some(id))
    }

    /// In the former process: sends the log, and from then on what is published. Returns whether the new process has a
    /// hub that takes it.
    ///
    /// # Errors
    /// The new process does not take it; nothing has changed then.
    pub(crate) fn hand_over(self: &Arc<Self>, socket: UnixStream) -> anyhow::Result<bool> {
        socket.set_write_timeout(Some(PATIENCE))?;
        socket.set_read_timeout(Some(PATIENCE))?;
        let (sender, jobs) = sync_channel(WAITING_MAX);
        let (next, entries) = {
            let log = lock(&self.log);
            *lock(&self.transfer) = Transfer::Forwarded(sender);
            self.may_answer.store(true, Ordering::Release);
            self.is_transferring.store(true, Ordering::Release);
            let entries: Vec<_> =
                log.entries().map(|(at, update, time)| (at, update.clone(), time)).collect();
            (log.last() + 1, entries)
        };
        let now = self.now();
        let sent = (|| {
            let mut out = BufWriter::new(&socket);
            write(&mut out, &Packet::Begin { next })?;
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
            read::<Answer>(&mut &socket)
        })();
        match sent.context("the hub's history") {
            Ok(Answer::Taken) => {
                let hub = Arc::downgrade(self);
                let run = move || forward(&hub, &socket, &jobs);
                thread::Builder::new().name("hub-forward".into()).spawn(run)?;
                Ok(true)
            }
            Ok(Answer::Refused(reason)) => {
                self.stay();
                tracing::warn!("upgrade: {reason}: subscribers have to connect again");
                Ok(false)
            }
            Err(error) => {
                self.stay();
                Err(error)
            }
        }
    }

    /// In the former process: the upgrade is given up, updates are appended to this log again.
    pub(crate) fn stay(&self) {
        let _log = lock(&self.log);
        *lock(&self.transfer) = Transfer::None;
        self.is_transferring.store(false, Ordering::Release);
    }

    /// In the new process: takes in the log that the former one sends, and then each update that is published there.
    ///
    /// # Errors
    /// What arrives is no log.
    pub(crate) fn take_over(self: &Arc<Self>, socket: UnixStream) -> anyhow::Result<()> {
        socket.set_read_timeout(Some(PATIENCE))?;
        let mut input = BufReader::new(socket.try_clone()?);
        let can_take = self.can_be_handed_over();
        let now = self.now();
        let mut begin = 0;
        loop {
            let (sequence, age_ms, update) = match read(&mut input)? {
                Packet::Begin { next } => {
                    begin = next;
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
        if can_take {
            // Only an empty log does not know from its updates where it goes on.
            let mut log = lock(&self.log);
            log.begin_at(begin);
            self.head.store(log.last(), Ordering::Release);
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

    /// In the new process: what was held goes on.
    pub(crate) fn release(&self) {
        let held = {
            let log = lock(&self.log);
            let transfer = std::mem::take(&mut *lock(&self.transfer));
            self.is_transferring.store(false, Ordering::Release);
            drop(log);
            match transfer {
                Transfer::Held(held) => held,
                Transfer::None | Transfer::Forwarded(_) => return,
            }
        };
        for Job { publication, id, ticket } in held.jobs {
            let id = self.append(&id, &publication);
            if let Some(ticket) = ticket {
                self.answer(ticket, Ok(id));
            }
        }
        for ticket in held.subscribers {
            self.answer(ticket, Ok("".into()));
        }
        self.tell();
    }
}

/// In the new process, where it has no hub: the former one learns that.
///
/// # Errors
/// What arrives is no log.
pub(crate) fn refuse(socket: UnixStream) -> anyhow::Result<()> {
    socket.set_read_timeout(Some(PATIENCE))?;
    let mut input = BufReader::new(socket.try_clone()?);
    while !matches!(read(&mut input)?, Packet::End) {}
    write(&mut &socket, &Answer::Refused("the new process has no hub".into()))
}

/// Sends updates that are published in the former process, one at a time.
fn forward(hub: &Weak<HubShared>, mut socket: &UnixStream, jobs: &Receiver<Job>) {
    while let Ok(Job { publication, id, ticket }) = jobs.recv() {
        let packet = Packet::Publish { id: id.clone(), publication };
        let answer = write(&mut socket, &packet).and_then(|()| read(&mut socket));
        let outcome = match answer {
            Ok(Answer::Taken) => Ok(id.into()),
            Ok(Answer::Refused(_)) | Err(_) => {
                Err(unavailable("the hub is being replaced: try again"))
            }
        };
        let Some(hub) = hub.upgrade() else { return };
        if let Some(ticket) = ticket {
            hub.answer(ticket, outcome);
            hub.tell();
        }
    }
}

/// Publishes what the former process forwards, until it ends.
fn publish_forwarded(
    hub: &Weak<HubShared>,
    mut socket: &UnixStream,
    mut input: BufReader<UnixStream>,
) {
    while let Ok(Packet::Publish { id, publication }) = read(&mut input) {
        let Some(hub) = hub.upgrade() else { return };
        let publication = Publication { id: Some(id), ..publication };
        let answer = match hub.publish(publication, None) {
            Ok(_) => Answer::Taken,
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
