//! The times at which certificates are ordered again.

use crate::{Timing, Validity};
use std::time::{Duration, SystemTime};

/// The fraction of the lifetime after which a certificate is renewed, if the authority suggests no time.
const RENEW_AFTER: f64 = 2.0 / 3.0;
/// Part of the lifetime by which the renewal may come earlier, at random: servers that were started together
/// should not order together.
const JITTER: f64 = 1.0 / 50.0;
/// The fraction of the lifetime after which a certificate is renewed even if the authority suggests a later
/// time: some time must be left for attempts that fail.
const RENEW_AT_LATEST: f64 = 0.95;

/// The period in which the authority suggests to renew a certificate (ARI, RFC 9773).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Window {
    start: SystemTime,
    end: SystemTime,
}

impl Window {
    /// `None` if it does not end after its start: RFC 9773 §4.2 calls it invalid then.
    pub(crate) fn new(start: SystemTime, end: SystemTime) -> Option<Self> {
        (start < end).then_some(Self { start, end })
    }

    /// A time in it. `random` is from 0 to 1.
    fn at(self, random: f64) -> SystemTime {
        self.start + self.end.duration_since(self.start).unwrap_or_default().mul_f64(random)
    }
}

/// The plan for one name.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    /// The time of the next order.
    pub(crate) due: SystemTime,
    /// Failures since the last success.
    pub(crate) failures: u32,
    /// The time at which the authority is asked for the renewal window; `None` if it is not asked: there
    /// is no certificate, the authority has no such information, or an attempt has failed.
    pub(crate) query_at: Option<SystemTime>,
    /// The window from which `due` was drawn.
    window: Option<Window>,
    /// No window makes an order come before this time.
    earliest: SystemTime,
}

impl Plan {
    /// The plan for a stored certificate, or for none. `random` is from 0 to 1.
    pub(crate) fn for_stored(validity: Option<Validity>, random: f64) -> Self {
        let due = validity.map_or(SystemTime::UNIX_EPOCH, |validity| renewal(validity, random));
        Self {
            due,
            failures: 0,
            query_at: validity.map(|_| SystemTime::UNIX_EPOCH),
            window: None,
            earliest: SystemTime::UNIX_EPOCH,
        }
    }

    /// The plan after a success at `now`.
    pub(crate) fn after_success(
        validity: Validity,
        now: SystemTime,
        timing: &Timing,
        random: f64,
    ) -> Self {
        let earliest = now + timing.orders_apart;
        let due = renewal(validity, random).max(earliest);
        Self { due, failures: 0, query_at: Some(now), window: None, earliest }
    }

    /// The plan after one more failure at `now`.
    pub(crate) fn after_failure(&self, now: SystemTime, timing: &Timing, random: f64) -> Self {
        let doubled = timing.retry_first.saturating_mul(2u32.saturating_pow(self.failures));
        let delay = doubled.min(timing.retry_max).mul_f64(1.0 - random / 4.0);
        let failures = self.failures.saturating_add(1);
        // A window in the past would make the next attempt come at once.
        Self { due: now + delay, failures, query_at: None, ..*self }
    }

    /// The plan after the authority has suggested a window at `now`, and a time until the next query. The
    /// same window again changes nothing: each draw would make an early time more probable.
    pub(crate) fn in_window(
        &self,
        window: Window,
        validity: Validity,
        now: SystemTime,
        next_query: Duration,
        timing: &Timing,
        random: f64,
    ) -> Self {
        let (least, most) = timing.window_queries;
        let mut next = Self { query_at: Some(now + next_query.clamp(least, most)), ..*self };
        if self.window != Some(window) {
            next.window = Some(window);
            let latest = validity.from + validity.lifetime().mul_f64(RENEW_AT_LATEST);
            next.due = window.at(random).min(latest).max(self.earliest);
        }
        next
    }

    /// The plan after a query at `now` that has failed, or (`None`) for an authority that has no such
    /// information.
    pub(crate) fn without_window(&self, retry: Option<Duration>, now: SystemTime) -> Self {
        Self { query_at: retry.map(|retry| now + retry), ..*self }
    }

    /// The time of the next action.
    pub(crate) fn next(&self) -> SystemTime {
        self.query_at.map_or(self.due, |query| query.min(self.due))
    }

    /// Whether an order should name the certificate that it replaces: the authority has this extension, and
    /// no earlier order for the same certificate has failed, for which this may have been the reason.
    pub(crate) fn names_predecessor(&self) -> bool {
        self.window.is_some() && self.failures == 0
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

    fn suggested(plan: &Plan, window: Window, now: SystemTime, random: f64) -> Plan {
        let validity = Validity { from: at(100), until: at(190) };
        plan.in_window(window, validity, now, 10 * DAY, &Timing::default(), random)
    }

    #[test]
    fn the_authority_chooses_the_window_and_chance_the_time_in_it() {
        let validity = Validity { from: at(100), until: at(190) };
        let plan = Plan::for_stored(Some(validity), 0.5);
        assert_eq!(plan.next(), SystemTime::UNIX_EPOCH, "it is asked at once");
        let window = Window::new(at(120), at(122)).unwrap();
        let now = at(110);
        for (random, due) in [(0.0, at(120)), (0.5, at(121)), (1.0, at(122))] {
            assert_eq!(suggested(&plan, window, now, random).due, due);
        }
        let plan = suggested(&plan, window, now, 0.5);
        assert_eq!(plan.query_at, Some(now + DAY), "ten days are too long");
        // The same window does not draw again, a new one does.
        assert_eq!(suggested(&plan, window, now, 0.0).due, at(121));
        let earlier = Window::new(at(111), at(113)).unwrap();
        assert_eq!(suggested(&plan, earlier, now, 0.5).due, at(112));
        let past = Window::new(at(101), at(102)).unwrap();
        assert!(suggested(&plan, past, now, 0.5).due < now);
        assert_eq!(Window::new(at(101), at(101)), None);
    }

    #[test]
    fn a_window_can_neither_let_a_certificate_expire_nor_order_without_end() {
        let timing = Timing::default();
        let validity = Validity { from: at(100), until: at(190) };
        let plan = Plan::for_stored(Some(validity), 0.5);
        let late = Window::new(at(300), at(301)).unwrap();
        let due = suggested(&plan, late, at(110), 0.5).due;
        assert!(due > at(180) && due < at(190));
        let plan = Plan::after_success(validity, at(110), &timing, 0.5);
        let past = Window::new(at(1), at(2)).unwrap();
        assert_eq!(suggested(&plan, past, at(110), 0.5).due, at(110) + timing.orders_apart);
        // After a failure the delays decide alone.
        let plan = suggested(&plan, past, at(110), 0.5);
        assert!(plan.names_predecessor());
        let plan = plan.after_failure(at(111), &timing, 0.0);
        assert_eq!((plan.query_at, plan.names_predecessor()), (None, false));
        assert_eq!(plan.next(), at(111) + timing.retry_first);
    }

    #[test]
    fn an_authority_without_windows_is_not_asked_again() {
        let validity = Validity { from: at(100), until: at(190) };
        let plan = Plan::for_stored(Some(validity), 0.0);
        let without = plan.without_window(None, at(110));
        assert_eq!(without.next(), plan.due);
        assert!(!without.names_predecessor());
        assert_eq!(plan.without_window(Some(DAY), at(110)).next(), at(111));
    }
}
