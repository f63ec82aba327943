//! What is looked after for every subscriber, a part of the slots in each call: heartbeats, and deadlines.

use super::{Deadline, Delivery, Message, State, SubscriberId, Subscribers, ring::NONE};

/// Returns the index of the slot to look at, and moves `at` to the one behind it, or to the first behind the last.
fn step(at: &mut usize, slots: usize) -> u32 {
    let index = if *at < slots { *at } else { 0 };
    *at = index + 1;
    u32::try_from(index).unwrap_or(NONE)
}

impl Subscribers {
    /// Looks at the next `count` slots, and goes on from there at the next call. Streams whose deadline is over end, at
    /// most `budget` of them. Returns how many slots were looked at.
    pub fn end_overdue(
        &mut self,
        count: usize,
        budget: usize,
        now: Deadline,
        mut send: impl FnMut(u64, Message<'_>) -> Delivery,
    ) -> usize {
        let slots = self.slots.capacity();
        let mut left = budget;
        for looked in 0..count.min(slots) {
            if left == 0 {
                return looked;
            }
            let index = step(&mut self.lifetime_at, slots);
            let Some(slot) = self.slots.get(index as usize) else { continue };
            if slot.deadline.is_none_or(|deadline| deadline.units_after(now) > 0) {
                continue;
            }
            let connection = slot.connection;
            left -= 1;
            // A stream whose connection is full ends in a later round.
            if send(connection, Message::End) != Delivery::Full {
                self.remove(SubscriberId(index));
            }
        }
        count
    }

    /// Looks at the next `count` slots, and goes on from there at the next call. An idle subscriber to which nothing was
    /// sent since the last look at it gets a heartbeat, at most `budget` of them in one call. To look at all twice in a
    /// period, call this once a second with their share: nobody is left without a message for longer than a period, and
    /// those that receive updates more often cost no heartbeat. This is neither a timer for each nor a burst. Returns how
    /// many slots were looked at.
    pub fn heartbeat(
        &mut self,
        count: usize,
        budget: usize,
        mut send: impl FnMut(u64, Message<'_>) -> Delivery,
    ) -> usize {
        let slots = self.slots.capacity();
        let mut left = budget;
        for looked in 0..count.min(2 * slots) {
            if left == 0 {
                return looked;
            }
            let index = step(&mut self.heartbeat_at, slots);
            let Some(slot) = self.slots.get_mut(index as usize) else { continue };
            let was_quiet = std::mem::replace(&mut slot.is_quiet, true);
            let (state, connection) = (slot.state, slot.connection);
            if !was_quiet || state == State::Blocked || !self.has_everything(index) {
                continue;
            }
            left -= 1;
            match send(connection, Message::Heartbeat(&self.heartbeat)) {
                Delivery::Taken => self.slots[index as usize].is_quiet = false,
                Delivery::Full => {}
                Delivery::Gone => self.remove(SubscriberId(index)),
            }
        }
        count
    }
}
