//! The comparison of two groups that were not measured together: two kernels, two machines or two
//! builds.
//!
//! B. Welch, *The generalization of "Student's" problem when several different population variances are
//! involved*, Biometrika 34 (1947): the groups may differ in size and in noise.

use super::{
    estimate::{Estimate, median},
    student::ROUNDING,
};
use statrs::distribution::{ContinuousCDF, StudentsT};

/// Returns the ratio of the geometric means of two groups of positive values, `b` ÷ `a`, with its
/// interval and the two-sided probability that a ratio so far from 1 occurs by chance. Returns `None`
/// unless both groups have at least two values and all values are positive.
pub fn ratio(a: &[f64], b: &[f64], error: f64) -> Option<(Estimate, f64)> {
    let logs = |values: &[f64]| -> Option<Vec<f64>> {
        let is_positive = values.iter().all(|&value| value > 0.0);
        is_positive.then(|| values.iter().map(|value| value.ln()).collect())
    };
    let (estimate, p) = difference(&logs(a)?, &logs(b)?, error)?;
    let back = |value: Option<f64>| value.map(f64::exp);
    let estimate = Estimate {
        value: estimate.value.exp(),
        low: back(estimate.low),
        high: back(estimate.high),
        rank_value: back(estimate.rank_value),
        ..estimate
    };
    Some((estimate, p))
}

/// Returns the difference of the means of two groups, `b` - `a`, with its interval and the two-sided
/// probability that a difference so far from 0 occurs by chance. Returns `None` unless both groups have
/// at least two values.
pub fn difference(a: &[f64], b: &[f64], error: f64) -> Option<(Estimate, f64)> {
    if a.len().min(b.len()) < 2 {
        return None;
    }
    let of = |values: &[f64]| {
        let n = values.len() as f64;
        let mean = values.iter().sum::<f64>() / n;
        let variance = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / (n - 1.0);
        (mean, variance / n, n)
    };
    let ((mean_a, var_a, n_a), (mean_b, var_b, n_b)) = (of(a), of(b));
    let (difference, variance) = (mean_b - mean_a, var_a + var_b);
    let largest = a.iter().chain(b).fold(0.0f64, |most, value| most.max(value.abs()));
    let rounding = largest * ROUNDING;
    let (half, p) = if variance.sqrt() > rounding {
        let freedom =
            variance.powi(2) / (var_a.powi(2) / (n_a - 1.0) + var_b.powi(2) / (n_b - 1.0));
        let student = StudentsT::new(0.0, 1.0, freedom).ok()?;
        let standard_error = variance.sqrt();
        let p = 2.0 * student.cdf(-(difference / standard_error).abs());
        (-student.inverse_cdf(error / 2.0) * standard_error, p)
    } else {
        let p = if difference.abs() <= rounding { 1.0 } else { apart_by_chance(a.len(), b.len()) };
        (0.0, p)
    };
    // The Hodges–Lehmann estimate of the shift: the median of all differences.
    let shifts: Vec<f64> = a.iter().flat_map(|x| b.iter().map(move |y| y - x)).collect();
    let estimate = Estimate {
        value: difference,
        low: Some(difference - half),
        high: Some(difference + half),
        range: None,
        blocks: a.len().min(b.len()),
        rank_value: median(&shifts),
        rank: None,
    };
    Some((estimate, p))
}

/// Returns the probability that, if `a` + `b` values are divided into two groups at random, all values
/// of one group lie above all values of the other (R. Fisher's exact permutation test). It is used for
/// equal values, which have no spread.
fn apart_by_chance(a: usize, b: usize) -> f64 {
    let ways = (1..=b).fold(1.0, |ways, i| ways * (a + i) as f64 / i as f64);
    2.0 / ways
}

#[cfg(test)]
mod tests {
    use super::{difference, ratio};

    #[test]
    fn a_known_pair_of_groups() {
        // Logarithms 0, 1, 2 and 2, 3, 4, 5: means 1 and 3.5, variances 1 and 5/3; Welch's t is
        // 2.5 / sqrt(1/3 + 5/12) = 2.8868 with 4.9592 degrees of freedom, p = 0.0348.
        let a = [0.0f64, 1.0, 2.0].map(f64::exp);
        let b = [2.0f64, 3.0, 4.0, 5.0].map(f64::exp);
        let (estimate, p) = ratio(&a, &b, 0.05).unwrap();
        assert!((estimate.value.ln() - 2.5).abs() < 1e-9);
        assert!((p - 0.0348).abs() < 1e-3, "{p}");
        assert!(estimate.low.unwrap() > 1.0 && estimate.high.unwrap() > estimate.value);
        let back = ratio(&b, &a, 0.05).unwrap().0;
        assert!((back.value * estimate.value - 1.0).abs() < 1e-9);
    }

    #[test]
    fn what_cannot_be_compared() {
        assert!(ratio(&[1.0], &[1.0, 2.0], 0.05).is_none());
        assert!(ratio(&[0.0, 1.0], &[1.0, 2.0], 0.05).is_none());
        assert_eq!(ratio(&[2.0; 3], &[2.0; 3], 0.05).unwrap().1, 1.0);
        // One of the 20 ways to draw three of six values, on either side.
        let equal = ratio(&[2.0; 3], &[3.0; 3], 0.05).unwrap().1;
        assert!((equal - 0.1).abs() < 1e-12, "{equal}");
    }

    /// Regression test: the mean of equal logarithms differs in its last digit. Because of this, a sixth
    /// of all figures of a run counted as changed when the run was compared with its own first blocks.
    #[test]
    fn equal_values_do_not_change_with_their_number() {
        for value in [10.0, 4_346.7, 0.003, 1.0, 7.0] {
            for (n_a, n_b) in [(6, 40), (10, 24), (6, 7), (24, 6)] {
                let (estimate, p) = ratio(&vec![value; n_a], &vec![value; n_b], 0.05).unwrap();
                assert_eq!(p, 1.0, "{value} {n_a} {n_b}: {estimate:?}");
                let (_, p) = ratio(&vec![value; n_a], &vec![value * 1.001; n_b], 0.05).unwrap();
                assert!(p > 1e-12 && p < 0.05, "{value} {n_a} {n_b}: {p}");
            }
        }
        // A real spread counts as a spread, however small it is beside the value.
        let near = [1.000_001, 1.000_002, 1.000_001_5, 1.000_002_5, 1.000_001, 1.000_002];
        let far = near.map(|value| value + 1e-3);
        assert!(ratio(&near, &far, 0.05).unwrap().1 < 1e-9);
    }

    #[test]
    fn what_was_zero_is_compared_by_its_difference() {
        let (estimate, p) = difference(&[0.0; 6], &[0.3; 6], 0.05).unwrap();
        assert!((estimate.value - 0.3).abs() < 1e-12 && (p - 2.0 / 924.0).abs() < 1e-12, "{p}");
        let (estimate, p) = difference(&[0.0; 6], &[0.2, 0.4, 0.3, 0.3, 0.2, 0.4], 0.05).unwrap();
        assert!(p < 1e-3 && estimate.low.unwrap() > 0.1, "{estimate:?} {p}");
        assert_eq!(difference(&[0.0; 6], &[0.0; 6], 0.05).unwrap().1, 1.0);
        assert!(difference(&[0.0], &[0.0, 1.0], 0.05).is_none());
    }
}
