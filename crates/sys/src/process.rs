//! Children of a single-threaded process: starts them, binds them to their parent, and waits for them.

use super::{Call, OwnFileTables, block_signals, check, count, file_table::close_all_but};
use rustix::{
    io::Errno,
    process::{
        Pid, Signal, WaitOptions, getpid, getppid, kill_process, set_parent_process_death_signal,
        waitpid,
    },
};
use std::{
    fmt, fs, io,
    os::fd::RawFd,
    panic::{AssertUnwindSafe, catch_unwind},
};

/// The number of a process.
pub type ProcessId = libc::pid_t;

/// The exit status of a child that could not be prepared to run.
const UNREADY: libc::c_int = 70;
/// The exit status of a child that panicked, as of a Rust program.
const PANICKED: libc::c_int = 101;

/// How a child has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChildStatus {
    /// By itself, with this exit status.
    Exit(i32),
    /// By this signal.
    Signal(i32),
}

impl fmt::Display for ChildStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exit(status) => write!(f, "exit status {status}"),
            Self::Signal(signal) => write!(f, "signal {signal}"),
        }
    }
}

/// Makes the ends of children a signal that can be waited for: SIGCHLD is blocked in this thread, and
/// gets its default action, since a parent process may have left it ignored (then the status of no
/// child could be collected).
///
/// # Errors
/// The errors of pthread_sigmask(3).
pub fn block_child_signal() -> io::Result<()> {
    // SAFETY: SIG_DFL is a valid disposition for SIGCHLD.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
    block_signals(&[libc::SIGCHLD])
}

/// Starts a child process (fork(2)) that runs `life` and ends with its return value as the exit status.
/// Nothing that the caller owns is dropped in the child, and none of the caller's code runs at the
/// child's end.
///
/// In the child only the three standard descriptors and `inherited` are open, under their old numbers.
/// The child is killed when its parent ends in any way (PR_SET_PDEATHSIG, prctl(2)). Its signal mask is
/// that of the caller.
///
/// By the promise `life` neither uses nor drops a descriptor that is not inherited.
///
/// # Errors
/// EAGAIN at a limit of processes (RLIMIT_NPROC, pids.max of the cgroup, threads-max), ENOMEM. Also
/// when this process has other threads (a lock that one of them holds would stay held in the child for
/// ever), or when their number cannot be read from /proc. No child is started then.
pub fn fork(
    _promise: OwnFileTables,
    inherited: &[RawFd],
    life: impl FnOnce() -> u8,
) -> io::Result<ProcessId> {
    let threads = threads()?;
    if threads != 1 {
        return Err(io::Error::other(format!(
            "this process has {threads} threads: only one that has no other can be forked"
        )));
    }
    let mut inherited = inherited.to_vec();
    inherited.sort_unstable();
    inherited.dedup();
    let parent = getpid();
    // SAFETY: this process has one thread, so the child has all threads, and no lock is held by a
    // thread that does not exist. The child runs `life` and ends without returning to the caller.
    let child = count(Call::Fork, || check(unsafe { libc::fork() }))?;
    if child > 0 {
        return Ok(child);
    }
    let status = match become_child(parent, &inherited) {
        Ok(true) => catch_unwind(AssertUnwindSafe(life)).map_or(PANICKED, libc::c_int::from),
        // A message would only disturb: a process whose parent has ended is not needed any more.
        Ok(false) => UNREADY,
        Err(error) => {
            eprintln!("pollux: a child process cannot run: {error}");
            UNREADY
        }
    };
    // SAFETY: takes no pointer and does not return.
    unsafe { libc::_exit(status) }
}

/// Returns false if the parent has ended before the death signal was set.
fn become_child(parent: Pid, inherited: &[RawFd]) -> io::Result<bool> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    if getppid() != Some(parent) {
        return Ok(false);
    }
    close_all_but(inherited).map(|()| true)
}

/// The number of threads of this process.
fn threads() -> io::Result<usize> {
    let tasks = fs::read_dir("/proc/self/task")
        .map_err(|error| io::Error::new(error.kind(), format!("/proc/self/task: {error}")))?;
    Ok(tasks.count())
}

/// Collects a child that has ended, if there is one, without waiting for it (waitpid(2), WNOHANG).
/// After that the kernel may use the child's number for another process.
///
/// # Errors
/// ECHILD is not an error: then no child is left, and the result is `None`.
pub fn reap_child() -> io::Result<Option<(ProcessId, ChildStatus)>> {
    loop {
        return match count(Call::Wait, || waitpid(None, WaitOptions::NOHANG)) {
            Ok(None) | Err(Errno::CHILD) => Ok(None),
            Ok(Some((child, status))) => {
                let ending = match status.terminating_signal() {
                    Some(signal) => ChildStatus::Signal(signal),
                    None => ChildStatus::Exit(status.exit_status().unwrap_or_default()),
                };
                Ok(Some((child.as_raw_pid(), ending)))
            }
            Err(Errno::INTR) => continue,
            Err(error) => Err(error.into()),
        };
    }
}

/// Kills a child (SIGKILL) that [`reap_child`] has not collected.
pub fn kill_child(child: ProcessId) {
    if let Some(child) = Pid::from_raw(child) {
        // A child that has ended keeps its number until it is collected.
        let _ = kill_process(child, Signal::KILL);
    }
}
