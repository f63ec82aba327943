//! Judges the papers' claims.
//!
//! A claim compares two sides of the experiment inside each block (`sides`) and holds what the blocks
//! say (`crate::statistics`) against a threshold (`decide`). What does not decide it: fewer blocks
//! than [`crate::statistics::MIN_BLOCKS`], an interval that lies across the threshold, a best reply
//! rate that may be better between two of the rates that were offered, a cost where the server had no
//! idle CPU (`limit`), a server that was not steady beyond its limit (`drift`), a best rate that is the
//! generator's as well, an arm that is not there, and too many blocks that lost one (`sides`).

mod decide;
mod drift;
mod limit;
mod looks;
mod outlook;
mod part;
mod sides;

pub(crate) use limit::{COST, is_saturated};
pub(crate) use sides::points;

use crate::{
    experiment::{Claim, Select, Threshold, Value},
    format, papers,
    result::{Look, Outcome},
    statistics::{ERROR, MIN_BLOCKS, holm, sequential},
    verdict::{ClaimOutcome, Part, Verdict},
};
use looks::Plan;
use part::Question;
use sides::Sides;
use std::collections::BTreeMap;

/// Judges every claim of the experiment.
pub fn judge(outcome: &Outcome) -> Vec<ClaimOutcome> {
    match spent_after(outcome) {
        Some(blocks) => judge_first(outcome, blocks),
        None => judge_all(outcome),
    }
}

/// After how many blocks an earlier part of this run had spent all of the error, since it was then to be
/// its end.
fn spent_after(outcome: &Outcome) -> Option<u32> {
    let now = outcome.blocks();
    // With fewer blocks nothing could be decided, and nothing was spent.
    let spent = |look: &&Look| look.is_last && (MIN_BLOCKS as u32..now).contains(&look.blocks);
    outcome.looks.iter().filter(spent).map(|look| look.blocks).min()
}

/// Judges by the first blocks alone. A user who sees the verdict and adds blocks to get a better one would
/// spend the error twice.
fn judge_first(outcome: &Outcome, blocks: u32) -> Vec<ClaimOutcome> {
    let mut first = outcome.clone();
    first.runs.retain(|run| run.block < blocks);
    let mut judged = judge_all(&first);
    let why = format!(
        "judged by the first {blocks} blocks: the time ended then, and a later judgement would exceed the allowed error"
    );
    for part in judged.iter_mut().flat_map(|claim| &mut claim.parts) {
        part.is_final = true;
        part.note = Some(part.note.take().map_or_else(|| why.clone(), |note| note + "; " + &why));
    }
    judged
}

fn judge_all(outcome: &Outcome) -> Vec<ClaimOutcome> {
    let experiment = &outcome.experiment;
    let mut judged: Vec<ClaimOutcome> =
        experiment.claim.iter().map(|claim| judge_one(outcome, claim)).collect();
    let mut papers: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for (index, claim) in experiment.claim.iter().enumerate() {
        if let (true, Some(paper)) = (claim.primary, claim.paper_key()) {
            papers.entry(paper).or_default().push(index);
        }
    }
    for indices in papers.into_values() {
        // What could not be tested took no part in the error.
        let tested: Vec<usize> = indices.into_iter().filter(|&i| judged[i].p.is_some()).collect();
        let p: Vec<f64> = tested.iter().filter_map(|&index| judged[index].p).collect();
        for (index, adjusted) in tested.into_iter().zip(holm::adjust(&p)) {
            judged[index].p_with_all = Some(adjusted);
        }
    }
    judged
}

/// Whether more blocks would change nothing: it is decided, so surely that `family` such claims may share one
/// error, or a limit or an absence keeps it from being so.
fn is_settled(claim: &ClaimOutcome, family: usize) -> bool {
    let settled = |part: &Part| part.verdict != Verdict::Seen && part.is_final;
    match claim.verdict {
        // The p-values of the paper's other claims are not known here. Bonferroni's correction does not
        // need them, and Holm's correction never needs more evidence than Bonferroni's.
        verdict if verdict.is_decided() => claim.p.is_none_or(|p| p * family as f64 <= ERROR),
        Verdict::Undecided => {
            claim.parts.iter().all(|part| part.verdict.is_decided() || settled(part))
        }
        Verdict::Seen => false,
        _ => true,
    }
}

