//! The access log: lines in Common Log Format, written by a thread of their own.
//!
//! Workers gather lines in a buffer and hand whole buffers over. When the writer is behind (a slow
//! disk, a pipe that nobody reads), buffers are dropped and their lines counted: a server must not
//! wait for its log. At its end it does, for a bounded time. Where units are processes, so is the
//! writer ([`LogProcess`]).

mod process;

pub(crate) use process::LogProcess;

use crate::{clients::ClientTable, config::LogTarget, sandbox::early, transport::listener};
use anyhow::Context;
use pollux_http::date::DateCache;
use std::{
    fs::OpenOptions,
    io::{self, Write},
    net::IpAddr,
    os::fd::{AsRawFd, BorrowedFd, OwnedFd},
    sync::{
        Arc, Mutex, PoisonError,
        mpsc::{Receiver, RecvTimeoutError, SyncSender, channel, sync_channel},
    },
    thread,
    time::Duration,
};

/// A buffer is handed over when it has grown to this.
const BUFFER_BYTES: usize = 32 << 10;
/// Buffers on the way to the writer, of all workers together; 8 MiB.
const QUEUE_BUFFERS: usize = 256;
/// How long a server that ends waits for what is left to be written: longer than a disk stands still that
/// starts to turn, or that others keep busy.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);
/// The warning when that was not enough.
pub(crate) const LOST: &str = "access log: it is not written in time; its last lines are lost";

/// What the thread that writes is sent.
#[derive(Debug)]
enum Message {
    /// Whole lines.
    Lines(Vec<u8>),
    /// The file may have been moved away: what follows goes to a file of its name.
    Reopen,
}

/// The thread that writes.
#[derive(Debug)]
pub(crate) struct Log {
    sender: SyncSender<Message>,
    /// Its other end is the thread's, which drops it when it ends. Nothing is ever sent. Behind a lock, so
    /// that threads can share a server.
    end: Mutex<Receiver<()>>,
}

impl Log {
    /// Opens the target and starts the thread.
    ///
    /// # Errors
    /// When the file cannot be opened for appending.
    pub(crate) fn start(target: &LogTarget) -> anyhow::Result<Self> {
        let file = open(target)?;
        let target = target.clone();
        let (sender, receiver) = sync_channel(QUEUE_BUFFERS);
        let (until_here, end) = channel();
        thread::Builder::new().name("access-log".into()).spawn(move || {
            write_each(|| receiver.recv().ok(), &target, file);
            drop(until_here);
        })?;
        Ok(Self { sender, end: Mutex::new(end) })
    }

    /// A worker's end.
    pub(crate) fn writer(&self) -> LogWriter {
        self.source().writer()
    }

    /// Where units that are started later get theirs from.
    pub(crate) fn source(&self) -> LogSource {
        LogSource(Way::Thread(self.sender.clone()))
    }

    /// Has the file opened anew, behind all lines that were handed over before.
    pub(crate) fn reopen(&self) {
        if self.sender.try_send(Message::Reopen).is_err() {
            tracing::warn!(
                "access log: the writer is behind, so it is not reopened; request it again"
            );
        }
    }

    /// Waits until everything that was handed over has been written, and no longer than `patience`:
    /// a write to a pipe that nobody reads never returns. The workers' ends must be gone.
    pub(crate) fn finish(self, patience: Duration) {
        drop(self.sender);
        let end = self.end.into_inner().unwrap_or_else(PoisonError::into_inner);
        if end.recv_timeout(patience) == Err(RecvTimeoutError::Timeout) {
            tracing::warn!("{LOST}");
        }
    }
}

/// How whole lines reach the writer.
#[derive(Clone, Debug)]
enum Way {
    /// A thread of this process.
    Thread(SyncSender<Message>),
    /// Another process: a socket that preserves message boundaries, shared by all senders.
    Process(Arc<OwnedFd>),
}

/// Gives out ends of the log.
#[derive(Clone, Debug)]
pub(crate) struct LogSource(Way);

impl LogSource {
    /// A unit's end.
    pub(crate) fn writer(&self) -> LogWriter {
        LogWriter {
            way: self.0.clone(),
            buffer: Vec::new(),
            lines: 0,
            dropped: 0,
            peer: Peer::Unknown,
            date: Date { unix_second: u64::MAX, text: String::new() },
        }
    }
}

