//! The control channel between the main thread and a worker: lines of text over a pair of sockets.
//!
//! The channel carries bytes instead of a queue of values, so that it also works across fork(2). It is a
//! socket instead of an eventfd, because not every mechanism can wait for an eventfd (RT signals).
//!
//! Under load, a mechanism may report the socket late: behind thousands of queued signals, a report took
//! seconds. Therefore a counter in shared memory shows at once that there is a command. A worker that is a
//! process has only the socket.

use crate::stats::Statistics;
use rustix::net::SendFlags;
use std::{
    collections::VecDeque,
    io::{self, BufRead, BufReader, IoSlice, Write},
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::net::UnixStream,
    },
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

/// How long a worker may take to send its statistics, or to take a command.
const PATIENCE: Duration = Duration::from_secs(10);

/// The maximum length of a command in bytes; a longer line is not a command.
const COMMAND_BYTES: usize = 64;

/// A command of the main thread to a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WorkerCommand {
    /// Send the statistics, with this number.
    Statistics(u64),
    /// Stop accepting, and end the requests in flight within the time.
    Stop {
        /// In whole milliseconds.
        grace: Duration,
    },
    /// State that the workers share has changed: check it.
    News,
    /// Prepare to serve with the configuration that is offered under this number.
    Prepare(u64),
    /// Serve with the prepared configuration of this number from now on.
    Commit(u64),
    /// Send idle connections on the channel that arrives with this command.
    Depart,
    /// Take over the connections that arrive on the channel that arrives with this command.
    Adopt,
    /// The successor does not take over: keep serving.
    Stay,
    /// The successor takes over: end the requests in progress within the time.
    Leave {
        /// In whole milliseconds.
        drain: Duration,
    },
}

impl WorkerCommand {
    fn line(self) -> String {
        match self {
            Self::Statistics(number) => format!("statistics {number}\n"),
            Self::Stop { grace } => format!("stop {}\n", grace.as_millis()),
            Self::News => "news 0\n".to_owned(),
            Self::Prepare(number) => format!("prepare {number}\n"),
            Self::Commit(number) => format!("commit {number}\n"),
            Self::Depart => "depart 0\n".to_owned(),
            Self::Adopt => "adopt 0\n".to_owned(),
            Self::Stay => "stay 0\n".to_owned(),
            Self::Leave { drain } => format!("leave {}\n", drain.as_millis()),
        }
    }

    fn parse(line: &[u8]) -> Option<Self> {
        let (word, number) = std::str::from_utf8(line).ok()?.split_once(' ')?;
        let number = number.parse().ok()?;
        match word {
            "statistics" => Some(Self::Statistics(number)),
            "stop" => Some(Self::Stop { grace: Duration::from_millis(number) }),
            "news" => Some(Self::News),
            "prepare" => Some(Self::Prepare(number)),
            "commit" => Some(Self::Commit(number)),
            "depart" => Some(Self::Depart),
            "adopt" => Some(Self::Adopt),
            "stay" => Some(Self::Stay),
            "leave" => Some(Self::Leave { drain: Duration::from_millis(number) }),
            _ => None,
        }
    }
}

/// The number of lines that were written.
pub(crate) type LineCounter = Arc<AtomicU32>;

/// The worker's end.
#[derive(Debug)]
pub(crate) struct Inbox {
    notifier: OwnedFd,
    raised: LineCounter,
    /// The number of lines that were taken. A line may be taken before it is counted as written.
    taken: u32,
    /// The start of a line.
    partial: Vec<u8>,
    /// Descriptors that were received with commands.
    descriptors: VecDeque<OwnedFd>,
}

impl Inbox {
    /// Creates the worker's end. `notifier` and `raised` are the values that [`Remote::pair`] or
    /// [`Remote::pair_again`] returned, or copies of them.
    pub(crate) fn new(notifier: OwnedFd, raised: LineCounter) -> Self {
        Self { notifier, raised, taken: 0, partial: Vec::new(), descriptors: VecDeque::new() }
    }

    /// Returns whether there is a command that the mechanism may not have reported yet. A busy worker
    /// checks this before each wait.
    #[inline]
    pub(crate) fn is_raised(&self) -> bool {
        self.raised.load(Ordering::Acquire).wrapping_sub(self.taken).cast_signed() > 0
    }

