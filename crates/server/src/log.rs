//! The access log and the log of slow requests, written by a separate thread.
//!
//! Workers collect lines in a buffer and send whole buffers to the writer. If the writer is behind
//! (a slow disk, or a pipe that no process reads), buffers are dropped and their lines are counted,
//! because a server must not wait for its log. Only at its end does the server wait, for a bounded
//! time. If the workers are processes, the writer is a process, too ([`LogProcess`]).

mod line;
mod process;
mod record;
pub(crate) mod request_id;
mod sink;

pub(crate) use line::LogEntry;
pub(crate) use process::LogProcess;
pub(crate) use record::Records;

use crate::{clients::ClientTable, config::LogConfig, transport::listener};
use line::{Date, LogLine};
use pollux_http::date::DateCache;
use sink::Sink;
use std::{
    net::IpAddr,
    os::fd::{AsRawFd, BorrowedFd, OwnedFd},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
        mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel},
    },
    thread,
    time::{Duration, Instant},
};

/// A buffer is sent to the writer when it has this size.
const BUFFER_BYTES: usize = 32 << 10;
/// The maximum number of buffers on the way to the writer, for all workers together (8 MiB).
const QUEUE_BUFFERS: usize = 256;
/// How long an ending server waits until the remaining lines are written. A disk that has to spin
/// up, or that other programs keep busy, needs less time than this.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);
/// How long a reload waits for the outcome of opening the files again. The writer may be busy with a slow disk.
const REOPEN_PATIENCE: Duration = Duration::from_secs(2);
/// The time between two messages that a log cannot be written. A disk that was full before is full again perhaps weeks
/// later, and the first message is forgotten then.
const REPORT_PAUSE: Duration = Duration::from_secs(60);
/// The warning that is logged if [`PATIENCE`] was too short.
pub(crate) const LOST: &str = "access log: it is not written in time; its last lines are lost";

/// A message to the writer.
#[derive(Debug)]
enum Message {
    /// Whole lines of one of the logs.
    Lines(Kind, Vec<u8>),
    /// The file may have been moved away: the lines after this message go to a new file of the same
    /// name. The reason why not, if there is one, is sent back.
    Reopen(Option<Sender<Option<String>>>),
}

/// The log that a line is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// The log of all requests.
    Access,
    /// The log of slow requests.
    Slow,
}

impl Kind {
    /// Returns its name in messages.
    fn name(self) -> &'static str {
        match self {
            Self::Access => "access log",
            Self::Slow => "slow log",
        }
    }
}

/// The thread that writes the logs.
#[derive(Debug)]
pub(crate) struct Log {
    config: Arc<LogConfig>,
    /// The number of lines that the thread could not write and that no worker has counted yet.
    lost: Arc<AtomicU64>,
    sender: SyncSender<Message>,
    /// The thread drops the other end when it ends. Nothing is ever sent. The lock makes [`Log`]
    /// `Sync`, so that threads can share a server.
    end: Mutex<Receiver<()>>,
}

impl Log {
    /// Does the same as [`Log::start`]; returns `None` if nothing is logged.
    ///
    /// # Errors
    /// The errors of [`Log::start`].
    pub(crate) fn of(config: &LogConfig) -> anyhow::Result<Option<Self>> {
        (!config.is_off()).then(|| Self::start(config)).transpose()
    }

    /// Opens the targets and starts the thread.
    ///
    /// # Errors
    /// A file cannot be opened for appending, or no process receives messages at a socket.
    pub(crate) fn start(config: &LogConfig) -> anyhow::Result<Self> {
        let sinks = Sinks::open(config)?;
        let config = Arc::new(config.clone());
        let lost = Arc::new(AtomicU64::new(0));
        let (sender, receiver) = sync_channel(QUEUE_BUFFERS);
        let (until_here, end) = channel();
        let (of_thread, count) = (config.clone(), lost.clone());
        thread::Builder::new().name("access-log".into()).spawn(move || {
            write_each(|| receiver.recv().ok(), &of_thread, sinks, &count);
            drop(until_here);
        })?;
        Ok(Self { config, lost, sender, end: Mutex::new(end) })
    }

    /// Returns a writer for one worker.
    pub(crate) fn writer(&self) -> LogWriter {
        self.source().writer()
    }

