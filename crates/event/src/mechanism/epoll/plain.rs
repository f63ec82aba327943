//! `epoll` (level-triggered), `epoll-et` (edge-triggered) and `epoll2` (registered once for both
//! directions): epoll(7), gammo §3. One mechanism in three variants.
//!
//! `epoll2` is the paper's first attempt to save epoll_ctl calls: one when a connection opens, one
//! when it closes, none in between. The price is that epoll_wait returns at once for every writable
//! connection, whether its interest includes writing or not (gammo §5, table 1: twice as many
//! epoll_wait calls). If `max_events` or more are writable, unwanted events may fill the whole
//! buffer; the kernel reports in turn, so the wanted ones arrive within N / `max_events` waits. The
//! paper removes a descriptor with epoll_ctl before the close. close(2) removes it as well, and the
//! paper found no difference.

use super::instance::Instance;
use crate::{
    Capabilities, Description, Error, Event, Interest, Mechanism, Options, Token, Waker,
    registration::Registrations, registry,
};
use pollux_sys::{self as sys, EpollOp};
use std::{
    marker::PhantomData,
    os::fd::{AsRawFd, BorrowedFd, OwnedFd},
    time::Duration,
};

/// `epoll`: the kernel reports a descriptor for as long as it is ready (gammo's epoll-LT).
pub type EpollLevel = Epoll<Level>;
/// `epoll-et`: the kernel reports a descriptor once per arrival (gammo's epoll-ET).
pub type EpollEdge = Epoll<Edge>;
/// `epoll2`: the kernel reports both directions, and events that are not in the interest are dropped
/// here.
pub type Epoll2 = Epoll<BothDirections>;

/// The differences between the variants, known at compile time.
pub trait Variant: std::fmt::Debug + 'static {
    /// The registry's entry.
    const DESCRIPTION: &'static Description;
    /// Adds EPOLLET to every registration.
    const EDGE: bool;
    /// Every registration is for both directions, regardless of the interest.
    const BOTH_DIRECTIONS: bool;
}

/// The variant `epoll`.
#[derive(Debug)]
pub struct Level;

impl Variant for Level {
    const DESCRIPTION: &'static Description = &Description {
        name: "epoll",
        summary: "epoll, level-triggered: the interest set is in the kernel, waits cost what is \
                  ready",
        paper: "gammo (epoll-LT)",
        capabilities: Capabilities::CLOSE_REMOVES,
        own_options: &[],
    };
    const EDGE: bool = false;
    const BOTH_DIRECTIONS: bool = false;
}

/// The variant `epoll-et`.
#[derive(Debug)]
pub struct Edge;

impl Variant for Edge {
    const DESCRIPTION: &'static Description = &Description {
        name: "epoll-et",
        summary: "epoll, edge-triggered: one event per arrival",
        paper: "gammo (epoll-ET)",
        capabilities: Capabilities::CLOSE_REMOVES.union(Capabilities::EDGE),
        own_options: &[],
    };
    const EDGE: bool = true;
    const BOTH_DIRECTIONS: bool = false;
}

/// The variant `epoll2`.
#[derive(Debug)]
pub struct BothDirections;

impl Variant for BothDirections {
    const DESCRIPTION: &'static Description = &Description {
        name: "epoll2",
        summary: "epoll, level-triggered, registered once for both directions: no interest changes",
        paper: "gammo §3 (epoll2)",
        capabilities: Capabilities::CLOSE_REMOVES.union(Capabilities::SPURIOUS_WAKEUPS),
        own_options: &[],
    };
    const EDGE: bool = false;
    const BOTH_DIRECTIONS: bool = true;
}

/// An epoll instance. An interest change is a system call; a close removes the descriptor.
#[derive(Debug)]
pub struct Epoll<V: Variant> {
    instance: Instance,
    variant: PhantomData<V>,
}

impl<V: Variant> Epoll<V> {
    /// The registrations; for `hybrid`, which has no table of its own.
    #[inline]
    pub(crate) fn registrations(&self) -> &Registrations {
        &self.instance.registrations
    }

    /// Whether an event of `token` has been reported and not been taken.
    #[inline]
    pub(crate) fn is_reported(&self, token: Token) -> bool {
        self.instance.is_reported(token)
    }

