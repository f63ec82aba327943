//! The offset between the clocks of two hosts. Rank 0's clocks are read several times, and the
//! fastest reply is used, because its error is smallest (Cristian, 1989).
//!
//! A host's CLOCK_MONOTONIC decides when its part of the schedule begins. No figure depends on the
//! calendar clock; its offset is reported for readers who compare logs.

use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

/// The largest number of readings, each time: before the start and after the end.
pub(super) const PROBES: usize = 64;

/// A host's clocks at one instant, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ClockReading {
    pub(super) monotonic_ns: i64,
    /// Since 1970 (UTC).
    pub(super) calendar_ns: i64,
}

impl ClockReading {
    pub(super) fn now() -> Self {
        let read = |clock| {
            let time = clock_gettime(clock);
            time.tv_sec.saturating_mul(1_000_000_000).saturating_add(time.tv_nsec)
        };
        Self { monotonic_ns: read(ClockId::Monotonic), calendar_ns: read(ClockId::Realtime) }
    }
}

/// The value to add to this host's clocks to get rank 0's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ClockOffset {
    pub(super) monotonic_ns: i64,
    pub(super) calendar_ns: i64,
    /// The largest error of `monotonic_ns` in either direction: half of the round trip. A calendar clock that
    /// is set meanwhile errs by more.
    pub(super) error_ns: i64,
}

impl ClockOffset {
    /// Rank 0's own offset, since the others are compared with its clock.
    pub(super) const NONE: Self = Self { monotonic_ns: 0, calendar_ns: 0, error_ns: 0 };

    /// From one exchange: the request was sent at `sent`, rank 0's clock then showed `theirs`, and the
    /// response arrived at `received`.
    pub(super) fn of(sent: ClockReading, theirs: ClockReading, received: ClockReading) -> Self {
        let middle = |first: i64, last: i64| first + (last - first) / 2;
        Self {
            monotonic_ns: theirs.monotonic_ns - middle(sent.monotonic_ns, received.monotonic_ns),
            calendar_ns: theirs.calendar_ns - middle(sent.calendar_ns, received.calendar_ns),
            error_ns: (received.monotonic_ns - sent.monotonic_ns + 1) / 2,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_true_offset_lies_within_the_error_even_if_the_delays_are_unequal() {
        let reading = |monotonic_ns| ClockReading { monotonic_ns, calendar_ns: monotonic_ns + 7 };
        for (there, back) in [(0, 100), (50, 50), (100, 0), (3, 4)] {
            let true_offset = 1_000_000;
            let answered = reading(500 + there + true_offset);
            let offset = ClockOffset::of(reading(500), answered, reading(500 + there + back));
            let wrong = (offset.monotonic_ns - true_offset).abs();
            assert!(wrong <= offset.error_ns, "{there} + {back}: {wrong} > {}", offset.error_ns);
            assert_eq!(offset.error_ns, (there + back + 1) / 2);
            assert_eq!(offset.calendar_ns, offset.monotonic_ns);
        }
    }

    #[test]
    fn the_clocks_run() {
        let (first, second) = (ClockReading::now(), ClockReading::now());
        assert!(second.monotonic_ns >= first.monotonic_ns);
        assert!(first.calendar_ns > 1_600_000_000_000_000_000);
    }
}
