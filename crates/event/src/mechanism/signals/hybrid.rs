//! `hybrid`: signals under low load, a polling mechanism (the *partner*) under high load, and back.
//! This is the server that provos §4 imagines and §6 calls for, with the return that phhttpd lacked.
//!
//! # Both interest sets at once
//! Every descriptor is armed for signals and registered with the partner ("maintain its pollfd
//! array, or corresponding kernel state, concurrently", §6). A switch copies nothing: it changes a
//! signal mask and the object that is waited for. There are two exceptions. Descriptors added while
//! the hybrid waits for its partner are armed later, when load is low, because most are closed
//! before. Descriptors that report often meanwhile, such as listeners, are disarmed until then, so
//! that the kernel does not discard signals for them.
//!
//! Eventfds, timerfds and epoll sets send no signals; only the partner reports them. While one is
//! registered, the hybrid stays with its partner. Files that are always ready are refused.
//!
//! # Switching to the partner
//! The hybrid switches when the signal queue overflows, or when it has taken `high` signals without
//! finding the queue empty: the server is falling behind. It unblocks the signals in this thread.
//! Since they are ignored, the kernel discards the queue and drops later signals, and senders pay
//! almost nothing for them. No event is lost: the partner's set reports everything that is still
//! ready.
//!
//! # Switching back to signals
//! The hybrid returns when no wait found more than `low` events for `dwell_ms`. It blocks the
//! signals, so that they queue again, and drains the partner *after that*. The partner reports changes
//! from before, a signal reports changes from after, and an event in between is reported twice
//! (once spuriously). If load returns soon, the next stay must be twice as long, up to
//! `MAX_DWELL_FACTOR` times, so that a load near the threshold causes few switches.
//!
//! # Semantics
//! The mechanism is edge-triggered with `partner=epoll`. poll(2) and /dev/poll are level-triggered, and
//! with them the hybrid is, too: in signal mode each descriptor that was reported is polled again at
//! the next wait.

use super::{
    event_rate::EventRate,
    new_registrations::NewRegistrations,
    polling::{Partner, PollingMechanism, polling},
    queue::{self, Dequeue},
    signalled_set::SignalledSet,
};
use crate::{
    Capabilities, Description, Error, Event, Interest, Mechanism, Options, Token, Waker,
    options::own::own_options,
};
use pollux_sys as sys;
use std::{
    os::fd::{BorrowedFd, OwnedFd},
    time::{Duration, Instant},
};

const DESCRIPTION: Description = Description {
    name: "hybrid",
    summary: "real-time signals under low load, epoll (or another partner) under high load, and back",
    paper: "provos §4 and §6 (imagined there)",
    capabilities: Capabilities::EDGE.union(Capabilities::OVERFLOWS).union(Capabilities::ONE_OWNER),
    own_options: &[
        ("partner", Partner::NAMES, "what waits under load"),
        (
            "high",
            &[],
            "signals taken without finding the queue empty, at which the partner takes over \
             (default 256)",
        ),
        ("low", &[], "the most events of one wait that count as low load (default 16)"),
        (
            "dwell_ms",
            &[],
            "milliseconds of low load after which signals take over again (default 100)",
        ),
        ("signal", &[], "the signal's number (default: the first free one)"),
    ],
};

/// Default of `high`: four full reads of the signalfd.
const DEFAULT_HIGH: u64 = 256;

/// Default of `low`: a quarter of one full read of the signalfd.
const DEFAULT_LOW: u64 = 16;

/// Default of `dwell_ms`. With [`MAX_DWELL_FACTOR`] the hybrid is back on signals within 0.8 s.
const DEFAULT_DWELL: Duration = Duration::from_millis(100);

/// The longest dwell, about a year: long enough, and a product with the factors cannot overflow.
const MAX_DWELL: Duration = Duration::from_millis(1 << 35);

/// The largest multiple of `dwell_ms` that a stay may have to last.
const MAX_DWELL_FACTOR: u32 = 8;

/// A switch to the partner within this many times `dwell_ms` of the last return counts as a
/// relapse.
const STABLE_FACTOR: u32 = 10;

/// The number of descriptors that are armed before the partner is checked for events again.
const ARM_BATCH: usize = 512;

/// The most switches within one wait.
const MAX_SWITCHES_PER_WAIT: usize = 6;

