//! Child processes: forked ones that report their failure, and programs that are killed at the end of
//! a test.

use crate::{pairs::poll_within, sys};
use rustix::{
    event::PollFlags,
    pipe::PipeFlags,
    process::{Signal, WaitOptions, kill_process, waitpid},
};
use std::{
    panic::{self, AssertUnwindSafe},
    process::Child,
    time::Duration,
};

/// The maximum time that a child may run.
const TIME: Duration = Duration::from_secs(30);

/// The maximum length of the failure message of a child, in bytes.
const MESSAGE_BYTES: usize = 4096;

/// A child process that is killed when this value is dropped.
#[derive(Debug)]
pub struct KillOnDrop(pub Child);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs `body` in a forked child and waits for it. If the child panics, the parent panics with the
/// child's message. The child has only the calling thread.
pub fn in_child(body: impl FnOnce()) {
    let (report, say) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC).expect("pipe2");
    let Some(child) = sys::fork() else {
        // No panic hook is set: another thread may have held the hook's lock during the fork, and in
        // this process no thread would ever release it.
        let outcome = panic::catch_unwind(AssertUnwindSafe(body));
        let failed = outcome.is_err();
        if let Err(payload) = outcome {
            let message = payload
                .downcast_ref::<String>()
                .map(String::as_str)
                .or_else(|| payload.downcast_ref::<&str>().copied())
                .unwrap_or("a panic without a message");
            let end = message.len().min(MESSAGE_BYTES);
            let _ = rustix::io::write(&say, &message.as_bytes()[..end]);
        }
        sys::exit_now(i32::from(failed));
    };
    drop(say);
    // The only writer of the pipe is the child, so the pipe ends when the child ends.
    if poll_within(&report, PollFlags::IN, TIME).is_empty() {
        let _ = kill_process(child, Signal::KILL);
        let _ = waitpid(Some(child), WaitOptions::empty());
        panic!("the child did not end within {TIME:?}; it was killed");
    }
    let mut message = vec![0; MESSAGE_BYTES];
    let length = rustix::io::read(&report, &mut message[..]).expect("read the child's report");
    let (_, status) =
        waitpid(Some(child), WaitOptions::empty()).expect("waitpid").expect("the child's status");
    assert!(
        length == 0 && status.exit_status() == Some(0),
        "the child failed ({status:?}): {}",
        String::from_utf8_lossy(&message[..length])
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    // One test for both cases: if one thread panics while another forks, the child may inherit a held
    // lock.
    #[test]
    fn a_child_that_succeeds_says_nothing_and_its_panic_is_the_parents() {
        in_child(|| ());
        let failure = panic::catch_unwind(|| in_child(|| panic!("seven is not eight")));
        let message = *failure.unwrap_err().downcast::<String>().unwrap();
        assert!(message.contains("seven is not eight"), "{message}");
    }
}
