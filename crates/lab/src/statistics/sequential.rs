//! The plan of looks: after which blocks a running experiment examines its data to decide whether to
//! stop, and which level a test must reach at each look.
//!
//! If a test at 5 % is repeated while data are added, it finds an effect by chance in far more than 5 %
//! of the cases. The plan spends the error over the looks by the method of K. Lan and D. DeMets
//! (*Discrete sequential boundaries for clinical trials*, Biometrika 70, 1983), with the spending
//! function that approximates the bounds of P. O'Brien and T. Fleming: very little of the error is spent
//! at the early looks and nearly all at the last ones. Therefore an experiment decides after six of
//! forty blocks only if the effect is very clear, and an experiment that needs all forty blocks loses
//! little to the earlier looks.
//!
//! The bounds are computed for a sum of normal increments and are used as levels of Student's t-test at
//! each look. A simulation in [`super::coverage`](super) shows that the error keeps its nominal value,
//! except where only one side has noise and that noise is skewed.

use super::estimate::{ERROR, MIN_BLOCKS};
use statrs::distribution::{ContinuousCDF, Normal};

/// The numbers of blocks after which an experiment looks at its data, up to its last block.
pub const LOOKS: [usize; 5] = [MIN_BLOCKS, 10, 16, 24, 40];

/// The number of intervals of the numerical integration, an even number. With it, the level of each look
/// is correct to four digits.
const GRID: usize = 80;
/// The number of bisection steps in the search for a bound.
const HALVINGS: usize = 40;

/// Returns the looks of an experiment of at most `blocks` blocks; the last look is at `blocks`. Returns
/// none if `blocks` is less than [`MIN_BLOCKS`]: such an experiment decides nothing.
pub fn planned(blocks: usize) -> Vec<usize> {
    if blocks < MIN_BLOCKS {
        return Vec::new();
    }
    LOOKS.into_iter().filter(|&look| look < blocks).chain([blocks]).collect()
}

/// Returns the looks of an experiment that ended after `made` of `blocks` blocks: the planned looks
/// before its end, the unplanned looks (`shown`: the user interrupted the experiment and saw its
/// results), and its end.
pub fn made(blocks: usize, shown: &[usize], made: usize) -> Vec<usize> {
    if made < MIN_BLOCKS {
        return Vec::new();
    }
    let planned = planned(blocks.max(made)).into_iter();
    // Results that were shown with fewer blocks decided nothing, so they are not looks.
    let before = |look: &usize| (MIN_BLOCKS..made).contains(look);
    let mut looks: Vec<usize> = planned.chain(shown.iter().copied()).filter(before).collect();
    looks.push(made);
    looks.sort_unstable();
    looks.dedup();
    looks
}

/// Returns the part of the two-sided `error` that is spent when the share `time` of all blocks is
/// complete.
fn spent(error: f64, time: f64) -> f64 {
    let normal = Normal::standard();
    2.0 * normal.cdf(normal.inverse_cdf(error / 2.0) / time.sqrt())
}

/// Returns the two-sided level of each look, such that the error over all looks is `error`. `is_last`
/// means that no look follows the last of `looks`, which then spends the remaining error. This is so at
/// the end of the plan, or when the time limit is reached (which does not depend on the data).
///
/// # Panics
/// Panics if the looks are not in ascending order, or if one is larger than `blocks`.
pub fn levels(looks: &[usize], blocks: usize, error: f64, is_last: bool) -> Vec<f64> {
    levels_by(|time| spent(error, time), looks, blocks, is_last)
}

