//! The exact interval of a share of counted events (requests that fail, for example).
//!
//! C. Clopper, E. Pearson, *The use of confidence or fiducial limits illustrated in the case of the
//! binomial*, Biometrika 26 (1934). The coverage of the interval is never below its nominal value. The
//! method assumes that the events are independent. Where the blocks differ by more than independent
//! events would, Student's interval over the blocks is the wider one; [`super::Sample`] uses the wider
//! of the two.

use super::estimate::Interval;
use statrs::distribution::{Beta, ContinuousCDF};

/// Returns the interval of the true share after `hits` of `trials`. The interval misses the true share
/// with a probability of at most `error`. Without trials, every share from 0 to 1 is possible.
pub fn interval(hits: u64, trials: u64, error: f64) -> Interval {
    let hits = hits.min(trials);
    let quantile = |a: u64, b: u64, p: f64| {
        Beta::new(a as f64, b as f64).map_or(p, |beta| beta.inverse_cdf(p))
    };
    let misses = trials - hits;
    Interval {
        low: if hits == 0 { 0.0 } else { quantile(hits, misses + 1, error / 2.0) },
        high: if misses == 0 { 1.0 } else { quantile(hits + 1, misses, 1.0 - error / 2.0) },
    }
}

/// Returns the probability of `hits` or more of `trials` if the true share were `limit`. A small value
/// is evidence that the true share is larger than `limit`.
pub fn tail_above(hits: u64, trials: u64, limit: f64) -> f64 {
    let hits = hits.min(trials);
    match (hits, limit) {
        (0, _) => 1.0,
        (_, limit) if limit <= 0.0 => 0.0,
        (_, limit) if limit >= 1.0 => 1.0,
        _ => Beta::new(hits as f64, (trials - hits + 1) as f64).map_or(1.0, |beta| beta.cdf(limit)),
    }
}

/// Returns the probability of `hits` or fewer of `trials` if the true share were `limit`. A small value
/// is evidence that the true share is smaller.
pub fn tail_below(hits: u64, trials: u64, limit: f64) -> f64 {
    tail_above(trials - hits.min(trials), trials, 1.0 - limit)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(value: f64, expected: f64) {
        assert!((value - expected).abs() < 2e-4 * expected.max(1e-3), "{value}, not {expected}");
    }

    #[test]
    fn known_intervals() {
        // 4 of 20: 0.0573 to 0.4366 (Clopper and Pearson's own kind of example).
        let interval = super::interval(4, 20, 0.05);
        near(interval.low, 0.057_334);
        near(interval.high, 0.436_614);
        // No hit in n trials: 1 - (error/2)^(1/n).
        let none = super::interval(0, 12_267, 0.05);
        assert_eq!(none.low, 0.0);
        near(none.high, 1.0 - 0.025f64.powf(1.0 / 12_267.0));
        assert!(none.high > 1e-4, "none of 12,267 is not less than one in 10,000");
        assert_eq!(super::interval(20, 20, 0.05).high, 1.0);
        assert_eq!(super::interval(0, 0, 0.05), Interval { low: 0.0, high: 1.0 });
    }

    #[test]
    fn tails_are_those_of_the_distribution() {
        // P(X ≥ 3), where X is the number of hits in 5 trials with a share of 0.5: 16 of 32.
        near(tail_above(3, 5, 0.5), 0.5);
        near(tail_below(1, 5, 0.5), 6.0 / 32.0);
        near(tail_below(0, 12_267, 1e-4), (1.0f64 - 1e-4).powi(12_267));
        assert_eq!((tail_above(0, 5, 0.1), tail_above(1, 5, 0.0)), (1.0, 0.0));
    }
}
