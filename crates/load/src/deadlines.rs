//! The waiting connections, in the order of their deadlines.

use std::os::fd::RawFd;

/// A doubly linked list over descriptor numbers.
///
/// All entries of one list have the same time limit and are pushed in the order in which their time
/// began, so the list is always in order of deadline: no heap, no allocation per entry, constant time
/// for each operation.
#[derive(Debug)]
pub(crate) struct Deadlines {
    links: Vec<ListLink>,
    len: usize,
}

#[derive(Clone, Copy, Debug)]
struct ListLink {
    previous: u32,
    next: u32,
}

/// The list's own entry, before the first and after the last; descriptor `fd` is at `fd + 1`.
const ENDS: u32 = 0;
/// The value of `previous` in an entry that is not in the list.
const ABSENT: u32 = u32::MAX;

impl Default for Deadlines {
    fn default() -> Self {
        Self { links: vec![ListLink { previous: ENDS, next: ENDS }], len: 0 }
    }
}

impl Deadlines {
    /// Appends `fd`, which must not be in the list.
    #[inline]
    pub(crate) fn push(&mut self, fd: RawFd) {
        let node = fd as u32 + 1;
        if node as usize >= self.links.len() {
            let len = (node as usize + 1).next_multiple_of(1024);
            self.links.resize(len, ListLink { previous: ABSENT, next: ENDS });
        }
        debug_assert_eq!(self.links[node as usize].previous, ABSENT, "fd {fd} is in the list");
        let last = self.links[ENDS as usize].previous;
        self.links[node as usize] = ListLink { previous: last, next: ENDS };
        self.links[last as usize].next = node;
        self.links[ENDS as usize].previous = node;
        self.len += 1;
    }

    /// Removes `fd`; does nothing if it is not in the list.
    #[inline]
    pub(crate) fn remove(&mut self, fd: RawFd) {
        let node = fd as usize + 1;
        let Some(&ListLink { previous, next }) = self.links.get(node) else { return };
        if previous == ABSENT {
            return;
        }
        self.links[previous as usize].next = next;
        self.links[next as usize].previous = previous;
        self.links[node].previous = ABSENT;
        self.len -= 1;
    }

    /// The entry with the earliest deadline.
    #[inline]
    pub(crate) fn first(&self) -> Option<RawFd> {
        match self.links[ENDS as usize].next {
            ENDS => None,
            node => Some(node as RawFd - 1),
        }
    }

    /// The number of entries.
    pub(crate) fn len(&self) -> usize {
        self.len
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    proptest! {
        #[test]
        fn behaves_as_a_queue_with_removal(steps in prop::collection::vec((any::<bool>(), 0..20i32), 0..200)) {
            let mut list = Deadlines::default();
            let mut model = VecDeque::new();
            for (push, fd) in steps {
                let fd = fd * 300; // beyond the first growth
                if push && !model.contains(&fd) {
                    list.push(fd);
                    model.push_back(fd);
                } else {
                    list.remove(fd);
                    model.retain(|&other| other != fd);
                }
                prop_assert_eq!(list.first(), model.front().copied());
                prop_assert_eq!(list.len(), model.len());
            }
            while let Some(fd) = list.first() {
                prop_assert_eq!(Some(fd), model.pop_front());
                list.remove(fd);
            }
            prop_assert!(model.is_empty());
        }
    }
}
