//! Tests whether a figure shows the server's own limit, or a limit that the experiment or the CPU
//! imposed.
//!
//! A server that answered all requests may have been able to answer more: its reply rate then shows only
//! how many were sent. The best of several rates is then a step of the experiment's ladder, the same for
//! every server whose limit lies between this step and the next one.
//!
//! The cost of a server without idle CPU is all of its CPU time, divided by its replies. The measured
//! cost of a mechanism that looks for events for as long as it has CPU time cannot exceed this value, at
//! any rate that it can still answer. Therefore the measured cost is only a lower bound of its cost per
//! request.

use super::sides::{Arm, MOST_LOST, Sides};
use crate::{
    experiment::{Experiment, RATE, SESSION, Threshold, Value},
    format::number,
    metric::Metric,
    plan::Point,
    result::{Outcome, Run},
    statistics::{Compare, median},
    verdict::Bound,
};
use std::collections::BTreeSet;

/// The share of the requests that were answered, within the window or after it.
const COMPLETED: &str = Metric::CompletedShare.name();
/// The metric that cannot exceed the offered rate.
pub(super) const THROUGHPUT: &str = Metric::Throughput.name();
/// A server that answers this share of the offered requests counts as answering all of them.
const ALL: f64 = 0.98;
/// Rates that differ by less than this count as one rate, unless the claim names one of them.
const SAME: f64 = 1.01;
/// The rate that was really offered.
const OFFERED: &str = Metric::Offered.name();
/// The load generator's flag for requests that arrive together.
const BURST: &str = "burst";

/// The metric that cannot exceed the CPU time.
pub(crate) const COST: &str = Metric::ServerCpu.name();
/// The metric for the share of the CPU's time that was used or waited for.
pub(crate) const BUSY: &str = Metric::ServerCpuBusy.name();
/// The share from which a server counts as having no idle CPU: the rest is the start and the end of a
/// window.
pub(crate) const SATURATED: f64 = 0.9;

/// The share of busy time below which a server is far from its limit.
const IDLE: f64 = 0.5;

/// The factor by which the true figure of a side may be larger than the measured one.
#[derive(Clone, Debug)]
struct Headroom {
    factor: f64,
    reason: String,
}

/// The reasons why the true figures of a claim's sides may be larger than the measured ones.
#[derive(Debug, Default)]
pub(super) struct Limits {
    a_larger: Option<Headroom>,
    b_larger: Option<Headroom>,
}

/// Returns the limits of both sides.
pub(super) fn of(outcome: &Outcome, sides: &Sides<'_>) -> Limits {
    let limited = |arm: &Arm<'_>| match arm.metric {
        THROUGHPUT if arm.side.minus.is_none() => reserve(outcome, arm),
        COST => costs_more(arm, arm.variant),
        _ => None,
    };
    // The cost that is subtracted may be larger, and the rest of the side smaller: for a ratio or a
    // difference, this has the same effect as a larger figure of the other side.
    let taken_off = |arm: &Arm<'_>| match (arm.metric, &arm.side.minus) {
        (COST, Some(minus)) => costs_more(arm, minus),
        _ => None,
    };
    // A reply rate alone, or a difference of two, is judged as measured; only a ratio is not.
    let is_ratio = sides.claim.compare == Compare::Ratio;
    let wanted = |arm: &&Arm<'_>| is_ratio || arm.metric == COST;
    let a = Some(&sides.a).filter(wanted);
    let b = sides.b.as_ref().filter(wanted);
    Limits {
        a_larger: a.and_then(limited).or_else(|| b.and_then(taken_off)),
        b_larger: b.and_then(limited).or_else(|| a.and_then(taken_off)),
    }
}

