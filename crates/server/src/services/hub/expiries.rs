//! The expiry times of the subscribers' tokens.

use super::care::CARE_INTERVAL;
use pollux_hub::subscribers::SubscriberId;
use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap, binary_heap::PeekMut},
    time::Duration,
};

/// The longest time between the end of a stream and the expiry of its token. A token that one check leaves must not
/// expire before the next check, whose alarm expires up to two ticks (0.2 s) late.
const AHEAD: Duration = CARE_INTERVAL.saturating_add(Duration::from_millis(250));

/// The number of stale entries that are always kept, so that a small hub does not clean up often.
const STALE: usize = 1024;

/// The expiry time of one subscriber's token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Expiry {
    /// The time in seconds since 1970. It is the first field, because expiries are ordered by time.
    at: u64,
    /// The number of the subscriber.
    number: u32,
    pub(super) connection: u64,
}

impl Expiry {
    pub(super) fn new(at: u64, id: SubscriberId, connection: u64) -> Self {
        Self { at, number: id.number(), connection }
    }

    pub(super) fn subscriber(&self) -> SubscriberId {
        SubscriberId::of(self.number)
    }
}

/// The expiries of all subscribers with a token that expires, and of some that have left.
#[derive(Debug, Default)]
pub(super) struct Expiries {
    /// The expiries, the earliest first.
    heap: BinaryHeap<Reverse<Expiry>>,
    /// The expiry times by connection, once an upgrade needs them.
    by_connection: Option<HashMap<u64, u64>>,
    /// The second until which tokens are due: their streams end now.
    due_by: u64,
}

impl Expiries {
    /// Adds an expiry. `now` is the time since 1970. A token that expires before the next check is due at once.
    pub(super) fn add(&mut self, expiry: Expiry, now: Duration) {
        self.due_by = (now + AHEAD).as_secs();
        self.heap.push(Reverse(expiry));
        if let Some(by_connection) = &mut self.by_connection {
            by_connection.insert(expiry.connection, expiry.at);
        }
    }

    /// Returns whether no token expires.
    pub(super) fn is_empty(&self) -> bool {
        self.heap.is_empty()
    }

    /// Makes the tokens due that expire before the next check, which follows after [`CARE_INTERVAL`]. `is_there` returns
    /// whether a subscriber is still there.
    pub(super) fn check(
        &mut self,
        now: Duration,
        subscribers: usize,
        is_there: impl Fn(&Expiry) -> bool,
    ) {
        self.due_by = (now + AHEAD).as_secs();
        // Subscribers that left before their tokens expired have stale entries. Their removal visits every entry, so one
        // call has no maximum. But it removes more than half of the entries: averaged over time, it costs less than two
        // steps per subscriber that has left.
        if self.heap.len() > 2 * subscribers + STALE {
            self.heap.retain(|Reverse(expiry)| is_there(expiry));
        }
        // After an upgrade that failed, the map only grows; the next upgrade makes another one.
        if self.by_connection.as_ref().is_some_and(|map| map.len() > 2 * subscribers + STALE) {
            self.by_connection = None;
        }
    }

    /// Returns whether [`Expiries::take_due`] has something to do.
    #[inline]
    pub(super) fn are_due(&self) -> bool {
        self.heap.peek().is_some_and(|Reverse(expiry)| expiry.at <= self.due_by)
    }

    /// Removes at most `count` entries that are due, the earliest first, and returns those whose subscribers are still
    /// there.
    pub(super) fn take_due(
        &mut self,
        count: usize,
        is_there: impl Fn(&Expiry) -> bool,
    ) -> Vec<Expiry> {
        let mut found = Vec::new();
        for _ in 0..count {
            let Some(first) = self.heap.peek_mut().filter(|first| first.0.at <= self.due_by) else {
                break;
            };
            let Reverse(expiry) = PeekMut::pop(first);
            if is_there(&expiry) {
                found.push(expiry);
            }
        }
        found
    }

    /// Puts an entry back if its stream could not be ended yet.
    pub(super) fn put_back(&mut self, expiry: Expiry) {
        self.heap.push(Reverse(expiry));
    }

