//! Workers that are processes.
//!
//! The process that was started supervises its children and serves no connections. It has one
//! thread, so that it can fork at any time. It waits for signals (signalfd(2)) and for timeouts
//! and, if each connection gets its own process, for connections. SIGCHLD is blocked and read like
//! any other signal. After each SIGCHLD all children that have ended are reaped, so that none is
//! missed if several end at once. The scoreboard's notifiers signal a stop to the children; a child
//! that does not end in time is killed.

mod acceptor;
mod back_off;
mod child;

use super::{Assignment, Plan};
use crate::{
    architecture::worker::{WorkerInfo, pin},
    engine::FailedWaits,
    log::{self, LogProcess},
    stats::{Statistics, scoreboard::ScoreboardSlot},
    time::clock::Clock,
};
use acceptor::ProcessAcceptor;
use anyhow::Context;
use back_off::BackOff;
use child::{Life, wait_until_ready};
use pollux_sys::{
    self as sys, ChildStatus, OwnFileTables, PollFd, ProcessId, QueuedSignal, Signal, SignalSet,
};
use std::{
    collections::{HashMap, VecDeque},
    io,
    os::fd::{AsFd, AsRawFd, OwnedFd, RawFd},
    time::{Duration, Instant},
};

/// The signals that are read from the descriptor.
const SIGNALS: [Signal; 7] = [
    libc::SIGTERM,
    libc::SIGINT,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGHUP,
    libc::SIGALRM,
    libc::SIGCHLD,
];
/// The maximum number of signals that one read returns.
const SIGNALS_AT_ONCE: usize = 8;
/// The maximum number of connections that get a process before signals are checked again.
const LET_IN_AT_ONCE: usize = 16;
/// A process that has not ended this long after the deadline of a stop is killed.
const LATE_MS: u64 = 1_000;
/// How long the trial process may take to end after it has reported.
const TRIAL_PATIENCE: Duration = Duration::from_secs(1);

/// The processes of a server.
#[derive(Debug)]
pub(crate) struct Processes {
    plan: Plan,
    promise: OwnFileTables,
    signals: OwnedFd,
    taken: Vec<QueuedSignal>,
    arrived: VecDeque<Signal>,
    children: HashMap<ProcessId, Child>,
    /// The restart of each process of the pool, by its index.
    restarts: Vec<RestartTimer>,
    /// The acceptor, if each connection gets its own process.
    acceptor: Option<ProcessAcceptor>,
    /// The number of the next connection that gets its own process.
    number: usize,
    log: Option<LogProcess>,
    log_restart: RestartTimer,
    infos: Vec<WorkerInfo>,
    warnings: bool,
    polled: Vec<PollFd>,
    failed_waits: FailedWaits,
}

#[derive(Debug)]
struct Child {
    role: Role,
    started_at: Instant,
    is_killed: bool,
}

impl Child {
    fn new(role: Role) -> Self {
        Self { role, started_at: Instant::now(), is_killed: false }
    }
}

/// The purpose of a child, and its slot of the scoreboard.
#[derive(Clone, Copy, Debug)]
enum Role {
    /// It fills this position of the pool.
    Pool { index: usize, slot: usize },
    /// It serves one connection.
    One { slot: usize },
    /// It writes the access log.
    Log,
}

/// When to start one process again after it has ended.
#[derive(Debug, Default)]
struct RestartTimer {
    back_off: BackOff,
    /// The time at which a new process is to be started, if none runs.
    due: Option<Instant>,
}

