//! Timeouts without a heap entry for each: a wheel of lists that link the slots of connections and
//! the alarms of services.
//!
//! A connection that serves requests postpones its deadline at each request. That only writes the
//! new deadline into the slot. The slot stays in the list of an earlier tick, and is moved to the
//! right list when that tick comes. So a request changes no other slot, and a connection is
//! examined once for each timeout, not once for each request.

/// A collection of objects that have timers. The lists of the wheel link these objects by number.
pub(crate) trait Nodes {
    /// Returns the timer of this node, if there ever was a node with this number.
    fn timer_mut(&mut self, node: u32) -> Option<&mut Timer>;
}

/// Nodes with this bit are alarms of services; the others are descriptors.
pub(crate) const ALARM: u32 = 1 << 31;

/// The number of ticks that the wheel distinguishes, which are 102 s. Later deadlines are examined
/// once in each revolution of the wheel.
const BUCKETS: usize = 1024;

/// The value for no slot and for no deadline.
const NONE: u32 = u32::MAX;
/// The value of `Timer::previous` for a slot that is the first of its list.
const FIRST: u32 = u32::MAX - 1;

/// The position of a slot in the wheel.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timer {
    /// The tick at which the timeout expires, or `NONE`.
    deadline: u32,
    /// The tick whose list holds the slot, or `NONE`; never after the deadline.
    list_tick: u32,
    previous: u32,
    next: u32,
}

impl Default for Timer {
    fn default() -> Self {
        Self { deadline: NONE, list_tick: NONE, previous: NONE, next: NONE }
    }
}

impl Timer {
    /// Removes the deadline. The slot stays in its list until the tick of that list.
    #[inline]
    pub(crate) fn disarm(&mut self) {
        self.deadline = NONE;
    }

    /// Returns the tick at which the timeout expires.
    pub(crate) fn deadline(&self) -> Option<u32> {
        (self.deadline != NONE).then_some(self.deadline)
    }

    /// Changes the deadline. Returns false if the slot must then be moved into another list
    /// ([`Wheel::put`]).
    #[inline]
    pub(crate) fn postpone(&mut self, deadline: u32) -> bool {
        self.deadline = deadline;
        self.list_tick <= deadline
    }
}

/// The lists, one for each tick; they are reused in turn.
#[derive(Debug)]
pub(crate) struct Wheel {
    first: Box<[u32; BUCKETS]>,
    /// A bit for each list that is not empty.
    occupied: [u64; BUCKETS / 64],
    /// Every list up to this tick has been emptied.
    done: u32,
}

impl Default for Wheel {
    fn default() -> Self {
        Self { first: Box::new([NONE; BUCKETS]), occupied: [0; BUCKETS / 64], done: 0 }
    }
}

impl Wheel {
    /// Sets the deadline of the node.
    #[inline]
    pub(crate) fn arm(&mut self, nodes: &mut impl Nodes, node: u32, deadline: u32) {
        let Some(slot) = nodes.timer_mut(node) else { return };
        if !slot.postpone(deadline) {
            self.put(nodes, node);
        }
    }

    /// Moves the node into the list where its deadline belongs, after the caller has changed the
    /// deadline with [`Timer::postpone`].
    #[cold]
    pub(crate) fn put(&mut self, nodes: &mut impl Nodes, node: u32) {
        self.unlink(nodes, node);
        self.link(nodes, node);
    }

    /// Links the node into the list of its deadline, or into the last list of the wheel.
    fn link(&mut self, nodes: &mut impl Nodes, node: u32) {
        let Some(slot) = nodes.timer_mut(node) else { return };
        let last = self.done.saturating_add(BUCKETS as u32 - 1);
        let list_tick = slot.deadline.clamp(self.done.saturating_add(1), last);
        let bucket = list_tick as usize % BUCKETS;
        let next = self.first[bucket];
        slot.list_tick = list_tick;
        slot.previous = FIRST;
        slot.next = next;
        self.first[bucket] = node;
        self.occupied[bucket / 64] |= 1 << (bucket % 64);
        if next != NONE
            && let Some(follower) = nodes.timer_mut(next)
        {
            follower.previous = node;
        }
    }

    fn unlink(&mut self, nodes: &mut impl Nodes, node: u32) {
        let Some(slot) = nodes.timer_mut(node) else { return };
        let Timer { list_tick, previous, next, .. } = *slot;
        if list_tick == NONE {
            return;
        }
        slot.list_tick = NONE;
        if next != NONE
            && let Some(follower) = nodes.timer_mut(next)
        {
            follower.previous = previous;
        }
        if previous == FIRST {
            let bucket = list_tick as usize % BUCKETS;
            self.first[bucket] = next;
            if next == NONE {
                self.occupied[bucket / 64] &= !(1 << (bucket % 64));
            }
        } else if let Some(leader) = nodes.timer_mut(previous) {
            leader.next = next;
        }
    }

    /// Returns whether [`Wheel::expire`] was called at `now` or later, so that all deadlines up to
    /// `now` are handled.
    pub(crate) fn is_done_until(&self, now: u32) -> bool {
        self.done >= now
    }

