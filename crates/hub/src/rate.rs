//! A bound on the number of events per second.

use std::time::Duration;

/// A token bucket: a number of events per second, with a burst of one second's number.
#[derive(Debug)]
pub struct RateLimit {
    per_second: u32,
    /// The available events, in billionths of an event.
    left: u64,
    at: Duration,
}

/// One event, in the unit of [`RateLimit::left`].
const EVENT: u64 = 1_000_000_000;

impl RateLimit {
    /// Allows at most `per_second` events per second; 0 is no limit.
    #[must_use]
    pub fn new(per_second: u32) -> Self {
        Self { per_second, left: u64::from(per_second) * EVENT, at: Duration::ZERO }
    }

    /// Whether one more event is allowed at this time. `now` is a time on a clock that does not run
    /// backwards, always the same clock.
    pub fn allow(&mut self, now: Duration) -> bool {
        if self.per_second == 0 {
            return true;
        }
        let rate = u64::from(self.per_second);
        let elapsed = now.saturating_sub(self.at).as_nanos();
        let elapsed = u64::try_from(elapsed).unwrap_or(u64::MAX);
        self.left = self.left.saturating_add(elapsed.saturating_mul(rate)).min(rate * EVENT);
        self.at = self.at.max(now);
        let allowed = self.left >= EVENT;
        if allowed {
            self.left -= EVENT;
        }
        allowed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_then_the_rate() {
        let mut limit = RateLimit::new(10);
        let at = |ms| Duration::from_millis(100_000 + ms);
        let mut count = |from: u64, to: u64| (from..to).filter(|ms| limit.allow(at(*ms))).count();
        assert_eq!(count(0, 100), 10);
        assert_eq!(count(100, 1100), 10);
        let mut none = RateLimit::new(0);
        assert!((0..1000).all(|_| none.allow(at(0))));
    }
}
