//! `rtsig`: real-time signals report readiness, as phhttpd uses them (provos §2, §4, §6, figs 11 to
//! 14; fcntl(2): F_SETSIG).
//!
//! A signal is a hint. It reports a change at the time when it was sent, and it may outlive the
//! registration that it is about.
//!
//! # No event is lost
//! - Arming a descriptor that is readable already sends no signal. So descriptors that are added or
//!   modified go into a list, and the next wait polls them all with one poll(2).
//! - When the queue is full the kernel sends SIGIO. The queue is then flushed, and one poll(2) of the
//!   whole interest set finds the lost events (`overflow=inplace`). Signals sent after the flush are
//!   queued again; the poll finds the events before it. The limit, RLIMIT_SIGPENDING, counts the
//!   signals queued by all processes of the user, so another process may have caused the overflow.
//! - For all sockets but TCP the signal that reports room to write can be lost. An epoll instance
//!   watches those sockets (`writability.rs`).
//!
//! # No event is stale
//! A signal contains only a descriptor number, and may have been sent for an earlier registration
//! of that number. So a signal for a descriptor that was added since the queue was last found empty
//! is not trusted: poll(2) checks it. Once the queue was empty, no signal for an earlier registration
//! remains. An event therefore never belongs to a registration that has ended. It may be spurious, as
//! with any mechanism, because the state may have changed after the signal.
//!
//! # `overflow=handoff`
//! phhttpd's own answer to overflow: see the module `handoff`. From the first overflow on, a partner
//! thread polls, and signals are never used again. poll(2) is level-triggered, so this
//! variant is level-triggered throughout: before the overflow, each descriptor that was reported is
//! polled again at the next wait. Files that are always ready are refused after the overflow as before;
//! eventfds and other files that send no signals are accepted after it.

use super::{
    handoff::Handoff,
    queue::{self, Dequeue},
    signalled_set::SignalledSet,
};
use crate::{
    Capabilities, Description, Error, Event, Interest, Mechanism, Options, Token, Waker,
    options::own::{choice, own_options},
    registration::Registrations,
};
use pollux_sys as sys;
use std::{
    os::fd::{AsRawFd, BorrowedFd, OwnedFd},
    time::Duration,
};

const DESCRIPTION: Description = Description {
    name: "rtsig",
    summary: "POSIX real-time signals: one queued per arrival; poll(2) recovers from overflow",
    paper: "provos figs 11-14 (phhttpd)",
    capabilities: Capabilities::EDGE.union(Capabilities::OVERFLOWS).union(Capabilities::ONE_OWNER),
    own_options: &[
        (
            "dequeue",
            Dequeue::NAMES,
            "how signals are taken: up to 64 in a call through a signalfd (the paper's \
             sigtimedwait4), or one in a call by sigtimedwait, as phhttpd",
        ),
        (
            "overflow",
            Overflow::NAMES,
            "when the queue overflows: one poll in the same thread and on with signals, or \
             phhttpd's partner thread that polls from then on",
        ),
        ("signal", &[], "the signal's number (default: the first free one)"),
    ],
};

choice! {
    /// How an overflow of the queue is handled.
    Overflow {
        /// One poll(2) in the same thread; then signals are used again.
        InPlace = "inplace",
        /// phhttpd's partner thread polls from then on.
        HandOff = "handoff",
    }
}

own_options! {
    /// The options of `rtsig`.
    RtSignalsOptions of "rtsig" {
        /// How signals are taken.
        dequeue by with_dequeue as "dequeue": Dequeue = Dequeue::default();
        /// How an overflow of the queue is handled.
        overflow by with_overflow as "overflow": Overflow = Overflow::default();
        /// The signal's number; `None` takes the first free one.
        signal by with_signal as "signal": Option<i32> = None;
    }
}

/// An interest set whose readiness is reported by real-time signals.
#[derive(Debug)]
pub struct RtSignals {
    registrations: Registrations,
    signals: SignalledSet,
    max_events: usize,
    /// Events that may still be handed out before the next wait.
    event_budget: usize,
    /// `overflow=handoff`, which makes the set level-triggered.
    uses_handoff: bool,
    handoff: Option<Handoff>,
}

impl RtSignals {
    /// As [`Mechanism::open`], with options that have types.
    ///
    /// # Errors
    /// As there.
    pub fn open_with(options: &Options<RtSignalsOptions>) -> Result<Self, Error> {
        let RtSignalsOptions { dequeue, overflow, signal } = options.own;
        let uses_handoff = overflow == Overflow::HandOff;
        let setup = queue::Setup { signal, dequeue, max_events: options.event_limit() };
        Ok(Self {
            registrations: Registrations::default(),
            signals: SignalledSet::open(DESCRIPTION.name, setup, uses_handoff)?,
            max_events: options.event_limit(),
            event_budget: 0,
            uses_handoff,
            handoff: None,
        })
    }

    /// After an overflow with `overflow=handoff`: passes everything to a partner thread.
    ///
    /// The signals are muted last, when nothing can fail any more. If no thread or socket is
    /// available, signals stay in use and the lost events are found in place; the next overflow
    /// tries again.
    fn hand_off(&mut self) -> Result<(), Error> {
        match self.start_partner() {
            Ok(partner) => {
                self.signals.mute(&self.registrations)?;
                self.handoff = Some(partner);
                Ok(())
            }
            Err(error) => {
                self.signals.recover(&self.registrations)?;
                Err(error)
            }
        }
    }

