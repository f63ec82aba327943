//! Notifications for the service manager (sd_notify(3)): ready, reloading, stopping, and alive.
//!
//! Without NOTIFY_SOCKET in the environment nothing is sent.

use sd_notify::NotifyState;
use std::time::Duration;

/// How often the watchdog hears of us within its time (sd_watchdog_enabled(3) recommends half of it).
const WATCHDOG_SHARE: u32 = 2;

/// Connections are accepted.
pub(super) fn ready() {
    notify(&[NotifyState::Ready]);
}

/// A reload begins; [`ready`] ends it.
pub(super) fn reloading() {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => notify(&[NotifyState::Reloading, now]),
        Err(error) => tracing::warn!("sd_notify: {error}"),
    }
}

/// A stop was requested.
pub(super) fn stopping() {
    notify(&[NotifyState::Stopping]);
}

/// The process with this number serves from now on: its messages are heard from now on.
pub(super) fn succeeded_by(pid: u32) {
    notify(&[NotifyState::MainPid(pid)]);
}

/// The workers have answered.
pub(super) fn alive() {
    notify(&[NotifyState::Watchdog]);
}

/// How often the watchdog wants to hear of us, in whole seconds for alarm(2); `None` where there is none.
pub(super) fn watchdog_interval_s() -> Option<u32> {
    sd_notify::watchdog_enabled().map(interval_s)
}

fn interval_s(watchdog: Duration) -> u32 {
    u32::try_from((watchdog / WATCHDOG_SHARE).as_secs()).unwrap_or(u32::MAX).max(1)
}

fn notify(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!("the service manager cannot be notified (NOTIFY_SOCKET): {error}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_watchdog_hears_of_us_twice_in_its_time() {
        assert_eq!(interval_s(Duration::from_secs(30)), 15);
        assert_eq!(interval_s(Duration::from_millis(1500)), 1, "alarm(2) knows no less");
    }
}
