//! `uring-poll`: readiness from a ring shared with the kernel; io_uring's multishot poll
//! (IORING_OP_POLL_ADD with IORING_POLL_ADD_MULTI, Linux 5.13; io_uring_enter(2)).
//!
//! It is the goal of /dev/poll (provos §3): the kernel keeps the interest set, changes are gathered and
//! sent with the wait (the paper's "future work"), and results appear in shared memory. Each descriptor
//! has one armed request that completes once per arrival, so the semantics are edge-triggered.
//!
//! # Completions that need work
//! - A request may end: its completion lacks IORING_CQE_F_MORE because the completion queue was full,
//!   or because the thread that armed it has ended. A later wait arms it again, and it reports at once
//!   if the descriptor is ready, so no event is lost. After an overflow a wait arms no more requests
//!   than there is room for their reports: others would end again, and if many descriptors stay ready,
//!   this would have no end.
//! - Regular files, and devices such as /dev/null, have no wait queue: their request ends at once. They
//!   are refused as with epoll, but the refusal arrives as an event of the next wait.
//! - The completion queue may overflow. The kernel keeps the completions that did not fit, and the next
//!   wait fetches them.
//! - The user data is the token. A completion of a registration that has ended is recognised by its
//!   generation and dropped.
//!
//! # Closing
//! An armed request holds the file open: after close(2) alone no FIN would be sent. There were
//! three options. Cancel, wait for the completion, close: one more system call per connection.
//! Cancel and close in the ring: no system call, but the number stays in use until the next wait,
//! so a server at its limit gets EMFILE from accept(2), and a dup2(2) to that number would be
//! undone by the late close. Chosen: close(2) at once, which frees the number, and cancel with the
//! next wait, which sends the FIN. One system call, as with epoll.

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
        .union(Capabilities::OVERFLOWS)
        .union(Capabilities::USES_RING),
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

/// The most requests gathered before they are submitted without waiting; 64 KiB.
const SUBMISSIONS: usize = 1024;

/// Default of the option `completions`: 256 KiB. If more descriptors are ready than fit, the kernel
/// ends requests, which must then be armed again one by one.
const COMPLETIONS: u32 = 16_384;

/// The kernel's own maximum (IORING_MAX_CQ_ENTRIES).
const MAX_COMPLETIONS: u32 = 65_536;
const WANTED_COMPLETIONS: &str = "1 to 65536";

