//! One thread of the generator: takes requests up at their instants, expires what takes too long,
//! waits no longer than the next of these.

use crate::{
    client::State, deadlines::Deadlines, outcome::Failure, plan::Plan, pool::Pool,
    record::Recorder, schedule::Lane,
};
use anyhow::{Context, Result, bail};
use pollux_event::{Mechanism, Options, Token, mechanism::epoll::EpollEdge, sys};
use std::{
    collections::VecDeque,
    os::fd::RawFd,
    sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    time::Duration,
};

/// The most arrivals that are taken up before replies are looked at again.
pub(super) const MAX_BURST: usize = 64;

/// How long arrivals are still taken up after the schedule's end. What is then left was never sent
/// because the generator could not keep up.
const GRACE_NS: u64 = 1_000_000_000;

/// The longest wait: within it an interrupt is noticed.
const LONGEST_WAIT_NS: u64 = 100_000_000;

/// Below this a wait takes about as long as falling asleep and waking up.
const SHORT_WAIT_NS: u64 = 100_000;

/// How long a closed loop waits after a connect that failed, before it tries again.
const RECONNECT_PAUSE_NS: u64 = 10_000_000;

/// The most handshakes that run at the same time while connections are opened before the run, so
/// that the server's backlog does not overflow.
const MAX_HANDSHAKES: usize = 64;

/// One receive buffer a thread.
pub(crate) const SCRATCH_BYTES: usize = 64 << 10;

/// What a thread lets others see while it runs.
#[derive(Debug, Default)]
pub(crate) struct Gauges {
    pub(crate) sent: AtomicU64,
    pub(crate) completed: AtomicU64,
    pub(crate) failed: AtomicU64,
}

/// What a thread hands over at its end.
pub(crate) struct Measured {
    pub(crate) recorder: Recorder,
    /// Requests of the measured part whose instant came.
    pub(crate) scheduled: u64,
    /// Of these, those that the generator never took up.
    pub(crate) unsent: u64,
    /// Of these, those that had no outcome yet when the run was interrupted.
    pub(crate) unfinished: u64,
    /// When the measured part began, from the plan's origin.
    pub(crate) measured_ns: u64,
    /// From the start of the measured part to the end.
    pub(crate) elapsed_ns: u64,
    /// CPU time used in that time.
    pub(crate) cpu_ns: u64,
    /// Of that time, what was waited while there was nothing to do, asleep or polling; not all of
    /// it is known ([`Worker::wait`]).
    pub(crate) spare_ns: u64,
    /// When the last outcome came, from the start of the measured part.
    pub(crate) last_outcome_ns: u64,
}

/// The state of one thread. Times are nanoseconds from the plan's origin.
pub(crate) struct Worker<'a> {
    pub(super) plan: &'a Plan,
    pub(super) gauges: &'a Gauges,
    pub(super) index: usize,
    pub(super) set: EpollEdge,
    pub(super) pool: Pool,
    /// Handshakes, of opening and of closing, by their start.
    pub(super) handshakes: Deadlines,
    /// Requests on connections, by their scheduled instant.
    pub(super) replies: Deadlines,
    /// Connections whose clients think, by the reply that they think about.
    pub(super) thinking: Deadlines,
    /// Connections with more to read than one event's share.
    pub(super) unread: VecDeque<Token>,
    pub(super) recorder: Recorder,
    pub(super) scratch: Box<[u8]>,
    /// When the schedule began.
    pub(super) start_ns: u64,
    /// When the measured part began.
    pub(super) measured_ns: u64,
    /// How many connections this thread has opened, to take source addresses in turn.
    pub(super) connects: u64,
    pub(super) last_outcome_ns: u64,
    pub(super) last_connect_failure: Option<Failure>,
    /// Whether connections are being opened before the run.
    pub(super) is_setup: bool,
    /// Requests of the measured part that were not the first of their session.
    pub(super) followed: u64,
    lane: Lane,
    /// The lane's arrivals: those below `started` were begun or failed, those from there to `due`
    /// wait for a connection. A queue of any length in two numbers, for the order is the
    /// schedule's.
    started: u64,
    due: u64,
    arrivals: u64,
    /// When arrival `due` is to be taken up; `u64::MAX` after the last.
    next_due_ns: u64,
    /// A closed loop's: connections to open, from when on, and requests begun.
    missing: usize,
    reconnect_ns: u64,
    begun: u64,
    begun_measured: u64,
    quota: u64,
    /// The kernel has epoll_pwait2, as far as is known.
    has_precise_wait: bool,
    /// CPU time at the start of the measured part.
    cpu_before: Option<Duration>,
    /// What was waited since then while there was nothing to do.
    spare_ns: u64,
}

