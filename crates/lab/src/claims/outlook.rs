//! An estimate of the number of blocks that would decide an undecided claim.

use super::{decide::Evidence, limit::Limits};
use crate::{
    experiment::Threshold,
    statistics::{Compare, ERROR, Estimate, LOOKS, MIN_BLOCKS, Sample},
    verdict::{MAX_BLOCKS, Outlook},
};

/// Two sides whose ratio is surely this close to 1 count as equal: the difference is too small to prefer
/// one of them. The value is a decision, not a measured bound.
const EQUAL: f64 = 0.02;
/// The number of blocks from which such a narrow interval is not a coincidence of few blocks.
const EQUAL_FROM_BLOCKS: usize = LOOKS[2];

/// Returns the outlook of a claim that these blocks leave undecided. `level` returns the level that
/// decides with a given number of blocks, or `None` if there is no look at that number. Returns `None`
/// if a block has an infinite ratio.
pub(super) fn of(
    sample: &Sample,
    estimate: &Estimate,
    compare: Compare,
    threshold: Threshold,
    limits: &Limits,
    tested: usize,
    level: impl Fn(usize) -> Option<f64>,
) -> Option<Outlook> {
    let equal = equal_within_percent(estimate, compare, threshold);
    if let Some(percent) = equal.filter(|_| limits.are_none()) {
        return Some(Outlook::EqualWithinPercent(percent));
    }
    if sample.endless() > 0 {
        return None;
    }
    if sample.blocks() < 2 {
        return Some(Outlook::AtLeast(MIN_BLOCKS));
    }
    if threshold.has_end(estimate.value) && sample.is_constant() {
        return Some(Outlook::OnThreshold);
    }
    let decides_at = |blocks: usize, level: f64| {
        let evidence = Evidence::of(&sample.foreseen(blocks), threshold, limits).of_several(tested);
        evidence.verdict(level).is_decided()
    };
    // The level of a look is smaller than the whole error, and is slower to compute, so the whole error
    // is tested first.
    let decides = |blocks| {
        decides_at(blocks, ERROR) && level(blocks).is_some_and(|level| decides_at(blocks, level))
    };
    let least = MIN_BLOCKS.max(sample.blocks() + sample.lost() + 1);
    if !decides_at(MAX_BLOCKS, ERROR) {
        return Some(Outlook::AtThreshold);
    }
    // Counted shares do not improve steadily with the number of blocks: a linear search finds the first
    // number that decides, a bisection might not.
    (least..=MAX_BLOCKS)
        .find(|&blocks| decides(blocks))
        .map(|blocks| Outlook::Blocks(about(blocks)))
}

/// Rounds up to two digits; more digits would be false precision.
fn about(blocks: usize) -> usize {
    if blocks > 100 { blocks.next_multiple_of(10) } else { blocks }
}

