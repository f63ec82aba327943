//! Gathered changes for a kernel set whose entries carry tokens.

use crate::{Interest, Token};
use std::{collections::VecDeque, os::fd::RawFd};

/// The contents of the kernel's set, by descriptor, and the registrations whose entry must be updated,
/// each once regardless of the number of its changes.
///
/// The list may contain registrations that have since ended; [`ChangesByToken::pop`] skips those.
/// One byte a descriptor.
#[derive(Debug, Default)]
pub(crate) struct ChangesByToken {
    cells: Vec<u8>,
    queued: VecDeque<Token>,
}

/// The kernel's set contains the descriptor; the low bits are its interest.
const IN_KERNEL: u8 = 0x80;
/// The descriptor's registration is in the list.
const QUEUED: u8 = 0x40;
const INTEREST: u8 = 0x03;

impl ChangesByToken {
    /// Queues `token`, unless it is in the list, and returns the length of the list. The list grows
    /// without bound only if registrations end before their changes are sent, so callers send when
    /// it reaches their maximum.
    #[inline]
    pub(crate) fn queue(&mut self, token: Token) -> usize {
        let index = token.fd as usize;
        if index >= self.cells.len() {
            self.cells.resize((index + 1).next_multiple_of(1024), 0);
        }
        if self.cells[index] & QUEUED == 0 {
            self.cells[index] |= QUEUED;
            self.queued.push_back(token);
        }
        self.queued.len()
    }

    /// The interest in `fd` that the kernel's set has; `None` if it does not contain `fd`.
    #[inline]
    pub(crate) fn kernel_interest(&self, fd: RawFd) -> Option<Interest> {
        let cell = *self.cells.get(fd as usize)?;
        (cell & IN_KERNEL != 0).then(|| Interest::from_bits_truncate(cell & INTEREST))
    }

    /// Records the interest that the kernel's set has for `fd`, which has been queued before.
    #[inline]
    pub(crate) fn set_kernel_interest(&mut self, fd: RawFd, interest: Option<Interest>) {
        let cell = &mut self.cells[fd as usize];
        *cell = *cell & QUEUED | interest.map_or(0, |interest| IN_KERNEL | interest.bits());
    }

    /// Records that the registration of `fd` has ended. Returns the interest that the kernel's set
    /// has.
    #[inline]
    pub(crate) fn end(&mut self, fd: RawFd) -> Option<Interest> {
        let former = self.kernel_interest(fd);
        if let Some(cell) = self.cells.get_mut(fd as usize) {
            *cell = 0;
        }
        former
    }

    /// The length of the list.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.queued.len()
    }

    /// Whether there is nothing to send.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.queued.is_empty()
    }

    /// Removes and returns the oldest live registration of the list, so that none starves if a caller
    /// does not take all.
    #[inline]
    pub(crate) fn pop(
        &mut self,
        is_live: impl Fn(Token) -> Option<Interest>,
    ) -> Option<(Token, Interest)> {
        while let Some(token) = self.queued.pop_front() {
            // The mark of a registration that has ended belongs to the next registration of its
            // number.
            if let Some(interest) = is_live(token) {
                self.cells[token.fd as usize] &= !QUEUED;
                return Some((token, interest));
            }
        }
        None
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
    use crate::registration::Registrations;

    #[test]
    fn a_descriptor_is_queued_once_and_an_ended_registration_never_comes_up() {
        let mut registrations = Registrations::default();
        let mut changes = ChangesByToken::default();
        let old = registrations.insert(9, Interest::READ).unwrap();
        assert_eq!(changes.queue(old), 1);
        assert_eq!(changes.queue(old), 1);
        registrations.remove(old).unwrap();
        assert_eq!(changes.end(9), None);
        let new = registrations.insert(9, Interest::WRITE).unwrap();
        assert_eq!(changes.queue(new), 2);
        let live = |token| registrations.interest(token);
        assert_eq!(changes.pop(live), Some((new, Interest::WRITE)));
        assert_eq!(changes.pop(live), None);
        changes.set_kernel_interest(9, Some(Interest::WRITE));
        assert_eq!(changes.kernel_interest(9), Some(Interest::WRITE));
        assert_eq!(changes.queue(new), 1);
        assert_eq!(changes.kernel_interest(9), Some(Interest::WRITE));
        assert_eq!(changes.end(9), Some(Interest::WRITE));
        assert_eq!(changes.kernel_interest(9), None);
    }
}
