//! Who asks the origin for what, and who waits for it (RFC 9111 §4, collapsed requests).
//!
//! A flight is the one fetch of a key that others wait for. Fetches that nobody may wait for have a
//! ticket too, so that every request that goes on is treated alike.

use crate::{
    cache_status::Forward, config::WAITERS_MAX, engine::Key, object_builder::ObjectBuilder,
    record::Object,
};
use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

/// A request that was sent on: what comes back is told with it. Harmless when it is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ticket(pub(crate) u64);

/// Who waits: a worker, and a number of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Waiter {
    pub(crate) worker: u32,
    pub(crate) number: u64,
}

/// A fetch that has not ended.
#[derive(Debug)]
pub(crate) struct PendingFetch {
    /// The hash of the key, and the key; nothing of what has none.
    pub(crate) key: Option<(u64, Arc<[u8]>)>,
    /// Under which those who ask for the same find it; nothing where nobody may wait.
    pub(crate) coalescing_key: Option<u64>,
    /// The second it began.
    pub(crate) began: u64,
    pub(crate) forward: Forward,
    /// The client waited for another one's fetch before, in vain.
    pub(crate) has_waited: bool,
    pub(crate) waiters: Vec<Waiter>,
    /// Nobody waits for it: it replaces what is stale in the background.
    pub(crate) is_refresh: bool,
    /// It comes from the second tier.
    pub(crate) is_disk_load: bool,
    /// The URL was invalidated meanwhile: what comes is not stored (§4.4).
    pub(crate) is_invalidated: bool,
    /// What is being validated.
    pub(crate) candidate: Option<Object>,
    /// The beginning of what comes, of which the rest was asked for.
    pub(crate) prefix: Option<Object>,
    /// The client wants nothing that the origin has not confirmed (RFC 9111 §5.2.1.4).
    pub(crate) requires_validation: bool,
    /// What comes may be stored.
    pub(crate) may_store: bool,
    /// The client's own conditions and range were left out of what was sent.
    pub(crate) conditions_replaced: bool,
    pub(crate) builder: Option<ObjectBuilder>,
}

impl PendingFetch {
    pub(crate) fn new(key: Option<Key<'_>>, forward: Forward, now: u64) -> Self {
        Self {
            key: key.map(|key| (key.hash, Arc::from(key.text))),
            coalescing_key: None,
            began: now,
            forward,
            has_waited: false,
            waiters: Vec::new(),
            is_refresh: false,
            is_disk_load: false,
            is_invalidated: false,
            candidate: None,
            prefix: None,
            requires_validation: false,
            may_store: false,
            conditions_replaced: false,
            builder: None,
        }
    }

    pub(crate) fn has_waiters(&self) -> bool {
        !self.waiters.is_empty()
    }
}

#[derive(Debug, Default)]
struct Slot {
    generation: u32,
    fetching: Option<Box<PendingFetch>>,
}

/// All that is on its way.
#[derive(Debug, Default)]
pub(crate) struct PendingFetches {
    slots: Vec<Slot>,
    free: Vec<u32>,
    by_coalescing_key: HashMap<u64, Ticket>,
    wakeups: VecDeque<Waiter>,
    /// How many are on their way, for each group of keys: mostly nothing is for one that goes.
    active_per_group: GroupCounters,
}

/// A counter for each group of keys.
#[derive(Debug)]
struct GroupCounters(Box<[u32; GROUPS]>);

const GROUPS: usize = 1024;

impl Default for GroupCounters {
    fn default() -> Self {
        Self(Box::new([0; GROUPS]))
    }
}

impl GroupCounters {
    fn of(&mut self, hash: u64) -> &mut u32 {
        &mut self.0[hash as usize % GROUPS]
    }
}

/// The lower bits of a ticket: where; above them which use of the place. The highest ones are the
/// store's.
const SLOT_BITS: u32 = 24;
const GENERATION_BITS: u32 = 32;
/// The bits that belong to a ticket here.
pub(crate) const TICKET_BITS: u32 = SLOT_BITS + GENERATION_BITS;

