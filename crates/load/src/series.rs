//! The run as a series of short intervals, warm-up included: it shows whether the run was in a steady
//! state.

use crate::histogram::LONGEST_NS;
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// The shortest interval.
pub const SHORTEST_NS: u64 = 100_000_000;

/// The most intervals of a run; when there would be more, each two are combined into one.
pub const MAX_INTERVALS: usize = 600;

/// The figures of one interval.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct SeriesInterval {
    sent: u64,
    failed: u64,
    /// Latencies of the good replies, by the instant of the reply.
    #[serde(with = "crate::histogram")]
    latency: Histogram<u32>,
}

impl SeriesInterval {
    fn new() -> Self {
        // One significant digit, 6 % at worst: about 5 kB.
        let latency = Histogram::new_with_bounds(1_000, LONGEST_NS, 1).expect("valid bounds");
        Self { sent: 0, failed: 0, latency }
    }

    fn add(&mut self, other: &Self) {
        self.sent += other.sent;
        self.failed += other.failed;
        self.latency.add(&other.latency).expect("all have the same bounds");
    }
}

/// Collects the intervals of one thread.
#[derive(Debug, Serialize, Deserialize)]
pub struct Series {
    interval_ns: u64,
    /// The number of intervals before the measured part.
    before: usize,
    intervals: Vec<SeriesInterval>,
}

impl Default for Series {
    fn default() -> Self {
        Self { interval_ns: SHORTEST_NS, before: 0, intervals: Vec::new() }
    }
}

impl Series {
    /// Records that a request was sent at `at_ns` from the start of the measured part (negative before
    /// it).
    #[inline]
    pub(crate) fn sent(&mut self, at_ns: i64) {
        self.at(at_ns).sent += 1;
    }

    /// Counts a good reply.
    #[inline]
    pub(crate) fn reply(&mut self, at_ns: i64, latency_ns: u64) {
        self.at(at_ns).latency.saturating_record(latency_ns);
    }

    /// Records that a request failed.
    #[cold]
    pub(crate) fn failed(&mut self, at_ns: i64) {
        self.at(at_ns).failed += 1;
    }

    #[inline]
    fn at(&mut self, at_ns: i64) -> &mut SeriesInterval {
        let index = at_ns.div_euclid(self.interval_ns as i64) + self.before as i64;
        if index < 0 || index as usize >= self.intervals.len() {
            self.make_room(at_ns);
        }
        let index = at_ns.div_euclid(self.interval_ns as i64) + self.before as i64;
        &mut self.intervals[index as usize]
    }

    /// Creates the interval of `at_ns` and all missing ones between it and the existing ones.
    #[cold]
    fn make_room(&mut self, at_ns: i64) {
        loop {
            let index = at_ns.div_euclid(self.interval_ns as i64) + self.before as i64;
            let len = self.intervals.len() as i64;
            let missing = if index < 0 { -index } else { index + 1 - len };
            if len + missing > MAX_INTERVALS as i64 {
                // A very distant instant needs many steps, each with half as many intervals.
                self.double();
                continue;
            }
            if index < 0 {
                self.before += missing as usize;
                let new = std::iter::repeat_with(SeriesInterval::new).take(missing as usize);
                self.intervals.splice(0..0, new);
            } else if missing > 0 {
                self.intervals.resize_with((index + 1) as usize, SeriesInterval::new);
            }
            return;
        }
    }

    /// Combines each two intervals, such that the measured part still begins with a whole one.
    fn double(&mut self) {
        if self.before % 2 == 1 {
            self.intervals.insert(0, SeriesInterval::new());
            self.before += 1;
        }
        self.before /= 2;
        self.interval_ns *= 2;
        let mut pairs = std::mem::take(&mut self.intervals).into_iter();
        while let Some(mut first) = pairs.next() {
            if let Some(second) = pairs.next() {
                first.add(&second);
            }
            self.intervals.push(first);
        }
    }

    /// Adds the intervals of another thread.
    pub(crate) fn merge(&mut self, mut other: Self) {
        while self.interval_ns < other.interval_ns {
            self.double();
        }
        while other.interval_ns < self.interval_ns {
            other.double();
        }
        let other_before = other.before;
        for (index, interval) in other.intervals.iter().enumerate() {
            let at_ns = (index as i64 - other_before as i64) * other.interval_ns as i64;
            self.at(at_ns).add(interval);
        }
    }

