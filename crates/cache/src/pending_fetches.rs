//! Fetches that have not ended, and the requests that wait for them (RFC 9111 §4, "collapsed"
//! requests).
//!
//! Requests for the same resource share one fetch, which they find by its coalescing key. A fetch
//! that cannot be shared has a ticket too, so that all forwarded requests are handled alike.

use crate::{
    cache_status::Forward, config::WAITERS_MAX, content_range::PARTIAL, directives::Seconds,
    key::Key, object_builder::ObjectBuilder, record::Object,
};
use slab::Slab;
use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

/// Identifies a fetch. A ticket of a fetch that has ended has no effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ticket(pub(crate) u64);

/// A waiting request: its worker, and the number that the worker chose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Waiter {
    pub(crate) worker: u32,
    pub(crate) number: u64,
}

/// A fetch that has not ended.
#[derive(Debug)]
pub(crate) struct PendingFetch {
    /// The key and its hash; `None` if the request has no key.
    pub(crate) key: Option<(u64, Arc<[u8]>)>,
    /// The key under which requests for the same resource find this fetch; `None` if it is not
    /// shared.
    pub(crate) coalescing_key: Option<u64>,
    /// The Unix second at which it began.
    pub(crate) began: u64,
    pub(crate) forward: Forward,
    /// The client waited for another request's fetch before, without result.
    pub(crate) has_waited: bool,
    pub(crate) waiters: Vec<Waiter>,
    /// A background refresh of a stale response; no client waits for it.
    pub(crate) is_refresh: bool,
    /// A load from the disk tier.
    pub(crate) is_disk_load: bool,
    /// The URL was invalidated since the fetch began, so the response must not be stored (§4.4).
    pub(crate) is_invalidated: bool,
    /// The stored response that is being validated.
    pub(crate) candidate: Option<Object>,
    /// The stored beginning of the resource; only the remainder was requested.
    pub(crate) prefix: Option<Object>,
    /// The client accepts only a response that the origin has confirmed (RFC 9111 §5.2.1.4).
    pub(crate) requires_validation: bool,
    /// The staleness that the client accepts if the origin fails (RFC 5861 §4).
    pub(crate) stale_if_error: Option<Seconds>,
    /// Whether the response may be stored.
    pub(crate) may_store: bool,
    /// The client's own conditions and range were not sent to the origin.
    pub(crate) conditions_replaced: bool,
    pub(crate) builder: Option<ObjectBuilder>,
    /// The number of the response's head in the order of arrival; 0 if it is not being stored.
    pub(crate) head_number: u64,
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
            stale_if_error: None,
            may_store: false,
            conditions_replaced: false,
            builder: None,
            head_number: 0,
        }
    }

    /// Returns the stale response to serve because the origin fails, "regardless of other freshness
    /// information" (RFC 5861 §4): also to a client that required a younger one with `max-age` or
    /// `min-fresh`, as a browser's reload does. Not to a client that sent `no-cache`, which
    /// requires confirmation rather than freshness.
    pub(crate) fn substitute(&self, now: u64) -> Option<&Object> {
        let is_possible =
            !self.requires_validation && matches!(self.forward, Forward::Stale | Forward::Request);
        let object = self.candidate.as_ref().filter(|_| is_possible)?;
        let header = object.header();
        let (seconds, staleness) =
            (header.stale_if_error_for(self.stale_if_error), -header.time_left(now));
        (seconds > 0 && staleness <= i64::from(seconds)).then_some(object)
    }

    pub(crate) fn has_waiters(&self) -> bool {
        !self.waiters.is_empty()
    }
}

/// A fetch in the slab. Slots are reused, so a ticket also contains the generation.
#[derive(Debug)]
struct Slot {
    generation: u32,
    fetch: Box<PendingFetch>,
}

