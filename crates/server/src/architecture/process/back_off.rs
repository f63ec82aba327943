//! The delay before a process that died is replaced.

use std::time::{Duration, Instant};

/// A process that ran for this long is replaced at once, and its earlier deaths are forgotten.
const STABLE: Duration = Duration::from_secs(10);
/// The delay after the second early death in a row. Each further one doubles the delay.
const FIRST: Duration = Duration::from_millis(100);
/// The longest delay. A process that always dies at once is started at this interval.
const LONGEST: Duration = Duration::from_secs(10);

/// The number of early deaths in a row of one position in a pool.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct BackOff {
    early_deaths: u32,
}

impl BackOff {
    /// Records that the process in this position has died, or could not be started (`lived` is then
    /// zero). Returns when the next one is due: at once after one death, so that a single kill
    /// causes no delay.
    pub(super) fn next(&mut self, now: Instant, lived: Duration) -> Instant {
        if lived >= STABLE {
            self.early_deaths = 0;
            return now;
        }
        self.early_deaths = self.early_deaths.saturating_add(1);
        let wait = match self.early_deaths {
            1 => Duration::ZERO,
            deaths => FIRST.saturating_mul(1 << (deaths - 2).min(16)).min(LONGEST),
        };
        now + wait
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crash_loop_slows_down_and_a_single_death_costs_nothing() {
        let mut back_off = BackOff::default();
        let now = Instant::now();
        let early = Duration::from_millis(5);
        let waits: Vec<_> = (0..12)
            .map(|_| back_off.next(now, early).saturating_duration_since(now).as_millis())
            .collect();
        let wanted = [0, 100, 200, 400, 800, 1600, 3200, 6400, 10_000, 10_000, 10_000, 10_000];
        assert_eq!(waits, wanted);
        // The process ran well for a while, so the next early death counts as the first.
        assert_eq!(back_off.next(now, STABLE), now);
        assert_eq!(back_off.next(now, early), now);
        assert_eq!(back_off.next(now, early), now + FIRST);
        for _ in 0..100 {
            assert!(back_off.next(now, early) <= now + LONGEST);
        }
    }
}