impl Processes {
    /// Starts the first processes, and returns when they are ready to accept. The calling thread
    /// must be the only thread of this process, and must have blocked the signals that it wants to
    /// receive.
    ///
    /// # Errors
    /// The reason why one of them did not become ready. No process runs in that case.
    pub(crate) fn start(plan: Plan, log: Option<LogProcess>) -> anyhow::Result<Self> {
        let promise = plan.config.own_file_tables.with_context(|| {
            let name = plan.config.architecture;
            format!("--architecture {name} needs the promise of Settings::own_file_tables")
        })?;
        sys::block_child_signal().context("SIGCHLD")?;
        let signals = sys::signalfd(&SignalSet::of(&SIGNALS)).context("signalfd")?;
        let mut all = Self {
            plan,
            promise,
            signals,
            taken: Vec::with_capacity(SIGNALS_AT_ONCE),
            arrived: VecDeque::new(),
            children: HashMap::new(),
            restarts: Vec::new(),
            acceptor: None,
            number: 0,
            log,
            log_restart: RestartTimer::default(),
            infos: Vec::new(),
            warnings: false,
            polled: Vec::new(),
            failed_waits: FailedWaits::default(),
        };
        all.start_log().context("a process for the access log")?;
        match all.plan.assignment {
            Assignment::Pool(size) => {
                for index in 0..size {
                    all.restarts.push(RestartTimer::default());
                    all.start_in_pool(index, true)
                        .with_context(|| format!("process {index} of {size} (fewer: --pool)"))?;
                }
            }
            Assignment::One => {
                // The acceptor runs on the CPU of the first process.
                pin(&all.plan.config, 0)?;
                all.try_one()?;
                all.await_trial()?;
                all.acceptor =
                    Some(ProcessAcceptor::new(&all.plan.scoreboard).context("there is no slot")?);
            }
        }
        Ok(all)
    }

    /// Returns the processes that were started first.
    pub(crate) fn infos(&self) -> &[WorkerInfo] {
        &self.infos
    }

    /// Returns the counters of all processes together.
    pub(crate) fn statistics(&self) -> Statistics {
        self.plan.scoreboard.statistics()
    }

    /// Requests all processes to stop. A second call may shorten the time.
    pub(crate) fn begin_stop(&self, grace: Duration) {
        self.plan.scoreboard.stop(grace);
        self.plan.queues.begin_stop();
    }

    /// Requests that the access log is opened again. Returns false if there is no access log.
    pub(crate) fn reopen_log(&self) -> bool {
        self.log.as_ref().inspect(|log| log.reopen()).is_some()
    }

    /// Returns the number of processes, including the acceptor, which could start another process.
    pub(crate) fn running(&self) -> usize {
        let workers = self.children.values().filter(|child| !matches!(child.role, Role::Log));
        workers.count()
            + usize::from(self.acceptor.as_ref().is_some_and(|acceptor| !acceptor.is_shut()))
    }

    /// Supervises the children until a signal arrives that the caller has to handle, and returns
    /// that signal. Returns `None` when a stop was requested and all processes have ended.
    ///
    /// # Errors
    /// No wait is possible.
    pub(crate) fn next_signal(&mut self) -> anyhow::Result<Option<Signal>> {
        loop {
            while let Some(signal) = self.arrived.pop_front() {
                match signal {
                    libc::SIGCHLD => self.take_ended()?,
                    other => return Ok(Some(other)),
                }
            }
            let now = Instant::now();
            self.attend_stop();
            self.start_due(now);
            self.let_in(now);
            if self.plan.scoreboard.stop_at_ms().is_some() && self.running() == 0 {
                return Ok(None);
            }
            self.wait_for_something(now, None)?;
        }
    }

    /// Waits until all processes have ended, including the process of the log.
    ///
    /// # Errors
    /// The errors of [`Processes::next_signal`].
    pub(crate) fn wait(mut self) -> anyhow::Result<Statistics> {
        while self.next_signal()?.is_some() {}
        if let Some(log) = &self.log {
            log.end();
        }
        let mut now = Instant::now();
        let until = now + log::PATIENCE;
        // The log process may have died already, or may die now. The records that were sent to it
        // are still in the queue, and a new log process writes them. It is started without
        // back-off.
        self.log_restart.due = self.log_restart.due.map(|_| now);
        while self.log.is_some() && now < until {
            self.start_due(now);
            self.wait_for_something(now, Some(until))?;
            self.arrived.clear();
            self.take_ended()?;
            now = Instant::now();
        }
        if self.log.is_some() {
            tracing::warn!("{}", log::LOST);
        }
        Ok(self.statistics())
    }

