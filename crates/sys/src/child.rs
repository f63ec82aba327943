//! Child processes that end with their parent, and child processes that inherit a descriptor.

use rustix::{
    io::{Errno, FdFlags, fcntl_getfd, fcntl_setfd},
    process::{Signal, getpid, getppid, set_parent_process_death_signal},
};
use std::{
    io,
    os::{
        fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd},
        unix::process::CommandExt,
    },
    process::Command,
};

/// Makes the kernel send `signal` to `command`'s process when the *thread* that starts it ends in any
/// way (prctl(2), PR_SET_PDEATHSIG): even after SIGKILL of this program no process is left. Start it
/// from a thread that runs as long as the process is needed.
///
/// The command fails to start (EINVAL) if the number is no signal, or a real-time signal.
pub fn end_with_parent(command: &mut Command, signal: i32) {
    let parent = getpid();
    let signal = Signal::from_named_raw(signal);
    // SAFETY: the closure makes two async-signal-safe system calls, touches no lock and allocates
    // nothing, as is required between fork and exec.
    unsafe {
        command.pre_exec(move || {
            set_parent_process_death_signal(Some(signal.ok_or(Errno::INVAL)?))?;
            // The parent may have ended between fork and prctl.
            if getppid() == Some(parent) { Ok(()) } else { Err(Errno::SRCH.into()) }
        });
    }
}

/// Leaves `descriptor` open in `command`'s process, under its present number. It must stay open until
/// the command has been started.
pub fn inherit(command: &mut Command, descriptor: BorrowedFd<'_>) {
    let number = descriptor.as_raw_fd();
    // SAFETY: the closure makes one async-signal-safe system call, touches no lock and allocates nothing.
    // By the promise above the number is still that of the descriptor.
    unsafe {
        command.pre_exec(move || {
            let descriptor = BorrowedFd::borrow_raw(number);
            Ok(fcntl_setfd(descriptor, FdFlags::empty())?)
        });
    }
}

/// Takes ownership of the descriptor that the parent has left open under this number with [`inherit`];
/// it is close-on-exec from then on. Call this once for each number, before this process opens
/// descriptors whose numbers it does not know.
///
/// # Errors
/// EBADF: the number is not open.
pub fn inherited(number: RawFd) -> io::Result<OwnedFd> {
    if number < 3 {
        return Err(Errno::BADF.into());
    }
    // SAFETY: borrowed for one call, which fails if the number is not open.
    let flags = fcntl_getfd(unsafe { BorrowedFd::borrow_raw(number) })?;
    // A descriptor that this program has opened is close-on-exec, and other code owns it.
    if flags.contains(FdFlags::CLOEXEC) {
        return Err(Errno::BADF.into());
    }
    // SAFETY: it is open and was not opened by this program: it came from the parent, and no code owns
    // it yet.
    let descriptor = unsafe { OwnedFd::from_raw_fd(number) };
    fcntl_setfd(&descriptor, FdFlags::CLOEXEC)?;
    Ok(descriptor)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        io::Read,
        os::{fd::AsFd, unix::process::ExitStatusExt},
        thread,
    };

    #[test]
    fn a_child_inherits_what_it_is_given() {
        let (mut there, here) = io::pipe().expect("a pipe");
        let mut command = Command::new("sh");
        command.args(["-c", "exec printf given > /proc/self/fd/$0", &here.as_raw_fd().to_string()]);
        inherit(&mut command, here.as_fd());
        let mut child = command.spawn().expect("sh starts");
        drop((here, command));
        let mut text = String::new();
        there.read_to_string(&mut text).expect("what it wrote");
        assert!(child.wait().expect("its status").success());
        assert_eq!(text, "given");
    }

    #[test]
    fn what_this_program_opened_is_not_inherited() {
        let (there, _here) = io::pipe().expect("a pipe");
        assert!(inherited(there.as_raw_fd()).is_err());
        assert!(inherited(0).is_err() && inherited(RawFd::MAX).is_err());
    }

    #[test]
    fn a_child_ends_with_the_thread_that_started_it() {
        let started = thread::spawn(|| {
            let mut command = Command::new("sleep");
            end_with_parent(command.arg("1000"), libc::SIGTERM);
            command.spawn().expect("sleep(1) starts")
        });
        let mut child = started.join().expect("the thread ends");
        assert_eq!(child.wait().expect("its status").signal(), Some(libc::SIGTERM));
    }
}
