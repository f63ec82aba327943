//! One comparison over the blocks: its estimate, its interval, and the probabilities that decide a
//! claim.

use super::{
    binomial,
    estimate::{CONFIDENCE, ERROR, Estimate, Interval, MIN_BLOCKS, median},
    rank, student,
};
use serde::{Deserialize, Serialize};

/// The operation that compares the two sides inside a block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Compare {
    /// a ÷ b.
    #[default]
    Ratio,
    /// a − b.
    Difference,
    /// a alone.
    Value,
}

impl Compare {
    /// Returns the comparison of one block. Returns `None` if `b` is missing, or if a ratio has no
    /// positive base: `b` is 0, or it is negative (which is possible for a difference).
    pub fn of(self, a: f64, b: Option<f64>) -> Option<f64> {
        match self {
            Self::Value => Some(a),
            Self::Difference => Some(a - b?),
            Self::Ratio => Some(a / b.filter(|&b| b > 0.0)?),
        }
    }

    /// Returns whether the comparison is a ratio above every limit: `a` is positive and `b` is not.
    pub fn is_endless(self, a: f64, b: Option<f64>) -> bool {
        self == Self::Ratio && a > 0.0 && b.is_some_and(|b| b <= 0.0)
    }
}

/// The scale on which values are averaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// The values themselves.
    Linear,
    /// The logarithms of the values, because noise multiplies them; a ratio and its inverse have the
    /// same distance from 1.
    Log,
}

/// The assumed distance of each lost block from the middle, as a multiple of the distance of the
/// farthest known block. If two of ten blocks are lost at one end, the other eight do not show how far
/// those two were. A simulation in [`super::coverage`](super) shows that this factor is enough.
const BEYOND: f64 = 1.5;

/// The values of one comparison, one value per block.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// The values on `scale`.
    values: Vec<f64>,
    scale: Scale,
    /// The number of further blocks that have a ratio above every limit.
    endless: usize,
    /// The number of further blocks that lost a side and therefore have no value. The loss may depend on
    /// the value.
    lost: usize,
    /// Hits and trials, if the values are shares of counted events.
    counts: Option<(u64, u64)>,
    /// The number of blocks for which the tails are predicted.
    foreseen: Option<usize>,
}

impl Sample {
    /// Returns the comparison inside each block that has both sides, or `None` if no block has a finite
    /// value. The scale is logarithmic if `may_be_log` is true, the comparison is not a difference, and
    /// all values are positive.
    pub fn of(
        pairs: impl IntoIterator<Item = (Option<f64>, Option<f64>)>,
        compare: Compare,
        may_be_log: bool,
    ) -> Option<Self> {
        let pairs: Vec<(f64, Option<f64>)> =
            pairs.into_iter().filter_map(|(a, b)| Some((a?, b))).collect();
        let endless = pairs.iter().filter(|&&(a, b)| compare.is_endless(a, b)).count();
        let compared = pairs.into_iter().filter_map(|(a, b)| compare.of(a, b));
        let mut values: Vec<f64> = compared.filter(|x| x.is_finite()).collect();
        let log = may_be_log && compare != Compare::Difference && values.iter().all(|&x| x > 0.0);
        let scale = if log { Scale::Log } else { Scale::Linear };
        if log {
            values.iter_mut().for_each(|value| *value = value.ln());
        }
        let (lost, counts, foreseen) = (0, None, None);
        (!values.is_empty()).then_some(Self { values, scale, endless, lost, counts, foreseen })
    }

    /// Records that the values are shares: `hits` of `trials` in all blocks together.
    #[must_use]
    pub fn counted(mut self, hits: u64, trials: u64) -> Self {
        if self.scale == Scale::Log {
            self.values.iter_mut().for_each(|value| *value = value.exp());
            self.scale = Scale::Linear;
        }
        self.counts = Some((hits, trials));
        self
    }

    /// Records that `lost` further blocks ran but lost a side: the server crashed, or the load generator
    /// could not do its work. The values of these blocks are unknown, and they may be the reason for the
    /// loss. Therefore these blocks count against the claim: each is assumed to lie `BEYOND` times as
    /// far from the middle as the farthest known block, on the unfavourable side.
    #[must_use]
    pub fn lacking(self, lost: usize) -> Self {
        Self { lost, ..self }
    }

    /// Returns a sample whose tails are those that `blocks` blocks like these will not exceed in four cases
    /// of five. The sample must not have an infinite ratio.
    #[must_use]
    pub fn foreseen(&self, blocks: usize) -> Self {
        let made = (self.blocks() + self.lost) as f64;
        // The present numbers of hits and trials per block.
        let scaled = |count: u64| (count as f64 * blocks as f64 / made).round() as u64;
        let counts = self.counts.map(|(hits, trials)| (scaled(hits), scaled(trials)));
        Self { foreseen: Some(blocks), counts, ..self.clone() }
    }