    #[inline]
    fn bits(interest: Interest) -> u32 {
        let wanted = if V::BOTH_DIRECTIONS { Interest::all() } else { interest };
        wanted.to_poll_bits() | if V::EDGE { libc::EPOLLET as u32 } else { 0 }
    }

    /// [`Mechanism::wait`] to the nanosecond, for timers finer than epoll_wait(2)'s millisecond,
    /// such as a load generator's schedule. Not in the trait, since only epoll offers it.
    ///
    /// # Errors
    /// [`Error::Io`], with ENOSYS before Linux 5.11.
    #[inline]
    pub fn wait_precisely(&mut self, timeout: Duration) -> Result<usize, Error> {
        match self.instance.left() {
            left @ 1.. if V::EDGE => Ok(left),
            _ => self.instance.wait_precisely(timeout),
        }
    }
}

impl<V: Variant> Mechanism for Epoll<V> {
    const DESCRIPTION: &'static Description = V::DESCRIPTION;

    fn open(options: &Options) -> Result<Self, Error> {
        registry::check(Self::DESCRIPTION.name, &options.own)?;
        Ok(Self { instance: Instance::open(options)?, variant: PhantomData })
    }

    #[inline]
    fn add(&mut self, fd: BorrowedFd<'_>, interest: Interest) -> Result<Token, Error> {
        let token = self.instance.registrations.insert(fd.as_raw_fd(), interest)?;
        self.instance.control(EpollOp::Add, token, Self::bits(interest)).inspect_err(|_| {
            let _ = self.instance.registrations.remove(token);
        })?;
        Ok(token)
    }

    #[inline]
    fn modify(&mut self, token: Token, interest: Interest) -> Result<(), Error> {
        let former = self.instance.registrations.replace(token, interest)?;
        if V::BOTH_DIRECTIONS {
            return Ok(());
        }
        self.instance.control(EpollOp::Modify, token, Self::bits(interest)).inspect_err(|_| {
            let _ = self.instance.registrations.replace(token, former);
        })
    }

    #[inline]
    fn remove(&mut self, token: Token) -> Result<(), Error> {
        self.instance.registrations.remove(token)?;
        self.instance.control(EpollOp::Remove, token, 0)
    }

    #[inline]
    fn close(&mut self, token: Token, fd: OwnedFd) -> Result<(), Error> {
        let removed = self.instance.registrations.remove(token);
        // close(2) of the description's last descriptor removes the registration.
        sys::close(fd);
        removed.map(drop)
    }

    #[inline]
    fn wait(&mut self, timeout: Option<Duration>) -> Result<usize, Error> {
        match self.instance.left() {
            // No second edge would report these events.
            left @ 1.. if V::EDGE => Ok(left),
            _ => self.instance.wait(timeout),
        }
    }

    #[inline]
    fn next_event(&mut self) -> Option<Event> {
        while let Some((token, interest, readiness)) = self.instance.next_live() {
            if !V::BOTH_DIRECTIONS {
                return Some(Event { token, readiness });
            }
            let readiness = interest.mask(readiness);
            if !readiness.is_empty() {
                return Some(Event { token, readiness });
            }
        }
        None
    }

    fn len(&self) -> usize {
        self.instance.registrations.len()
    }

    fn waker(&mut self) -> Result<Waker, Error> {
        self.instance.waker()
    }

    fn reopen_after_fork(&mut self) -> Result<(), Error> {
        self.instance.reopen_with(Self::bits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn a_precise_wait_is_never_early_and_not_rounded_to_a_millisecond() {
        const PATIENCE: Duration = Duration::from_secs(20);
        let mut set = EpollEdge::open(&Options::default()).unwrap();
        let mut shortest = Duration::MAX;
        let until = Instant::now() + PATIENCE;
        let mut waits = 0;
        // A busy machine may lengthen a wait, but not every one of many waits.
        while waits < 50 || shortest >= Duration::from_millis(1) {
            assert!(Instant::now() < until, "{shortest:?}: a millisecond's grain");
            let started_at = Instant::now();
            assert_eq!(set.wait_precisely(Duration::from_micros(200)).unwrap(), 0);
            let waited = started_at.elapsed();
            assert!(waited >= Duration::from_micros(200), "{waited:?}");
            shortest = shortest.min(waited);
            waits += 1;
        }
    }
}
