//! The end of streams that have lasted as long as a stream may last.
//!
//! A timer for each of a million subscribers would cost more memory than the subscriber itself. A slot has two
//! bytes to spare, which hold its deadline in coarse units. A part of the slots is looked at in each check, so that ends
//! are spread over time also if all streams began at once.

use super::{SubscriberId, Subscribers};
use std::{num::NonZeroU16, time::Duration};

/// Units of the maximum lifetime. The counter of units wraps around after 256 lifetimes.
const UNITS: u32 = 256;
/// Units in which all slots are looked at once.
const ROUND: u32 = UNITS / 16;
/// Units by which rounding can make a deadline late.
const ROUNDING: u32 = 2;

/// The longest time that a stream may last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MaxLifetime {
    longest: Duration,
    /// The longest time between two calls of [`Subscribers::end_overdue`].
    interval: Duration,
}

/// An instant, in units of a [`MaxLifetime`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadline(NonZeroU16);

impl Deadline {
    #[expect(clippy::cast_possible_truncation, reason = "the counter wraps around")]
    fn of(units: u128) -> Self {
        Self(NonZeroU16::new(units as u16).unwrap_or(NonZeroU16::MIN))
    }

    /// The units from `now` until then; negative afterwards.
    pub(super) fn units_after(self, now: Self) -> i16 {
        self.0.get().wrapping_sub(now.0.get()).cast_signed()
    }
}

impl MaxLifetime {
    /// The shortest one, in calls of [`Subscribers::end_overdue`].
    pub const SHORTEST: u32 = 2;

    /// `interval` is the longest time between two calls of [`Subscribers::end_overdue`]. None if there is no limit
    /// (zero), or if the limit is too short to be enforced at that interval.
    #[must_use]
    pub fn new(longest: Duration, interval: Duration) -> Option<Self> {
        let is_long_enough = !interval.is_zero() && longest >= interval * Self::SHORTEST;
        is_long_enough.then_some(Self { longest, interval })
    }

    fn unit(self) -> u128 {
        (self.longest.as_nanos() / u128::from(UNITS)).max(1)
    }

    /// This instant. `time` is a time on any clock that does not run backwards, always the same one.
    #[must_use]
    pub fn instant(self, time: Duration) -> Deadline {
        Deadline::of(time.as_nanos() / self.unit())
    }

    /// The deadline of a stream that begins now: after a random time between half of the longest one and, with what a
    /// look can be late, all of it.
    #[must_use]
    pub fn draw(self, now: Duration, random: u32) -> Deadline {
        let late = u32::try_from(self.interval.as_nanos().div_ceil(self.unit())).unwrap_or(UNITS);
        let latest = UNITS.saturating_sub(late + ROUND + ROUNDING).max(1);
        let earliest = latest.min(UNITS / 2);
        let units = earliest + random % (latest - earliest + 1);
        Deadline::of(now.as_nanos() / self.unit() + u128::from(units))
    }

    /// The deadline of a stream that may last for this time from now on, but no longer than a new one.
    #[must_use]
    pub fn after(self, now: Duration, left: Duration) -> Deadline {
        Deadline::of((now + left.min(self.longest)).as_nanos() / self.unit())
    }

    /// The time from now until a deadline.
    #[must_use]
    pub fn left(self, now: Duration, deadline: Deadline) -> Duration {
        let units = u64::try_from(deadline.units_after(self.instant(now))).unwrap_or(0);
        Duration::from_nanos(u64::try_from(self.unit()).unwrap_or(u64::MAX).saturating_mul(units))
    }

    /// How many of these slots a call of [`Subscribers::end_overdue`] looks at. `since` is the time since the last call.
    #[must_use]
    pub fn share(self, slots: usize, since: Duration) -> usize {
        let round = self.longest / (UNITS / ROUND);
        let calls = usize::try_from(round.as_nanos() / since.as_nanos().max(1)).unwrap_or(1);
        slots.div_ceil(calls.max(1))
    }
}

impl Subscribers {
    /// Limits the time that a subscriber's stream lasts. Those for which this is not called have no limit.
    pub fn set_deadline(&mut self, id: SubscriberId, deadline: Deadline) {
        if let Some(slot) = self.slots.get_mut(id.0 as usize) {
            slot.deadline = Some(deadline);
        }
    }

    /// The deadline of a subscriber, if it has one.
    #[must_use]
    pub fn deadline(&self, id: SubscriberId) -> Option<Deadline> {
        self.slots.get(id.0 as usize)?.deadline
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn limit(seconds: u64) -> MaxLifetime {
        MaxLifetime::new(SECOND * u32::try_from(seconds).unwrap(), SECOND).unwrap()
    }

    #[test]
    fn deadlines_are_spread_over_the_second_half() {
        for seconds in [2, 3, 4, 10, 60, 600, 3600, 86_400, 30 * 86_400] {
            let (limit, longest) = (limit(seconds), SECOND * u32::try_from(seconds).unwrap());
            // Also where the counter wraps around.
            for now in [0, 7, 12_345, 1 << 16, 86_400 * 365] {
                let now = Duration::from_secs(now);
                let left: Vec<_> =
                    (0..1000).map(|random| limit.left(now, limit.draw(now, random))).collect();
                let (least, most) = (left.iter().min().unwrap(), left.iter().max().unwrap());
                assert!(*most + SECOND <= longest, "{seconds} s: {most:?}");
                assert!(*least >= longest * 2 / 5, "{seconds} s: {least:?}");
                if seconds >= 60 {
                    assert!(*most - *least >= longest / 3, "{seconds} s: {least:?} to {most:?}");
                }
            }
        }
    }

    #[test]
    fn a_limit_that_cannot_be_enforced_is_none() {
        assert_eq!(MaxLifetime::new(Duration::ZERO, SECOND), None);
        assert_eq!(MaxLifetime::new(SECOND, SECOND), None);
        assert_eq!(MaxLifetime::new(SECOND, Duration::ZERO), None);
    }

    #[test]
    fn what_is_left_goes_to_another_process() {
        let (here, there) = (limit(600), limit(60));
        let (now, then) = (Duration::from_secs(5000), Duration::from_secs(3));
        let left = here.left(now, here.draw(now, 0));
        assert!((SECOND * 295..=SECOND * 300).contains(&left), "{left:?}");
        let same = here.left(then, here.after(then, left));
        assert!(same.abs_diff(left) <= SECOND * 3, "{same:?}");
        assert!(there.left(then, there.after(then, left)) <= SECOND * 60);
        assert_eq!(here.left(now + SECOND * 400, here.draw(now, 0)), Duration::ZERO);
    }

    #[test]
    fn all_slots_are_looked_at_in_a_part_of_the_lifetime() {
        assert_eq!(limit(600).share(1_000_000, SECOND), 1_000_000 / 37 + 1);
        assert_eq!(limit(600).share(1_000_000, SECOND * 5), 1_000_000 / 7 + 1);
        assert_eq!(limit(10).share(10, SECOND), 10);
        assert_eq!(limit(86_400).share(0, SECOND), 0);
    }
}
