//! `hybrid`: signals while it is quiet, a polling mechanism under load, and back. The server that
//! provos §4 imagines and §6 asks for, with the way back that phhttpd never had.
//!
//! # Both sets at once
//! Every descriptor is armed for signals and in the partner's interest set ("maintain its pollfd
//! array, or corresponding kernel state, concurrently", §6). A switch copies nothing: it changes a
//! signal mask, and which side is waited for. Only what is added while the partner waits is armed
//! later, when it is quiet, but before the switch: under load most is closed by then. And what
//! reports often while the partner waits, such as a listener, is disarmed until then, so that the
//! kernel has no signals to throw away for it.
//!
//! What sends no signals (eventfds, timerfds, epoll sets) the partner alone tells of: as long as
//! there is one, the hybrid stays with its partner. Regular files are refused.
//!
//! # To the partner
//! When the queue overflows, or when `high` signals were taken without the queue having been seen
//! empty: the server is behind. The signals are unblocked in this thread, which, as they are
//! ignored, throws away what is queued and lets the kernel drop what is sent from then on: senders
//! pay nearly nothing for a signal that nobody wants. Nothing is lost: whatever happened is in the
//! partner's set, which reports all that is still ready.
//!
//! # Back to signals
//! When, for `dwell_ms`, no wait found more than `low` events. The signals are blocked, so that
//! they queue, and *after that* the partner is emptied once more: what happened before is found
//! by it, what happens later has a signal, and what happens between has both (a spurious event).
//! When load returns soon after, the next stay is twice as long, up to `MAX_DWELL_FACTOR` times,
//! so that a load at the border costs few switches.
//!
//! # Semantics
//! With `partner=epoll`, which is used edge-triggered, those of an edge. poll(2) and /dev/poll are
//! level-triggered, and with them the whole is: while signals tell, what was reported is asked
//! about again at the next wait.

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
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    time::{Duration, Instant},
};

const DESCRIPTION: Description = Description {
    name: "hybrid",
    summary: "real-time signals while it is quiet, epoll (or another partner) under load, and back",
    paper: "provos §4 and §6 (imagined there)",
    capabilities: Capabilities::EDGE.union(Capabilities::OVERFLOWS).union(Capabilities::ONE_OWNER),
    own_options: &[
        ("partner", Partner::NAMES, "what waits under load"),
        (
            "high",
            &[],
            "signals taken without the queue having been seen empty, at which the partner takes \
             over (default 256)",
        ),
        ("low", &[], "events in one wait for the partner, up to which it is quiet (default 16)"),
        (
            "dwell_ms",
            &[],
            "milliseconds that it must be quiet before signals take over again (default 100)",
        ),
        ("signal", &[], "the signal's number (default: the first that is free)"),
    ],
};

const NO_FILES: &str = "regular files are always ready and send no signals; read and write them \
                        without waiting";

/// Default of `high`: four full reads of the signalfd.
const DEFAULT_HIGH: u64 = 256;

/// Default of `low`: a quarter of what one read of the signalfd takes.
const DEFAULT_LOW: u64 = 16;

/// Default of `dwell_ms`: with [`MAX_DWELL_FACTOR`], it is back on signals within 0.8 s.
const DEFAULT_DWELL: Duration = Duration::from_millis(100);

/// A year is as good as for ever, and can be multiplied.
const MAX_DWELL: Duration = Duration::from_millis(1 << 35);

/// How much longer than `dwell_ms` a stay may have to be.
const MAX_DWELL_FACTOR: u32 = 8;

/// Who stays on signals this many times `dwell_ms` has come to stay.
const STABLE_FACTOR: u32 = 10;

/// How many new_registrations are armed between two looks at what is ready.
const ARM_BATCH: usize = 512;

/// The most changes of side within one wait.
const MAX_SWITCHES_PER_WAIT: usize = 6;

