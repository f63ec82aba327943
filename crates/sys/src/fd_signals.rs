//! Signals that report readiness: how they are requested, how they are taken from the queue, and their
//! other effects on the process. fcntl(2) (F_SETSIG, F_SETOWN_EX), sigtimedwait(2), signalfd(2),
//! signal(7).

use super::{Call, Signal, check, check_len, count, timespec};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::{
    fmt, io, mem,
    os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd},
    ptr,
    time::Duration,
};

/// The signal that is sent instead of a real-time signal for which the queue has no room (fcntl(2)).
pub const SIGIO: Signal = libc::SIGIO;

/// One signal as taken from the queue. 128 bytes, the kernel's `signalfd_siginfo`.
pub use libc::signalfd_siginfo as QueuedSignal;

// The C library crate lacks these; the values are those of <asm-generic/fcntl.h>, which all
// architectures that Rust's Linux targets know share.
const F_SETSIG: libc::c_int = 10;
const F_SETOWN_EX: libc::c_int = 15;
const F_OWNER_TID: libc::c_int = 0;

/// fcntl(2): the receiver of the signal.
#[repr(C)]
struct OwnerEx {
    kind: libc::c_int,
    number: libc::pid_t,
}

/// A set of signals.
#[derive(Clone, Copy)]
pub struct SignalSet(libc::sigset_t);

impl fmt::Debug for SignalSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries((1..=libc::SIGRTMAX()).filter(|&n| self.contains(n))).finish()
    }
}

impl SignalSet {
    /// Makes a set of these signals.
    pub fn of(signals: &[Signal]) -> Self {
        // SAFETY: sigemptyset initialises the set; a bad number is an error, not undefined.
        unsafe {
            let mut set = mem::zeroed();
            libc::sigemptyset(&mut set);
            for &signal in signals {
                libc::sigaddset(&mut set, signal);
            }
            Self(set)
        }
    }

    /// Whether `signal` is in it.
    pub fn contains(&self, signal: Signal) -> bool {
        // SAFETY: the set is initialised; a bad number is an error, not undefined.
        unsafe { libc::sigismember(&self.0, signal) == 1 }
    }

    /// The signals that this thread blocks.
    pub fn blocked() -> Self {
        let mut set = Self::of(&[]);
        // SAFETY: a null new mask changes nothing; the old one is written to `set`.
        unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, ptr::null(), &mut set.0) };
        set
    }
}

/// The real-time signals that the C library leaves to programs: signal(7).
pub fn real_time_signals() -> std::ops::RangeInclusive<Signal> {
    libc::SIGRTMIN()..=libc::SIGRTMAX()
}

