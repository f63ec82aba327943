//! `uring-poll`: readiness from a ring shared with the kernel; io_uring's multishot poll
//! (IORING_OP_POLL_ADD with IORING_POLL_ADD_MULTI, Linux 5.13; io_uring_enter(2)).
//!
//! What /dev/poll wanted to be (provos §3): the interest set is in the kernel, changes to it are
//! gathered and sent with the wait (its "future work"), and results appear in memory that both
//! sides map. Each descriptor has one request armed, which completes again and again: once per
//! arrival, so the semantics are those of an edge.
//!
//! # Completions that need work
//! - A request may end (a completion without IORING_CQE_F_MORE: the completion queue was full, or
//!   the thread that armed it is gone). It is armed again with the next wait, and reports at once
//!   if the descriptor is ready, so nothing is lost.
//! - Regular files have nothing to wait in: their request ends at once. They are refused as epoll
//!   refuses them, but here the refusal comes with the next wait, as an event.
//! - The queue may overflow. The kernel keeps what did not fit, and the wait fetches it.
//! - A completion of a registration that has ended is dropped: the user data is the token, whose
//!   generation tells.
//!
//! # Closing
//! An armed request holds the file open: after close(2) alone no FIN would be sent. Three orders
//! were possible. Cancel, wait for the answer, close: one more system call for each connection.
//! Cancel and close both in the ring: none at all, but the number would stay taken until the next
//! wait, where a server at its limit gets EMFILE from accept(2), and whoever reuses the number by
//! dup2(2) has it closed under his feet. So: close(2) at once, which frees the number, and the
//! cancellation goes with the next wait, which sends the FIN. One system call, as with epoll.

use super::{changes::ChangesByToken, io_uring_error::io_uring_error};
use crate::{
    Capabilities, Description, Error, Event, Interest, Mechanism, Options, Readiness, Token, Waker,
    options::own::{choice, own_options, refused},
    registration::Registrations,
};
use pollux_sys::{self as sys, Completion, Ring, RingSetup};
use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd, OwnedFd},
    time::Duration,
};

const DESCRIPTION: Description = Description {
    name: "uring-poll",
    summary: "io_uring multishot poll: readiness from a ring shared with the kernel, edge-like",
    paper: "beyond the papers; provos §3 is where it comes from",
    capabilities: Capabilities::EDGE
        .union(Capabilities::BATCHED_CHANGES)
        .union(Capabilities::OVERFLOWS),
    own_options: &[
        (
            "completions",
            &[],
            "completions that lie unread in the ring, rounded up to a power of two (default 16384)",
        ),
        (
            "taskrun",
            TaskWork::NAMES,
            "when the kernel posts completions: at the end of any system call of the thread, or \
             only while it waits (which binds the set to the thread that opens it)",
        ),
    ],
};

/// Requests gathered before they are submitted without waiting; 64 KiB.
const SUBMISSIONS: usize = 1024;

/// Default of the option `completions`: 256 KiB. With fewer than there are ready descriptors the
/// kernel ends requests, which are then armed again one by one.
const COMPLETIONS: u32 = 16_384;

/// The kernel's own maximum (IORING_MAX_CQ_ENTRIES).
const MAX_COMPLETIONS: u32 = 65_536;
const WANTED_COMPLETIONS: &str = "1 to 65536";

choice! {
    /// When the kernel posts completions.
    TaskWork {
        /// At the end of any system call of the thread (IORING_SETUP_COOP_TASKRUN).
        Cooperative = "coop",
        /// Only while the thread waits, which binds the set to the thread that opens it
        /// (IORING_SETUP_DEFER_TASKRUN).
        Deferred = "defer",
    }
}

own_options! {
    /// The options of `uring-poll`.
    UringPollOptions of "uring-poll" {
        /// Completions that lie unread in the ring, 1 to 65536, rounded up to a power of two.
        completions by with_completions as "completions": u32 = COMPLETIONS,
            wants WANTED_COMPLETIONS;
        /// When the kernel posts completions.
        task_work by with_task_work as "taskrun": TaskWork = TaskWork::default();
    }
}