/// All pending fetches of one shard.
#[derive(Debug, Default)]
pub(crate) struct PendingFetches {
    slots: Slab<Slot>,
    /// The generation of the next fetch.
    next_generation: u32,
    by_coalescing_key: HashMap<u64, Ticket>,
    /// The number of responses that began to be stored.
    heads: u64,
    wakeups: VecDeque<Waiter>,
    /// The number of pending fetches per group of keys. It lets an invalidation skip the search in
    /// the common case that no fetch of the key is pending.
    active_per_group: GroupCounters,
}

/// One counter per group of keys.
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

/// The lower bits of a ticket hold the slot, the next ones its generation. The store uses the
/// highest bits for the shard.
const SLOT_BITS: u32 = 24;
const GENERATION_BITS: u32 = 32;
/// The number of bits of a ticket that are used here.
pub(crate) const TICKET_BITS: u32 = SLOT_BITS + GENERATION_BITS;

impl Ticket {
    fn index(self) -> usize {
        (self.0 & ((1 << SLOT_BITS) - 1)) as usize
    }

    fn generation(self) -> u32 {
        (self.0 >> SLOT_BITS) as u32
    }
}

impl PendingFetches {
    /// Registers a fetch.
    pub(crate) fn begin(&mut self, fetch: PendingFetch) -> Ticket {
        let generation = self.next_generation;
        self.next_generation = generation.wrapping_add(1);
        let (coalescing_key, key_hash) =
            (fetch.coalescing_key, fetch.key.as_ref().map(|(hash, _)| *hash));
        let index = self.slots.insert(Slot { generation, fetch: Box::new(fetch) });
        let ticket = Ticket(u64::from(generation) << SLOT_BITS | index as u64);
        if let Some(coalescing_key) = coalescing_key {
            self.by_coalescing_key.insert(coalescing_key, ticket);
        }
        if let Some(hash) = key_hash {
            *self.active_per_group.of(hash) += 1;
        }
        ticket
    }

    pub(crate) fn get(&mut self, ticket: Ticket) -> Option<&mut PendingFetch> {
        let slot = self.slots.get_mut(ticket.index())?;
        (slot.generation == ticket.generation()).then_some(&mut *slot.fetch)
    }

    /// Removes a fetch and wakes all requests that wait for it.
    pub(crate) fn end(&mut self, ticket: Ticket) -> Option<Box<PendingFetch>> {
        self.release(ticket);
        self.get(ticket)?;
        let ended = self.slots.remove(ticket.index()).fetch;
        if let Some((hash, _)) = &ended.key {
            *self.active_per_group.of(*hash) -= 1;
        }
        Some(ended)
    }

    /// Wakes all requests that wait for the fetch, and lets no more wait. The fetch itself
    /// continues.
    pub(crate) fn release(&mut self, ticket: Ticket) {
        let Some(fetch) = self.get(ticket) else { return };
        let (waiters, coalescing_key) =
            (std::mem::take(&mut fetch.waiters), fetch.coalescing_key.take());
        self.wakeups.extend(waiters);
        if let Some(coalescing_key) = coalescing_key
            && self.by_coalescing_key.get(&coalescing_key) == Some(&ticket)
        {
            self.by_coalescing_key.remove(&coalescing_key);
        }
    }

    /// Returns the fetch under `coalescing_key`, if it began less than `limit` seconds ago. An
    /// older one was probably lost by its caller: its waiting requests are woken.
    pub(crate) fn find(&mut self, coalescing_key: u64, now: u64, limit: u32) -> Option<Ticket> {
        let ticket = *self.by_coalescing_key.get(&coalescing_key)?;
        let began = self.get(ticket)?.began;
        // If the clock was set back, requests must not wait for long either.
        if now.abs_diff(began) < u64::from(limit) {
            return Some(ticket);
        }
        self.release(ticket);
        None
    }

    /// Adds a waiting request; returns false if the maximum is reached.
    pub(crate) fn wait(&mut self, ticket: Ticket, waiter: Waiter) -> bool {
        match self.get(ticket) {
            Some(fetching) if fetching.waiters.len() < WAITERS_MAX => {
                fetching.waiters.push(waiter);
                true
            }
            _ => false,
        }
    }

