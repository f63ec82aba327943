//! Checks that each subscriber gets each publication once and in order.

use std::collections::{BTreeSet, HashMap};

/// The kind of one delivery, for its subscriber.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Delivery {
    /// The first of its publication, in order.
    InOrder,
    /// The first of its publication, after a later one.
    Late,
    /// Not the first of its publication.
    Duplicate,
}

/// The most gaps of one subscriber that are remembered. A later delivery in a forgotten gap counts as
/// a duplicate, and its publication stays lost.
const MAX_MISSING: usize = 4096;

/// The publications that the subscribers of a thread still expect. A subscriber that gets everything in
/// order needs only one number.
#[derive(Debug)]
pub(super) struct Order {
    /// For each subscriber, the publication after the last one that it received.
    next: Vec<u32>,
    missing: HashMap<u32, BTreeSet<u32>>,
}

impl Order {
    pub(super) fn new(subscribers: usize) -> Self {
        Self { next: vec![0; subscribers], missing: HashMap::new() }
    }

    /// The publication after the latest one of this subscriber.
    pub(super) fn next(&self, subscriber: u32) -> u32 {
        self.next[subscriber as usize]
    }

    /// Records a delivery.
    pub(super) fn deliver(&mut self, subscriber: u32, number: u32) -> Delivery {
        let next = &mut self.next[subscriber as usize];
        if number >= *next {
            if number > *next {
                let missing = self.missing.entry(subscriber).or_default();
                missing.extend((*next..number).take(MAX_MISSING.saturating_sub(missing.len())));
            }
            *next = number.saturating_add(1);
            return Delivery::InOrder;
        }
        let missing = self.missing.get_mut(&subscriber);
        if missing.is_some_and(|missing| missing.remove(&number)) {
            Delivery::Late
        } else {
            Delivery::Duplicate
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_late_ones_and_duplicates_are_told_apart() {
        let mut order = Order::new(2);
        let mut deliver = |number| order.deliver(0, number);
        assert_eq!(
            [0, 1, 1].map(&mut deliver),
            [Delivery::InOrder, Delivery::InOrder, Delivery::Duplicate]
        );
        assert_eq!(
            [4, 3, 3, 2, 0].map(&mut deliver),
            [
                Delivery::InOrder,
                Delivery::Late,
                Delivery::Duplicate,
                Delivery::Late,
                Delivery::Duplicate
            ]
        );
        assert_eq!((order.next(0), order.next(1)), (5, 0));
        assert_eq!(order.deliver(1, 7), Delivery::InOrder, "the other one is independent");
    }
}
