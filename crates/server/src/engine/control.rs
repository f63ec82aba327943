//! The control channel between the main thread and a worker, which is a thread.
//!
//! Commands are lines of text on a pair of sockets: every mechanism can wait for a socket, but not for an
//! eventfd (RT signals), and descriptors can be sent with a command. Reports are values in shared memory.
//!
//! Under load, a mechanism may report the socket late: behind thousands of queued signals, a report took
//! seconds. Therefore a counter in shared memory shows at once that there is a command.

use crate::stats::Statistics;
use pollux_sys::Counters;
use std::{
    collections::VecDeque,
    io::{self, IoSlice, Write},
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::net::UnixStream,
    },
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

/// How long a worker may take to report its statistics, or to take a command.
const PATIENCE: Duration = Duration::from_secs(10);

/// The maximum length of a command in bytes; a longer line is not a command.
const COMMAND_BYTES: usize = 64;

/// A command of the main thread to a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WorkerCommand {
    /// Report the statistics, with this number.
    Statistics(u64),
    /// Stop accepting, and end the requests in progress within the time.
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
    fn encode(self) -> String {
        // The worker would not understand a number of more than 64 bits, and would go on.
        let milliseconds = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        match self {
            Self::Statistics(number) => format!("statistics {number}\n"),
            Self::Stop { grace } => format!("stop {}\n", milliseconds(grace)),
            Self::News => "news 0\n".to_owned(),
            Self::Prepare(number) => format!("prepare {number}\n"),
            Self::Commit(number) => format!("commit {number}\n"),
            Self::Depart => "depart 0\n".to_owned(),
            Self::Adopt => "adopt 0\n".to_owned(),
            Self::Stay => "stay 0\n".to_owned(),
            Self::Leave { drain } => format!("leave {}\n", milliseconds(drain)),
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

/// The memory that both ends share.
#[derive(Debug, Default)]
pub(crate) struct SharedMemory {
    /// The number of commands that were written.
    written: AtomicU32,
    report: Mutex<Report>,
    has_report: Condvar,
}

/// The last report of a worker.
#[derive(Debug, Default)]
struct Report {
    /// The number of the request, and the statistics.
    statistics: Option<(u64, Statistics)>,
    /// Whether the worker has ended, so that no report will follow.
    has_ended: bool,
    /// The system calls of the workers that this one has replaced.
    former_calls: Counters,
}

impl SharedMemory {
    fn report(&self) -> MutexGuard<'_, Report> {
        self.report.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set_report(&self, change: impl FnOnce(&mut Report)) {
        change(&mut self.report());
        self.has_report.notify_all();
    }
}

/// The worker's end.
#[derive(Debug)]
pub(crate) struct Inbox {
    notifier: OwnedFd,
    shared: Arc<SharedMemory>,
    /// The number of commands that were taken. A command may be taken before it is counted as written.
    taken: u32,
    /// The start of a command.
    partial: Vec<u8>,
    /// Descriptors that were received with commands.
    descriptors: VecDeque<OwnedFd>,
}

impl Inbox {
    /// Creates the worker's end. `notifier` and `shared` are the values that [`Remote::pair`] or
    /// [`Remote::pair_again`] returned, or copies of them.
    pub(crate) fn new(notifier: OwnedFd, shared: Arc<SharedMemory>) -> Self {
        Self { notifier, shared, taken: 0, partial: Vec::new(), descriptors: VecDeque::new() }
    }

    /// Returns whether there is a command that the mechanism may not have reported yet. A busy worker
    /// checks this before each wait.
    #[inline]
    pub(crate) fn is_raised(&self) -> bool {
        self.shared.written.load(Ordering::Acquire).wrapping_sub(self.taken).cast_signed() > 0
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
            // The end of the stream arrives as an event of its own. One call receives no bytes after a
            // descriptor, so more bytes may follow.
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

    /// Returns the system calls of this worker, and of those that it has replaced.
    pub(crate) fn system_calls(&self) -> Counters {
        let mut calls = pollux_sys::counters();
        calls.merge(&self.shared.report().former_calls);
        calls
    }

    /// Reports the statistics that a command requested.
    pub(crate) fn report(&self, number: u64, statistics: Statistics) {
        self.shared.set_report(|report| report.statistics = Some((number, statistics)));
    }
}

impl Drop for Inbox {
    fn drop(&mut self) {
        // System calls are counted by thread, and this thread ends, perhaps because of a panic.
        let calls = pollux_sys::counters();
        self.shared.set_report(|report| {
            report.has_ended = true;
            report.former_calls.merge(&calls);
        });
    }
}

/// The main thread's end.
#[derive(Debug)]
pub(crate) struct Remote {
    commands: Mutex<CommandStream>,
    shared: Arc<SharedMemory>,
}

#[derive(Debug)]
struct CommandStream {
    stream: UnixStream,
    requested: u64,
}

/// Statistics that were requested and are not reported yet.
#[derive(Debug)]
pub(crate) struct PendingStatistics<'a> {
    shared: &'a SharedMemory,
    number: u64,
}

impl Remote {
    /// Creates both ends; the second and the third value are for [`Inbox::new`].
    ///
    /// # Errors
    /// The errors of socketpair(2).
    pub(crate) fn pair() -> io::Result<(Self, OwnedFd, Arc<SharedMemory>)> {
        let (near, far) = sockets()?;
        let commands = Mutex::new(CommandStream { stream: near, requested: 0 });
        let shared = Arc::<SharedMemory>::default();
        Ok((Self { commands, shared: shared.clone() }, far, shared))
    }

    /// Replaces the worker's end, for a new worker in place of one that has ended. This end stays valid for
    /// code that holds it. Commands that were not taken are lost.
    ///
    /// # Errors
    /// The errors of socketpair(2).
    pub(crate) fn pair_again(&self) -> io::Result<(OwnedFd, Arc<SharedMemory>)> {
        let (near, far) = sockets()?;
        let mut commands = self.commands();
        commands.stream = near;
        // Commands are counted under the same lock: the count restarts with the new socket.
        self.shared.written.store(0, Ordering::Release);
        self.shared.set_report(|report| report.has_ended = false);
        Ok((far, self.shared.clone()))
    }

    /// Notifies the worker that shared state has changed. A worker that has ended does not receive the
    /// command.
    pub(crate) fn notify(&self) {
        self.send(&self.commands(), WorkerCommand::News);
    }

    /// Sends the command to prepare for the configuration with this number.
    pub(crate) fn prepare_renewal(&self, number: u64) {
        self.send(&self.commands(), WorkerCommand::Prepare(number));
    }

    /// Sends the command to serve with the configuration with this number, which the worker has prepared.
    pub(crate) fn commit_renewal(&self, number: u64) {
        self.send(&self.commands(), WorkerCommand::Commit(number));
    }

    /// Sends the command to stop. A worker that has ended does not receive the command.
    pub(crate) fn stop(&self, grace: Duration) {
        self.send(&self.commands(), WorkerCommand::Stop { grace });
    }

    /// Sends a channel to the worker, with the command for it.
    ///
    /// # Errors
    /// The worker has ended, or does not take commands.
    pub(crate) fn give(&self, command: WorkerCommand, channel: BorrowedFd<'_>) -> io::Result<()> {
        let (commands, text) = (self.commands(), command.encode());
        let parts = [IoSlice::new(text.as_bytes())];
        pollux_sys::send_with_descriptor(commands.stream.as_fd(), &parts, channel)?;
        self.shared.written.fetch_add(1, Ordering::Release);
        Ok(())
    }

    /// Sends the command which says that the successor takes over, or that it does not.
    pub(crate) fn end_upgrade(&self, command: WorkerCommand) {
        self.send(&self.commands(), command);
    }

    fn send(&self, commands: &CommandStream, command: WorkerCommand) {
        let written = (&commands.stream).write_all(command.encode().as_bytes());
        // The count is raised after the write, so that a worker that sees the new count finds the command.
        self.shared.written.fetch_add(written.is_ok().into(), Ordering::Release);
    }

    /// Requests statistics. [`PendingStatistics::wait`] waits for them, so several workers can compute
    /// them at the same time.
    pub(crate) fn request_statistics(&self) -> PendingStatistics<'_> {
        let mut commands = self.commands();
        commands.requested += 1;
        let number = commands.requested;
        self.send(&commands, WorkerCommand::Statistics(number));
        PendingStatistics { shared: &self.shared, number }
    }

    fn commands(&self) -> MutexGuard<'_, CommandStream> {
        self.commands.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn sockets() -> io::Result<(UnixStream, OwnedFd)> {
    let (near, far) = UnixStream::pair()?;
    near.set_write_timeout(Some(PATIENCE))?;
    far.set_nonblocking(true)?;
    Ok((near, far.into()))
}

impl PendingStatistics<'_> {
    /// Waits for the statistics. Returns `None` if the worker has ended, or takes too long. A later report
    /// is as good: it answers a request of another thread.
    pub(crate) fn wait(self) -> Option<Statistics> {
        let is_late = |report: &mut Report| {
            let number = report.statistics.as_ref().map(|(number, _)| *number);
            !report.has_ended && number.is_none_or(|number| number < self.number)
        };
        let report = self.shared.report();
        let waited = self.shared.has_report.wait_timeout_while(report, PATIENCE, is_late);
        let (report, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let reported = report.statistics.as_ref().filter(|(number, _)| *number >= self.number);
        reported.map(|(_, statistics)| statistics.clone())
    }

    /// Waits like [`PendingStatistics::wait`]; returns the last report if there is no answer.
    fn wait_or_last(self) -> Option<Statistics> {
        let shared = self.shared;
        self.wait().or_else(|| {
            let last = shared.report().statistics.clone();
            last.map(|(_, statistics)| statistics)
        })
    }
}

/// Returns the sum of the statistics of all workers. For a worker that does not answer, because it hangs or is about to
/// be replaced, its last report counts: without it, counters would decrease for a moment.
pub(crate) fn total<'r>(remotes: impl IntoIterator<Item = &'r Arc<Remote>>) -> Statistics {
    let replies: Vec<_> = remotes.into_iter().map(|remote| remote.request_statistics()).collect();
    let mut all = Statistics::default();
    for one in replies.into_iter().filter_map(PendingStatistics::wait_or_last) {
        all.merge(&one);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::Counter;
    use pollux_sys::Call;

    #[test]
    fn commands_arrive_whole_and_in_order() {
        let (remote, far, shared) = Remote::pair().unwrap();
        let mut inbox = Inbox::new(far, shared);
        assert_eq!(inbox.take(), []);
        let grace = Duration::from_millis(1500);
        assert!(!inbox.is_raised());
        remote.stop(grace);
        assert!(inbox.is_raised(), "whatever the mechanism reports");
        let mut raw = remote.commands().stream.try_clone().unwrap();
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

    /// Regression: a server with `grace = 1e19` ignored SIGTERM.
    #[test]
    fn the_longest_times_are_understood() {
        let (grace, drain) = (Duration::MAX, Duration::MAX);
        for command in [WorkerCommand::Stop { grace }, WorkerCommand::Leave { drain }] {
            let line = command.encode();
            let parsed = WorkerCommand::parse(line.trim_end().as_bytes());
            let time = match parsed {
                Some(
                    WorkerCommand::Stop { grace: time } | WorkerCommand::Leave { drain: time },
                ) => time,
                other => panic!("{line}: {other:?}"),
            };
            assert_eq!(time, Duration::from_millis(u64::MAX));
        }
    }

    #[test]
    fn a_report_answers_its_own_request_and_an_ended_worker_has_none() {
        let (remote, far, shared) = Remote::pair().unwrap();
        let mut inbox = Inbox::new(far, shared);
        let figures = |requests| {
            let mut figures = Statistics::default();
            figures.counts[Counter::Requests] = requests;
            figures
        };
        inbox.report(0, figures(5));
        let reply = remote.request_statistics();
        assert_eq!(inbox.take(), [WorkerCommand::Statistics(1)]);
        inbox.report(1, figures(7));
        assert_eq!(reply.wait().unwrap().count(Counter::Requests), 7);
        let reply = remote.request_statistics();
        drop(inbox);
        assert!(reply.wait().is_none());
        remote.stop(Duration::ZERO);
    }

    /// Regression: between the panic of a worker and its replacement, all its counters were missing from the sum, and
    /// its system calls also afterwards.
    #[test]
    fn no_counter_decreases_when_a_worker_is_replaced() {
        let (remote, far, shared) = Remote::pair().unwrap();
        let remote = Arc::new(remote);
        let report = |inbox: &mut Inbox, waits| {
            let number = remote.commands().requested;
            let mut figures =
                Statistics { system_calls: inbox.system_calls(), ..Default::default() };
            figures.counts[Counter::Waits] = waits;
            inbox.report(number, figures);
        };
        let sums = || {
            let sum = total([&remote]);
            (sum.count(Counter::Waits), sum.system_calls.of(Call::Pipe))
        };
        let worker = |far, shared, waits| {
            // Each thread has its own system calls.
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    let mut inbox = Inbox::new(far, shared);
                    pollux_sys::pipe().unwrap();
                    // In place of the number of the next request.
                    remote.commands().requested += 1;
                    report(&mut inbox, waits);
                });
            });
        };
        worker(far, shared, 5);
        assert_eq!(sums(), (5, 1), "the worker has ended");
        let (far, shared) = remote.pair_again().unwrap();
        worker(far, shared, 6);
        assert_eq!(sums(), (6, 2));
    }
}