    /// Prevents pending fetches of this key from being stored: their responses may be older than the
    /// change that invalidated the key.
    pub(crate) fn invalidate(&mut self, hash: u64, key: &[u8]) {
        if *self.active_per_group.of(hash) == 0 {
            return;
        }
        self.invalidate_if(|fetch| {
            fetch.key.as_ref().is_some_and(|(other, text)| *other == hash && **text == *key)
        });
    }

    /// Prevents the pending fetches from being stored for which `matches` is true.
    pub(crate) fn invalidate_if(&mut self, matches: impl Fn(&PendingFetch) -> bool) {
        for (_, Slot { fetch, .. }) in &mut self.slots {
            let is_meant = matches(fetch);
            fetch.is_invalidated |= is_meant;
        }
    }

    /// Stores the content of the response to `ticket` in `builder` from now on.
    pub(crate) fn store_in(&mut self, ticket: Ticket, builder: ObjectBuilder) {
        self.heads += 1;
        let head_number = self.heads;
        if let Some(fetch) = self.get(ticket) {
            (fetch.builder, fetch.head_number) = (Some(builder), head_number);
        }
    }

    /// Prevents complete responses of the variant `vary` from being stored whose heads arrived before
    /// that of `ticket`: of several responses the most recent one is used (§4). Parts are left out,
    /// because they complement each other.
    pub(crate) fn outdate_earlier(&mut self, ticket: Ticket, vary: &[u8]) {
        let Some(latest) = self.get(ticket) else { return };
        let (number, Some((hash, key))) = (latest.head_number, &latest.key) else { return };
        let (hash, key) = (*hash, Arc::clone(key));
        if *self.active_per_group.of(hash) < 2 {
            return;
        }
        for (_, Slot { fetch, .. }) in &mut self.slots {
            let is_earlier = (1..number).contains(&fetch.head_number)
                && fetch.key.as_ref().is_some_and(|(other, text)| *other == hash && **text == *key)
                && fetch
                    .builder
                    .as_ref()
                    .is_some_and(|builder| builder.status != PARTIAL && builder.vary == vary);
            fetch.is_invalidated |= is_earlier;
        }
    }

    /// Returns the next request to wake.
    pub(crate) fn next_wakeup(&mut self) -> Option<Waiter> {
        self.wakeups.pop_front()
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len()
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
    fn a_ticket_of_an_ended_fetch_has_no_effect() {
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
    fn invalidation_affects_only_pending_fetches_of_its_key() {
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
        pending.invalidate(8, b"one");
        pending.invalidate(7 + group, b"one");
        assert_eq!(invalidated(&mut pending), [false, false]);
        pending.invalidate(7, b"one");
        assert_eq!(invalidated(&mut pending), [true, false]);
        pending.end(one);
        pending.end(one);
        pending.invalidate(7 + group, b"two");
        assert_eq!(invalidated(&mut pending), [false, true]);
        pending.end(two);
        assert_eq!(*pending.active_per_group.of(7), 0);
    }

    #[test]
    fn requests_stop_waiting_for_a_lost_fetch() {
        let mut pending = PendingFetches::default();
        let ticket = pending.begin(fetching(1));
        assert!(pending.wait(ticket, waiter(7)));
        assert_eq!(pending.find(1, 159, 60), Some(ticket));
        assert_eq!(pending.find(1, 160, 60), None);
        assert_eq!(pending.next_wakeup(), Some(waiter(7)));
        let next = pending.begin(PendingFetch { began: 160, ..fetching(1) });
        // The lost fetch ends after all; the new one is unaffected.
        pending.end(ticket);
        assert_eq!(pending.find(1, 160, 60), Some(next));
        assert_eq!(pending.find(1, 0, 60), None, "the clock was set back");
    }
}