/// The kinds of request, in the bits of the user data that a token (32 bits of descriptor, 24 of
/// generation) leaves free.
const KIND: u64 = 0xff << 56;
const POLL: u64 = 0;
const UPDATE: u64 = 1 << 56;
const CANCEL: u64 = 2 << 56;
const WAKER: u64 = 3 << 56;

/// A ring with one multishot poll request for each registration.
#[derive(Debug)]
pub struct UringPoll {
    registrations: Registrations,
    ring: Ring,
    setup: RingSetup,
    /// What is armed, and what must be armed or changed.
    changes: ChangesByToken,
    /// Cancellations in the submission queue: each makes at least one completion, which is not
    /// what a wait waits for.
    cancellations: u32,
    /// Requests of registrations that have ended, for whose cancellation there was no room.
    uncancelled: Vec<Token>,
    completions: Vec<Completion>,
    next: usize,
    max_events: usize,
    waker: Option<Waker>,
    waker_armed: bool,
    rearm_count: u64,
    retry_count: u64,
    overflows: u64,
    refusals: u64,
}

fn setup(own: &UringPollOptions) -> Result<RingSetup, Error> {
    let completions = own.completions;
    if !(1..=MAX_COMPLETIONS).contains(&completions) {
        let (name, text) = (DESCRIPTION.name, completions.to_string());
        return Err(refused(name, "completions", &text, WANTED_COMPLETIONS));
    }
    // The kernel wants at least as many completions as submissions.
    let completions = completions.next_power_of_two();
    let submissions = completions.min(SUBMISSIONS as u32);
    Ok(RingSetup { submissions, completions, defer: own.task_work == TaskWork::Deferred })
}

fn open_ring(setup: RingSetup) -> Result<Ring, Error> {
    Ring::open(setup).map_err(io_uring_error(DESCRIPTION.name, "io_uring_setup"))
}

impl UringPoll {
    /// As [`Mechanism::open`], with options that have types.
    ///
    /// # Errors
    /// As there.
    pub fn open_with(options: &Options<UringPollOptions>) -> Result<Self, Error> {
        let setup = setup(&options.own)?;
        Ok(Self {
            registrations: Registrations::default(),
            ring: open_ring(setup)?,
            setup,
            changes: ChangesByToken::default(),
            cancellations: 0,
            uncancelled: Vec::new(),
            completions: Vec::with_capacity(options.max_events.max(1)),
            next: 0,
            max_events: options.max_events.max(1),
            waker: None,
            waker_armed: false,
            rearm_count: 0,
            retry_count: 0,
            overflows: 0,
            refusals: 0,
        })
    }

    #[inline]
    fn queue(&mut self, token: Token) -> Result<(), Error> {
        // Only additions that end before the next wait can make the list longer than the set.
        if self.changes.queue(token) >= SUBMISSIONS.max(2 * self.registrations.len()) {
            self.push_changes()?;
        }
        Ok(())
    }

    #[inline]
    fn has_room(&mut self) -> bool {
        self.ring.queued() < self.setup.submissions as usize
    }

    /// Makes room for a request in the submission queue.
    ///
    /// # Errors
    /// There is none, since the kernel takes no requests now.
    #[inline]
    fn make_room(&mut self) -> Result<(), Error> {
        if self.has_room() { Ok(()) } else { self.submit_for_room() }
    }

    #[cold]
    fn submit_for_room(&mut self) -> Result<(), Error> {
        self.enter_now().map_err(Error::io("io_uring_enter"))?;
        if self.has_room() {
            return Ok(());
        }
        // The kernel takes no requests while completions wait for room in the ring (EBUSY): those
        // in the ring are taken out, and handed out with the next wait.
        if self.completions.len() - self.next < MAX_COMPLETIONS as usize {
            self.ring.take_completions(&mut self.completions, MAX_COMPLETIONS as usize);
            self.enter_now().map_err(Error::io("io_uring_enter"))?;
        }
        if self.has_room() {
            return Ok(());
        }
        let source = io::Error::from_raw_os_error(libc::EBUSY);
        Err(Error::Io { call: "io_uring_enter", source })
    }

