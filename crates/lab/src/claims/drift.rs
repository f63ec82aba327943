//! Tests whether an overloaded server was steady while it was measured.
//!
//! If a queue is still filling, or a server collapses late, the first half of a window differs from the
//! second, and the measured figure describes neither half. A pilot finds out beforehand how long a load
//! must last ([`crate::steady`]), but the quick form has no time for a pilot, and the warm-up of the
//! full form has an upper limit. Therefore the measured windows themselves are tested, in both forms:
//!
//! - For each block, the replies in the second half of the window are divided by those in the first
//!   half. The test over all blocks is the same as for any other figure: is this ratio *surely* more
//!   than a twentieth away from 1? If few blocks or noise leave that open, no drift is reported. The
//!   test finds servers that are not steady; it does not prove that a server is steady.
//! - If there is a drift, the server's steady figure may lie anywhere between the measured figure and
//!   that figure times the ratio. The claim is decided only if the verdict is the same at both ends, and
//!   at all four combinations if both sides drift; otherwise it is *undecided*. The note of the claim
//!   reports the drift in either case.
//!
//! The test applies to figures that count replies (`throughput_rps`, `completed_share`, `error_share`)
//! where the server did not answer all requests: below that load, the reply rate is only the rate at which
//! requests were sent. Phases are excluded, because they exist to show a change. The test does not detect a
//! drift of latencies: a queue may fill while the reply rate stays constant.

use super::{
    decide::Evidence,
    limit::{THROUGHPUT, is_beyond_limit},
    sides::{Arm, Sides},
};
use crate::{
    experiment::Threshold,
    measure::Raw,
    metric::Metric,
    result::{Outcome, Run},
    statistics::{self, Compare, MIN_BLOCKS, Sample},
};

/// The largest change of a steady server's replies from one half of a window to the other.
const STEADY: f64 = 0.05;
/// The smallest number of intervals with which a window can be divided into halves.
const FEWEST: usize = 4;
/// A lower bound of the ratio, because a server that no longer answers would have a ratio of 0.
const LEAST: f64 = 1e-3;

/// The drift of the sides of a claim.
#[derive(Debug, Default)]
pub(super) struct Drift {
    /// The range that the claim's own figure may have instead of the measured value: factors if the claim
    /// is a ratio, otherwise amounts to add.
    ends: Vec<f64>,
    is_ratio: bool,
    notes: Vec<String>,
}

/// The drift of one side: its mean as measured, and the value that it may drift to.
#[derive(Clone, Copy)]
struct Change {
    read: f64,
    end: f64,
}