own_options! {
    /// The options of `hybrid`.
    HybridOptions of "hybrid" {
        /// Who waits under load.
        partner by with_partner as "partner": Partner = Partner::default();
        /// Signals taken without the queue having been seen empty, at which the partner takes over.
        high by with_high as "high": u64 = DEFAULT_HIGH;
        /// Events in one wait for the partner, up to which it is quiet.
        low by with_low as "low": u64 = DEFAULT_LOW;
        /// How long it must be quiet before signals take over again; in whole milliseconds, and a year
        /// at most.
        dwell by with_dwell as "dwell_ms": Duration = DEFAULT_DWELL;
        /// The signal's number; `None` takes the first that is free.
        signal by with_signal as "signal": Option<i32> = None;
    }
}

/// Who is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Signals,
    Partner,
    /// Signals queue again; the partner has not been emptied yet.
    Returning,
}

/// Two interest sets with one content.
#[derive(Debug)]
pub struct Hybrid {
    signals: SignalledSet,
    /// Registered and in the partner's set, but not armed for signals: none but while the partner
    /// waits.
    unarmed: NewRegistrations,
    /// By descriptor number: its events in this stay with the partner.
    rate: EventRate,
    partner: PollingMechanism,
    /// The waker's pipe in the partner's set.
    waker_token: Option<Token>,
    mode: Mode,
    level: bool,
    max_events: usize,
    /// Events that may still be handed out before the next wait.
    event_budget: usize,
    high: u64,
    low: u64,
    dwell: Duration,
    /// How often `dwell` the present stay with the partner must be quiet: hysteresis.
    factor: u32,
    /// Since which wait for the partner it has been quiet.
    quiet_since: Option<Instant>,
    /// When the present side was taken.
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
            max_events: options.max_events,
        };
        let now = Instant::now();
        Ok(Self {
            signals: SignalledSet::open(DESCRIPTION.name, queue, level)?,
            unarmed: NewRegistrations::default(),
            rate: EventRate::default(),
            partner: PollingMechanism::open(own.partner, options.max_events)?,
            waker_token: None,
            mode: Mode::Signals,
            level,
            max_events: options.max_events.max(1),
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

    /// Signals no longer; the partner has everything.
    fn switch_to_partner(&mut self, by_overflow: bool) -> Result<(), Error> {
        let started_at = Instant::now();
        self.signals.mute(self.partner.registrations())?;
        // A relapse: signals could not cope, so be slower to trust them again.
        let relapsed = started_at - self.switched_at < self.dwell * STABLE_FACTOR;
        let first = self.counters.to_partner == 0;
        self.factor = if relapsed && !first { (self.factor * 2).min(MAX_DWELL_FACTOR) } else { 1 };
        self.counters.to_partner += 1;
        self.counters.by_overflow += u64::from(by_overflow);
        self.rate.begin();
        self.enter_mode(Mode::Partner, started_at);
        Ok(())
    }

    /// Signals queue from now on, and the partner is emptied after that.
    fn begin_return(&mut self) -> Result<(), Error> {
        let started_at = Instant::now();
        self.signals.unmute()?;
        self.counters.to_signals += 1;
        self.counters.partner_ns += (started_at - self.switched_at).as_nanos() as u64;
        self.enter_mode(Mode::Returning, started_at);
        Ok(())
    }

    /// Adds to the signals' side what the partner has under `token`.
    fn add_to_signals(&mut self, token: Token, interest: Interest) -> Result<(), Error> {
        // poll(2) and /dev/poll accept regular files. With epoll as the partner the check would be
        // a system call for nothing: epoll has refused them.
        if self.level && sys::is_file(token.fd) {
            return Err(Error::CannotWait { fd: token.fd, reason: NO_FILES });
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

    /// Arms some new_registrations; whether that was the last of them.
    fn arm_batch(&mut self) -> Result<bool, Error> {
        for _ in 0..ARM_BATCH {
            let Some((token, interest)) = self.unarmed.take(self.partner.registrations()) else {
                return Ok(true);
            };
            // What has happened until now, the partner says.
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

    /// The partner has reported `token`: where that is often, it is disarmed until it is quiet.
    #[inline]
    fn count_event(&mut self, token: Token) {
        if self.rate.is_frequent(token.fd) && !self.unarmed.contains(token) {
            self.disarm_temporarily(token);
        }
    }

    #[cold]
    fn disarm_temporarily(&mut self, token: Token) {
        // Else it stays armed, which costs time and nothing else.
        if self.partner.registrations().interest(token).is_some()
            && self.signals.disarm(token).is_ok()
        {
            self.unarmed.add(token, self.partner.registrations());
            self.counters.disarmed += 1;
        }
    }

    /// It has been quiet for long enough: arms who is not armed yet, and begins the return. How
    /// many events there are, if some come first.
    fn try_to_return(&mut self) -> Result<Option<usize>, Error> {
        // Each turn takes some from the list, and nothing is added meanwhile.
        loop {
            match self.arm_batch() {
                Ok(true) if self.unarmed.unsupported() > 0 => {
                    self.quiet_since = None;
                    return Ok(Some(0));
                }
                Ok(true) => break,
                Ok(false) => {}
                // No memory for it now: the partner goes on, as if it were not quiet.
                Err(_) => {
                    self.counters.returns_postponed += 1;
                    self.quiet_since = None;
                    return Ok(Some(0));
                }
            }
            let found = polling!(&mut self.partner, partner => partner.wait(Some(Duration::ZERO)))?;
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
        // The partner says again what the signals have said, but not that the waker was used.
        Ok((waited.found > 0).then_some(waited.found))
    }

    /// Waits for the partner, not beyond the end of its stay; `None` when that has come.
    fn wait_for_partner(&mut self, timeout: Option<Duration>) -> Result<Option<usize>, Error> {
        if self.unarmed.unsupported() > 0 {
            self.quiet_since = None;
            return polling!(&mut self.partner, partner => partner.wait(timeout)).map(Some);
        }
        let stay = self.dwell * self.factor;
        let started_at = Instant::now();
        let quiet_for = self.quiet_since.map(|since| started_at - since);
        if quiet_for.is_some_and(|time| time >= stay) {
            return self.try_to_return();
        }
        let left = stay - quiet_for.unwrap_or_default();
        let time = if timeout.is_none_or(|time| left < time) { Some(left) } else { timeout };
        let found = polling!(&mut self.partner, partner => partner.wait(time))?;
        // Counted from the wait, so that the handling of a large batch does not pass for quiet.
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
        // EINTR, or the caller's own time is over.
        Ok(Some(0))
    }

    /// Empties the partner after signals have begun to queue. `None` when that is done.
    fn drain_partner(&mut self) -> Result<Option<usize>, Error> {
        if !self.level {
            let found = polling!(&mut self.partner, partner => partner.wait(Some(Duration::ZERO)))?;
            if found > 0 {
                return Ok(Some(found));
            }
            self.mode = Mode::Signals;
            return Ok(None);
        }
        // What is ready now is asked about at every wait until it is not.
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
        // Each turn but the last changes the side. With a dwell of nothing and a high mark of
        // nothing it could go round for ever: then return early.
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
                    Some(event) if Some(event.token) == self.waker_token => {
                        self.signals.drain_waker();
                    }
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
            let read = self.signals.waker_pipe().expect("just made").as_fd();
            let token = polling!(&mut self.partner, partner => partner.add(read, Interest::READ))?;
            self.waker_token = Some(token);
        }
        Ok(waker)
    }

    fn reopen_after_fork(&mut self) -> Result<(), Error> {
        polling!(&mut self.partner, partner => partner.reopen_after_fork())?;
        if let Some(token) = self.waker_token.take() {
            // Not before: until then the set in the kernel was the parent's.
            polling!(&mut self.partner, partner => partner.remove(token))?;
        }
        if self.mode != Mode::Signals {
            self.signals.unmute()?;
            self.mode = Mode::Signals;
            self.switched_at = Instant::now();
        }
        // All there are, anew.
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