    /// Submits what is queued and has due completions posted, without waiting for others.
    fn enter_now(&mut self) -> io::Result<()> {
        let cancellations = std::mem::take(&mut self.cancellations);
        let entered = if self.setup.defer && cancellations > 0 {
            // Deferred work is done in small batches, until there is as much as is wanted; each
            // cancellation makes a completion without waiting for anything.
            let wanted = self.ring.completed() as u32 + cancellations;
            self.ring.enter(wanted, Some(Duration::ZERO))
        } else {
            self.ring.enter(0, None)
        };
        self.ignore_expected_errors(entered)
    }

    fn discard_completions(&mut self) {
        self.completions.clear();
        self.ring.take_completions(&mut self.completions, usize::MAX);
    }

    /// Passes over the errors of io_uring_enter(2) that say no more than that a wait has ended, or
    /// that the caller must take completions first.
    #[inline]
    fn ignore_expected_errors(&mut self, entered: io::Result<usize>) -> io::Result<()> {
        match entered {
            Ok(_) => Ok(()),
            Err(error) => match error.raw_os_error() {
                Some(libc::ETIME | libc::EINTR) => Ok(()),
                // Kernels that do not take requests while completions wait for room.
                Some(libc::EBUSY) if self.ring.completed() > 0 => Ok(()),
                _ => Err(error),
            },
        }
    }

    /// Turns what has changed into requests.
    #[inline]
    fn push_changes(&mut self) -> Result<(), Error> {
        while let Some(&token) = self.uncancelled.last() {
            self.make_room()?;
            self.push_cancellation(token);
            self.uncancelled.pop();
        }
        while !self.changes.is_empty() {
            self.make_room()?;
            let live = |token| self.registrations.interest(token);
            let Some((token, interest)) = self.changes.pop(live) else { break };
            let (bits, data) = (interest.to_poll_bits(), token.to_bits());
            let room = match self.changes.kernel_interest(token.fd) {
                // Even when the interest is the same: the change asks to be told again.
                Some(_) => self.ring.push_poll_update(data | POLL, bits, data | UPDATE),
                None => self.ring.push_poll(token.fd, bits, data | POLL),
            };
            assert!(room, "room has been made");
            self.changes.set_kernel_interest(token.fd, Some(interest));
        }
        if let (Some(waker), false) = (&self.waker, self.waker_armed) {
            let fd = waker.as_fd().as_raw_fd();
            self.make_room()?;
            assert!(self.ring.push_poll(fd, libc::POLLIN as u32, WAKER), "room has been made");
            self.waker_armed = true;
        }
        Ok(())
    }

    /// The registration of `token` has ended: cancels its request with the next wait.
    #[inline]
    fn disarm(&mut self, token: Token) -> Result<(), Error> {
        if self.changes.end(token.fd).is_none() {
            return Ok(());
        }
        match self.make_room() {
            Ok(()) => self.push_cancellation(token),
            // Not forgotten: an armed request would hold the file open for ever.
            Err(_) => self.uncancelled.push(token),
        }
        Ok(())
    }

    /// Asks for the end of `token`'s request. The caller has made room for one more entry.
    #[inline]
    fn push_cancellation(&mut self, token: Token) {
        let data = token.to_bits();
        assert!(self.ring.push_cancel(data | POLL, data | CANCEL), "room has been made");
        self.cancellations += 1;
    }

