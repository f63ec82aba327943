//! An interest set whose readiness is reported by signals: the signal queue, the list of
//! descriptors to poll again, and the events found. `rtsig` and `hybrid` use it and differ in how
//! they handle an overflow.
//!
//! The module documentation of [`super::rtsig`] explains why no event is lost and none is stale.

use super::{
    queue::{self, SignalQueue},
    rescan::Rescan,
    writability::{WaitEnd, Writability},
};
use crate::{
    Error, Event, Interest, Readiness, Token, Waker, mechanism::ALWAYS, registration::Registrations,
};
use pollux_sys as sys;
use std::{
    os::fd::{AsRawFd, BorrowedFd, RawFd},
    time::{Duration, Instant},
};

/// The state of a mechanism that uses signals.
#[derive(Debug)]
pub(crate) struct SignalledSet {
    queue: SignalQueue,
    rescan: Rescan,
    writability: Writability,
    /// By descriptor number: the period in which it was added. A period ends when the queue is
    /// found empty. A signal for a descriptor added in the current period may be stale.
    added_period: Vec<u32>,
    period: u32,
    /// Events taken directly from signals.
    events: Vec<Event>,
    next: usize,
    /// Level-triggered: report for as long as the descriptor is ready.
    level: bool,
    waker: Option<Waker>,
    /// Signals taken since the queue was last found empty.
    backlog: u64,
    counters: SignalCounters,
}

/// Counters for the statistics.
#[derive(Debug, Default)]
struct SignalCounters {
    signals: u64,
    stale: u64,
    rescanned: u64,
    overflows: u64,
    recoveries: u64,
    recovery_ns: u64,
}

/// How a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WaitOutcome {
    /// The number of events; a wake-up counts as one.
    pub(crate) found: usize,
    /// Signals were lost, and events found before may have been dropped: the caller must recover.
    pub(crate) overflowed: bool,
}

/// How one pass over the signal queue ended.
enum Pass {
    Complete(WaitOutcome),
    /// Only stale signals were taken: wait for the rest of the timeout.
    Retry,
}

impl SignalledSet {
    /// Opens the signal queue. Errors name `mechanism`.
    pub(crate) fn open(
        mechanism: &'static str,
        setup: queue::Setup,
        level: bool,
    ) -> Result<Self, Error> {
        Ok(Self {
            queue: SignalQueue::open(mechanism, setup)?,
            rescan: Rescan::new(level),
            writability: Writability::default(),
            added_period: Vec::new(),
            period: 1,
            events: Vec::with_capacity(setup.max_events.max(1)),
            next: 0,
            level,
            waker: None,
            backlog: 0,
            counters: SignalCounters::default(),
        })
    }

    /// Arms `token`; the next wait reports it if it is ready already.
    #[inline]
    pub(crate) fn add(&mut self, token: Token, interest: Interest) -> Result<(), Error> {
        self.arm(token, interest)?;
        self.rescan.forget(token);
        self.rescan.insert(token);
        Ok(())
    }

    /// Arms `token` for events from now on.
    #[inline]
    pub(crate) fn arm(&mut self, token: Token, interest: Interest) -> Result<(), Error> {
        self.queue.arm(token.fd)?;
        self.writability.reset(token, interest).inspect_err(|_| {
            // Undo: an armed descriptor without a registration would still fill the queue.
            let _ = self.queue.disarm(token.fd);
        })?;
        let index = token.fd as usize;
        if index >= self.added_period.len() {
            self.added_period.resize((index + 1).next_multiple_of(1024), 0);
        }
        self.added_period[index] = self.period;
        Ok(())
    }

    /// Makes the next wait report `token` if it is ready. Usually no system call: descriptors are
    /// armed for all events, and the interest is applied when a signal is taken.
    #[inline]
    pub(crate) fn modify(&mut self, token: Token, interest: Interest) -> Result<(), Error> {
        self.rescan.insert(token);
        self.writability.require(token, interest)
    }

    /// Makes the next wait report `token` if it is ready.
    #[inline]
    pub(crate) fn rescan(&mut self, token: Token) {
        self.rescan.insert(token);
    }

    /// Disarms `token` and forgets it.
    pub(crate) fn remove(&mut self, token: Token) -> Result<(), Error> {
        self.rescan.forget(token);
        self.disarm(token)
    }

    /// Disarms `token` until it is [armed](Self::arm) again; a pending rescan of it is kept.
    pub(crate) fn disarm(&mut self, token: Token) -> Result<(), Error> {
        self.writability.remove(token);
        self.queue.disarm(token.fd)
    }

    /// Forgets `token`, whose descriptor is about to be closed; closing ends its signals.
    #[inline]
    pub(crate) fn forget(&mut self, token: Token) {
        self.rescan.forget(token);
    }

