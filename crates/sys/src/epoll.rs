//! epoll(7).

use super::{Call, check, count};
use rustix::event::epoll;
use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd},
    time::Duration,
};

pub use libc::epoll_event as EpollEvent;

/// The operation of epoll_ctl(2).
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
    Ok(count(Call::EpollCreate, || epoll::create(epoll::CreateFlags::CLOEXEC))?)
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

/// epoll_pwait2(2) (Linux 5.11) without a signal mask: [`epoll_wait`] with a timeout in
/// nanoseconds. The timer may still fire late by the thread's timer slack (prctl(2)).
#[inline]
pub fn epoll_pwait2(
    epoll: BorrowedFd<'_>,
    events: &mut Vec<EpollEvent>,
    timeout: Duration,
) -> io::Result<usize> {
    events.clear();
    let room = events.capacity().min(i32::MAX as usize) as i32;
    // The kernel's own 64-bit timespec, because libc's is 32-bit on some architectures.
    let timeout: [i64; 2] =
        [timeout.as_secs().min(i64::MAX as u64) as i64, i64::from(timeout.subsec_nanos())];
    // SAFETY: the kernel reads the timespec and writes at most `room` events into the vector's own
    // allocation. The system call is made directly, because glibc has its wrapper only since 2.35.
    let returned = count(Call::EpollPwait2, || unsafe {
        libc::syscall(
            libc::SYS_epoll_pwait2,
            epoll.as_raw_fd(),
            events.as_mut_ptr(),
            room,
            timeout.as_ptr(),
            std::ptr::null::<libc::sigset_t>(),
            0usize,
        )
    });
    let filled = check(returned as libc::c_int)? as usize;
    // SAFETY: the kernel initialised the first `filled` ≤ capacity events.
    unsafe { events.set_len(filled) };
    Ok(filled)
}