/// Returns an unlimited headroom if `variant` had no idle CPU at the points where the side is read.
fn costs_more(arm: &Arm<'_>, variant: &str) -> Option<Headroom> {
    is_saturated(arm.read_runs_of(variant)).then(|| Headroom {
        factor: f64::INFINITY,
        reason: format!(
            "{variant} had no idle CPU time at this point, so its cost is only a bound"
        ),
    })
}

impl Limits {
    /// Returns whether the measured figure is a lower or an upper bound of the true one.
    pub(super) fn bound(&self) -> Option<Bound> {
        // Between two steps of a ladder the figure is not a bound: it can be larger only by the step.
        let is_endless = |side: &Headroom| side.factor.is_infinite();
        match (&self.a_larger, &self.b_larger) {
            (Some(a), None) if is_endless(a) => Some(Bound::AtLeast),
            (None, Some(b)) if is_endless(b) => Some(Bound::AtMost),
            _ => None,
        }
    }

    /// Returns whether both measured figures are the true ones.
    pub(super) fn are_none(&self) -> bool {
        self.a_larger.is_none() && self.b_larger.is_none()
    }

    /// Returns the p-value for a true figure above `limit`, for any possible figure of side b.
    /// `tail_above` returns the p-value for the measured figures.
    pub(super) fn above(&self, limit: f64, tail_above: impl Fn(f64) -> f64) -> f64 {
        self.b_larger
            .as_ref()
            .map_or_else(|| tail_above(limit), |b| b.tail(limit * b.factor, &tail_above))
    }

    /// Returns the p-value for a true figure below `limit`, for any possible figure of side a.
    pub(super) fn below(&self, limit: f64, tail_below: impl Fn(f64) -> f64) -> f64 {
        self.a_larger
            .as_ref()
            .map_or_else(|| tail_below(limit), |a| a.tail(limit / a.factor, &tail_below))
    }

    /// Returns whether the claim would be open even if the measured figure were known exactly.
    pub(super) fn leave_open(&self, threshold: Threshold, read: f64) -> bool {
        let end = |side: &Option<Headroom>, endless: f64, of: fn(f64, f64) -> f64| match side {
            None => read,
            Some(side) if side.factor.is_finite() => of(read, side.factor),
            Some(_) => endless,
        };
        let least = end(&self.b_larger, f64::NEG_INFINITY, |read, factor| read / factor);
        let most = end(&self.a_larger, f64::INFINITY, |read, factor| read * factor);
        let is_surely_out = match threshold {
            Threshold::Above(limit) => most <= limit,
            Threshold::Below(limit) => least >= limit,
            Threshold::Within([low, high]) => most < low || least > high,
        };
        let is_surely_in = threshold.has(least) && threshold.has(most);
        !is_surely_out && !is_surely_in
    }

    /// Returns the limits that alone keep a claim from being decided, in words; `decides` tests one of
    /// them.
    pub(super) fn note(&self, decides: impl Fn(&Self) -> bool) -> Option<String> {
        let of_a = Self { a_larger: self.a_larger.clone(), ..Self::default() };
        let of_b = Self { b_larger: self.b_larger.clone(), ..Self::default() };
        let mut reasons: Vec<String> = [of_a, of_b]
            .into_iter()
            .filter(|limits| !decides(limits))
            .filter_map(|limits| Some(limits.a_larger.or(limits.b_larger)?.reason))
            .collect();
        // If one variant is read at two points, both have the same reason.
        reasons.dedup();
        (!reasons.is_empty()).then(|| reasons.join("; "))
    }
}

impl Headroom {
    fn tail(&self, limit: f64, tail: impl Fn(f64) -> f64) -> f64 {
        if self.factor.is_finite() { tail(limit) } else { 1.0 }
    }
}