impl<'a> Worker<'a> {
    /// A thread's state, before it has opened anything.
    pub(crate) fn new(plan: &'a Plan, gauges: &'a Gauges, index: usize) -> Result<Self> {
        let lane = plan.lane(index);
        let limit = plan.connection_limit.map_or(usize::MAX, |limit| plan.part(index, limit));
        Ok(Self {
            plan,
            gauges,
            index,
            set: EpollEdge::open(&Options::default())?,
            pool: Pool::new(limit),
            handshakes: Deadlines::default(),
            replies: Deadlines::default(),
            thinking: Deadlines::default(),
            unread: VecDeque::new(),
            recorder: Recorder::new(plan.window_ns, plan.intervals),
            scratch: vec![0; SCRATCH_BYTES].into(),
            start_ns: 0,
            measured_ns: 0,
            connects: 0,
            last_outcome_ns: 0,
            last_connect_failure: None,
            is_setup: false,
            followed: 0,
            lane,
            started: 0,
            due: 0,
            arrivals: plan.schedule.as_ref().map_or(0, |schedule| lane.share(schedule.len())),
            next_due_ns: u64::MAX,
            missing: 0,
            reconnect_ns: 0,
            begun: 0,
            begun_measured: 0,
            quota: plan
                .closed_requests
                .map_or(u64::MAX, |total| plan.part(index, total as usize) as u64),
            has_precise_wait: true,
            cpu_before: None,
            spare_ns: 0,
        })
    }

    /// Opens this thread's part of the standing connections.
    ///
    /// # Errors
    /// The first failure, when none could be opened at all; those that are missing otherwise are
    /// opened by need.
    pub(crate) fn set_up(&mut self, stop: &AtomicBool) -> Result<()> {
        let wanted = self.plan.part(self.index, self.plan.standing);
        let mut tried = 0;
        let mut failure = None;
        self.is_setup = true;
        while tried < wanted || self.handshakes.len() > 0 {
            if stop.load(Relaxed) {
                break;
            }
            let now_ns = self.plan.now_ns();
            while tried < wanted && self.handshakes.len() < MAX_HANDSHAKES {
                tried += 1;
                if let Err(kind) = self.open(now_ns, None) {
                    self.recorder.connections.failed += 1;
                    failure = Some(kind);
                    break; // and try the next after the events
                }
            }
            self.expire(now_ns);
            self.wait(now_ns)?;
            self.drain_events();
        }
        self.is_setup = false;
        let opened = self.pool.open();
        if wanted > 0 && opened == 0 && !stop.load(Relaxed) {
            let reason = failure.or(self.last_connect_failure).map_or(
                "no handshake was completed in time".to_owned(),
                |kind| match kind.advice() {
                    Some(advice) => format!("{}: {advice}", kind.name()),
                    None => kind.name().to_owned(),
                },
            );
            bail!(
                "none of {wanted} connections to {} could be opened ({reason})",
                self.plan.destination
            );
        }
        Ok(())
    }