    /// Starts a process of the pool. Only the first process in each position reports that it is
    /// ready.
    fn start_in_pool(&mut self, index: usize, is_first: bool) -> anyhow::Result<()> {
        let slot =
            self.plan.scoreboard.claim_slot().context("there are more processes than slots")?;
        let role = Role::Pool { index, slot: slot.index() };
        let (reports, mut report) = if is_first { Some(sys::pipe()?) } else { None }.unzip();
        let (plan, log) = (&self.plan, self.log.as_ref());
        let mut inherited = inherited_by_all(plan, log);
        inherited.extend(plan.queues.of(index).sockets.iter().map(AsRawFd::as_raw_fd));
        inherited.extend(report.as_ref().map(AsRawFd::as_raw_fd));
        let child = sys::fork(self.promise, &inherited, || {
            Life { plan, index, slot, log: log.map(LogProcess::source) }.in_a_pool(report.take())
        });
        let child = self.note(child, role)?;
        if let Some(reports) = reports {
            // This process closes its copy of the write end. Otherwise the pipe would never report
            // end-of-file.
            drop(report);
            wait_until_ready(&reports)?;
            let pinned = &self.plan.config.pin;
            let cpu = pinned.get(index % pinned.len().max(1)).copied();
            self.infos.push(WorkerInfo { tid: child, cpu, listens: Vec::new() });
        }
        Ok(())
    }

    /// Starts a process that checks that connections can be served at all, and then ends.
    fn try_one(&mut self) -> anyhow::Result<()> {
        let slot = self.plan.scoreboard.claim_slot().context("there is no slot")?;
        let role = Role::One { slot: slot.index() };
        let (reports, report) = sys::pipe()?;
        let plan = &self.plan;
        let mut inherited = inherited_by_all(plan, None);
        inherited.push(report.as_raw_fd());
        let child = sys::fork(self.promise, &inherited, || {
            Life { plan, index: 0, slot, log: None }.for_trial(&report)
        });
        self.note(child, role)?;
        drop(report);
        wait_until_ready(&reports)
    }

    /// Waits until the trial process has ended, because it occupies the slot of a connection until
    /// then.
    fn await_trial(&mut self) -> anyhow::Result<()> {
        let until = Instant::now() + TRIAL_PATIENCE;
        loop {
            self.take_ended()?;
            let now = Instant::now();
            let is_running =
                self.children.values().any(|child| matches!(child.role, Role::One { .. }));
            if !is_running || now >= until {
                return Ok(());
            }
            self.wait_for_something(now, Some(until))?;
        }
    }

    /// Starts a process for a connection. On success `parcel` is empty; otherwise it is unchanged.
    fn start_one(&mut self, parcel: &mut Option<(OwnedFd, ScoreboardSlot)>) -> io::Result<()> {
        let Some((socket, slot)) = parcel.as_ref() else { return Ok(()) };
        if let Some(tls) = &self.plan.config.tls {
            tls.look_for_new_certificates();
        }
        let role = Role::One { slot: slot.index() };
        let (plan, log, index) = (&self.plan, self.log.as_ref(), self.number);
        let mut inherited = inherited_by_all(plan, log);
        inherited.push(socket.as_raw_fd());
        let child = sys::fork(self.promise, &inherited, || {
            let Some((socket, slot)) = parcel.take() else { return 1 };
            Life { plan, index, slot, log: log.map(LogProcess::source) }.of_one(socket)
        })?;
        // This process closes its copy of the socket. Otherwise the connection would not end
        // together with its process.
        *parcel = None;
        self.number = self.number.wrapping_add(1);
        self.children.insert(child, Child::new(role));
        Ok(())
    }

    fn start_log(&mut self) -> anyhow::Result<()> {
        let Some(log) = &self.log else { return Ok(()) };
        let child = sys::fork(self.promise, &[log.far().as_raw_fd()], || log.write());
        self.note(child, Role::Log)?;
        self.log_restart.due = None;
        Ok(())
    }

