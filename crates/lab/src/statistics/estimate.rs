//! Estimates, their intervals, and the numbers that decide.

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

/// The mean of `values`. `None` when empty.
pub fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
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