choice! {
    /// The time when the kernel posts completions.
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
        /// The size of the completion queue, 1 to 65536, rounded up to a power of two.
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
    /// The armed requests, and those that must be armed or changed.
    changes: ChangesByToken,
    /// Cancellations in the submission queue. Each posts at least one completion that a wait must
    /// not count.
    cancellations: u32,
    /// Requests of ended registrations whose cancellation did not fit into the queue.
    uncancelled: Vec<Token>,
    completions: Vec<Completion>,
    next: usize,
    max_events: usize,
    waker: Option<Waker>,
    waker_armed: bool,
    /// The completion queue was full, and not all requests that ended then are armed again.
    has_ended_requests: bool,
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
    // The kernel requires at least as many completions as submissions.
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
            completions: Vec::with_capacity(options.event_limit()),
            next: 0,
            max_events: options.event_limit(),
            waker: None,
            waker_armed: false,
            has_ended_requests: false,
            rearm_count: 0,
            retry_count: 0,
            overflows: 0,
            refusals: 0,
        })
    }

    #[inline]
    fn queue(&mut self, token: Token) -> Result<(), Error> {
        // Only registrations that end before the next wait can make the list longer than the set.
        if self.changes.queue(token) >= SUBMISSIONS.max(2 * self.registrations.len()) {
            self.push_changes(usize::MAX)?;
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
    /// The kernel accepts no requests at present.
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
        // The kernel accepts no requests while completions wait for room in the ring (EBUSY). So
        // the completions are taken out now and handed out with the next wait.
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

    /// Submits queued requests and lets the kernel post due completions, without waiting for more.
    fn enter_now(&mut self) -> io::Result<()> {
        let cancellations = std::mem::take(&mut self.cancellations);
        let entered = if self.setup.defer && cancellations > 0 {
            // The kernel does deferred work in small batches until it has as many completions as
            // requested. Each cancellation posts a completion at once.
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

    /// Ignores the errors of io_uring_enter(2) that only say that the wait has ended, or that
    /// completions must be taken first.
    #[inline]
    fn ignore_expected_errors(&mut self, entered: io::Result<usize>) -> io::Result<()> {
        match entered {
            Ok(_) => Ok(()),
            Err(error) => match error.raw_os_error() {
                Some(libc::ETIME | libc::EINTR) => Ok(()),
                // Some kernels accept no requests while completions wait for room.
                Some(libc::EBUSY) if self.ring.completed() > 0 => Ok(()),
                _ => Err(error),
            },
        }
    }

    /// The number of requests whose reports have room in the completion queue. It matters only while
    /// there are requests that ended because the queue was full.
    #[inline]
    fn room_for_reports(&mut self) -> usize {
        if !self.has_ended_requests {
            usize::MAX
        } else if self.ring.overflowed() {
            0
        } else {
            (self.setup.completions as usize).saturating_sub(self.ring.completed())
        }
    }

    /// Converts changes into requests, as long as there is `room` for their reports. If some are left,
    /// there are completions, so that the next wait does not sleep.
    #[inline]
    fn push_changes(&mut self, mut room: usize) -> Result<(), Error> {
        while let Some(&token) = self.uncancelled.last() {
            self.make_room()?;
            self.push_cancellation(token);
            self.uncancelled.pop();
        }
        while !self.changes.is_empty() {
            if room == 0 && self.ring.queued() > 0 {
                // Those that report nothing leave room for more.
                self.enter_now().map_err(Error::io("io_uring_enter"))?;
                room = self.room_for_reports();
            }
            if room == 0 {
                break;
            }
            room -= 1;
            self.make_room()?;
            let live = |token| self.registrations.interest(token);
            let Some((token, interest)) = self.changes.pop(live) else { break };
            let (bits, data) = (interest.to_poll_bits(), token.to_bits());
            let is_pushed = match self.changes.kernel_interest(token.fd) {
                // Also with the same interest: a modification requests a new report.
                Some(_) => self.ring.push_poll_update(data | POLL, bits, data | UPDATE),
                None => self.ring.push_poll(token.fd, bits, data | POLL),
            };
            assert!(is_pushed, "room has been made");
            self.changes.set_kernel_interest(token.fd, Some(interest));
        }
        if self.has_ended_requests {
            self.has_ended_requests = !self.changes.is_empty() || self.ring.overflowed();
        }
        if let (Some(waker), false) = (&self.waker, self.waker_armed) {
            let fd = waker.as_fd().as_raw_fd();
            self.make_room()?;
            assert!(self.ring.push_poll(fd, libc::POLLIN as u32, WAKER), "room has been made");
            self.waker_armed = true;
        }
        Ok(())
    }

    /// Cancels the request of `token`, whose registration has ended, with the next wait.
    #[inline]
    fn disarm(&mut self, token: Token) -> Result<(), Error> {
        if self.changes.end(token.fd).is_none() {
            return Ok(());
        }
        match self.make_room() {
            Ok(()) => self.push_cancellation(token),
            // It must not be forgotten: an armed request would hold the file open for ever.
            Err(_) => self.uncancelled.push(token),
        }
        Ok(())
    }

    /// Pushes the cancellation of `token`'s request. The caller has made room for it.
    #[inline]
    fn push_cancellation(&mut self, token: Token) {
        let data = token.to_bits();
        assert!(self.ring.push_cancel(data | POLL, data | CANCEL), "room has been made");
        self.cancellations += 1;
    }

    /// io_uring_enter(2), unless there is nothing to submit and a completion to take.
    #[inline]
    fn enter(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        let completed = self.ring.completed();
        if completed == 0 && timeout != Some(Duration::ZERO) {
            let wanted = 1 + std::mem::take(&mut self.cancellations);
            let entered = self.ring.enter(wanted, timeout);
            return self.ignore_expected_errors(entered);
        }
        // With deferred work the ring's flags do not show all completions that are held back.
        let to_fetch = completed == 0 && (self.setup.defer || self.ring.holds_back());
        if to_fetch || self.ring.queued() > 0 { self.enter_now() } else { Ok(()) }
    }

    /// Handles a completion of the poll request of `token`.
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

    /// Arms `token` again, whose request has ended by itself; false if its descriptor cannot be
    /// waited for. A request ends when the completion queue is full, but also at once if the file
    /// has no wait queue: a regular file or /dev/null would be armed and reported for ever.
    #[cold]
    fn rearm(&mut self, token: Token) -> bool {
        if sys::lacks_wait_queue(token.fd) {
            return false;
        }
        self.rearm_count += 1;
        self.has_ended_requests = true;
        self.changes.queue(token);
        true
    }

    /// Reports that the kernel refuses this descriptor. It is not armed again, since it would be
    /// refused again.
    #[cold]
    fn refuse(&mut self, token: Token, invalid: bool) -> Event {
        self.refusals += 1;
        let invalid = if invalid { Readiness::INVALID } else { Readiness::empty() };
        Event { token, readiness: Readiness::ERROR | invalid }
    }

    #[cold]
    fn poll_failed(&mut self, token: Token, completion: Completion) -> Option<Event> {
        if completion.result == -libc::ECANCELED {
            // The registration has not ended, so this is not our cancellation: the thread that armed
            // the request has ended.
            self.rearm_count += 1;
            self.changes.queue(token);
            return None;
        }
        Some(self.refuse(token, completion.result == -libc::EBADF))
    }

    /// Handles a failed change of a poll request.
    #[cold]
    fn update_failed(&mut self, token: Token, completion: Completion) {
        // Otherwise (ENOENT) the request has ended by itself, and its own completion arms it again.
        if completion.result == -libc::EALREADY && self.registrations.interest(token).is_some() {
            self.retry_count += 1;
            self.changes.queue(token);
        }
    }
}

impl Drop for UringPoll {
    /// Cancels the armed requests. The kernel does so after the ring is closed, but later, and
    /// until then each request holds its file open: no FIN is sent, and addresses stay in use. (One
    /// IORING_ASYNC_CANCEL_ANY took seconds for 20,000 requests.)
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
        let room = self.room_for_reports();
        let pushed = self.push_changes(room);
        let left = self.completions.len() - self.next;
        if left > 0 {
            // No second edge would report these. Changes that could not be sent stay for the next
            // wait, which reports the error if it persists.
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
        // Here the parent's ring is only unmapped and closed (see `Ring::is_ours`).
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
        self.has_ended_requests = false;
        if self.waker.is_some() {
            self.waker = Some(Waker::new()?);
        }
        self.push_changes(usize::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn registrations_removed_before_a_wait_do_not_accumulate() {
        let Ok(mut set) = UringPoll::open(&Options::default()) else {
            return; // the contract suite prints the reason
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
