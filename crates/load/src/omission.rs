//! The requests that a closed loop did not send while it waited ("coordinated omission").
//!
//! Each connection of a closed loop waits for its reply before it sends again. While the server
//! stalls, hardly anything is sent. One slow reply then represents all the requests that independent
//! users would have sent during the stall, and the percentiles look good.

use hdrhistogram::Histogram;

/// A reply that took at least this multiple of the median is a stall.
const STALL: f64 = 10.0;

/// The fraction of missing requests above which the report mentions them: they would change the 99th
/// percentile.
const REPORTED_SHARE: f64 = 0.01;

/// The number of further requests that would have been sent if no connection had waited longer than the
/// median. For each reply above ten times the median, it is the number of medians that fit into its
/// time, less the one request that was sent. (Gil Tene's correction adds the same, with the expected
/// interval instead of the median.) A request that failed counts with the time until it failed; the median
/// is that of the good replies, because a failure at once is not what a reply takes.
pub(crate) fn omitted(good: &Histogram<u64>, failed: &Histogram<u64>) -> u64 {
    if good.is_empty() {
        return 0;
    }
    let median = good.value_at_quantile(0.5).max(1) as f64;
    let stalls = good.iter_recorded().chain(failed.iter_recorded()).filter(|step| {
        let value = step.value_iterated_to() as f64;
        value > STALL * median
    });
    let missing = stalls.map(|step| {
        let value = step.value_iterated_to() as f64;
        step.count_at_value() as f64 * (value / median - 1.0)
    });
    missing.sum::<f64>() as u64
}

/// The note about the missing requests, if they are many.
pub(crate) fn note(omitted: u64, good: &Histogram<u64>, failed: &Histogram<u64>) -> Option<String> {
    let all = omitted + good.len() + failed.len();
    (omitted > 0 && omitted as f64 >= REPORTED_SHARE * all as f64).then(|| {
        format!(
            "the server stalled (the longest request took {:.0} ms, the median {:.1} ms), and a closed \
             loop waits with it: some {omitted} requests that others would have sent meanwhile are \
             not in the percentiles; measure latencies with --rate",
            good.max().max(failed.max()) as f64 / 1e6,
            good.value_at_quantile(0.5) as f64 / 1e6,
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn histogram(values_ns: &[(u64, u64)]) -> Histogram<u64> {
        let mut histogram = crate::histogram::histogram();
        for &(value, count) in values_ns {
            histogram.record_n(value, count).unwrap();
        }
        histogram
    }

    #[test]
    fn a_stall_of_a_second_hides_a_thousand_requests_of_a_millisecond() {
        let stalled = histogram(&[(1_000_000, 1_000), (1_000_000_000, 1)]);
        let none = histogram(&[]);
        let missing = omitted(&stalled, &none);
        assert!((980..1_010).contains(&missing), "{missing}");
        let message = note(missing, &stalled, &none).unwrap();
        assert!(message.contains("took 1") && message.contains("--rate"), "{message}");
    }

    /// Regression test: a status that was not expected, or a reset, once counted as a stall of the time limit.
    #[test]
    fn a_failure_is_a_stall_for_as_long_as_it_took() {
        let good = histogram(&[(1_000_000, 1_000)]);
        assert_eq!(omitted(&good, &histogram(&[(20_000, 2_000)])), 0, "failed at once");
        let missing = omitted(&good, &histogram(&[(1_000_000_000, 1)]));
        assert!((980..1_010).contains(&missing), "{missing}");
        assert_eq!(omitted(&histogram(&[]), &histogram(&[(1, 9), (1_000_000, 1)])), 0);
    }

    #[test]
    fn without_a_stall_nothing_is_missing() {
        let none = histogram(&[]);
        let steady = histogram(&[(1_000_000, 1_000), (9_000_000, 10)]);
        assert_eq!(omitted(&steady, &none), 0);
        assert_eq!(note(0, &steady, &none), None);
        assert_eq!(omitted(&none, &none), 0);
        // One in a million changes no percentile of the report.
        let rare = histogram(&[(1_000_000, 1_000_000), (100_000_000, 1)]);
        assert_eq!(note(omitted(&rare, &none), &rare, &none), None);
    }
}