/// Whether nothing is left that more blocks could decide: of the primary claims, or of all where none
/// is primary. Never between two planned looks: a run that is gone on from has all its blocks of before
/// from its first block on.
pub fn all_settled(outcome: &Outcome) -> bool {
    let looks = sequential::planned(outcome.planned_blocks() as usize);
    if !looks.contains(&(outcome.blocks() as usize)) {
        return false;
    }
    let claims = &outcome.experiment.claim;
    let any_primary = claims.iter().any(|claim| claim.primary);
    let judged = judge(outcome);
    let mut watched = claims.iter().zip(&judged).filter(|(claim, _)| claim.primary || !any_primary);
    watched.all(|(claim, judged)| is_settled(judged, family(claims, claim)))
}

/// How many primary claims share an error with this one: those of its paper, or those of this experiment, if it is
/// given as a file and has more.
fn family(claims: &[Claim], claim: &Claim) -> usize {
    let Some(paper) = claim.paper_key().filter(|_| claim.primary) else { return 1 };
    let here =
        claims.iter().filter(|other| other.primary && other.paper_key() == Some(paper)).count();
    here.max(papers::primary_claims_of(paper))
}

/// The verdict on a claim that needs all of `parts` to hold.
fn verdict_of_all(parts: &[Part]) -> Verdict {
    let any = |verdict: Verdict| parts.iter().any(|part| part.verdict == verdict);
    // An arm that is missing might have failed, and one that failed might be the exception.
    let worst = [Verdict::NotTestable, Verdict::DoesNotHold, Verdict::Undecided, Verdict::Seen];
    worst.into_iter().find(|&verdict| any(verdict)).unwrap_or(Verdict::Holds)
}

/// The part whose figure is shown: of those that made the verdict the one nearest to failing, or that fails by
/// most.
fn deciding_part(parts: &[Part], holds: Threshold, verdict: Verdict) -> Option<&Part> {
    let read = || parts.iter().filter(|part| part.estimate.is_some());
    let margin = |part: &&Part| part.estimate.as_ref().map_or(0.0, |read| holds.margin(read));
    let nearest = |a: &&Part, b: &&Part| margin(a).total_cmp(&margin(b));
    let of_verdict = read().filter(|part| part.verdict == verdict);
    of_verdict.min_by(nearest).or_else(|| read().min_by(nearest))
}

/// The claim at each of its operating points, with their names.
fn at_operating_points(outcome: &Outcome, claim: &Claim) -> Vec<(Option<String>, Claim)> {
    let values =
        claim.operating_points.as_ref().and_then(|axis| Some((axis, outcome.values(axis)?)));
    let Some((axis, values)) = values else { return vec![(None, claim.clone())] };
    let at = |value: &Value| {
        let mut claim = claim.clone();
        for side in std::iter::once(&mut claim.a).chain(&mut claim.b) {
            side.at.insert(axis.clone(), Select(value.clone()));
        }
        (Some(format!("{axis} {}", format::value(value))), claim)
    };
    values.iter().map(at).collect()
}

/// What several operating points come to: each counts, and where they disagree it depends on which is taken.
fn verdict_of_points(verdicts: &[Verdict]) -> Verdict {
    let any = |verdict: Verdict| verdicts.contains(&verdict);
    if any(Verdict::Holds) && any(Verdict::DoesNotHold) {
        return Verdict::Depends;
    }
    let worst = [Verdict::NotTestable, Verdict::Undecided, Verdict::Seen, Verdict::DoesNotHold];
    worst.into_iter().find(|&verdict| any(verdict)).unwrap_or(Verdict::Holds)
}