    /// Returns a source of writers for workers that are started later.
    pub(crate) fn source(&self) -> LogSource {
        LogSource {
            config: self.config.clone(),
            lost: self.lost.clone(),
            way: Way::Thread(self.sender.clone()),
        }
    }

    /// Opens the files again, after all lines that were sent before are written. Returns the reason if that fails, as
    /// far as it is known within [`REOPEN_PATIENCE`]; it is also logged.
    pub(crate) fn reopen(&self) -> Option<String> {
        let (reply_to, outcome) = channel();
        if self.sender.try_send(Message::Reopen(Some(reply_to))).is_err() {
            let reason =
                "access log: the writer is behind, so it is not reopened; request it again";
            tracing::warn!("{reason}");
            return Some(reason.to_owned());
        }
        outcome.recv_timeout(REOPEN_PATIENCE).ok().flatten()
    }

    /// Waits until all lines that were sent are written, but no longer than `patience`: a write to
    /// a pipe that no process reads never returns. All writers must have been dropped before.
    pub(crate) fn finish(self, patience: Duration) {
        drop(self.sender);
        let end = self.end.into_inner().unwrap_or_else(PoisonError::into_inner);
        if end.recv_timeout(patience) == Err(RecvTimeoutError::Timeout) {
            tracing::warn!("{LOST}");
        }
    }
}

/// The way in which whole lines reach the writer.
#[derive(Clone, Debug)]
enum Way {
    /// A thread of this process.
    Thread(SyncSender<Message>),
    /// Another process: a socket that preserves message boundaries, shared by all senders.
    Process(Arc<OwnedFd>),
}

/// A source of writers for workers.
#[derive(Clone, Debug)]
pub(crate) struct LogSource {
    config: Arc<LogConfig>,
    lost: Arc<AtomicU64>,
    way: Way,
}

impl LogSource {
    /// Returns a writer for one worker.
    pub(crate) fn writer(&self) -> LogWriter {
        let slow = self.config.slow.as_ref();
        let threshold = slow.map(|slow| slow.threshold.as_millis());
        LogWriter {
            way: self.way.clone(),
            config: self.config.clone(),
            lost: self.lost.clone(),
            slow_ms: threshold.map_or(u32::MAX, |ms| u32::try_from(ms).unwrap_or(u32::MAX)),
            access: Buffer::default(),
            slow: Buffer::default(),
            dropped: 0,
            peer: Peer::Unknown,
            date: Date::new(),
        }
    }
}

/// The open targets.
struct Sinks {
    access: Option<Sink>,
    slow: Option<Sink>,
}

impl Sinks {
    fn open(config: &LogConfig) -> anyhow::Result<Self> {
        let access = config.access.as_ref();
        let slow = config.slow.as_ref().map(|slow| &slow.target);
        Ok(Self {
            access: access.map(|target| Sink::open(target, Kind::Access.name())).transpose()?,
            slow: slow.map(|target| Sink::open(target, Kind::Slow.name())).transpose()?,
        })
    }

    /// Opens each target again that is open: one that fails stays as it is, and does not keep the other one from being
    /// rotated. Returns the reasons of failures.
    fn reopen(&mut self, config: &LogConfig, reports: &mut FailureReports) -> Option<String> {
        let slow = config.slow.as_ref().map(|slow| &slow.target);
        let mut reasons = Vec::new();
        for (kind, sink, target) in [
            (Kind::Access, &mut self.access, config.access.as_ref()),
            (Kind::Slow, &mut self.slow, slow),
        ] {
            match target.map(|target| Sink::open(target, kind.name())) {
                Some(Ok(new)) => {
                    *sink = Some(new);
                    reports.forget(kind);
                }
                Some(Err(error)) => {
                    reasons.push(format!("{error:#}; the one that was open stays in use"));
                }
                None => {}
            }
        }
        (!reasons.is_empty()).then(|| reasons.join("; "))
    }
}

/// When the failures of each log were reported.
#[derive(Debug, Default)]
struct FailureReports([Option<Instant>; 2]);

impl FailureReports {
    /// Returns whether a failure of this log is reported now: the first one, and one after each [`REPORT_PAUSE`].
    fn is_due(&mut self, kind: Kind, now: Instant) -> bool {
        let last = &mut self.0[kind as usize];
        let is_due = last.is_none_or(|last| now.saturating_duration_since(last) >= REPORT_PAUSE);
        if is_due {
            *last = Some(now);
        }
        is_due
    }

