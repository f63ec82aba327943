//! A thread's queue of real-time signals that tell of descriptors (provos §2, §6; signal(7)).
//!
//! # What of the process it touches
//! - One signal number, chosen at run time among those the C library leaves free and nobody
//!   handles or blocks. There is no way to reserve one (provos §6), so a library that takes the
//!   same number later goes unnoticed; `signal=N` chooses another.
//! - SIGIO, by which the kernel says that the queue had no room.
//! - Both get the disposition SIG_IGN, which also programs started later inherit, and are blocked in
//!   the thread that opens the queue, and nowhere else. The kernel sends them to that thread only
//!   (F_OWNER_TID). A program has no mask to set: threads in which they are not blocked ignore them.
//!
//! Blocked signals are queued although they are ignored, and unblocking throws the queue away:
//! two changes of the mask flush it, however long it is, and leave other threads' queues alone
//! (a change of the disposition would empty theirs, too).

use crate::{Error, options::own::choice};
use pollux_sys::{self as sys, Disposition, QueuedSignal, Signal, SignalSet};
use std::{
    cell::Cell,
    io,
    marker::PhantomData,
    os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd},
    sync::{Mutex, PoisonError},
    time::Duration,
};

choice! {
    /// How signals are taken from their queue.
    Dequeue {
        /// Up to 64 in a call, through a signalfd (the paper's sigtimedwait4).
        Batch = "batch",
        /// One in a call, by sigtimedwait(2), as phhttpd.
        One = "one",
    }
}

/// How a queue is opened.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setup {
    /// `None` takes the first that is free.
    pub(crate) signal: Option<Signal>,
    pub(crate) dequeue: Dequeue,
    pub(crate) max_events: usize,
}

/// The most signals that one read of the signalfd takes: 8 KiB.
const BATCH: usize = 64;

/// How many waits take a signal singly before the next tries a batch again. A wait that finds the
/// queue empty has paid a read for nothing; one that blocks takes what it blocked for in the same
/// call. So a quiet queue costs one call a signal, and a busy one a call for up to [`BATCH`].
const SINGLE_DEQUEUES: u32 = 8;

/// Held while a number is looked at and taken.
static SIGNAL_CHOICE: Mutex<()> = Mutex::new(());

thread_local! {
    /// Bit N - 1: a queue of this thread uses signal N.
    static IN_USE: Cell<u64> = const { Cell::new(0) };
    /// How often SIGIO came: it tells all queues of the thread, and only one of them takes it.
    static OVERFLOWS: Cell<u64> = const { Cell::new(0) };
}

/// A thread's signals for one interest set. Neither it nor what holds it can move to another
/// thread: the kernel queues for the thread that armed.
#[derive(Debug)]
pub(crate) struct SignalQueue {
    signal: Signal,
    /// The signal and SIGIO.
    set: SignalSet,
    /// The signal alone.
    own: SignalSet,
    thread: i32,
    /// Readable when there are signals; `dequeue=batch` reads them from it.
    signalfd: OwnedFd,
    uses_batches: bool,
    batch: Vec<QueuedSignal>,
    singles_left: u32,
    /// Of [`OVERFLOWS`], what this queue has recovered from.
    overflows_handled: u64,
    stays_in_its_thread: PhantomData<*const ()>,
}

/// What [`SignalQueue::take`] found beside the hints.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DequeueOutcome {
    /// How many signals were taken.
    pub(crate) signals: usize,
    /// The queue was seen empty after them.
    pub(crate) emptied: bool,
    /// Signals were lost: the state of every descriptor must be read anew.
    pub(crate) overflowed: bool,
    /// A signal handler ran.
    pub(crate) interrupted: bool,
}

const NO_SIGNALS: &str = "it sends no signals (EPERM): regular files, eventfds and epoll sets do \
                          not; wait for it with another mechanism";

