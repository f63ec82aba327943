//! The few system calls that only the laboratory uses and that need `unsafe`: CPU clocks, priorities,
//! namespaces.
#![allow(unsafe_code)]

mod perf;

pub use perf::{count_calls, count_switches};

use std::{io, os::unix::process::CommandExt, process::Command, time::Duration};

/// The lowest real-time priority, which is above all priorities that are not real-time.
const FIRST: i32 = 1;

/// Gives `command`'s process and its children the lowest real-time priority, so that they run before all
/// processes without one ([`pollux_sys::enter_real_time`]). Starting the command then requires
/// CAP_SYS_NICE.
pub fn goes_first(command: &mut Command) {
    // SAFETY: the closure makes one system call and allocates nothing, as is required between fork and
    // exec.
    unsafe {
        command.pre_exec(|| pollux_sys::enter_real_time(0, FIRST));
    }
}

/// Gives the thread `id` a higher priority than [`goes_first`] does.
///
/// # Errors
/// ESRCH when there is no such thread, EPERM without CAP_SYS_NICE.
pub fn goes_before_the_first(id: u32) -> io::Result<()> {
    pollux_sys::enter_real_time(id, FIRST + 1)
}

/// Returns the CPU time of a process so far, with that of its ended threads, as the scheduler accounts it
/// in nanoseconds (clock_getcpuclockid(3)).
///
/// # Errors
/// ESRCH when there is no such process.
pub fn process_cpu_time(pid: u32) -> io::Result<Duration> {
    let mut clock = 0;
    // SAFETY: `clock` is valid for the write; the call reads nothing else.
    let error = unsafe { libc::clock_getcpuclockid(pid as libc::pid_t, &mut clock) };
    if error != 0 {
        return Err(io::Error::from_raw_os_error(error));
    }
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is valid for the write.
    if unsafe { libc::clock_gettime(clock, &mut time) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(Duration::new(time.tv_sec as u64, time.tv_nsec as u32))
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Moves this thread into a new network namespace (unshare(2), network_namespaces(7)).
///
/// # Errors
/// EPERM without CAP_SYS_ADMIN.
pub fn own_network() -> io::Result<()> {
    // SAFETY: the call takes no pointer; the namespace is this thread's alone.
    check(unsafe { libc::unshare(libc::CLONE_NEWNET) })
}

/// Activates the loopback interface of this thread's network namespace (netdevice(7)).
///
/// # Errors
/// Those of socket(2) and of the two ioctls.
pub fn loopback_up() -> io::Result<()> {
    let socket = std::net::UdpSocket::bind("0.0.0.0:0")?;
    let fd = std::os::fd::AsRawFd::as_raw_fd(&socket);
    // SAFETY: an ifreq of zeros is valid: an empty name and no flags.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(b"lo") {
        *to = *from as libc::c_char;
    }
    // SAFETY: the ioctl reads the name and writes the flags of `request`.
    check(unsafe { libc::ioctl(fd, libc::SIOCGIFFLAGS as _, &mut request) })?;
    // SAFETY: the call above has written the flags, so that they are the active field of the union.
    unsafe { request.ifr_ifru.ifru_flags |= libc::IFF_UP as libc::c_short };
    // SAFETY: the ioctl reads the name and the flags.
    check(unsafe { libc::ioctl(fd, libc::SIOCSIFFLAGS as _, &request) })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::{ffi::CString, os::unix::ffi::OsStrExt, path::Path};

    /// Makes `root` the root directory of this thread only (chroot(2)).
    pub(crate) fn chroot_of_this_thread(root: &Path) -> io::Result<()> {
        let root = CString::new(root.as_os_str().as_bytes())?;
        // SAFETY: the call takes no pointer; afterwards this thread shares its root and working directory
        // with no other.
        check(unsafe { libc::unshare(libc::CLONE_FS) })?;
        // SAFETY: the string is terminated and outlives the call.
        check(unsafe { libc::chroot(root.as_ptr()) })
    }
}
