//! The few system calls that need `unsafe`: what a child does before exec, CPU clocks, namespaces.
#![allow(unsafe_code)]

mod perf;

pub use perf::count_calls;

use std::{
    ffi::CString,
    io,
    os::unix::{ffi::OsStrExt, process::CommandExt},
    path::Path,
    process::Command,
    time::Duration,
};

/// Makes `command`'s process die with this thread and keeps the terminal's Ctrl-C from it.
///
/// The kernel sends SIGKILL when the *thread* that spawned the child ends (prctl(2),
/// PR_SET_PDEATHSIG), so spawn from the thread that lives as long as the run. The child has a
/// process group of its own: on Ctrl-C the laboratory decides in which order things end.
pub fn die_with_parent(command: &mut Command) {
    let parent = rustix::process::getpid();
    command.process_group(0);
    // SAFETY: the closure makes two system calls, touches no lock and allocates nothing, as
    // is required between fork and exec.
    unsafe {
        command.pre_exec(move || {
            rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
            // The parent may have died before the line above.
            if rustix::process::getppid() != Some(parent) {
                return Err(io::Error::from_raw_os_error(libc::ESRCH));
            }
            Ok(())
        });
    }
}

/// CPU time of a process so far: all its threads, those that have ended too, in nanoseconds of
/// the scheduler's own account (clock_getcpuclockid(3)).
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

/// Gives this thread a network namespace and a mount namespace of its own, from which no mount
/// reaches the others (unshare(2), mount_namespaces(7)).
///
/// # Errors
/// EPERM without CAP_SYS_ADMIN.
pub fn own_network() -> io::Result<()> {
    // SAFETY: the call takes no pointer; namespaces are this thread's alone.
    check(unsafe { libc::unshare(libc::CLONE_NEWNET | libc::CLONE_NEWNS) })?;
    let (none, no_data) = (std::ptr::null(), std::ptr::null());
    let private = libc::MS_REC | libc::MS_PRIVATE;
    // SAFETY: the path is a string with its end; where there is no text NULL is allowed.
    check(unsafe { libc::mount(none, c"/".as_ptr(), none, private, no_data) })
}

/// Brings the loopback of this thread's network namespace up (netdevice(7)).
///
/// # Errors
/// Those of socket(2) and of the two ioctls.
pub fn loopback_up() -> io::Result<()> {
    let socket = std::net::UdpSocket::bind("0.0.0.0:0")?;
    let fd = std::os::fd::AsRawFd::as_raw_fd(&socket);
    // SAFETY: an ifreq of zeros is a valid one: a name that is empty, flags that are clear.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(b"lo") {
        *to = *from as libc::c_char;
    }
    // SAFETY: the ioctl reads the name and writes the flags of `request`.
    check(unsafe { libc::ioctl(fd, libc::SIOCGIFFLAGS, &mut request) })?;
    // SAFETY: the call above has written the flags, which are the union's field in use.
    unsafe { request.ifr_ifru.ifru_flags |= libc::IFF_UP as libc::c_short };
    // SAFETY: the ioctl reads name and flags.
    check(unsafe { libc::ioctl(fd, libc::SIOCSIFFLAGS, &request) })
}

fn c_path(path: &Path) -> io::Result<CString> {
    Ok(CString::new(path.as_os_str().as_bytes())?)
}

/// Mounts sysfs, as this thread's network namespace has it, at `path`.
///
/// # Errors
/// Those of mount(2).
pub fn mount_sysfs(path: &Path) -> io::Result<()> {
    let (path, sysfs) = (c_path(path)?, c"sysfs".as_ptr());
    // SAFETY: all strings have their ends and outlive the call; sysfs takes no data.
    check(unsafe { libc::mount(sysfs, path.as_ptr(), sysfs, 0, std::ptr::null()) })
}

/// Takes the mount at `path` away.
///
/// # Errors
/// Those of umount2(2).
pub fn unmount(path: &Path) -> io::Result<()> {
    let path = c_path(path)?;
    // SAFETY: the string has its end and outlives the call.
    check(unsafe { libc::umount2(path.as_ptr(), libc::MNT_DETACH) })
}
