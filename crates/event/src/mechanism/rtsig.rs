//! `rtsig`: real-time signals tell of descriptors, as phhttpd uses them (provos §2, §4, §6,
//! figs 11 to 14; fcntl(2): F_SETSIG).
//!
//! A signal is a hint: it says what happened when it was sent, and it outlives what it was about.
//!
//! # Nothing is lost
//! - Arming an already readable descriptor sends no signal. What is added or modified goes into a
//!   list that the next wait asks poll(2) about, once for all of them.
//! - When the queue has no room the kernel sends SIGIO. The queue is then flushed, and one poll(2)
//!   over the whole interest set finds what was lost (`overflow=inplace`): signals sent from the
//!   flush on are queued again, those before are seen by the poll. The limit, RLIMIT_SIGPENDING,
//!   counts what all processes of the user have queued, so the overflow may be another's fault.
//!
//! # Nothing is stale
//! A signal names a descriptor's number only, and may have been sent for the number's former
//! owner. Whoever was added since the queue was last seen empty is *suspect*: a signal for it is
//! not believed, poll(2) is asked. When the queue is empty, all signals for former owners are
//! gone, and whatever comes is for the owner of now. So an event is never about a registration
//! that has ended. It may be spurious, as with any mechanism, since the state may have changed
//! after the signal.
//!
//! # `overflow=handoff`
//! phhttpd's own answer to overflow: see [`super::handoff`]. From the first overflow on, a
//! partner thread polls, and there is no way back. poll(2) is level-triggered, so this variant is
//! so throughout: while signals last, what was reported is asked about again at the next wait.

use super::{
    ALWAYS,
    handoff::Handoff,
    recheck::{RETRY, Recheck},
    signal_queue::SignalQueue,
};
use crate::{
    Capabilities, Description, Error, Event, Interest, Mechanism, Options, Readiness, Token, Waker,
    registration::Registrations, sys,
};
use std::{
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd},
    time::{Duration, Instant},
};

const DESCRIPTION: Description = Description {
    name: "rtsig",
    summary: "POSIX real-time signals: one queued per arrival; poll(2) recovers from overflow",
    paper: "provos figs 11-14 (phhttpd)",
    capabilities: Capabilities::EDGE.union(Capabilities::OVERFLOWS).union(Capabilities::ONE_OWNER),
    own_options: &[
        (
            "dequeue",
            &["batch", "one"],
            "how signals are taken: up to 64 in a call through a signalfd (the paper's \
             sigtimedwait4), or one in a call by sigtimedwait, as phhttpd",
        ),
        (
            "overflow",
            &["inplace", "handoff"],
            "when the queue overflows: one poll in the same thread and on with signals, or \
             phhttpd's partner thread that polls from then on",
        ),
        ("signal", &[], "the signal's number (default: the first that is free)"),
    ],
};

/// An interest set of which real-time signals tell.
#[derive(Debug)]
pub struct RtSignals {
    registrations: Registrations,
    queue: SignalQueue,
    recheck: Recheck,
    /// By descriptor number: in which period it was added. A period ends when the queue is seen
    /// empty; who was added in the current one is suspect.
    added_in: Vec<u32>,
    period: u32,
    /// Events straight from signals.
    events: Vec<Event>,
    next: usize,
    max_events: usize,
    /// Events that may still be handed out before the next wait.
    left: usize,
    /// Level-triggered, for the sake of `overflow=handoff`.
    level: bool,
    handoff: Option<Handoff>,
    waker: Option<(Waker, OwnedFd)>,
    counts: Counts,
}

#[derive(Debug, Default)]
struct Counts {
    signals: u64,
    stale: u64,
    rechecked: u64,
    overflows: u64,
    recoveries: u64,
    recovery_ns: u64,
}

/// What a round of taking signals ended with.
enum Round {
    /// There are this many events, or a reason to return with none.
    Return(usize),
    /// Nothing but stale signals: wait for the rest of the time.
    Again,
}

impl RtSignals {
    fn wants_handoff(options: &Options) -> bool {
        options.own.get("overflow").is_some_and(|value| value == "handoff")
    }

    fn arm(&mut self, token: Token) -> Result<(), Error> {
        self.queue.arm(token.fd)?;
        let index = token.fd as usize;
        if index >= self.added_in.len() {
            self.added_in.resize((index + 1).next_multiple_of(1024), 0);
        }
        self.added_in[index] = self.period;
        self.recheck.list_armed(token);
        Ok(())
    }

