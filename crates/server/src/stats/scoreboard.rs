//! The state that the workers of one architecture (threads or processes) share: their statistics,
//! and the request to stop.
//!
//! It consists of pipes and of memory that forked children share. A worker writes its statistics to
//! its own [`ScoreboardSlot`] before each wait, with plain stores. A reader adds up the slots, so
//! it does not see the work since the last wait of each worker. The statistics of a worker are kept
//! after its end, even if it was killed.
//!
//! A stop signals a notifier that is never reset: the read end of a pipe stays readable for all
//! workers that wait for it. A second notifier ends the grace time of the first. If the process
//! that could signal them has died, both are ready, too (POLLHUP).
//!
//! The scoreboard also shows which workers wait for an idle client, so that one of them can be
//! evicted ([`idle`]).

mod idle;

pub(crate) use idle::WorkerPhase;

use crate::{
    stats::{COUNTERS, Counter, Counts, Statistics},
    time::clock::Clock,
};
use pollux_sys::{self as sys, Counters, SharedWords};
use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

/// The index of the first word: the time at which a stop ends, in milliseconds of the monotonic
/// clock.
const STOP_AT: usize = 0;
/// The number of words before those of the slots; the other header words belong to [`idle`].
const HEADER: usize = 3;
/// The number of words of a slot that are not statistics.
const IDLE_WORDS: usize = 4;
/// The number of words of a slot before those of its system calls.
const FIGURES: usize = COUNTERS;
/// The number of words of a slot.
const SLOT: usize = FIGURES + Counters::WORDS;

/// The shared memory and the notifiers.
#[derive(Debug)]
pub(crate) struct Scoreboard {
    words: SharedWords,
    /// The number of slots.
    capacity: usize,
    /// The write ends of the notifiers: for a stop, and for the end of its grace time.
    writers: [OwnedFd; 2],
    notifiers: [OwnedFd; 2],
    /// The notifier for a free slot, signalled when one becomes free while a worker waits for it:
    /// the end to wait on, and the end to signal with.
    room: (OwnedFd, OwnedFd),
    wants_room: AtomicBool,
    slots: Mutex<Slots>,
}

/// The assignment of slots to workers.
#[derive(Debug, Default)]
struct Slots {
    /// The statistics of the workers that have ended.
    left: Statistics,
    free: Vec<usize>,
    /// The number of slots that have ever been claimed; these are the first ones.
    used: usize,
}

impl Scoreboard {
    /// Creates a scoreboard for this number of workers at a time.
    ///
    /// # Errors
    /// No memory or no descriptor is left.
    pub(crate) fn new(slots: usize) -> io::Result<Self> {
        let words = SharedWords::new(HEADER + slots * (IDLE_WORDS + SLOT))?;
        let (stop, stop_writer) = sys::pipe()?;
        let (end, end_writer) = sys::pipe()?;
        Ok(Self {
            words,
            capacity: slots,
            writers: [stop_writer, end_writer],
            notifiers: [stop, end],
            room: sys::pipe()?,
            wants_room: AtomicBool::new(false),
            slots: Mutex::default(),
        })
    }

    /// Claims a slot for a worker; returns `None` if no slot is free.
    pub(crate) fn claim_slot(self: &Arc<Self>) -> Option<ScoreboardSlot> {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        let index = match slots.free.pop() {
            Some(index) => index,
            None if slots.used < self.capacity => {
                slots.used += 1;
                slots.used - 1
            }
            None => {
                // This is done under the lock, so that the next worker that leaves sees it.
                self.wants_room.store(true, Relaxed);
                return None;
            }
        };
        Some(ScoreboardSlot { scoreboard: self.clone(), index })
    }

    /// Frees the slot of a worker that has ended in any way; its statistics are kept.
    pub(crate) fn leave(&self, index: usize) {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        let mut figures = self.figures(index);
        // The kernel has closed all its connections.
        figures.counts[Counter::Closed] = figures.counts[Counter::Accepted];
        slots.left.merge(&figures);
        for word in self.slot(index) {
            word.store(0, Relaxed);
        }
        self.forget_idle(index);
        slots.free.push(index);
        if self.wants_room.swap(false, Relaxed) {
            let _ = sys::write(self.room.1.as_fd(), &[1]);
        }
    }

    /// Counts a worker that has died, and that another one replaces.
    pub(crate) fn count_replacement(&self) {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        slots.left.counts[Counter::WorkersReplaced] += 1;
    }