/// Does the same as [`levels`], with any function `spent` from the share of blocks to the error that is
/// spent by then.
fn levels_by(
    spent: impl Fn(f64) -> f64,
    looks: &[usize],
    blocks: usize,
    is_last: bool,
) -> Vec<f64> {
    assert!(looks.windows(2).all(|pair| pair[0] < pair[1]), "looks ascend: {looks:?}");
    assert!(looks.last().is_none_or(|&last| last <= blocks), "{looks:?} of {blocks}");
    let normal = Normal::standard();
    let mut levels = Vec::with_capacity(looks.len());
    let (mut used, mut earlier) = (0.0, 0.0);
    // The distribution of the sum while nothing is decided: points, and at each point the density times
    // its weight in the integration.
    let mut open: Vec<(f64, f64)> = vec![(0.0, 1.0)];
    for (index, &look) in looks.iter().enumerate() {
        let time = look as f64 / blocks as f64;
        let last = is_last && index + 1 == looks.len();
        let budget = if last { spent(1.0) } else { spent(time) } - used;
        let step = (time - earlier).sqrt();
        let beyond = |bound: f64| -> f64 {
            let tail = |at: f64| normal.cdf((at - bound) / step) + normal.cdf((-at - bound) / step);
            open.iter().map(|(at, weight)| weight * tail(*at)).sum()
        };
        let bound = falling_root(beyond, budget, 12.0 * time.sqrt());
        levels.push(2.0 * normal.cdf(-bound / time.sqrt()));
        used += budget;
        earlier = time;
        if index + 1 < looks.len() {
            open = density_within(&open, bound, step);
        }
    }
    levels
}

/// Returns the density at the next look, within its bounds, weighted by Simpson's rule.
fn density_within(open: &[(f64, f64)], bound: f64, step: f64) -> Vec<(f64, f64)> {
    let width = 2.0 * bound / GRID as f64;
    let scale = 1.0 / (step * (2.0 * std::f64::consts::PI).sqrt());
    (0..=GRID)
        .map(|index| {
            let at = -bound + width * index as f64;
            let simpson = match index {
                0 | GRID => 1.0,
                index if index % 2 == 1 => 4.0,
                _ => 2.0,
            };
            let arrive = |from: f64| scale * (-0.5 * ((at - from) / step).powi(2)).exp();
            let density: f64 = open.iter().map(|(from, weight)| weight * arrive(*from)).sum();
            (at, density * simpson * width / 3.0)
        })
        .collect()
}

/// Returns the argument between 0 and `most` at which the decreasing function `falling` has the value
/// `wanted`.
fn falling_root(falling: impl Fn(f64) -> f64, wanted: f64, most: f64) -> f64 {
    let (mut low, mut high) = (0.0, most);
    for _ in 0..HALVINGS {
        let middle = (low + high) / 2.0;
        if falling(middle) > wanted { low = middle } else { high = middle }
    }
    (low + high) / 2.0
}

/// Returns the p-value of the whole plan: the smallest error at which the last of `looks` would decide
/// if the test at that look has the two-sided p-value `p`.
pub fn overall(looks: &[usize], blocks: usize, is_last: bool, p: f64) -> f64 {
    match looks {
        [] => 1.0,
        [_] if is_last => p,
        _ if p <= 0.0 => 0.0,
        _ => {
            let level = |error: f64| *levels(looks, blocks, error, is_last).last().unwrap_or(&0.0);
            // The level of the last look increases with the error: search for the error at which the
            // level is `p`.
            let (mut low, mut high) = (1e-12f64.ln(), 0.999f64.ln());
            for _ in 0..30 {
                let middle = (low + high) / 2.0;
                if level(middle.exp()) < p { low = middle } else { high = middle }
            }
            high.exp()
        }
    }
}

