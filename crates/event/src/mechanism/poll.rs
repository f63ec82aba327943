//! `poll`: the whole interest set is passed to the kernel at every wait. poll(2); the baseline of the
//! /dev/poll paper (provos §3, figs 4, 6, 8, 10) and of gammo (figs 1, 5).
//!
//! With `hints=on` the call is that of Provos' mail of 1999, DP_HPOLL of `kmod/devpoll`: the same array
//! and the same results, but it queries a driver only if it posted a hint since the last call.

use super::{devpoll, in_memory::interest_in_memory, timeout::timeout_ms};
use crate::{
    Capabilities, Description, Error, Event, Interest, Mechanism, Options, Readiness, Token, Waker,
    options::own::own_options, registration::Registrations,
};
use pollux_sys::{self as sys, PollFd};
use std::{
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd},
    time::Duration,
};

const DESCRIPTION: Description = Description {
    name: "poll",
    summary: "poll(2): the whole interest set is copied and scanned at every wait",
    paper: "provos figs 4, 6, 8, 10, gammo figs 1 and 5; hints=on: Provos' mail of 1999",
    capabilities: Capabilities::SCANS.union(Capabilities::TAKES_FILES),
    own_options: &[(
        "hints",
        &["off", "on"],
        "whether to use the call of /dev/poll that queries only drivers with a hint",
    )],
};

own_options! {
    /// The options of `poll`.
    PollOptions of "poll" {
        /// Whether to use /dev/poll's call, which queries only drivers that posted a hint.
        hints by with_hints as "hints": bool = false;
    }
}

/// Marks a descriptor number that has no entry.
const NO_ENTRY: u32 = u32::MAX;

/// The interest set as poll(2) takes it: dense, so that a wait copies only registered entries.
/// `positions` has the index of each descriptor's entry.
#[derive(Debug)]
pub struct Poll {
    registrations: Registrations,
    entries: Vec<PollFd>,
    positions: Vec<u32>,
    max_events: usize,
    /// The entry at which the next scan starts. A scan continues where the last one stopped, so that no
    /// descriptor starves when more than `max_events` are ready.
    cursor: usize,
    /// Entries that have not been scanned since the last wait.
    unscanned: usize,
    /// Events that may still be handed out before the next wait.
    event_budget: usize,
    waker: Option<Waker>,
    /// The /dev/poll that keeps the hints, with `hints=on`.
    hints: Option<OwnedFd>,
}

impl Poll {
    /// The registrations; for `hybrid`, which has no table of its own.
    #[inline]
    pub(super) fn registrations(&self) -> &Registrations {
        &self.registrations
    }

    /// As [`Mechanism::open`], with options that have types.
    ///
    /// # Errors
    /// As there.
    pub fn open_with(options: &Options<PollOptions>) -> Result<Self, Error> {
        let hints =
            options.own.hints.then(|| devpoll::open_set(DESCRIPTION.name, 0)).transpose()?;
        Ok(Self {
            hints,
            registrations: Registrations::default(),
            entries: Vec::new(),
            positions: Vec::new(),
            max_events: options.event_limit(),
            cursor: 0,
            unscanned: 0,
            event_budget: 0,
            waker: None,
        })
    }

    /// The system call; returns how many entries are ready.
    #[inline]
    fn poll(&mut self, timeout: Option<Duration>) -> Result<usize, Error> {
        let (called, call) = match &self.hints {
            None => (sys::ppoll(&mut self.entries, timeout), "ppoll"),
            Some(device) => {
                let timeout_ms = timeout_ms(timeout);
                let device = device.as_fd();
                (sys::devpoll_hinting_poll(device, &mut self.entries, timeout_ms), "ioctl DP_HPOLL")
            }
        };
        match called {
            Err(error) if error.raw_os_error() == Some(libc::EINTR) => Ok(0),
            called => called.map_err(Error::io(call)),
        }
    }

    fn check_descriptor(&self, _: RawFd) -> Result<(), Error> {
        Ok(())
    }

    #[inline]
    fn set(&mut self, fd: RawFd, interest: Interest) {
        let events = interest.to_poll_bits() as i16;
        let index = fd as usize;
        if index >= self.positions.len() {
            self.positions.resize((index + 1).next_multiple_of(1024), NO_ENTRY);
        }
        match self.positions[index] {
            NO_ENTRY => {
                self.positions[index] = self.entries.len() as u32;
                self.entries.push(PollFd { fd, events, revents: 0 });
            }
            position => self.entries[position as usize].events = events,
        }
    }

