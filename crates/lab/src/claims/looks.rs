//! The looks at which a run is judged, and the level that decides at each look.

use crate::{result::Outcome, statistics::sequential};

/// The looks of a run so far; the run is judged at the last of them.
pub(super) struct Plan {
    looks: Vec<usize>,
    blocks: usize,
    is_last: bool,
    /// The level that decides at the last look; `None` if there are too few blocks.
    pub(super) level: Option<f64>,
}

impl Plan {
    pub(super) fn of(outcome: &Outcome) -> Self {
        let made = outcome.blocks() as usize;
        let planned = outcome.planned_blocks() as usize;
        let shown: Vec<usize> = outcome.looks.iter().map(|look| look.blocks as usize).collect();
        let looks = sequential::made(planned, &shown, made);
        let (blocks, is_last) = (planned.max(made), outcome.is_at_its_end());
        let level = sequential::level_of_last(&looks, blocks, is_last);
        Self { looks, blocks, is_last, level }
    }

    /// Returns the level that would decide with `blocks` blocks: at an interim look of this plan, or at
    /// the end of a plan with that many blocks. Returns `None` if this plan has no look at `blocks`.
    pub(super) fn level_with(&self, blocks: usize) -> Option<f64> {
        if self.is_last || blocks > self.blocks {
            return sequential::level_of_last(&sequential::planned(blocks), blocks, true);
        }
        let planned = sequential::planned(self.blocks);
        if !planned.contains(&blocks) {
            return None;
        }
        let shown: Vec<usize> = self.looks.iter().copied().filter(|&look| look < blocks).collect();
        let looks = sequential::made(self.blocks, &shown, blocks);
        sequential::level_of_last(&looks, self.blocks, blocks == self.blocks)
    }

    /// Converts a p-value of the last look to the p-value of the whole plan.
    pub(super) fn overall(&self, p: f64) -> f64 {
        sequential::overall(&self.looks, self.blocks, self.is_last, p).max(f64::MIN_POSITIVE)
    }
}
