//! Signals for which a thread waits, so that they do not interrupt it.

use super::{Call, check, count};
use std::{
    io, mem,
    time::{Duration, Instant},
};

/// Signal numbers.
pub type Signal = libc::c_int;

/// Signals that arrive within this time after the first are the same interrupt: timeout(1) sends its
/// signal to the command and to the command's process group, so that it arrives twice.
const ONE_INTERRUPT: Duration = Duration::from_millis(250);

/// Calls `on_first` at the first of `signals`, and returns the first signal of a second interrupt; `None`
/// if `signals` ends before one.
pub fn second_interrupt(
    signals: impl IntoIterator<Item = Signal>,
    on_first: impl FnOnce(),
) -> Option<Signal> {
    interrupt_after(ONE_INTERRUPT, signals, on_first)
}

fn interrupt_after(
    one: Duration,
    signals: impl IntoIterator<Item = Signal>,
    on_first: impl FnOnce(),
) -> Option<Signal> {
    let mut signals = signals.into_iter();
    signals.next()?;
    let first_at = Instant::now();
    on_first();
    signals.find(|_| first_at.elapsed() >= one)
}

fn set_of(signals: &[Signal]) -> libc::sigset_t {
    // SAFETY: sigemptyset initialises the set; a bad number is an error, not undefined.
    unsafe {
        let mut set = mem::zeroed();
        libc::sigemptyset(&mut set);
        for &signal in signals {
            libc::sigaddset(&mut set, signal);
        }
        set
    }
}

/// Blocks `signals` in this thread and in those it starts from now on (pthread_sigmask(3)):
/// they stay pending until a thread takes them with [`wait_signal`].
pub fn block_signals(signals: &[Signal]) -> io::Result<()> {
    let set = set_of(signals);
    // SAFETY: reads the set, writes nothing.
    match unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut()) } {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

/// The signal with which one thread ends another's [`ppoll_wakeable`](crate::ppoll_wakeable).
///
/// A terminal sends SIGWINCH when its size changes, and a program that does not expect it ignores it
/// (signal(7)). This has two effects. A process or thread that has the number of an ended one does not
/// notice the signal. If a server runs in a terminal, a change of the size ends one of its waits early,
/// which every wait must tolerate anyway. A signal for programs to use, such as SIGUSR1, would end a
/// process that does not expect it.
const WAKE: Signal = libc::SIGWINCH;

/// The signals that stay blocked while a thread waits in [`ppoll_wakeable`](crate::ppoll_wakeable):
/// those that the thread blocks anyway, without the signal that wakes it.
#[derive(Clone, Copy)]
pub struct WakeMask(libc::sigset_t);

impl WakeMask {
    /// The mask for the calling thread.
    pub fn of_this_thread() -> Self {
        let mut set = set_of(&[]);
        // SAFETY: writes the present mask to `set`, and changes nothing.
        unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), &mut set) };
        // SAFETY: the set is initialised.
        unsafe { libc::sigdelset(&mut set, WAKE) };
        Self(set)
    }

    pub(super) fn as_ptr(&self) -> *const libc::sigset_t {
        &self.0
    }
}

impl std::fmt::Debug for WakeMask {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("WakeMask")
    }
}

/// Makes [`wake`] end the waits of this process and of the processes that it forks: the signal gets a
/// handler that does nothing, and is blocked in this thread and in those that it starts from now on, so
/// that it arrives only during a wait.
///
/// # Errors
/// Those of sigaction(2) and pthread_sigmask(3).
pub fn allow_waking() -> io::Result<()> {
    extern "C" fn nothing(_: Signal) {}
    block_signals(&[WAKE])?;
    // SAFETY: all bytes zero are a valid `sigaction`: no flags, an empty mask.
    let mut action: libc::sigaction = unsafe { mem::zeroed() };
    action.sa_sigaction = nothing as extern "C" fn(Signal) as usize;
    // SAFETY: the handler takes a number and does nothing, which is safe at any moment.
    check(unsafe { libc::sigaction(WAKE, &action, std::ptr::null_mut()) }).map(drop)
}

/// Ends the present or the next wait in [`ppoll_wakeable`](crate::ppoll_wakeable) of a thread
/// (tkill(2)), which may belong to another process. `thread` is the thread's gettid(2).
pub fn wake(thread: i32) {
    // SAFETY: takes no pointer. The call may fail: the thread may have ended.
    unsafe { libc::syscall(libc::SYS_tkill, thread, WAKE) };
}

/// Waits for one of `signals`, which must be blocked (sigwaitinfo(2)).
pub fn wait_signal(signals: &[Signal]) -> io::Result<Signal> {
    let set = set_of(signals);
    loop {
        // SAFETY: reads the set; the null pointer means that the details are not requested.
        let taken = count(Call::Sigwait, || unsafe {
            check(libc::sigwaitinfo(&set, std::ptr::null_mut()))
        });
        match taken {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            outcome => return outcome,
        }
    }
}

/// Sends `signal` to this process.
pub fn signal_self(signal: Signal) {
    // SAFETY: takes no pointer. Cannot fail: the number is valid and the target is ourselves.
    unsafe { libc::kill(libc::getpid(), signal) };
}

/// Sends SIGALRM to this process after this number of seconds (alarm(2)); 0 cancels the alarm. A
/// further call replaces it.
pub fn alarm(seconds: u32) {
    // SAFETY: takes no pointer and cannot fail.
    unsafe { libc::alarm(seconds) };
}

/// Ignores SIGPIPE: a send to a closed connection is then an error (EPIPE) without a signal, also with
/// sendfile(2) and writev(2), which do not support MSG_NOSIGNAL.
pub fn ignore_sigpipe() {
    // SAFETY: SIG_IGN is a valid disposition for SIGPIPE.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_of_one_instant_are_one_interrupt() {
        let mut begun = 0;
        let day = Duration::from_secs(86_400);
        assert_eq!(interrupt_after(day, [2, 2, 15], || begun += 1), None);
        assert_eq!(interrupt_after(Duration::ZERO, [2, 15, 1], || begun += 1), Some(15));
        assert_eq!(interrupt_after(day, [], || begun += 1), None);
        assert_eq!(begun, 2);
    }
}
