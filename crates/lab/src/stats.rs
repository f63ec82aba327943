//! Medians, paired ratios and bootstrap intervals.
//!
//! The unit of replication is the *block*: one pass over every cell of the experiment. Machines
//! drift, so a comparison is formed inside a block and only then summed up over the blocks; what
//! slows a whole block cancels out.
//!
//! With few blocks the plain percentile bootstrap is too narrow. The intervals here use expanded
//! percentiles (T. Hesterberg, "What Teachers Should Know About the Bootstrap", 2015, section
//! 5.2), which match Student's t: with up to seven blocks the interval is the range of what was seen.
//! With fewer than [`MIN_BLOCKS`] there is none, and nothing is decided.

use rand::{RngExt, SeedableRng, rngs::StdRng};
use serde::{Deserialize, Serialize};
use statrs::distribution::{ContinuousCDF, Normal, StudentsT};

/// How many times a sample is drawn again. More changes the third digit of an interval only.
pub const RESAMPLES: usize = 4_000;

/// The fewest values that have an interval.
pub const MIN_BLOCKS: usize = 3;

/// The share of intervals that should cover the true value.
pub const CONFIDENCE: f64 = 0.95;

/// A figure with its interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    /// The median over the blocks.
    pub value: f64,
    /// Lower end of the interval; none with fewer than [`MIN_BLOCKS`].
    pub low: Option<f64>,
    /// Upper end of the interval; none with fewer than [`MIN_BLOCKS`].
    pub high: Option<f64>,
    /// How many blocks it rests on.
    pub blocks: usize,
}

/// The median of `values`, the mean of the middle two where there are two. `None` when empty.
///
/// # Panics
/// On NaN, which no metric may be.
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(|a, b| a.partial_cmp(b).expect("a metric is never NaN"));
    median_of_sorted(&sorted)
}

fn median_of_sorted(sorted: &[f64]) -> Option<f64> {
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        length if length % 2 == 1 => Some(sorted[middle]),
        _ => Some((sorted[middle - 1] + sorted[middle]) / 2.0),
    }
}

/// The share below the lower end of an expanded percentile interval over `n` values.
fn expanded_tail(n: usize) -> f64 {
    let n = n as f64;
    let tail = (1.0 - CONFIDENCE) / 2.0;
    let student = StudentsT::new(0.0, 1.0, n - 1.0).expect("n is at least 2");
    let quantile = student.inverse_cdf(tail) * (n / (n - 1.0)).sqrt();
    Normal::standard().cdf(quantile)
}

/// The median of `values` with a bootstrap interval. The same seed gives the same interval.
/// `None` when there are no values.
pub fn estimate(values: &[f64], seed: u64) -> Option<Estimate> {
    let value = median(values)?;
    if values.len() < MIN_BLOCKS {
        return Some(Estimate { value, low: None, high: None, blocks: values.len() });
    }
    let mut random = StdRng::seed_from_u64(seed);
    let mut drawn = vec![0.0; values.len()];
    let mut medians: Vec<f64> = (0..RESAMPLES)
        .map(|_| {
            for slot in &mut drawn {
                *slot = values[random.random_range(0..values.len())];
            }
            median(&drawn).expect("as many as the sample")
        })
        .collect();
    medians.sort_by(f64::total_cmp);
    let cut = (expanded_tail(values.len()) * RESAMPLES as f64).floor() as usize;
    let (low, high) = (medians[cut], medians[RESAMPLES - 1 - cut]);
    Some(Estimate { value, low: Some(low), high: Some(high), blocks: values.len() })
}

/// How one side of a comparison is set against the other, inside a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Compare {
    /// a ÷ b.
    Ratio,
    /// a − b.
    Difference,
    /// a alone.
    Value,
}

impl Compare {
    /// The comparison of one block. `None` when `b` is missing or a ratio's `b` is zero.
    pub fn of(self, a: f64, b: Option<f64>) -> Option<f64> {
        match self {
            Self::Value => Some(a),
            Self::Difference => Some(a - b?),
            Self::Ratio => Some(a / b.filter(|&b| b != 0.0)?),
        }
    }
}