/// Returns the level of the last of `looks` of an experiment of at most `blocks` blocks. Returns `None`
/// without looks: the experiment has too few blocks to decide.
///
/// # Panics
/// Panics if the looks are not in ascending order, or if one is larger than `blocks`.
pub fn level_of_last(looks: &[usize], blocks: usize, is_last: bool) -> Option<f64> {
    levels(looks, blocks, ERROR, is_last).pop()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::statistics::{Compare, Sample};

    #[test]
    fn looks_of_small_and_large_plans() {
        assert_eq!(planned(40), LOOKS);
        assert_eq!(planned(6), [6]);
        assert_eq!(planned(12), [6, 10, 12]);
        assert_eq!(planned(100), [6, 10, 16, 24, 40, 100]);
        assert!(planned(5).is_empty());
        assert_eq!(made(40, &[], 12), [6, 10, 12]);
        assert_eq!(made(40, &[], 10), [6, 10]);
        assert!(made(40, &[], 5).is_empty());
        // The experiment was interrupted after 4, after 10 and after 13 blocks.
        assert_eq!(made(40, &[4, 10, 13], 17), [6, 10, 13, 16, 17]);
        assert_eq!(made(40, &[13], 13), [6, 10, 13]);
    }

    #[test]
    fn bounds_are_those_of_the_literature() {
        // Five equal looks, where each side spends half of 5 % by itself: z = 4.877, 3.357, 2.680,
        // 2.290, 2.031 (the values of the R packages ldbounds and gsDesign).
        let each_side = |time| 2.0 * spent(0.025, time);
        let levels = levels_by(each_side, &[1, 2, 3, 4, 5], 5, true);
        for (level, z) in levels.iter().zip([4.877, 3.357, 2.680, 2.290, 2.031]) {
            let found = -Normal::standard().inverse_cdf(level / 2.0);
            assert!((found - z).abs() < 2e-3, "{found}, not {z}");
        }
    }

    /// Claim P5 of `provos-fig10` says that no request fails; a share below 1 in 10,000 counts as none.
    /// The 7,080 requests of six blocks are too few to decide it; at the same rate, forty blocks have
    /// 47,200 requests.
    #[test]
    fn none_of_forty_seven_thousand_is_less_than_one_in_ten_thousand() {
        let decides = |looks: &[usize], trials: u64, claims: f64| {
            let none = [(Some(0.0), None)].repeat(looks[looks.len() - 1]);
            let none = Sample::of(none, Compare::Value, true).unwrap().counted(0, trials);
            let p = 2.0 * none.tail_below(1e-4);
            overall(looks, LOOKS[4], looks.len() == LOOKS.len(), p) * claims <= ERROR
        };
        assert!(!decides(&LOOKS[..1], 7_080, 1.0));
        assert!(decides(&LOOKS, 47_000, 1.0));
        // The claim by itself, after all the looks; then the claim when another claim of the paper
        // shares the error.
        assert!(!decides(&LOOKS, 36_000, 1.0) && decides(&LOOKS, 38_500, 1.0));
        assert!(!decides(&LOOKS, 43_000, 2.0) && decides(&LOOKS, 45_500, 2.0));
    }

    #[test]
    fn one_look_is_the_plain_test() {
        let level = levels(&[6], 6, 0.05, true)[0];
        assert!((level - 0.05).abs() < 1e-9, "{level}");
        assert_eq!(overall(&[6], 6, true, 0.03), 0.03);
    }

    #[test]
    fn a_plan_that_runs_out_of_time_spends_the_remaining_error() {
        let planned = level_of_last(&[6, 10], 40, false).unwrap();
        let over = level_of_last(&[6, 10], 40, true).unwrap();
        assert!(planned < 1e-4 && over > 0.045 && over < 0.0501, "{planned} {over}");
        assert!(level_of_last(&[], 40, true).is_none());
    }

    #[test]
    fn a_look_beside_the_plan_costs_the_later_ones() {
        let level = |looks: &[usize]| level_of_last(looks, 40, false).unwrap();
        assert!(level(&[6, 10, 14, 16]) < level(&[6, 10, 16]));
    }

    #[test]
    fn the_whole_plans_p_is_the_error_at_which_the_look_decides() {
        let looks = [6, 10, 16];
        let level = *levels(&looks, 40, 0.05, false).last().unwrap();
        let p = overall(&looks, 40, false, level);
        assert!((p - 0.05).abs() < 1e-4, "{p}");
        assert!(overall(&looks, 40, false, level * 2.0) > 0.05);
        assert!(overall(&looks, 40, false, level / 10.0) < 0.03);
    }
}
