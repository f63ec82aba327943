//! Gathered changes for a kernel set that is keyed by descriptor number and from which removals may
//! be gathered, too.

use crate::Interest;
use std::os::fd::RawFd;

/// The contents of the kernel's set, by descriptor number, and the numbers whose entry must be updated.
/// Each number is listed once, so the list is never longer than the table. One byte per number.
#[derive(Debug, Default)]
pub(crate) struct ChangesByNumber {
    cells: Vec<u8>,
    queued: Vec<RawFd>,
}

/// The kernel's set contains the number; the low bits are its interest.
const IN_KERNEL: u8 = 0x80;
/// The number is in the list.
const QUEUED: u8 = 0x40;
/// The kernel's entry belongs to a registration that has ended.
const STALE: u8 = 0x20;
const INTEREST: u8 = 0x03;

impl ChangesByNumber {
    /// Records that a registration of `fd` was made or changed.
    #[inline]
    pub(crate) fn queue(&mut self, fd: RawFd) {
        let index = fd as usize;
        if index >= self.cells.len() {
            self.cells.resize((index + 1).next_multiple_of(1024), 0);
        }
        if self.cells[index] & QUEUED == 0 {
            self.cells[index] |= QUEUED;
            self.queued.push(fd);
        }
    }

    /// Records that the registration of `fd` has ended. Nothing is queued if the kernel never had
    /// it.
    #[inline]
    pub(crate) fn end(&mut self, fd: RawFd) {
        if self.cells.get(fd as usize).is_some_and(|cell| cell & IN_KERNEL != 0) {
            self.cells[fd as usize] |= STALE;
            self.queue(fd);
        }
    }

    /// Whether the kernel's entry for `fd` belongs to its present registration.
    #[inline]
    pub(crate) fn is_current(&self, fd: RawFd) -> bool {
        self.cells.get(fd as usize).is_some_and(|cell| cell & (IN_KERNEL | STALE) == IN_KERNEL)
    }

    /// The length of the list.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.queued.len()
    }

    /// Whether there is nothing to send.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.queued.is_empty()
    }

    /// Takes the next number whose entry must be updated, with the new interest, or `None` to
    /// remove the entry. `interest` returns the present registration's interest. The change counts
    /// as sent.
    #[inline]
    pub(crate) fn take(
        &mut self,
        interest: impl Fn(RawFd) -> Option<Interest>,
    ) -> Option<(RawFd, Option<Interest>)> {
        while let Some(fd) = self.queued.pop() {
            let cell = &mut self.cells[fd as usize];
            let former = *cell & !QUEUED;
            let wanted = interest(fd);
            *cell = wanted.map_or(0, |interest| IN_KERNEL | interest.bits());
            // A stale cell differs from every cell that is not.
            if *cell != former {
                return Some((fd, wanted));
            }
        }
        None
    }

    /// Records that the kernel refused `fd` and does not have it.
    pub(crate) fn refuse(&mut self, fd: RawFd) {
        self.cells[fd as usize] &= !(IN_KERNEL | STALE | INTEREST);
    }

    /// Records that a new kernel object has no entries.
    pub(crate) fn clear(&mut self) {
        self.cells.fill(0);
        self.queued.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes all changes, against one registration of descriptor 9 or none.
    fn taken(
        changes: &mut ChangesByNumber,
        interest: Option<Interest>,
    ) -> Vec<(RawFd, Option<Interest>)> {
        std::iter::from_fn(|| changes.take(|_| interest)).collect()
    }

    const READ: Option<Interest> = Some(Interest::READ);
    const WRITE: Option<Interest> = Some(Interest::WRITE);

    #[test]
    fn a_number_is_reported_once_and_only_if_something_changed() {
        let mut changes = ChangesByNumber::default();
        changes.queue(9);
        changes.queue(9);
        assert!(!changes.is_current(9));
        assert_eq!(taken(&mut changes, READ), [(9, READ)]);
        assert!(changes.is_current(9) && changes.is_empty());
        changes.queue(9);
        assert_eq!(taken(&mut changes, READ), []);
        changes.queue(9);
        assert_eq!(taken(&mut changes, WRITE), [(9, WRITE)]);
    }

    #[test]
    fn a_registration_added_and_removed_between_two_waits_is_not_reported() {
        let mut changes = ChangesByNumber::default();
        changes.end(9);
        assert!(changes.is_empty());
        changes.queue(9);
        changes.end(9);
        assert_eq!(taken(&mut changes, None), []);
        changes.queue(9);
        assert_eq!(taken(&mut changes, READ), [(9, READ)]);
    }

    #[test]
    fn a_reused_number_is_reported_again_even_with_the_same_interest() {
        let mut changes = ChangesByNumber::default();
        changes.queue(9);
        taken(&mut changes, READ);
        changes.end(9);
        assert!(!changes.is_current(9));
        changes.queue(9);
        assert!(!changes.is_current(9), "what the kernel says is about the former one");
        assert_eq!(taken(&mut changes, READ), [(9, READ)]);
        assert!(changes.is_current(9));
        changes.end(9);
        assert_eq!(taken(&mut changes, None), [(9, None)]);
        assert!(!changes.is_current(9));
        changes.end(9);
        assert!(changes.is_empty());
    }

    #[test]
    fn what_was_refused_is_tried_again() {
        let mut changes = ChangesByNumber::default();
        changes.queue(9);
        taken(&mut changes, READ);
        changes.refuse(9);
        assert!(!changes.is_current(9));
        changes.queue(9);
        assert_eq!(taken(&mut changes, READ), [(9, READ)]);
    }
}