    /// Fills the gap of `fd` with the last entry. If that moved an entry from the unscanned part into
    /// the scanned part, its event would be delayed; so an entry of the scanned part fills the gap
    /// first.
    fn delete(&mut self, fd: RawFd) {
        let mut hole = self.positions[fd as usize] as usize;
        if hole < self.cursor && self.cursor < self.entries.len() {
            self.cursor -= 1;
            self.unscanned += 1;
            self.entries[hole] = self.entries[self.cursor];
            self.positions[self.entries[hole].fd as usize] = hole as u32;
            hole = self.cursor;
        }
        self.entries.swap_remove(hole);
        if let Some(moved) = self.entries.get(hole) {
            self.positions[moved.fd as usize] = hole as u32;
        }
        self.positions[fd as usize] = NO_ENTRY;
    }

    /// Drains the waker if it is reported. The wait does this: a wake-up that follows is for the next
    /// wait, even if the events of this one have not been taken yet.
    #[inline]
    fn take_wake_up(&mut self) {
        let Some(waker) = &self.waker else { return };
        let position = self.positions[waker.as_fd().as_raw_fd() as usize] as usize;
        if std::mem::take(&mut self.entries[position].revents) != 0 {
            waker.drain();
        }
    }

    /// Whether the last wait reported `fd`, which is in the set, and its result has not been taken.
    #[inline]
    pub(super) fn is_reported(&self, fd: RawFd) -> bool {
        self.entries[self.positions[fd as usize] as usize].revents != 0
    }

    /// The next ready entry: its descriptor and its result, which is cleared.
    #[inline]
    fn next_result(&mut self) -> Option<(RawFd, u32)> {
        while self.event_budget > 0 && self.unscanned > 0 && !self.entries.is_empty() {
            if self.cursor >= self.entries.len() {
                self.cursor = 0;
            }
            let end = (self.cursor + self.unscanned).min(self.entries.len());
            let scan = &mut self.entries[self.cursor..end];
            let Some(offset) = scan.iter().position(|entry| entry.revents != 0) else {
                self.unscanned -= scan.len();
                self.cursor = end;
                continue;
            };
            let entry = &mut scan[offset];
            let result = (entry.fd, u32::from(std::mem::take(&mut entry.revents) as u16));
            self.cursor += offset + 1;
            self.unscanned -= offset + 1;
            self.event_budget -= 1;
            return Some(result);
        }
        None
    }
}

impl Mechanism for Poll {
    const DESCRIPTION: &'static Description = &DESCRIPTION;

    fn open(options: &Options) -> Result<Self, Error> {
        Self::open_with(&options.typed()?)
    }

    interest_in_memory!();

    #[inline]
    fn wait(&mut self, timeout: Option<Duration>) -> Result<usize, Error> {
        self.event_budget = 0;
        let ready = self.poll(timeout)?;
        self.event_budget = ready.min(self.max_events);
        if ready > 0 {
            self.unscanned = self.entries.len();
            self.take_wake_up();
        }
        Ok(self.event_budget)
    }

    #[inline]
    fn next_event(&mut self) -> Option<Event> {
        while let Some((fd, bits)) = self.next_result() {
            // Only the waker's entry has no registration, and the wait has taken its result.
            if let Some((token, _)) = self.registrations.by_fd(fd) {
                return Some(Event { token, readiness: Readiness::from_poll_bits(bits) });
            }
        }
        None
    }

    fn len(&self) -> usize {
        self.registrations.len()
    }

    /// With `hints=on`, the module's figures.
    fn statistics(&self) -> Vec<(&'static str, u64)> {
        let device = self.hints.as_ref();
        let counters = device.and_then(|device| sys::devpoll_statistics(device.as_fd()).ok());
        counters.map_or_else(Vec::new, |counters| {
            vec![
                ("driver_polls", counters.driver_polls),
                ("hook_polls", counters.hook_polls),
                ("hints", counters.hints),
                ("cached", counters.cached),
                ("skipped", counters.skipped),
            ]
        })
    }

    fn waker(&mut self) -> Result<Waker, Error> {
        if let Some(waker) = &self.waker {
            return Ok(waker.clone());
        }
        let waker = Waker::new()?;
        self.set(waker.as_fd().as_raw_fd(), Interest::READ);
        self.waker = Some(waker.clone());
        Ok(waker)
    }

    fn reopen_after_fork(&mut self) -> Result<(), Error> {
        // The set is in this process's memory. The parent shares the eventfd and owns the hints.
        self.event_budget = 0;
        if self.hints.is_some() {
            self.hints = Some(devpoll::open_set(DESCRIPTION.name, 0)?);
        }
        if let Some(parent_waker) = self.waker.take() {
            self.delete(parent_waker.as_fd().as_raw_fd());
            self.waker()?;
        }
        Ok(())
    }
}