/// Returns how much more the side may be able to answer than was measured.
fn reserve(outcome: &Outcome, arm: &Arm<'_>) -> Option<Headroom> {
    if !arm.side.over.iter().any(|axis| axis == RATE) {
        return (answered(outcome, arm, |_| true)? >= ALL).then(|| endless(arm));
    }
    // If a side also takes the best over other axes, each of their values has its own limit, and the
    // highest one counts.
    let lines = arm.lines();
    let found = arm.read_points().filter_map(|point| {
        let read = arm.mean_at(point)?;
        let most = lines.iter().filter_map(|line| {
            let best = if line.points.contains(point) { point } else { line.best()? };
            most_of(outcome, line, best)
        });
        let Most { rps, reason } = most.max_by(|a, b| a.rps.total_cmp(&b.rps))?;
        Some(Headroom { factor: (rps / read).max(1.0), reason })
    });
    found.max_by(|a, b| a.factor.total_cmp(&b.factor))
}

/// The highest rate that a server may be able to answer, in replies per second, and the reason why it is
/// not known exactly.
struct Most {
    rps: f64,
    reason: String,
}

fn endless(arm: &Arm<'_>) -> Headroom {
    let reason = format!("{} answered all offered requests, so its limit is unknown", arm.variant);
    Headroom { factor: f64::INFINITY, reason }
}

fn lost_above(arm: &Arm<'_>, rate: f64) -> String {
    format!(
        "too few runs of {} at {} a second are valid to show that it did not answer all requests: its limit is unknown",
        arm.variant,
        number(rate)
    )
}

/// Returns the highest possible best rate of an arm over several rates, read at `point`. A server never
/// answers more than it is offered, and a server that did not answer the whole of a rate has its limit
/// below that rate. So the best rate lies between the measured value and the lowest such rate, and
/// exceeds the reply rate of a lower step by at most one step.
fn most_of(outcome: &Outcome, arm: &Arm<'_>, point: &Point) -> Option<Most> {
    let name = arm.variant;
    let here = arm.runs().filter(|run| run.cell.point == *point).map(meant);
    let best = here.max_by(f64::total_cmp)?;
    let share_of = |rate: f64| answered(outcome, arm, |run| is_at(rate, run));
    let share = share_of(best)?;
    // If the server did not answer all requests of a rate that is below its reply rate here, the runs at
    // that rate were disturbed. Such a rate shows nothing about the limit.
    let read = arm.mean_at(point)?.min(best);
    let above: Vec<f64> = rates(arm).into_iter().filter(|&rate| rate >= read).collect();
    let is_too_high = |rate: f64| share_of(rate).is_some_and(|share| share < ALL);
    let is_known = |rate: f64| is_known(arm, rate);
    let Some(&too_high) = above.iter().find(|&&rate| is_too_high(rate) && is_known(rate)) else {
        let lost = above.into_iter().find(|&rate| !is_known(rate));
        let reason = lost.map_or_else(|| endless(arm).reason, |rate| lost_above(arm, rate));
        return Some(Most { rps: f64::INFINITY, reason });
    };
    let reason = if share < ALL {
        format!(
            "{name} had its best reply rate at {} offered requests a second and did not answer all of them; at a lower rate its reply rate may be higher",
            number(best)
        )
    } else {
        format!(
            "{name} answered all requests at {} a second and not all at {}: its limit is between these rates",
            number(best),
            number(too_high)
        )
    };
    let ladder = rates(arm);
    // Between two rates: each additional request per second adds at most one reply per second.
    let between =
        ladder.windows(2).filter(|step| step[1] > read && step[0] < too_high).map(|step| {
            // If the server did not answer all requests at `step[0]`, these runs were disturbed (see
            // above): ignore the shortfall.
            let lacks = share_of(step[0]).filter(|&share| share >= ALL).map(|share| 1.0 - share);
            step[1] - lacks.map_or(0.0, |lacks| lacks.max(0.0) * step[0])
        });
    // Below the lowest rate the server may have answered all requests.
    let lowest = ladder.first().copied().unwrap_or(read);
    Some(Most { rps: between.fold(read.max(lowest), f64::max).min(too_high), reason })
}