    /// Returns the descriptor that becomes readable when a slot is free again after there was none.
    pub(crate) fn room(&self) -> BorrowedFd<'_> {
        self.room.0.as_fd()
    }

    /// Resets [`Scoreboard::room`].
    pub(crate) fn drain_room(&self) {
        let mut rings = [0; 64];
        while sys::read(self.room.0.as_fd(), &mut rings).is_ok_and(|count| count == rings.len()) {}
    }

    /// Returns the statistics of all workers, including those that have ended.
    pub(crate) fn statistics(&self) -> Statistics {
        let slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        let mut all = slots.left.clone();
        for index in 0..slots.used {
            all.merge(&self.figures(index));
        }
        all
    }

    /// Requests all workers to stop within `grace`. A second call may shorten the time.
    pub(crate) fn stop(&self, grace: Duration) {
        let until = now_ms().saturating_add(u64::try_from(grace.as_millis()).unwrap_or(u64::MAX));
        let is_first = self.words[STOP_AT].swap(until, Relaxed) == 0;
        let [stop, end] = &self.writers;
        // If a pipe is full, it is readable already.
        if is_first {
            let _ = sys::write(stop.as_fd(), &[1]);
        }
        if !is_first || grace.is_zero() {
            let _ = sys::write(end.as_fd(), &[1]);
        }
    }

    /// Returns the time at which a stop ends, on the clock of [`Clock::now_ms`]; `None` before a
    /// stop is requested.
    pub(crate) fn stop_at_ms(&self) -> Option<u64> {
        Some(self.words[STOP_AT].load(Relaxed)).filter(|&at| at > 0)
    }

    /// Returns the descriptors that children keep open: the read ends of the notifiers, not the
    /// write ends.
    pub(crate) fn notifiers(&self) -> [BorrowedFd<'_>; 2] {
        [self.notifiers[0].as_fd(), self.notifiers[1].as_fd()]
    }

    fn slot(&self, index: usize) -> &[AtomicU64] {
        let start = HEADER + self.capacity * IDLE_WORDS + index * SLOT;
        &self.words[start..start + SLOT]
    }

    fn figures(&self, index: usize) -> Statistics {
        let mut words = self.slot(index).iter().map(|word| word.load(Relaxed));
        let mut counts = Counts::default();
        for &counter in Counter::ALL {
            counts[counter] = words.next().unwrap_or_default();
        }
        Statistics {
            counts,
            cache: None,
            hub: None,
            system_calls: Counters::from_words(words),
            mechanism: Default::default(),
        }
    }
}

/// A worker's slot of the scoreboard.
#[derive(Debug)]
pub(crate) struct ScoreboardSlot {
    scoreboard: Arc<Scoreboard>,
    index: usize,
}

impl ScoreboardSlot {
    /// Returns its number, for [`Scoreboard::leave`].
    pub(crate) fn index(&self) -> usize {
        self.index
    }

    /// Publishes these statistics; they replace those before.
    pub(crate) fn show(&self, figures: &Statistics) {
        let first = figures.counts.iter().map(|(_, value)| value);
        let all = first.chain(figures.system_calls.words());
        for (word, value) in self.scoreboard.slot(self.index).iter().zip(all) {
            word.store(value, Relaxed);
        }
    }

    /// Returns whether a stop has been requested.
    pub(crate) fn is_stop_requested(&self) -> bool {
        self.scoreboard.stop_at_ms().is_some()
    }

    /// Returns the descriptor that becomes readable when a stop is requested or, if `is_stopping`,
    /// the one that becomes readable when its grace time is over.
    pub(crate) fn notifier(&self, is_stopping: bool) -> BorrowedFd<'_> {
        self.scoreboard.notifiers[usize::from(is_stopping)].as_fd()
    }

    /// Returns the time that is left until a stop ends.
    pub(crate) fn time_left(&self) -> Duration {
        let until = self.scoreboard.words[STOP_AT].load(Relaxed);
        Duration::from_millis(until.saturating_sub(now_ms()))
    }
}

fn now_ms() -> u64 {
    Clock::now_ms()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(requests: u64, accepted: u64) -> Statistics {
        let mut counts = Counts::default();
        counts[Counter::Requests] = requests;
        counts[Counter::Accepted] = accepted;
        Statistics { counts, system_calls: sys::counters(), ..Statistics::default() }
    }

    #[test]
    fn what_units_have_counted_outlives_them() {
        let scoreboard = Arc::new(Scoreboard::new(2).unwrap());
        let (first, second) = (scoreboard.claim_slot().unwrap(), scoreboard.claim_slot().unwrap());
        assert!(scoreboard.claim_slot().is_none(), "there are two slots");
        first.show(&figures(5, 3));
        second.show(&figures(7, 1));
        first.show(&figures(6, 3));
        let all = scoreboard.statistics();
        assert_eq!((all.count(Counter::Requests), all.open()), (13, 4));
        // The worker was killed while three connections were open.
        scoreboard.leave(first.index());
        let all = scoreboard.statistics();
        assert_eq!(
            (all.count(Counter::Requests), all.open(), all.count(Counter::Closed)),
            (13, 1, 3)
        );
        assert!(all.system_calls.of(sys::Call::Pipe) >= 4, "{:?}", all.system_calls);
        let third = scoreboard.claim_slot().unwrap();
        third.show(&figures(1, 0));
        assert_eq!(scoreboard.statistics().count(Counter::Requests), 14);
    }

    #[test]
    fn all_units_see_a_stop_and_go_on_seeing_it() {
        let rings = |slot: &ScoreboardSlot, is_stopping| {
            let fd = std::os::fd::AsRawFd::as_raw_fd(&slot.notifier(is_stopping));
            let mut polled = [sys::PollFd { fd, events: libc::POLLIN, revents: 0 }];
            sys::ppoll(&mut polled, Some(Duration::ZERO)).unwrap() == 1
        };
        let scoreboard = Arc::new(Scoreboard::new(2).unwrap());
        let slots = [scoreboard.claim_slot().unwrap(), scoreboard.claim_slot().unwrap()];
        assert!(!rings(&slots[0], false));
        scoreboard.stop(Duration::from_secs(60));
        for slot in &slots {
            assert!(rings(slot, false) && rings(slot, false) && !rings(slot, true));
            assert!(slot.time_left() > Duration::from_secs(50));
        }
        scoreboard.stop(Duration::from_millis(1));
        assert!(rings(&slots[0], true) && rings(&slots[1], true));
        assert!(slots[0].time_left() <= Duration::from_millis(1));
    }
}