/// Returns the percentage within which the two sides are surely equal, if that makes a claim about
/// direction pointless. The percentage is rounded up to a tenth, because it is a guaranteed bound.
fn equal_within_percent(
    estimate: &Estimate,
    compare: Compare,
    threshold: Threshold,
) -> Option<f64> {
    let is_direction = matches!(threshold, Threshold::Above(1.0) | Threshold::Below(1.0));
    if compare != Compare::Ratio || !is_direction || estimate.blocks < EQUAL_FROM_BLOCKS {
        return None;
    }
    let (low, high) = estimate.low.zip(estimate.high)?;
    let within = (1.0 - low).max(high - 1.0);
    let is_equal = (low..=high).contains(&1.0) && within <= EQUAL;
    is_equal.then_some((within * 1_000.0).ceil() / 10.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns `blocks` blocks whose logarithms have the mean `mean.ln()` and a standard deviation of
    /// nearly `sd`.
    fn ratios(blocks: usize, mean: f64, sd: f64) -> Sample {
        let pairs = (0..blocks).map(|block| {
            let off = if block % 2 == 0 { sd } else { -sd };
            (Some((mean.ln() + off).exp()), Some(1.0))
        });
        Sample::of(pairs, Compare::Ratio, true).unwrap()
    }

    fn outlook(sample: &Sample, threshold: Threshold) -> Outlook {
        let none = Limits::default();
        let all = |_| Some(ERROR);
        of(sample, &sample.estimate(), Compare::Ratio, threshold, &none, 1, all).unwrap()
    }

    const ABOVE: Threshold = Threshold::Above(1.0);

    #[test]
    fn what_is_far_off_takes_few_blocks_and_what_is_near_many() {
        let blocks = |mean, sd| match outlook(&ratios(10, mean, sd), ABOVE) {
            Outlook::Blocks(blocks) => blocks,
            other => panic!("{other}"),
        };
        // Half of a standard deviation away: n = (1.96 + 0.84)² ÷ 0.5² = 32. A few more are needed
        // because the spread itself is estimated, and the variance of a sample adds a factor of 10 / 9.
        let half = blocks(1.05, 0.0976);
        assert!((32..=40).contains(&half), "{half}");
        // Half the distance takes four times as many blocks.
        let quarter = blocks(1.0247, 0.0976);
        assert!((120..=160).contains(&quarter), "{quarter}");
        assert!(blocks(1.5, 0.4) >= 11, "never fewer than were made");
        assert_eq!(outlook(&ratios(10, 1.001, 0.3), ABOVE), Outlook::AtThreshold);
    }

    #[test]
    fn few_blocks_take_six_at_least() {
        assert_eq!(outlook(&ratios(2, 2.0, 0.01), ABOVE), Outlook::Blocks(6));
        assert_eq!(outlook(&ratios(1, 2.0, 0.01), ABOVE), Outlook::AtLeast(6));
    }

    #[test]
    fn what_stands_at_the_threshold_stays_there() {
        let equal = Sample::of([(Some(3.0), Some(3.0)); 10], Compare::Difference, true).unwrap();
        assert_eq!(outlook(&equal, Threshold::Above(0.0)), Outlook::OnThreshold);
        assert_eq!(outlook(&equal, Threshold::Above(-1.0)), Outlook::Blocks(11));
    }

    #[test]
    fn a_margin_is_judged_by_its_nearer_end() {
        let margin = Threshold::Within([0.95, 1.05]);
        let blocks = |mean| match outlook(&ratios(10, mean, 0.07), margin) {
            Outlook::Blocks(blocks) => blocks,
            other => panic!("{other}"),
        };
        // In the middle of the interval; near an end, inside; near an end, outside.
        assert!(blocks(1.0) < blocks(0.97) && blocks(0.9) < blocks(0.93));
        assert_eq!(outlook(&ratios(10, 0.95, 0.07), margin), Outlook::AtThreshold);
    }

    #[test]
    fn which_of_two_equals_is_larger_is_not_decided() {
        let equal = ratios(24, 1.001, 0.02);
        let is_equal = |sample: &Sample, threshold| {
            matches!(outlook(sample, threshold), Outlook::EqualWithinPercent(_))
        };
        // The standard error is 0.02 ÷ √24 = 0.0041, and Student's reach 2.07 of them: 0.85 % and 0.1 %.
        assert_eq!(outlook(&equal, ABOVE), Outlook::EqualWithinPercent(1.0));
        assert!(is_equal(&equal, Threshold::Below(1.0)));
        let text = Outlook::EqualWithinPercent(1.0).to_string();
        assert!(text.contains("equal within 1.0 %: no number of blocks"), "{text}");
        // Too few blocks; too wide an interval; a claim that requires more than a direction.
        assert!(!is_equal(&ratios(10, 1.001, 0.01), ABOVE));
        assert!(!is_equal(&ratios(24, 1.001, 0.1), ABOVE));
        assert!(!is_equal(&equal, Threshold::Above(1.003)));
        // A narrow interval that does not include 1: a few more blocks would decide the claim.
        assert!(matches!(outlook(&ratios(24, 1.008, 0.015), ABOVE), Outlook::Blocks(_)));
    }

    #[test]
    fn of_two_things_the_one_that_takes_more_counts() {
        let (few, many) = (Some(Outlook::Blocks(12)), Some(Outlook::Blocks(38)));
        assert_eq!(Outlook::longest(few, many), many);
        assert_eq!(Outlook::longest(many, None), many);
        let never = Some(Outlook::AtThreshold);
        assert_eq!((Outlook::longest(never, few), Outlook::longest(None, None)), (never, None));
    }

    #[test]
    fn counts_take_as_many_trials_as_the_exact_test_wants() {
        // No failure in 1,180 requests per block, against 1 in 10,000: 2 · 0.9999ⁿ ≤ 0.05 requires n =
        // 36,888.
        let none = Sample::of([(Some(0.0), None); 6], Compare::Value, true).unwrap();
        let none = none.counted(0, 7_080);
        let outlook = outlook(&none, Threshold::Below(1e-4));
        assert_eq!(outlook, Outlook::Blocks(32));
    }
}