    /// Records a child. If it could not be started, its slot is freed.
    fn note(&mut self, child: io::Result<ProcessId>, role: Role) -> io::Result<ProcessId> {
        match &child {
            Ok(child) => {
                self.children.insert(*child, Child::new(role));
            }
            Err(_) => self.leave(role),
        }
        child
    }

    fn leave(&self, role: Role) {
        if let Role::Pool { slot, .. } | Role::One { slot } = role {
            if let Some(guard) = &self.plan.rules.guard {
                guard.free_slot(slot);
            }
            self.plan.scoreboard.leave(slot);
        }
    }

    /// Reaps all children that have ended.
    fn take_ended(&mut self) -> anyhow::Result<()> {
        let now = Instant::now();
        let is_stopping = self.plan.scoreboard.stop_at_ms().is_some();
        while let Some((id, ending)) = sys::reap_child().context("waitpid")? {
            // A process may have children that were started before it became this program
            // (execve(2)).
            let Some(Child { role, started_at, is_killed }) = self.children.remove(&id) else {
                continue;
            };
            self.leave(role);
            let lived = now.saturating_duration_since(started_at);
            match role {
                Role::Pool { index, .. } => {
                    if !is_stopping {
                        tracing::warn!(
                            "process {id} has ended ({ending}); another takes its place"
                        );
                        let restart = &mut self.restarts[index];
                        restart.due = Some(restart.back_off.next(now, lived));
                    }
                }
                Role::One { .. } => {
                    if ending != ChildStatus::Exit(0) {
                        tracing::warn!("process {id} has ended ({ending}), and its connection");
                        // The next connection gets another process in any case.
                        if !is_killed {
                            self.plan.scoreboard.count_replacement();
                        }
                    }
                    if let Some(acceptor) = &mut self.acceptor {
                        acceptor.slot_is_free();
                    }
                }
                // The log process has written everything, and it will receive no more records.
                Role::Log if ending == ChildStatus::Exit(0) => self.log = None,
                Role::Log => {
                    tracing::warn!("process {id}, of the access log, has ended ({ending})");
                    let restart = &mut self.log_restart;
                    restart.due = Some(restart.back_off.next(now, lived));
                }
            }
        }
        Ok(())
    }

    /// Starts the processes that are due.
    fn start_due(&mut self, now: Instant) {
        if self.log_restart.due.is_some_and(|due| due <= now)
            && let Err(error) = self.start_log()
        {
            self.say(&error);
            self.log_restart.due = Some(self.log_restart.back_off.next(now, Duration::ZERO));
        }
        if self.plan.scoreboard.stop_at_ms().is_some() {
            return;
        }
        for index in 0..self.restarts.len() {
            if self.restarts[index].due.is_none_or(|due| due > now) {
                continue;
            }
            self.restarts[index].due = None;
            if let Err(error) = self.start_in_pool(index, false) {
                self.say(&error);
                let restart = &mut self.restarts[index];
                restart.due = Some(restart.back_off.next(now, Duration::ZERO));
                // The next process could not be started, either.
                break;
            }
            self.plan.scoreboard.count_replacement();
        }
    }

    /// Starts a process for each connection that waits.
    fn let_in(&mut self, now: Instant) {
        let Some(mut acceptor) = self.acceptor.take() else { return };
        for _ in 0..LET_IN_AT_ONCE {
            let mut parcel = acceptor.take(&self.plan, now);
            if parcel.is_none() {
                break;
            }
            if let Err(error) = self.start_one(&mut parcel) {
                acceptor.put_back(parcel, &error, now);
                break;
            }
        }
        self.acceptor = Some(acceptor);
    }