fn open(target: &LogTarget) -> anyhow::Result<Box<dyn Write + Send>> {
    Ok(match target {
        LogTarget::Stdout => Box::new(std::io::stdout()),
        LogTarget::File(path) => match early::take_log(path) {
            Some(file) => Box::new(file),
            None => Box::new(
                OpenOptions::new()
                    .append(true)
                    .create(true)
                    .open(path)
                    .with_context(|| format!("access log {}", path.display()))?,
            ),
        },
    })
}

/// Writes what comes until nothing comes any more.
fn write_each(
    mut next: impl FnMut() -> Option<Message>,
    target: &LogTarget,
    file: Box<dyn Write + Send>,
) {
    let mut file = LineFile { file, rest: Vec::new() };
    let mut has_failed = false;
    while let Some(message) = next() {
        let outcome = match message {
            Message::Lines(lines) => file.write(&lines),
            Message::Reopen => {
                match open(target) {
                    Ok(new) => {
                        file = LineFile { file: new, rest: Vec::new() };
                        has_failed = false;
                    }
                    Err(error) => tracing::error!("{error:#}; the one that was open stays in use"),
                }
                continue;
            }
        };
        if let Err(error) = outcome
            && !std::mem::replace(&mut has_failed, true)
        {
            tracing::error!("access log: {error}; lines are being lost");
        }
    }
}

/// A file that gets whole lines, also where a write fails half way (a full disk).
struct LineFile {
    file: Box<dyn Write + Send>,
    /// The rest of a line of which the beginning was written.
    rest: Vec<u8>,
}

impl LineFile {
    /// Writes these lines, or as many as can be written. One that is cut is written to its end as soon
    /// as that is possible, before any other; those behind it are lost.
    fn write(&mut self, lines: &[u8]) -> io::Result<()> {
        let (written, outcome) = write_part(&mut *self.file, &self.rest);
        self.rest.drain(..written);
        outcome?;
        let (written, outcome) = write_part(&mut *self.file, lines);
        if outcome.is_err() && lines[..written].last().is_some_and(|byte| *byte != b'\n') {
            let rest = lines[written..].split_inclusive(|byte| *byte == b'\n').next();
            self.rest = rest.unwrap_or_default().to_vec();
        }
        outcome?;
        self.file.flush()
    }
}

/// Writes `bytes`, as far as that goes. Returns how many were written, and why not more.
fn write_part(file: &mut dyn Write, bytes: &[u8]) -> (usize, io::Result<()>) {
    let mut written = 0;
    while written < bytes.len() {
        match file.write(&bytes[written..]) {
            Ok(0) => return (written, Err(io::ErrorKind::WriteZero.into())),
            Ok(count) => written += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return (written, Err(error)),
        }
    }
    (written, Ok(()))
}

/// Whose requests are being answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Peer {
    /// Not known yet: finding out costs a system call, and most iterations of a connection write no
    /// line.
    Unknown,
    /// This one; `None` for UNIX sockets.
    Known(Option<IpAddr>),
}

/// A worker's end of the log.
#[derive(Debug)]
pub(crate) struct LogWriter {
    way: Way,
    buffer: Vec<u8>,
    lines: u64,
    dropped: u64,
    /// Whose requests are being answered.
    pub(crate) peer: Peer,
    date: Date,
}

/// The date of the present second in the log's form.
#[derive(Debug)]
struct Date {
    unix_second: u64,
    text: String,
}

impl LogWriter {
    /// Finds out the address of the client, if it is not known yet.
    pub(crate) fn learn_peer(&mut self, socket: Option<BorrowedFd<'_>>, clients: &ClientTable) {
        if self.peer == Peer::Unknown
            && let Some(socket) = socket
        {
            let known = clients.address(socket.as_raw_fd());
            self.peer = Peer::Known(known.or_else(|| listener::peer(socket)));
        }
    }