    /// io_uring_enter(2), or nothing when there is nothing to submit and something to take.
    #[inline]
    fn enter(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        let completed = self.ring.completed();
        if completed == 0 && timeout != Some(Duration::ZERO) {
            let wanted = 1 + std::mem::take(&mut self.cancellations);
            let entered = self.ring.enter(wanted, timeout);
            return self.ignore_expected_errors(entered);
        }
        // With deferred work the ring does not tell of all that is held back.
        let to_fetch = completed == 0 && (self.setup.defer || self.ring.holds_back());
        if to_fetch || self.ring.queued() > 0 { self.enter_now() } else { Ok(()) }
    }

    /// The poll request of `token` has completed.
    #[inline]
    fn poll_completed(&mut self, token: Token, completion: Completion) -> Option<Event> {
        let interest = self.registrations.interest(token)?;
        if !completion.more {
            self.changes.set_kernel_interest(token.fd, None);
        }
        if completion.result < 0 {
            return self.poll_failed(token, completion);
        }
        if !completion.more && !self.rearm(token) {
            return Some(self.refuse(token, false));
        }
        let readiness = interest.mask(Readiness::from_poll_bits(completion.result as u32));
        (!readiness.is_empty()).then_some(Event { token, readiness })
    }

    /// The request of `token` has ended by itself: arms it again, unless there is no waiting for
    /// such a descriptor. A request ends when the completion queue is full, but also at once when
    /// there is no queue in the kernel to wait in; armed again and again, a regular file would be
    /// reported for ever, by a mechanism that tells of arrivals.
    #[cold]
    fn rearm(&mut self, token: Token) -> bool {
        if sys::is_file(token.fd) {
            return false;
        }
        self.rearm_count += 1;
        self.changes.queue(token);
        true
    }

    /// The kernel refuses this descriptor; armed again it would be refused again.
    #[cold]
    fn refuse(&mut self, token: Token, invalid: bool) -> Event {
        self.refusals += 1;
        let invalid = if invalid { Readiness::INVALID } else { Readiness::empty() };
        Event { token, readiness: Readiness::ERROR | invalid }
    }

    #[cold]
    fn poll_failed(&mut self, token: Token, completion: Completion) -> Option<Event> {
        if completion.result == -libc::ECANCELED {
            // Not by us, since the registration lives: the thread that armed it is gone.
            self.rearm_count += 1;
            self.changes.queue(token);
            return None;
        }
        Some(self.refuse(token, completion.result == -libc::EBADF))
    }

    /// The change of a poll request has failed.
    #[cold]
    fn update_failed(&mut self, token: Token, completion: Completion) {
        // Otherwise (ENOENT) the request has ended by itself; its own completion arms it again.
        if completion.result == -libc::EALREADY && self.registrations.interest(token).is_some() {
            self.retry_count += 1;
            self.changes.queue(token);
        }
    }
}

impl Drop for UringPoll {
    /// Cancels what is armed. The kernel would do so too when the ring is closed, but later, and
    /// until then each armed request holds its file open: no FIN, an address still in use. (One
    /// IORING_ASYNC_CANCEL_ANY for all was measured at seconds for 20,000.)
    fn drop(&mut self) {
        if !self.ring.is_ours() {
            return;
        }
        let armed: Vec<_> = self.registrations.iter().map(|(token, _)| token).collect();
        for token in armed {
            if self.disarm(token).is_err() || !self.uncancelled.is_empty() {
                return; // the kernel's own time must do
            }
            if self.ring.completed() >= SUBMISSIONS {
                self.discard_completions();
            }
        }
        let _ = self.enter_now();
    }
}

impl Mechanism for UringPoll {
    const DESCRIPTION: &'static Description = &DESCRIPTION;

    fn open(options: &Options) -> Result<Self, Error> {
        Self::open_with(&options.typed()?)
    }

    #[inline]
    fn add(&mut self, fd: BorrowedFd<'_>, interest: Interest) -> Result<Token, Error> {
        let token = self.registrations.insert(fd.as_raw_fd(), interest)?;
        if let Err(error) = self.queue(token) {
            let _ = self.registrations.remove(token);
            let _ = self.disarm(token);
            return Err(error);
        }
        Ok(token)
    }