own_options! {
    /// The options of `hybrid`.
    HybridOptions of "hybrid" {
        /// Which mechanism waits under load.
        partner by with_partner as "partner": Partner = Partner::default();
        /// Signals taken without finding the queue empty, at which the partner takes over.
        high by with_high as "high": u64 = DEFAULT_HIGH;
        /// The most events of one wait for the partner that still count as low load.
        low by with_low as "low": u64 = DEFAULT_LOW;
        /// How long load must be low before signals take over again, in whole milliseconds; at most
        /// a year.
        dwell by with_dwell as "dwell_ms": Duration = DEFAULT_DWELL;
        /// The signal's number; `None` takes the first free one.
        signal by with_signal as "signal": Option<i32> = None;
    }
}

/// The object that the hybrid waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Signals,
    Partner,
    /// Signals queue again, but the partner has not been drained yet.
    Returning,
}

/// An interest set that is kept in two mechanisms at once.
#[derive(Debug)]
pub struct Hybrid {
    signals: SignalledSet,
    /// Registered with the partner but not armed for signals.
    unarmed: NewRegistrations,
    /// By descriptor number: its events in this stay with the partner.
    rate: EventRate,
    partner: PollingMechanism,
    /// The registration of the waker's pipe with the partner.
    waker_token: Option<Token>,
    mode: Mode,
    level: bool,
    max_events: usize,
    /// Events that may still be handed out before the next wait.
    event_budget: usize,
    high: u64,
    low: u64,
    dwell: Duration,
    /// The multiple of `dwell` for which load must be low: hysteresis.
    factor: u32,
    /// The start of the first of the waits that found low load without interruption.
    quiet_since: Option<Instant>,
    /// The time at which the present mode began.
    switched_at: Instant,
    counters: HybridCounters,
}

#[derive(Debug, Default)]
struct HybridCounters {
    to_partner: u64,
    by_overflow: u64,
    to_signals: u64,
    switch_ns: u64,
    longest_switch_ns: u64,
    partner_ns: u64,
    returns_postponed: u64,
    disarmed: u64,
}

impl Hybrid {
    /// As [`Mechanism::open`], with options that have types.
    ///
    /// # Errors
    /// As there.
    pub fn open_with(options: &Options<HybridOptions>) -> Result<Self, Error> {
        let own = &options.own;
        let level = own.partner != Partner::Epoll;
        let queue = queue::Setup {
            signal: own.signal,
            dequeue: Dequeue::Batch,
            max_events: options.event_limit(),
        };
        let now = Instant::now();
        Ok(Self {
            signals: SignalledSet::open(DESCRIPTION.name, queue, level)?,
            unarmed: NewRegistrations::default(),
            rate: EventRate::default(),
            partner: PollingMechanism::open(own.partner, options.event_limit())?,
            waker_token: None,
            mode: Mode::Signals,
            level,
            max_events: options.event_limit(),
            event_budget: 0,
            high: own.high,
            low: own.low,
            dwell: own.dwell.min(MAX_DWELL),
            factor: 1,
            quiet_since: None,
            switched_at: now,
            counters: HybridCounters::default(),
        })
    }

    /// Stops signals; from now on the partner reports everything.
    fn switch_to_partner(&mut self, by_overflow: bool) -> Result<(), Error> {
        let started_at = Instant::now();
        self.signals.mute(self.partner.registrations())?;
        // Signals could not cope shortly after the return, so the next return takes longer.
        let relapsed = started_at - self.switched_at < self.dwell * STABLE_FACTOR;
        let first = self.counters.to_partner == 0;
        self.factor = if relapsed && !first { (self.factor * 2).min(MAX_DWELL_FACTOR) } else { 1 };
        self.counters.to_partner += 1;
        self.counters.by_overflow += u64::from(by_overflow);
        self.rate.begin();
        self.enter_mode(Mode::Partner, started_at);
        Ok(())
    }

    /// Lets signals queue again; the partner must be drained after that.
    fn begin_return(&mut self) -> Result<(), Error> {
        let started_at = Instant::now();
        self.signals.unmute()?;
        self.counters.to_signals += 1;
        self.counters.partner_ns += (started_at - self.switched_at).as_nanos() as u64;
        self.enter_mode(Mode::Returning, started_at);
        Ok(())
    }

