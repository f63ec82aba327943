//! Signals as a descriptor, and the restoration of the signal mask: no safe wrapper offers that.
#![allow(unsafe_code)]

use std::{
    io, mem,
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
    ptr,
};

/// The signals that stop this program, read from a descriptor while this value lives.
///
/// They are blocked in the calling thread, and in threads it starts later; children that
/// `std::process` starts get an empty mask.
pub(crate) struct EndSignals {
    fd: OwnedFd,
    before: libc::sigset_t,
}

impl EndSignals {
    /// Blocks SIGINT, SIGTERM and SIGHUP, and opens a signalfd(2) on them.
    pub(crate) fn block() -> io::Result<EndSignals> {
        // SAFETY: both sets are plain memory, and are initialised by the calls before their use.
        unsafe {
            let mut set: libc::sigset_t = mem::zeroed();
            let mut before: libc::sigset_t = mem::zeroed();
            libc::sigemptyset(&mut set);
            for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
                libc::sigaddset(&mut set, signal);
            }
            let code = libc::pthread_sigmask(libc::SIG_BLOCK, &set, &mut before);
            if code != 0 {
                return Err(io::Error::from_raw_os_error(code));
            }
            let fd = libc::signalfd(-1, &set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK);
            if fd < 0 {
                let error = io::Error::last_os_error();
                libc::pthread_sigmask(libc::SIG_SETMASK, &before, ptr::null_mut());
                return Err(error);
            }
            Ok(EndSignals { fd: OwnedFd::from_raw_fd(fd), before })
        }
    }

    /// The number of a signal that has arrived, if there is one.
    pub(crate) fn taken(&self) -> Option<i32> {
        // SAFETY: signalfd_siginfo is plain memory, and the kernel writes at most its size.
        unsafe {
            let mut info: libc::signalfd_siginfo = mem::zeroed();
            let size = mem::size_of_val(&info);
            let read = libc::read(self.fd.as_raw_fd(), (&raw mut info).cast(), size);
            (read == size as isize).then_some(info.ssi_signo as i32)
        }
    }
}

impl AsFd for EndSignals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for EndSignals {
    fn drop(&mut self) {
        // SAFETY: `before` was filled by pthread_sigmask.
        unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, &self.before, ptr::null_mut());
        }
    }
}