/// Returns the intended rate; the offered rate differs slightly from block to block.
fn meant(run: &Run) -> f64 {
    run.offered_rps().or_else(|| run.metric(OFFERED)).unwrap_or(0.0)
}

fn is_at(rate: f64, run: &Run) -> bool {
    match run.offered_rps() {
        Some(offered) => offered == rate,
        None => (rate / SAME..=rate * SAME).contains(&meant(run)),
    }
}

/// Returns whether enough blocks have valid runs at this rate. Of many blocks only one might be valid,
/// and that one may be disturbed.
fn is_known(arm: &Arm<'_>, rate: f64) -> bool {
    let blocks = |counts: bool| -> BTreeSet<u32> {
        let here = arm.all_runs().filter(|run| is_at(rate, run));
        here.filter(|run| !counts || run.metric(arm.metric).is_some())
            .map(|run| run.block)
            .collect()
    };
    let tried = blocks(false).len() as f64;
    blocks(true).len() as f64 >= (1.0 - MOST_LOST) * tried
}

/// Returns the rates that were offered to the arm in ascending order, whether the runs are valid or not.
fn rates(arm: &Arm<'_>) -> Vec<f64> {
    let mut rates: Vec<f64> = arm.all_runs().map(meant).collect();
    rates.sort_by(f64::total_cmp);
    rates.dedup();
    rates
}

/// Returns the share of the offered requests that the side answered: the median over these runs, because
/// a run with fewer replies may have been disturbed.
fn answered(outcome: &Outcome, arm: &Arm<'_>, these: impl Fn(&Run) -> bool) -> Option<f64> {
    answered_of(outcome, arm.runs().filter(|run| these(run)))
}

/// Returns whether the server is known to have left requests unanswered in these runs.
pub(super) fn is_beyond_limit<'a>(outcome: &Outcome, runs: impl Iterator<Item = &'a Run>) -> bool {
    answered_of(outcome, runs).is_some_and(|share| share < ALL)
}

fn answered_of<'a>(outcome: &Outcome, runs: impl Iterator<Item = &'a Run>) -> Option<f64> {
    let has_sessions = outcome.experiment.load.contains_key(SESSION);
    let shares: Vec<f64> = runs
        .filter_map(|run| {
            // A slow server is offered less where a client waits for a reply before it sends its next
            // request. The intended rate was not reached there.
            let (named, really) = (run.offered_rps(), run.metric(OFFERED));
            let offered = if has_sessions { named.or(really) } else { really.or(named) }?;
            // The last burst of a window may be answered after its end.
            let replied = run.metric(THROUGHPUT)? + burst(outcome, run) / run.window_s;
            // A server that answers all requests a little later, with half of its CPU idle, answers all.
            // Near its limit it catches up when no more requests arrive, or when dropped segments are sent
            // again.
            let is_idle = run.metric(BUSY).is_some_and(|busy| busy < IDLE);
            let later = run.metric(COMPLETED).filter(|_| is_idle).unwrap_or(0.0);
            Some((replied / offered).max(later))
        })
        .collect();
    median(&shares)
}

/// Returns the number of requests in a burst, or 0 if requests do not come in bursts.
fn burst(outcome: &Outcome, run: &Run) -> f64 {
    let Experiment { axis, load, .. } = &outcome.experiment;
    let axis = axis.iter().find(|axis| axis.load_flag.as_deref() == Some(BURST));
    let burst = axis.map_or_else(|| load.get(BURST), |axis| run.cell.point.get(&axis.name));
    burst.and_then(Value::number).unwrap_or(0.0)
}

/// Returns whether the server had no idle CPU in these runs.
pub(crate) fn is_saturated<'a>(runs: impl Iterator<Item = &'a Run>) -> bool {
    let busy: Vec<f64> = runs.filter_map(|run| run.metric(BUSY)).collect();
    median(&busy).is_some_and(|busy| busy >= SATURATED)
}