    /// Adds the partner's registration `token` to the signals' side.
    fn add_to_signals(&mut self, token: Token, interest: Interest) -> Result<(), Error> {
        // poll(2) and /dev/poll accept files that are always ready. With epoll as the partner the
        // check would be an unnecessary system call, because epoll has refused them.
        if self.level && sys::lacks_wait_queue(token.fd) {
            return Err(Error::CannotWait { fd: token.fd, reason: queue::NO_FILES });
        }
        if self.mode == Mode::Partner {
            let registrations = self.partner.registrations();
            self.unarmed.add(token, registrations);
            // No wait compacts the list in this mode.
            self.signals.compact_if_long(registrations);
            return Ok(());
        }
        match self.signals.add(token, interest) {
            Err(Error::CannotWait { .. }) => {
                self.unarmed.mark_unsupported(token);
                Ok(())
            }
            result => result,
        }
    }

    /// Arms a batch of unarmed descriptors. True when none is left.
    fn arm_batch(&mut self) -> Result<bool, Error> {
        for _ in 0..ARM_BATCH {
            let Some((token, interest)) = self.unarmed.take(self.partner.registrations()) else {
                return Ok(true);
            };
            // The partner reports changes that happened before the arming.
            match self.signals.arm(token, interest) {
                Ok(()) => {}
                Err(Error::CannotWait { .. }) => self.unarmed.mark_unsupported(token),
                Err(error) => {
                    self.unarmed.add(token, self.partner.registrations());
                    return Err(error);
                }
            }
        }
        Ok(false)
    }

    /// Counts an event that the partner reported, and disarms `token` if it reports often.
    #[inline]
    fn count_event(&mut self, token: Token) {
        if self.rate.is_frequent(token.fd) && !self.unarmed.contains(token) {
            self.disarm_temporarily(token);
        }
    }

    #[cold]
    fn disarm_temporarily(&mut self, token: Token) {
        // If disarming fails the descriptor stays armed, which only costs time.
        if self.partner.registrations().interest(token).is_some()
            && self.signals.disarm(token).is_ok()
        {
            self.unarmed.add(token, self.partner.registrations());
            self.counters.disarmed += 1;
        }
    }

    /// Ends the time with the partner after load was low for long enough: arms the unarmed descriptors
    /// and begins the return. Returns the number of events if the partner reports some first.
    fn try_to_return(&mut self) -> Result<Option<usize>, Error> {
        // Bounded: each iteration takes a batch from the list, and nothing is added meanwhile.
        loop {
            match self.arm_batch() {
                Ok(true) if self.unarmed.unsupported() > 0 => {
                    self.quiet_since = None;
                    return Ok(Some(0));
                }
                Ok(true) => break,
                Ok(false) => {}
                // Arming failed for lack of memory: stay with the partner and try again later.
                Err(_) => {
                    self.counters.returns_postponed += 1;
                    self.quiet_since = None;
                    return Ok(Some(0));
                }
            }
            let found = self.wait_with_partner(Some(Duration::ZERO))?;
            if found > 0 {
                if found as u64 > self.low {
                    self.quiet_since = None;
                }
                return Ok(Some(found));
            }
        }
        self.begin_return()?;
        Ok(None)
    }

    fn enter_mode(&mut self, mode: Mode, started_at: Instant) {
        let now = Instant::now();
        let took = (now - started_at).as_nanos() as u64;
        self.counters.switch_ns += took;
        self.counters.longest_switch_ns = self.counters.longest_switch_ns.max(took);
        self.mode = mode;
        self.switched_at = now;
        self.quiet_since = None;
    }

    /// Waits for signals; `None` when the partner takes over.
    fn wait_for_signals(&mut self, timeout: Option<Duration>) -> Result<Option<usize>, Error> {
        self.partner.send_changes_if_many()?;
        let undrained = self.signals.undrained();
        if undrained > 0 {
            return Ok(Some(undrained));
        }
        if self.signals.backlog() >= self.high || self.unarmed.unsupported() > 0 {
            self.switch_to_partner(false)?;
            return Ok(None);
        }
        let waited = self.signals.wait(self.partner.registrations(), timeout)?;
        if !waited.overflowed {
            return Ok(Some(waited.found));
        }
        self.switch_to_partner(true)?;
        // The partner reports again what the signals reported, except that the waker was used.
        Ok((waited.found > 0).then_some(waited.found))
    }

