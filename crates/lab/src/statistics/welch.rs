//! Two groups that were not measured together: two kernels, two machines, two builds.
//!
//! B. Welch, *The generalization of "Student's" problem when several different population variances are
//! involved*, Biometrika 34 (1947): the groups may differ in size and in noise.

use super::Estimate;
use statrs::distribution::{ContinuousCDF, StudentsT};

/// The ratio of the geometric means of two groups of positive values, `b` ÷ `a`, with its interval and
/// the two-sided probability of one so far from 1 by chance. `None` unless both have two values or more
/// and all are positive.
pub fn ratio(a: &[f64], b: &[f64], error: f64) -> Option<(Estimate, f64)> {
    let logs = |values: &[f64]| -> Option<Vec<f64>> {
        let positive = values.len() >= 2 && values.iter().all(|&value| value > 0.0);
        positive.then(|| values.iter().map(|value| value.ln()).collect())
    };
    let (a, b) = (logs(a)?, logs(b)?);
    let of = |values: &[f64]| {
        let n = values.len() as f64;
        let mean = values.iter().sum::<f64>() / n;
        let variance = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / (n - 1.0);
        (mean, variance / n, n)
    };
    let ((mean_a, var_a, n_a), (mean_b, var_b, n_b)) = (of(&a), of(&b));
    let (difference, variance) = (mean_b - mean_a, var_a + var_b);
    let (half, p) = if variance > 0.0 {
        let freedom =
            variance.powi(2) / (var_a.powi(2) / (n_a - 1.0) + var_b.powi(2) / (n_b - 1.0));
        let student = StudentsT::new(0.0, 1.0, freedom).ok()?;
        let standard_error = variance.sqrt();
        let p = 2.0 * student.cdf(-(difference / standard_error).abs());
        (-student.inverse_cdf(error / 2.0) * standard_error, p)
    } else {
        (0.0, if difference == 0.0 { 1.0 } else { 0.0 })
    };
    // Hodges and Lehmann's shift: the median of all differences.
    let shifts: Vec<f64> = a.iter().flat_map(|x| b.iter().map(move |y| y - x)).collect();
    let estimate = Estimate {
        value: difference.exp(),
        low: Some((difference - half).exp()),
        high: Some((difference + half).exp()),
        blocks: a.len().min(b.len()),
        rank_value: super::median(&shifts).map(f64::exp),
        rank: None,
    };
    Some((estimate, p))
}

#[cfg(test)]
mod tests {
    use super::ratio;

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
        assert_eq!(ratio(&[2.0; 3], &[3.0; 3], 0.05).unwrap().1, 0.0);
    }
}
