//! Rate limits with the generic cell rate algorithm (ITU-T I.371), which needs one number for each
//! client.

use std::{fmt, num::NonZeroU32, str::FromStr};

/// A rate, and the size of a burst.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    count: NonZeroU32,
    unit: TimeUnit,
    burst: NonZeroU32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TimeUnit {
    Second,
    Minute,
}

impl TimeUnit {
    fn nanoseconds(self) -> u64 {
        match self {
            Self::Second => 1_000_000_000,
            Self::Minute => 60_000_000_000,
        }
    }
}

impl Rate {
    /// Returns the interval between two events at the full rate, in nanoseconds.
    fn interval_ns(self) -> u64 {
        (self.unit.nanoseconds() / u64::from(self.count.get())).max(1)
    }

    /// Counts an event at `now_ns` if the rate allows it. `arrival_ns` is the state of the client:
    /// the time at which the next event is due at the full rate; 0 for a new client.
    ///
    /// # Errors
    /// The rate is exceeded; the value is the time in nanoseconds until an event is allowed again.
    pub(super) fn take(self, arrival_ns: &mut u64, now_ns: u64) -> Result<(), u64> {
        let interval = self.interval_ns();
        let due = (*arrival_ns).max(now_ns);
        let tolerance = interval.saturating_mul(u64::from(self.burst.get() - 1));
        let ahead = due - now_ns;
        if ahead > tolerance {
            return Err(ahead - tolerance);
        }
        *arrival_ns = due.saturating_add(interval);
        Ok(())
    }
}

impl FromStr for Rate {
    type Err = String;

    /// Parses `N`, `N/s` or `N/m`, optionally followed by `:BURST`; without it, a burst has N
    /// events.
    fn from_str(text: &str) -> Result<Self, String> {
        let wanted = || format!("{text:?}: expected N, N/s or N/m, and perhaps :BURST after it");
        let number = |text: &str| text.parse::<NonZeroU32>().map_err(|_| wanted());
        let (rate, burst) = match text.split_once(':') {
            Some((rate, burst)) => (rate, Some(number(burst)?)),
            None => (text, None),
        };
        let (count, unit) = match rate.split_once('/') {
            None => (rate, TimeUnit::Second),
            Some((count, "s")) => (count, TimeUnit::Second),
            Some((count, "m")) => (count, TimeUnit::Minute),
            Some(_) => return Err(wanted()),
        };
        let count = number(count)?;
        Ok(Self { count, unit, burst: burst.unwrap_or(count) })
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = match self.unit {
            TimeUnit::Second => "s",
            TimeUnit::Minute => "m",
        };
        write!(f, "{}/{unit}:{}", self.count, self.burst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn rates_are_read_and_shown() {
        for (text, shown) in
            [("10", "10/s:10"), ("10/s", "10/s:10"), ("60/m", "60/m:60"), ("5/s:20", "5/s:20")]
        {
            assert_eq!(text.parse::<Rate>().unwrap().to_string(), shown);
        }
        for text in ["", "0", "10/h", "10:0", "10/s:", "-1", "1.5"] {
            assert!(text.parse::<Rate>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn after_a_burst_one_is_allowed_for_each_interval() {
        let rate: Rate = "10/s:3".parse().unwrap();
        let (mut arrival, start) = (0, 1_000_000_000);
        for _ in 0..3 {
            rate.take(&mut arrival, start).unwrap();
        }
        let wait = rate.take(&mut arrival, start).unwrap_err();
        assert_eq!(wait, 100_000_000);
        rate.take(&mut arrival, start + wait).unwrap();
        assert!(rate.take(&mut arrival, start + wait).is_err());
    }

    proptest! {
        #[test]
        fn no_window_has_more_than_the_burst_and_its_share(
            count in 1_u32..1000, burst in 1_u32..50,
            steps in proptest::collection::vec(0_u64..5_000_000, 1..300),
        ) {
            let rate: Rate = format!("{count}/s:{burst}").parse().unwrap();
            let (mut arrival, mut now, start) = (0, 1_000_000_000, 1_000_000_000);
            let mut taken = 0_u64;
            for step in steps {
                now += step;
                match rate.take(&mut arrival, now) {
                    Ok(()) => taken += 1,
                    // The returned wait is long enough, and not one nanosecond too long.
                    Err(wait) => {
                        let mut copy = arrival;
                        prop_assert!(rate.take(&mut copy, now + wait - 1).is_err());
                        prop_assert!(rate.take(&mut copy, now + wait).is_ok());
                    }
                }
                let most = u64::from(burst) + (now - start) / rate.interval_ns();
                prop_assert!(taken <= most, "{taken} > {most}");
            }
        }
    }
}