    /// Waits with the partner. Empties the waker's pipe if it is reported: a wake-up that follows is
    /// for the next wait, even if the events of this one have not been taken yet.
    #[inline]
    fn wait_with_partner(&mut self, timeout: Option<Duration>) -> Result<usize, Error> {
        let found = polling!(&mut self.partner, partner => partner.wait(timeout))?;
        if found > 0 && self.waker_token.is_some_and(|token| self.partner.is_reported(token)) {
            self.signals.drain_waker();
        }
        Ok(found)
    }

    /// Waits with the partner, at most until the earliest time at which the hybrid may return to
    /// signals; `None` when it returns.
    fn wait_for_partner(&mut self, timeout: Option<Duration>) -> Result<Option<usize>, Error> {
        if self.unarmed.unsupported() > 0 {
            self.quiet_since = None;
            return self.wait_with_partner(timeout).map(Some);
        }
        let stay = self.dwell * self.factor;
        let started_at = Instant::now();
        let quiet_for = self.quiet_since.map(|since| started_at - since);
        if quiet_for.is_some_and(|time| time >= stay) {
            return self.try_to_return();
        }
        let left = stay - quiet_for.unwrap_or_default();
        let time = if timeout.is_none_or(|time| left < time) { Some(left) } else { timeout };
        let found = self.wait_with_partner(time)?;
        // The time starts with the wait, so that handling a large batch does not count as low load.
        self.quiet_since = match self.quiet_since {
            _ if found as u64 > self.low => None,
            None => Some(started_at),
            since => since,
        };
        if found > 0 {
            return Ok(Some(found));
        }
        if started_at.elapsed() >= left {
            return self.try_to_return();
        }
        // EINTR, or the caller's own timeout is over.
        Ok(Some(0))
    }

    /// Drains the partner after signals have begun to queue; `None` when it is drained.
    fn drain_partner(&mut self) -> Result<Option<usize>, Error> {
        if !self.level {
            let found = self.wait_with_partner(Some(Duration::ZERO))?;
            if found > 0 {
                return Ok(Some(found));
            }
            self.mode = Mode::Signals;
            return Ok(None);
        }
        // Level-triggered: a descriptor that is ready now is polled at every wait until it is not
        // ready.
        let rounds = self.partner.registrations().len() / self.max_events + 2;
        let mut woken = false;
        for _ in 0..rounds {
            polling!(&mut self.partner, partner => partner.wait(Some(Duration::ZERO)))?;
            let mut taken = 0;
            while let Some(event) = polling!(&mut self.partner, partner => partner.next_event()) {
                taken += 1;
                if Some(event.token) == self.waker_token {
                    woken |= self.signals.drain_waker();
                } else {
                    self.signals.rescan(event.token);
                }
            }
            if taken < self.max_events {
                break;
            }
        }
        self.mode = Mode::Signals;
        Ok(woken.then_some(1))
    }
}

impl Mechanism for Hybrid {
    const DESCRIPTION: &'static Description = &DESCRIPTION;

    fn capabilities(options: &Options) -> Capabilities {
        match options.typed::<HybridOptions>() {
            Ok(options) if options.own.partner != Partner::Epoll => {
                DESCRIPTION.capabilities - Capabilities::EDGE
            }
            _ => DESCRIPTION.capabilities,
        }
    }

    fn open(options: &Options) -> Result<Self, Error> {
        Self::open_with(&options.typed()?)
    }

    fn add(&mut self, fd: BorrowedFd<'_>, interest: Interest) -> Result<Token, Error> {
        let token = polling!(&mut self.partner, partner => partner.add(fd, interest))?;
        if let Err(error) = self.add_to_signals(token, interest) {
            let _ = polling!(&mut self.partner, partner => partner.remove(token));
            return Err(error);
        }
        Ok(token)
    }

    #[inline]
    fn modify(&mut self, token: Token, interest: Interest) -> Result<(), Error> {
        polling!(&mut self.partner, partner => partner.modify(token, interest))?;
        if self.unarmed.contains(token) { Ok(()) } else { self.signals.modify(token, interest) }
    }

    fn remove(&mut self, token: Token) -> Result<(), Error> {
        if self.partner.registrations().interest(token).is_none() {
            return Err(Error::NotAdded(token.fd));
        }
        let disarmed = if self.unarmed.contains(token) {
            self.unarmed.forget(token);
            self.signals.forget(token);
            Ok(())
        } else {
            self.signals.remove(token)
        };
        polling!(&mut self.partner, partner => partner.remove(token)).and(disarmed)
    }

