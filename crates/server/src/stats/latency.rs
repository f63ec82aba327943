//! The latency of requests: a histogram with fixed limits, made of counters.
//!
//! The time of a request begins when its head is complete. It ends when its response is complete,
//! or when a long response has been handed on. The clock is the one that the loop reads once after
//! each wait, so latencies need no further clock reads. A request that is answered in the iteration
//! in which it arrived counts as 0, which is below the first limit in any case.

use super::{Counter, Counters, Counts};

/// The histogram's counters with their upper limits in milliseconds; the last counter has no limit.
const BUCKETS: [(Counter, u32); 12] = [
    (Counter::Latency5, 5),
    (Counter::Latency10, 10),
    (Counter::Latency25, 25),
    (Counter::Latency50, 50),
    (Counter::Latency100, 100),
    (Counter::Latency250, 250),
    (Counter::Latency500, 500),
    (Counter::Latency1000, 1000),
    (Counter::Latency2500, 2500),
    (Counter::Latency5000, 5000),
    (Counter::Latency10000, 10_000),
    (Counter::LatencyMore, u32::MAX),
];

/// The counters of responses by the first digit of their status.
pub(crate) const CLASSES: [Counter; 5] = [
    Counter::Responses1xx,
    Counter::Responses2xx,
    Counter::Responses3xx,
    Counter::Responses4xx,
    Counter::Responses5xx,
];

/// Counts a response with this status that was complete `elapsed_ms` milliseconds after its
/// request. An invalid status, such as that of a connection that was handed over, is not counted.
#[inline]
pub(crate) fn record(counters: &Counters, status: u16, elapsed_ms: u32) {
    let Some(&class) = CLASSES.get(usize::from(status / 100).wrapping_sub(1)) else { return };
    counters.add(class, 1);
    if elapsed_ms == 0 {
        return counters.add(Counter::Latency5, 1);
    }
    let bucket = BUCKETS.iter().find(|(_, limit)| elapsed_ms <= *limit);
    counters.add(bucket.map_or(Counter::LatencyMore, |bucket| bucket.0), 1);
    counters.add(Counter::LatencySum, elapsed_ms.into());
}

/// Returns the histogram: for each limit in seconds, the number of responses that took at most that
/// long. The last limit is infinity.
pub(crate) fn histogram(counts: &Counts) -> Vec<(f64, u64)> {
    let mut sum = 0;
    let at_most = |&(counter, limit): &(Counter, u32)| {
        sum += counts[counter];
        let is_last = limit == u32::MAX;
        (if is_last { f64::INFINITY } else { f64::from(limit) / 1000.0 }, sum)
    };
    BUCKETS.iter().map(at_most).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_response_is_in_one_class_and_one_bucket() {
        let counters = Counters::default();
        for (status, elapsed_ms) in [(200, 0), (204, 5), (304, 6), (404, 10_000), (502, 10_001)] {
            record(&counters, status, elapsed_ms);
        }
        record(&counters, 0, 7);
        let counts = counters.read();
        let classes = CLASSES.map(|class| counts[class]);
        assert_eq!(classes, [0, 2, 1, 1, 1]);
        let histogram = histogram(&counts);
        assert_eq!((histogram[0], histogram[1]), ((0.005, 2), (0.01, 3)));
        assert_eq!(histogram[10], (10.0, 4));
        assert_eq!(histogram[11], (f64::INFINITY, 5));
        assert_eq!(counts[Counter::LatencySum], 20_012);
    }
}
