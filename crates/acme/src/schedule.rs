//! The times at which certificates are ordered again.

use crate::{Timing, Validity};
use std::time::{Duration, SystemTime};

/// The fraction of the lifetime after which a certificate is renewed.
const RENEW_AFTER: f64 = 2.0 / 3.0;
/// Part of the lifetime by which the renewal may come earlier, at random: servers that were started together
/// should not order together.
const JITTER: f64 = 1.0 / 50.0;

/// The plan for one name.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    /// The time of the next order.
    pub(crate) due: SystemTime,
    /// Failures since the last success.
    pub(crate) failures: u32,
}

impl Plan {
    /// The plan for a stored certificate, or for none. `random` is from 0 to 1.
    pub(crate) fn for_stored(validity: Option<Validity>, random: f64) -> Self {
        let due = validity.map_or(SystemTime::UNIX_EPOCH, |validity| renewal(validity, random));
        Self { due, failures: 0 }
    }

    /// The plan after a success at `now`.
    pub(crate) fn after_success(
        validity: Validity,
        now: SystemTime,
        timing: &Timing,
        random: f64,
    ) -> Self {
        Self { due: renewal(validity, random).max(now + timing.orders_apart), failures: 0 }
    }

    /// The plan after one more failure at `now`.
    pub(crate) fn after_failure(&self, now: SystemTime, timing: &Timing, random: f64) -> Self {
        let doubled = timing.retry_first.saturating_mul(2u32.saturating_pow(self.failures));
        let delay = doubled.min(timing.retry_max).mul_f64(1.0 - random / 4.0);
        Self { due: now + delay, failures: self.failures.saturating_add(1) }
    }
}

fn renewal(validity: Validity, random: f64) -> SystemTime {
    let lifetime: Duration = validity.lifetime();
    validity.from + lifetime.mul_f64(RENEW_AFTER - random * JITTER)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: Duration = Duration::from_secs(86_400);

    fn at(days: u32) -> SystemTime {
        SystemTime::UNIX_EPOCH + DAY * days
    }

    #[test]
    fn a_certificate_is_renewed_after_two_thirds_of_its_lifetime() {
        let validity = Validity { from: at(100), until: at(190) };
        assert_eq!(Plan::for_stored(None, 0.5).due, SystemTime::UNIX_EPOCH);
        let (latest, earliest) =
            (Plan::for_stored(Some(validity), 0.0), Plan::for_stored(Some(validity), 1.0));
        assert!(latest.due > at(159) && latest.due <= at(160));
        assert!(earliest.due < latest.due && earliest.due > at(158));
    }

    #[test]
    fn a_wrong_clock_does_not_order_without_end() {
        let timing = Timing::default();
        let validity = Validity { from: at(100), until: at(190) };
        let now = at(1000);
        assert_eq!(Plan::after_success(validity, now, &timing, 0.0).due, now + timing.orders_apart);
    }

    #[test]
    fn delays_double_up_to_a_maximum() {
        let timing = Timing::default();
        let now = at(100);
        let mut plan = Plan::for_stored(None, 0.0);
        let mut delays = Vec::new();
        for _ in 0..40 {
            plan = plan.after_failure(now, &timing, 0.0);
            delays.push(plan.due.duration_since(now).unwrap());
        }
        assert_eq!(delays[..3], [60, 120, 240].map(Duration::from_secs));
        assert_eq!(delays[39], timing.retry_max);
        let early = plan.after_failure(now, &timing, 1.0).due.duration_since(now).unwrap();
        assert!(early < timing.retry_max && early > timing.retry_max / 2);
    }
}