    /// Returns the known values, and for each lost block the assumed value below the middle.
    fn with_lost_below(&self) -> Vec<f64> {
        let mut values = self.values.clone();
        if let (1.., Some(middle)) = (self.lost, median(&values)) {
            let far = values.iter().map(|value| (value - middle).abs()).fold(0.0, f64::max);
            values.resize(values.len() + self.lost, middle - BEYOND * far);
        }
        values
    }

    /// Returns the known values, and for each lost block the assumed value above the middle.
    fn with_lost_above(&self) -> Vec<f64> {
        self.mirrored().with_lost_below().into_iter().map(|value| -value).collect()
    }

    /// Returns the same sample with the sign of each value changed.
    fn mirrored(&self) -> Self {
        Self { values: self.values.iter().map(|value| -value).collect(), ..self.clone() }
    }

    /// Returns the number of blocks that have both sides.
    pub fn blocks(&self) -> usize {
        self.values.len() + self.endless
    }

    /// Returns the number of further blocks, which lost a side.
    pub fn lost(&self) -> usize {
        self.lost
    }

    /// Returns the number of blocks that have a ratio above every limit.
    pub fn endless(&self) -> usize {
        self.endless
    }

    /// Returns whether the value is the same in every block.
    pub fn is_constant(&self) -> bool {
        self.endless + self.lost == 0 && self.values.iter().all(|&value| value == self.values[0])
    }

    fn back(&self, value: f64) -> f64 {
        match self.scale {
            Scale::Linear => value,
            Scale::Log => value.exp(),
        }
    }

    fn forth(&self, limit: f64) -> f64 {
        match self.scale {
            Scale::Linear => limit,
            // A limit that is not positive lies below all values.
            Scale::Log if limit <= 0.0 => f64::MIN,
            Scale::Log => limit.ln(),
        }
    }

    /// Returns the interval that misses the true value with probability `error`: Student's interval or,
    /// for counted shares, the wider of Student's and the exact interval. Lost blocks widen it to their
    /// assumed values. Returns `None` with one block (except for counted shares), if a block has an
    /// infinite ratio, or if `error` is so small that an end would be infinite.
    pub fn interval(&self, error: f64) -> Option<Interval> {
        if self.endless > 0 {
            return None;
        }
        let (_, low) = student::interval(&self.with_lost_below(), error);
        let (_, high) = student::interval(&self.with_lost_above(), error);
        let interval = low
            .zip(high)
            .map(|(low, high)| Interval { low: self.back(low.low), high: self.back(high.high) })
            .filter(|interval| interval.low.is_finite() && interval.high.is_finite());
        let Some((hits, trials)) = self.counts else { return interval };
        let exact = binomial::interval(hits, trials, error);
        Some(interval.map_or(exact, |i| Interval {
            low: i.low.min(exact.low).max(0.0),
            high: i.high.max(exact.high).min(1.0),
        }))
    }

    /// Returns the smallest and the largest of at least two values; `None` if a block has an infinite
    /// ratio.
    fn range(&self) -> Option<Interval> {
        if self.values.len() < 2 || self.endless > 0 {
            return None;
        }
        let least = self.values.iter().copied().fold(f64::INFINITY, f64::min);
        let largest = self.values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        Some(Interval { low: self.back(least), high: self.back(largest) })
    }

    /// Returns the mean with its interval, and the rank estimate with its interval. With fewer than
    /// [`MIN_BLOCKS`] blocks it has the range of the values instead of the interval. If some blocks have
    /// infinite ratios, the mean is that of the other blocks, and there is no interval.
    pub fn estimate(&self) -> Estimate {
        let (mean, _) = student::interval(&self.values, ERROR);
        let value = match self.counts {
            Some((hits, trials)) if trials > 0 => hits as f64 / trials as f64,
            _ => self.back(mean),
        };
        let enough = self.blocks() >= MIN_BLOCKS;
        let found = Self { lost: 0, ..self.clone() };
        let interval = found.interval(1.0 - CONFIDENCE).filter(|_| enough);
        let range = self.range().filter(|_| !enough);
        let rank = rank::estimate(&self.values, ERROR).filter(|_| self.endless == 0);
        let rank_interval = rank.and_then(|(_, interval)| interval);
        Estimate {
            value,
            // The conversion to the logarithm and back loses the last digits.
            low: interval.map(|i| i.low.min(value)),
            high: interval.map(|i| i.high.max(value)),
            range,
            blocks: self.blocks(),
            rank_value: rank.filter(|_| self.values.len() > 1).map(|(v, _)| self.back(v)),
            rank: rank_interval
                .map(|i| Interval { low: self.back(i.low), high: self.back(i.high) }),
        }
    }

