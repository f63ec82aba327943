//! Idle connections give way at the connection limit, so that a few clients that keep their
//! connections open cannot keep all others out.
//!
//! A look at the table collects the connections that have been idle longest, many at once, and
//! further evictions take from these: an eviction costs constant time on average, and an idle
//! connection no memory. Each candidate is checked again when its turn comes.

use super::*;
use crate::stats::Counter;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// One look at the table collects one connection in so many, so that an eviction looks at so many.
const SHARE: usize = 64;
/// The fewest candidates that one look collects, if there are as many.
const CANDIDATES_MIN: usize = 16;

/// The connections that give way next.
#[derive(Debug)]
pub(super) struct IdleReserve {
    is_on: bool,
    /// The one that has been idle longest is the last.
    candidates: Vec<Candidate>,
    /// After a look that found few, the next one waits until this tick.
    next_look_at: u32,
}

/// A connection that was idle when the table was looked at.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    /// When its keep-alive time is over: the order in which connections became idle.
    deadline: u32,
    fd: RawFd,
    generation: u32,
}

impl IdleReserve {
    /// Without candidates; `is_on` is whether any connection may be evicted.
    pub(super) fn new(is_on: bool) -> Self {
        Self { is_on, candidates: Vec::new(), next_look_at: 0 }
    }

    /// Whether any connection may be evicted, from now on.
    pub(super) fn set(&mut self, is_on: bool) {
        self.is_on = is_on;
    }

    /// Whether connections give way at all.
    pub(super) fn is_on(&self) -> bool {
        self.is_on
    }
}

impl<M: Mechanism, A: Service> Engine<M, A> {
    /// Closes the connection that has been idle longest. Returns false when no connection is idle.
    #[cold]
    pub(super) fn evict_idle(&mut self) -> bool {
        if !self.idle.is_on {
            return false;
        }
        // After a look all candidates are idle, but for those that have unread input.
        for _ in 0..2 {
            while let Some(candidate) = self.idle.candidates.pop() {
                if self.is_still_idle(candidate) {
                    self.close(candidate.fd);
                    self.worker.counters.add(Counter::Evicted, 1);
                    return true;
                }
            }
            if !self.look_for_idle() {
                return false;
            }
        }
        false
    }

    /// Whether nothing has come on the connection since it was found idle.
    fn is_still_idle(&mut self, candidate: Candidate) -> bool {
        let Some(slot) = self.table.get_mut(candidate.fd) else { return false };
        let is_same = slot.generation() == candidate.generation
            && slot.class == Class::KeepAlive
            && slot.timer.deadline() == Some(candidate.deadline)
            && !slot.marks.is_left();
        let is_idle = is_same && slot.client().is_some_and(|client| client.is_idle());
        // A request may have arrived that no event has reported yet.
        is_idle && slot.transport().is_some_and(|transport| !is_readable(transport.as_fd()))
    }

    /// Collects the connections that have been idle longest. Returns whether there are any.
    fn look_for_idle(&mut self) -> bool {
        let now = self.worker.clock.tick();
        if now < self.idle.next_look_at {
            return false;
        }
        let wanted = (self.clients / SHARE).max(CANDIDATES_MIN);
        let mut found: Vec<Candidate> = self
            .table
            .used()
            .filter(|(_, slot)| slot.class == Class::KeepAlive && !slot.marks.is_left())
            .filter_map(|(fd, slot)| {
                let deadline = slot.timer.deadline()?;
                Some(Candidate { deadline, fd, generation: slot.generation() })
            })
            .collect();
        if found.len() > wanted {
            found.select_nth_unstable_by_key(wanted - 1, |candidate| candidate.deadline);
            found.truncate(wanted);
        } else {
            // Few are idle, and a look costs as much: no more than one for each tick.
            self.idle.next_look_at = now.saturating_add(1);
        }
        found.sort_unstable_by_key(|candidate| std::cmp::Reverse(candidate.deadline));
        self.idle.candidates = found;
        !self.idle.candidates.is_empty()
    }
}

/// Whether input waits at a socket, or a connection at a listener.
pub(super) fn is_readable(socket: std::os::fd::BorrowedFd<'_>) -> bool {
    let mut polled = [PollFd::from_borrowed_fd(socket, PollFlags::IN)];
    // Where poll(2) fails, the next read finds out.
    poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).map_or(true, |ready| ready > 0)
}
