//! Medians with bootstrap intervals.

use rand::{RngExt, SeedableRng, rngs::StdRng};

/// A median and the 95 % interval around it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Estimate {
    pub(crate) value: f64,
    pub(crate) low: f64,
    pub(crate) high: f64,
}

/// How many times the sample is drawn again.
const RESAMPLES: usize = 2_000;

/// The median of `values` with its percentile bootstrap interval; the same values give the same
/// interval.
///
/// # Panics
/// When `values` is empty.
pub(crate) fn estimate(values: &[f64]) -> Estimate {
    let mut random = StdRng::seed_from_u64(0x9011);
    let mut medians: Vec<f64> = (0..RESAMPLES)
        .map(|_| {
            let drawn = (0..values.len()).map(|_| values[random.random_range(0..values.len())]);
            median(drawn.collect())
        })
        .collect();
    medians.sort_by(f64::total_cmp);
    let at = |share: f64| medians[((RESAMPLES - 1) as f64 * share).round() as usize];
    Estimate { value: median(values.to_vec()), low: at(0.025), high: at(0.975) }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len() % 2 == 1 { values[middle] } else { (values[middle - 1] + values[middle]) / 2.0 }
}
