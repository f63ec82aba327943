//! One thread of the generator: dispatches requests at their instants, fails requests that take too
//! long, and otherwise waits.

mod arrivals;
mod closed_loop;
mod finish;
mod replies;
mod sessions;
mod waiting;

use crate::{
    client::ConnectionState,
    config::AtLimit,
    deadlines::Deadlines,
    outcome::Failure,
    own_cpu::OwnCpu,
    plan::Plan,
    pool::Pool,
    record::Recorder,
    schedule::Lane,
    tls::{TlsConnections, TlsPlan},
};
use anyhow::{Context, Result, bail};
use arrivals::ArrivalQueue;
use closed_loop::ClosedLoop;
use pollux_event::{Mechanism, Options, Token, mechanism::epoll::EpollEdge};
use replies::Replies;
use std::{
    collections::VecDeque,
    os::fd::RawFd,
    sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    time::Duration,
};
use waiting::WaitState;

/// The most arrivals that are dispatched before replies are handled again.
const MAX_BURST: usize = 64;

/// How long arrivals are still dispatched after the schedule's end. The rest counts as unsent: the
/// generator could not keep up.
const GRACE_NS: u64 = 1_000_000_000;

/// The longest wait, after which the stop flag is checked.
const LONGEST_WAIT_NS: u64 = 100_000_000;

/// A shorter wait takes about as long as falling asleep and waking up, so it first checks for events
/// without sleeping.
const SHORT_WAIT_NS: u64 = 100_000;

/// How long a closed loop waits after a failed connect before it tries again.
const RECONNECT_PAUSE_NS: u64 = 10_000_000;

/// The most handshakes at the same time while connections are opened before the run, so that the
/// server's backlog does not overflow.
const MAX_HANDSHAKES: usize = 64;

/// After so many connections that fail at once, or that fail before any is open, no more are opened before
/// the run: descriptors, ports or a route are missing, or there is no such server.
const MAX_FAILURES_IN_A_ROW: usize = 64;

/// The size of a thread's only receive buffer.
pub(crate) const SCRATCH_BYTES: usize = 64 << 10;

/// Counters that other threads may read during the run.
#[derive(Debug, Default)]
pub(crate) struct Gauges {
    pub(crate) sent: AtomicU64,
    pub(crate) completed: AtomicU64,
    pub(crate) failed: AtomicU64,
}

/// The result of a thread.
#[derive(serde::Serialize, serde::Deserialize)]
pub(crate) struct ThreadResult {
    pub(crate) recorder: Recorder,
    /// Requests of the measured part whose instant was reached.
    pub(crate) scheduled: u64,
    /// Of these, requests that the generator never dispatched.
    pub(crate) unsent: u64,
    /// Of these, requests without an outcome when the run was interrupted.
    pub(crate) unfinished: u64,
    /// The start of the measured part, from the plan's origin.
    pub(crate) measured_ns: u64,
    /// The time from the start of the measured part to the end.
    pub(crate) elapsed_ns: u64,
    /// CPU time used in that time, and time runnable without a CPU.
    pub(crate) cpu: OwnCpu,
    /// The part of that time in which the thread had no work, asleep or polling. A lower bound: see
    /// [`Worker::wait`].
    pub(crate) spare_ns: u64,
}

#[cfg(test)]
impl ThreadResult {
    /// The result of a thread that made no measurements.
    pub(crate) fn empty() -> Self {
        Self {
            recorder: Recorder::new(crate::record::SAMPLE_NS, false),
            scheduled: 0,
            unsent: 0,
            unfinished: 0,
            measured_ns: 0,
            elapsed_ns: 0,
            cpu: OwnCpu::default(),
            spare_ns: 0,
        }
    }
}

/// The state of one thread. Times are nanoseconds from the plan's origin.
pub(crate) struct Worker<'a> {
    pub(super) plan: &'a Plan,
    pub(super) gauges: &'a Gauges,
    pub(super) index: usize,
    pub(super) set: EpollEdge,
    pub(super) pool: Pool,
    pub(super) lists: ConnectionLists,
    pub(super) recorder: Recorder,
    pub(super) scratch: Box<[u8]>,
    /// The TLS connections, for `https` URLs.
    pub(super) tls: Option<TlsConnections>,
    /// The start of the schedule.
    pub(super) start_ns: u64,
    /// The start of the measured part.
    pub(super) measured_ns: u64,
    pub(super) opening: OpenState,
    /// Requests of the measured part that were not the first of their session.
    pub(super) followed: u64,
    lane: Lane,
    arrivals: ArrivalQueue,
    closed: ClosedLoop,
    waiting: WaitState,
}

/// Connections with a deadline, ordered by it.
#[derive(Default)]
pub(super) struct ConnectionLists {
    /// Handshakes, of opening and of closing, by their start.
    pub(super) handshakes: Deadlines,
    /// Requests on connections, by their scheduled instant.
    pub(super) replies: Replies,
    /// Connections in think time, by the reply that precedes it.
    pub(super) thinking: Deadlines,
    /// Connections with more input than one event may read.
    pub(super) unread: VecDeque<Token>,
}