    /// Does this process's part of a stop.
    fn attend_stop(&mut self) {
        let Some(stop_at) = self.plan.scoreboard.stop_at_ms() else { return };
        // The processes that share a queue serve the connections that wait in it. Positions that
        // have no process get a new one for that.
        if !self.plan.queues.of(0).sockets.is_empty() && self.acceptor.is_none() {
            for index in 0..self.restarts.len() {
                if self.restarts[index].due.take().is_some() {
                    let _ = self.start_in_pool(index, false);
                }
            }
            self.plan.queues.close();
        }
        if self.acceptor.as_ref().is_some_and(ProcessAcceptor::is_shut) {
            self.plan.queues.close();
        }
        let now = Clock::now_ms();
        if now >= stop_at
            && let Some(acceptor) = &mut self.acceptor
        {
            acceptor.shut();
        }
        if now >= stop_at.saturating_add(LATE_MS) {
            for (&id, child) in &mut self.children {
                if !matches!(child.role, Role::Log)
                    && !std::mem::replace(&mut child.is_killed, true)
                {
                    tracing::warn!("process {id} has not ended in time: it is killed");
                    sys::kill_child(id);
                }
            }
        }
    }

    /// Waits for a signal, a connection or a timeout, but not longer than `until`.
    fn wait_for_something(&mut self, now: Instant, until: Option<Instant>) -> anyhow::Result<()> {
        self.polled.clear();
        let listeners = self.acceptor.iter().flat_map(|acceptor| acceptor.wanted(&self.plan));
        for fd in [self.signals.as_raw_fd()].into_iter().chain(listeners) {
            self.polled.push(PollFd { fd, events: libc::POLLIN, revents: 0 });
        }
        let left = until.map(|until| until.saturating_duration_since(now));
        let timeout = self.next_due(now).into_iter().chain(left).min();
        if let Some(acceptor) = &mut self.acceptor {
            acceptor.show();
        }
        match sys::ppoll(&mut self.polled, timeout) {
            Ok(_) => self.failed_waits.forget(),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => self.failed_waits.bear_error(error).context("waiting for signals")?,
        }
        // Signals are read even after a failed wait, because then only signals show a stop.
        sys::take_many(self.signals.as_fd(), &mut self.taken).context("signalfd")?;
        self.arrived.extend(self.taken.iter().map(|signal| signal.ssi_signo as Signal));
        Ok(())
    }

    /// Returns the time until the next action is due.
    fn next_due(&self, now: Instant) -> Option<Duration> {
        let restarts =
            self.restarts.iter().chain([&self.log_restart]).filter_map(|restart| restart.due);
        let acceptor = self.acceptor.as_ref().and_then(ProcessAcceptor::retry_at);
        let due = restarts.chain(acceptor).min().map(|due| due.saturating_duration_since(now));
        let stop = self.plan.scoreboard.stop_at_ms().map(|stop_at| {
            let now = Clock::now_ms();
            let next = if now < stop_at { stop_at } else { stop_at.saturating_add(LATE_MS) };
            // Processes that have been killed need a moment to end.
            Duration::from_millis(next.saturating_sub(now).max(10))
        });
        due.into_iter().chain(stop).min()
    }

    fn say(&mut self, error: &anyhow::Error) {
        if !std::mem::replace(&mut self.warnings, true) {
            tracing::warn!(
                "a process that has ended cannot be replaced yet: {error:#} (`ulimit -u`, pids.max of \
                 the cgroup, memory). (Reported once.)"
            );
        }
    }
}

/// Returns the descriptors that every process keeps open: the notifiers of a stop, and the socket
/// to the log.
fn inherited_by_all(plan: &Plan, log: Option<&LogProcess>) -> Vec<RawFd> {
    let notifiers = plan.scoreboard.notifiers();
    notifiers.iter().map(AsRawFd::as_raw_fd).chain(log.map(|log| log.near().as_raw_fd())).collect()
}

/// Kills and reaps all children, also if the start has failed half way.
impl Drop for Processes {
    fn drop(&mut self) {
        self.log = None;
        for &id in self.children.keys() {
            sys::kill_child(id);
        }
        let until = Instant::now() + log::PATIENCE;
        while !self.children.is_empty() && Instant::now() < until {
            match sys::reap_child() {
                Ok(Some((id, _))) => drop(self.children.remove(&id)),
                Ok(None) => std::thread::sleep(Duration::from_millis(1)),
                Err(_) => break,
            }
        }
    }
}
