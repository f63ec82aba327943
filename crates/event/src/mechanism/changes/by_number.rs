//! Gathered changes for a kernel set that knows descriptors by their numbers alone, and from which
//! even removals may be gathered.

use crate::Interest;
use std::os::fd::RawFd;

/// What the kernel has been told about each descriptor number, and the numbers about which it must
/// be told something new: each once, whatever happened to it, so that there are never more than
/// descriptors. One byte a number.
#[derive(Debug, Default)]
pub(crate) struct ChangesByNumber {
    cells: Vec<u8>,
    queued: Vec<RawFd>,
}

/// The kernel holds the number, with the interest in the low bits.
const IN_KERNEL: u8 = 0x80;
/// The number is in the list.
const QUEUED: u8 = 0x40;
/// What the kernel holds is about a registration that has ended.
const STALE: u8 = 0x20;
const INTEREST: u8 = 0x03;

impl ChangesByNumber {
    /// A registration of `fd` was made or changed.
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

    /// The registration of `fd` has ended. Nothing to tell if the kernel never heard of it.
    #[inline]
    pub(crate) fn end(&mut self, fd: RawFd) {
        if self.cells.get(fd as usize).is_some_and(|cell| cell & IN_KERNEL != 0) {
            self.cells[fd as usize] |= STALE;
            self.queue(fd);
        }
    }

    /// Whether what the kernel says about `fd` is about its present registration.
    #[inline]
    pub(crate) fn is_current(&self, fd: RawFd) -> bool {
        self.cells.get(fd as usize).is_some_and(|cell| cell & (IN_KERNEL | STALE) == IN_KERNEL)
    }

    /// How many numbers are in the list.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.queued.len()
    }

    /// Whether there is nothing to tell.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.queued.is_empty()
    }

    /// The next number about which the kernel must be told, with the interest to be set, or
    /// nothing to be taken out; `interest` knows the present registrations. From here on it counts
    /// as told.
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
            // An outdated cell differs from any that is not.
            if *cell != former {
                return Some((fd, wanted));
            }
        }
        None
    }

    /// The kernel refused `fd`: it does not hold it.
    pub(crate) fn refuse(&mut self, fd: RawFd) {
        self.cells[fd as usize] &= !(IN_KERNEL | STALE | INTEREST);
    }

    /// A new kernel object holds nothing yet.
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
    fn a_number_is_told_of_once_and_only_if_something_changed() {
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
    fn what_ended_unheard_of_is_not_told() {
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
    fn a_reused_number_is_told_anew_even_with_the_same_interest() {
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
