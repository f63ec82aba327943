//! The system calls of Pollux: each wrapped once, counted per thread and, if enabled, timed.
//!
//! [`counters()`] reads this thread's counts, [`count`] adds a call that is made elsewhere.
//!
//! rustix provides most of them: its calls are typed, inline, and not cancellation points
//! (pthreads(7)). These use the C library instead:
//!
//! - `epoll_ctl`, `is_open`, `lacks_wait_queue`, `socket_protocol`, `send_signals` take the number of a
//!   descriptor that may already be closed; rustix requires an open one. The same holds for `ppoll` and
//!   `pselect`, whose arrays also have holes (-1).
//! - `epoll_wait` and `epoll_pwait2` are two mechanisms to compare; rustix chooses between such calls
//!   itself, by the timeout.
//! - Signals (masks, sets, dispositions, `sigtimedwait`, `signalfd`, F_SETSIG), the ioctls of
//!   /dev/poll, SIOCOUTQ, TCP_INFO, IP_BIND_ADDRESS_NO_PORT and `close_range` are not in rustix, or
//!   only for programs without a C library; its `kill` has no real-time signals.
//! - No library offers Landlock's version without its rules; kernel TLS (TCP_ULP, TLS_TX, the type of a
//!   record) is not in rustix.
//! - `fork`, `_exit` and robust mutexes: the C library keeps state about them.
//! - Clocks: rustix looks for the vDSO by itself, and so cannot run under valgrind.
//! - [`write_from_handler`] leaves errno unchanged, regardless of rustix's features.
#![allow(unsafe_code)]

#[cfg(not(target_os = "linux"))]
compile_error!("pollux-sys wraps the system calls of Linux and builds for Linux alone");

/// The README's example is compiled, too.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

mod child;
mod clock;
mod connect;
mod counters;
mod devpoll;
mod epoll;
mod fd_signals;
mod file;
mod file_table;
mod kernel_tls;
mod landlock;
mod lock;
mod poll;
mod process;
mod program;
mod resolve;
mod rights;
#[cfg(feature = "io_uring")]
mod ring;
#[cfg(feature = "io_uring")]
mod send_ring;
mod shared;
mod signal;
mod socket;
mod thread;

pub use child::{end_with_parent, inherit, inherited};
pub use clock::*;
pub use connect::*;
pub use counters::{Call, Counters, count, counters, set_timing};
pub use devpoll::*;
pub use epoll::*;
pub use fd_signals::*;
pub use file::*;
pub use file_table::*;
pub use kernel_tls::*;
pub use landlock::landlock_abi;
pub use lock::*;
pub use poll::*;
pub use process::*;
pub use program::{find_program, require_program};
pub use resolve::resolve;
pub use rights::*;
#[cfg(feature = "io_uring")]
pub use ring::*;
#[cfg(feature = "io_uring")]
pub use send_ring::SendRing;
pub use shared::*;
pub use signal::*;
pub use socket::*;
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
