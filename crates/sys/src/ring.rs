//! io_uring(7), as far as the mechanisms use it: poll requests and gathered epoll_ctl calls.
//!
//! The `io-uring` crate lays out and maps the queues. Its pushes are unsafe because a request may point
//! at memory. Here the memory that a request points at always outlives the request, so all of this is
//! safe to call.

use super::{Call, EpollEvent, EpollOp, count};
use io_uring::{
    EnterFlags, IoUring, cqueue, opcode,
    squeue::{Entry, Flags},
    types::{Fd, SubmitArgs, Timespec},
};
use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd, RawFd},
    time::Duration,
};

/// How a ring is set up.
#[derive(Clone, Copy, Debug)]
pub struct RingSetup {
    /// Requests that can be gathered before they must be submitted. A power of two.
    pub submissions: u32,
    /// Completions that can lie unread in the ring; more wait in the kernel.
    pub completions: u32,
    /// Completions are only posted while this thread waits in io_uring_enter(2)
    /// (IORING_SETUP_DEFER_TASKRUN, Linux 6.1); otherwise at the end of any of its system calls
    /// (IORING_SETUP_COOP_TASKRUN, Linux 5.19). The ring is then bound to the thread.
    pub defer: bool,
}

/// One completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The user data of the request.
    pub user_data: u64,
    /// The result of the request: poll(2) bits, 0, or a negated error number.
    pub result: i32,
    /// Whether a multishot request stays armed (IORING_CQE_F_MORE).
    pub more: bool,
}

/// A ring of requests to the kernel and one of completions from it.
pub struct Ring {
    ring: IoUring,
    /// The events that queued epoll_ctl requests point at, indexed by `slot`. There are as many as the
    /// submission queue holds, so that an entry is reused only after the kernel has read it.
    epoll_events: Box<[EpollEvent]>,
    slot: usize,
    /// The process that opened the ring.
    owner: u32,
}

impl std::fmt::Debug for Ring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ring").field("fd", &self.ring.as_raw_fd()).finish_non_exhaustive()
    }
}

/// The offsets of the length and of the operation's flags in the kernel's ABI (io_uring.h).
const SQE_LEN: usize = 24;
const SQE_OP_FLAGS: usize = 28;
/// IORING_POLL_UPDATE_EVENTS with IORING_POLL_ADD_MULTI: the request stays multishot.
const POLL_UPDATE: u32 = 1 << 1 | 1;

impl Ring {
    /// io_uring_setup(2). A request that the kernel refuses does not stop those after it
    /// (IORING_SETUP_SUBMIT_ALL, Linux 5.18).
    ///
    /// # Errors
    /// EPERM and ENOSYS where io_uring is denied or absent, EINVAL on a kernel before 5.19,
    /// EMFILE, ENOMEM.
    pub fn open(setup: RingSetup) -> io::Result<Self> {
        let mut builder = IoUring::builder();
        builder.setup_cqsize(setup.completions).setup_submit_all().setup_taskrun_flag();
        if setup.defer {
            builder.setup_single_issuer().setup_defer_taskrun();
        } else {
            builder.setup_coop_taskrun();
        }
        let ring = count(Call::IoUringSetup, || builder.build(setup.submissions))?;
        Ok(Self { ring, epoll_events: Box::default(), slot: 0, owner: std::process::id() })
    }

    /// Queues a multishot poll request for `events` (poll(2) bits) on `fd`. `false` when the
    /// submission queue is full: [`Ring::enter`], then try again.
    #[inline]
    #[must_use]
    pub fn push_poll(&mut self, fd: RawFd, events: u32, user_data: u64) -> bool {
        let entry = opcode::PollAdd::new(Fd(fd), events).multi(true).build();
        self.push(entry.user_data(user_data))
    }

    /// Queues a change of the events of the multishot poll request `target`. If one of the new events
    /// is already present, `target` completes again. The change itself completes only when it fails:
    /// ENOENT (no such request), EALREADY (the request is about to complete: try again). `false` when
    /// the submission queue is full.
    #[inline]
    #[must_use]
    pub fn push_poll_update(&mut self, target: u64, events: u32, user_data: u64) -> bool {
        let entry = opcode::PollRemove::new(target).build();
        let entry = entry.user_data(user_data).flags(Flags::SKIP_SUCCESS);
        const { assert!(size_of::<Entry>() == 64) }
        // SAFETY: an `Entry` is the kernel's 64-byte submission queue entry (repr(C), asserted
        // above), plain data without padding or niches.
        let mut bytes: [u8; 64] = unsafe { std::mem::transmute(entry) };
        bytes[SQE_LEN..SQE_LEN + 4].copy_from_slice(&POLL_UPDATE.to_ne_bytes());
        // On big-endian machines the kernel wants the halves swapped (poll32_events).
        let events = if cfg!(target_endian = "big") { events.rotate_left(16) } else { events };
        bytes[SQE_OP_FLAGS..SQE_OP_FLAGS + 4].copy_from_slice(&events.to_ne_bytes());
        // SAFETY: as above, the other way; the crate sets these fields in the same way elsewhere.
        let entry: Entry = unsafe { std::mem::transmute(bytes) };
        self.push(entry)
    }

