//! A thread's queue of real-time signals that report readiness (provos §2, §6; signal(7)).
//!
//! # Effects on the process
//! - One signal number, chosen at run time among those that the C library leaves free and that are
//!   neither handled nor blocked. A number cannot be reserved (provos §6), so a library that uses the
//!   same number later is not detected; `signal=N` chooses another.
//! - SIGIO, which the kernel sends when the queue is full.
//! - Both get the disposition SIG_IGN, which programs started later inherit. They are blocked only
//!   in the thread that opens the queue, and the kernel sends them to that thread only
//!   (F_OWNER_TID). Other threads ignore them, so a program has no mask to set.
//!
//! Blocked signals are queued although they are ignored, and unblocking discards the queue. Two changes
//! of the mask therefore flush it, regardless of its length, and leave the queues of other threads
//! unchanged (a change of the disposition would empty those, too).

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
        /// One in a call, by sigtimedwait(2), as phhttpd does.
        One = "one",
    }
}

/// How a queue is opened.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setup {
    /// `None` takes the first free one.
    pub(crate) signal: Option<Signal>,
    pub(crate) dequeue: Dequeue,
    pub(crate) max_events: usize,
}

/// The most signals that one read of the signalfd takes: 8 KiB.
const BATCH: usize = 64;

/// The number of waits that take a single signal before the next wait tries a batch again. A batch read
/// of an empty queue is wasted; a blocking wait takes its signal in the same call. So a quiet queue
/// costs one call per signal, and a busy queue one call for up to [`BATCH`] signals.
const SINGLE_DEQUEUES: u32 = 8;

/// Locked while a signal number is chosen and claimed.
static SIGNAL_CHOICE: Mutex<()> = Mutex::new(());

thread_local! {
    /// Bit N - 1: a queue of this thread uses signal N.
    static IN_USE: Cell<u64> = const { Cell::new(0) };
    /// How often SIGIO arrived. It concerns all queues of the thread, but only one of them takes
    /// it.
    static OVERFLOWS: Cell<u64> = const { Cell::new(0) };
}

/// A thread's signals for one interest set. It cannot move to another thread, because the kernel
/// queues signals for the thread that armed the descriptors.
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
    /// The value of [`OVERFLOWS`] up to which this queue has recovered.
    overflows_handled: u64,
    stays_in_its_thread: PhantomData<*const ()>,
}

/// The result of [`SignalQueue::take`] besides the hints.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DequeueOutcome {
    /// The number of signals that were taken.
    pub(crate) signals: usize,
    /// The queue was found empty after them.
    pub(crate) emptied: bool,
    /// Signals were lost: the state of every descriptor must be read again.
    pub(crate) overflowed: bool,
    /// A signal handler ran.
    pub(crate) interrupted: bool,
}

const NO_SIGNALS: &str = "it sends no signals (EPERM): regular files, eventfds and epoll sets do \
                          not; wait for it with another mechanism";

/// The reason for mechanisms that would wait for the file with poll(2), which accepts it.
pub(super) const NO_FILES: &str = "regular files are always ready and send no signals; read and \
                                   write them without waiting";