    /// Returns the probability of figures at least this far above `limit` if the true value were at
    /// `limit`. A small probability is evidence that the true value is above the limit. If some blocks
    /// have infinite ratios, there is no mean; then the sign test is used, which counts the blocks on
    /// each side of the limit.
    pub fn tail_above(&self, limit: f64) -> f64 {
        if self.endless > 0 {
            let above = self.values.iter().filter(|&&value| value > self.forth(limit)).count();
            let above = (above + self.endless) as u64;
            return binomial::tail_above(above, (self.blocks() + self.lost) as u64, 0.5);
        }
        let exact = self.counts.map(|(hits, trials)| binomial::tail_above(hits, trials, limit));
        self.tail_of_blocks(self.forth(limit)).max(exact.unwrap_or(0.0))
    }

    /// Returns the probability from the values of the blocks alone; `limit` is on the scale of the sample.
    fn tail_of_blocks(&self, limit: f64) -> f64 {
        let values = self.with_lost_below();
        match self.foreseen {
            Some(blocks) => student::foreseen_tail_above(&values, limit, blocks),
            None => student::tail_above(&values, limit),
        }
    }

    /// Returns the probability of figures at least this far below `limit`. An infinite ratio is never
    /// evidence for a value below a limit, so the result is then 1.
    pub fn tail_below(&self, limit: f64) -> f64 {
        if self.endless > 0 {
            return 1.0;
        }
        let exact = self.counts.map(|(hits, trials)| binomial::tail_below(hits, trials, limit));
        self.mirrored().tail_of_blocks(-self.forth(limit)).max(exact.unwrap_or(0.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::statistics::{estimate, paired};
    use proptest::prelude::*;

    #[test]
    fn drift_cancels_in_a_paired_ratio() {
        // From block to block all figures grow threefold, as if the machine changed its speed; a is
        // always twice b.
        let pairs = (0..6).map(|block| {
            let speed = 3f64.powi(block);
            (Some(2.0 * speed), Some(speed))
        });
        let ratio = paired(pairs, Compare::Ratio).unwrap();
        let near = |value: f64| (value - 2.0).abs() < 1e-12;
        assert!(near(ratio.value) && near(ratio.low.unwrap()) && near(ratio.high.unwrap()));
        assert!(near(ratio.rank_value.unwrap()));
    }

    #[test]
    fn a_block_that_lacks_a_side_is_left_out() {
        let pairs = [(Some(4.0), Some(2.0)), (None, Some(1.0)), (Some(9.0), None)];
        assert_eq!(paired(pairs, Compare::Ratio).unwrap().blocks, 1);
        assert_eq!(paired([(Some(1.0), Some(0.0))], Compare::Ratio), None);
    }

    /// Regression test: such blocks were once left out, which favoured a value below the limit.
    #[test]
    fn a_ratio_to_nothing_is_above_every_limit() {
        let pairs = |endless: usize| {
            (0..10).map(move |block| (Some(0.4), Some(if block < endless { 0.0 } else { 1.0 })))
        };
        let sample = |endless| Sample::of(pairs(endless), Compare::Ratio, true).unwrap();
        let four = sample(4);
        assert_eq!((four.blocks(), four.endless(), four.tail_below(0.5)), (10, 4, 1.0));
        assert!(four.tail_above(0.5) > 0.5 && four.interval(0.05).is_none());
        let estimate = four.estimate();
        assert!((estimate.value - 0.4).abs() < 1e-12 && estimate.high.is_none());
        assert!((sample(9).tail_above(0.5) - 11.0 / 1024.0).abs() < 1e-9);
        // A block in which both sides are 0 has no ratio.
        let nothing = [(Some(0.0), Some(0.0)), (Some(1.0), Some(2.0))];
        assert_eq!(Sample::of(nothing, Compare::Ratio, true).unwrap().blocks(), 1);
    }

    #[test]
    fn a_ratio_and_its_inverse_say_the_same() {
        let pairs = [(2.0, 1.0), (2.2, 1.1), (1.9, 1.0), (2.5, 1.0), (2.1, 1.1), (1.8, 1.0)];
        let ratio = |flip: bool| {
            let sides =
                pairs.map(|(a, b)| if flip { (Some(b), Some(a)) } else { (Some(a), Some(b)) });
            paired(sides, Compare::Ratio).unwrap()
        };
        let (forth, back) = (ratio(false), ratio(true));
        assert!((forth.value * back.value - 1.0).abs() < 1e-12);
        assert!((forth.low.unwrap() * back.high.unwrap() - 1.0).abs() < 1e-12);
    }

    /// Regression test: two blocks once gave intervals that spanned nine orders of magnitude.
    #[test]
    fn few_blocks_show_what_was_seen() {
        let estimate = |ratios: &[f64]| {
            paired(ratios.iter().map(|&a| (Some(a), Some(1.0))), Compare::Ratio).unwrap()
        };
        for few in [&[0.5, 2.0][..], &[0.5, 1.0, 1.0, 1.0, 2.0]] {
            let seen = estimate(few);
            let range = seen.range.unwrap();
            assert_eq!((seen.low, seen.high), (None, None));
            assert!((range.low - 0.5).abs() < 1e-12 && (range.high - 2.0).abs() < 1e-12);
        }
        assert_eq!(estimate(&[2.0]).range, None);
        let six = estimate(&[0.5, 1.0, 1.0, 1.0, 1.0, 2.0]);
        assert!(six.range.is_none() && six.low.is_some() && six.high.is_some());
    }

    /// Regression test: an infinite end cannot be written to a file, and a file with one could not be
    /// read.
    #[test]
    fn an_interval_without_ends_is_none() {
        let values = [1.0, 1.1, 0.9, 1.0, 1e5, 1.0].map(|value| (Some(value), None));
        let sample = Sample::of(values, Compare::Value, true).unwrap();
        assert!(sample.interval(0.05).is_some());
        assert_eq!(sample.interval(1e-60), None);
    }

    #[test]
    fn none_of_many_is_not_zero() {
        let none = Sample::of([(Some(0.0), None); 40], Compare::Value, true).unwrap();
        let alone = none.clone().estimate();
        assert_eq!((alone.value, alone.high), (0.0, Some(0.0)), "what the blocks alone would say");
        let estimate = none.clone().counted(0, 12_267).estimate();
        assert_eq!((estimate.value, estimate.low), (0.0, Some(0.0)));
        assert!(estimate.high.unwrap() > 1e-4);
        let counted = none.counted(0, 12_267);
        assert!(counted.tail_below(1e-4) > 0.2 && counted.tail_below(1e-2) < 1e-9);
    }

    #[test]
    fn shares_that_differ_from_block_to_block_have_the_wider_interval() {
        // Half of the blocks lose all, half lose none: 300 of 600, but only six independent values.
        let pairs = [0.0, 1.0, 0.0, 1.0, 0.0, 1.0].map(|share| (Some(share), None));
        let sample = Sample::of(pairs, Compare::Value, true).unwrap().counted(300, 600);
        let interval = sample.interval(0.05).unwrap();
        assert!(interval.low < 0.01 && interval.high > 0.99, "{interval:?}");
    }

    #[test]
    fn a_limit_of_zero_is_met_by_what_varies() {
        let sample = |values: [f64; 6]| {
            Sample::of(values.map(|v| (Some(v), None)), Compare::Value, false).unwrap()
        };
        assert!(sample([80.0, 85.0, 90.0, 70.0, 75.0, 88.0]).tail_above(0.0) < 1e-4);
        assert!(sample([0.0, 0.0, 0.0, 1.0, 0.0, 0.0]).tail_above(0.0) > 0.1);
    }

    proptest! {
        #[test]
        fn an_interval_encloses_its_value_and_narrows_with_the_error(
            values in prop::collection::vec(0.001f64..1e9, MIN_BLOCKS..30),
        ) {
            let pairs = values.iter().map(|&value| (Some(value), None));
            let sample = Sample::of(pairs, Compare::Value, true).unwrap();
            let estimate = sample.estimate();
            let (low, high) = (estimate.low.unwrap(), estimate.high.unwrap());
            prop_assert!(low <= estimate.value && estimate.value <= high);
            let wide = sample.interval(0.001).unwrap();
            prop_assert!(wide.low <= low * (1.0 + 1e-9) && high <= wide.high * (1.0 + 1e-9));
        }

        #[test]
        fn an_estimate_scales_with_its_unit(
            values in prop::collection::vec(0.5f64..2.0, MIN_BLOCKS..12),
        ) {
            let scaled: Vec<f64> = values.iter().map(|v| v * 1024.0).collect();
            let (plain, scaled) = (estimate(&values).unwrap(), estimate(&scaled).unwrap());
            let same = |a: f64, b: f64| (a * 1024.0 / b - 1.0).abs() < 1e-9;
            prop_assert!(same(plain.low.unwrap(), scaled.low.unwrap()));
            prop_assert!(same(plain.high.unwrap(), scaled.high.unwrap()));
        }
    }
}