    /// Takes what is queued, waiting for it if need be, and asks poll(2) about what is uncertain.
    fn round(&mut self, timeout: Option<Duration>) -> Result<Round, Error> {
        let zero = Some(Duration::ZERO);
        let timeout = if self.recheck.is_due() {
            zero
        } else if self.recheck.has_full() {
            Some(timeout.map_or(RETRY, |time| time.min(RETRY)))
        } else {
            timeout
        };
        let waker = self.waker.as_ref().map_or(-1, |(_, read)| read.as_raw_fd());
        let mut woken = false;
        let (registrations, recheck) = (&self.registrations, &mut self.recheck);
        let (added_in, period, level) = (&self.added_in, self.period, self.level);
        let (events, counts) = (&mut self.events, &mut self.counts);
        let taken = self.queue.take(timeout, |fd: RawFd, bits| {
            if fd == waker {
                woken = true;
                return;
            }
            let Some((token, interest)) = registrations.by_fd(fd) else {
                counts.stale += 1;
                return;
            };
            if recheck.holds(token) {
                return;
            }
            // The band of a hang-up always names an error, too: ask what it really is.
            let unclear = bits & (libc::POLLERR | libc::POLLHUP) as u32 != 0;
            if level || unclear || added_in[fd as usize] == period {
                counts.rechecked += u64::from(!level);
                recheck.list(token);
                return;
            }
            let readiness = Readiness::from_poll_bits(bits & (interest.to_poll_bits() | ALWAYS));
            if !readiness.is_empty() {
                events.push(Event { token, readiness });
            }
        });
        let taken = taken.map_err(Error::io("rt_sigtimedwait"))?;
        self.counts.signals += taken.signals as u64;
        if taken.emptied {
            self.period = self.period.wrapping_add(1);
        }
        if taken.overflowed {
            self.counts.overflows += 1;
            woken |= self.drain_waker();
            if self.level {
                self.hand_off()?;
                return Ok(Round::Return(usize::from(woken)));
            }
            self.recover()?;
        } else if woken {
            self.drain_waker();
        }
        let retried = self.recheck.has_full();
        if self.recheck.list_full(&self.registrations) {
            match self.recheck.ask(&self.registrations) {
                Ok(_) => {}
                Err(error) if error.raw_os_error() == Some(libc::EINTR) => {
                    return Ok(Round::Return(0));
                }
                Err(source) => return Err(Error::Io { call: "ppoll", source }),
            }
        }
        let found = self.events.len() + self.recheck.ready() + usize::from(woken);
        // A time that is over, and nothing was taken: return. Stale signals do not end a wait.
        let over = taken.signals == 0 && timeout != zero && !retried;
        if found > 0 || taken.interrupted || over {
            Ok(Round::Return(found))
        } else {
            Ok(Round::Again)
        }
    }

    /// After an overflow: throws away the rest of the queue and lists the whole interest set.
    fn recover(&mut self) -> Result<(), Error> {
        let started_at = Instant::now();
        self.queue.flush()?;
        self.period = self.period.wrapping_add(1);
        // What came out of the queue before is found by the poll again.
        self.events.clear();
        for (token, _) in self.registrations.iter() {
            self.recheck.list(token);
        }
        let asked = self.recheck.ask(&self.registrations);
        if let Err(error) = asked
            && error.raw_os_error() != Some(libc::EINTR)
        {
            return Err(Error::Io { call: "ppoll", source: error });
        }
        self.counts.recoveries += 1;
        self.counts.recovery_ns += started_at.elapsed().as_nanos() as u64;
        Ok(())
    }

    /// After an overflow with `overflow=handoff`: passes everything on to a partner thread.
    fn hand_off(&mut self) -> Result<(), Error> {
        self.queue.mute()?;
        self.events.clear();
        self.recheck = Recheck::new(true);
        let mut partner = Handoff::begin(&self.registrations, self.max_events)?;
        if let Some((_, read)) = &self.waker {
            partner.watch_waker(read.as_raw_fd())?;
        }
        self.handoff = Some(partner);
        Ok(())
    }

    /// Empties the waker's pipe; whether anything was in it.
    fn drain_waker(&self) -> bool {
        let Some((_, read)) = &self.waker else { return false };
        let mut any = false;
        // Bounded by the pipe's own capacity of 64 KiB, but for wakers that write meanwhile:
        // those will have sent a signal again.
        for _ in 0..64 {
            match sys::read(read.as_fd(), &mut [0; 1024]) {
                Ok(taken) if taken > 0 => any = true,
                _ => break,
            }
        }
        any
    }
}

impl Mechanism for RtSignals {
    const DESCRIPTION: &'static Description = &DESCRIPTION;

    fn capabilities(options: &Options) -> Capabilities {
        if Self::wants_handoff(options) {
            DESCRIPTION.capabilities - Capabilities::EDGE
        } else {
            DESCRIPTION.capabilities
        }
    }

    fn open(options: &Options) -> Result<Self, Error> {
        let level = Self::wants_handoff(options);
        let max_events = options.max_events.max(1);
        Ok(Self {
            registrations: Registrations::default(),
            queue: SignalQueue::open(DESCRIPTION.name, options)?,
            recheck: Recheck::new(level),
            added_in: Vec::new(),
            period: 1,
            events: Vec::with_capacity(max_events),
            next: 0,
            max_events,
            left: 0,
            level,
            handoff: None,
            waker: None,
            counts: Counts::default(),
        })
    }