impl SignalQueue {
    /// Finds a free signal number and blocks it in this thread. `mechanism` is for the errors.
    pub(crate) fn open(mechanism: &'static str, setup: Setup) -> Result<Self, Error> {
        let signal = {
            let _one_at_a_time = SIGNAL_CHOICE.lock().unwrap_or_else(PoisonError::into_inner);
            let signal = choose(mechanism, setup.signal)?;
            ignore(signal).and_then(|()| ignore(sys::SIGIO)).map_err(Error::io("rt_sigaction"))?;
            signal
        };
        let set = SignalSet::of(&[signal, sys::SIGIO]);
        // First what may fail: the number stays taken until a `SignalQueue` is dropped, and without
        // one it would be for the life of the thread.
        let signalfd = sys::signalfd(&set).map_err(Error::io("signalfd4"))?;
        sys::block(&set).map_err(Error::io("rt_sigprocmask"))?;
        IN_USE.set(IN_USE.get() | bit(signal));
        let one = setup.dequeue == Dequeue::One;
        let batch = if one { 0 } else { BATCH.min(setup.max_events.max(1)) };
        Ok(Self {
            signal,
            set,
            own: SignalSet::of(&[signal]),
            thread: sys::thread_number(),
            signalfd,
            uses_batches: !one,
            batch: Vec::with_capacity(batch),
            singles_left: 0,
            overflows_handled: OVERFLOWS.get(),
            stays_in_its_thread: PhantomData,
        })
    }

    /// A descriptor that is readable when there are signals to take.
    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.signalfd.as_fd()
    }

    /// From now on, what happens to `fd` is queued. Nothing is queued for what has happened.
    #[inline]
    pub(crate) fn arm(&self, fd: RawFd) -> Result<(), Error> {
        sys::send_signals(fd, self.thread, self.signal).map_err(|source| {
            match source.raw_os_error() {
                Some(libc::EPERM) => Error::CannotWait { fd, reason: NO_SIGNALS },
                _ => Error::Io { call: "fcntl(F_SETSIG)", source },
            }
        })
    }

    /// Ends what [`SignalQueue::arm`] began; what is queued stays queued.
    #[inline]
    pub(crate) fn disarm(&self, fd: RawFd) -> Result<(), Error> {
        sys::send_no_signals(fd).map_err(Error::io("ioctl(FIOASYNC)"))
    }

    /// Whether another queue of this thread has taken the SIGIO: the next take says so at once.
    #[inline]
    pub(crate) fn has_missed_overflow(&self) -> bool {
        OVERFLOWS.get() != self.overflows_handled
    }

    /// Waits for signals and hands each to `hint` as descriptor and bits of poll(2).
    #[inline]
    pub(crate) fn take(
        &mut self,
        timeout: Option<Duration>,
        mut hint: impl FnMut(RawFd, u32),
    ) -> io::Result<DequeueOutcome> {
        let mut taken = DequeueOutcome::default();
        if self.has_missed_overflow() {
            self.overflows_handled = OVERFLOWS.get();
            taken.overflowed = true;
            return Ok(taken);
        }
        let zero = timeout == Some(Duration::ZERO);
        if self.uses_batches && (zero || self.singles_left == 0) {
            sys::take_many(self.signalfd.as_fd(), &mut self.batch)?;
            for signal in &self.batch {
                taken.record(signal, self.signal, &mut hint);
            }
            taken.emptied = self.batch.len() < self.batch.capacity();
            if !self.batch.is_empty() || zero {
                self.overflows_handled = OVERFLOWS.get();
                return Ok(taken);
            }
            self.singles_left = SINGLE_DEQUEUES;
        }
        self.singles_left = self.singles_left.saturating_sub(1);
        match sys::take_one(&self.set, timeout) {
            Ok(Some(signal)) => taken.record(&signal, self.signal, &mut hint),
            Ok(None) => taken.emptied = true,
            Err(error) if error.raw_os_error() == Some(libc::EINTR) => taken.interrupted = true,
            Err(error) => return Err(error),
        }
        self.overflows_handled = OVERFLOWS.get();
        Ok(taken)
    }

    /// Throws away what is queued, in three system calls, and goes on queueing.
    pub(crate) fn flush(&mut self) -> Result<(), Error> {
        self.mute()?;
        self.unmute()
    }

    /// Throws away what is queued; until [`SignalQueue::unmute`] nothing is queued, and whoever
    /// causes an event no longer pays for a signal. One system call.
    pub(crate) fn mute(&mut self) -> Result<(), Error> {
        sys::unblock(&self.own).map_err(Error::io("rt_sigprocmask"))
    }

    /// Ends [`SignalQueue::mute`]. Two system calls: an overflow of long ago is no news.
    pub(crate) fn unmute(&mut self) -> Result<(), Error> {
        sys::block(&self.own).map_err(Error::io("rt_sigprocmask"))?;
        let sigio = SignalSet::of(&[sys::SIGIO]);
        if let Ok(Some(_)) = sys::take_one(&sigio, Some(Duration::ZERO)) {
            // News to the thread's other queues, perhaps.
            OVERFLOWS.set(OVERFLOWS.get() + 1);
        }
        self.overflows_handled = OVERFLOWS.get();
        self.singles_left = 0;
        Ok(())
    }

    /// After fork(2), in the child: its only thread is the one to be told. What the parent had in
    /// its queue is not in the child's.
    pub(crate) fn reopen_after_fork(&mut self) {
        self.thread = sys::thread_number();
        self.overflows_handled = OVERFLOWS.get();
        self.singles_left = 0;
    }
}

