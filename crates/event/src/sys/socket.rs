//! Sockets on the request path: accept, recv, send.

use super::{Call, check, check_len, count};
use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
};

/// accept4(2), non-blocking and close-on-exec, without the peer's address.
#[inline]
pub fn accept(listener: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    // SAFETY: null address pointers are allowed; a descriptor it returns is new and ours.
    count(Call::Accept, || unsafe {
        check(libc::accept4(
            listener.as_raw_fd(),
            std::ptr::null_mut(),
            std::ptr::null_mut(),
            libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC,
        ))
        .map(|fd| OwnedFd::from_raw_fd(fd))
    })
}

/// recv(2).
#[inline]
pub fn recv(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<usize> {
    // SAFETY: the kernel writes at most `buffer.len()` bytes into `buffer`.
    count(Call::Recv, || unsafe {
        check_len(libc::recv(socket.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len(), 0))
    })
}

/// send(2) with MSG_NOSIGNAL; `more` adds MSG_MORE: hold a partial segment back, more follows.
#[inline]
pub fn send(socket: BorrowedFd<'_>, bytes: &[u8], more: bool) -> io::Result<usize> {
    let flags = libc::MSG_NOSIGNAL | if more { libc::MSG_MORE } else { 0 };
    // SAFETY: the kernel reads at most `bytes.len()` bytes from `bytes`.
    count(Call::Send, || unsafe {
        check_len(libc::send(socket.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), flags))
    })
}
