//! Whether a figure says what the server does, or where it was kept.
//!
//! A server that answered all it was offered may have been able to answer more: its reply rate says how
//! much was asked. A server without idle CPU costs all of its CPU, divided by what it answers: a
//! mechanism that looks for work for as long as it may costs at most that, so that its cost per request
//! is no less than what was measured, at any rate that it can still answer.

use super::{
    Bound,
    decide::Evidence,
    sides::{Arm, Sides},
};
use crate::{
    experiment::{Experiment, Threshold, Value},
    result::{Outcome, Run},
    statistics::{Compare, median},
};

/// The metric that stops at what is offered.
const THROUGHPUT: &str = "throughput_rps";
/// Who answers this share of what was offered has answered all of it.
const ALL: f64 = 0.98;
/// The generator's flag for requests that come at once.
const BURST: &str = "burst";

/// The metric that stops at the CPU's time.
pub(crate) const COST: &str = "server_cpu_us_per_request";
/// The metric that says how much of the CPU's time was used or waited for.
pub(crate) const BUSY: &str = "server_cpu_busy_share";
/// From here on a server has no idle CPU: what is left is the start and the end of a window.
pub(crate) const SATURATED: f64 = 0.9;

/// What keeps a claim's sides from being read as they stand.
#[derive(Debug, Default)]
pub(super) struct Limits {
    /// That a larger side a is possible, with the reason.
    a_larger: Option<String>,
    /// That a larger side b is possible.
    b_larger: Option<String>,
    cost: bool,
}

/// Looks for them.
pub(super) fn of(outcome: &Outcome, sides: &Sides<'_>) -> Limits {
    let limited = |arm: &Arm<'_>| {
        let name = arm.variant;
        match arm.metric {
            THROUGHPUT if arm.side.minus.is_none() && answered_all(outcome, arm) => {
                Some(format!("{name} answered all that it was offered, so its limit is not known"))
            }
            COST if is_saturated(arm.read_runs(outcome)) => {
                Some(format!("{name} had no idle CPU there, so that its cost is a bound"))
            }
            _ => None,
        }
    };
    // A reply rate by itself, or a difference of two, is judged as it stands only as a ratio is not.
    let is_ratio = sides.claim.compare == Compare::Ratio;
    let wanted = |arm: &&Arm<'_>| is_ratio || arm.metric == COST;
    Limits {
        a_larger: Some(&sides.a).filter(wanted).and_then(limited),
        b_larger: sides.b.as_ref().filter(wanted).and_then(limited),
        cost: sides.a.metric == COST,
    }
}

impl Limits {
    /// What the figure then is.
    pub(super) fn bound(&self) -> Option<Bound> {
        match (&self.a_larger, &self.b_larger) {
            (Some(_), None) if self.cost => Some(Bound::AtLeast),
            (None, Some(_)) if self.cost => Some(Bound::AtMost),
            _ => None,
        }
    }

    /// Takes away what the figures cannot say: that the comparison lies *below* something, when side a
    /// may be larger, and that it lies *above*, when side b may be.
    pub(super) fn apply(&self, threshold: Threshold, evidence: &mut Evidence) {
        let holds_by_above = matches!(threshold, Threshold::Above(_) | Threshold::Within(_));
        let holds_by_below = matches!(threshold, Threshold::Below(_) | Threshold::Within(_));
        if self.a_larger.is_some() {
            evidence.fails_below = 1.0;
            if holds_by_below {
                evidence.holds = 1.0;
            }
        }
        if self.b_larger.is_some() {
            evidence.fails_above = 1.0;
            if holds_by_above {
                evidence.holds = 1.0;
            }
        }
    }

    /// In words, what by itself keeps `evidence` from deciding.
    pub(super) fn note(
        &self,
        threshold: Threshold,
        evidence: Evidence,
        level: f64,
    ) -> Option<String> {
        let of_a = Self { a_larger: self.a_larger.clone(), ..Self::default() };
        let of_b = Self { b_larger: self.b_larger.clone(), ..Self::default() };
        let keeps = |limits: &Self| {
            let mut left = evidence;
            limits.apply(threshold, &mut left);
            !left.verdict(level).is_decided()
        };
        let reasons: Vec<String> = [of_a, of_b]
            .into_iter()
            .filter(keeps)
            .filter_map(|limits| limits.a_larger.or(limits.b_larger))
            .collect();
        (!reasons.is_empty()).then(|| reasons.join("; "))
    }
}

/// Whether the side answered what it was offered at its highest rate, in half of its runs at least: one in
/// which it did not may have been disturbed.
fn answered_all(outcome: &Outcome, arm: &Arm<'_>) -> bool {
    let offered = |run: &Run| run.metric("offered_rps").or_else(|| run.offered_rps());
    // The rate that was meant: what was drawn differs a little from block to block.
    let meant = |run: &Run| run.offered_rps().or_else(|| offered(run)).unwrap_or(0.0);
    let highest = arm.runs(outcome).map(meant).fold(0.0, f64::max);
    let answered: Vec<bool> = arm
        .runs(outcome)
        .filter(|run| meant(run) >= 0.95 * highest)
        .filter_map(|run| {
            // The last burst of a window may be answered after its end.
            let replied = run.metric(THROUGHPUT)? + burst(outcome, run) / run.window_s;
            Some(replied >= ALL * offered(run)?)
        })
        .collect();
    let all = answered.iter().filter(|&&all| all).count();
    !answered.is_empty() && 2 * all >= answered.len()
}

/// How many requests came at once, where they came in bursts.
fn burst(outcome: &Outcome, run: &Run) -> f64 {
    let Experiment { axis, load, .. } = &outcome.experiment;
    let axis = axis.iter().find(|axis| axis.load_flag.as_deref() == Some(BURST));
    let burst = axis.map_or_else(|| load.get(BURST), |axis| run.cell.point.get(&axis.name));
    burst.and_then(Value::number).unwrap_or(0.0)
}

/// Whether the server had no idle CPU in these runs.
pub(crate) fn is_saturated<'a>(runs: impl Iterator<Item = &'a Run>) -> bool {
    let busy: Vec<f64> = runs.filter_map(|run| run.metric(BUSY)).collect();
    median(&busy).is_some_and(|busy| busy >= SATURATED)
}
