//! Child processes: those that end with their parent, and those that are given a descriptor.

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

/// Makes the kernel send `signal` to `command`'s process when the *thread* that starts it ends,
/// however that happens (prctl(2), PR_SET_PDEATHSIG): even SIGKILL of this program leaves nothing
/// behind. Start it from a thread that lives as long as it is wanted.
///
/// The command fails to start (EINVAL) with a number that is no signal, or a real-time one.
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

/// Leaves `descriptor` open in `command`'s process, under the number that it has here. It must stay open
/// until the command has been started.
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

/// The descriptor that the parent has left open under this number with [`inherit`]; close-on-exec from now on.
/// To be called once for each number, before this process opens anything by itself under numbers that it does
/// not know.
///
/// # Errors
/// EBADF: nothing is open there.
pub fn inherited(number: RawFd) -> io::Result<OwnedFd> {
    if number < 3 {
        return Err(Errno::BADF.into());
    }
    // SAFETY: borrowed for one call, which fails where nothing is open.
    let flags = fcntl_getfd(unsafe { BorrowedFd::borrow_raw(number) })?;
    // What this program has opened is close-on-exec: it is somebody's own.
    if flags.contains(FdFlags::CLOEXEC) {
        return Err(Errno::BADF.into());
    }
    // SAFETY: it is open, and was not opened here: it came from the parent, and nobody owns it yet.
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
