//! Distributions of times, as the reports contain them.

use hdrhistogram::Histogram;
use serde::Serialize;

/// A distribution of times in microseconds. Without values (`count` 0) all are 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Times {
    /// The number of values.
    pub count: u64,
    /// Mean.
    pub mean: f64,
    /// Standard deviation.
    pub stddev: f64,
    /// Least.
    pub min: f64,
    /// Median.
    pub p50: f64,
    /// 90th percentile.
    pub p90: f64,
    /// 95th percentile.
    pub p95: f64,
    /// 99th percentile.
    pub p99: f64,
    /// 99.9th percentile.
    pub p99_9: f64,
    /// 99.99th percentile.
    pub p99_99: f64,
    /// Greatest.
    pub max: f64,
}

impl From<&Histogram<u64>> for Times {
    fn from(histogram: &Histogram<u64>) -> Self {
        if histogram.is_empty() {
            return Self::default();
        }
        let us = |nanoseconds: u64| nanoseconds as f64 / 1000.0;
        let at = |quantile: f64| us(histogram.value_at_quantile(quantile));
        Self {
            count: histogram.len(),
            mean: histogram.mean() / 1000.0,
            stddev: histogram.stdev() / 1000.0,
            min: us(histogram.min()),
            p50: at(0.5),
            p90: at(0.9),
            p95: at(0.95),
            p99: at(0.99),
            p99_9: at(0.999),
            p99_99: at(0.9999),
            max: us(histogram.max()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_in_microseconds() {
        let mut histogram = crate::histogram::histogram();
        for nanoseconds in 1..=1000u64 {
            histogram.record(nanoseconds * 1000).unwrap();
        }
        let times = Times::from(&histogram);
        assert_eq!(times.count, 1000);
        assert!((times.mean - 500.5).abs() < 0.5, "{}", times.mean);
        assert!((times.p50 - 500.0).abs() < 1.0 && (times.p99 - 990.0).abs() < 1.0);
        assert!((times.max - 1000.0).abs() < 1.0);
        assert_eq!(Times::from(&crate::histogram::histogram()), Times::default());
    }
}
