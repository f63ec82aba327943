//! Estimates, their intervals, and the constants of the decision rule: number of blocks, confidence,
//! error.

use serde::{Deserialize, Serialize};

/// The smallest number of blocks with which a claim can be decided.
pub const MIN_BLOCKS: usize = 6;

/// The share of intervals that cover the true value if the noise is normal.
pub const CONFIDENCE: f64 = 0.95;

/// The permitted error: if the true value lies exactly on the limit of a claim, this share of
/// experiments decides the claim by chance, one way or the other.
pub const ERROR: f64 = 1.0 - CONFIDENCE;

/// An interval with two ends.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// The lower end.
    pub low: f64,
    /// The upper end.
    pub high: f64,
}

/// A figure with its interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    /// The mean over the blocks; the geometric mean if all figures are positive.
    pub value: f64,
    /// Lower end of the interval; none with fewer than [`MIN_BLOCKS`].
    pub low: Option<f64>,
    /// Upper end of the interval; none with fewer than [`MIN_BLOCKS`].
    pub high: Option<f64>,
    /// The smallest and the largest value, shown instead of an interval if there are fewer than
    /// [`MIN_BLOCKS`] blocks. Student's interval of two or three blocks is many times as wide as the
    /// range of the values, and it covers less than its nominal share if the noise is not normal. `None`
    /// with one block.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub range: Option<Interval>,
    /// The number of blocks that the estimate uses.
    pub blocks: usize,
    /// The Hodges–Lehmann estimate, which outliers hardly change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rank_value: Option<f64>,
    /// The exact interval of `rank_value`; `None` if there are too few blocks for an interval at this
    /// confidence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rank: Option<Interval>,
}

impl Estimate {
    /// Returns the estimate in another unit, without the figures of the ranks.
    pub(crate) fn scaled(&self, scale: f64) -> Self {
        let range = self.range.map(|it| Interval { low: it.low * scale, high: it.high * scale });
        Self {
            value: self.value * scale,
            low: self.low.map(|low| low * scale),
            high: self.high.map(|high| high * scale),
            range,
            blocks: self.blocks,
            rank_value: None,
            rank: None,
        }
    }
}

/// Returns the mean of `values`, or `None` if there are none.
pub fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

/// Returns the median of `values` (the mean of the middle two if their number is even), or `None` if
/// there are none.
///
/// # Panics
/// Panics if a value is NaN. No metric is ever NaN.
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