impl PendingFetches {
    /// Begins `fetching`.
    pub(crate) fn begin(&mut self, fetching: PendingFetch) -> Ticket {
        let at = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot::default());
            self.slots.len() as u32 - 1
        });
        let slot = &mut self.slots[at as usize];
        let ticket = Ticket(u64::from(slot.generation) << SLOT_BITS | u64::from(at));
        if let Some(coalescing_key) = fetching.coalescing_key {
            self.by_coalescing_key.insert(coalescing_key, ticket);
        }
        if let Some((hash, _)) = fetching.key {
            *self.active_per_group.of(hash) += 1;
        }
        slot.fetching = Some(Box::new(fetching));
        ticket
    }

    fn slot(&self, ticket: Ticket) -> Option<usize> {
        let at = (ticket.0 & ((1 << SLOT_BITS) - 1)) as usize;
        let generation = (ticket.0 >> SLOT_BITS) as u32;
        let slot = self.slots.get(at)?;
        (slot.generation == generation && slot.fetching.is_some()).then_some(at)
    }

    pub(crate) fn get(&mut self, ticket: Ticket) -> Option<&mut PendingFetch> {
        let at = self.slot(ticket)?;
        self.slots[at].fetching.as_deref_mut()
    }

    /// Ends it, and lets all who wait for it go.
    pub(crate) fn end(&mut self, ticket: Ticket) -> Option<Box<PendingFetch>> {
        self.release(ticket);
        let at = self.slot(ticket)?;
        let slot = &mut self.slots[at];
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(at as u32);
        let ended = slot.fetching.take();
        if let Some((hash, _)) = ended.as_ref().and_then(|fetching| fetching.key.as_ref()) {
            *self.active_per_group.of(*hash) -= 1;
        }
        ended
    }

    /// Lets all who wait for it go, and nobody wait for it any more. It goes on.
    pub(crate) fn release(&mut self, ticket: Ticket) {
        let Some(at) = self.slot(ticket) else { return };
        let Some(fetching) = self.slots[at].fetching.as_deref_mut() else { return };
        self.wakeups.extend(std::mem::take(&mut fetching.waiters));
        if let Some(coalescing_key) = fetching.coalescing_key.take()
            && self.by_coalescing_key.get(&coalescing_key) == Some(&ticket)
        {
            self.by_coalescing_key.remove(&coalescing_key);
        }
    }

    /// The fetch of `coalescing_key`, if it began less than `limit` seconds ago. An older one was probably
    /// forgotten: who waits for it is let go.
    pub(crate) fn find(&mut self, coalescing_key: u64, now: u64, limit: u32) -> Option<Ticket> {
        let ticket = *self.by_coalescing_key.get(&coalescing_key)?;
        let began = self.get(ticket)?.began;
        // A clock that was set back must not keep anybody waiting either.
        if now.abs_diff(began) < u64::from(limit) {
            return Some(ticket);
        }
        self.release(ticket);
        None
    }

    /// Lets `waiter` wait; false when there are too many already.
    pub(crate) fn wait(&mut self, ticket: Ticket, waiter: Waiter) -> bool {
        match self.get(ticket) {
            Some(fetching) if fetching.waiters.len() < WAITERS_MAX => {
                fetching.waiters.push(waiter);
                true
            }
            _ => false,
        }
    }

    /// What is on its way for `key`, with its hash, will not be stored: it may be older than what made it
    /// so. Everything, for no key.
    pub(crate) fn invalidate(&mut self, key: Option<(u64, &[u8])>) {
        if key.is_some_and(|(hash, _)| *self.active_per_group.of(hash) == 0) {
            return;
        }
        for fetching in self.slots.iter_mut().filter_map(|slot| slot.fetching.as_deref_mut()) {
            let is_meant = match (key, &fetching.key) {
                (Some((hash, key)), Some((other_hash, other))) => {
                    hash == *other_hash && **other == *key
                }
                (None, _) => true,
                (Some(_), None) => false,
            };
            fetching.is_invalidated |= is_meant;
        }
    }

    /// The next one who is let go.
    pub(crate) fn next_wakeup(&mut self) -> Option<Waiter> {
        self.wakeups.pop_front()
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fetching(coalescing_key: u64) -> PendingFetch {
        PendingFetch {
            coalescing_key: Some(coalescing_key),
            ..PendingFetch::new(None, Forward::UriMiss, 100)
        }
    }

    fn waiter(number: u64) -> Waiter {
        Waiter { worker: 0, number }
    }

    #[test]
    fn a_ticket_of_an_ended_fetch_reaches_nobody() {
        let mut pending = PendingFetches::default();
        let old = pending.begin(fetching(1));
        assert!(pending.wait(old, waiter(7)));
        assert!(pending.end(old).is_some());
        let new = pending.begin(fetching(1));
        assert_ne!(old, new);
        assert!(pending.end(old).is_none() && pending.get(old).is_none());
        assert!(!pending.wait(old, waiter(8)));
        assert_eq!((pending.next_wakeup(), pending.next_wakeup()), (Some(waiter(7)), None));
        assert_eq!((pending.find(1, 100, 60), pending.len()), (Some(new), 1));
    }

    #[test]
    fn what_is_under_way_for_a_key_is_invalidated_and_nothing_else() {
        let mut pending = PendingFetches::default();
        let begin = |pending: &mut PendingFetches, hash, text| {
            pending.begin(PendingFetch::new(Some(Key { hash, text }), Forward::UriMiss, 100))
        };
        let group = GROUPS as u64;
        let one = begin(&mut pending, 7, b"one");
        let two = begin(&mut pending, 7 + group, b"two");
        let invalidated = |pending: &mut PendingFetches| {
            [one, two].map(|ticket| pending.get(ticket).is_some_and(|f| f.is_invalidated))
        };
        pending.invalidate(Some((8, b"one")));
        pending.invalidate(Some((7 + group, b"one")));
        assert_eq!(invalidated(&mut pending), [false, false]);
        pending.invalidate(Some((7, b"one")));
        assert_eq!(invalidated(&mut pending), [true, false]);
        pending.end(one);
        pending.end(one);
        pending.invalidate(Some((7 + group, b"two")));
        assert_eq!(invalidated(&mut pending), [false, true]);
        pending.end(two);
        assert_eq!(*pending.active_per_group.of(7), 0);
    }

    #[test]
    fn nobody_waits_for_a_fetch_that_was_forgotten() {
        let mut pending = PendingFetches::default();
        let ticket = pending.begin(fetching(1));
        assert!(pending.wait(ticket, waiter(7)));
        assert_eq!(pending.find(1, 159, 60), Some(ticket));
        assert_eq!(pending.find(1, 160, 60), None);
        assert_eq!(pending.next_wakeup(), Some(waiter(7)));
        let next = pending.begin(PendingFetch { began: 160, ..fetching(1) });
        // The forgotten one ends after all: the new one is not touched.
        pending.end(ticket);
        assert_eq!(pending.find(1, 160, 60), Some(next));
        assert_eq!(pending.find(1, 0, 60), None, "the clock was set back");
    }
}