    #[inline]
    fn modify(&mut self, token: Token, interest: Interest) -> Result<(), Error> {
        self.registrations.replace(token, interest)?;
        self.queue(token)
    }

    #[inline]
    fn remove(&mut self, token: Token) -> Result<(), Error> {
        self.registrations.remove(token)?;
        self.disarm(token)
    }

    #[inline]
    fn close(&mut self, token: Token, fd: OwnedFd) -> Result<(), Error> {
        let removed = self.registrations.remove(token);
        sys::close(fd);
        removed.and_then(|_| self.disarm(token))
    }

    #[inline]
    fn wait(&mut self, timeout: Option<Duration>) -> Result<usize, Error> {
        let pushed = self.push_changes();
        let left = self.completions.len() - self.next;
        if left > 0 {
            // No second edge would come for these. What could not be sent stays for the next wait,
            // which tells of the error if it is still there.
            if pushed.is_ok() && self.ring.queued() > 0 {
                self.enter_now().map_err(Error::io("io_uring_enter"))?;
            }
            return Ok(left);
        }
        pushed?;
        self.overflows += u64::from(self.ring.overflowed());
        self.completions.clear();
        self.next = 0;
        self.enter(timeout).map_err(Error::io("io_uring_enter"))?;
        self.ring.take_completions(&mut self.completions, self.max_events);
        Ok(self.completions.len())
    }

    #[inline]
    fn next_event(&mut self) -> Option<Event> {
        while let Some(&completion) = self.completions.get(self.next) {
            self.next += 1;
            let token = Token::from_bits(completion.user_data & !KIND);
            let event = match completion.user_data & KIND {
                POLL => self.poll_completed(token, completion),
                UPDATE => {
                    self.update_failed(token, completion);
                    None
                }
                WAKER => {
                    // Each wake-up is an arrival, so the eventfd need not be read.
                    self.waker_armed &= completion.more;
                    None
                }
                _ => None,
            };
            if event.is_some() {
                return event;
            }
        }
        None
    }

    fn len(&self) -> usize {
        self.registrations.len()
    }

    fn statistics(&self) -> Vec<(&'static str, u64)> {
        vec![
            ("requests_armed_again", self.rearm_count),
            ("changes_sent_again", self.retry_count),
            ("completion_queue_overflows", self.overflows),
            ("requests_refused", self.refusals),
        ]
    }

    fn waker(&mut self) -> Result<Waker, Error> {
        if let Some(waker) = &self.waker {
            return Ok(waker.clone());
        }
        let waker = Waker::new()?;
        self.waker = Some(waker.clone());
        Ok(waker)
    }

    fn reopen_after_fork(&mut self) -> Result<(), Error> {
        // The parent's ring is only unmapped and closed here (see `Ring::is_ours`).
        self.ring = open_ring(self.setup)?;
        self.cancellations = 0;
        self.uncancelled.clear();
        self.completions.clear();
        self.next = 0;
        self.changes.clear();
        for (token, _) in self.registrations.iter() {
            self.changes.queue(token);
        }
        self.waker_armed = false;
        if self.waker.is_some() {
            self.waker = Some(Waker::new()?);
        }
        self.push_changes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn what_comes_and_goes_between_two_waits_does_not_pile_up() {
        let Ok(mut set) = UringPoll::open(&Options::default()) else {
            return; // the contract suite tells why
        };
        let fd = sys::eventfd().unwrap();
        for _ in 0..10 * SUBMISSIONS {
            let token = set.add(fd.as_fd(), Interest::READ).unwrap();
            set.remove(token).unwrap();
            assert!(set.changes.len() <= SUBMISSIONS);
        }
        set.wait(Some(Duration::ZERO)).unwrap();
        assert_eq!(set.next_event(), None);
        assert_eq!(set.changes.len(), 0);
    }
}
