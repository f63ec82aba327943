//! The thread that appends updates to the stream. It sends many at once, and acknowledges each when
//! Redis has numbered it.

use super::{
    BACKOFF, RedisShared, Role, StreamTask,
    connection::{REPLY_TIMEOUT, RedisConnection, RedisError},
    doubled,
    entry::{EntryId, FIELD, last_entry},
    lock,
    resp::Reply,
};
use crate::services::hub::{
    record::Record,
    shared::{HubShared, Ticket},
    store::{PublishJob, UNCONFIRMED, finish},
};
use pollux_guestbook::redis::put_command;
use pollux_hub::reject::Reject;
use std::{
    collections::VecDeque,
    sync::{Arc, Weak, atomic::Ordering, mpsc::Receiver},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

/// The maximum number of tasks in one batch.
const BATCH: usize = 1024;
/// The number of bytes after which a batch is full.
const BATCH_BYTES: usize = 8 << 20;

/// The number of attempts to send updates that Redis has certainly not accepted.
const ATTEMPTS: usize = 3;
/// The beginning of Redis's reply to an entry whose epoch is not that of the stream.
const OTHER_EPOCH: &str = "ERR The ID specified in XADD is equal or smaller";

/// Whether an entry is appended to an existing stream, or creates the stream.
#[derive(Clone, Copy)]
enum Stream {
    IsThere,
    IsMissing,
}

/// The thread's own state.
pub(super) struct Publisher {
    redis: Arc<RedisShared>,
    shared: Weak<HubShared>,
    connection: Option<RedisConnection>,
    /// The last known epoch of the stream.
    epoch: u64,
    /// While Redis is not available: the time of the next attempt, and the pause after that.
    retry: Option<(Instant, Duration)>,
    /// Whether Redis may have updates of this batch whose replies have not arrived.
    has_sent: bool,
}

impl Publisher {
    pub(super) fn new(redis: Arc<RedisShared>, shared: Weak<HubShared>) -> Self {
        Self { redis, shared, connection: None, epoch: 0, retry: None, has_sent: false }
    }

    /// Runs until the hub has ended.
    pub(super) fn run(mut self, tasks: &Receiver<StreamTask>) {
        while let Ok(first) = tasks.recv() {
            let mut bytes = content(&first);
            let mut batch = vec![first];
            while batch.len() < BATCH && bytes < BATCH_BYTES {
                let Ok(task) = tasks.try_recv() else { break };
                bytes += content(&task);
                batch.push(task);
            }
            let Some(shared) = self.shared.upgrade() else { return };
            self.carry_out(&shared, batch);
            shared.notify_workers();
        }
    }

    /// Answers every task of a batch. An update without a reply is not sent a second time: Redis may have
    /// carried it out, and then a repetition would reach subscribers twice.
    fn carry_out(&mut self, shared: &HubShared, batch: Vec<StreamTask>) {
        let (mut jobs, mut tickets) = (VecDeque::new(), Vec::new());
        for task in batch {
            match task {
                StreamTask::Publish(job) => jobs.push_back(job),
                StreamTask::CatchUp(ticket) => tickets.push(ticket),
            }
        }
        let now = Instant::now();
        self.has_sent = false;
        let outcome = match self.retry {
            Some((at, _)) if now < at => None,
            _ => Some(self.send_and_receive(shared, &mut jobs, &mut tickets)),
        };
        if let Some(Err(error)) = &outcome {
            let pause = self.retry.map_or(BACKOFF.0, |(_, pause)| pause);
            if self.retry.is_none() {
                tracing::warn!("--hub-store {}: publishers get 503: {error}", self.redis.url);
            }
            self.connection = None;
            self.retry = Some((Instant::now() + pause, doubled(pause)));
        }
        let why = match &outcome {
            _ if self.has_sent => UNCONFIRMED,
            Some(Err(RedisError::Refused(_))) => REFUSED,
            _ => MISSING,
        };
        for job in &jobs {
            answer(shared, job, Err(Reject::unavailable(why)));
        }
        for ticket in tickets {
            shared.answer(ticket, Err(Reject::unavailable(MISSING)));
        }
    }

    /// Removes jobs and tickets as they are answered, and leaves those that are not.
    fn send_and_receive(
        &mut self,
        shared: &HubShared,
        jobs: &mut VecDeque<PublishJob>,
        tickets: &mut Vec<Ticket>,
    ) -> Result<(), RedisError> {
        // On a connection that is closed already, publishers would get 503 although Redis is there.
        let kept = self.connection.take().filter(|connection| !connection.has_ended());
        let mut connection = match kept {
            Some(connection) => connection,
            None => self.redis.connect(Role::Publish)?,
        };
        self.append(&mut connection, shared, jobs)?;
        if !tickets.is_empty() {
            // One query for the last entry, after the updates, is enough for all tickets.
            let last = self.end(&mut connection)?.unwrap_or_default();
            for ticket in tickets.drain(..) {
                self.answer_at(shared, ticket, last);
            }
        }
        self.connection = Some(connection);
        if self.retry.take().is_some() {
            tracing::info!("--hub-store {}: updates are accepted again", self.redis.url);
        }
        Ok(())
    }

    /// Appends updates. If the stream does not exist or has another epoch, it accepts none of them; only in
    /// this case are they sent again. Only one hub creates a stream: if two hubs did, each with its own
    /// epoch, subscribers would take the change of the epoch for a loss.
    fn append(
        &mut self,
        connection: &mut RedisConnection,
        shared: &HubShared,
        jobs: &mut VecDeque<PublishJob>,
    ) -> Result<(), RedisError> {
        for _ in 0..ATTEMPTS {
            let mut out = Vec::new();
            for job in &*jobs {
                self.put(&mut out, job, Stream::IsThere);
            }
            self.has_sent = true;
            connection.send(&out, REPLY_TIMEOUT)?;
            drop(out);
            let mut not_master = None;
            // Those that the stream does not accept come behind the others, in their order.
            for _ in 0..jobs.len() {
                let reply = connection.receive()?;
                let Some(job) = jobs.pop_front() else { break };
                match reply {
                    Reply::Text(id) if EntryId::parse(&id).is_some() => {
                        answer(shared, &job, Ok(job.id.as_str().into()));
                    }
                    Reply::Nil => jobs.push_back(job),
                    Reply::Error(text) if text.starts_with(OTHER_EPOCH) => jobs.push_back(job),
                    // This server is a replica now, and replies the same to the following updates.
                    Reply::Error(text) if text.starts_with("READONLY") => {
                        answer(shared, &job, Err(Reject::unavailable(REFUSED)));
                        not_master = Some(text);
                    }
                    Reply::Error(text) => {
                        tracing::warn!(
                            "--hub-store {}: an update is refused: {text}",
                            self.redis.url
                        );
                        answer(shared, &job, Err(Reject::unavailable(REFUSED)));
                    }
                    _ => {
                        jobs.push_front(job);
                        return Err(RedisError::Unexpected("XADD"));
                    }
                }
            }
            self.has_sent = false;
            if let Some(text) = not_master {
                // At the next attempt, another server may have this address.
                return Err(RedisError::Refused(text));
            }
            if jobs.is_empty() {
                return Ok(());
            }
            self.begin_stream(connection, shared, jobs)?;
            if jobs.is_empty() {
                return Ok(());
            }
        }
        Err(RedisError::Unexpected("XADD"))
    }

    /// Reads the epoch of the stream. If the stream has no entry, creates it with the first job, unless
    /// another client has created it meanwhile (WATCH).
    fn begin_stream(
        &mut self,
        connection: &mut RedisConnection,
        shared: &HubShared,
        jobs: &mut VecDeque<PublishJob>,
    ) -> Result<(), RedisError> {
        let Some(job) = jobs.front() else { return Ok(()) };
        for _ in 0..ATTEMPTS {
            connection.command(&[b"WATCH", self.redis.key.as_bytes()])?;
            if let Some(last) = self.end(connection)? {
                connection.command(&[b"UNWATCH"])?;
                self.epoch = last.epoch;
                return Ok(());
            }
            let now = SystemTime::now().duration_since(UNIX_EPOCH);
            let now = now.map_or(0, |time| u64::try_from(time.as_millis()).unwrap_or(0));
            let seen = lock(&self.redis.progress).position.epoch.max(self.epoch);
            self.epoch = now.max(seen.saturating_add(1));
            let outcome = self.put_first(connection, job);
            // A command to which Redis replies with an error has no effect.
            self.has_sent =
                matches!(&outcome, Err(error) if !matches!(error, RedisError::Refused(_)));
            if outcome? {
                answer(shared, job, Ok(job.id.as_str().into()));
                jobs.pop_front();
                return Ok(());
            }
        }
        Err(RedisError::Unexpected("EXEC"))
    }

    /// Creates the watched stream with an update. Returns false if another client has changed the stream
    /// before.
    fn put_first(
        &self,
        connection: &mut RedisConnection,
        job: &PublishJob,
    ) -> Result<bool, RedisError> {
        let mut out = Vec::new();
        put_command(&mut out, &[b"MULTI"]);
        self.put(&mut out, job, Stream::IsMissing);
        put_command(&mut out, &[b"EXEC"]);
        connection.send(&out, REPLY_TIMEOUT)?;
        // The replies to MULTI and XADD only confirm that XADD is queued; its result is in the reply to EXEC.
        for _ in 0..2 {
            if let Reply::Error(text) = connection.receive()? {
                return Err(RedisError::Refused(text));
            }
        }
        match connection.receive()? {
            Reply::Nil => Ok(false),
            Reply::Error(text) => Err(RedisError::Refused(text)),
            Reply::List(replies) => match &replies[..] {
                [Reply::Text(id)] if EntryId::parse(id).is_some() => Ok(true),
                [Reply::Error(text)] => Err(RedisError::Refused(text.clone())),
                _ => Err(RedisError::Unexpected("EXEC")),
            },
            _ => Err(RedisError::Unexpected("EXEC")),
        }
    }

    fn put(
        &self,
        out: &mut Vec<u8>,
        PublishJob { publication, id, .. }: &PublishJob,
        stream: Stream,
    ) {
        let record = Record::encode(id, publication).unwrap_or_default();
        let name = format!("{}-*", self.epoch);
        let length = self.redis.length.to_string();
        let key = self.redis.key.as_bytes();
        // `~`: Redis removes entries in groups, which costs less. It keeps at least `length` entries.
        let words: [&[u8]; 9] = [
            b"XADD",
            key,
            b"NOMKSTREAM",
            b"MAXLEN",
            b"~",
            length.as_bytes(),
            name.as_bytes(),
            FIELD,
            &record,
        ];
        match stream {
            Stream::IsThere => put_command(out, &words),
            Stream::IsMissing => put_command(out, &[&words[..2], &words[3..]].concat()),
        }
    }

    /// Returns the last entry of the stream.
    fn end(&self, connection: &mut RedisConnection) -> Result<Option<EntryId>, RedisError> {
        let key = self.redis.key.as_bytes();
        let reply = connection.command(&[b"XREVRANGE", key, b"+", b"-", b"COUNT", b"1"])?;
        Ok(last_entry(reply)?.map(|(id, _)| id))
    }

    /// Answers a ticket when the log has this entry.
    fn answer_at(&self, shared: &HubShared, ticket: Ticket, wanted: EntryId) {
        let mut progress = lock(&self.redis.progress);
        if progress.position >= wanted {
            shared.answer(ticket, Ok("".into()));
        } else if self.redis.is_following.load(Ordering::SeqCst) {
            progress.waiting.push((ticket, wanted));
        } else {
            shared.answer(ticket, Err(Reject::unavailable(MISSING)));
        }
    }
}

fn answer(shared: &HubShared, job: &PublishJob, answer: Result<Arc<str>, Reject>) {
    finish(shared, job.ticket, job.waiting.as_ref(), answer);
}

/// The answer to clients that need data that only Redis has.
pub(super) const MISSING: &str = "the hub's Redis is missing: try again";

/// The answer to a publisher whose update is certainly not stored.
const REFUSED: &str = "the hub's Redis refused the update: try later";

fn content(task: &StreamTask) -> usize {
    match task {
        StreamTask::Publish(job) => job.bytes(),
        StreamTask::CatchUp(_) => 0,
    }
}
