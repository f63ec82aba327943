//! A ring that runs through the slots themselves, so that membership costs no memory of its own.

use super::Slot;
use slab::Slab;

/// No slot.
pub(super) const NONE: u32 = u32::MAX;

/// The subscribers of a set whose connections can take something: first those that are behind, then those that are
/// idle. When an update comes all of them are behind, which is one assignment. A subscriber that has got it becomes idle
/// where it is, as the border moves past it: a delivery writes to no slot but its own.
#[derive(Debug)]
pub(super) struct ReadyRing {
    /// The first one that is behind, or the first one that is idle if none is behind.
    first: u32,
    /// The first one that is idle, or [`NONE`] if all are behind.
    idle: u32,
}

impl ReadyRing {
    pub(super) const fn new() -> Self {
        Self { first: NONE, idle: NONE }
    }

    /// The one whose turn it is, of those that are behind.
    #[inline]
    pub(super) fn first_behind(&self) -> Option<u32> {
        (self.first != self.idle).then_some(self.first)
    }

    /// All are behind from now on.
    pub(super) fn all_behind(&mut self) {
        self.idle = NONE;
    }

    /// Ends the turn of the first one that is behind: now it is the last one that is idle, or still behind and then the
    /// last one of these.
    #[inline]
    pub(super) fn end_turn(&mut self, slots: &mut Slab<Slot>, is_idle: bool) {
        let key = self.first;
        if self.idle == NONE {
            self.idle = if is_idle { key } else { NONE };
        } else if !is_idle {
            self.remove(slots, key);
            return self.push_behind(slots, key);
        }
        self.first = slots[key as usize].next;
    }

    pub(super) fn push_behind(&mut self, slots: &mut Slab<Slot>, key: u32) {
        let next = if self.idle == NONE { self.first } else { self.idle };
        insert_before(slots, key, next);
        if self.first == self.idle {
            self.first = key;
        }
    }

    pub(super) fn push_idle(&mut self, slots: &mut Slab<Slot>, key: u32) {
        insert_before(slots, key, self.first);
        if self.first == NONE {
            self.first = key;
        }
        if self.idle == NONE {
            self.idle = key;
        }
    }

    pub(super) fn remove(&mut self, slots: &mut Slab<Slot>, key: u32) {
        let Slot { previous, next, .. } = slots[key as usize];
        if next == key {
            return *self = Self::new();
        }
        slots[previous as usize].next = next;
        slots[next as usize].previous = previous;
        let is_only_idle = self.first != key && self.first == next;
        if self.idle == key {
            self.idle = if is_only_idle { NONE } else { next };
        }
        if self.first == key {
            self.first = next;
        }
    }
}

/// Inserts before `next`, or as the only one if that is [`NONE`].
fn insert_before(slots: &mut Slab<Slot>, key: u32, next: u32) {
    let (previous, next) = match next {
        NONE => (key, key),
        _ => (slots[next as usize].previous, next),
    };
    slots[key as usize].previous = previous;
    slots[key as usize].next = next;
    slots[previous as usize].next = key;
    slots[next as usize].previous = key;
}