    /// Adds a line. `request` is the request line: visible ASCII and spaces; `len` counts the
    /// bytes of content. A status of 0 is written as 000.
    pub(crate) fn write(&mut self, date: &DateCache, request: &[u8], status: u16, len: u64) {
        if date.unix_second() != self.date.unix_second {
            let text = clf_date(date.value());
            self.date = Date { unix_second: date.unix_second(), text };
        }
        // Nothing is lost in a Vec.
        let _ = match self.peer {
            Peer::Known(Some(peer)) => write!(self.buffer, "{peer}"),
            Peer::Known(None) | Peer::Unknown => write!(self.buffer, "-"),
        };
        let _ = write!(self.buffer, " - - [{}] \"", self.date.text);
        for &byte in request {
            // A quote or a backslash would end the field for a reader of the log.
            if matches!(byte, b'"' | b'\\') {
                self.buffer.push(b'\\');
            }
            self.buffer.push(byte);
        }
        let _ = writeln!(self.buffer, "\" {status:03} {len}");
        self.lines += 1;
        if self.buffer.len() >= BUFFER_BYTES {
            self.hand_over();
        }
    }

    /// Hands the gathered lines to the writer, or drops them when it is behind.
    pub(crate) fn hand_over(&mut self) {
        if self.buffer.is_empty() {
            return;
        }
        let buffer = std::mem::take(&mut self.buffer);
        let is_taken = match &self.way {
            Way::Thread(sender) => sender.try_send(Message::Lines(buffer)).is_ok(),
            Way::Process(socket) => process::send(socket, &buffer),
        };
        if !is_taken {
            self.dropped += self.lines;
        }
        self.lines = 0;
    }

    /// Lines that were dropped.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped
    }
}

/// `Sun, 06 Nov 1994 08:49:37 GMT` as `06/Nov/1994:08:49:37 +0000`.
fn clf_date(http: &[u8]) -> String {
    let text = String::from_utf8_lossy(http);
    let mut words = text.split(' ').skip(1);
    let mut word = || words.next().unwrap_or_default();
    format!("{}/{}/{}:{} +0000", word(), word(), word(), word())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_in_common_log_format() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        let log = Log::start(&LogTarget::File(path.clone())).unwrap();
        let mut writer = log.writer();
        writer.peer = Peer::Known(Some("127.0.0.1".parse().unwrap()));
        let date = DateCache::new(784_111_777);
        writer.write(&date, b"GET /a HTTP/1.0", 200, 2326);
        writer.peer = Peer::Known(None);
        writer.write(&date, b"GET /\"\\ HTTP/1.1", 200, 2326);
        writer.hand_over();
        drop(writer);
        log.finish(Duration::from_secs(60));
        assert_eq!(
            std::fs::read_to_string(path).unwrap(),
            "127.0.0.1 - - [06/Nov/1994:08:49:37 +0000] \"GET /a HTTP/1.0\" 200 2326\n\
             - - - [06/Nov/1994:08:49:37 +0000] \"GET /\\\"\\\\ HTTP/1.1\" 200 2326\n"
        );
    }

    #[test]
    fn a_writer_that_is_behind_costs_lines_and_no_time() {
        let (sender, _receiver) = sync_channel(1);
        let mut writer = Log { sender, end: Mutex::new(channel().1) }.writer();
        for _ in 0..3 {
            writer.write(&DateCache::new(0), b"-", 200, 0);
            writer.write(&DateCache::new(0), b"-", 200, 0);
            writer.hand_over();
        }
        assert_eq!(writer.dropped(), 4);
    }

    /// A writer that never comes back, as from a pipe that nobody reads. Before, this waited for ever.
    #[test]
    fn an_end_does_not_wait_for_ever() {
        let (sender, _receiver) = sync_channel(1);
        let (_never_dropped, end) = channel();
        Log { sender, end: Mutex::new(end) }.finish(Duration::from_millis(1));
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

    /// Before, the next line began in the middle of the one that was cut.
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
                Some(Message::Lines(message.into()))
            };
            write_each(next, &LogTarget::Stdout, Box::new(Disk { written: disk.clone() }));
            let text = String::from_utf8(disk.lock().unwrap().0.clone()).unwrap();
            assert!(text.ends_with("third line\n"), "{room}: {text:?}");
            let whole = ["first line", "second line", "lost", "third line"];
            assert!(text.lines().all(|line| whole.contains(&line)), "{room}: {text:?}");
        }
    }
}
