//! The time, read once a wait: ticks for the timers, the Date field for the responses.

use pollux_http::date::DateCache;
use pollux_sys::{monotonic_coarse as monotonic, unix_second_coarse as unix_second};
use std::time::Duration;

/// The grain of all timers.
pub(crate) const TICK: Duration = Duration::from_millis(100);

/// The grain divides the second: then ticks are counted in 32 bits, where as_millis() would divide
/// 128 bits at each wait.
const TICKS_A_SECOND: u32 = 1_000_000_000 / TICK.subsec_nanos();

/// The time as a worker knows it.
#[derive(Debug)]
pub(crate) struct Clock {
    started_at: Duration,
    tick: u32,
    elapsed_ms: u32,
    date: DateCache,
}

impl Clock {
    /// Starts at tick 0.
    pub(crate) fn start() -> Self {
        Self {
            started_at: monotonic(),
            tick: 0,
            elapsed_ms: 0,
            date: DateCache::new(unix_second()),
        }
    }

    /// Milliseconds of a clock that never goes back, the same one in all threads and processes.
    pub(crate) fn now_ms() -> u64 {
        u64::try_from(monotonic().as_millis()).unwrap_or(u64::MAX)
    }

    /// Reads the clocks: the coarse ones, which cost no system call and are right to 10 ms.
    #[inline]
    pub(crate) fn update(&mut self) {
        let elapsed = monotonic().saturating_sub(self.started_at);
        // 32 bits of ticks are 13 years.
        self.tick = elapsed.as_secs() as u32 * TICKS_A_SECOND
            + elapsed.subsec_nanos() / TICK.subsec_nanos();
        self.elapsed_ms =
            (elapsed.as_secs() as u32).wrapping_mul(1000).wrapping_add(elapsed.subsec_millis());
        self.date.update(unix_second());
    }

    /// Milliseconds since the start, as of the last update. After 49 days they begin again at 0, so that only
    /// wrapping differences mean something.
    #[inline]
    pub(crate) fn elapsed_ms(&self) -> u32 {
        self.elapsed_ms
    }

    /// Ticks since the start, rounded down.
    #[inline]
    pub(crate) fn tick(&self) -> u32 {
        self.tick
    }

    /// The tick at which `timeout` from now has passed for certain.
    #[inline]
    pub(crate) fn after(&self, timeout_ticks: u32) -> u32 {
        self.tick.saturating_add(timeout_ticks).saturating_add(1)
    }

    /// How long it is until `tick` has begun.
    pub(crate) fn until(&self, tick: u32) -> Duration {
        let elapsed = monotonic().saturating_sub(self.started_at);
        TICK.saturating_mul(tick).saturating_sub(elapsed)
    }

    /// The Date field, and the second that it shows.
    #[inline]
    pub(crate) fn date(&self) -> &DateCache {
        &self.date
    }
}

/// A duration in ticks, rounded up.
pub(crate) fn ticks(duration: Duration) -> u32 {
    u32::try_from(duration.as_millis().div_ceil(TICK.as_millis())).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timeout_never_ends_early() {
        assert_eq!(ticks(Duration::from_millis(100)), 1);
        assert_eq!(ticks(Duration::from_millis(101)), 2);
        assert_eq!(ticks(Duration::MAX), u32::MAX);
        let clock = Clock::start();
        // From any moment within the present tick, one whole tick passes before the one after next.
        assert_eq!(clock.after(1), clock.tick() + 2);
        assert_eq!(clock.after(u32::MAX), u32::MAX);
        assert!(clock.until(1000) > TICK * 900);
        assert_eq!(clock.until(clock.tick()), Duration::ZERO);
    }

    #[test]
    fn the_date_is_now() {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        let shown = Clock::start().date().unix_second();
        assert!(shown.abs_diff(now.as_secs()) <= 60, "{shown} against {now:?}");
    }
}