impl Drift {
    /// Returns the drift of both sides, tested with an error of `level`.
    pub(super) fn of(outcome: &Outcome, sides: &Sides<'_>, level: f64) -> Self {
        let is_ratio = sides.claim.compare == Compare::Ratio;
        let mut notes = Vec::new();
        let mut change = |arm: &Arm<'_>| {
            let (change, note) = change(outcome, arm, level)?;
            // Both sides may use the same variant at the same point, which gives the same note.
            notes.extend((!notes.contains(&note)).then_some(note));
            Some(change)
        };
        let (a, b) = (change(&sides.a), sides.b.as_ref().and_then(&mut change));
        if a.is_none() && b.is_none() {
            return Self::default();
        }
        // The change of the claim's figure if a side goes to its end: a factor for a ratio, otherwise a
        // difference.
        let to_end = |side: Option<Change>, steady: f64| {
            let moved = side.map(|it| if is_ratio { it.end / it.read } else { it.end - it.read });
            moved.filter(|moved| moved.is_finite()).unwrap_or(steady)
        };
        let steady = if is_ratio { 1.0 } else { 0.0 };
        let (a, b) = (to_end(a, steady), to_end(b, steady));
        let both = |a: f64, b: f64| if is_ratio { a / b } else { a - b };
        Self { ends: vec![both(a, steady), both(steady, b), both(a, b)], is_ratio, notes }
    }

    /// Returns the weakest evidence over all values that the steady figure may have. `evidence` returns
    /// the evidence for a given threshold.
    pub(super) fn evidence(
        &self,
        threshold: Threshold,
        evidence: impl Fn(Threshold) -> Evidence,
    ) -> Evidence {
        // Instead of a larger figure, a threshold that is smaller by the same factor or amount is
        // tested.
        let back = |limit: f64, end: f64| if self.is_ratio { limit / end } else { limit - end };
        let seen_from = |end: f64| match threshold {
            Threshold::Above(limit) => Threshold::Above(back(limit, end)),
            Threshold::Below(limit) => Threshold::Below(back(limit, end)),
            Threshold::Within(limits) => Threshold::Within(limits.map(|limit| back(limit, end))),
        };
        let ends = self.ends.iter().map(|&end| evidence(seen_from(end)));
        ends.fold(evidence(threshold), Evidence::and)
    }

    /// Returns whether the drift alone leaves the claim open: with an exactly known figure, the claim
    /// would hold at one end and not at another.
    pub(super) fn leaves_open(&self, threshold: Threshold, read: f64) -> bool {
        let at = |end: f64| if self.is_ratio { read * end } else { read + end };
        self.ends.iter().any(|&end| threshold.has(at(end)) != threshold.has(read))
    }

    /// Returns the drift in words; `None` if all sides were steady.
    pub(super) fn note(&self, keeps_open: bool) -> Option<String> {
        let then = if keeps_open {
            "if this continues, the result may cross the threshold"
        } else {
            "if this continued by as much again, the result would not cross the threshold"
        };
        (!self.notes.is_empty()).then(|| format!("{}; {then}", self.notes.join("; ")))
    }
}

/// Returns the drift of the side where it is read, and its description. Returns `None` if there is no
/// drift.
fn change(outcome: &Outcome, arm: &Arm<'_>, level: f64) -> Option<(Change, String)> {
    let is_share_lost = arm.metric == Metric::ErrorShare.name();
    let is_of_replies =
        is_share_lost || [THROUGHPUT, Metric::CompletedShare.name()].contains(&arm.metric);
    if !is_of_replies || arm.side.minus.is_some() || !outcome.phase_rps.is_empty() {
        return None;
    }
    let runs: Vec<&Run> = arm.read_runs_of(arm.variant).collect();
    if !is_beyond_limit(outcome, runs.iter().copied()) {
        return None;
    }
    let halves = runs.iter().filter_map(|run| halves(&run.raw));
    let pairs = halves.map(|(first, second)| (Some(second), Some(first)));
    let sample = Sample::of(pairs, Compare::Ratio, true)?;
    let tails = sample.tail_below(1.0 - STEADY).min(sample.tail_above(1.0 + STEADY));
    if sample.blocks() < MIN_BLOCKS || 2.0 * tails > level {
        return None;
    }
    let ratio = sample.estimate().value.max(LEAST);
    let values: Vec<f64> = runs.iter().filter_map(|run| run.metric(arm.metric)).collect();
    let read = statistics::mean(&values)?;
    let end = if is_share_lost { 1.0 - (1.0 - read) * ratio } else { read * ratio };
    let percent = ((ratio - 1.0) * 100.0).abs();
    let more = if ratio < 1.0 { "fewer" } else { "more" };
    let note = format!(
        "{} was not steady at this point: the second half of a window had {percent:.0} % {more} replies than the first",
        arm.variant
    );
    Some((Change { read, end }, note))
}

/// Returns the number of replies in the first and in the second half of the measured window.
pub(super) fn halves(raw: &Raw) -> Option<(f64, f64)> {
    let replies = raw.measured_replies()?;
    let half = replies.len() / 2;
    // The middle interval of an odd number belongs to neither half.
    let of = |part: &[f64]| part.iter().sum::<f64>();
    (replies.len() >= FEWEST).then(|| (of(&replies[..half]), of(&replies[replies.len() - half..])))
}
