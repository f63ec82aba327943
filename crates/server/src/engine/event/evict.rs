//! Idle connections give way at the connection limit, so that a few clients that keep their
//! connections open cannot keep all others out.
//!
//! The client that holds most idle connections gives way first, with those that have been idle longest. Where nobody
//! holds many, those that have been idle longest of all give way.
//!
//! A look at the table collects many candidates at once, and further evictions take from these: an eviction costs
//! constant time on average. The addresses are read then, of a random sample, so an idle connection costs no memory, and
//! a connection no system call before the limit is reached. Each candidate is checked again when its turn comes.
//! Decision 29 has the reasons.

use super::*;
use crate::{
    clients::{Held, client_key, most_held_first},
    stats::Counter,
    transport::listener,
};
use rand::seq::SliceRandom as _;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// One look at the table collects one candidate for so many connections, so that on average an eviction looks at so many
/// slots.
const SHARE: usize = 64;
/// The fewest candidates that one look collects, if there are as many.
const CANDIDATES_MIN: usize = 16;

/// The addresses of so many connections are read for each candidate, or of all idle ones if they are fewer.
const SAMPLED: usize = 8;
/// The most addresses that one look reads, so that it takes no more than some milliseconds.
const SAMPLE_MAX: usize = 16_384;
/// If the clients with many connections provide fewer than one in so many of the wanted candidates, the connections that
/// have been idle longest become candidates, too, whatever their client is.
const SHARE_OF_HOLDERS: usize = 8;

/// The connections that give way next.
#[derive(Debug)]
pub(super) struct IdleReserve {
    is_on: bool,
    /// The next one is the last.
    candidates: Vec<Candidate>,
    /// After a look that found few, the next one waits until this tick.
    next_look_at: u32,
}

/// A connection that was idle when the table was looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
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
    /// Closes the idle connection that is to give way first. Returns false when no connection is idle.
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

    /// Collects the connections that give way next. Returns whether there are any.
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
        if found.len() <= wanted {
            // Few are idle, and a look costs as much: no more than one for each tick.
            self.idle.next_look_at = now.saturating_add(1);
        }
        let mut order = self.of_holders(&mut found, wanted);
        if order.len() < wanted.min(found.len()).div_ceil(SHARE_OF_HOLDERS) {
            if found.len() > wanted {
                found.select_nth_unstable(wanted - 1);
                found.truncate(wanted);
            }
            found.sort_unstable();
            // A connection that is in both lists is checked twice, and closed once.
            order.append(&mut found);
        }
        order.reverse();
        self.idle.candidates = order;
        !self.idle.candidates.is_empty()
    }

    /// Of a sample of idle connections, those of clients that hold many.
    fn of_holders(&self, idle: &mut [Candidate], wanted: usize) -> Vec<Candidate> {
        let size = wanted.saturating_mul(SAMPLED).min(SAMPLE_MAX);
        let is_whole = idle.len() <= size;
        let sample = match is_whole {
            true => idle,
            false => idle.partial_shuffle(&mut rand::rng(), size).0,
        };
        let sample = sample.iter().filter_map(|&connection| {
            let slot = self.table.get(connection.fd)?;
            // Behind a proxy that names its clients, theirs are the addresses that count.
            let address = self.worker.clients.address(connection.fd);
            let address = address.or_else(|| listener::peer(slot.socket()?));
            Some(Held { client: address.map_or(0, client_key), connection })
        });
        most_held_first(sample.collect(), is_whole, wanted)
    }
}

/// Whether input waits at a socket, or a connection at a listener.
pub(super) fn is_readable(socket: std::os::fd::BorrowedFd<'_>) -> bool {
    let mut polled = [PollFd::from_borrowed_fd(socket, PollFlags::IN)];
    // Where poll(2) fails, the next read finds out.
    poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).map_or(true, |ready| ready > 0)
}