    /// Sends the thread's lane of the schedule, which begins at `start_ns`, or keeps its
    /// connections busy, and returns what was measured.
    ///
    /// # Errors
    /// A wait that fails (ENOMEM).
    pub(crate) fn run(mut self, start_ns: u64, stop: &AtomicBool) -> Result<Measured> {
        self.start_ns = start_ns;
        self.measured_ns = start_ns + self.plan.warmup_ns;
        self.next_due_ns = self.arrival_ns(0);
        if self.plan.schedule.is_none() {
            self.missing = self.plan.part(self.index, self.plan.standing) - self.pool.open();
        }
        self.sleep_until_start(stop);
        self.fill_closed_loop();
        let mut now_ns = self.plan.now_ns();
        let mut interrupted = false;
        while !self.is_over(now_ns) {
            if stop.load(Relaxed) {
                interrupted = true;
                break;
            }
            self.take_up_due(now_ns);
            self.go_on(now_ns);
            self.expire(now_ns);
            self.start_waiting(now_ns);
            self.read_on();
            self.reconnect(now_ns);
            self.note_time(now_ns);
            self.wait(now_ns)?;
            self.drain_events();
            self.publish();
            now_ns = self.plan.now_ns();
        }
        self.note_time(now_ns);
        Ok(self.finish(now_ns, interrupted))
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

    /// The instant of arrival `index` of this lane; never, after the last.
    #[inline]
    fn arrival_ns(&self, index: u64) -> u64 {
        let Some(schedule) = &self.plan.schedule else { return u64::MAX };
        match schedule.at(self.lane.global(index)) {
            Some(offset_ns) => self.start_ns + offset_ns,
            None => u64::MAX,
        }
    }

    /// When the measured part ends by the schedule.
    #[inline]
    pub(super) fn end_ns(&self) -> u64 {
        self.measured_ns.saturating_add(self.plan.window_ns)
    }

    /// Takes up the requests whose instant has come, as many as one burst holds.
    #[inline]
    pub(super) fn take_up_due(&mut self, mut now_ns: u64) {
        let mut burst = 0;
        while self.next_due_ns <= now_ns && burst < MAX_BURST {
            if now_ns > self.end_ns() + GRACE_NS {
                // Too late: the rest counts as unsent.
                self.arrivals = self.due;
                self.next_due_ns = u64::MAX;
                return;
            }
            let scheduled_ns = self.next_due_ns;
            if scheduled_ns >= self.measured_ns {
                self.recorder.lag.saturating_record(now_ns - scheduled_ns);
            }
            self.due += 1;
            self.next_due_ns = self.arrival_ns(self.due);
            self.start_waiting(now_ns);
            burst += 1;
            now_ns = self.plan.now_ns();
        }
    }

    /// Begins the requests that wait, for as long as connections can be had.
    #[inline]
    pub(super) fn start_waiting(&mut self, now_ns: u64) {
        while self.started < self.due {
            let free = self.pool.pop_free();
            if free.is_none() && !self.pool.has_room() {
                return;
            }
            let scheduled_ns = self.arrival_ns(self.started);
            let number = self.first_number(self.started);
            self.started += 1;
            self.begin(free, scheduled_ns, number, now_ns);
        }
    }

    /// The number, among all requests of the run, of the one that arrival `index` of this lane
    /// begins with.
    #[inline]
    fn first_number(&self, index: u64) -> u64 {
        self.lane.global(index) * self.plan.session.map_or(1, |session| session.requests)
    }

    /// What a connection that has become free does next. Returns whether it got a request.
    #[inline]
    pub(super) fn next_for(&mut self, fd: RawFd, now_ns: u64) -> bool {
        if self.plan.schedule.is_some() {
            if self.started == self.due {
                return false;
            }
            let scheduled_ns = self.arrival_ns(self.started);
            let number = self.first_number(self.started);
            self.started += 1;
            self.begin(Some(fd), scheduled_ns, number, now_ns);
            return true;
        }
        if self.is_setup || !self.may_begin(now_ns) {
            return false;
        }
        self.begin_closed(Some(fd), now_ns);
        true
    }

    /// Whether the closed loop may begin one more request.
    #[inline]
    fn may_begin(&self, now_ns: u64) -> bool {
        self.begun_measured < self.quota && now_ns < self.end_ns()
    }

    #[inline]
    fn begin_closed(&mut self, fd: Option<RawFd>, now_ns: u64) {
        let number = self.lane.global(self.begun);
        self.begun += 1;
        self.begun_measured += u64::from(now_ns >= self.measured_ns);
        self.begin(fd, now_ns, number, now_ns);
    }

    /// Gives every standing connection of a closed loop its first request.
    fn fill_closed_loop(&mut self) {
        if self.plan.schedule.is_some() {
            return;
        }
        // Bounded: each turn takes one connection out of the queue, and a reply can put it back
        // only when its event is read.
        for _ in 0..self.pool.open() {
            let now_ns = self.plan.now_ns();
            if !self.may_begin(now_ns) {
                break;
            }
            let Some(fd) = self.pool.pop_free() else { break };
            self.begin_closed(Some(fd), now_ns);
        }
    }

    /// A closed loop has lost a connection; `at_once` unless it could not even be opened.
    #[inline]
    pub(super) fn miss(&mut self, now_ns: u64, at_once: bool) {
        if self.plan.schedule.is_none() && !self.is_setup {
            self.missing += 1;
            if !at_once {
                self.reconnect_ns = now_ns + RECONNECT_PAUSE_NS;
            }
        }
    }

    /// Opens what a closed loop is missing.
    #[inline]
    fn reconnect(&mut self, now_ns: u64) {
        if self.missing == 0 || now_ns < self.reconnect_ns {
            return;
        }
        for _ in 0..self.missing.min(MAX_BURST) {
            if !self.may_begin(now_ns) || now_ns < self.reconnect_ns {
                return;
            }
            self.missing -= 1;
            self.begin_closed(None, now_ns);
        }
    }

    /// Fails what has run out of time.
    #[inline]
    pub(super) fn expire(&mut self, now_ns: u64) {
        while let Some(fd) = self.replies.first() {
            if self.reply_deadline_ns(fd) > now_ns {
                break;
            }
            self.fail(fd, Failure::Timeout, now_ns);
        }
        while let Some(fd) = self.handshakes.first() {
            if self.handshake_deadline_ns(fd) > now_ns {
                break;
            }
            match self.pool.get(fd).map(|connection| connection.state) {
                Some(State::Closing) => self.drop_connection(fd),
                _ => self.fail(fd, Failure::Timeout, now_ns),
            }
        }
        while self.started < self.due {
            let scheduled_ns = self.arrival_ns(self.started);
            if scheduled_ns.saturating_add(self.plan.timeout_ns) > now_ns {
                break;
            }
            self.started += 1;
            self.record_failure(Failure::Timeout, scheduled_ns >= self.measured_ns, now_ns);
            self.end_session(now_ns, |sessions| &mut sessions.broken);
        }
    }

    #[inline]
    fn reply_deadline_ns(&mut self, fd: RawFd) -> u64 {
        let connection = self.pool.get(fd).expect("a listed descriptor has its connection");
        let request = connection.request.expect("a connection in this list has a request");
        request.scheduled_ns.saturating_add(self.plan.timeout_ns)
    }

    #[inline]
    fn handshake_deadline_ns(&mut self, fd: RawFd) -> u64 {
        let connection = self.pool.get(fd).expect("a listed descriptor has its connection");
        connection.since_ns.saturating_add(self.plan.connect_timeout_ns)
    }

    /// Waits for events, at most until the next instant at which something is to be done.
    ///
    /// What is waited while there is nothing to do counts as time to spare. Of a long wait that ends
    /// with an event nobody knows when the event came; the CPU time tells that the thread slept. In a
    /// short one falling asleep and waking up may take all the time there is, so it is looked first
    /// whether there is an event at all: a system call more, made by none but those with nothing to do.
    #[inline]
    fn wait(&mut self, now_ns: u64) -> Result<()> {
        let until_ns = self.next_instant_ns(now_ns);
        let begun_ns = self.plan.now_ns();
        let left_ns = until_ns.saturating_sub(begun_ns);
        let is_short = left_ns < SHORT_WAIT_NS;
        if is_short {
            let ready = self.set.wait(Some(Duration::ZERO)).context("looking for replies")?;
            if ready > 0 || left_ns == 0 {
                return Ok(());
            }
        }
        let waited = if self.has_precise_wait {
            self.set.wait_precisely(Duration::from_nanos(left_ns))
        } else {
            // Whole milliseconds, and the rest in waits that return at once.
            self.set.wait(Some(Duration::from_millis(left_ns / 1_000_000)))
        };
        match waited {
            Err(error) if self.has_precise_wait && error.raw_os_error() == Some(libc::ENOSYS) => {
                self.has_precise_wait = false;
                tracing::warn!(
                    "no epoll_pwait2 here (Linux 5.11 has it): the generator polls during the \
                     last millisecond before each request, which its CPU time shows"
                );
            }
            waited => {
                let ready = waited.context("waiting for replies")?;
                if is_short || ready == 0 {
                    self.spare_ns += self.plan.now_ns() - begun_ns;
                }
            }
        }
        Ok(())
    }

    #[inline]
    fn next_instant_ns(&mut self, now_ns: u64) -> u64 {
        if !self.unread.is_empty() {
            return now_ns;
        }
        let mut until_ns = self.next_due_ns.min(now_ns + LONGEST_WAIT_NS);
        if let Some(fd) = self.replies.first() {
            until_ns = until_ns.min(self.reply_deadline_ns(fd));
        }
        if let Some(fd) = self.handshakes.first() {
            until_ns = until_ns.min(self.handshake_deadline_ns(fd));
        }
        if self.started < self.due {
            let deadline_ns = self.arrival_ns(self.started).saturating_add(self.plan.timeout_ns);
            until_ns = until_ns.min(deadline_ns);
        }
        if let Some(thought_ns) = self.next_thought_ns() {
            until_ns = until_ns.min(thought_ns);
        }
        if self.missing > 0 {
            until_ns = until_ns.min(self.reconnect_ns);
        }
        if self.plan.schedule.is_none() && self.end_ns() > now_ns {
            until_ns = until_ns.min(self.end_ns());
        }
        until_ns
    }

    /// Does what the clock alone asks for: the CPU time at the start of the measured part, and the
    /// intervals of `--hdr`.
    #[inline]
    fn note_time(&mut self, now_ns: u64) {
        if self.cpu_before.is_none() && now_ns >= self.measured_ns {
            self.cpu_before = Some(sys::thread_cpu_time());
            self.spare_ns = 0;
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

    /// Whether every request has its outcome and none is to come.
    #[inline]
    fn is_over(&self, now_ns: u64) -> bool {
        if self.replies.len() > 0 || self.started < self.due || self.thinking.len() > 0 {
            return false;
        }
        match self.plan.schedule {
            Some(_) => self.due >= self.arrivals,
            None => !self.may_begin(now_ns),
        }
    }

    fn finish(mut self, now_ns: u64, interrupted: bool) -> Measured {
        let elapsed_ns = now_ns.saturating_sub(self.measured_ns);
        self.recorder.close_interval(elapsed_ns);
        let cpu_ns =
            self.cpu_before.map_or(0, |before| (sys::thread_cpu_time() - before).as_nanos() as u64);
        // Counted from the schedule itself, not from what was done with it.
        let (scheduled, unsent) = match &self.plan.schedule {
            Some(schedule) => {
                let until_ns = if interrupted { now_ns } else { u64::MAX };
                let total = self.lane.share(schedule.len());
                let first = self.first_at(total, self.measured_ns);
                let last = self.first_at(total, until_ns).max(first);
                (last - first + self.followed, last.saturating_sub(self.due.max(first)))
            }
            None => (self.begun_measured, 0),
        };
        let recorder = &self.recorder;
        let ended = recorder.completed + recorder.failures.total() + unsent;
        let unfinished = scheduled.saturating_sub(ended);
        for connection in self.pool.drain() {
            let _ = self.set.close(connection.token, connection.socket);
        }
        Measured {
            scheduled,
            unsent,
            unfinished,
            measured_ns: self.measured_ns,
            elapsed_ns,
            cpu_ns,
            spare_ns: self.spare_ns,
            last_outcome_ns: self.last_outcome_ns.saturating_sub(self.measured_ns),
            recorder: self.recorder,
        }
    }

    /// The first of the lane's `total` arrivals that is at or after `time_ns`.
    fn first_at(&self, total: u64, time_ns: u64) -> u64 {
        let (mut low, mut high) = (0, total);
        while low < high {
            let middle = low + (high - low) / 2;
            if self.arrival_ns(middle) < time_ns {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low
    }
}
