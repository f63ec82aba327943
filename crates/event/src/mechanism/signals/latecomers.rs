//! Who is registered, but not armed for signals.
//!
//! *Latecomers* were added while the partner waited, or reported so often then that they were
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
enum State {
    /// Armed, or not registered.
    #[default]
    Armed,
    Late,
    Pinned,
}

/// Tokens in the order in which they came.
#[derive(Debug, Default)]
pub(crate) struct Latecomers {
    list: Vec<Token>,
    /// By descriptor number: the state of the registration that the descriptor has at present.
    states: Vec<State>,
    pinned: usize,
}

impl Latecomers {
    /// Notes `token`, which is registered.
    pub(crate) fn add(&mut self, token: Token, registrations: &Registrations) {
        self.set(token, State::Late);
        if self.list.len() >= 2 * registrations.len() + SLACK {
            self.list.retain(|&token| registrations.interest(token).is_some());
        }
        self.list.push(token);
    }

    /// Notes that `token`, which is registered, cannot be armed.
    #[cold]
    pub(crate) fn pin(&mut self, token: Token) {
        self.set(token, State::Pinned);
        self.pinned += 1;
    }

    /// How many cannot be armed.
    #[inline]
    pub(crate) fn pinned(&self) -> usize {
        self.pinned
    }

    fn set(&mut self, token: Token, state: State) {
        let index = token.fd as usize;
        if index >= self.states.len() {
            self.states.resize((index + 1).next_multiple_of(1024), State::Armed);
        }
        self.states[index] = state;
    }

    fn state(&self, token: Token) -> State {
        self.states.get(token.fd as usize).copied().unwrap_or_default()
    }

    /// Whether `token`, which is registered or has just been, is not armed.
    #[inline]
    pub(crate) fn holds(&self, token: Token) -> bool {
        self.state(token) != State::Armed
    }

    /// `token` is registered no longer.
    #[inline]
    pub(crate) fn forget(&mut self, token: Token) {
        if let Some(state) = self.states.get_mut(token.fd as usize) {
            self.pinned -= usize::from(*state == State::Pinned);
            *state = State::Armed;
        }
    }

    /// Takes a latecomer that is still registered, with its interest of now; `None` when there is
    /// none.
    pub(crate) fn take(&mut self, registrations: &Registrations) -> Option<(Token, Interest)> {
        while let Some(token) = self.list.pop() {
            let is_late = self.state(token) == State::Late;
            if let Some(interest) = registrations.interest(token).filter(|_| is_late) {
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
        let mut late = Latecomers::default();
        let add = |registrations: &mut Registrations, late: &mut Latecomers, fd| {
            let token = registrations.insert(fd, Interest::READ).unwrap();
            late.add(token, registrations);
            token
        };
        let gone = add(&mut registrations, &mut late, 5);
        registrations.remove(gone).unwrap();
        late.forget(gone);
        assert!(!late.holds(gone));
        // The same number again: twice in the list, once for each use.
        let stays = add(&mut registrations, &mut late, 5);
        let other = add(&mut registrations, &mut late, 6);
        assert!(late.holds(stays) && late.holds(other));
        assert_eq!(late.take(&registrations), Some((other, Interest::READ)));
        assert_eq!(late.take(&registrations), Some((stays, Interest::READ)));
        assert_eq!(late.take(&registrations), None);
        assert!(!late.holds(stays));
    }

    #[test]
    fn the_pinned_are_counted_and_never_taken() {
        let mut registrations = Registrations::default();
        let mut late = Latecomers::default();
        let token = registrations.insert(5, Interest::READ).unwrap();
        late.pin(token);
        assert!(late.holds(token));
        assert_eq!((late.pinned(), late.take(&registrations)), (1, None));
        late.forget(token);
        late.forget(token);
        assert!(!late.holds(token));
        assert_eq!(late.pinned(), 0);
    }

    #[test]
    fn churn_does_not_lengthen_the_list() {
        let mut registrations = Registrations::default();
        let mut late = Latecomers::default();
        for _ in 0..100_000 {
            let token = registrations.insert(7, Interest::READ).unwrap();
            late.add(token, &registrations);
            registrations.remove(token).unwrap();
            late.forget(token);
        }
        assert!(late.list.len() <= SLACK + 2, "{}", late.list.len());
        assert_eq!(late.take(&registrations), None);
    }
}
