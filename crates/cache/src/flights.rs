//! Who asks the origin for what, and who waits for it (RFC 9111 §4, collapsed requests).
//!
//! A flight is the one fetch of a key that others wait for. Fetches that nobody may wait for have a
//! ticket too, so that every request that goes on is treated alike.

use crate::{
    cache_status::Forward, config::WAITERS_MAX, engine::Key, gather::Gather, record::Object,
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
pub(crate) struct Fetching {
    /// The hash of the key, and the key; nothing of what has none.
    pub(crate) key: Option<(u64, Arc<[u8]>)>,
    /// Under which those who ask for the same find it; nothing where nobody may wait.
    pub(crate) flight: Option<u64>,
    /// The second it began.
    pub(crate) began: u64,
    pub(crate) forward: Forward,
    /// The client waited for another one's fetch before, in vain.
    pub(crate) has_waited: bool,
    pub(crate) waiters: Vec<Waiter>,
    /// Nobody waits for it: it replaces what is stale in the background.
    pub(crate) is_refresh: bool,
    /// It comes from the second tier.
    pub(crate) is_load: bool,
    /// The URL was invalidated meanwhile: what comes is not stored (§4.4).
    pub(crate) is_doomed: bool,
    /// What is being validated.
    pub(crate) candidate: Option<Object>,
    /// The beginning of what comes, of which the rest was asked for.
    pub(crate) beginning: Option<Object>,
    /// The client wants nothing that the origin has not confirmed (RFC 9111 §5.2.1.4).
    pub(crate) wants_confirmed: bool,
    /// What comes may be stored.
    pub(crate) may_keep: bool,
    /// The client's own conditions and range were left out of what was sent.
    pub(crate) is_stripped: bool,
    pub(crate) kept: Option<Gather>,
}

impl Fetching {
    pub(crate) fn new(key: Option<Key<'_>>, forward: Forward, now: u64) -> Self {
        Self {
            key: key.map(|key| (key.hash, Arc::from(key.text))),
            flight: None,
            began: now,
            forward,
            has_waited: false,
            waiters: Vec::new(),
            is_refresh: false,
            is_load: false,
            is_doomed: false,
            candidate: None,
            beginning: None,
            wants_confirmed: false,
            may_keep: false,
            is_stripped: false,
            kept: None,
        }
    }

    pub(crate) fn has_waiters(&self) -> bool {
        !self.waiters.is_empty()
    }
}

#[derive(Debug, Default)]
struct Place {
    generation: u32,
    fetching: Option<Box<Fetching>>,
}

/// All that is on its way.
#[derive(Debug, Default)]
pub(crate) struct Flights {
    places: Vec<Place>,
    free: Vec<u32>,
    flights: HashMap<u64, Ticket>,
    mail: VecDeque<Waiter>,
    /// How many are on their way, for each group of keys: mostly nothing is for one that goes.
    under_way: Groups,
}

/// A counter for each group of keys.
#[derive(Debug)]
struct Groups(Box<[u32; GROUPS]>);

const GROUPS: usize = 1024;

impl Default for Groups {
    fn default() -> Self {
        Self(Box::new([0; GROUPS]))
    }
}

impl Groups {
    fn of(&mut self, hash: u64) -> &mut u32 {
        &mut self.0[hash as usize % GROUPS]
    }
}

/// The lower bits of a ticket: where; above them which use of the place. The highest ones are the
/// store's.
const PLACE_BITS: u32 = 24;
const GENERATION_BITS: u32 = 32;
/// The bits that belong to a ticket here.
pub(crate) const TICKET_BITS: u32 = PLACE_BITS + GENERATION_BITS;

impl Flights {
    /// Begins `fetching`.
    pub(crate) fn begin(&mut self, fetching: Fetching) -> Ticket {
        let at = self.free.pop().unwrap_or_else(|| {
            self.places.push(Place::default());
            self.places.len() as u32 - 1
        });
        let place = &mut self.places[at as usize];
        let ticket = Ticket(u64::from(place.generation) << PLACE_BITS | u64::from(at));
        if let Some(flight) = fetching.flight {
            self.flights.insert(flight, ticket);
        }
        if let Some((hash, _)) = fetching.key {
            *self.under_way.of(hash) += 1;
        }
        place.fetching = Some(Box::new(fetching));
        ticket
    }

    fn place(&self, ticket: Ticket) -> Option<usize> {
        let at = (ticket.0 & ((1 << PLACE_BITS) - 1)) as usize;
        let generation = (ticket.0 >> PLACE_BITS) as u32;
        let place = self.places.get(at)?;
        (place.generation == generation && place.fetching.is_some()).then_some(at)
    }

    pub(crate) fn get(&mut self, ticket: Ticket) -> Option<&mut Fetching> {
        let at = self.place(ticket)?;
        self.places[at].fetching.as_deref_mut()
    }

    /// Ends it, and lets all who wait for it go.
    pub(crate) fn end(&mut self, ticket: Ticket) -> Option<Box<Fetching>> {
        self.release(ticket);
        let at = self.place(ticket)?;
        let place = &mut self.places[at];
        place.generation = place.generation.wrapping_add(1);
        self.free.push(at as u32);
        let ended = place.fetching.take();
        if let Some((hash, _)) = ended.as_ref().and_then(|fetching| fetching.key.as_ref()) {
            *self.under_way.of(*hash) -= 1;
        }
        ended
    }

    /// Lets all who wait for it go, and nobody wait for it any more. It goes on.
    pub(crate) fn release(&mut self, ticket: Ticket) {
        let Some(at) = self.place(ticket) else { return };
        let Some(fetching) = self.places[at].fetching.as_deref_mut() else { return };
        self.mail.extend(std::mem::take(&mut fetching.waiters));
        if let Some(flight) = fetching.flight.take()
            && self.flights.get(&flight) == Some(&ticket)
        {
            self.flights.remove(&flight);
        }
    }

    /// The fetch of `flight`, if it began less than `limit` seconds ago. An older one was probably
    /// forgotten: who waits for it is let go.
    pub(crate) fn find(&mut self, flight: u64, now: u64, limit: u32) -> Option<Ticket> {
        let ticket = *self.flights.get(&flight)?;
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
    pub(crate) fn doom(&mut self, key: Option<(u64, &[u8])>) {
        if key.is_some_and(|(hash, _)| *self.under_way.of(hash) == 0) {
            return;
        }
        for fetching in self.places.iter_mut().filter_map(|place| place.fetching.as_deref_mut()) {
            let is_meant = match (key, &fetching.key) {
                (Some((hash, key)), Some((other_hash, other))) => {
                    hash == *other_hash && **other == *key
                }
                (None, _) => true,
                (Some(_), None) => false,
            };
            fetching.is_doomed |= is_meant;
        }
    }

    /// The next one who is let go.
    pub(crate) fn next_mail(&mut self) -> Option<Waiter> {
        self.mail.pop_front()
    }

    pub(crate) fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fetching(flight: u64) -> Fetching {
        Fetching { flight: Some(flight), ..Fetching::new(None, Forward::UriMiss, 100) }
    }

    fn waiter(number: u64) -> Waiter {
        Waiter { worker: 0, number }
    }

    #[test]
    fn a_ticket_of_an_ended_fetch_reaches_nobody() {
        let mut flights = Flights::default();
        let old = flights.begin(fetching(1));
        assert!(flights.wait(old, waiter(7)));
        assert!(flights.end(old).is_some());
        let new = flights.begin(fetching(1));
        assert_ne!(old, new);
        assert!(flights.end(old).is_none() && flights.get(old).is_none());
        assert!(!flights.wait(old, waiter(8)));
        assert_eq!((flights.next_mail(), flights.next_mail()), (Some(waiter(7)), None));
        assert_eq!((flights.find(1, 100, 60), flights.len()), (Some(new), 1));
    }

    #[test]
    fn what_is_under_way_for_a_key_is_doomed_and_nothing_else() {
        let mut flights = Flights::default();
        let begin = |flights: &mut Flights, hash, text| {
            flights.begin(Fetching::new(Some(Key { hash, text }), Forward::UriMiss, 100))
        };
        let group = GROUPS as u64;
        let one = begin(&mut flights, 7, b"one");
        let two = begin(&mut flights, 7 + group, b"two");
        let doomed = |flights: &mut Flights| {
            [one, two].map(|ticket| flights.get(ticket).is_some_and(|f| f.is_doomed))
        };
        flights.doom(Some((8, b"one")));
        flights.doom(Some((7 + group, b"one")));
        assert_eq!(doomed(&mut flights), [false, false]);
        flights.doom(Some((7, b"one")));
        assert_eq!(doomed(&mut flights), [true, false]);
        flights.end(one);
        flights.end(one);
        flights.doom(Some((7 + group, b"two")));
        assert_eq!(doomed(&mut flights), [false, true]);
        flights.end(two);
        assert_eq!(*flights.under_way.of(7), 0);
    }

    #[test]
    fn nobody_waits_for_a_fetch_that_was_forgotten() {
        let mut flights = Flights::default();
        let ticket = flights.begin(fetching(1));
        assert!(flights.wait(ticket, waiter(7)));
        assert_eq!(flights.find(1, 159, 60), Some(ticket));
        assert_eq!(flights.find(1, 160, 60), None);
        assert_eq!(flights.next_mail(), Some(waiter(7)));
        let next = flights.begin(Fetching { began: 160, ..fetching(1) });
        // The forgotten one ends after all: the new one is not touched.
        flights.end(ticket);
        assert_eq!(flights.find(1, 160, 60), Some(next));
        assert_eq!(flights.find(1, 0, 60), None, "the clock was set back");
    }
}
