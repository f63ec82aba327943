//! Descriptors of any kind: read, write, close, eventfd, sendfile.

use super::{Call, EpollOp, count, epoll_create, epoll_ctl};
use rustix::{
    event::EventfdFlags,
    pipe::{PipeFlags, pipe_with},
};
use std::{
    io,
    mem::MaybeUninit,
    os::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd, RawFd},
};

/// read(2).
#[inline]
pub fn read(fd: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<usize> {
    Ok(count(Call::Read, || rustix::io::read(fd, buffer))?)
}

/// write(2).
#[inline]
pub fn write(fd: BorrowedFd<'_>, bytes: &[u8]) -> io::Result<usize> {
    Ok(count(Call::Write, || rustix::io::write(fd, bytes))?)
}

/// write(2) for signal handlers (signal-safety(7)): errno is unchanged, since the interrupted code
/// may be about to read it. Not counted, because the first use of a thread-local may allocate in a
/// library that was loaded at run time. The result is ignored.
///
/// It does not use rustix, because the program's choice of rustix features decides whether rustix
/// changes errno.
#[inline]
pub fn write_from_handler(fd: BorrowedFd<'_>, bytes: &[u8]) {
    // SAFETY: the address of errno belongs to this thread and is valid while the thread exists.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: `errno` is valid (above); the kernel reads at most `bytes.len()` bytes from `bytes`.
    unsafe {
        let before = *errno;
        libc::write(fd.as_raw_fd(), bytes.as_ptr().cast(), bytes.len());
        *errno = before;
    }
}

/// close(2), counted. Its error is ignored, because there is no remedy: the descriptor is closed in any
/// case.
#[inline]
pub fn close(fd: OwnedFd) {
    // SAFETY: the descriptor is owned, so no other code uses its number.
    count(Call::Close, || unsafe { rustix::io::close(fd.into_raw_fd()) });
}

/// Whether the number `fd` is an open descriptor (fcntl(2), F_GETFD).
pub fn is_open(fd: RawFd) -> bool {
    // SAFETY: takes no pointer; a bad descriptor number is an error, not undefined.
    count(Call::Fcntl, || unsafe { libc::fcntl(fd, libc::F_GETFD) }) >= 0
}

/// Whether the file that is open as `fd` has no wait queue: it is always ready, so no mechanism waits
/// for it. Such are nearly all regular files and directories, and devices such as /dev/null.
///
/// fstat(2) suffices for sockets and pipes. For other files it takes three more system calls:
/// epoll_ctl(2) refuses files without a wait queue.
pub fn lacks_wait_queue(fd: RawFd) -> bool {
    let kind = file_type(fd);
    if matches!(kind, Some(libc::S_IFSOCK | libc::S_IFIFO)) {
        return false;
    }
    match epoll_create() {
        Ok(epoll) => epoll_ctl(epoll.as_fd(), EpollOp::Add, fd, 0, 0)
            .is_err_and(|error| error.raw_os_error() == Some(libc::EPERM)),
        // No descriptor is left.
        Err(_) => matches!(kind, Some(libc::S_IFREG | libc::S_IFDIR)),
    }
}

/// The type of the file that is open as `fd` (inode(7)); `None` if `fd` is not open.
fn file_type(fd: RawFd) -> Option<libc::mode_t> {
    let mut stat = MaybeUninit::<libc::stat64>::uninit();
    // SAFETY: the kernel fills `stat`, which lives through the call; a bad descriptor number is an
    // error, not undefined.
    let found = count(Call::Stat, || unsafe { libc::fstat64(fd, stat.as_mut_ptr()) }) == 0;
    // SAFETY: the kernel has filled it.
    found.then(|| unsafe { stat.assume_init() }.st_mode & libc::S_IFMT)
}

/// eventfd(2), non-blocking, close-on-exec, counter 0.
pub fn eventfd() -> io::Result<OwnedFd> {
    let flags = EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC;
    Ok(count(Call::Eventfd, || rustix::event::eventfd(0, flags))?)
}

/// pipe2(2), non-blocking, close-on-exec: the end to read, the end to write.
pub fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(count(Call::Pipe, || pipe_with(PipeFlags::NONBLOCK | PipeFlags::CLOEXEC))?)
}

/// sendfile(2) from `file` at `*offset`, which advances by the number of bytes sent.
#[inline]
pub fn sendfile(
    socket: BorrowedFd<'_>,
    file: BorrowedFd<'_>,
    offset: &mut u64,
    len: usize,
) -> io::Result<usize> {
    Ok(count(Call::Sendfile, || rustix::fs::sendfile(socket, file, Some(offset), len))?)
}