    /// The number of events that have not been handed out and would not be found again.
    #[inline]
    pub(crate) fn undrained(&self) -> usize {
        if self.level { 0 } else { self.events.len() - self.next + self.rescan.ready() }
    }

    /// Signals taken since the queue was last found empty: the number by which the caller is behind.
    #[inline]
    pub(crate) fn backlog(&self) -> u64 {
        self.backlog
    }

    /// Waits for signals, and polls the descriptors whose state is uncertain.
    #[inline]
    pub(crate) fn wait(
        &mut self,
        registrations: &Registrations,
        timeout: Option<Duration>,
    ) -> Result<WaitOutcome, Error> {
        self.events.clear();
        self.next = 0;
        self.rescan.begin_wait();
        let nothing = WaitOutcome { found: 0, overflowed: false };
        let deadline = match timeout {
            Some(time) if !time.is_zero() => Instant::now().checked_add(time),
            _ => None,
        };
        let mut time = timeout;
        loop {
            if let Pass::Complete(waited) = self.pass(registrations, time)? {
                return Ok(waited);
            }
            if timeout == Some(Duration::ZERO) {
                return Ok(nothing);
            }
            if let Some(deadline) = deadline {
                let left = deadline.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return Ok(nothing);
                }
                time = Some(left);
            }
        }
    }

    /// Takes queued signals, waiting for one if necessary, and polls the descriptors whose state is
    /// uncertain.
    fn pass(
        &mut self,
        registrations: &Registrations,
        timeout: Option<Duration>,
    ) -> Result<Pass, Error> {
        let zero = Some(Duration::ZERO);
        let due = self.rescan.is_due() || self.queue.has_missed_overflow();
        let mut timeout = if due { zero } else { timeout };
        let mut waited = timeout != zero;
        if self.writability.is_used() {
            let rescan = &mut self.rescan;
            let ended = self.writability.wait(self.queue.as_fd(), timeout, |token| {
                let interest = registrations.interest(token);
                if interest.is_some_and(|interest| interest.contains(Interest::WRITE)) {
                    rescan.insert(token);
                }
            })?;
            match ended {
                WaitEnd::Interrupted => {
                    return Ok(Pass::Complete(WaitOutcome { found: 0, overflowed: false }));
                }
                WaitEnd::TimedOut => {}
                // This does not end the wait: the socket with room may have no interest in writing.
                WaitEnd::Activity => waited = false,
            }
            timeout = zero;
        }
        let waker = self.waker.as_ref().map_or(-1, |waker| waker.as_fd().as_raw_fd());
        let mut woken = false;
        let rescan = &mut self.rescan;
        let (added_period, period, level) = (&self.added_period, self.period, self.level);
        let (events, counters) = (&mut self.events, &mut self.counters);
        let taken = self.queue.take(timeout, |fd: RawFd, bits| {
            if fd == waker {
                woken = true;
                return;
            }
            let Some((token, interest)) = registrations.by_fd(fd) else {
                counters.stale += 1;
                return;
            };
            if rescan.contains(token) {
                return;
            }
            // The band of a hang-up always includes an error: poll(2) shows which of them it is. A
            // pipe signals that its other end was closed as input or as room. The interest would
            // hide that if it is empty, so poll(2) decides then, too.
            let unclear = interest.is_empty() || bits & (libc::POLLERR | libc::POLLHUP) as u32 != 0;
            if level || unclear || added_period[fd as usize] == period {
                counters.rescanned += u64::from(!level);
                rescan.insert(token);
                return;
            }
            let readiness = Readiness::from_poll_bits(bits & (interest.to_poll_bits() | ALWAYS));
            if !readiness.is_empty() {
                events.push(Event { token, readiness });
            }
        });
        let taken = taken.map_err(Error::io("rt_sigtimedwait"))?;
        self.counters.signals += taken.signals as u64;
        self.backlog += taken.signals as u64;
        if taken.emptied {
            self.period = self.period.wrapping_add(1);
            self.backlog = 0;
        }
        if taken.overflowed {
            self.counters.overflows += 1;
            woken |= self.drain_waker();
            let found = usize::from(woken);
            return Ok(Pass::Complete(WaitOutcome { found, overflowed: true }));
        }
        if woken {
            self.drain_waker();
        }
        if self.rescan.is_due() {
            match self.rescan.poll(registrations) {
                Ok(_) => {}
                Err(error) if error.raw_os_error() == Some(libc::EINTR) => {
                    return Ok(Pass::Complete(WaitOutcome { found: 0, overflowed: false }));
                }
                Err(source) => return Err(Error::Io { call: "ppoll", source }),
            }
        }
        let found = self.events.len() + self.rescan.ready() + usize::from(woken);
        // Return when the timeout is over and no signal was taken. Stale signals do not end a wait.
        let over = taken.signals == 0 && waited;
        if found > 0 || taken.interrupted || over {
            Ok(Pass::Complete(WaitOutcome { found, overflowed: false }))
        } else {
            Ok(Pass::Retry)
        }
    }

    /// After an overflow: discards the rest of the queue and polls the whole interest set. Returns the
    /// number of ready descriptors.
    pub(crate) fn recover(&mut self, registrations: &Registrations) -> Result<usize, Error> {
        let started_at = Instant::now();
        self.queue.flush()?;
        self.discard_pending(registrations);
        for (token, _) in registrations.iter() {
            self.rescan.insert(token);
        }
        match self.rescan.poll(registrations) {
            Ok(_) => {}
            // The list is unchanged, so the next wait polls all of them.
            Err(error) if error.raw_os_error() == Some(libc::EINTR) => {}
            Err(source) => return Err(Error::Io { call: "ppoll", source }),
        }
        self.counters.recoveries += 1;
        self.counters.recovery_ns += started_at.elapsed().as_nanos() as u64;
        Ok(self.rescan.ready())
    }

    /// Discards queued signals and pending events, and stops queueing. One system call.
    pub(crate) fn mute(&mut self, registrations: &Registrations) -> Result<(), Error> {
        self.queue.mute()?;
        self.discard_pending(registrations);
        Ok(())
    }

    /// Keeps the rescan list in proportion to the registrations, for callers that add descriptors
    /// while they do not wait.
    pub(crate) fn compact_if_long(&mut self, registrations: &Registrations) {
        self.rescan.compact_if_long(registrations);
    }

    /// Queues signals again. The caller must find the events that happened until now.
    pub(crate) fn unmute(&mut self) -> Result<(), Error> {
        // The queue was empty meanwhile, so no signal in it is stale.
        self.period = self.period.wrapping_add(1);
        self.queue.unmute()
    }

    /// Discards pending events. The queue is empty, so no signal in it is stale; the caller finds the
    /// events of the discarded signals in another way.
    fn discard_pending(&mut self, registrations: &Registrations) {
        self.events.clear();
        self.next = 0;
        self.rescan.compact(registrations);
        self.period = self.period.wrapping_add(1);
        self.backlog = 0;
    }

    /// The next event of the last wait.
    #[inline]
    pub(crate) fn next(&mut self, registrations: &Registrations) -> Option<Event> {
        while let Some(&event) = self.events.get(self.next) {
            self.next += 1;
            if registrations.interest(event.token).is_some() {
                return Some(event);
            }
        }
        self.rescan.next(registrations)
    }

    /// The waker, and the reading end of its pipe for the mechanism's other interest set.
    pub(crate) fn waker(&mut self) -> Result<(Waker, RawFd), Error> {
        if self.waker.is_none() {
            let waker = Waker::over_pipe()?;
            self.queue.arm(waker.as_fd().as_raw_fd())?;
            self.waker = Some(waker);
        }
        let waker = self.waker.as_ref().expect("just made");
        Ok((waker.clone(), waker.as_fd().as_raw_fd()))
    }

    /// The reading end of the waker's pipe, if there is a waker.
    pub(crate) fn waker_pipe(&self) -> Option<BorrowedFd<'_>> {
        self.waker.as_ref().map(Waker::as_fd)
    }

    /// Empties the waker's pipe. True if it contained a wake-up.
    pub(crate) fn drain_waker(&self) -> bool {
        let Some(waker) = &self.waker else { return false };
        let mut any = false;
        // Bounded by the pipe's capacity of 64 KiB. A wake-up written meanwhile has sent another
        // signal.
        for _ in 0..64 {
            match sys::read(waker.as_fd(), &mut [0; 1024]) {
                Ok(taken) if taken > 0 => any = true,
                _ => break,
            }
        }
        any
    }

    /// After fork(2), in the child: drops the parent's waker. The caller must arm all descriptors.
    /// True if there was a waker.
    pub(crate) fn reopen_after_fork(&mut self, registrations: &Registrations) -> bool {
        self.queue.reopen_after_fork();
        self.writability.reopen_after_fork();
        self.discard_pending(registrations);
        self.waker.take().is_some()
    }

    /// Figures for the statistics.
    pub(crate) fn statistics(&self) -> Vec<(&'static str, u64)> {
        let SignalCounters { signals, stale, rescanned, overflows, recoveries, recovery_ns } =
            self.counters;
        vec![
            ("signals", signals),
            ("signals_stale", stale),
            ("signals_rescanned", rescanned),
            ("overflows", overflows),
            ("recoveries", recoveries),
            ("recovery_ns", recovery_ns),
        ]
    }
}
