//! Signals that a thread waits for instead of being interrupted.

use super::{Call, check, count};
use std::{io, mem};

/// Signal numbers.
pub type Signal = libc::c_int;

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

/// Waits for one of `signals`, which must be blocked (sigwaitinfo(2)).
pub fn wait_signal(signals: &[Signal]) -> io::Result<Signal> {
    let set = set_of(signals);
    loop {
        // SAFETY: reads the set; the null pointer says that the details are not wanted.
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

/// Sends SIGALRM to this process after so many seconds (alarm(2)); 0 cancels the alarm. A further call
/// replaces it.
pub fn alarm(seconds: u32) {
    // SAFETY: takes no pointer and cannot fail.
    unsafe { libc::alarm(seconds) };
}

/// Ignores SIGPIPE: a send to a closed connection is an error (EPIPE) and no signal, also with
/// sendfile(2) and writev(2), which know no MSG_NOSIGNAL.
pub fn ignore_sigpipe() {
    // SAFETY: SIG_IGN is a valid disposition for SIGPIPE.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
}