/// The state of opening connections.
#[derive(Default)]
pub(super) struct OpenState {
    /// The number of connections that this thread has opened, for the rotation of source addresses.
    pub(super) connects: u64,
    pub(super) last_failure: Option<Failure>,
    /// Whether connections are being opened before the run.
    pub(super) is_setup: bool,
}

impl<'a> Worker<'a> {
    /// Creates a thread's state, before it has opened anything.
    pub(crate) fn new(plan: &'a Plan, gauges: &'a Gauges, index: usize) -> Result<Self> {
        let lane = plan.lane(index);
        let limit = plan.connection_limit.map_or(usize::MAX, |limit| plan.part(index, limit));
        Ok(Self {
            plan,
            gauges,
            index,
            set: EpollEdge::open(&Options::default())?,
            pool: Pool::new(limit),
            lists: ConnectionLists::default(),
            recorder: Recorder::new(plan.counted_ns(), plan.intervals),
            scratch: vec![0; SCRATCH_BYTES].into(),
            tls: plan.tls.as_ref().map(TlsPlan::connections).transpose()?,
            start_ns: 0,
            measured_ns: 0,
            opening: OpenState::default(),
            followed: 0,
            lane,
            arrivals: ArrivalQueue::new(plan, lane),
            closed: ClosedLoop::new(plan, index),
            waiting: WaitState::default(),
        })
    }

    /// Opens this thread's part of the standing connections.
    ///
    /// # Errors
    /// The first failure, if no connection could be opened. Other connections that failed are opened
    /// when they are needed.
    pub(crate) fn set_up(&mut self, stop: &AtomicBool) -> Result<()> {
        let wanted = self.plan.part(self.index, self.plan.standing);
        let mut tried = 0;
        let mut failure = None;
        let mut failures_in_a_row = 0;
        self.opening.is_setup = true;
        while tried < wanted || self.lists.handshakes.len() > 0 {
            if stop.load(Relaxed) {
                break;
            }
            let now_ns = self.plan.now_ns();
            while tried < wanted && self.lists.handshakes.len() < MAX_HANDSHAKES {
                tried += 1;
                match self.open(now_ns, None) {
                    Ok(()) => failures_in_a_row = 0,
                    Err(kind) => {
                        self.recorder.connections.failed += 1;
                        failure = Some(kind);
                        failures_in_a_row += 1;
                        if failures_in_a_row == MAX_FAILURES_IN_A_ROW {
                            tried = wanted;
                        }
                    }
                }
            }
            self.expire(now_ns);
            let counts = &self.recorder.connections;
            if counts.opened == 0 && counts.failed >= MAX_FAILURES_IN_A_ROW as u64 {
                tried = wanted;
            }
            self.wait(now_ns)?;
            self.drain_events();
        }
        self.opening.is_setup = false;
        let opened = self.pool.open();
        if wanted > 0 && opened == 0 && !stop.load(Relaxed) {
            let nothing = match self.recorder.connections.dropped_idle {
                0 => "no handshake was completed in time",
                _ => "the server closed them, or sent data, before any request",
            };
            let reason = failure.or(self.opening.last_failure).map_or(nothing.to_owned(), |kind| {
                match (kind.advice(), self.recorder.other_reason()) {
                    (None, _) if kind == Failure::Tls => {
                        self.recorder.first_tls.clone().unwrap_or_default()
                    }
                    (Some(advice), _) => format!("{}: {advice}", kind.name()),
                    // Errors without a kind of their own have a name, such as "Network is
                    // unreachable".
                    (None, Some(reason)) if kind == Failure::Other => reason,
                    (None, _) => kind.name().to_owned(),
                }
            });
            bail!(
                "none of {wanted} connections to {} could be opened ({reason})",
                self.plan.destination
            );
        }
        Ok(())
    }

    /// Sends the thread's part of the schedule, which begins at `start_ns`, or keeps its
    /// connections busy, and returns the measurements.
    ///
    /// # Errors
    /// A wait failed (ENOMEM).
    pub(crate) fn run(mut self, start_ns: u64, stop: &AtomicBool) -> Result<ThreadResult> {
        self.start_ns = start_ns;
        self.measured_ns = start_ns + self.plan.warmup_ns;
        self.arrivals.next_due_ns = self.arrival_ns(0);
        if self.plan.warmup_ns == 0 {
            // A thread without a CPU would read it later, and the wait until then would be missing.
            self.waiting.cpu_before = Some(OwnCpu::now());
        }
        self.sleep_until_start(stop);
        self.drop_closed()?;
        if self.plan.schedule.is_none() {
            self.closed.missing = self.plan.part(self.index, self.plan.standing) - self.pool.open();
        }
        self.fill_closed_loop();
        let mut now_ns = self.plan.now_ns();
        let mut interrupted = false;
        while !self.is_over(now_ns) {
            if stop.load(Relaxed) {
                interrupted = true;
                break;
            }
            self.dispatch_due(now_ns);
            self.continue_sessions(now_ns);
            self.expire(now_ns);
            self.start_waiting(now_ns);
            self.resume_reading();
            self.reconnect(now_ns);
            self.note_time(now_ns);
            self.wait(now_ns)?;
            self.drain_events();
            now_ns = self.plan.now_ns();
            self.refuse_waiting(now_ns);
            self.publish();
        }
        self.note_time(now_ns);
        Ok(self.finish(now_ns, interrupted, stop))
    }