    /// Has the next failure of this log reported.
    fn forget(&mut self, kind: Kind) {
        self.0[kind as usize] = None;
    }
}

/// Writes the lines of each message until all senders are closed. Lines that cannot be written are
/// added to `lost`.
fn write_each(
    mut next: impl FnMut() -> Option<Message>,
    config: &LogConfig,
    mut sinks: Sinks,
    lost: &AtomicU64,
) {
    let mut reports = FailureReports::default();
    while let Some(message) = next() {
        let (kind, lines) = match message {
            Message::Lines(kind, lines) => (kind, lines),
            Message::Reopen(reply_to) => {
                let reason = sinks.reopen(config, &mut reports);
                if let Some(reason) = &reason {
                    tracing::error!("{reason}");
                }
                if let Some(reply_to) = reply_to {
                    // The main thread may have given up waiting.
                    let _ = reply_to.send(reason);
                }
                continue;
            }
        };
        let sink = match kind {
            Kind::Access => &mut sinks.access,
            Kind::Slow => &mut sinks.slow,
        };
        let Some(sink) = sink else { continue };
        let loss = sink.write(&lines);
        lost.fetch_add(loss.lines, Ordering::Relaxed);
        if let Some(error) = loss.error
            && reports.is_due(kind, Instant::now())
        {
            tracing::error!("{}: {error}; lines are being lost", kind.name());
        }
    }
}

/// The client whose requests are being answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Peer {
    /// The address is not known yet: to ask for it costs a system call, and most iterations of a
    /// connection write no line.
    Unknown,
    /// The address of the client; `None` for UNIX sockets.
    Known(Option<IpAddr>),
}

/// The log, as one worker uses it.
#[derive(Debug)]
pub(crate) struct LogWriter {
    way: Way,
    config: Arc<LogConfig>,
    lost: Arc<AtomicU64>,
    /// Requests that took at least this number of milliseconds are slow.
    slow_ms: u32,
    access: Buffer,
    slow: Buffer,
    dropped: u64,
    /// The client whose requests are being answered.
    pub(crate) peer: Peer,
    date: Date,
}

/// Lines that have not been sent to the writer yet.
#[derive(Debug, Default)]
struct Buffer {
    bytes: Vec<u8>,
    lines: u64,
}

impl LogWriter {
    /// Returns the settings of the log.
    pub(crate) fn config(&self) -> &LogConfig {
        &self.config
    }

    /// Asks for the address of the client, if it is not known yet.
    pub(crate) fn learn_peer(&mut self, socket: Option<BorrowedFd<'_>>, clients: &ClientTable) {
        if self.peer == Peer::Unknown
            && let Some(socket) = socket
        {
            let known = clients.address(socket.as_raw_fd());
            self.peer = Peer::Known(known.or_else(|| listener::peer(socket)));
        }
    }

    /// Returns whether a request that took this long is logged.
    #[inline]
    pub(crate) fn wants(&self, elapsed_ms: u32) -> bool {
        self.config.access.is_some() || elapsed_ms >= self.slow_ms
    }

    /// Adds a line.
    pub(crate) fn write(&mut self, date: &DateCache, entry: &LogEntry<'_>) {
        self.date.update(date);
        let line = LogLine { config: &self.config, date: &self.date, peer: self.peer, entry };
        if self.config.access.is_some() {
            line::put(&mut self.access.bytes, &line, false);
            self.access.lines += 1;
        }
        if self.config.slow.is_some() && entry.elapsed_ms >= self.slow_ms {
            line::put(&mut self.slow.bytes, &line, true);
            self.slow.lines += 1;
        }
        if self.access.bytes.len().max(self.slow.bytes.len()) >= BUFFER_BYTES {
            self.hand_over();
        }
    }

    /// Sends the collected lines to the writer, or drops them if the writer is behind.
    #[inline]
    pub(crate) fn hand_over(&mut self) {
        for (kind, buffer) in [(Kind::Access, &mut self.access), (Kind::Slow, &mut self.slow)] {
            if !buffer.bytes.is_empty() {
                let Buffer { bytes, lines } = std::mem::take(buffer);
                let is_taken = match &self.way {
                    Way::Thread(sender) => sender.try_send(Message::Lines(kind, bytes)).is_ok(),
                    Way::Process(socket) => process::send_lines(socket, kind, bytes),
                };
                self.dropped += if is_taken { 0 } else { lines };
            }
        }
    }

