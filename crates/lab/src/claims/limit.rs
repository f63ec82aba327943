//! Whether a side was driven to its limit: a server that answered all that it was offered may have
//! been able to answer more, so that its reply rate says how much was asked, not how much it can do.

use super::{Verdict, points};
use crate::{
    experiment::{Claim, RATE, Side, Threshold},
    result::Outcome,
    stats::Compare,
};

/// The metric that stops at what is offered.
const THROUGHPUT: &str = "throughput_rps";
/// Who answers this share of the highest rate offered has answered all of it: arrivals of a short
/// window differ from their mean by as much.
const ALL: f64 = 0.98;

/// Why data that speak for or against the claim do not decide it: the side that might change the
/// verdict by being larger was never driven to its limit. Nothing when they do.
pub(super) fn undriven(
    outcome: &Outcome,
    claim: &Claim,
    variant: &str,
    verdict: Verdict,
) -> Option<String> {
    if claim.compare != Compare::Ratio || claim.metric != THROUGHPUT {
        return None;
    }
    let side = match (claim.holds, verdict) {
        (Threshold::Above(_), Verdict::DoesNotHold) | (Threshold::Below(_), Verdict::Holds) => {
            &claim.a
        }
        (Threshold::Below(_), Verdict::DoesNotHold) | (Threshold::Above(_), Verdict::Holds) => {
            claim.b.as_ref()?
        }
        (_, Verdict::Undecided) => return None,
    };
    if side.metric.as_ref().is_some_and(|metric| metric != THROUGHPUT) {
        return None;
    }
    let name = side.variant.as_deref().unwrap_or(variant);
    answered_all(outcome, side, name)
        .then(|| format!("{name} answered all that it was offered, so its limit is not known"))
}

/// Whether every run of the side at its highest rate answered what it was offered.
fn answered_all(outcome: &Outcome, side: &Side, variant: &str) -> bool {
    let offered = |point: &crate::plan::Point| point.get(RATE).and_then(|rate| rate.number());
    let points = points(outcome, side);
    let highest = points.iter().filter_map(offered).max_by(f64::total_cmp);
    let Some(highest) = highest else { return false };
    let mut answered = outcome
        .runs
        .iter()
        .filter(|run| {
            run.cell.variant == variant
                && points.contains(&run.cell.point)
                && offered(&run.cell.point) == Some(highest)
        })
        .filter_map(|run| run.metric(THROUGHPUT))
        .peekable();
    answered.peek().is_some() && answered.all(|rps| rps >= ALL * highest)
}