/// A paired comparison over blocks: formed inside each block that has both sides, then the median
/// and its interval. `None` when no block has both.
pub fn paired(
    pairs: impl IntoIterator<Item = (Option<f64>, Option<f64>)>,
    compare: Compare,
    seed: u64,
) -> Option<Estimate> {
    let values: Vec<f64> = pairs
        .into_iter()
        .filter_map(|(a, b)| compare.of(a?, b))
        .filter(|x| x.is_finite())
        .collect();
    estimate(&values, seed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn median_of_odd_even_and_none() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 3.0, 2.0]), Some(2.5));
        assert_eq!(median(&[]), None);
    }

    #[test]
    fn the_expanded_tail_matches_students_t() {
        // Hesterberg 2015, table 2: for n = 5, 10, 20, 40 and a nominal 0.025.
        for (n, expected) in [(5, 0.0010), (10, 0.0086), (20, 0.0159), (40, 0.0203)] {
            let tail = expanded_tail(n);
            assert!((tail - expected).abs() < 0.0003, "n = {n}: {tail}, expected {expected}");
        }
    }

    #[test]
    fn three_blocks_give_the_range() {
        let estimate = estimate(&[1.0, 1.2, 1.1], 7).unwrap();
        assert_eq!(
            (estimate.value, estimate.low, estimate.high),
            (1.1, Some(1.0), Some(1.2)),
            "with three blocks nothing narrower than the range is honest"
        );
    }

    #[test]
    fn two_blocks_have_no_interval() {
        let estimate = estimate(&[2.0, 4.0], 7).unwrap();
        assert_eq!((estimate.value, estimate.low, estimate.high), (3.0, None, None));
        assert_eq!(estimate.blocks, 2);
    }

    #[test]
    fn a_known_sample() {
        // 1 … 21: the median is 11; the exact order-statistic interval at 95 % is (6, 16).
        let values: Vec<f64> = (1..=21).map(f64::from).collect();
        let estimate = estimate(&values, 1).unwrap();
        assert_eq!(estimate.value, 11.0);
        let (low, high) = (estimate.low.unwrap(), estimate.high.unwrap());
        assert!((5.0..=7.0).contains(&low), "{low}");
        assert!((15.0..=17.0).contains(&high), "{high}");
    }

    #[test]
    fn intervals_cover_as_often_as_they_say() {
        // Fifteen exponential values, whose true median is ln 2: 150 samples of fixed seed.
        let mut random = StdRng::seed_from_u64(42);
        let covered = (0..150)
            .filter(|&seed| {
                let values: Vec<f64> =
                    (0..15).map(|_| -(1.0 - random.random::<f64>()).ln()).collect();
                let estimate = estimate(&values, seed).unwrap();
                estimate.low.unwrap() <= 2f64.ln() && 2f64.ln() <= estimate.high.unwrap()
            })
            .count();
        assert!((137..=150).contains(&covered), "covered {covered} of 150");
    }

    #[test]
    fn drift_cancels_in_a_paired_ratio() {
        // The machine slows threefold from block to block; a is always twice b.
        let pairs = (0..6).map(|block| {
            let speed = 3f64.powi(block);
            (Some(2.0 * speed), Some(speed))
        });
        let ratio = paired(pairs, Compare::Ratio, 3).unwrap();
        assert_eq!((ratio.value, ratio.low, ratio.high), (2.0, Some(2.0), Some(2.0)));
    }

    #[test]
    fn a_block_that_lacks_a_side_is_left_out() {
        let pairs = [(Some(4.0), Some(2.0)), (None, Some(1.0)), (Some(9.0), None)];
        assert_eq!(paired(pairs, Compare::Ratio, 3).unwrap().blocks, 1);
        assert_eq!(paired([(Some(1.0), Some(0.0))], Compare::Ratio, 3), None);
    }

    proptest! {
        // Each case resamples 4,000 times.
        #![proptest_config(ProptestConfig::with_cases(40))]
        #[test]
        fn an_interval_encloses_its_value_and_lies_in_the_range(
            values in prop::collection::vec(0.001f64..1e9, 3..20), seed: u64,
        ) {
            let estimate = estimate(&values, seed).unwrap();
            let (low, high) = (estimate.low.unwrap(), estimate.high.unwrap());
            prop_assert!(low <= estimate.value && estimate.value <= high);
            prop_assert!(values.iter().any(|&v| v <= low) && values.iter().any(|&v| v >= high));
        }

        #[test]
        fn an_estimate_scales_with_its_unit(
            values in prop::collection::vec(0.5f64..2.0, 3..12), seed: u64,
        ) {
            let scaled: Vec<f64> = values.iter().map(|v| v * 1024.0).collect();
            let (plain, scaled) = (estimate(&values, seed).unwrap(), estimate(&scaled, seed).unwrap());
            prop_assert_eq!(plain.low.unwrap() * 1024.0, scaled.low.unwrap());
            prop_assert_eq!(plain.high.unwrap() * 1024.0, scaled.high.unwrap());
        }

        #[test]
        fn the_same_seed_gives_the_same_interval(
            values in prop::collection::vec(0.5f64..2.0, 3..12), seed: u64,
        ) {
            prop_assert_eq!(estimate(&values, seed), estimate(&values, seed));
        }
    }
}
