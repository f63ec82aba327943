//! Child processes that end with their parent.

use rustix::{
    io::Errno,
    process::{Signal, getpid, getppid, set_parent_process_death_signal},
};
use std::{os::unix::process::CommandExt, process::Command};

/// Makes the kernel send `signal` to `command`'s process when the *thread* that starts it ends,
/// however that happens (prctl(2), PR_SET_PDEATHSIG): even SIGKILL of this program leaves nothing
/// behind. Start it from a thread that lives as long as it is wanted.
///
/// The command fails to start (EINVAL) with a number that is no signal, or a real-time one.
pub fn end_with_parent(command: &mut Command, signal: i32) {
    let parent = getpid();
    let signal = Signal::from_named_raw(signal);
    // SAFETY: the closure makes two async-signal-safe system calls, touches no lock and allocates
    // nothing, as is required between fork and exec.
    unsafe {
        command.pre_exec(move || {
            set_parent_process_death_signal(Some(signal.ok_or(Errno::INVAL)?))?;
            // The parent may have ended between fork and prctl.
            if getppid() == Some(parent) { Ok(()) } else { Err(Errno::SRCH.into()) }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{os::unix::process::ExitStatusExt, thread};

    #[test]
    fn a_child_ends_with_the_thread_that_started_it() {
        let started = thread::spawn(|| {
            let mut command = Command::new("sleep");
            end_with_parent(command.arg("1000"), libc::SIGTERM);
            command.spawn().expect("sleep(1) starts")
        });
        let mut child = started.join().expect("the thread ends");
        assert_eq!(child.wait().expect("its status").signal(), Some(libc::SIGTERM));
    }
}
