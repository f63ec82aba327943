//! epoll(7).

use super::{Call, check, count};
use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd},
};

pub use libc::epoll_event as EpollEvent;

/// What epoll_ctl(2) does.
#[derive(Clone, Copy, Debug)]
#[repr(i32)]
pub enum EpollOp {
    /// EPOLL_CTL_ADD
    Add = libc::EPOLL_CTL_ADD,
    /// EPOLL_CTL_MOD
    Modify = libc::EPOLL_CTL_MOD,
    /// EPOLL_CTL_DEL
    Remove = libc::EPOLL_CTL_DEL,
}

/// epoll_create1(2), close-on-exec.
pub fn epoll_create() -> io::Result<OwnedFd> {
    // SAFETY: takes no pointer; a descriptor it returns is new and ours.
    count(Call::EpollCreate, || unsafe {
        check(libc::epoll_create1(libc::EPOLL_CLOEXEC)).map(|fd| OwnedFd::from_raw_fd(fd))
    })
}

/// epoll_ctl(2).
#[inline]
pub fn epoll_ctl(
    epoll: BorrowedFd<'_>,
    op: EpollOp,
    fd: RawFd,
    events: u32,
    data: u64,
) -> io::Result<()> {
    let mut event = EpollEvent { events, u64: data };
    // SAFETY: `event` lives through the call; a bad descriptor number is an error, not undefined.
    count(Call::EpollCtl, || unsafe {
        check(libc::epoll_ctl(epoll.as_raw_fd(), op as i32, fd, &mut event)).map(drop)
    })
}

/// epoll_wait(2) into the spare capacity of `events`, which is cleared first.
#[inline]
pub fn epoll_wait(
    epoll: BorrowedFd<'_>,
    events: &mut Vec<EpollEvent>,
    timeout_ms: i32,
) -> io::Result<usize> {
    events.clear();
    let room = events.capacity().min(i32::MAX as usize) as i32;
    // SAFETY: the kernel writes at most `room` events into the vector's own allocation.
    let filled = count(Call::EpollWait, || unsafe {
        check(libc::epoll_wait(epoll.as_raw_fd(), events.as_mut_ptr(), room, timeout_ms))
    })? as usize;
    // SAFETY: the kernel initialised the first `filled` ≤ capacity events.
    unsafe { events.set_len(filled) };
    Ok(filled)
}