    /// Returns the descriptor for the interest set.
    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.notifier.as_fd()
    }

    /// Takes all commands that have arrived. When all senders have closed the channel, this returns a stop
    /// without grace: a level-triggered mechanism would otherwise report the end of the socket at every
    /// wait.
    pub(crate) fn take(&mut self) -> Vec<WorkerCommand> {
        let mut commands = Vec::new();
        let mut buffer = [0; 256];
        while let Ok((count, descriptor)) =
            pollux_sys::receive_with_descriptor(self.notifier.as_fd(), &mut buffer)
        {
            for &byte in &buffer[..count] {
                if byte == b'\n' {
                    self.taken = self.taken.wrapping_add(1);
                    commands.extend(WorkerCommand::parse(&self.partial));
                    self.partial.clear();
                } else if self.partial.len() < COMMAND_BYTES {
                    self.partial.push(byte);
                }
            }
            if count == 0 {
                commands.push(WorkerCommand::Stop { grace: Duration::ZERO });
            }
            // The end of the stream arrives as an event of its own, so a sender that waits for statistics
            // gets them first. One call receives no bytes after a descriptor, so more bytes may follow.
            if count < buffer.len() && descriptor.is_none() {
                break;
            }
            self.descriptors.extend(descriptor);
        }
        commands
    }

    /// Returns the descriptor that arrived with the oldest command that has one.
    pub(crate) fn take_descriptor(&mut self) -> Option<OwnedFd> {
        self.descriptors.pop_front()
    }

    /// Sends the statistics that a command requested. They are dropped if the socket is full because the
    /// main thread does not read: the worker does not wait for it.
    pub(crate) fn answer(&self, number: u64, statistics: &Statistics) {
        let line = format!("{number} {}\n", statistics.to_json(""));
        // This call is not counted: it belongs to the measurement and not to the measured work.
        let _ = rustix::net::send(&self.notifier, line.as_bytes(), SendFlags::NOSIGNAL);
    }
}

/// The main thread's end.
#[derive(Debug)]
pub(crate) struct Remote {
    line: Mutex<CommandStream>,
    raised: LineCounter,
}

#[derive(Debug)]
struct CommandStream {
    stream: BufReader<UnixStream>,
    requested: u64,
}

/// Statistics that were requested and have not arrived yet.
#[derive(Debug)]
pub(crate) struct PendingReplies<'a>(MutexGuard<'a, CommandStream>);

impl Remote {
    /// Creates both ends; the second and the third value are for [`Inbox::new`].
    ///
    /// # Errors
    /// The errors of socketpair(2).
    pub(crate) fn pair() -> io::Result<(Self, OwnedFd, LineCounter)> {
        let (near, far) = sockets()?;
        let line = CommandStream { stream: BufReader::new(near), requested: 0 };
        let raised = LineCounter::default();
        Ok((Self { line: Mutex::new(line), raised: raised.clone() }, far, raised))
    }

    /// Replaces the worker's end, for a new worker in place of one that has ended. This end stays valid for
    /// code that holds it. Commands that were not taken are lost.
    ///
    /// # Errors
    /// The errors of socketpair(2).
    pub(crate) fn pair_again(&self) -> io::Result<(OwnedFd, LineCounter)> {
        let (near, far) = sockets()?;
        let mut line = self.line();
        line.stream = BufReader::new(near);
        // Commands are counted under the same lock: the count restarts with the new socket.
        self.raised.store(0, Ordering::Release);
        Ok((far, self.raised.clone()))
    }

    /// Notifies the worker that shared state has changed. A worker that has ended does not receive the
    /// command.
    pub(crate) fn notify(&self) {
        self.send(&self.line(), WorkerCommand::News);
    }

    /// Sends the command to prepare for the configuration with this number.
    pub(crate) fn prepare_renewal(&self, number: u64) {
        self.send(&self.line(), WorkerCommand::Prepare(number));
    }

    /// Sends the command to serve with the configuration with this number, which the worker has prepared.
    pub(crate) fn commit_renewal(&self, number: u64) {
        self.send(&self.line(), WorkerCommand::Commit(number));
    }

    /// Sends the command to stop. A worker that has ended does not receive the command.
    pub(crate) fn stop(&self, grace: Duration) {
        self.send(&self.line(), WorkerCommand::Stop { grace });
    }