impl SignalQueue {
    /// Finds a free signal number and blocks it in this thread. Errors name `mechanism`.
    pub(crate) fn open(mechanism: &'static str, setup: Setup) -> Result<Self, Error> {
        let signal = {
            let _one_at_a_time = SIGNAL_CHOICE.lock().unwrap_or_else(PoisonError::into_inner);
            let signal = choose(mechanism, setup.signal)?;
            ignore(signal).and_then(|()| ignore(sys::SIGIO)).map_err(Error::io("rt_sigaction"))?;
            signal
        };
        let set = SignalSet::of(&[signal, sys::SIGIO]);
        // Steps that may fail come first: only dropping a `SignalQueue` releases the number. If a step
        // failed later without one, the number would stay claimed until the thread ends.
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

    /// Queues a signal for each later event of `fd`; earlier events are not reported.
    #[inline]
    pub(crate) fn arm(&self, fd: RawFd) -> Result<(), Error> {
        sys::send_signals(fd, self.thread, self.signal).map_err(|source| {
            match source.raw_os_error() {
                Some(libc::EPERM) => Error::CannotWait { fd, reason: NO_SIGNALS },
                _ => Error::Io { call: "fcntl(F_SETSIG)", source },
            }
        })
    }

    /// Ends the effect of [`SignalQueue::arm`]; signals that are queued stay queued.
    #[inline]
    pub(crate) fn disarm(&self, fd: RawFd) -> Result<(), Error> {
        sys::send_no_signals(fd).map_err(Error::io("ioctl(FIOASYNC)"))
    }

    /// Whether another queue of this thread took a SIGIO that the next take must report.
    #[inline]
    pub(crate) fn has_missed_overflow(&self) -> bool {
        OVERFLOWS.get() != self.overflows_handled
    }

    /// Waits for signals and passes each to `hint` as a descriptor and bits of poll(2).
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

    /// Discards queued signals; later signals are queued. Three system calls.
    pub(crate) fn flush(&mut self) -> Result<(), Error> {
        self.mute()?;
        self.unmute()
    }

    /// Discards queued signals and queues none until [`SignalQueue::unmute`]; meanwhile senders pay
    /// nothing for signals. One system call.
    pub(crate) fn mute(&mut self) -> Result<(), Error> {
        sys::unblock(&self.own).map_err(Error::io("rt_sigprocmask"))
    }

    /// Ends the effect of [`SignalQueue::mute`]. Two system calls: a SIGIO from before must not be
    /// mistaken for a new one.
    pub(crate) fn unmute(&mut self) -> Result<(), Error> {
        sys::block(&self.own).map_err(Error::io("rt_sigprocmask"))?;
        let sigio = SignalSet::of(&[sys::SIGIO]);
        if let Ok(Some(_)) = sys::take_one(&sigio, Some(Duration::ZERO)) {
            // The thread's other queues may not know of it yet.
            OVERFLOWS.set(OVERFLOWS.get() + 1);
        }
        self.overflows_handled = OVERFLOWS.get();
        self.singles_left = 0;
        Ok(())
    }

    /// After fork(2), in the child: signals go to its only thread. The child does not inherit
    /// queued signals.
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
            // Positive codes come from the kernel (POLL_IN and the like). Signals from other senders
            // contain no descriptor.
            hint(signal.ssi_fd, signal.ssi_band);
        }
    }
}

impl Drop for SignalQueue {
    fn drop(&mut self) {
        let in_use = IN_USE.get() & !bit(self.signal);
        IN_USE.set(in_use);
        // Unblocked and ignored: signals for descriptors that are still armed do no harm.
        let _ = sys::unblock(&self.own);
        if in_use == 0 {
            let _ = sys::unblock(&SignalSet::of(&[sys::SIGIO]));
        }
    }
}

fn bit(signal: Signal) -> u64 {
    1 << (signal - 1)
}

/// The reason why this thread cannot use `signal`; `None` if it can.
fn conflict(signal: Signal, blocked: &SignalSet) -> Option<&'static str> {
    if IN_USE.get() & bit(signal) != 0 {
        return Some("another interest set of this thread uses it");
    }
    match sys::disposition(signal) {
        // Ignored: it is free, or a queue of another thread uses it.
        Ok(Disposition::Ignored) => None,
        Ok(Disposition::Default) if blocked.contains(signal) => {
            Some("this thread blocks it already, so other code waits for it")
        }
        Ok(Disposition::Default) => None,
        Ok(Disposition::Handled) => Some("the process has a handler for it"),
        Err(_) => Some("sigaction refuses it"),
    }
}

fn choose(mechanism: &'static str, wanted: Option<Signal>) -> Result<Signal, Error> {
    let range = sys::real_time_signals();
    let blocked = SignalSet::blocked();
    // Another queue of this thread may use SIGIO already: they share it.
    let shared = IN_USE.get() != 0;
    if !shared && let Some(reason) = conflict(sys::SIGIO, &blocked) {
        return Err(Error::Unavailable {
            mechanism,
            reason: format!("SIGIO, which reports queue overflow, is in use: {reason}"),
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
                reason: format!("signal {wanted} is in use: {reason}; choose another by signal=N"),
            }),
        };
    }
    range.clone().find(|&signal| conflict(signal, &blocked).is_none()).ok_or_else(|| {
        Error::Unavailable {
            mechanism,
            reason: format!(
                "all real-time signals from {} to {} are handled, ignored or blocked by other \
                 code, or used by other interest sets of this thread",
                range.start(),
                range.end()
            ),
        }
    })
}

/// Ignores `signal` permanently. A descriptor that is still armed may send it at any time, even after
/// the set is closed, and the default action would end the process.
fn ignore(signal: Signal) -> io::Result<()> {
    // Only once: a second change would empty the queues of the threads that use it.
    match sys::disposition(signal)? {
        Disposition::Ignored => Ok(()),
        _ => sys::ignore_signal(signal),
    }
}