    fn start_partner(&self) -> Result<Handoff, Error> {
        let mut partner = Handoff::begin(&self.registrations, self.max_events)?;
        if let Some(read) = self.signals.waker_pipe() {
            partner.watch_waker(read.as_raw_fd())?;
        }
        Ok(partner)
    }
}

impl Mechanism for RtSignals {
    const DESCRIPTION: &'static Description = &DESCRIPTION;

    fn capabilities(options: &Options) -> Capabilities {
        match options.typed::<RtSignalsOptions>() {
            Ok(options) if options.own.overflow == Overflow::HandOff => {
                DESCRIPTION.capabilities - Capabilities::EDGE
            }
            _ => DESCRIPTION.capabilities,
        }
    }

    fn open(options: &Options) -> Result<Self, Error> {
        Self::open_with(&options.typed()?)
    }

    fn add(&mut self, fd: BorrowedFd<'_>, interest: Interest) -> Result<Token, Error> {
        let token = self.registrations.insert(fd.as_raw_fd(), interest)?;
        let added = match &mut self.handoff {
            // The partner's poll(2) would accept a file that is always ready.
            Some(_) if sys::lacks_wait_queue(token.fd) => {
                Err(Error::CannotWait { fd: token.fd, reason: queue::NO_FILES })
            }
            Some(partner) => partner.watch(token, interest),
            None => self.signals.add(token, interest),
        };
        if let Err(error) = added {
            let _ = self.registrations.remove(token);
            return Err(error);
        }
        Ok(token)
    }

    #[inline]
    fn modify(&mut self, token: Token, interest: Interest) -> Result<(), Error> {
        self.registrations.replace(token, interest)?;
        match &mut self.handoff {
            Some(partner) => partner.watch(token, interest),
            None => self.signals.modify(token, interest),
        }
    }

    fn remove(&mut self, token: Token) -> Result<(), Error> {
        self.registrations.remove(token)?;
        match &mut self.handoff {
            Some(partner) => partner.forget(token),
            None => self.signals.remove(token),
        }
    }

    /// One system call: close(2) also ends the signals.
    #[inline]
    fn close(&mut self, token: Token, fd: OwnedFd) -> Result<(), Error> {
        let known = self.registrations.remove(token);
        let forgotten = match &mut self.handoff {
            Some(partner) if known.is_ok() => partner.forget(token),
            None if known.is_ok() => {
                self.signals.forget(token);
                Ok(())
            }
            _ => Ok(()),
        };
        sys::close(fd);
        known.map(drop).and(forgotten)
    }

    #[inline]
    fn wait(&mut self, timeout: Option<Duration>) -> Result<usize, Error> {
        self.event_budget = self.max_events;
        if let Some(partner) = &mut self.handoff {
            let found = partner.wait(timeout)?;
            if partner.woken() {
                self.signals.drain_waker();
            }
            return Ok(found);
        }
        let undrained = self.signals.undrained();
        if undrained > 0 {
            return Ok(undrained);
        }
        let waited = self.signals.wait(&self.registrations, timeout)?;
        if !waited.overflowed {
            return Ok(waited.found);
        }
        if self.uses_handoff {
            self.hand_off()?;
            return Ok(waited.found);
        }
        // If nothing is ready after all, the caller waits again.
        Ok(self.signals.recover(&self.registrations)? + waited.found)
    }

    #[inline]
    fn next_event(&mut self) -> Option<Event> {
        if self.event_budget == 0 {
            return None;
        }
        let event = match &mut self.handoff {
            Some(partner) => partner.next(&self.registrations),
            None => self.signals.next(&self.registrations),
        };
        self.event_budget -= usize::from(event.is_some());
        event
    }

    fn len(&self) -> usize {
        self.registrations.len()
    }

    fn statistics(&self) -> Vec<(&'static str, u64)> {
        let mut figures = self.signals.statistics();
        match &self.handoff {
            Some(partner) => figures.extend(partner.statistics()),
            // Present from the start with 0, so that a reader can distinguish "not yet" from "not
            // counted".
            None if self.uses_handoff => figures.extend(Handoff::STATISTICS.map(|name| (name, 0))),
            None => {}
        }
        figures
    }

    fn waker(&mut self) -> Result<Waker, Error> {
        let is_new = self.signals.waker_pipe().is_none();
        let (waker, read) = self.signals.waker()?;
        if let (Some(partner), true) = (&mut self.handoff, is_new) {
            partner.watch_waker(read)?;
        }
        Ok(waker)
    }

    /// The child takes over the descriptors, and the parent no longer gets their signals (fcntl(2):
    /// the owner belongs to the open file description, which both share).
    fn reopen_after_fork(&mut self) -> Result<(), Error> {
        if self.handoff.take().is_some() {
            self.signals.unmute()?;
        }
        let had_waker = self.signals.reopen_after_fork(&self.registrations);
        for (token, interest) in self.registrations.iter() {
            self.signals.add(token, interest)?;
        }
        if had_waker {
            self.waker()?;
        }
        Ok(())
    }
}