    #[inline]
    fn close(&mut self, token: Token, fd: OwnedFd) -> Result<(), Error> {
        if self.partner.registrations().interest(token).is_some() {
            self.unarmed.forget(token);
            self.signals.forget(token);
        }
        polling!(&mut self.partner, partner => partner.close(token, fd))
    }

    #[inline]
    fn wait(&mut self, timeout: Option<Duration>) -> Result<usize, Error> {
        self.event_budget = self.max_events;
        let started_at = match (timeout, self.mode) {
            (Some(time), _) if !time.is_zero() => Some(Instant::now()),
            _ => None,
        };
        let mut time = timeout;
        // Each iteration but the last switches modes. With `dwell_ms=0` and `high=0` the switches
        // would not end, so the wait returns early.
        for _ in 0..MAX_SWITCHES_PER_WAIT {
            let found = match self.mode {
                Mode::Signals => self.wait_for_signals(time)?,
                Mode::Partner => self.wait_for_partner(time)?,
                Mode::Returning => self.drain_partner()?,
            };
            if let Some(found) = found {
                return Ok(found);
            }
            if let (Some(whole), Some(started_at)) = (timeout, started_at) {
                time = Some(whole.saturating_sub(started_at.elapsed()));
            }
        }
        Ok(0)
    }

    #[inline]
    fn next_event(&mut self) -> Option<Event> {
        if self.event_budget == 0 {
            return None;
        }
        let event = if self.mode == Mode::Signals {
            self.signals.next(self.partner.registrations())
        } else {
            loop {
                let event = polling!(&mut self.partner, partner => partner.next_event());
                match event {
                    // The wait has emptied the waker's pipe.
                    Some(event) if Some(event.token) == self.waker_token => {}
                    Some(event) if self.mode == Mode::Partner => {
                        self.count_event(event.token);
                        break Some(event);
                    }
                    other => break other,
                }
            }
        };
        self.event_budget -= usize::from(event.is_some());
        event
    }

    fn len(&self) -> usize {
        self.partner.registrations().len() - usize::from(self.waker_token.is_some())
    }

    fn statistics(&self) -> Vec<(&'static str, u64)> {
        let on_partner = self.mode == Mode::Partner;
        let present = if on_partner { self.switched_at.elapsed().as_nanos() as u64 } else { 0 };
        let mut figures = vec![
            ("on_partner", u64::from(on_partner)),
            ("stay_ms", (self.dwell * self.factor).as_millis() as u64),
            ("switches_to_partner", self.counters.to_partner),
            ("switches_by_overflow", self.counters.by_overflow),
            ("switches_to_signals", self.counters.to_signals),
            ("returns_postponed", self.counters.returns_postponed),
            ("switch_ns", self.counters.switch_ns),
            ("longest_switch_ns", self.counters.longest_switch_ns),
            ("on_partner_ns", self.counters.partner_ns + present),
            ("disarmed", self.counters.disarmed),
            ("unsupported", self.unarmed.unsupported() as u64),
        ];
        figures.extend(self.signals.statistics());
        figures
    }

    fn waker(&mut self) -> Result<Waker, Error> {
        let (waker, _) = self.signals.waker()?;
        if self.waker_token.is_none() {
            let read = self.signals.waker_pipe().expect("just made");
            let token = polling!(&mut self.partner, partner => partner.add(read, Interest::READ))?;
            self.waker_token = Some(token);
        }
        Ok(waker)
    }

    fn reopen_after_fork(&mut self) -> Result<(), Error> {
        polling!(&mut self.partner, partner => partner.reopen_after_fork())?;
        if let Some(token) = self.waker_token.take() {
            // The waker is removed only now: until the reopening, the set in the kernel was the
            // parent's.
            polling!(&mut self.partner, partner => partner.remove(token))?;
        }
        if self.mode != Mode::Signals {
            self.signals.unmute()?;
            self.mode = Mode::Signals;
            self.switched_at = Instant::now();
        }
        // Arms all registrations anew.
        self.unarmed.clear();
        let had_waker = self.signals.reopen_after_fork(self.partner.registrations());
        for (token, interest) in self.partner.registrations().iter() {
            match self.signals.add(token, interest) {
                Err(Error::CannotWait { .. }) => self.unarmed.mark_unsupported(token),
                armed => armed?,
            }
        }
        if had_waker {
            self.waker()?;
        }
        Ok(())
    }
}
