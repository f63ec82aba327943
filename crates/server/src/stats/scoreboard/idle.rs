//! Workers whose client is idle, and the eviction of one of them for a connection that waits.
//!
//! A worker of a blocking architecture serves one connection at a time, so clients that keep their
//! connections open without using them could occupy all workers. While all workers of a pool are
//! occupied, one of those that wait for an idle client also watches the listeners. When a
//! connection waits there, one of the workers with an idle client closes its own connection and
//! accepts the waiting one. It is a worker of the address that occupies most workers; of these, the
//! worker whose client has been idle longest ([`crate::eviction::most_held_first`]). If each
//! connection has its own worker, the acceptor watches.
//!
//! The words of all workers are adjacent, so that scanning them is fast. They are in shared memory
//! and use sequentially consistent operations: a worker first publishes its own state and then
//! reads that of the others, so that of two workers at least one sees the other.

use super::{HEADER, Scoreboard, ScoreboardSlot};
use crate::eviction::{SampledConnection, most_held_first};
use pollux_sys as sys;
use rand::seq::SliceRandom as _;
use rustix::time::{ClockId, clock_gettime};
use std::{
    sync::{
        PoisonError,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

/// The index of the word with the worker that watches the listeners: its slot plus one; 0 is none.
const WATCHER: usize = 1;
/// The index of the word with the number of workers that have an idle client. After a worker was
/// killed the number may be too high, which only costs a scan.
const IDLE: usize = 2;

/// The maximum number of idle workers that are compared by the addresses of their clients. If there
/// are more, a random sample is compared.
const SAMPLE: usize = 256;

/// A bit in the word of an idle worker: its client is being evicted.
const GIVE_WAY: u64 = 1 << 63;

/// The state of a worker of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub(crate) enum WorkerPhase {
    /// It waits for a connection.
    Accepting = 1,
    /// It has a connection.
    Serving = 2,
}

impl Scoreboard {
    /// Returns, for each slot, the time since which its client is idle, in nanoseconds of the
    /// monotonic clock; 0 if the client is not idle.
    fn idle_since(&self) -> &[AtomicU64] {
        &self.words[HEADER..HEADER + self.capacity]
    }

    /// Returns, for each slot, the thread that [`sys::wake`] wakes.
    fn threads(&self) -> &[AtomicU64] {
        &self.words[HEADER + self.capacity..HEADER + 2 * self.capacity]
    }

    /// Returns, for each slot of a pool, its [`WorkerPhase`]; 0 if there is no worker.
    fn phases(&self) -> &[AtomicU64] {
        &self.words[HEADER + 2 * self.capacity..HEADER + 3 * self.capacity]
    }

    /// Returns, for each slot, the [`crate::clients::client_key`] of its client; 0 if the client
    /// has no address.
    fn clients(&self) -> &[AtomicU64] {
        &self.words[HEADER + 3 * self.capacity..HEADER + 4 * self.capacity]
    }

    /// Forgets the state of a worker that has ended.
    pub(super) fn forget_idle(&self, index: usize) {
        if self.idle_since()[index].swap(0, SeqCst) != 0 {
            self.words[IDLE].fetch_sub(1, SeqCst);
        }
        self.stop_watching(index);
        self.phases()[index].store(0, SeqCst);
        self.clients()[index].store(0, SeqCst);
    }

    fn stop_watching(&self, index: usize) {
        let _ = self.words[WATCHER].compare_exchange(index as u64 + 1, 0, SeqCst, SeqCst);
    }

    /// Returns whether no worker of the pool waits for a connection, and no client is being
    /// evicted, which would make its worker accept.
    fn is_full(&self) -> bool {
        let is_accepting =
            self.phases().iter().any(|phase| phase.load(SeqCst) == WorkerPhase::Accepting as u64);
        let yields = || self.idle_since().iter().any(|since| since.load(SeqCst) & GIVE_WAY != 0);
        !is_accepting && !yields()
    }

    /// Returns the workers with an idle client, each with the time since which it is idle.
    fn idle(&self) -> impl Iterator<Item = (u64, usize)> {
        let since = self.idle_since().iter().map(|since| since.load(SeqCst)).enumerate();
        let idle = since.filter(|&(_, since)| since != 0 && since & GIVE_WAY == 0);
        idle.map(|(index, since)| (since, index))
    }

    /// Returns the worker whose client is evicted next, with the time since which the client is
    /// idle.
    fn next_to_give_way(&self) -> Option<(u64, usize)> {
        let mut idle: Vec<_> = self.idle().collect();
        let is_whole = idle.len() <= SAMPLE;
        let sample = match is_whole {
            true => &mut idle[..],
            false => idle.partial_shuffle(&mut rand::rng(), SAMPLE).0,
        };
        let of_worker = |index: usize| self.clients()[index].load(SeqCst);
        let held = sample
            .iter()
            .map(|&worker| SampledConnection { client: of_worker(worker.1), connection: worker });
        let first = most_held_first(held.collect(), is_whole, 1).pop();
        first.or_else(|| idle.into_iter().min())
    }

    fn wake(&self, index: usize) {
        if let Ok(thread @ 1..) = i32::try_from(self.threads()[index].load(SeqCst)) {
            sys::wake(thread);
        }
    }

    /// Makes room for a connection that waits: evicts an idle client, unless a worker accepts or is
    /// about to accept.
    pub(crate) fn make_room(&self) {
        if self.is_full() {
            self.evict_one();
        }
    }

    /// Does the same as [`Scoreboard::make_room`] if each connection has its own worker; does
    /// nothing if a slot is free by now.
    pub(crate) fn make_room_for_worker(&self) {
        // A worker that ends holds the lock from the time when its state is cleared until its slot
        // is free.
        let slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        if slots.free.is_empty() && slots.used == self.capacity {
            self.make_room();
        }
    }

    /// Evicts one idle client. Returns whether there was an idle client.
    fn evict_one(&self) -> bool {
        // A worker that becomes busy at this moment is skipped; each attempt finds another one.
        for _ in 0..self.capacity {
            let Some((since, index)) = self.next_to_give_way() else { return false };
            let outcome =
                self.idle_since()[index].compare_exchange(since, since | GIVE_WAY, SeqCst, SeqCst);
            if outcome.is_ok() {
                self.wake(index);
                return true;
            }
        }
        false
    }
}

impl ScoreboardSlot {
    /// Publishes the state of this worker of a pool. A worker that has accepted a connection may
    /// have been the last free one; then a worker with an idle client must watch the listeners.
    pub(crate) fn enter(&self, phase: WorkerPhase) {
        self.scoreboard.phases()[self.index].store(phase as u64, SeqCst);
        if phase == WorkerPhase::Serving {
            self.appoint_watcher();
        }
    }

    /// Makes the worker whose client has been idle longest watch the listeners, if a watcher is
    /// needed and there is none yet.
    pub(crate) fn appoint_watcher(&self) {
        let scoreboard = &self.scoreboard;
        if scoreboard.words[IDLE].load(SeqCst) != 0
            && scoreboard.words[WATCHER].load(SeqCst) == 0
            && scoreboard.is_full()
            && let Some((_, index)) = scoreboard.idle().min()
        {
            scoreboard.wake(index);
        }
    }

    /// Publishes the address of the client that this worker has accepted
    /// ([`crate::clients::client_key`]); 0 for none.
    pub(crate) fn set_client(&self, client: u64) {
        self.scoreboard.clients()[self.index].store(client, SeqCst);
    }

    /// Publishes that the client is idle since `since_ns`. `thread` is the calling thread.
    pub(crate) fn begin_idle(&self, thread: i32, since_ns: u64) {
        self.scoreboard.words[IDLE].fetch_add(1, SeqCst);
        self.scoreboard.threads()[self.index].store(u64::from(thread.unsigned_abs()), SeqCst);
        self.scoreboard.idle_since()[self.index].store(since_ns.max(1), SeqCst);
    }

    /// Publishes that the client is no longer idle. Returns whether the client is evicted.
    /// `may_give_way` is true if the worker then closes the connection, and accepts or ends. Such a
    /// worker is shown as accepting first, so that the pool does not seem full in between.
    pub(crate) fn end_idle(&self, may_give_way: bool) -> bool {
        let since = &self.scoreboard.idle_since()[self.index];
        if may_give_way && since.load(SeqCst) & GIVE_WAY != 0 {
            self.scoreboard.phases()[self.index].store(WorkerPhase::Accepting as u64, SeqCst);
        }
        let gives_way = since.swap(0, SeqCst) & GIVE_WAY != 0;
        self.scoreboard.words[IDLE].fetch_sub(1, SeqCst);
        gives_way
    }

    /// Returns whether the client is to be evicted.
    pub(crate) fn gives_way(&self) -> bool {
        self.scoreboard.idle_since()[self.index].load(SeqCst) & GIVE_WAY != 0
    }

    /// Ends this worker's watch, if it watches.
    pub(crate) fn end_watch(&self) {
        self.scoreboard.stop_watching(self.index);
    }

    /// Makes this worker watch the listeners if all workers of the pool are occupied and no other
    /// one watches. Returns whether it watches.
    pub(crate) fn begin_watch(&self) -> bool {
        let watcher = &self.scoreboard.words[WATCHER];
        self.scoreboard.is_full()
            && watcher.compare_exchange(0, self.index as u64 + 1, SeqCst, SeqCst).is_ok()
    }

    /// Does the same as [`Scoreboard::make_room`].
    pub(crate) fn make_room(&self) {
        self.scoreboard.make_room();
    }

    /// Returns the present time on the clock of [`ScoreboardSlot::begin_idle`]. The coarse clock is
    /// not used, because several clients may become idle within a millisecond.
    pub(crate) fn now_ns() -> u64 {
        let now = clock_gettime(ClockId::Monotonic);
        u64::try_from(Duration::try_from(now).unwrap_or_default().as_nanos()).unwrap_or(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    /// A thread number that no thread has: thread IDs are below 2^22.
    const NOBODY: i32 = i32::MAX;

    fn pool(slots: usize) -> (Arc<Scoreboard>, Vec<ScoreboardSlot>) {
        let scoreboard = Arc::new(Scoreboard::new(slots).unwrap());
        let slots = (0..slots).map(|_| scoreboard.claim_slot().unwrap()).collect();
        (scoreboard, slots)
    }

    #[test]
    fn the_longest_idle_client_gives_way_and_each_only_once() {
        let (scoreboard, slots) = pool(3);
        assert!(!scoreboard.evict_one(), "no client is idle");
        for (slot, since_ns) in slots.iter().zip([30, 10, 20]) {
            slot.begin_idle(NOBODY, since_ns);
        }
        assert!(scoreboard.evict_one());
        assert!(scoreboard.evict_one());
        assert_eq!([0, 1, 2].map(|index: usize| slots[index].end_idle(true)), [false, true, true]);
        assert!(!scoreboard.evict_one());
    }

    #[test]
    fn the_address_that_occupies_most_workers_gives_way_first() {
        for workers in [5, 2 * SAMPLE] {
            let (scoreboard, slots) = pool(workers);
            for (index, slot) in slots.iter().enumerate() {
                // The other address has one worker in five, and its clients have been idle longest.
                slot.set_client(if index % 5 == 0 { 1 } else { 2 });
                slot.begin_idle(NOBODY, if index % 5 == 0 { 10 } else { 20 });
            }
            assert!(scoreboard.evict_one());
            let first = slots.iter().position(ScoreboardSlot::gives_way).unwrap();
            assert_ne!(first % 5, 0, "{workers} workers");
            // The next client of this slot has another address.
            slots[1].enter(WorkerPhase::Accepting);
            scoreboard.leave(slots[1].index());
            assert_eq!(scoreboard.clients()[slots[1].index()].load(SeqCst), 0);
        }
    }

    #[test]
    fn one_worker_watches_while_all_are_occupied() {
        let (scoreboard, slots) = pool(2);
        slots[0].enter(WorkerPhase::Serving);
        slots[1].enter(WorkerPhase::Accepting);
        slots[0].begin_idle(NOBODY, 5);
        assert!(!slots[0].begin_watch(), "the other one accepts");
        slots[1].enter(WorkerPhase::Serving);
        slots[1].begin_idle(NOBODY, 6);
        assert!(slots[1].begin_watch());
        assert!(!slots[0].begin_watch(), "one is enough");
        slots[1].make_room();
        slots[1].make_room();
        assert!(!slots[1].end_idle(true), "one connection waits, and one client gives way");
        slots[1].end_watch();
        assert!(slots[0].end_idle(true), "it is idle longest");
        slots[1].begin_idle(NOBODY, 6);
        assert!(!slots[1].begin_watch(), "the worker whose client has given way accepts");
        slots[0].enter(WorkerPhase::Serving);
        assert!(slots[1].begin_watch(), "a watch ends with the wait");
        // The worker was killed: another one may watch, and its client is no longer idle.
        scoreboard.leave(slots[1].index());
        slots[0].begin_idle(NOBODY, 9);
        assert!(slots[0].begin_watch());
        slots[0].make_room();
        assert!(slots[0].end_idle(false));
        assert_eq!(scoreboard.words[IDLE].load(SeqCst), 0);
    }
}
