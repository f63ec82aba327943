//! The time, read once for each wait: ticks for the timers, and the Date field of responses.

use pollux_http::date::DateCache;
use pollux_sys::{
    coarse_resolution, monotonic_coarse as monotonic, unix_second_coarse as unix_second,
};
use std::time::Duration;

/// The resolution of all timers.
pub(crate) const TICK: Duration = Duration::from_millis(100);

/// The number of ticks in a second, which is a whole number. So ticks can be counted in 32 bits,
/// whereas as_millis() would divide 128 bits at each wait.
const TICKS_A_SECOND: u32 = 1_000_000_000 / TICK.subsec_nanos();

/// The time as a worker sees it.
#[derive(Debug)]
pub(crate) struct Clock {
    started_at: Duration,
    resolution: Duration,
    tick: u32,
    elapsed_ms: u32,
    date: DateCache,
}

impl Clock {
    /// Starts a clock at tick 0.
    pub(crate) fn start() -> Self {
        Self {
            started_at: monotonic(),
            resolution: coarse_resolution(),
            tick: 0,
            elapsed_ms: 0,
            date: DateCache::new(unix_second()),
        }
    }

    /// Returns the milliseconds of a clock that never goes back. It is the same clock in all
    /// threads and processes.
    pub(crate) fn now_ms() -> u64 {
        u64::try_from(monotonic().as_millis()).unwrap_or(u64::MAX)
    }

    /// Reads the coarse clocks, which need no system call and are accurate to 10 ms.
    #[inline]
    pub(crate) fn update(&mut self) {
        let elapsed = monotonic().saturating_sub(self.started_at);
        // 32 bits of ticks last for 13 years.
        self.tick = elapsed.as_secs() as u32 * TICKS_A_SECOND
            + elapsed.subsec_nanos() / TICK.subsec_nanos();
        self.elapsed_ms =
            (elapsed.as_secs() as u32).wrapping_mul(1000).wrapping_add(elapsed.subsec_millis());
        self.date.update(unix_second());
    }

    /// Returns the milliseconds from the start to the last update. They wrap to 0 after 49 days, so
    /// that only wrapping differences are meaningful.
    #[inline]
    pub(crate) fn elapsed_ms(&self) -> u32 {
        self.elapsed_ms
    }

    /// Returns the ticks since the start, rounded down.
    #[inline]
    pub(crate) fn tick(&self) -> u32 {
        self.tick
    }

    /// Returns the tick at which `timeout_ticks` from now have certainly passed. It is never `u32::MAX`, which a timer
    /// takes for no deadline.
    #[inline]
    pub(crate) fn after(&self, timeout_ticks: u32) -> u32 {
        self.tick.saturating_add(timeout_ticks).min(u32::MAX - 2) + 1
    }

    /// Returns how long to wait until this clock shows `tick`.
    ///
    /// The coarse clock shows a tick late, by at most its resolution. An engine whose wait ends before the clock shows
    /// the tick waits again, for the time that is left by this clock. If the kernel updates the clock some nanoseconds
    /// before our ticks begin, only these nanoseconds are left, and the engine would wait many times.
    pub(crate) fn until(&self, tick: u32) -> Duration {
        let elapsed = monotonic().saturating_sub(self.started_at);
        match TICK.saturating_mul(tick).saturating_sub(elapsed) {
            Duration::ZERO => Duration::ZERO,
            left => left + self.resolution,
        }
    }

    /// Returns the Date field, with the second that it shows.
    #[inline]
    pub(crate) fn date(&self) -> &DateCache {
        &self.date
    }
}

/// Converts a duration to ticks, rounded up.
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
        // From any moment within the present tick, a whole tick has passed when the tick after the
        // next begins.
        assert_eq!(clock.after(1), clock.tick() + 2);
        assert_eq!(clock.after(u32::MAX), u32::MAX - 1);
        assert!(clock.until(1000) > TICK * 900);
        assert_eq!(clock.until(clock.tick()), Duration::ZERO);
    }

    #[test]
    fn after_the_wait_for_a_tick_the_clock_shows_it() {
        let mut clock = Clock::start();
        for tick in 1..=4 {
            // As an engine waits when nothing happens.
            let timeout = clock.until(tick).try_into().unwrap();
            assert_eq!(rustix::event::poll(&mut [], Some(&timeout)), Ok(0));
            clock.update();
            assert!(clock.tick() >= tick, "{} instead of {tick}", clock.tick());
        }
    }

    #[test]
    fn the_date_is_now() {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        let shown = Clock::start().date().unix_second();
        assert!(shown.abs_diff(now.as_secs()) <= 60, "{shown} against {now:?}");
    }
}