impl DequeueOutcome {
    #[inline]
    fn record(&mut self, signal: &QueuedSignal, own: Signal, hint: &mut impl FnMut(RawFd, u32)) {
        self.signals += 1;
        if signal.ssi_signo == sys::SIGIO as u32 {
            OVERFLOWS.set(OVERFLOWS.get() + 1);
            self.overflowed = true;
        } else if signal.ssi_signo == own as u32 && signal.ssi_code > 0 {
            // Positive codes are the kernel's (POLL_IN and the like): what anybody else sends
            // names no descriptor.
            hint(signal.ssi_fd, signal.ssi_band);
        }
    }
}

impl Drop for SignalQueue {
    fn drop(&mut self) {
        let in_use = IN_USE.get() & !bit(self.signal);
        IN_USE.set(in_use);
        // Unblocked and ignored: what is still armed troubles nobody.
        let _ = sys::unblock(&self.own);
        if in_use == 0 {
            let _ = sys::unblock(&SignalSet::of(&[sys::SIGIO]));
        }
    }
}

fn bit(signal: Signal) -> u64 {
    1 << (signal - 1)
}

/// Why `signal` cannot be used by this thread.
fn conflict(signal: Signal, blocked: &SignalSet) -> Option<&'static str> {
    if IN_USE.get() & bit(signal) != 0 {
        return Some("another interest set of this thread uses it");
    }
    match sys::disposition(signal) {
        // Ignored: nobody uses it, or it is ours, in this thread's mask by inheritance.
        Ok(Disposition::Ignored) => None,
        Ok(Disposition::Default) if blocked.contains(signal) => {
            Some("this thread blocks it already, so somebody waits for it")
        }
        Ok(Disposition::Default) => None,
        Ok(Disposition::Handled) => Some("the process has a handler for it"),
        Err(_) => Some("sigaction refuses it"),
    }
}

fn choose(mechanism: &'static str, wanted: Option<Signal>) -> Result<Signal, Error> {
    let range = sys::real_time_signals();
    let blocked = SignalSet::blocked();
    // SIGIO may be in use by another queue of this thread: they share it.
    let shared = IN_USE.get() != 0;
    if !shared && let Some(reason) = conflict(sys::SIGIO, &blocked) {
        return Err(Error::Unavailable {
            mechanism,
            reason: format!("SIGIO, which tells of queue overflow, is taken: {reason}"),
        });
    }
    if let Some(wanted) = wanted {
        if !range.contains(&wanted) {
            return Err(Error::Spec(format!(
                "mechanism {mechanism}: signal={wanted}: the real-time signals that the C library \
                 leaves free are {} to {}",
                range.start(),
                range.end()
            )));
        }
        return match conflict(wanted, &blocked) {
            None => Ok(wanted),
            Some(reason) => Err(Error::Unavailable {
                mechanism,
                reason: format!("signal {wanted} is taken: {reason}; choose another by signal=N"),
            }),
        };
    }
    range.clone().find(|&signal| conflict(signal, &blocked).is_none()).ok_or_else(|| {
        Error::Unavailable {
            mechanism,
            reason: format!(
                "all real-time signals from {} to {} are handled, ignored or blocked by somebody \
                 else, or used by other interest sets of this thread",
                range.start(),
                range.end()
            ),
        }
    })
}

/// Ignores `signal` for good: a descriptor that is still armed may send it at any time, also when
/// the set is gone, and the default action would end the process.
fn ignore(signal: Signal) -> io::Result<()> {
    // Not a second time: that would empty the queues of the threads that use it.
    match sys::disposition(signal)? {
        Disposition::Ignored => Ok(()),
        _ => sys::ignore_signal(signal),
    }
}
