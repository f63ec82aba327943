//! What paired measurements say, and with what right.
//!
//! The unit of replication is the *block*: one pass over every cell of the experiment. Machines
//! drift, so a comparison is formed inside a block and only then summed up over the blocks; what
//! slows a whole block cancels out.
//!
//! - A ratio is summed up by its logarithms: the geometric mean and Student's interval ([`student`]).
//! - Beside it stand the Hodges–Lehmann estimate and its exact bounds ([`rank`]), which no outlier
//!   moves far: where the two differ much, the blocks are not of one kind.
//! - A share of counted things has an exact interval ([`binomial`]): none of 12,000 is not zero.
//! - A run that goes on until it has decided looks at its data several times, by a plan that keeps the
//!   error ([`sequential`]). Several claims of one paper share one error ([`holm`]).
//!
//! With fewer than [`MIN_BLOCKS`] nothing is decided: with three blocks an interval that is said to
//! cover 95 % covers 75 %. From six on it covers 94 to 96 %, but less where one side alone is noisy, and
//! its noise is skewed: 93 % where the skewness is 1, and 89 % where it is 2, as in the worst sixth of
//! published comparisons ([`coverage`](self) simulates it, in the tests).

pub mod binomial;
#[cfg(test)]
mod coverage;
pub mod holm;
pub mod rank;
mod sample;
pub mod sequential;
pub mod student;
pub mod welch;

#[cfg(test)]
pub(crate) use coverage::normal;
pub use sample::{Compare, Sample, Scale};
pub use sequential::LOOKS;

use serde::{Deserialize, Serialize};

/// The fewest blocks that decide anything.
pub const MIN_BLOCKS: usize = 6;

/// The share of intervals that cover the true value, where noise is normal.
pub const CONFIDENCE: f64 = 0.95;

/// The error that is allowed: a claim that is neither true nor false by more than chance is decided
/// one way or the other in this share of experiments.
pub const ERROR: f64 = 1.0 - CONFIDENCE;

/// Two ends.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// The lower.
    pub low: f64,
    /// The upper.
    pub high: f64,
}

/// A figure with its interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    /// The mean over the blocks; of positive figures the geometric one.
    pub value: f64,
    /// Lower end of the interval; none with fewer than [`MIN_BLOCKS`].
    pub low: Option<f64>,
    /// Upper end of the interval; none with fewer than [`MIN_BLOCKS`].
    pub high: Option<f64>,
    /// The least and the largest of so few blocks, in the place of an interval: Student's of two or three is
    /// many times as wide as all that was seen, and covers less than it says where their noise is no normal
    /// one. None with one block.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub range: Option<Interval>,
    /// How many blocks it rests on.
    pub blocks: usize,
    /// Hodges–Lehmann's estimate, which outliers hardly move.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rank_value: Option<f64>,
    /// Its exact interval; none where so few blocks have none at this confidence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rank: Option<Interval>,
}

/// The median of `values`, the mean of the middle two where there are two. `None` when empty.
///
/// # Panics
/// On NaN, which no metric may be.
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(|a, b| a.partial_cmp(b).expect("a metric is never NaN"));
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        length if length % 2 == 1 => Some(sorted[middle]),
        _ => Some((sorted[middle - 1] + sorted[middle]) / 2.0),
    }
}

/// The mean of `values`, geometric where all are positive, with its interval. `None` when empty.
pub fn estimate(values: &[f64]) -> Option<Estimate> {
    let pairs = values.iter().map(|&value| (Some(value), None));
    Some(Sample::of(pairs, Compare::Value, true)?.estimate())
}

/// A paired comparison over blocks: formed inside each block that has both sides, then the mean and
/// its interval. `None` when no block has both.
pub fn paired(
    pairs: impl IntoIterator<Item = (Option<f64>, Option<f64>)>,
    compare: Compare,
) -> Option<Estimate> {
    Some(Sample::of(pairs, compare, true)?.estimate())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_of_odd_even_and_none() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 3.0, 2.0]), Some(2.5));
        assert_eq!(median(&[]), None);
    }

    #[test]
    fn one_value_has_no_interval() {
        let estimate = estimate(&[2.0]).unwrap();
        assert_eq!((estimate.value, estimate.low, estimate.high), (2.0, None, None));
        assert!(estimate.rank.is_none() && estimate.blocks == 1);
        assert!(super::estimate(&[]).is_none());
    }
}
