//! `epoll` (level-triggered) and `epoll-et` (edge-triggered): epoll(7), gammo §3.

use crate::{
    Capabilities, Description, Error, Event, Interest, Mechanism, Options, Readiness, Token, Waker,
    registration::Registrations,
    sys::{self, EpollEvent, EpollOp},
};
use std::{
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
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

/// User data of the waker's eventfd; no descriptor has this number.
const WAKER: u64 = u64::MAX;

/// An epoll instance; `EDGE` adds EPOLLET to every registration.
#[derive(Debug)]
pub struct Epoll<const EDGE: bool> {
    epoll: OwnedFd,
    registrations: Registrations,
    events: Vec<EpollEvent>,
    next: usize,
    waker: Option<Waker>,
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
        if EDGE && self.next < self.events.len() {
            return Ok(self.events.len() - self.next);
        }
        self.next = 0;
        match sys::epoll_pwait2(self.epoll.as_fd(), &mut self.events, timeout) {
            Ok(filled) => Ok(filled),
            Err(error) if error.raw_os_error() == Some(libc::EINTR) => Ok(0),
            Err(source) => Err(Error::Io { call: "epoll_pwait2", source }),
        }
    }
}

/// The time for epoll_wait(2): rounded up, so that a wait below 1 ms does not become a busy loop.
#[inline]
pub(crate) fn timeout_ms(timeout: Option<Duration>) -> i32 {
    match timeout {
        None => -1,
        Some(time) => time.as_nanos().div_ceil(1_000_000).min(i32::MAX as u128) as i32,
    }
}

impl<const EDGE: bool> Mechanism for Epoll<EDGE> {
    const DESCRIPTION: &'static Description = if EDGE { &self::EDGE } else { &LEVEL };

    fn open(options: &Options) -> Result<Self, Error> {
        Ok(Self {
            epoll: sys::epoll_create().map_err(Error::io("epoll_create1"))?,
            registrations: Registrations::default(),
            events: Vec::with_capacity(options.max_events.max(1)),
            next: 0,
            waker: None,
        })
    }

    #[inline]
    fn add(&mut self, fd: BorrowedFd<'_>, interest: Interest) -> Result<Token, Error> {
        let token = self.registrations.insert(fd.as_raw_fd(), interest)?;
        let bits = Self::bits(interest);
        sys::epoll_ctl(self.epoll.as_fd(), EpollOp::Add, token.fd, bits, token.to_bits()).map_err(
            |source| {
                let _ = self.registrations.remove(token);
                Error::Io { call: "epoll_ctl", source }
            },
        )?;
        Ok(token)
    }

    #[inline]
    fn modify(&mut self, token: Token, interest: Interest) -> Result<(), Error> {
        self.registrations.replace(token, interest)?;
        let bits = Self::bits(interest);
        sys::epoll_ctl(self.epoll.as_fd(), EpollOp::Modify, token.fd, bits, token.to_bits())
            .map_err(Error::io("epoll_ctl"))
    }

    #[inline]
    fn remove(&mut self, token: Token) -> Result<(), Error> {
        self.registrations.remove(token)?;
        sys::epoll_ctl(self.epoll.as_fd(), EpollOp::Remove, token.fd, 0, 0)
            .map_err(Error::io("epoll_ctl"))
    }

    #[inline]
    fn close(&mut self, token: Token, fd: OwnedFd) -> Result<(), Error> {
        let known = self.registrations.remove(token);
        // The kernel drops the registration with the last descriptor of the description.
        sys::close(fd);
        known.map(drop)
    }

    #[inline]
    fn wait(&mut self, timeout: Option<Duration>) -> Result<usize, Error> {
        if EDGE && self.next < self.events.len() {
            return Ok(self.events.len() - self.next);
        }
        self.next = 0;
        match sys::epoll_wait(self.epoll.as_fd(), &mut self.events, timeout_ms(timeout)) {
            Ok(filled) => Ok(filled),
            Err(error) if error.raw_os_error() == Some(libc::EINTR) => Ok(0),
            Err(source) => Err(Error::Io { call: "epoll_wait", source }),
        }
    }

    #[inline]
    fn next_event(&mut self) -> Option<Event> {
        while let Some(&EpollEvent { events, u64: data }) = self.events.get(self.next) {
            self.next += 1;
            if data == WAKER {
                if let Some(waker) = &self.waker {
                    waker.drain();
                }
                continue;
            }
            let token = Token::from_bits(data);
            if self.registrations.interest(token).is_some() {
                return Some(Event { token, readiness: Readiness::from_poll_bits(events) });
            }
        }
        None
    }

    fn len(&self) -> usize {
        self.registrations.len()
    }

    fn waker(&mut self) -> Result<Waker, Error> {
        if let Some(waker) = &self.waker {
            return Ok(waker.clone());
        }
        let waker = Waker::new()?;
        let bits = Self::bits(Interest::READ);
        let fd = waker.as_fd().as_raw_fd();
        sys::epoll_ctl(self.epoll.as_fd(), EpollOp::Add, fd, bits, WAKER)
            .map_err(Error::io("epoll_ctl"))?;
        self.waker = Some(waker.clone());
        Ok(waker)
    }

    fn reopen_after_fork(&mut self) -> Result<(), Error> {
        self.epoll = sys::epoll_create().map_err(Error::io("epoll_create1"))?;
        self.events.clear();
        self.next = 0;
        for (token, interest) in self.registrations.iter() {
            let bits = Self::bits(interest);
            sys::epoll_ctl(self.epoll.as_fd(), EpollOp::Add, token.fd, bits, token.to_bits())
                .map_err(Error::io("epoll_ctl"))?;
        }
        if self.waker.take().is_some() {
            self.waker()?;
        }
        Ok(())
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
