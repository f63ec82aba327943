//! `epoll2`: registered once for both directions, level-triggered; gammo §3.
//!
//! The paper's first try at fewer epoll_ctl calls: one when the connection opens, one when it
//! closes, none in between. The price is that epoll_wait returns at once for every connection
//! that is writable, wanted or not (gammo §5, table 1: it doubles epoll_wait). With as many of
//! them as `max_events` the whole buffer may be unwanted ones; the kernel reports in turn, so the
//! wanted ones come within N / `max_events` waits.

use super::epoll_core::EpollCore;
use crate::{
    Capabilities, Description, Error, Event, Interest, Mechanism, Options, Token, Waker,
    sys::{self, EpollOp},
};
use std::{
    os::fd::{AsRawFd, BorrowedFd, OwnedFd},
    time::Duration,
};

const DESCRIPTION: Description = Description {
    name: "epoll2",
    summary: "epoll, level-triggered, registered once for both directions: no interest changes",
    paper: "gammo §3 (epoll2)",
    capabilities: Capabilities::CLOSE_REMOVES.union(Capabilities::WAKES_FOR_NOTHING),
    own_options: &[],
};

/// An epoll instance that is asked for everything; the interest is kept on our side, and events
/// without a part in it are dropped. The paper removes by an explicit epoll_ctl before the close;
/// the kernel does it in close(2) just as well, and the paper found no difference.
#[derive(Debug)]
pub struct Epoll2 {
    core: EpollCore,
}

const BOTH: u32 = (libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLRDHUP) as u32;

impl Mechanism for Epoll2 {
    const DESCRIPTION: &'static Description = &DESCRIPTION;

    fn open(options: &Options) -> Result<Self, Error> {
        Ok(Self { core: EpollCore::open(options)? })
    }

    #[inline]
    fn add(&mut self, fd: BorrowedFd<'_>, interest: Interest) -> Result<Token, Error> {
        let token = self.core.registrations.insert(fd.as_raw_fd(), interest)?;
        self.core.control(EpollOp::Add, token, BOTH).inspect_err(|_| {
            let _ = self.core.registrations.remove(token);
        })?;
        Ok(token)
    }

    #[inline]
    fn modify(&mut self, token: Token, interest: Interest) -> Result<(), Error> {
        self.core.registrations.replace(token, interest).map(drop)
    }

    #[inline]
    fn remove(&mut self, token: Token) -> Result<(), Error> {
        self.core.registrations.remove(token)?;
        self.core.control(EpollOp::Remove, token, 0)
    }

    #[inline]
    fn close(&mut self, token: Token, fd: OwnedFd) -> Result<(), Error> {
        let known = self.core.registrations.remove(token);
        sys::close(fd);
        known.map(drop)
    }

    #[inline]
    fn wait(&mut self, timeout: Option<Duration>) -> Result<usize, Error> {
        self.core.wait(timeout)
    }

    #[inline]
    fn next_event(&mut self) -> Option<Event> {
        while let Some((token, interest, readiness)) = self.core.next_live() {
            let readiness = interest.mask(readiness);
            if !readiness.is_empty() {
                return Some(Event { token, readiness });
            }
        }
        None
    }

    fn len(&self) -> usize {
        self.core.registrations.len()
    }

    fn waker(&mut self) -> Result<Waker, Error> {
        self.core.waker()
    }

    fn reopen_after_fork(&mut self) -> Result<(), Error> {
        self.core.reopen_with(|_| BOTH)
    }
}