/// Judges one claim, which may be one that the experiment does not make itself, by the data of `outcome`.
pub(crate) fn judge_one(outcome: &Outcome, claim: &Claim) -> ClaimOutcome {
    let plan = Plan::of(outcome);
    let mut parts: Vec<Part> = Vec::new();
    let mut verdicts = Vec::new();
    for (point, claim) in at_operating_points(outcome, claim) {
        let part = |variant: &String| Part {
            operating_point: point.clone(),
            ..judge_part(outcome, &claim, variant, &plan)
        };
        let here: Vec<Part> = claim.each.iter().map(part).collect();
        verdicts.push(verdict_of_all(&here));
        parts.extend(here);
    }
    let verdict = verdict_of_points(&verdicts);
    let deciding = deciding_part(&parts, claim.holds, verdict);
    let estimate = deciding.and_then(|part| part.estimate.as_ref());
    // It holds if each part does, so the least sure part says how sure it is; it fails with one.
    let all: Option<Vec<f64>> = parts.iter().map(|part| part.p).collect();
    let failed = parts.iter().filter(|part| part.verdict == Verdict::DoesNotHold);
    let p = match verdict {
        Verdict::DoesNotHold => failed.filter_map(|part| part.p).min_by(f64::total_cmp),
        // Both verdicts are there as surely as the less sure of them.
        Verdict::Depends => parts.iter().filter_map(|part| part.p).max_by(f64::total_cmp),
        _ => all.and_then(|p| p.into_iter().max_by(f64::total_cmp)),
    };
    ClaimOutcome {
        id: claim.id.clone(),
        statement: claim.statement.clone(),
        verdict,
        value: estimate.map(|estimate| estimate.value),
        low: estimate.and_then(|estimate| estimate.low),
        high: estimate.and_then(|estimate| estimate.high),
        bound: deciding.and_then(|part| part.bound),
        paper: claim.paper_value,
        paper_says: claim.paper.clone(),
        threshold: claim.holds,
        primary: claim.primary,
        p,
        p_with_all: None,
        parts,
    }
}

/// Judges a claim for one variant: where it speaks of each of several points, at each, and the worst is
/// what it comes to.
fn judge_part(outcome: &Outcome, claim: &Claim, variant: &str, plan: &Plan) -> Part {
    let points = Sides::of(outcome, claim, variant).each_point();
    // One that fails is enough for the whole claim to fail: each has its share of the error for that.
    let tested = claim.each.len() * points.len();
    let mut judged: Vec<Part> = points
        .iter()
        .map(|sides| Question { outcome, claim, variant, sides, tested, plan }.part())
        .collect();
    let verdict = verdict_of_all(&judged);
    let p = |index: &usize| judged[*index].p.unwrap_or(1.0);
    let worst = (0..judged.len()).filter(|&index| judged[index].verdict == verdict);
    let worst = match verdict {
        Verdict::DoesNotHold => worst.min_by(|a, b| p(a).total_cmp(&p(b))),
        _ => worst.max_by(|a, b| p(a).total_cmp(&p(b))),
    };
    let worst = worst.expect("a claim speaks of one point at least");
    let mut part = judged.swap_remove(worst);
    if points.len() > 1 && matches!(verdict, Verdict::DoesNotHold | Verdict::Undecided) {
        let place = outcome.point_text(&points[worst].a.points[0]);
        part.note =
            Some(part.note.map_or(format!("at {place}"), |why| format!("at {place}: {why}")));
    }
    part
}

/// A p-value as people read it, against the error that is allowed.
pub fn p_text(p: f64) -> String {
    match p {
        p if p < 0.0001 => "< 0.0001".into(),
        p if p < ERROR / 5.0 => format!("{p:.4}"),
        p => format!("{p:.2}"),
    }
}

#[cfg(test)]
pub(crate) mod made;
#[cfg(test)]
mod table_tests;
#[cfg(test)]
mod tests;
