//! Descriptors whose readiness must be read with one poll(2) for all of them: descriptors just
//! armed, descriptors with a new interest, and every descriptor after an overflow.

use crate::{Event, Interest, Readiness, Token, registration::Registrations};
use pollux_sys::{self as sys, PollFd};
use std::{io, time::Duration};

/// The number of stale entries that may accumulate before [`Rescan::compact_if_long`] removes them.
const SLACK: usize = 1024;

/// A list of registrations without duplicates, and the result of the last poll(2) for each.
#[derive(Debug, Default)]
pub(crate) struct Rescan {
    entries: Vec<PollFd>,
    /// The registration of each entry.
    tokens: Vec<Token>,
    /// By descriptor number: whether the list contains it.
    listed: Vec<bool>,
    /// The first entry whose result has not been handed out.
    cursor: usize,
    /// The number of entries that have results; those after them were inserted later.
    polled: usize,
    /// The number of results from `cursor` on that report readiness.
    ready: usize,
    /// Level-triggered: an entry that was ready is polled again at the next wait, and so is an entry
    /// with interest in writing that was not writable. (The kernel signals room to write only after a
    /// send was refused; a later send that succeeds cancels that, and poll(2) requests it again.)
    level: bool,
    /// Entries were carried over to the next wait.
    carried_over: bool,
    /// The wait for which entries were carried over has begun.
    carried_over_due: bool,
}

impl Rescan {
    /// An empty list. `level` selects level-triggered behaviour.
    pub(crate) fn new(level: bool) -> Self {
        Self { level, ..Self::default() }
    }

    /// Removes stale entries when there are many.
    pub(crate) fn compact_if_long(&mut self, registrations: &Registrations) {
        if self.entries.len() > 2 * registrations.len() + SLACK {
            self.compact(registrations);
        }
    }

    /// Adds `token`, unless the list has it.
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

    /// Begins a wait: the entries that were carried over are due now.
    #[inline]
    pub(crate) fn begin_wait(&mut self) {
        self.carried_over_due = self.carried_over;
    }

    /// Records that the descriptor's registration has ended, so that its next registration is
    /// inserted anew.
    #[inline]
    pub(crate) fn forget(&mut self, token: Token) {
        if let Some(listed) = self.listed.get_mut(token.fd as usize) {
            *listed = false;
        }
    }

    /// Whether the next poll(2) includes the descriptor of `token`, so that a signal for it adds
    /// nothing.
    #[inline]
    pub(crate) fn contains(&self, token: Token) -> bool {
        self.listed.get(token.fd as usize).copied().unwrap_or(false)
    }

    /// Whether an entry must be polled.
    #[inline]
    pub(crate) fn is_due(&self) -> bool {
        self.carried_over_due || self.entries.len() > self.polled
    }

    /// The number of ready entries that have not been handed out.
    #[inline]
    pub(crate) fn ready(&self) -> usize {
        self.ready
    }

    /// Polls all entries and returns how many are ready. After an error (EINTR, ENOMEM) the list is
    /// unchanged.
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

    /// Removes entries that are handled and gives the others their present interest. Entries that
    /// were not handed out come first, so that none starves when more are ready than one wait hands
    /// out.
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
                // Skip an entry that was inserted again since.
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

    /// The next ready entry of the last [`Rescan::poll`].
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