    /// The whole intervals of a run with `warmup_ns` before a measured part of `window_ns`.
    pub(crate) fn columns(&self, warmup_ns: u64, window_ns: u64) -> Columns {
        let step_ns = self.interval_ns as i64;
        let first = -(warmup_ns as i64 / step_ns);
        let last = (window_ns.min(i64::MAX as u64) as i64 / step_ns).min(MAX_INTERVALS as i64);
        let empty = SeriesInterval::new();
        let mut columns = Columns { interval_s: step_ns as f64 / 1e9, ..Columns::default() };
        for number in first.max(-(MAX_INTERVALS as i64))..last {
            let index = usize::try_from(number + self.before as i64).ok();
            let interval = index.and_then(|index| self.intervals.get(index)).unwrap_or(&empty);
            let us = |ns: u64| ns as f64 / 1e3;
            let latency = &interval.latency;
            let is_empty = latency.is_empty();
            let or_zero = |value: f64| if is_empty { 0.0 } else { value };
            columns.start_s.push((number * step_ns) as f64 / 1e9);
            columns.sent.push(interval.sent);
            columns.replies.push(latency.len());
            columns.failed.push(interval.failed);
            columns.latency_mean_us.push(or_zero(latency.mean() / 1e3));
            columns.latency_p50_us.push(or_zero(us(latency.value_at_quantile(0.5))));
            columns.latency_p99_us.push(or_zero(us(latency.value_at_quantile(0.99))));
        }
        columns
    }
}

/// The series in the form of the JSON document: one column per quantity, one position per interval.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Columns {
    /// The length of each interval in seconds: a tenth, doubled as often as necessary to have at most
    /// 600 intervals.
    pub interval_s: f64,
    /// The start of each interval, from the start of the measured part; negative in the warm-up. An
    /// interval that contains the run's start or the end of the measured part is omitted.
    pub start_s: Vec<f64>,
    /// Requests sent.
    pub sent: Vec<u64>,
    /// Good replies.
    pub replies: Vec<u64>,
    /// Requests that failed.
    pub failed: Vec<u64>,
    /// Mean latency of these replies; 0 if there are none. The resolution of a single latency is 6 %,
    /// for all three columns.
    pub latency_mean_us: Vec<f64>,
    /// Median latency of these replies.
    pub latency_p50_us: Vec<f64>,
    /// 99th percentile of the latency of these replies.
    pub latency_p99_us: Vec<f64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: i64 = SHORTEST_NS as i64;

    #[test]
    fn the_warm_up_lies_before_zero() {
        let mut series = Series::default();
        for (at_ns, latency_ns) in [(-1, 5_000), (-2 * STEP, 7_000), (0, 9_000), (STEP, 9_000)] {
            series.sent(at_ns);
            series.reply(at_ns, latency_ns);
        }
        series.failed(STEP + 5);
        series.reply(9 * STEP, 1);
        let columns = series.columns(2 * SHORTEST_NS, 2 * SHORTEST_NS);
        assert_eq!(columns.start_s, [-0.2, -0.1, 0.0, 0.1]);
        assert_eq!(columns.sent, [1, 1, 1, 1]);
        assert_eq!(columns.replies, [1, 1, 1, 1], "replies after the window are left out");
        assert_eq!(columns.failed, [0, 0, 0, 1]);
        for (us, found) in [7.0, 5.0, 9.0, 9.0].into_iter().zip(&columns.latency_p50_us) {
            assert!((found / us - 1.0).abs() < 0.13, "{found} for {us}");
        }
    }

    #[test]
    fn intervals_without_anything_are_there_and_cut_ones_are_not() {
        let mut series = Series::default();
        series.reply(3 * STEP, 1_000_000);
        let columns = series.columns(SHORTEST_NS / 2, 5 * SHORTEST_NS + 1);
        assert_eq!(columns.replies, [0, 0, 0, 1, 0]);
        assert_eq!(columns.latency_p50_us[0], 0.0);
        assert_eq!(Series::default().columns(0, SHORTEST_NS / 2).replies, [0u64; 0]);
    }

    #[test]
    fn a_long_run_has_longer_intervals_and_loses_nothing() {
        let mut series = Series::default();
        for number in -7..5_000i64 {
            series.reply(number * STEP, 1_000_000);
        }
        assert!(series.intervals.len() <= MAX_INTERVALS);
        let columns = series.columns(7 * SHORTEST_NS, 5_000 * SHORTEST_NS);
        assert_eq!(columns.interval_s, 1.6);
        assert!(columns.start_s.contains(&0.0), "the measured part begins with one");
        let measured = columns.start_s.iter().zip(&columns.replies).filter(|&(&at, _)| at >= 0.0);
        assert_eq!(measured.map(|(_, &count)| count).sum::<u64>(), 312 * 16);
        series.reply(i64::MAX / 4, 1);
        assert!(series.intervals.len() <= MAX_INTERVALS);
    }

    #[test]
    fn threads_with_intervals_of_different_length_are_one_run() {
        let (mut short, mut long) = (Series::default(), Series::default());
        for number in -3..100i64 {
            short.reply(number * STEP, 1_000_000);
        }
        for number in -2..1_000i64 {
            long.reply(number * STEP, 1_000_000);
        }
        short.merge(long);
        let columns = short.columns(400_000_000, 1_000 * SHORTEST_NS);
        assert_eq!(columns.interval_s, 0.2);
        assert_eq!(columns.replies[..3], [1, 4, 4]);
        assert_eq!(columns.replies.iter().sum::<u64>(), 103 + 1_002);
    }
}