fn set_mask(how: libc::c_int, set: &SignalSet) -> io::Result<()> {
    // SAFETY: reads the set, writes nothing.
    match count(Call::Sigprocmask, || unsafe {
        libc::pthread_sigmask(how, &set.0, ptr::null_mut())
    }) {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

/// Blocks the set in this thread: its signals are queued.
pub fn block(set: &SignalSet) -> io::Result<()> {
    set_mask(libc::SIG_BLOCK, set)
}

/// Unblocks the set in this thread. With the disposition SIG_IGN, the kernel discards the queued
/// signals and does not queue later ones.
pub fn unblock(set: &SignalSet) -> io::Result<()> {
    set_mask(libc::SIG_UNBLOCK, set)
}

/// The action of the process on a signal that is not blocked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disposition {
    /// SIG_DFL
    Default,
    /// SIG_IGN
    Ignored,
    /// The program has a handler for it.
    Handled,
}

/// The disposition of `signal`, from sigaction(2).
pub fn disposition(signal: Signal) -> io::Result<Disposition> {
    // SAFETY: an all-zero sigaction is a valid value of the type.
    let mut action: libc::sigaction = unsafe { mem::zeroed() };
    // SAFETY: a null new action changes nothing; the old one is written to `action`.
    count(Call::Sigaction, || unsafe { check(libc::sigaction(signal, ptr::null(), &mut action)) })?;
    Ok(match action.sa_sigaction {
        libc::SIG_DFL => Disposition::Default,
        libc::SIG_IGN => Disposition::Ignored,
        _ => Disposition::Handled,
    })
}

/// Makes the process ignore `signal` where it is not blocked. A blocked signal is queued nevertheless
/// (the kernel cannot know the disposition at the time when it is unblocked) and can be waited for.
pub fn ignore_signal(signal: Signal) -> io::Result<()> {
    // SAFETY: an all-zero sigaction is a valid value of the type.
    let mut action: libc::sigaction = unsafe { mem::zeroed() };
    action.sa_sigaction = libc::SIG_IGN;
    // SAFETY: `action` lives through the call; SIG_IGN runs no code.
    count(Call::Sigaction, || unsafe {
        check(libc::sigaction(signal, &action, ptr::null_mut())).map(drop)
    })
}

/// The kernel's number of this thread.
pub fn thread_number() -> i32 {
    rustix::thread::gettid().as_raw_pid()
}

/// Sends `signal` to thread `thread` for every state change of `fd` (F_SETOWN_EX, F_SETSIG, FIOASYNC,
/// which does not change the descriptor's other flags).
///
/// # Errors
/// EPERM for a kind of file that sends no signals (eventfd, epoll, regular files).
pub fn send_signals(fd: RawFd, thread: i32, signal: Signal) -> io::Result<()> {
    let owner = OwnerEx { kind: F_OWNER_TID, number: thread };
    // SAFETY: `owner` lives through the call; a bad descriptor number is an error, not undefined.
    count(Call::Fcntl, || unsafe { check(libc::fcntl(fd, F_SETOWN_EX, &raw const owner)) })?;
    // SAFETY: takes no pointer.
    count(Call::Fcntl, || unsafe { check(libc::fcntl(fd, F_SETSIG, signal)) })?;
    set_async(fd, true).map_err(|error| match error.raw_os_error() {
        Some(libc::ENOTTY) => io::Error::from_raw_os_error(libc::EPERM),
        _ => error,
    })
}

/// Ends the effect of [`send_signals`].
pub fn send_no_signals(fd: RawFd) -> io::Result<()> {
    set_async(fd, false)
}

fn set_async(fd: RawFd, on: bool) -> io::Result<()> {
    let on = libc::c_int::from(on);
    // SAFETY: `on` lives through the call, which reads one int.
    count(Call::Ioctl, || unsafe { check(libc::ioctl(fd, libc::FIOASYNC, &raw const on)) })
        .map(drop)
}

/// Takes one signal of the set, which must be blocked: signal number, descriptor and band. Returns
/// `None` when the time is over; without a timeout it waits for ever.
#[inline]
pub fn take_one(set: &SignalSet, timeout: Option<Duration>) -> io::Result<Option<QueuedSignal>> {
    let time = timeout.map(timespec);
    let time = time.as_ref().map_or(ptr::null(), ptr::from_ref);
    // SAFETY: an all-zero siginfo is a valid value of the type.
    let mut info: libc::siginfo_t = unsafe { mem::zeroed() };
    // SAFETY: the set and the time are read, `info` is written; all live through the call.
    let taken =
        count(Call::Sigwait, || unsafe { check(libc::sigtimedwait(&set.0, &mut info, time)) });
    match taken {
        Ok(signal) => {
            // SAFETY: an all-zero `signalfd_siginfo` is a valid value of the type.
            let mut queued: QueuedSignal = unsafe { mem::zeroed() };
            queued.ssi_signo = signal as u32;
            queued.ssi_code = info.si_code;
            // SAFETY: the kernel's siginfo begins with si_signo, si_errno, si_code, padded to 16
            // bytes on 64-bit systems and 12 on others; si_band (a long) and si_fd (an int)
            // follow for the codes POLL_IN to POLL_HUP. Both lie within the 128 bytes of `info`
            // whatever the code is; for other codes the caller does not use them.
            unsafe {
                let start = (&raw const info).cast::<u8>();
                let union = 12usize.next_multiple_of(align_of::<libc::c_long>());
                let band = start.add(union).cast::<libc::c_long>().read_unaligned();
                let after = union + size_of::<libc::c_long>();
                queued.ssi_band = band as u32;
                queued.ssi_fd = start.add(after).cast::<i32>().read_unaligned();
            }
            Ok(Some(queued))
        }
        Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => Ok(None),
        Err(error) => Err(error),
    }
}

/// signalfd(2), non-blocking, close-on-exec. A read takes the signals of the thread that reads.
pub fn signalfd(set: &SignalSet) -> io::Result<OwnedFd> {
    // SAFETY: reads the set; a descriptor it returns is new and ours.
    count(Call::Signalfd, || unsafe {
        check(libc::signalfd(-1, &set.0, libc::SFD_NONBLOCK | libc::SFD_CLOEXEC))
            .map(|fd| OwnedFd::from_raw_fd(fd))
    })
}

/// Takes as many signals as are queued, or as `queued` has room for, without waiting. The vector is
/// cleared first, so it is empty when no signal is queued.
#[inline]
pub fn take_many(signalfd: BorrowedFd<'_>, queued: &mut Vec<QueuedSignal>) -> io::Result<()> {
    queued.clear();
    let room = queued.capacity() * size_of::<QueuedSignal>();
    // SAFETY: the kernel writes at most `room` bytes into the vector's own allocation.
    let taken = count(Call::Read, || unsafe {
        check_len(libc::read(signalfd.as_raw_fd(), queued.as_mut_ptr().cast(), room))
    });
    match taken {
        Ok(bytes) => {
            // SAFETY: the kernel initialised that many whole records.
            unsafe { queued.set_len(bytes / size_of::<QueuedSignal>()) };
            Ok(())
        }
        Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => Ok(()),
        Err(error) => Err(error),
    }
}

/// The soft and the hard RLIMIT_SIGPENDING: how many signals may be queued *for all processes of
/// this user together*.
pub fn signal_queue_limit() -> io::Result<(u64, u64)> {
    let limit = getrlimit(Resource::Sigpending);
    Ok((limit.current.unwrap_or(u64::MAX), limit.maximum.unwrap_or(u64::MAX)))
}

/// Sets the soft RLIMIT_SIGPENDING of this process; the hard limit stays, so that the soft one can be
/// raised again. The limit is compared with the number of signals queued for *all* processes of the
/// user: with `limit` below that number, every signal overflows.
///
/// # Errors
/// EINVAL above the hard limit.
pub fn set_signal_queue_limit(limit: u64) -> io::Result<()> {
    let wanted = Rlimit { current: Some(limit), ..getrlimit(Resource::Sigpending) };
    Ok(setrlimit(Resource::Sigpending, wanted)?)
}

/// The number of signals queued now for all processes of this user (`SigQ` of /proc/self/status);
/// `None` if /proc cannot be read.
pub fn queued_signals() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("SigQ:"))?;
    line.trim().split('/').next()?.parse().ok()
}