    fn sleep_until_start(&self, stop: &AtomicBool) {
        loop {
            let left_ns = self.start_ns.saturating_sub(self.plan.now_ns());
            if left_ns == 0 || stop.load(Relaxed) {
                return;
            }
            std::thread::sleep(Duration::from_nanos(left_ns.min(LONGEST_WAIT_NS)));
        }
    }

    /// Drops the connections that the server has closed since the set-up, while other threads and ranks
    /// were not ready, so that no request is sent on them.
    fn drop_closed(&mut self) -> Result<()> {
        // As in the set-up, an event begins no request.
        self.opening.is_setup = true;
        for _ in 0..self.pool.open() {
            if self.set.wait(Some(Duration::ZERO)).context("looking for closed connections")? == 0 {
                break;
            }
            self.drain_events();
        }
        self.opening.is_setup = false;
        Ok(())
    }

    /// The scheduled end of the measured part.
    #[inline]
    pub(super) fn end_ns(&self) -> u64 {
        self.measured_ns.saturating_add(self.plan.window_ns)
    }

    /// Gives a free connection its next request. True if there was one.
    #[inline]
    pub(super) fn next_for(&mut self, fd: RawFd, now_ns: u64) -> bool {
        if self.plan.schedule.is_some() {
            if self.arrivals.started == self.arrivals.due {
                return false;
            }
            let scheduled_ns = self.arrival_ns(self.arrivals.started);
            let number = self.first_number(self.arrivals.started);
            self.arrivals.started += 1;
            self.begin(Some(fd), scheduled_ns, number, now_ns);
            return true;
        }
        if self.opening.is_setup || !self.may_begin(now_ns) {
            return false;
        }
        self.begin_closed(Some(fd), now_ns);
        true
    }

    /// Fails requests and handshakes whose deadline has passed.
    #[inline]
    pub(super) fn expire(&mut self, now_ns: u64) {
        while let Some((fd, deadline_ns)) = self.next_reply_due() {
            if deadline_ns > now_ns {
                break;
            }
            self.fail(fd, Failure::Timeout, now_ns);
        }
        while let Some(fd) = self.lists.handshakes.first() {
            if self.handshake_deadline_ns(fd) > now_ns {
                break;
            }
            match self.pool.get(fd).map(|connection| connection.state) {
                Some(ConnectionState::Closing) => self.drop_connection(fd),
                _ => self.fail(fd, Failure::Timeout, now_ns),
            }
        }
        while self.arrivals.started < self.arrivals.due {
            let scheduled_ns = self.arrival_ns(self.arrivals.started);
            if scheduled_ns.saturating_add(self.plan.timeout_ns) > now_ns {
                break;
            }
            self.fail_waiting(Failure::Timeout, now_ns);
        }
    }

    #[inline]
    fn handshake_deadline_ns(&mut self, fd: RawFd) -> u64 {
        let connection = self.pool.get(fd).expect("a listed descriptor has its connection");
        connection.since_ns.saturating_add(self.plan.connect_timeout_ns)
    }

    /// Does the work that depends on the clock: reads the CPU time at the start of the measured part,
    /// and closes the intervals of `--hdr`.
    #[inline]
    fn note_time(&mut self, now_ns: u64) {
        if self.waiting.cpu_before.is_none() && now_ns >= self.measured_ns {
            self.waiting.cpu_before = Some(OwnCpu::now());
            self.waiting.spare_ns = 0;
        }
        let Some(end_ns) = self.recorder.interval_end_ns() else { return };
        let since_ns = now_ns.saturating_sub(self.measured_ns);
        if since_ns >= end_ns {
            self.recorder.close_interval(since_ns);
        }
    }

    #[inline]
    fn publish(&self) {
        self.gauges.sent.store(self.recorder.sent, Relaxed);
        self.gauges.completed.store(self.recorder.completed, Relaxed);
        self.gauges.failed.store(self.recorder.failures.total(), Relaxed);
    }

    /// Whether every request has an outcome and all have been sent.
    #[inline]
    fn is_over(&self, now_ns: u64) -> bool {
        if self.lists.replies.len() > 0
            || self.arrivals.started < self.arrivals.due
            || self.lists.thinking.len() > 0
        {
            return false;
        }
        match self.plan.schedule {
            Some(_) => self.arrivals.due >= self.arrivals.total,
            None => !self.may_begin(now_ns),
        }
    }
}