    /// Appends to `due` the nodes whose deadline is at or before `now`, and removes their
    /// deadlines.
    pub(crate) fn expire(&mut self, nodes: &mut impl Nodes, now: u32, due: &mut Vec<u32>) {
        // After a long sleep, one revolution visits every list.
        let turns = now.saturating_sub(self.done).min(BUCKETS as u32);
        let from = now - turns;
        for tick in from + 1..=now {
            let bucket = tick as usize % BUCKETS;
            // A node that is linked again from here on goes into a list after `now`, so that no
            // node is visited twice.
            self.done = now;
            let mut index = std::mem::replace(&mut self.first[bucket], NONE);
            self.occupied[bucket / 64] &= !(1 << (bucket % 64));
            while index != NONE {
                let node = index;
                let Some(slot) = nodes.timer_mut(node) else { break };
                index = slot.next;
                slot.list_tick = NONE;
                match slot.deadline {
                    NONE => {}
                    deadline if deadline <= now => {
                        slot.deadline = NONE;
                        due.push(node);
                    }
                    _ => self.link(nodes, node),
                }
            }
        }
    }

    /// Returns the tick of the next list that is not empty, at which [`Wheel::expire`] must be
    /// called.
    pub(crate) fn next(&self) -> Option<u32> {
        let start = (self.done as usize + 1) % BUCKETS;
        // The word that contains `start` is examined twice: first its upper bits, and at the end
        // its lower bits.
        for step in 0..=BUCKETS / 64 {
            let word = (start / 64 + step) % (BUCKETS / 64);
            let mask = match step {
                0 => u64::MAX << (start % 64),
                last if last == BUCKETS / 64 => !(u64::MAX << (start % 64)),
                _ => u64::MAX,
            };
            let bits = self.occupied[word] & mask;
            if bits != 0 {
                let bucket = word * 64 + bits.trailing_zeros() as usize;
                let distance = (bucket + BUCKETS - start) % BUCKETS;
                return Some(self.done + 1 + distance as u32);
            }
        }
        None
    }
}

/// Returns the earlier of two ticks, either of which may be missing.
pub(crate) fn earlier(a: Option<u32>, b: Option<u32>) -> Option<u32> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (some, None) | (None, some) => some,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    struct All(Vec<Timer>);

    impl Nodes for All {
        fn timer_mut(&mut self, node: u32) -> Option<&mut Timer> {
            self.0.get_mut(node as usize)
        }
    }

    fn expire(wheel: &mut Wheel, nodes: &mut All, now: u32) -> Vec<u32> {
        let mut due = Vec::new();
        wheel.expire(nodes, now, &mut due);
        due.sort_unstable();
        due
    }

    #[test]
    fn a_deadline_moved_on_ends_when_it_says() {
        let mut nodes = All(vec![Timer::default(); 2]);
        let mut wheel = Wheel::default();
        wheel.arm(&mut nodes, 0, 5);
        wheel.arm(&mut nodes, 1, 5);
        wheel.arm(&mut nodes, 0, 9);
        assert_eq!(wheel.next(), Some(5));
        assert_eq!(expire(&mut wheel, &mut nodes, 5), [1]);
        assert_eq!(wheel.next(), Some(9));
        assert_eq!(expire(&mut wheel, &mut nodes, 8), [0; 0]);
        assert_eq!(expire(&mut wheel, &mut nodes, 9), [0]);
        assert_eq!(wheel.next(), None);
    }

    #[test]
    fn what_is_disarmed_never_expires_and_its_number_can_be_used_again() {
        let mut nodes = All(vec![Timer::default(); 1]);
        let mut wheel = Wheel::default();
        wheel.arm(&mut nodes, 0, 3);
        nodes.0[0].disarm();
        wheel.arm(&mut nodes, 0, 7);
        assert_eq!(expire(&mut wheel, &mut nodes, 6), [0; 0]);
        assert_eq!(expire(&mut wheel, &mut nodes, 7), [0]);
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]
        /// Compares with a map of deadlines: the same connections end at the same ticks.
        #[test]
        fn ends_what_a_map_of_deadlines_would_end(
            steps in prop::collection::vec((0..20usize, 0..3000u32, 0..400u32), 1..200)
        ) {
            let mut nodes = All(vec![Timer::default(); 20]);
            let mut wheel = Wheel::default();
            let mut model: BTreeMap<u32, u32> = BTreeMap::new();
            let mut now = 0;
            for (which, ahead, pass) in steps {
                wheel.arm(&mut nodes, which as u32, now + 1 + ahead);
                model.insert(which as u32, now + 1 + ahead);
                let next = wheel.next().expect("one is armed");
                prop_assert!(model.values().all(|&deadline| next <= deadline));
                prop_assert!(next > now);
                now += pass;
                let due: Vec<u32> =
                    model.iter().filter(|(_, d)| **d <= now).map(|(node, _)| *node).collect();
                model.retain(|_, deadline| *deadline > now);
                prop_assert_eq!(expire(&mut wheel, &mut nodes, now), due);
            }
        }
    }
}
