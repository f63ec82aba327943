//! Interest changes that the kernel has not been told yet: for mechanisms that gather them.

use crate::{Interest, Token};
use std::os::fd::RawFd;

/// What the kernel has been told about each descriptor, and the registrations about which it must
/// be told something new, each once however often its interest changes.
///
/// The list may hold registrations that have since ended; who sends it looks them up and skips
/// those. One byte a descriptor.
#[derive(Debug, Default)]
pub(crate) struct ChangesByToken {
    cells: Vec<u8>,
    queued: Vec<Token>,
}

/// The kernel holds the descriptor, with the interest in the low bits.
const IN_KERNEL: u8 = 0x80;
/// The descriptor's registration is in the list.
const QUEUED: u8 = 0x40;
const INTEREST: u8 = 0x03;

impl ChangesByToken {
    /// Puts `token` on the list, unless it is there. Returns the length of the list, which grows
    /// without end only when registrations end without their changes being sent: callers send
    /// when it reaches their maximum.
    #[inline]
    pub(crate) fn queue(&mut self, token: Token) -> usize {
        let index = token.fd as usize;
        if index >= self.cells.len() {
            self.cells.resize((index + 1).next_multiple_of(1024), 0);
        }
        if self.cells[index] & QUEUED == 0 {
            self.cells[index] |= QUEUED;
            self.queued.push(token);
        }
        self.queued.len()
    }

    /// The interest in `fd` that the kernel holds, or nothing when it does not hold `fd`.
    #[inline]
    pub(crate) fn kernel_interest(&self, fd: RawFd) -> Option<Interest> {
        let cell = *self.cells.get(fd as usize)?;
        (cell & IN_KERNEL != 0).then(|| Interest::from_bits_truncate(cell & INTEREST))
    }

    /// Notes what the kernel now holds about `fd`, which has been queued before.
    #[inline]
    pub(crate) fn set_kernel_interest(&mut self, fd: RawFd, interest: Option<Interest>) {
        let cell = &mut self.cells[fd as usize];
        *cell = *cell & QUEUED | interest.map_or(0, |interest| IN_KERNEL | interest.bits());
    }

    /// The registration of `fd` has ended: forgets all about it. Returns what the kernel held.
    #[inline]
    pub(crate) fn end(&mut self, fd: RawFd) -> Option<Interest> {
        let former = self.kernel_interest(fd);
        if let Some(cell) = self.cells.get_mut(fd as usize) {
            *cell = 0;
        }
        former
    }

    /// How long the list is.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.queued.len()
    }

    /// Whether there is nothing to send.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.queued.is_empty()
    }

    /// The newest registration on the list that `is_live`, taken off it.
    #[inline]
    pub(crate) fn pop(
        &mut self,
        is_live: impl Fn(Token) -> Option<Interest>,
    ) -> Option<(Token, Interest)> {
        while let Some(token) = self.queued.pop() {
            // A registration that has ended has left its mark to the next one of its number.
            if let Some(interest) = is_live(token) {
                self.cells[token.fd as usize] &= !QUEUED;
                return Some((token, interest));
            }
        }
        None
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
