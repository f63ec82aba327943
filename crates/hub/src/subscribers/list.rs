//! Lists that run through the slots themselves, so that membership costs no memory of its own.

use super::Slot;
use slab::Slab;

/// No slot.
pub(super) const NONE: u32 = u32::MAX;

/// The subscribers of a set whose connections can take something: first those that are behind,
/// then those that are idle. When an update comes all of them are behind, which is one assignment.
#[derive(Debug)]
pub(super) struct ReadyList {
    list: List,
    /// The first one that is idle.
    idle: u32,
}

impl ReadyList {
    pub(super) const fn new() -> Self {
        Self { list: List::new(), idle: NONE }
    }

    /// The one whose turn it is, of those that are behind.
    pub(super) fn first_behind(&self) -> Option<u32> {
        Some(self.list.head).filter(|head| *head != NONE && *head != self.idle)
    }

    /// All are behind from now on.
    pub(super) fn all_behind(&mut self) {
        self.idle = NONE;
    }

    pub(super) fn push_behind(&mut self, slots: &mut Slab<Slot>, key: u32) {
        self.list.insert_before(slots, key, self.idle);
    }

    pub(super) fn push_idle(&mut self, slots: &mut Slab<Slot>, key: u32) {
        self.list.insert_before(slots, key, NONE);
        if self.idle == NONE {
            self.idle = key;
        }
    }

    pub(super) fn remove(&mut self, slots: &mut Slab<Slot>, key: u32) {
        if self.idle == key {
            self.idle = slots[key as usize].next;
        }
        self.list.remove(slots, key);
    }
}

/// A doubly linked list.
#[derive(Debug)]
pub(super) struct List {
    head: u32,
    tail: u32,
}

impl List {
    pub(super) const fn new() -> Self {
        Self { head: NONE, tail: NONE }
    }

    pub(super) fn push(&mut self, slots: &mut Slab<Slot>, key: u32) {
        self.insert_before(slots, key, NONE);
    }

    /// Inserts before `next`, or at the end if that is [`NONE`].
    fn insert_before(&mut self, slots: &mut Slab<Slot>, key: u32, next: u32) {
        let previous = if next == NONE { self.tail } else { slots[next as usize].previous };
        slots[key as usize].previous = previous;
        slots[key as usize].next = next;
        self.join(slots, previous, key);
        self.join(slots, key, next);
    }

    pub(super) fn remove(&mut self, slots: &mut Slab<Slot>, key: u32) {
        let Slot { previous, next, .. } = slots[key as usize];
        self.join(slots, previous, next);
    }

    /// Makes two slots neighbours; [`NONE`] is either end.
    fn join(&mut self, slots: &mut Slab<Slot>, previous: u32, next: u32) {
        match previous {
            NONE => self.head = next,
            _ => slots[previous as usize].next = next,
        }
        match next {
            NONE => self.tail = previous,
            _ => slots[next as usize].previous = previous,
        }
    }
}
