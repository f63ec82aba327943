//! Whether a server that was offered more than it can answer was steady while it was measured.
//!
//! A queue that still fills, or a server that collapses late, has a window whose first half is not like its
//! second: what was read is then the figure of neither. A pilot finds out how long a load must last before
//! ([`crate::steady`]), but the quick form has no time for one, and the full form warms up for no longer than it
//! may. So the measured windows say it themselves, whichever form they are of:
//!
//! - Of each block, the replies in the second half of the window are divided by those in the first. The blocks
//!   together say, as for any other figure, whether that ratio is *surely* more than a twentieth from 1. What few
//!   blocks or noise leave open is no drift: this finds what is not steady, it does not prove what is.
//! - Then the server's steady figure may lie anywhere from what was read to that figure times the ratio. The claim
//!   is decided where it is so at both ends, and at all four where both sides drift; else it is *undecided*. Its
//!   note says so either way.
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

/// From one half of a window to the other a steady server's replies differ by less.
const STEADY: f64 = 0.05;
/// The fewest intervals of a window that has halves.
const FEWEST: usize = 4;
/// The least that is left of a figure: a server that answers nothing any more has no ratio.
const LEAST: f64 = 1e-3;

/// How the sides of a claim drift.
#[derive(Debug, Default)]
pub(super) struct Drift {
    /// The range that the claim's own figure may have instead of the measured value: factors if the claim
    /// is a ratio, otherwise amounts to add.
    ends: Vec<f64>,
    is_ratio: bool,
    notes: Vec<String>,
}

/// How one side drifts: its mean as it was read, and where it may go.
#[derive(Clone, Copy)]
struct Change {
    read: f64,
    end: f64,
}

impl Drift {
    /// As seen with an error of `level`.
    pub(super) fn of(outcome: &Outcome, sides: &Sides<'_>, level: f64) -> Self {
        let is_ratio = sides.claim.compare == Compare::Ratio;
        let mut notes = Vec::new();
        let mut change = |arm: &Arm<'_>| {
            let (change, note) = change(outcome, arm, level)?;
            // One variant at one point may be both sides' own.
            notes.extend((!notes.contains(&note)).then_some(note));
            Some(change)
        };
        let (a, b) = (change(&sides.a), sides.b.as_ref().and_then(&mut change));
        if a.is_none() && b.is_none() {
            return Self::default();
        }
        // What becomes of the figure when a side goes to its end: a ratio's factor, or a difference.
        let to_end = |side: Option<Change>, steady: f64| {
            let moved = side.map(|it| if is_ratio { it.end / it.read } else { it.end - it.read });
            moved.filter(|moved| moved.is_finite()).unwrap_or(steady)
        };
        let steady = if is_ratio { 1.0 } else { 0.0 };
        let (a, b) = (to_end(a, steady), to_end(b, steady));
        let both = |a: f64, b: f64| if is_ratio { a / b } else { a - b };
        Self { ends: vec![both(a, steady), both(steady, b), both(a, b)], is_ratio, notes }
    }

    /// What the blocks say wherever the steady figure may lie: `evidence` says it of a threshold.
    pub(super) fn evidence(
        &self,
        threshold: Threshold,
        evidence: impl Fn(Threshold) -> Evidence,
    ) -> Evidence {
        // A figure that is larger stands to its threshold as it does to a smaller one.
        let back = |limit: f64, end: f64| if self.is_ratio { limit / end } else { limit - end };
        let seen_from = |end: f64| match threshold {
            Threshold::Above(limit) => Threshold::Above(back(limit, end)),
            Threshold::Below(limit) => Threshold::Below(back(limit, end)),
            Threshold::Within(limits) => Threshold::Within(limits.map(|limit| back(limit, end))),
        };
        let ends = self.ends.iter().map(|&end| evidence(seen_from(end)));
        ends.fold(evidence(threshold), Evidence::and)
    }

    /// Whether the drift alone leaves the claim open: if the figure were known exactly, it would hold at one end and
    /// not at another.
    pub(super) fn leaves_open(&self, threshold: Threshold, read: f64) -> bool {
        let at = |end: f64| if self.is_ratio { read * end } else { read + end };
        self.ends.iter().any(|&end| threshold.has(at(end)) != threshold.has(read))
    }

    /// In words; none where all was steady.
    pub(super) fn note(&self, keeps_open: bool) -> Option<String> {
        let then = if keeps_open {
            "if this continues, the result may cross the threshold"
        } else {
            "if this continued by as much again, the result would not cross the threshold"
        };
        (!self.notes.is_empty()).then(|| format!("{}; {then}", self.notes.join("; ")))
    }
}

/// How the side drifts where it is read, if it does, and that in words.
fn change(outcome: &Outcome, arm: &Arm<'_>, level: f64) -> Option<(Change, String)> {
    let is_share_lost = arm.metric == Metric::ErrorShare.name();
    let is_of_replies =
        is_share_lost || [THROUGHPUT, Metric::CompletedShare.name()].contains(&arm.metric);
    if !is_of_replies || arm.side.minus.is_some() || !outcome.phase_rps.is_empty() {
        return None;
    }
    let runs: Vec<&Run> = arm.read_runs_of(outcome, arm.variant).collect();
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

/// The replies in the first and in the second half of the measured window.
pub(super) fn halves(raw: &Raw) -> Option<(f64, f64)> {
    let replies = raw.measured_replies()?;
    let half = replies.len() / 2;
    // The middle one of an odd number belongs to neither.
    let of = |part: &[f64]| part.iter().sum::<f64>();
    (replies.len() >= FEWEST).then(|| (of(&replies[..half]), of(&replies[replies.len() - half..])))
}
