//! Closes idle connections at the connection limit, so that a few clients that keep their connections open
//! cannot exclude all other clients.
//!
//! The client with the most idle connections loses connections first, beginning with those that have been
//! idle longest. If no client has many, the connections that have been idle longest are closed, regardless
//! of their client.
//!
//! One scan of the table collects many candidates at once, and further evictions take from these: an
//! eviction costs constant time on average. The addresses are read only then, and only of a random sample.
//! So an idle connection costs no memory, and a connection costs no system call before the limit is
//! reached. Each candidate is checked again before it is closed. Decision 29 has the reasons.

use super::*;
use crate::{
    clients::client_key,
    eviction::{SampledConnection, most_held_first},
    stats::Counter,
    transport::listener,
};
use rand::seq::SliceRandom as _;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// One scan of the table collects one candidate for each `SHARE` connections, so that an eviction inspects
/// so many slots on average.
const SHARE: usize = 64;
/// The minimum number of candidates that one scan collects, if there are as many.
const CANDIDATES_MIN: usize = 16;

/// The number of connections whose addresses are read for each candidate; all idle connections if there are
/// fewer.
const SAMPLED: usize = 8;
/// The maximum number of addresses that one scan reads, so that it takes no more than some milliseconds.
const SAMPLE_MAX: usize = 16_384;
/// If the clients with many connections provide fewer than one in `SHARE_OF_HOLDERS` of the wanted
/// candidates, the connections that have been idle longest become candidates, too, regardless of their
/// client.
const SHARE_OF_HOLDERS: usize = 8;

/// The connections that are closed next.
#[derive(Debug)]
pub(super) struct IdleReserve {
    is_on: bool,
    /// The candidates in reverse order: the last one is closed first.
    candidates: Vec<Candidate>,
    /// The tick before which there is no further scan, after a scan that found few candidates.
    next_look_at: u32,
}

/// A connection that was idle when the table was scanned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    /// The tick at which its keep-alive time ends. Deadlines are in the order in which connections became
    /// idle.
    deadline: u32,
    fd: RawFd,
    generation: u32,
}

impl IdleReserve {
    /// Creates a reserve without candidates. `is_on` says whether connections may be evicted.
    pub(super) fn new(is_on: bool) -> Self {
        Self { is_on, candidates: Vec::new(), next_look_at: 0 }
    }

    /// Sets whether connections may be evicted from now on.
    pub(super) fn set(&mut self, is_on: bool) {
        self.is_on = is_on;
    }

    /// Returns whether connections may be evicted.
    pub(super) fn is_on(&self) -> bool {
        self.is_on
    }
}

impl<M: Mechanism, A: Service> Engine<M, A> {
    /// Closes the first candidate that is still idle. Returns false when no connection is idle.
    #[cold]
    pub(super) fn evict_idle(&mut self) -> bool {
        if !self.idle.is_on {
            return false;
        }
        // After a scan, all candidates are idle, except those that have unread input.
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

    /// Returns whether the connection has received nothing since it was found idle.
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

    /// Collects the next candidates. Returns whether there are any.
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
            // Few connections are idle, and a scan still costs the same: allow at most one scan for each
            // tick.
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

    /// Returns, of a sample of idle connections, those of clients with many connections.
    fn of_holders(&self, idle: &mut [Candidate], wanted: usize) -> Vec<Candidate> {
        let size = wanted.saturating_mul(SAMPLED).min(SAMPLE_MAX);
        let is_whole = idle.len() <= size;
        let sample = match is_whole {
            true => idle,
            false => idle.partial_shuffle(&mut rand::rng(), size).0,
        };
        let sample = sample.iter().filter_map(|&connection| {
            let slot = self.table.get(connection.fd)?;
            // Behind a proxy that sends client addresses, the addresses of the clients count.
            let address = self.worker.clients.address(connection.fd);
            let address = address.or_else(|| listener::peer(slot.socket()?));
            Some(SampledConnection { client: address.map_or(0, client_key), connection })
        });
        most_held_first(sample.collect(), is_whole, wanted)
    }
}

/// Returns whether a socket has unread input, or a listener has a waiting connection.
pub(super) fn is_readable(socket: std::os::fd::BorrowedFd<'_>) -> bool {
    let mut polled = [PollFd::from_borrowed_fd(socket, PollFlags::IN)];
    // If poll(2) fails, the next read detects the error.
    poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).map_or(true, |ready| ready > 0)
}
