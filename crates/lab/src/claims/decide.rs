//! The comparison of the blocks' figures with a threshold.

use super::limit::Limits;
use crate::{experiment::Threshold, statistics::Sample, verdict::Verdict};

/// The evidence that the figures meet the claim, and that they fail it: two-sided p-values.
#[derive(Clone, Copy, Debug)]
pub(super) struct Evidence {
    pub(super) holds: f64,
    pub(super) fails_above: f64,
    pub(super) fails_below: f64,
}

impl Evidence {
    /// No evidence, neither for the claim nor against it.
    pub(super) const NONE: Self = Self { holds: 1.0, fails_above: 1.0, fails_below: 1.0 };

    /// Returns the evidence for the claim of `self`, with the evidence against the claim of `other`.
    pub(super) fn with_doubts_of(self, other: Option<Self>) -> Self {
        other.map_or(self, |other| Self { holds: self.holds, ..other })
    }

    /// Returns the weaker evidence of the two, in each respect.
    pub(super) fn and(self, other: Self) -> Self {
        Self {
            holds: self.holds.max(other.holds),
            fails_above: self.fails_above.max(other.fails_above),
            fails_below: self.fails_below.max(other.fails_below),
        }
    }

    /// Returns the evidence for one of `tested` parts that must all hold. The claim that all parts hold
    /// is as certain as the least certain part. A failure of one part occurs by chance more often the
    /// more parts there are, so its p-value is multiplied by their number (C. Bonferroni's inequality).
    pub(super) fn of_several(self, tested: usize) -> Self {
        let share = |p: f64| (p * tested as f64).min(1.0);
        Self { fails_above: share(self.fails_above), fails_below: share(self.fails_below), ..self }
    }

    /// Returns the evidence of `sample`. The true figures may differ from the measured ones as far as
    /// `limits` permits.
    pub(super) fn of(sample: &Sample, threshold: Threshold, limits: &Limits) -> Self {
        let above = |limit| (2.0 * limits.above(limit, |at| sample.tail_above(at))).min(1.0);
        let below = |limit| (2.0 * limits.below(limit, |at| sample.tail_below(at))).min(1.0);
        match threshold {
            Threshold::Above(limit) => {
                Self { holds: above(limit), fails_below: below(limit), fails_above: 1.0 }
            }
            Threshold::Below(limit) => {
                Self { holds: below(limit), fails_above: above(limit), fails_below: 1.0 }
            }
            // Two one-sided tests: the figure must be surely above the lower limit and surely below the
            // upper limit (D. Schuirmann, J. Pharmacokinetics and Biopharmaceutics 15, 1987).
            Threshold::Within([low, high]) => Self {
                holds: above(low).max(below(high)),
                fails_above: above(high),
                fails_below: below(low),
            },
        }
    }

    /// Returns the smallest of the three p-values.
    pub(super) fn p(&self) -> f64 {
        self.holds.min(self.fails_above).min(self.fails_below)
    }

    pub(super) fn verdict(&self, level: f64) -> Verdict {
        if self.holds <= level {
            Verdict::Holds
        } else if self.fails_above.min(self.fails_below) <= level {
            Verdict::DoesNotHold
        } else {
            Verdict::Undecided
        }
    }
}
