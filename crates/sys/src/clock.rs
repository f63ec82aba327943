//! The clocks that are read while a request is handled.

use std::{mem::MaybeUninit, time::Duration};

/// CLOCK_MONOTONIC_COARSE: the time of the kernel's last tick, at most 10 ms old; read without a system
/// call (vdso(7)).
#[inline]
pub fn monotonic_coarse() -> Duration {
    let now = read(libc::CLOCK_MONOTONIC_COARSE);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

/// How far apart the readings of [`monotonic_coarse`] are: 1 to 10 ms. The clock is adjusted to the right time, so they
/// differ from this by some nanoseconds.
pub fn coarse_resolution() -> Duration {
    let mut time = MaybeUninit::uninit();
    // SAFETY: the kernel writes one timespec.
    let outcome = unsafe { libc::clock_getres(libc::CLOCK_MONOTONIC_COARSE, time.as_mut_ptr()) };
    assert_eq!(outcome, 0, "every Linux since 2.6.32 has the coarse clocks");
    // SAFETY: it has been written.
    let time = unsafe { time.assume_init() };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// CLOCK_REALTIME_COARSE, in Unix seconds; 0 before 1970.
#[inline]
pub fn unix_second_coarse() -> u64 {
    read(libc::CLOCK_REALTIME_COARSE).tv_sec.max(0) as u64
}

#[inline]
fn read(clock: libc::clockid_t) -> libc::timespec {
    let mut time = MaybeUninit::uninit();
    // SAFETY: the kernel writes one timespec.
    let outcome = unsafe { libc::clock_gettime(clock, time.as_mut_ptr()) };
    assert_eq!(outcome, 0, "every Linux since 2.6.32 has the coarse clocks");
    // SAFETY: it has been written.
    unsafe { time.assume_init() }
}
