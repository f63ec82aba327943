//! The common parts of the epoll mechanisms.

use crate::{
    Error, Interest, Options, Readiness, Token, Waker, mechanism::timeout::timeout_ms,
    registration::Registrations,
};
use pollux_sys::{self as sys, EpollEvent, EpollOp};
use std::{
    io,
    os::fd::{AsFd, AsRawFd, OwnedFd},
    time::Duration,
};

/// User data of the waker's eventfd; no token has these bits.
const WAKER: u64 = u64::MAX;

/// An epoll instance with its registrations and its buffer of events.
#[derive(Debug)]
pub(crate) struct Instance {
    pub(crate) epoll: OwnedFd,
    pub(crate) registrations: Registrations,
    events: Vec<EpollEvent>,
    next: usize,
    waker: Option<Waker>,
}

/// Converts an error of epoll_ctl(2).
#[cold]
fn refusal(token: Token, source: io::Error) -> Error {
    match source.raw_os_error() {
        Some(libc::EPERM) => Error::CannotWait { fd: token.fd, reason: NOT_BY_EPOLL },
        _ => Error::Io { call: "epoll_ctl", source },
    }
}

const NOT_BY_EPOLL: &str = "epoll refuses it (EPERM): regular files and directories are always \
                            ready; read and write them without waiting";

impl Instance {
    pub(crate) fn open(options: &Options) -> Result<Self, Error> {
        Ok(Self {
            epoll: sys::epoll_create().map_err(Error::io("epoll_create1"))?,
            registrations: Registrations::default(),
            events: Vec::with_capacity(options.event_limit()),
            next: 0,
            waker: None,
        })
    }

    /// epoll_ctl(2) for `token` with these event bits.
    #[inline]
    pub(crate) fn control(&self, op: EpollOp, token: Token, bits: u32) -> Result<(), Error> {
        sys::epoll_ctl(self.epoll.as_fd(), op, token.fd, bits, token.to_bits())
            .map_err(|source| refusal(token, source))
    }

    /// Events of the last wait that have not been taken.
    #[inline]
    pub(crate) fn left(&self) -> usize {
        self.events.len() - self.next
    }

    /// Whether an event of `token` is among those that have not been taken.
    #[inline]
    pub(crate) fn is_reported(&self, token: Token) -> bool {
        let bits = token.to_bits();
        self.events[self.next..].iter().any(|&EpollEvent { u64: data, .. }| data == bits)
    }

    /// epoll_wait(2); discards events that have not been taken.
    #[inline]
    pub(crate) fn wait(&mut self, timeout: Option<Duration>) -> Result<usize, Error> {
        self.next = 0;
        match sys::epoll_wait(self.epoll.as_fd(), &mut self.events, timeout_ms(timeout)) {
            Ok(filled) => Ok(filled),
            Err(error) if error.raw_os_error() == Some(libc::EINTR) => Ok(0),
            Err(source) => Err(Error::Io { call: "epoll_wait", source }),
        }
    }

    /// [`Instance::wait`] to the nanosecond, with epoll_pwait2(2).
    #[inline]
    pub(crate) fn wait_precisely(&mut self, timeout: Duration) -> Result<usize, Error> {
        self.next = 0;
        match sys::epoll_pwait2(self.epoll.as_fd(), &mut self.events, timeout) {
            Ok(filled) => Ok(filled),
            Err(error) if error.raw_os_error() == Some(libc::EINTR) => Ok(0),
            Err(source) => Err(Error::Io { call: "epoll_pwait2", source }),
        }
    }

    /// The next event of a live registration, with the interest in it.
    #[inline]
    pub(crate) fn next_live(&mut self) -> Option<(Token, Interest, Readiness)> {
        while let Some(&EpollEvent { events, u64: data }) = self.events.get(self.next) {
            self.next += 1;
            // The waker's user data is not a live token either.
            let token = Token::from_bits(data);
            if let Some(interest) = self.registrations.interest(token) {
                return Some((token, interest, Readiness::from_poll_bits(events)));
            }
        }
        None
    }

    /// Creates the waker. Its eventfd is edge-triggered, regardless of the rest of the set. Each
    /// wake-up is a new edge, so the eventfd need not be read; its counter holds 2^64 - 2 of them.
    pub(crate) fn waker(&mut self) -> Result<Waker, Error> {
        if let Some(waker) = &self.waker {
            return Ok(waker.clone());
        }
        let waker = Waker::new()?;
        let bits = (libc::EPOLLIN | libc::EPOLLET) as u32;
        let fd = waker.as_fd().as_raw_fd();
        sys::epoll_ctl(self.epoll.as_fd(), EpollOp::Add, fd, bits, WAKER)
            .map_err(Error::io("epoll_ctl"))?;
        self.waker = Some(waker.clone());
        Ok(waker)
    }

    /// A new epoll instance, empty except for a new waker if there was one.
    pub(crate) fn reopen(&mut self) -> Result<(), Error> {
        self.epoll = sys::epoll_create().map_err(Error::io("epoll_create1"))?;
        self.events.clear();
        self.next = 0;
        if self.waker.take().is_some() {
            self.waker()?;
        }
        Ok(())
    }

    /// [`Instance::reopen`] with all registrations; `bits` converts an interest to event bits.
    pub(crate) fn reopen_with(&mut self, bits: impl Fn(Interest) -> u32) -> Result<(), Error> {
        self.reopen()?;
        for (token, interest) in self.registrations.iter() {
            self.control(EpollOp::Add, token, bits(interest))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wakers_data_is_no_token() {
        let mut registrations = Registrations::default();
        let token = registrations.insert(7, Interest::READ).unwrap();
        assert_eq!(registrations.interest(token), Some(Interest::READ));
        assert_eq!(registrations.interest(Token::from_bits(WAKER)), None);
    }
}
