//! `epoll` (level-triggered) and `epoll-et` (edge-triggered): epoll(7), gammo §3.

use super::epoll_core::EpollCore;
use crate::{
    Capabilities, Description, Error, Event, Interest, Mechanism, Options, Token, Waker,
    sys::{self, EpollOp},
};
use std::{
    os::fd::{AsRawFd, BorrowedFd, OwnedFd},
    time::Duration,
};

/// `epoll`: the kernel reports a descriptor for as long as it is ready (gammo's epoll-LT).
pub type EpollLevel = Epoll<false>;
/// `epoll-et`: the kernel reports a descriptor once per arrival (gammo's epoll-ET).
pub type EpollEdge = Epoll<true>;

const LEVEL: Description = Description {
    name: "epoll",
    summary: "epoll, level-triggered: the interest set is in the kernel, waits cost what is ready",
    paper: "gammo (epoll-LT)",
    capabilities: Capabilities::CLOSE_REMOVES,
    own_options: &[],
};

const EDGE: Description = Description {
    name: "epoll-et",
    summary: "epoll, edge-triggered: one event per arrival",
    paper: "gammo (epoll-ET)",
    capabilities: Capabilities::CLOSE_REMOVES.union(Capabilities::EDGE),
    own_options: &[],
};

/// An epoll instance; `EDGE` adds EPOLLET to every registration. An interest change is a system
/// call of its own, a close removes by itself.
#[derive(Debug)]
pub struct Epoll<const EDGE: bool> {
    core: EpollCore,
}

impl<const EDGE: bool> Epoll<EDGE> {
    #[inline]
    fn bits(interest: Interest) -> u32 {
        interest.to_poll_bits() | if EDGE { libc::EPOLLET as u32 } else { 0 }
    }

    /// [`Mechanism::wait`] to the nanosecond: for timers finer than epoll_wait(2)'s millisecond,
    /// such as a load generator's schedule. Not in the trait, since only epoll can.
    ///
    /// # Errors
    /// [`Error::Io`], with ENOSYS before Linux 5.11.
    #[inline]
    pub fn wait_precisely(&mut self, timeout: Duration) -> Result<usize, Error> {
        match self.core.left() {
            left @ 1.. if EDGE => Ok(left),
            _ => self.core.wait_precisely(timeout),
        }
    }
}

impl<const EDGE: bool> Mechanism for Epoll<EDGE> {
    const DESCRIPTION: &'static Description = if EDGE { &self::EDGE } else { &LEVEL };

    fn open(options: &Options) -> Result<Self, Error> {
        Ok(Self { core: EpollCore::open(options)? })
    }

    #[inline]
    fn add(&mut self, fd: BorrowedFd<'_>, interest: Interest) -> Result<Token, Error> {
        let token = self.core.registrations.insert(fd.as_raw_fd(), interest)?;
        self.core.control(EpollOp::Add, token, Self::bits(interest)).inspect_err(|_| {
            let _ = self.core.registrations.remove(token);
        })?;
        Ok(token)
    }

    #[inline]
    fn modify(&mut self, token: Token, interest: Interest) -> Result<(), Error> {
        let former = self.core.registrations.replace(token, interest)?;
        self.core.control(EpollOp::Modify, token, Self::bits(interest)).inspect_err(|_| {
            let _ = self.core.registrations.replace(token, former);
        })
    }

    #[inline]
    fn remove(&mut self, token: Token) -> Result<(), Error> {
        self.core.registrations.remove(token)?;
        self.core.control(EpollOp::Remove, token, 0)
    }

    #[inline]
    fn close(&mut self, token: Token, fd: OwnedFd) -> Result<(), Error> {
        let known = self.core.registrations.remove(token);
        // The kernel drops the registration with the last descriptor of the description.
        sys::close(fd);
        known.map(drop)
    }

    #[inline]
    fn wait(&mut self, timeout: Option<Duration>) -> Result<usize, Error> {
        match self.core.left() {
            // No second edge would come for these.
            left @ 1.. if EDGE => Ok(left),
            _ => self.core.wait(timeout),
        }
    }

    #[inline]
    fn next_event(&mut self) -> Option<Event> {
        self.core.next_live().map(|(token, _, readiness)| Event { token, readiness })
    }

    fn len(&self) -> usize {
        self.core.registrations.len()
    }

    fn waker(&mut self) -> Result<Waker, Error> {
        self.core.waker()
    }

    fn reopen_after_fork(&mut self) -> Result<(), Error> {
        self.core.reopen_with(Self::bits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn a_precise_wait_is_never_early_and_not_rounded_to_a_millisecond() {
        let mut set = EpollEdge::open(&Options::default()).unwrap();
        let mut shortest = Duration::MAX;
        for _ in 0..50 {
            let started_at = Instant::now();
            assert_eq!(set.wait_precisely(Duration::from_micros(200)).unwrap(), 0);
            let waited = started_at.elapsed();
            assert!(waited >= Duration::from_micros(200), "{waited:?}");
            shortest = shortest.min(waited);
        }
        assert!(shortest < Duration::from_millis(1), "{shortest:?}: a millisecond's grain");
    }
}
