//! The only raw system calls of Pollux: each wrapped once, each counted.
#![allow(unsafe_code)]

mod clock;
mod connect;
mod counters;
mod devpoll;
mod epoll;
mod file;
mod poll;
mod ring;
mod signal;
mod signal_queue;
mod socket;
mod table;
mod thread;

pub use clock::*;
pub use connect::*;
pub use counters::{Call, Counters, count, counters, set_timing};
pub use devpoll::*;
pub use epoll::*;
pub use file::*;
pub use poll::*;
pub use ring::*;
pub use signal::*;
pub use signal_queue::*;
pub use socket::*;
pub use table::*;
pub use thread::*;

use poll::timespec;
use std::io;

/// Turns the C convention (-1 and errno) into a `Result`.
#[inline]
fn check(returned: libc::c_int) -> io::Result<libc::c_int> {
    if returned < 0 { Err(io::Error::last_os_error()) } else { Ok(returned) }
}

/// [`check`] for calls that return a length.
#[inline]
fn check_len(returned: libc::ssize_t) -> io::Result<usize> {
    if returned < 0 { Err(io::Error::last_os_error()) } else { Ok(returned as usize) }
}

/// [`check_len`] for syscall(2), which returns a long whatever the call does.
#[inline]
fn check_long(returned: libc::c_long) -> io::Result<usize> {
    if returned < 0 { Err(io::Error::last_os_error()) } else { Ok(returned as usize) }
}
