//! Waiting for a state that no event announces, such as a counter of another process, and checking
//! that a state stays.

use crate::http::PATIENCE;
use rustix::io::ioctl_fionread;
use std::{
    os::fd::AsFd,
    process::{Child, ExitStatus},
    thread,
    time::{Duration, Instant},
};

/// The first pause between two checks, and the longest. A state that is reached at once is noticed at
/// once; one that takes long leaves the CPU to the program that the test waits for.
const PAUSES: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(20));

/// Calls `find` until it returns a value, but not for longer than `time`. The last call is made after
/// `time` is over.
pub fn find_within<T>(time: Duration, mut find: impl FnMut() -> Option<T>) -> Option<T> {
    let deadline = Instant::now() + time;
    let (mut pause, longest) = PAUSES;
    loop {
        let is_late = Instant::now() >= deadline;
        let found = find();
        if found.is_some() || is_late {
            return found;
        }
        // No event announces the state.
        thread::sleep(pause.min(deadline.saturating_duration_since(Instant::now())));
        pause = longest.min(2 * pause);
    }
}

/// Returns whether `is_so` becomes true within `time`. The caller asserts it with a message of its own.
pub fn becomes_true(time: Duration, mut is_so: impl FnMut() -> bool) -> bool {
    find_within(time, || is_so().then_some(())).is_some()
}

/// Returns whether `is_so` stays true for `time`: the check that something does not happen.
pub fn stays_true(time: Duration, mut is_so: impl FnMut() -> bool) -> bool {
    !becomes_true(time, || !is_so())
}

/// Waits until `is_so` returns true.
///
/// # Panics
///
/// Panics with `what` if that takes longer than [`PATIENCE`].
#[track_caller]
pub fn wait_until(what: &str, is_so: impl FnMut() -> bool) {
    assert!(becomes_true(PATIENCE, is_so), "waited {PATIENCE:?} in vain for {what}");
}

/// Waits until `find` returns a value, and returns that value.
///
/// # Panics
///
/// Panics with `what` if that takes longer than [`PATIENCE`].
#[track_caller]
pub fn wait_for<T>(what: &str, find: impl FnMut() -> Option<T>) -> T {
    find_within(PATIENCE, find).unwrap_or_else(|| panic!("waited {PATIENCE:?} in vain for {what}"))
}

/// Returns the exit status of a child process if it ends within `time`.
pub fn ended_within(time: Duration, child: &mut Child) -> Option<ExitStatus> {
    find_within(time, || child.try_wait().expect("the status of a child"))
}

/// How long nothing may arrive until a sender counts as stalled.
const STALL: Duration = Duration::from_millis(50);

/// Waits until `socket` has unread input and gets no more: its sender has filled the buffers, or has
/// sent everything.
///
/// # Panics
///
/// Panics if that takes longer than [`PATIENCE`].
#[track_caller]
pub fn wait_until_stalled(socket: impl AsFd) {
    let unread = || ioctl_fionread(&socket).expect("the length of the input");
    wait_until("a sender to stall", || {
        let before = unread();
        before > 0 && stays_true(STALL, || unread() == before)
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_millis(30);

    #[test]
    fn a_state_is_found_when_it_is_reached_and_its_absence_when_the_time_is_over() {
        let started_at = Instant::now();
        let mut calls = 0;
        let found = find_within(PATIENCE, || {
            calls += 1;
            (calls == 3).then_some(calls)
        });
        assert_eq!(found, Some(3));
        assert!(started_at.elapsed() < PATIENCE);
        assert!(!becomes_true(SHORT, || false));
        assert!(started_at.elapsed() >= SHORT);
    }

    #[test]
    fn a_state_that_changes_does_not_stay() {
        assert!(stays_true(SHORT, || true));
        let mut calls = 0;
        let stays = stays_true(PATIENCE, || {
            calls += 1;
            calls < 3
        });
        assert!(!stays && calls == 3);
    }

    #[test]
    fn a_sender_stalls_when_its_peer_does_not_read() {
        let (near, far) = std::os::unix::net::UnixStream::pair().unwrap();
        far.set_nonblocking(true).unwrap();
        let sent = crate::fill(&far);
        wait_until_stalled(&near);
        assert!(ioctl_fionread(&near).unwrap() > 0 && sent > 0);
    }
}
