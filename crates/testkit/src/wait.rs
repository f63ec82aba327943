//! Waiting for a state that no event announces, such as a counter of another process.

use crate::http::PATIENCE;
use std::{
    thread,
    time::{Duration, Instant},
};

/// The pause between two checks. It is short beside the time that a test takes, and long enough to leave the CPU to
/// the program that the test waits for.
const PAUSE: Duration = Duration::from_millis(5);

/// Waits until `is_so` returns true.
///
/// # Panics
///
/// Panics with `what` if that takes longer than [`PATIENCE`].
#[track_caller]
pub fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    wait_for(what, || is_so().then_some(()));
}

/// Waits until `find` returns a value, and returns that value.
///
/// # Panics
///
/// Panics with `what` if that takes longer than [`PATIENCE`].
#[track_caller]
pub fn wait_for<T>(what: &str, mut find: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = find() {
            return found;
        }
        assert!(Instant::now() < deadline, "waited {PATIENCE:?} in vain for {what}");
        thread::sleep(PAUSE);
    }
}
