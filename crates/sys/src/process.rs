//! Children of a process that has one thread: started, bound to their parent, and waited for.

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

/// What a child ends with that could not be made ready to run.
const UNREADY: libc::c_int = 70;
/// What a child ends with that panicked, as a program of Rust does.
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
/// has its default action, where a parent may have left it ignored (then no child could be taken).
///
/// # Errors
/// The errors of pthread_sigmask(3).
pub fn block_child_signal() -> io::Result<()> {
    // SAFETY: SIG_DFL is a valid disposition for SIGCHLD.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
    block_signals(&[libc::SIGCHLD])
}

/// Starts a child process (fork(2)) that runs `life` and ends with what it returns as its exit
/// status; nothing of the caller's is dropped in the child, and nothing of it runs at its end.
///
/// In the child only the three standard descriptors and `inherited` are open, under their old numbers;
/// it is killed when its parent ends, however that does (PR_SET_PDEATHSIG, prctl(2)). Its signal
/// mask is that of the caller.
///
/// By the promise `life` neither uses nor drops a descriptor that is not inherited.
///
/// # Errors
/// EAGAIN at a limit of processes (RLIMIT_NPROC, pids.max of the cgroup, threads-max), ENOMEM. Also
/// when this process has other threads: a lock that one of them holds would stay held in the child
/// for ever; or when /proc does not tell. Nothing runs then.
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
        Ok(()) => catch_unwind(AssertUnwindSafe(life)).map_or(PANICKED, libc::c_int::from),
        Err(error) => {
            eprintln!("pollux: a child process cannot run: {error}");
            UNREADY
        }
    };
    // SAFETY: takes no pointer and does not return.
    unsafe { libc::_exit(status) }
}

fn become_child(parent: Pid, inherited: &[RawFd]) -> io::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    // The parent may have ended before the death signal was set.
    if getppid() != Some(parent) {
        return Err(io::Error::other("its parent has ended"));
    }
    close_all_but(inherited)
}

/// How many threads this process has.
fn threads() -> io::Result<usize> {
    let tasks = fs::read_dir("/proc/self/task")
        .map_err(|error| io::Error::new(error.kind(), format!("/proc/self/task: {error}")))?;
    Ok(tasks.count())
}

/// A child that has ended, if there is one, without waiting for it (waitpid(2), WNOHANG). It is gone
/// after that, and its number may become another's.
///
/// # Errors
/// ECHILD is none: then no child is left, and nothing is returned.
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

/// Kills a child (SIGKILL) that has not been taken by [`reap_child`].
pub fn kill_child(child: ProcessId) {
    if let Some(child) = Pid::from_raw(child) {
        // A child that has ended keeps its number until it is taken.
        let _ = kill_process(child, Signal::KILL);
    }
}
