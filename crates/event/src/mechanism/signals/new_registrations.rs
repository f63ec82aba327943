//! Registered descriptors that are not armed for signals.
//!
//! *Unarmed* descriptors were added while the hybrid waited for its partner, or reported so often
//! during that time that they were disarmed. Arming takes three system calls, and an armed descriptor
//! costs its senders time even when the signal is discarded. Under load most connections are closed
//! before signals are used again. So unarmed descriptors are armed in small batches when load is low,
//! before the switch back, and the switch itself stays cheap.
//!
//! *Unsupported* descriptors cannot be armed: eventfds, timerfds, epoll sets. Only the partner
//! reports them, so the hybrid cannot return to signals while there is one.

use crate::{Interest, Token, registration::Registrations};

/// The number of stale entries that the list may have in addition to the live ones.
const SLACK: usize = 1024;

/// Whether a registration is armed for signals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum ArmState {
    /// Armed, or not registered.
    #[default]
    Armed,
    Unarmed,
    Unsupported,
}

/// Unarmed tokens, in the order in which they were added.
#[derive(Debug, Default)]
pub(crate) struct NewRegistrations {
    list: Vec<Token>,
    /// By descriptor number: the state of its present registration.
    states: Vec<ArmState>,
    unsupported: usize,
}

impl NewRegistrations {
    /// Adds `token`, which must be registered.
    pub(crate) fn add(&mut self, token: Token, registrations: &Registrations) {
        self.set(token, ArmState::Unarmed);
        if self.list.len() >= 2 * registrations.len() + SLACK {
            self.list.retain(|&token| registrations.interest(token).is_some());
        }
        self.list.push(token);
    }

    /// Records that `token`, which must be registered, cannot be armed.
    #[cold]
    pub(crate) fn mark_unsupported(&mut self, token: Token) {
        self.set(token, ArmState::Unsupported);
        self.unsupported += 1;
    }

    /// The number of registrations that cannot be armed.
    #[inline]
    pub(crate) fn unsupported(&self) -> usize {
        self.unsupported
    }

    fn set(&mut self, token: Token, state: ArmState) {
        let index = token.fd as usize;
        if index >= self.states.len() {
            self.states.resize((index + 1).next_multiple_of(1024), ArmState::Armed);
        }
        self.states[index] = state;
    }

    fn state(&self, token: Token) -> ArmState {
        self.states.get(token.fd as usize).copied().unwrap_or_default()
    }

    /// Whether `token`, which is registered or was until now, is not armed.
    #[inline]
    pub(crate) fn contains(&self, token: Token) -> bool {
        self.state(token) != ArmState::Armed
    }

    /// Removes `token`, whose registration has ended.
    #[inline]
    pub(crate) fn forget(&mut self, token: Token) {
        if let Some(state) = self.states.get_mut(token.fd as usize) {
            self.unsupported -= usize::from(*state == ArmState::Unsupported);
            *state = ArmState::Armed;
        }
    }

    /// Removes and returns an unarmed registration with its present interest; `None` when there is
    /// none.
    pub(crate) fn take(&mut self, registrations: &Registrations) -> Option<(Token, Interest)> {
        while let Some(token) = self.list.pop() {
            let is_unarmed = self.state(token) == ArmState::Unarmed;
            if let Some(interest) = registrations.interest(token).filter(|_| is_unarmed) {
                self.forget(token);
                return Some((token, interest));
            }
        }
        None
    }

    /// Removes all entries.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_live_registrations_come_out_and_once() {
        let mut registrations = Registrations::default();
        let mut unarmed = NewRegistrations::default();
        let add = |registrations: &mut Registrations, unarmed: &mut NewRegistrations, fd| {
            let token = registrations.insert(fd, Interest::READ).unwrap();
            unarmed.add(token, registrations);
            token
        };
        let gone = add(&mut registrations, &mut unarmed, 5);
        registrations.remove(gone).unwrap();
        unarmed.forget(gone);
        assert!(!unarmed.contains(gone));
        // The same number again: the list has it twice, once for each registration.
        let stays = add(&mut registrations, &mut unarmed, 5);
        let other = add(&mut registrations, &mut unarmed, 6);
        assert!(unarmed.contains(stays) && unarmed.contains(other));
        assert_eq!(unarmed.take(&registrations), Some((other, Interest::READ)));
        assert_eq!(unarmed.take(&registrations), Some((stays, Interest::READ)));
        assert_eq!(unarmed.take(&registrations), None);
        assert!(!unarmed.contains(stays));
    }

    #[test]
    fn the_pinned_are_counted_and_never_taken() {
        let mut registrations = Registrations::default();
        let mut unarmed = NewRegistrations::default();
        let token = registrations.insert(5, Interest::READ).unwrap();
        unarmed.mark_unsupported(token);
        assert!(unarmed.contains(token));
        assert_eq!((unarmed.unsupported(), unarmed.take(&registrations)), (1, None));
        unarmed.forget(token);
        unarmed.forget(token);
        assert!(!unarmed.contains(token));
        assert_eq!(unarmed.unsupported(), 0);
    }

    #[test]
    fn churn_does_not_lengthen_the_list() {
        let mut registrations = Registrations::default();
        let mut unarmed = NewRegistrations::default();
        for _ in 0..100_000 {
            let token = registrations.insert(7, Interest::READ).unwrap();
            unarmed.add(token, &registrations);
            registrations.remove(token).unwrap();
            unarmed.forget(token);
        }
        assert!(unarmed.list.len() <= SLACK + 2, "{}", unarmed.list.len());
        assert_eq!(unarmed.take(&registrations), None);
    }
}