    /// Sends a channel to the worker, with the command for it.
    ///
    /// # Errors
    /// The worker has ended, or does not take commands.
    pub(crate) fn give(&self, command: WorkerCommand, channel: BorrowedFd<'_>) -> io::Result<()> {
        let (line, text) = (self.line(), command.line());
        let parts = [IoSlice::new(text.as_bytes())];
        pollux_sys::send_with_descriptor(line.stream.get_ref().as_fd(), &parts, channel)?;
        self.raised.fetch_add(1, Ordering::Release);
        Ok(())
    }

    /// Sends the command which says that the successor takes over, or that it does not.
    pub(crate) fn end_upgrade(&self, command: WorkerCommand) {
        self.send(&self.line(), command);
    }

    fn send(&self, line: &CommandStream, command: WorkerCommand) {
        let written = line.stream.get_ref().write_all(command.line().as_bytes());
        // The count is raised after the write, so that a worker that sees the new count finds the command.
        self.raised.fetch_add(written.is_ok().into(), Ordering::Release);
    }

    /// Requests statistics. [`PendingReplies::answer`] waits for them, so several workers can compute them
    /// at the same time.
    pub(crate) fn request_statistics(&self) -> PendingReplies<'_> {
        let mut line = self.line();
        line.requested += 1;
        self.send(&line, WorkerCommand::Statistics(line.requested));
        PendingReplies(line)
    }

    fn line(&self) -> MutexGuard<'_, CommandStream> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn sockets() -> io::Result<(UnixStream, OwnedFd)> {
    let (near, far) = UnixStream::pair()?;
    near.set_read_timeout(Some(PATIENCE))?;
    near.set_write_timeout(Some(PATIENCE))?;
    far.set_nonblocking(true)?;
    Ok((near, far.into()))
}

impl PendingReplies<'_> {
    /// Waits for the statistics. Returns `None` if the worker has ended, or takes too long.
    pub(crate) fn answer(mut self) -> Option<Statistics> {
        loop {
            let mut line = String::new();
            if self.0.stream.read_line(&mut line).ok()? == 0 {
                return None;
            }
            let (number, figures) = line.trim_end().split_once(' ')?;
            // Skip an answer that came too late for an earlier request.
            if number.parse() == Ok(self.0.requested) {
                return Statistics::from_json(figures).ok();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::Counter;

    #[test]
    fn commands_arrive_whole_and_in_order() {
        let (remote, far, raised) = Remote::pair().unwrap();
        let mut inbox = Inbox::new(far, raised);
        assert_eq!(inbox.take(), []);
        let grace = Duration::from_millis(1500);
        assert!(!inbox.is_raised());
        remote.stop(grace);
        assert!(inbox.is_raised(), "whatever the mechanism reports");
        let mut raw = remote.line().stream.get_ref().try_clone().unwrap();
        raw.write_all(b"statistics 4").unwrap();
        assert_eq!(inbox.take(), [WorkerCommand::Stop { grace }]);
        assert!(!inbox.is_raised());
        raw.write_all(b"2\nnonsense\nstop x\n").unwrap();
        raw.write_all(&[b'x'; 1000]).unwrap();
        raw.write_all(b"\nstop 0\n").unwrap();
        let all = [WorkerCommand::Statistics(42), WorkerCommand::Stop { grace: Duration::ZERO }];
        assert_eq!(inbox.take(), all);
        assert!(inbox.partial.is_empty());
        drop((remote, raw));
        assert_eq!(inbox.take(), [WorkerCommand::Stop { grace: Duration::ZERO }]);
    }

    #[test]
    fn a_late_answer_is_nobodys_and_a_dead_worker_has_none() {
        let (remote, far, raised) = Remote::pair().unwrap();
        let mut inbox = Inbox::new(far, raised);
        let figures = |requests| {
            let mut figures = Statistics::default();
            figures.counts[Counter::Requests] = requests;
            figures
        };
        inbox.answer(0, &figures(5));
        let reply = remote.request_statistics();
        assert_eq!(inbox.take(), [WorkerCommand::Statistics(1)]);
        inbox.answer(1, &figures(7));
        assert_eq!(reply.answer().unwrap().count(Counter::Requests), 7);
        let reply = remote.request_statistics();
        drop(inbox);
        assert!(reply.answer().is_none());
        remote.stop(Duration::ZERO);
    }
}
