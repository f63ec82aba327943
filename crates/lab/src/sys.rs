//! The few system calls that need `unsafe`: what a child does before exec, and CPU clocks.
#![allow(unsafe_code)]

use std::{io, os::unix::process::CommandExt, process::Command, time::Duration};

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