    /// Returns the number of lines that this worker and the writer have dropped. The lines that the
    /// writer has dropped are counted by only one worker.
    pub(crate) fn dropped(&mut self) -> u64 {
        if self.lost.load(Ordering::Relaxed) > 0 {
            self.dropped += self.lost.swap(0, Ordering::Relaxed);
        }
        self.dropped
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{LogTarget, SlowLog};
    use sink::LineFile;
    use std::io::{self, Write};

    fn entry(request: &[u8]) -> LogEntry<'_> {
        LogEntry { request, status: 200, len: 2326, elapsed_ms: 0, record: None }
    }

    fn writer_of(sender: SyncSender<Message>) -> LogWriter {
        let config = Arc::new(LogConfig::clf(LogTarget::Stdout));
        let end = Mutex::new(channel().1);
        Log { config, lost: Arc::default(), sender, end }.writer()
    }

    #[test]
    fn lines_are_in_common_log_format() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        let log = Log::start(&LogConfig::clf(LogTarget::File(path.clone()))).unwrap();
        let mut writer = log.writer();
        writer.peer = Peer::Known(Some("127.0.0.1".parse().unwrap()));
        let date = DateCache::new(784_111_777);
        writer.write(&date, &entry(b"GET /a HTTP/1.0"));
        writer.peer = Peer::Known(None);
        writer.write(&date, &entry(b"GET /\"\\ HTTP/1.1"));
        writer.hand_over();
        drop(writer);
        log.finish(Duration::from_secs(60));
        assert_eq!(
            std::fs::read_to_string(path).unwrap(),
            "127.0.0.1 - - [06/Nov/1994:08:49:37 +0000] \"GET /a HTTP/1.0\" 200 2326\n\
             - - - [06/Nov/1994:08:49:37 +0000] \"GET /\\\"\\\\ HTTP/1.1\" 200 2326\n"
        );
    }

    /// Regression: a disk that became full for the second time was not reported, nor was the slow log's after the
    /// access log's.
    #[test]
    fn failures_of_each_log_are_reported_again_after_a_pause() {
        let (mut reports, start) = (FailureReports::default(), Instant::now());
        let mut is_due = |kind, after: Duration| reports.is_due(kind, start + after);
        let moment = Duration::from_millis(1);
        assert!(is_due(Kind::Access, Duration::ZERO));
        assert!(is_due(Kind::Slow, moment));
        assert!(!is_due(Kind::Access, REPORT_PAUSE - moment));
        assert!(is_due(Kind::Access, REPORT_PAUSE));
        assert!(!is_due(Kind::Slow, REPORT_PAUSE));
        assert!(!is_due(Kind::Access, 2 * REPORT_PAUSE - moment));
    }

    /// Regression: a reload said that the log was opened again, and it was not.
    #[test]
    fn a_file_that_cannot_be_opened_again_is_reported() {
        let directory = tempfile::tempdir().unwrap();
        let folder = directory.path().join("folder");
        std::fs::create_dir(&folder).unwrap();
        let log = Log::start(&LogConfig::clf(LogTarget::File(folder.join("log")))).unwrap();
        assert_eq!(log.reopen(), None);
        std::fs::remove_dir_all(&folder).unwrap();
        let reason = log.reopen().unwrap();
        assert!(reason.contains("the one that was open stays in use"), "{reason}");
        log.finish(Duration::from_secs(60));
    }

    /// Regression: a slow log that could not be opened again kept the access log from being rotated, and the other way
    /// round.
    #[test]
    fn each_log_is_opened_again_whatever_is_wrong_with_the_other() {
        for (failing, good) in [("slow", "all"), ("all", "slow")] {
            let directory = tempfile::tempdir().unwrap();
            let path_of = |name: &str| directory.path().join(name).join("log");
            for name in ["slow", "all"] {
                std::fs::create_dir(directory.path().join(name)).unwrap();
            }
            let slow = LogTarget::File(path_of("slow"));
            let config = LogConfig {
                slow: Some(SlowLog { target: slow, threshold: Duration::ZERO }),
                ..LogConfig::clf(LogTarget::File(path_of("all")))
            };
            let log = Log::start(&config).unwrap();
            std::fs::remove_dir_all(directory.path().join(failing)).unwrap();
            std::fs::remove_file(path_of(good)).unwrap();
            let reason = log.reopen().unwrap();
            assert_eq!(reason.matches("stays in use").count(), 1, "{reason}");
            let mut writer = log.writer();
            writer.write(&DateCache::new(0), &entry(b"GET / HTTP/1.1"));
            writer.hand_over();
            drop(writer);
            log.finish(Duration::from_secs(60));
            assert!(std::fs::read_to_string(path_of(good)).unwrap().contains("GET / "), "{good}");
        }
    }

    #[test]
    fn a_writer_that_is_behind_costs_lines_and_no_time() {
        let (sender, _receiver) = sync_channel(1);
        let mut writer = writer_of(sender);
        for _ in 0..3 {
            writer.write(&DateCache::new(0), &entry(b"-"));
            writer.write(&DateCache::new(0), &entry(b"-"));
            writer.hand_over();
        }
        assert_eq!(writer.dropped(), 4);
    }

    /// Regression: a writer that never returns, as with a pipe that no process reads, blocked the
    /// end of the server for ever.
    #[test]
    fn an_end_does_not_wait_for_ever() {
        let (sender, _receiver) = sync_channel(1);
        let (_never_dropped, end) = channel();
        let config = Arc::new(LogConfig::clf(LogTarget::Stdout));
        Log { config, lost: Arc::default(), sender, end: Mutex::new(end) }
            .finish(Duration::from_millis(1));
    }

    /// Accepts a given number of bytes, and then none until the test allows more.
    struct Disk {
        written: Arc<Mutex<(Vec<u8>, usize)>>,
    }

    impl Write for Disk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let mut guard = self.written.lock().unwrap();
            let (written, room) = &mut *guard;
            let count = bytes.len().min(*room);
            if count == 0 && !bytes.is_empty() {
                return Err(io::ErrorKind::StorageFull.into());
            }
            *room -= count;
            written.extend_from_slice(&bytes[..count]);
            Ok(count)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Regression: the next line began in the middle of the line that was cut.
    #[test]
    fn lines_are_whole_after_a_full_disk() {
        for room in 0..40 {
            let disk = Arc::new(Mutex::new((Vec::new(), room)));
            let mut messages = ["first line\nsecond line\n", "lost\n", "third line\n"].into_iter();
            let written = disk.clone();
            let next = move || {
                let message = messages.next()?;
                if message.starts_with("third") {
                    written.lock().unwrap().1 = usize::MAX;
                }
                Some(Message::Lines(Kind::Access, message.into()))
            };
            let file = LineFile::new(Box::new(Disk { written: disk.clone() }));
            let sinks = Sinks { access: Some(Sink::Lines(file)), slow: None };
            let lost = AtomicU64::new(0);
            write_each(next, &LogConfig::default(), sinks, &lost);
            let text = String::from_utf8(disk.lock().unwrap().0.clone()).unwrap();
            assert!(text.ends_with("third line\n"), "{room}: {text:?}");
            let whole = ["first line", "second line", "lost", "third line"];
            assert!(text.lines().all(|line| whole.contains(&line)), "{room}: {text:?}");
            let missing = 4 - text.lines().count() as u64;
            assert_eq!(lost.into_inner(), missing, "{room}: {text:?}");
        }
    }

    #[test]
    fn slow_requests_are_in_both_logs() {
        let directory = tempfile::tempdir().unwrap();
        let [all, slow] = ["all", "slow"].map(|name| directory.path().join(name));
        let threshold = Duration::from_millis(500);
        let config = LogConfig {
            slow: Some(SlowLog { target: LogTarget::File(slow.clone()), threshold }),
            ..LogConfig::clf(LogTarget::File(all.clone()))
        };
        let log = Log::start(&config).unwrap();
        let mut writer = log.writer();
        for elapsed_ms in [0, 499, 500] {
            let entry = LogEntry { elapsed_ms, ..entry(b"GET / HTTP/1.1") };
            writer.write(&DateCache::new(0), &entry);
        }
        writer.hand_over();
        drop(writer);
        log.finish(Duration::from_secs(60));
        assert_eq!(std::fs::read_to_string(all).unwrap().lines().count(), 3);
        let text = std::fs::read_to_string(slow).unwrap();
        assert!(text.lines().count() == 1 && text.ends_with(" 200 2326 500ms\n"), "{text}");
    }
}
