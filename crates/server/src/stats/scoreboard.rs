//! What the workers of one architecture (threads or processes) share: their figures, and the
//! request to stop.
//!
//! All of it is memory that forked children would share too, and pipes. A worker writes its figures
//! to a [`ScoreboardSlot`] of its own before each wait, with plain stores; a reader adds the slots
//! up, and so does not see what workers have done since they last waited. What a worker has counted
//! outlives it, also if it was killed.
//!
//! A stop signals a notifier that nobody resets: the reading end of a pipe stays readable for all
//! workers that wait on it. A second notifier ends the grace time of the first. When the process
//! that could signal it has died, both are ready too (POLLHUP).
//!
//! It also shows which units wait for an idle client, so that one of them can give way ([`idle`]).

mod idle;

pub(crate) use idle::Phase;

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

/// The first word: until when a stop leaves time, in milliseconds of the monotonic clock.
const STOP_AT: usize = 0;
/// Words before those of the slots; the others are those of [`idle`].
const HEADER: usize = 3;
/// Words of a slot that are not figures.
const IDLE_WORDS: usize = 4;
/// Words of a slot before those of its system calls.
const FIGURES: usize = COUNTERS;
/// Words of a slot.
const SLOT: usize = FIGURES + Counters::WORDS;

/// The memory and the notifiers.
#[derive(Debug)]
pub(crate) struct Scoreboard {
    words: SharedWords,
    /// How many slots there are.
    capacity: usize,
    /// Ends to ring with: for a stop, and for the end of the time that it leaves.
    writers: [OwnedFd; 2],
    notifiers: [OwnedFd; 2],
    /// Signalled when a unit waits for a slot and one becomes free: the end to wait on, and the end to signal with.
    room: (OwnedFd, OwnedFd),
    wants_room: AtomicBool,
    slots: Mutex<Slots>,
}

/// Which worker has which slot.
#[derive(Debug, Default)]
struct Slots {
    /// The figures of the workers that have left.
    left: Statistics,
    free: Vec<usize>,
    /// Slots that were ever taken: the first ones.
    used: usize,
}

impl Scoreboard {
    /// With room for so many units at a time.
    ///
    /// # Errors
    /// When there is no memory or no descriptor left.
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

    /// Takes a slot for a unit; `None` when there is no free one.
    pub(crate) fn claim_slot(self: &Arc<Self>) -> Option<ScoreboardSlot> {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        let index = match slots.free.pop() {
            Some(index) => index,
            None if slots.used < self.capacity => {
                slots.used += 1;
                slots.used - 1
            }
            None => {
                // Under the lock, so that the next worker that leaves sees it.
                self.wants_room.store(true, Relaxed);
                return None;
            }
        };
        Some(ScoreboardSlot { scoreboard: self.clone(), index })
    }

    /// A unit has ended, however it has: its figures are kept, and its slot is free.
    pub(crate) fn leave(&self, index: usize) {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        let mut figures = self.figures(index);
        // Whatever it held the kernel has closed.
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

    /// Another process has taken the place of one that has died.
    pub(crate) fn count_replacement(&self) {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        slots.left.counts[Counter::WorkersReplaced] += 1;
    }

    /// What becomes readable when a slot is free again, after there was none.
    pub(crate) fn room(&self) -> BorrowedFd<'_> {
        self.room.0.as_fd()
    }

    /// Silences [`Scoreboard::room`].
    pub(crate) fn drain_room(&self) {
        let mut rings = [0; 64];
        while sys::read(self.room.0.as_fd(), &mut rings).is_ok_and(|count| count == rings.len()) {}
    }

    /// The figures of all units, those that have ended too.
    pub(crate) fn statistics(&self) -> Statistics {
        let slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        let mut all = slots.left.clone();
        for index in 0..slots.used {
            all.merge(&self.figures(index));
        }
        all
    }

    /// Tells all units to stop, and how much time they have. A second call may shorten it.
    pub(crate) fn stop(&self, grace: Duration) {
        let until = now_ms().saturating_add(u64::try_from(grace.as_millis()).unwrap_or(u64::MAX));
        let is_first = self.words[STOP_AT].swap(until, Relaxed) == 0;
        let [stop, end] = &self.writers;
        // When a pipe is full, it has rung already.
        if is_first {
            let _ = sys::write(stop.as_fd(), &[1]);
        }
        if !is_first || grace.is_zero() {
            let _ = sys::write(end.as_fd(), &[1]);
        }
    }

    /// Until when a stop leaves time, on [`Clock::now_ms`]'s clock; `None` before a stop is requested.
    pub(crate) fn stop_at_ms(&self) -> Option<u64> {
        Some(self.words[STOP_AT].load(Relaxed)).filter(|&at| at > 0)
    }

    /// What children are to keep open: the ends that ring, not those to ring with.
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

/// A unit's place on the board.
#[derive(Debug)]
pub(crate) struct ScoreboardSlot {
    scoreboard: Arc<Scoreboard>,
    index: usize,
}

impl ScoreboardSlot {
    /// Its number, for [`Scoreboard::leave`].
    pub(crate) fn index(&self) -> usize {
        self.index
    }

    /// Shows these figures, in place of those before.
    pub(crate) fn show(&self, figures: &Statistics) {
        let first = figures.counts.iter().map(|(_, value)| value);
        let all = first.chain(figures.system_calls.words());
        for (word, value) in self.scoreboard.slot(self.index).iter().zip(all) {
            word.store(value, Relaxed);
        }
    }

    /// Whether a stop has been requested.
    pub(crate) fn is_stop_requested(&self) -> bool {
        self.scoreboard.stop_at_ms().is_some()
    }

    /// The descriptor that becomes readable when a stop is requested, and the one that becomes
    /// readable when its grace time is over.
    pub(crate) fn notifier(&self, is_stopping: bool) -> BorrowedFd<'_> {
        self.scoreboard.notifiers[usize::from(is_stopping)].as_fd()
    }

    /// How long a stop still leaves.
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
        // Killed with three connections open.
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