    /// Queues the cancellation of the request `target`, which then completes with ECANCELED. The
    /// cancellation itself completes only when no such request exists (ENOENT): each cancellation
    /// causes at least one completion. `false` when the submission queue is full.
    ///
    /// IORING_OP_POLL_REMOVE is not sufficient: it fails (EALREADY) on a request that is about to
    /// complete, and a multishot request would then stay armed.
    #[inline]
    #[must_use]
    pub fn push_cancel(&mut self, target: u64, user_data: u64) -> bool {
        let entry = opcode::AsyncCancel::new(target).build();
        self.push(entry.user_data(user_data).flags(Flags::SKIP_SUCCESS))
    }

    /// Queues an epoll_ctl(2). `false` when the submission queue is full.
    #[inline]
    #[must_use]
    pub fn push_epoll_ctl(
        &mut self,
        epoll: BorrowedFd<'_>,
        op: EpollOp,
        fd: RawFd,
        events: u32,
        data: u64,
        user_data: u64,
    ) -> bool {
        if self.epoll_events.is_empty() {
            let capacity = self.ring.submission().capacity();
            self.epoll_events = vec![EpollEvent { events: 0, u64: 0 }; capacity].into();
        }
        if self.ring.submission().is_full() {
            return false;
        }
        self.slot = (self.slot + 1) % self.epoll_events.len();
        let event = &mut self.epoll_events[self.slot];
        *event = EpollEvent { events, u64: data };
        let event = std::ptr::from_ref(event).cast();
        let entry = opcode::EpollCtl::new(Fd(epoll.as_raw_fd()), Fd(fd), op as i32, event).build();
        self.push(entry.user_data(user_data))
    }

    #[inline]
    fn push(&mut self, entry: Entry) -> bool {
        // SAFETY: only epoll_ctl requests point at memory: at their own entry of `epoll_events`,
        // which is boxed, read by the kernel when it takes the request from the queue, and reused
        // only after as many pushes as the queue holds. `self` owns both, and the ring is closed
        // without submitting what is left in the queue.
        unsafe { self.ring.submission().push(&entry).is_ok() }
    }

    /// Whether this process opened the ring. A child process that inherited the ring must not use it:
    /// both processes share its memory, and the requests and completions in it belong to the parent.
    pub fn is_ours(&self) -> bool {
        self.owner == std::process::id()
    }

    /// The number of requests that are queued and not yet submitted.
    #[inline]
    pub fn queued(&mut self) -> usize {
        self.ring.submission().len()
    }

    /// The number of completions that can be taken without a system call.
    #[inline]
    pub fn completed(&mut self) -> usize {
        self.ring.completion().len()
    }

    /// Whether the kernel holds back completions until the next [`Ring::enter`]: deferred work that
    /// will post a completion is pending, or the completion queue has overflowed.
    #[inline]
    pub fn holds_back(&mut self) -> bool {
        let queue = self.ring.submission();
        queue.taskrun() || queue.cq_overflow()
    }

    /// Whether the completion queue has overflowed; the kernel keeps the completions that did not fit.
    #[inline]
    pub fn overflowed(&mut self) -> bool {
        self.ring.submission().cq_overflow()
    }

    /// io_uring_enter(2): submits the queued requests, makes the kernel post pending completions, and
    /// waits until `wanted` completions are in the ring or the time is over (`None`: for ever). Returns
    /// how many requests it submitted.
    ///
    /// # Errors
    /// When nothing was submitted: ETIME, EINTR, or an error that io_uring_enter(2) lists.
    #[inline]
    pub fn enter(&mut self, wanted: u32, timeout: Option<Duration>) -> io::Result<usize> {
        let to_submit = self.queued() as u32;
        let submitter = self.ring.submitter();
        match timeout {
            // SAFETY: no argument is passed; the requests are sound (see `push`).
            None => count(Call::IoUringEnter, || unsafe {
                let flags = EnterFlags::GETEVENTS.bits();
                submitter.enter::<libc::sigset_t>(to_submit, wanted, flags, None)
            }),
            Some(timeout) => {
                let time = Timespec::new()
                    .sec(timeout.as_secs().min(i64::MAX as u64))
                    .nsec(timeout.subsec_nanos());
                let arguments = SubmitArgs::new().timespec(&time);
                // SAFETY: EXT_ARG announces the structure that is passed; it and the time that
                // it points at live through the call; the requests are sound (see `push`).
                count(Call::IoUringEnter, || unsafe {
                    let flags = (EnterFlags::GETEVENTS | EnterFlags::EXT_ARG).bits();
                    submitter.enter(to_submit, wanted, flags, Some(&arguments))
                })
            }
        }
    }

    /// Moves up to `max` completions out of the ring, oldest first, to the end of `into`.
    #[inline]
    pub fn take_completions(&mut self, into: &mut Vec<Completion>, max: usize) {
        into.extend(self.ring.completion().take(max).map(|entry| Completion {
            user_data: entry.user_data(),
            result: entry.result(),
            more: cqueue::more(entry.flags()),
        }));
    }
}

impl AsRawFd for Ring {
    fn as_raw_fd(&self) -> RawFd {
        self.ring.as_raw_fd()
    }
}