    /// Returns the expiry time of a connection's subscriber. The first call visits every entry.
    pub(super) fn of(&mut self, connection: u64) -> Option<u64> {
        let heap = &self.heap;
        let by_connection = self.by_connection.get_or_insert_with(|| {
            heap.iter().map(|Reverse(expiry)| (expiry.connection, expiry.at)).collect()
        });
        by_connection.get(&connection).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::from_secs(1000);

    fn add(expiries: &mut Expiries, at: u64, number: u32) {
        let expiry = Expiry::new(at, SubscriberId::of(number), u64::from(number));
        expiries.add(expiry, NOW);
    }

    #[test]
    fn those_of_one_second_are_taken_in_several_calls() {
        let mut expiries = Expiries::default();
        for number in 0..1000 {
            add(&mut expiries, 1010, number);
        }
        add(&mut expiries, 1009, 1000);
        add(&mut expiries, 1011, 1001);
        expiries.check(NOW, 1002, |_| true);
        assert!(!expiries.are_due());
        expiries.check(Duration::from_secs(1009), 1002, |_| true);
        let mut taken = Vec::new();
        let mut calls = 0;
        while expiries.are_due() {
            let due = expiries.take_due(256, |_| true);
            assert!((1..=256).contains(&due.len()));
            taken.extend(due);
            calls += 1;
        }
        assert_eq!((taken.len(), calls), (1001, 4));
        assert_eq!(taken[0].at, 1009, "the first one first");
        assert!(taken[1..].iter().all(|expiry| expiry.at == 1010));
        // The entry that is left causes no further call before the next check.
        assert!(expiries.take_due(256, |_| true).is_empty());
        expiries.check(Duration::from_secs(1010), 1, |_| true);
        assert!(expiries.are_due());
    }

    #[test]
    fn a_stream_that_could_not_end_is_due_again() {
        let mut expiries = Expiries::default();
        add(&mut expiries, 1001, 1);
        let due = expiries.take_due(256, |_| true);
        assert!(!expiries.are_due());
        expiries.put_back(due[0]);
        assert_eq!(expiries.take_due(256, |_| true), due);
    }

    #[test]
    fn entries_of_subscribers_that_left_count_too() {
        let mut expiries = Expiries::default();
        for number in 0..600 {
            add(&mut expiries, 1001, number);
        }
        let is_there = |expiry: &Expiry| expiry.connection >= 300;
        let taken = [(); 3].map(|()| expiries.take_due(256, is_there).len());
        assert_eq!(taken, [0, 212, 88]);
        assert!(!expiries.are_due());
        // A check removes them if there are many.
        for number in 0..3000 {
            add(&mut expiries, 9000, number);
        }
        expiries.check(NOW, 700, |expiry| expiry.connection >= 2300);
        assert_eq!(expiries.heap.len(), 700);
    }

    #[test]
    fn no_token_expires_between_two_checks() {
        // At every millisecond of a second, with a second check that is two ticks late.
        for part in 0..1000 {
            let first = NOW + Duration::from_millis(part);
            let second = first + CARE_INTERVAL + Duration::from_millis(200);
            let mut expiries = Expiries::default();
            for at in 1000..1010 {
                add(&mut expiries, at, 1);
            }
            expiries.check(first, 10, |_| true);
            let taken = expiries.take_due(256, |_| true);
            let last = taken.last().unwrap().at;
            assert!(Duration::from_secs(last + 1) > second, "{first:?}");
            assert!(Duration::from_secs(last) <= first + AHEAD, "{first:?}");
        }
    }

    #[test]
    fn a_token_that_expires_before_the_next_check_is_due_at_once() {
        let mut expiries = Expiries::default();
        expiries.check(NOW - CARE_INTERVAL, 0, |_| true);
        add(&mut expiries, 1002, 1);
        assert!(!expiries.are_due());
        add(&mut expiries, 1001, 2);
        assert!(expiries.are_due());
    }

    #[test]
    fn the_time_of_a_connection_is_found() {
        let mut expiries = Expiries::default();
        add(&mut expiries, 1005, 1);
        assert_eq!([expiries.of(1), expiries.of(2)], [Some(1005), None]);
        add(&mut expiries, 1006, 2);
        assert_eq!(expiries.of(2), Some(1006));
        // The times are not kept for ever.
        for number in 3..3000 {
            add(&mut expiries, 1007, number);
        }
        expiries.check(NOW, 2, |expiry| expiry.connection < 3);
        assert_eq!((expiries.by_connection.is_none(), expiries.of(2)), (true, Some(1006)));
    }
}
