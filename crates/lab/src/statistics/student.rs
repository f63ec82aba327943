//! Student's t: the interval of a mean, and the probability that decides whether a mean lies beyond a
//! limit.

use super::estimate::Interval;
use statrs::distribution::{ContinuousCDF, StudentsT};

/// The relative difference, as a share of the largest value, up to which values count as equal:
/// computing a logarithm or a ratio rounds the last digits.
pub(super) const ROUNDING: f64 = 1e-12;

/// Returns the mean and the standard error of `values`; the error is `None` with one value.
fn summary(values: &[f64]) -> (f64, Option<f64>) {
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    if values.len() < 2 {
        return (mean, None);
    }
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    (mean, Some((squares / (n - 1.0) / n).sqrt()))
}

fn student(n: usize) -> StudentsT {
    StudentsT::new(0.0, 1.0, n as f64 - 1.0).expect("at least one degree of freedom")
}

/// Returns half the width, in standard errors, of an interval of `n` values that misses the true mean
/// with probability `error`.
///
/// # Panics
/// Panics with fewer than two values.
pub fn reach(n: usize, error: f64) -> f64 {
    assert!(n >= 2, "one value has no spread");
    -student(n).inverse_cdf(error / 2.0)
}

/// Returns the mean of `values`, and the interval that misses the true mean with probability `error`.
/// With one value there is no interval.
///
/// # Panics
/// Panics if there is no value.
pub fn interval(values: &[f64], error: f64) -> (f64, Option<Interval>) {
    assert!(!values.is_empty(), "a mean of nothing");
    let (mean, standard_error) = summary(values);
    let interval = standard_error.map(|standard_error| {
        let half = reach(values.len(), error) * standard_error;
        Interval { low: mean - half, high: mean + half }
    });
    (mean, interval)
}

/// Returns the probability of a mean at least this far above `limit` if the true mean were at `limit`. A
/// small probability is evidence that the true mean is above the limit. The result is 1 with fewer than
/// two values, and never less than 2⁻ⁿ if all n values are equal.
pub fn tail_above(values: &[f64], limit: f64) -> f64 {
    tail(values, limit, values.len(), 0.0)
}

/// The 80 % quantile of the normal distribution: of five future means, four lie above the expected mean
/// minus this many standard errors.
const FOUR_IN_FIVE: f64 = 0.842;

/// Returns a value that [`tail_above`] of `n` values like these will not exceed in four cases of five.
/// Returns 1 with fewer than two values.
pub fn foreseen_tail_above(values: &[f64], limit: f64, n: usize) -> f64 {
    tail(values, limit, n, FOUR_IN_FIVE)
}

/// Returns the tail of `n` values like these with a mean that is `lower` standard errors lower.
fn tail(values: &[f64], limit: f64, n: usize, lower: f64) -> f64 {
    let (mean, standard_error) = summary(values);
    let Some(standard_error) = standard_error else { return 1.0 };
    let largest = values.iter().fold(limit.abs(), |most, value| most.max(value.abs()));
    let rounding = largest * ROUNDING;
    let distance = mean - limit;
    if standard_error <= rounding {
        return if distance > rounding { all_on_one_side(n) } else { 1.0 };
    }
    let then = standard_error * (values.len() as f64 / n as f64).sqrt();
    student(n).cdf(lower - distance / then)
}

/// Returns the probability that `n` values all lie on the same given side of a limit that has half of
/// the values on each side (the sign test). It is used for equal values: they have no spread, and counts
/// are often equal by chance.
fn all_on_one_side(n: usize) -> f64 {
    0.5f64.powf(n as f64)
}

/// Returns the probability of a mean at least this far below `limit`; see [`tail_above`].
pub fn tail_below(values: &[f64], limit: f64) -> f64 {
    let mirrored: Vec<f64> = values.iter().map(|value| -value).collect();
    tail_above(&mirrored, -limit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_those_of_the_tables() {
        // Two-sided, n - 1 degrees of freedom; the values are in any table of Student's t.
        for (n, error, expected) in [
            (2, 0.05, 12.7062),
            (3, 0.05, 4.3027),
            (6, 0.05, 2.5706),
            (10, 0.05, 2.2622),
            (40, 0.05, 2.0227),
            (6, 0.001, 6.8688),
            (10, 0.001, 4.7809),
        ] {
            let reach = reach(n, error);
            assert!((reach - expected).abs() < 2e-4, "n = {n}: {reach}, expected {expected}");
        }
    }

    #[test]
    fn the_far_tail_is_exact_too() {
        // At the first of five looks the error is about 1e-7.
        for error in [1e-4, 1e-6, 1e-8] {
            let back = 2.0 * student(6).cdf(-reach(6, error));
            assert!((back / error - 1.0).abs() < 1e-3, "{error}: {back}");
        }
    }

    #[test]
    fn a_known_sample() {
        // Mean 3, standard deviation 1.5811, n = 5, t = 2.7764.
        let (mean, interval) = interval(&[1.0, 2.0, 3.0, 4.0, 5.0], 0.05);
        let interval = interval.unwrap();
        assert_eq!(mean, 3.0);
        assert!((interval.low - 1.0368).abs() < 1e-3 && (interval.high - 4.9632).abs() < 1e-3);
    }

    #[test]
    fn an_end_of_the_interval_is_where_the_tail_is_half_the_error() {
        let values = [0.1, 0.25, 0.07, 0.2, 0.18, 0.13];
        let interval = interval(&values, 0.05).1.unwrap();
        assert!((tail_above(&values, interval.low) - 0.025).abs() < 1e-6);
        assert!((tail_below(&values, interval.high) - 0.025).abs() < 1e-6);
        assert!(tail_above(&values, 0.0) < 0.01 && tail_below(&values, 0.0) > 0.99);
    }

    /// Regression test: six equal values once gave a probability of 0.
    #[test]
    fn equal_values_and_one_value() {
        assert_eq!((tail_above(&[2.0; 6], 1.0), tail_above(&[2.0; 6], 2.0)), (1.0 / 64.0, 1.0));
        assert_eq!((tail_below(&[0.0; 10], 1.0), tail_below(&[0.0; 10], 0.0)), (1.0 / 1024.0, 1.0));
        // Values that are equal except for the rounding of a logarithm.
        let rounded = [1.0, 1.0 + 2e-16, 1.0, 1.0 - 1e-16, 1.0, 1.0].map(|v: f64| (2.0 * v).ln());
        assert_eq!(tail_above(&rounded, 0.0), 1.0 / 64.0);
        assert_eq!((tail_above(&[2.0], 1.0), tail_below(&[2.0], 3.0)), (1.0, 1.0));
    }
}
