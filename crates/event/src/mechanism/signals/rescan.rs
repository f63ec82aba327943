//! Descriptors whose state must be read, by one poll(2) for all of them: those just armed, those
//! with a new interest, all of them after an overflow.

use crate::{Event, Interest, Readiness, Token, registration::Registrations};
use pollux_sys::{self as sys, PollFd};
use std::{io, time::Duration};

/// How many entries may be useless before [`Rescan::compact_if_long`] looks at them.
const SLACK: usize = 1024;

/// A list of registrations, each in it once, and what poll(2) last said of them.
#[derive(Debug, Default)]
pub(crate) struct Rescan {
    entries: Vec<PollFd>,
    /// The registration that the entry belongs to.
    tokens: Vec<Token>,
    /// By descriptor number: whether it is in the list.
    listed: Vec<bool>,
    /// From here on, the entries' answers have not been handed out.
    cursor: usize,
    /// How many entries have answers; those after them were listed since.
    polled: usize,
    /// How many answers from `cursor` on say that something is ready.
    ready: usize,
    /// Level-triggering: what was found ready is asked about again at the next wait, and so is who
    /// wants to write and cannot. (The kernel signals that there is room only to who was refused
    /// last: a send that succeeds ends that, and poll(2) begins it.)
    level: bool,
    /// Something was kept for the next wait.
    carried_over: bool,
    /// The wait for which something was kept has begun.
    carried_over_due: bool,
}

impl Rescan {
    /// An empty list; with `keep` for level-triggering.
    pub(crate) fn new(level: bool) -> Self {
        Self { level, ..Self::default() }
    }

    /// Drops the entries of those that are gone, when they are many.
    pub(crate) fn compact_if_long(&mut self, registrations: &Registrations) {
        if self.entries.len() > 2 * registrations.len() + SLACK {
            self.compact(registrations);
        }
    }

    /// Lists `token`, unless it is.
    #[inline]
    pub(crate) fn insert(&mut self, token: Token) {
        let index = token.fd as usize;
        if index >= self.listed.len() {
            self.listed.resize((index + 1).next_multiple_of(1024), false);
        }
        if !self.listed[index] {
            self.listed[index] = true;
            self.entries.push(PollFd { fd: token.fd, events: 0, revents: 0 });
            self.tokens.push(token);
        }
    }

    /// A wait begins: what was kept for it is due.
    #[inline]
    pub(crate) fn begin_wait(&mut self) {
        self.carried_over_due = self.carried_over;
    }

    /// Says that the number belongs to nobody now: its next owner is listed anew.
    #[inline]
    pub(crate) fn forget(&mut self, token: Token) {
        if let Some(listed) = self.listed.get_mut(token.fd as usize) {
            *listed = false;
        }
    }

    /// Whether poll(2) will be asked about `token`'s descriptor, so that a hint adds nothing.
    #[inline]
    pub(crate) fn contains(&self, token: Token) -> bool {
        self.listed.get(token.fd as usize).copied().unwrap_or(false)
    }

    /// Whether there is something to ask.
    #[inline]
    pub(crate) fn is_due(&self) -> bool {
        self.carried_over_due || self.entries.len() > self.polled
    }

    /// How many answers say that something is ready and have not been handed out.
    #[inline]
    pub(crate) fn ready(&self) -> usize {
        self.ready
    }

    /// Asks poll(2) about all that are listed; how many are ready. After an error (EINTR, ENOMEM)
    /// they are still listed.
    pub(crate) fn poll(&mut self, registrations: &Registrations) -> io::Result<usize> {
        self.compact(registrations);
        let ready = sys::ppoll(&mut self.entries, Some(Duration::ZERO))?;
        self.polled = self.entries.len();
        self.ready = ready;
        for (entry, token) in self.entries.iter().zip(&self.tokens) {
            self.listed[token.fd as usize] = false;
            self.carried_over |=
                self.level && (entry.revents != 0 || entry.events & libc::POLLOUT != 0);
        }
        Ok(self.ready)
    }

    /// Drops the entries that are done with, and gives the rest the interest of now. What was not
    /// handed out goes first, so that with more ready than a wait hands out none starves.
    pub(crate) fn compact(&mut self, registrations: &Registrations) {
        let (handed_out, polled) = (self.cursor, self.polled);
        let total = self.entries.len();
        if self.level {
            self.entries.rotate_left(handed_out);
            self.tokens.rotate_left(handed_out);
        }
        let mut left = 0;
        for index in 0..total {
            let former = if self.level { (index + handed_out) % total } else { index };
            let (entry, token) = (self.entries[index], self.tokens[index]);
            let Some(interest) = registrations.interest(token) else { continue };
            if former < polled {
                let done = former < handed_out && !self.level;
                let useful = entry.revents != 0 || self.level && interest.contains(Interest::WRITE);
                // It may have been listed again since.
                if !useful || done || self.listed[token.fd as usize] {
                    continue;
                }
                self.listed[token.fd as usize] = true;
            }
            let events = interest.to_poll_bits() as i16;
            self.entries[left] = PollFd { fd: token.fd, events, revents: 0 };
            self.tokens[left] = token;
            left += 1;
        }
        self.entries.truncate(left);
        self.tokens.truncate(left);
        self.cursor = 0;
        self.polled = 0;
        self.ready = 0;
        self.carried_over = false;
        self.carried_over_due = false;
    }

    /// The next that is ready, of those the last [`Rescan::poll`] asked about.
    #[inline]
    pub(crate) fn next(&mut self, registrations: &Registrations) -> Option<Event> {
        while self.ready > 0 && self.cursor < self.polled {
            let (entry, token) = (self.entries[self.cursor], self.tokens[self.cursor]);
            self.cursor += 1;
            if entry.revents == 0 {
                continue;
            }
            self.ready -= 1;
            if let Some(interest) = registrations.interest(token) {
                let wanted = interest.to_poll_bits() | crate::mechanism::ALWAYS;
                let readiness = Readiness::from_poll_bits(entry.revents as u16 as u32 & wanted);
                if !readiness.is_empty() {
                    return Some(Event { token, readiness });
                }
            }
        }
        None
    }
}
