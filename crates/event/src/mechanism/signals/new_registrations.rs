//! Who is registered, but not armed for signals.
//!
//! *NewRegistrations* were added while the partner waited, or reported so often then that they were
//! disarmed. To arm a descriptor takes three system calls, and an armed one costs its senders time,
//! even for a signal that is thrown away. Under load most connections come and go before signals
//! are wanted again, so they are armed when it is quiet, some at a time, before the switch, which
//! therefore stays as cheap as it was.
//!
//! *Pinned* are those that cannot be armed: eventfds, timerfds, epoll sets. Only the partner tells
//! of them, so that as long as there is one, there is no way back to signals.

use crate::{Interest, Token, registration::Registrations};

/// How many stale entries the list may have beside those that count.
const SLACK: usize = 1024;

/// What a registration is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum ArmState {
    /// Armed, or not registered.
    #[default]
    Armed,
    Unarmed,
    Unsupported,
}

/// Tokens in the order in which they came.
#[derive(Debug, Default)]
pub(crate) struct NewRegistrations {
    list: Vec<Token>,
    /// By descriptor number: the state of the registration that the descriptor has at present.
    states: Vec<ArmState>,
    unsupported: usize,
}

impl NewRegistrations {
    /// Notes `token`, which is registered.
    pub(crate) fn add(&mut self, token: Token, registrations: &Registrations) {
        self.set(token, ArmState::Unarmed);
        if self.list.len() >= 2 * registrations.len() + SLACK {
            self.list.retain(|&token| registrations.interest(token).is_some());
        }
        self.list.push(token);
    }

    /// Notes that `token`, which is registered, cannot be armed.
    #[cold]
    pub(crate) fn mark_unsupported(&mut self, token: Token) {
        self.set(token, ArmState::Unsupported);
        self.unsupported += 1;
    }

    /// How many cannot be armed.
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

    /// Whether `token`, which is registered or has just been, is not armed.
    #[inline]
    pub(crate) fn contains(&self, token: Token) -> bool {
        self.state(token) != ArmState::Armed
    }

    /// `token` is registered no longer.
    #[inline]
    pub(crate) fn forget(&mut self, token: Token) {
        if let Some(state) = self.states.get_mut(token.fd as usize) {
            self.unsupported -= usize::from(*state == ArmState::Unsupported);
            *state = ArmState::Armed;
        }
    }

    /// Takes a latecomer that is still registered, with its interest of now; `None` when there is
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

    /// Forgets all.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_who_is_still_there_comes_out_and_once() {
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
        // The same number again: twice in the list, once for each use.
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
