//! Statistics of paired measurements, and the assumptions behind them.
//!
//! The unit of replication is the *block*: one pass over every cell of the experiment. Machines drift, so
//! the two sides are compared inside a block and the comparisons are then averaged over the blocks. An
//! influence that slows a whole block cancels out.
//!
//! - A ratio is averaged by its logarithms: the geometric mean and Student's interval ([`student`]).
//! - The Hodges–Lehmann estimate and its exact bounds ([`rank`]) are computed too. No outlier moves them far:
//!   if they differ much from the mean, the blocks are not alike.
//! - A share of counted events has an exact interval ([`binomial`]): none of 12,000 does not mean zero.
//! - A run that continues until its claims are decided looks at its data several times, by a plan that keeps
//!   the total error within its limit ([`sequential`]). Several claims of one paper share one error ([`holm`]).
//!
//! With fewer than [`MIN_BLOCKS`] no claim is decided: with three blocks an interval with a nominal coverage
//! of 95 % covers 75 %. From six blocks on it covers 94 to 96 %, but less if only one side is noisy and its
//! noise is skewed: 93 % if the skewness is 1, and 89 % if it is 2, as in the worst sixth of published
//! comparisons ([`coverage`](self) simulates it, in the tests).

pub mod binomial;
#[cfg(test)]
mod coverage;
mod estimate;
pub mod holm;
pub mod rank;
mod sample;
pub mod sequential;
pub mod student;
pub mod welch;

#[cfg(test)]
pub(crate) use coverage::normal;
pub use estimate::{CONFIDENCE, ERROR, Estimate, Interval, MIN_BLOCKS, mean, median};
pub use sample::{Compare, Sample, Scale};
pub use sequential::LOOKS;

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