    fn add(&mut self, fd: BorrowedFd<'_>, interest: Interest) -> Result<Token, Error> {
        let token = self.registrations.insert(fd.as_raw_fd(), interest)?;
        let added = match &mut self.handoff {
            Some(partner) => partner.watch(token, interest),
            None => self.arm(token),
        };
        if let Err(error) = added {
            let _ = self.registrations.remove(token);
            return Err(error);
        }
        Ok(token)
    }

    /// No system call: the descriptor is armed for everything, and interest is applied to what
    /// the signals say.
    #[inline]
    fn modify(&mut self, token: Token, interest: Interest) -> Result<(), Error> {
        self.registrations.replace(token, interest)?;
        match &mut self.handoff {
            Some(partner) => partner.watch(token, interest),
            None => {
                self.recheck.list(token);
                Ok(())
            }
        }
    }

    fn remove(&mut self, token: Token) -> Result<(), Error> {
        self.registrations.remove(token)?;
        self.recheck.forget(token);
        match &mut self.handoff {
            Some(partner) => partner.forget(token),
            None => self.queue.disarm(token.fd),
        }
    }

    /// One system call: close(2) ends the signals, too.
    #[inline]
    fn close(&mut self, token: Token, fd: OwnedFd) -> Result<(), Error> {
        let known = self.registrations.remove(token);
        if known.is_ok() {
            self.recheck.forget(token);
        }
        let told = match &mut self.handoff {
            Some(partner) => partner.forget(token),
            None => Ok(()),
        };
        sys::close(fd);
        known.map(drop).and(told)
    }

    fn wait(&mut self, timeout: Option<Duration>) -> Result<usize, Error> {
        self.left = self.max_events;
        if let Some(partner) = &mut self.handoff {
            let found = partner.wait(timeout)?;
            if partner.woken() {
                self.drain_waker();
            }
            return Ok(found);
        }
        if !self.level {
            let undrained = self.events.len() - self.next + self.recheck.ready();
            if undrained > 0 {
                return Ok(undrained);
            }
        }
        self.events.clear();
        self.next = 0;
        let deadline = match timeout {
            Some(time) if !time.is_zero() => Instant::now().checked_add(time),
            _ => None,
        };
        let mut time = timeout;
        loop {
            if let Round::Return(found) = self.round(time)? {
                return Ok(found);
            }
            match deadline {
                Some(deadline) => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return Ok(0);
                    }
                    time = Some(left);
                }
                None if timeout == Some(Duration::ZERO) => return Ok(0),
                None => {}
            }
        }
    }

    #[inline]
    fn next_event(&mut self) -> Option<Event> {
        if self.left == 0 {
            return None;
        }
        let event = match &mut self.handoff {
            Some(partner) => partner.next(&self.registrations),
            None => self.next_of_signals(),
        };
        self.left -= usize::from(event.is_some());
        event
    }

    fn len(&self) -> usize {
        self.registrations.len()
    }

    fn statistics(&self) -> Vec<(&'static str, u64)> {
        let Counts { signals, stale, rechecked, overflows, recoveries, recovery_ns } = self.counts;
        let mut figures = vec![
            ("signals", signals),
            ("signals_stale", stale),
            ("signals_rechecked", rechecked),
            ("overflows", overflows),
            ("recoveries", recoveries),
            ("recovery_ns", recovery_ns),
        ];
        if let Some(partner) = &self.handoff {
            figures.extend(partner.statistics());
        }
        figures
    }

    fn waker(&mut self) -> Result<Waker, Error> {
        if let Some((waker, _)) = &self.waker {
            return Ok(waker.clone());
        }
        let (waker, read) = Waker::over_pipe()?;
        match &mut self.handoff {
            Some(partner) => partner.watch_waker(read.as_raw_fd())?,
            None => self.queue.arm(read.as_raw_fd())?,
        }
        self.waker = Some((waker.clone(), read));
        Ok(waker)
    }

    /// The child takes the descriptors over: they are the parent's no longer (fcntl(2): the owner
    /// belongs to the open file description, which both share).
    fn reopen_after_fork(&mut self) -> Result<(), Error> {
        self.queue.reopen_after_fork();
        if let Some(partner) = self.handoff.take() {
            partner.abandon();
            self.queue.unmute()?;
        }
        self.recheck = Recheck::new(self.level);
        self.events.clear();
        self.next = 0;
        let tokens: Vec<_> = self.registrations.iter().map(|(token, _)| token).collect();
        for token in tokens {
            self.arm(token)?;
        }
        if self.waker.take().is_some() {
            self.waker()?;
        }
        Ok(())
    }
}

impl RtSignals {
    #[inline]
    fn next_of_signals(&mut self) -> Option<Event> {
        while let Some(&event) = self.events.get(self.next) {
            self.next += 1;
            if self.registrations.interest(event.token).is_some() {
                return Some(event);
            }
        }
        self.recheck.next(&self.registrations)
    }
}
