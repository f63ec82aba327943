//! Who was added while the partner waited, and is not armed for signals yet.
//!
//! To arm a descriptor takes three system calls, and an armed one costs its senders time, even for
//! a signal that is thrown away. Under load most connections come and go before signals are wanted
//! again, so they are armed when it is quiet, some at a time, before the switch, which therefore
//! stays as cheap as it was.

use crate::{Interest, Token, registration::Registrations};

/// How many stale entries the list may have beside those that count.
const SLACK: usize = 1024;

/// Tokens in the order in which they came.
#[derive(Debug, Default)]
pub(crate) struct Latecomers {
    list: Vec<Token>,
    /// By descriptor number: whether its registration of now is one.
    is_one: Vec<bool>,
}

impl Latecomers {
    /// Notes `token`, which is registered.
    pub(crate) fn add(&mut self, token: Token, registrations: &Registrations) {
        let index = token.fd as usize;
        if index >= self.is_one.len() {
            self.is_one.resize((index + 1).next_multiple_of(1024), false);
        }
        self.is_one[index] = true;
        if self.list.len() >= 2 * registrations.len() + SLACK {
            self.list.retain(|&token| registrations.interest(token).is_some());
        }
        self.list.push(token);
    }

    /// Whether `token`, which is registered or has just been, is one.
    #[inline]
    pub(crate) fn holds(&self, token: Token) -> bool {
        self.is_one.get(token.fd as usize).is_some_and(|&is_one| is_one)
    }

    /// `token` is registered no longer.
    #[inline]
    pub(crate) fn forget(&mut self, token: Token) {
        if let Some(is_one) = self.is_one.get_mut(token.fd as usize) {
            *is_one = false;
        }
    }

    /// Takes one that is still registered, with its interest of now; `None` when there is none.
    pub(crate) fn take(&mut self, registrations: &Registrations) -> Option<(Token, Interest)> {
        while let Some(token) = self.list.pop() {
            if let Some(interest) = registrations.interest(token).filter(|_| self.holds(token)) {
                self.forget(token);
                return Some((token, interest));
            }
        }
        None
    }

    /// Forgets all.
    pub(crate) fn clear(&mut self) {
        self.list.clear();
        self.is_one.clear();
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
