//! Judges the papers' claims.
//!
//! A claim compares two sides of the experiment inside each block (`sides`) and compares the result of all
//! blocks (`crate::statistics`) with a threshold (`decide`). A claim is not decided by: fewer blocks than
//! [`crate::statistics::MIN_BLOCKS`], an interval that contains the threshold, a best reply rate that may
//! be higher between two of the offered rates, a cost while the server had no idle CPU (`limit`), a server
//! that was not steady beyond its limit (`drift`), a best rate that is also the generator's limit, a
//! missing variant, or too many blocks in which one side is missing (`sides`).

mod decide;
mod drift;
mod limit;
mod looks;
mod outlook;
mod part;
mod sides;

pub(crate) use limit::{COST, is_saturated};
pub(crate) use sides::{has_rate, points, rate_of};

use crate::{
    experiment::{Claim, RATE, Select, Threshold, Value},
    format, papers,
    plan::Cell,
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

/// Returns the number of blocks after which an earlier part of this run had spent the whole error, because
/// it was meant to end there.
fn spent_after(outcome: &Outcome) -> Option<u32> {
    let now = outcome.blocks();
    // With fewer blocks no claim could be decided, and no error was spent.
    let spent = |look: &&Look| look.is_last && (MIN_BLOCKS as u32..now).contains(&look.blocks);
    outcome.looks.iter().filter(spent).map(|look| look.blocks).min()
}

/// Judges by the first blocks only. A user who sees the verdict and then adds blocks to get a better one
/// would spend the error twice.
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
        // Claims that could not be tested have no share of the error.
        let tested: Vec<usize> = indices.into_iter().filter(|&i| judged[i].p.is_some()).collect();
        let p: Vec<f64> = tested.iter().filter_map(|&index| judged[index].p).collect();
        for (index, adjusted) in tested.into_iter().zip(holm::adjust(&p)) {
            judged[index].p_with_all = Some(adjusted);
        }
    }
    judged
}

/// Whether more blocks would not change the verdict: it is decided with so little doubt that `family` such
/// claims may share one error, or a limit or a missing part prevents a decision.
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

/// Whether more blocks could decide no further claim: none of the primary claims, or none at all if no
/// claim is primary. Between two planned looks the answer is no: a resumed run already has all earlier
/// blocks when its first new block ends.
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

/// Returns how many primary claims share an error with this one: those of its paper, or those of this
/// experiment, if the experiment is a user's file and has more.
fn family(claims: &[Claim], claim: &Claim) -> usize {
    let Some(paper) = claim.paper_key().filter(|_| claim.primary) else { return 1 };
    let here =
        claims.iter().filter(|other| other.primary && other.paper_key() == Some(paper)).count();
    here.max(papers::primary_claims_of(paper))
}

/// Returns the verdict on a claim that requires all `parts` to hold.
fn verdict_of_all(parts: &[Part]) -> Verdict {
    let any = |verdict: Verdict| parts.iter().any(|part| part.verdict == verdict);
    // A missing part might have failed, and a failed part might be an exception.
    let worst = [Verdict::NotTestable, Verdict::DoesNotHold, Verdict::Undecided, Verdict::Seen];
    worst.into_iter().find(|&verdict| any(verdict)).unwrap_or(Verdict::Holds)
}

/// Returns the part whose figure is shown: among the parts with the deciding verdict, the one that is
/// nearest to failing or fails by most.
fn deciding_part(parts: &[Part], holds: Threshold, verdict: Verdict) -> Option<&Part> {
    let read = || parts.iter().filter(|part| part.estimate.is_some());
    let margin = |part: &&Part| part.estimate.as_ref().map_or(0.0, |read| holds.margin(read));
    let nearest = |a: &&Part, b: &&Part| margin(a).total_cmp(&margin(b));
    let of_verdict = read().filter(|part| part.verdict == verdict);
    of_verdict.min_by(nearest).or_else(|| read().min_by(nearest))
}

/// Returns the values of `axis` at which the claim is judged. The rates of a claim up to the limit end at the
/// lowest saturation of its variants; the lowest rate always counts.
pub(crate) fn operating_values<'a>(outcome: &'a Outcome, claim: &Claim, axis: &str) -> &'a [Value] {
    let values = outcome.values(axis).unwrap_or_default();
    if !claim.up_to_limit || axis != RATE {
        return values;
    }
    let of_claim = outcome.saturation.iter().filter(|it| claim.each.contains(&it.cell.variant));
    let limit_rps = of_claim.filter_map(|it| it.rps).fold(f64::INFINITY, f64::min);
    let is_beyond = |value: &Value| value.number().is_some_and(|rate| rate > limit_rps);
    let end = values.iter().position(is_beyond).unwrap_or(values.len());
    &values[..end.max(1).min(values.len())]
}

/// Returns the claim at each of its operating points, with their names: each value of its axis at each of its rates.
/// A claim without operating points has one point without a name.
pub(crate) fn at_operating_points(
    outcome: &Outcome,
    claim: &Claim,
) -> Vec<(Option<String>, Claim)> {
    let axis = claim.operating_points.as_ref();
    let values = axis.map_or(&[][..], |axis| operating_values(outcome, claim, axis));
    let rates = each_or_none(claim.operating_rates.iter().filter(|it| has_rate(outcome, it)));
    let at = |value: Option<&Value>, rate: Option<&Select>| {
        let mut claim = claim.clone();
        for side in claim.sides_mut() {
            if let Some((axis, value)) = axis.zip(value) {
                side.at.insert(axis.clone(), Select(value.clone()));
            }
            let multiple = side.at.get_mut(RATE).filter(|at| at.multiple().is_some());
            if let Some((at, rate)) = multiple.zip(rate) {
                at.clone_from(rate);
            }
        }
        let value = axis.zip(value).map(|(axis, value)| format!("{axis} {}", format::value(value)));
        let names: Vec<String> =
            value.into_iter().chain(rate.map(|rate| format!("rate {}", rate.0))).collect();
        ((!names.is_empty()).then(|| names.join(", ")), claim)
    };
    let mut points = Vec::new();
    for value in each_or_none(values.iter()) {
        points.extend(rates.iter().map(|&rate| at(value, rate)));
    }
    points
}

/// Whether a claim reads this cell.
pub(crate) fn is_read(outcome: &Outcome, cell: &Cell) -> bool {
    outcome.experiment.claim.iter().any(|claim| {
        at_operating_points(outcome, claim).into_iter().any(|(_, claim)| {
            claim.each.iter().any(|variant| Sides::of(outcome, &claim, variant).has(cell))
        })
    })
}

/// Returns each item, or one `None` if there are none.
fn each_or_none<T>(items: impl Iterator<Item = T>) -> Vec<Option<T>> {
    let items: Vec<Option<T>> = items.map(Some).collect();
    if items.is_empty() { vec![None] } else { items }
}

/// Combines the verdicts of several operating points: each point counts, and if they disagree the verdict
/// is *depends*.
fn verdict_of_points(verdicts: &[Verdict]) -> Verdict {
    let any = |verdict: Verdict| verdicts.contains(&verdict);
    if any(Verdict::Holds) && any(Verdict::DoesNotHold) {
        return Verdict::Depends;
    }
    let worst = [Verdict::NotTestable, Verdict::Undecided, Verdict::Seen, Verdict::DoesNotHold];
    worst.into_iter().find(|&verdict| any(verdict)).unwrap_or(Verdict::Holds)
}

/// Returns the p-value of the verdict on all `parts`. A claim holds if all parts hold, so its p-value is that of
/// the least certain part. One failed part is enough for it to fail; the p-value of a failed part is already
/// multiplied by the number of parts ([`decide::Evidence::of_several`]).
fn p_of_all(verdict: Verdict, parts: &[Part]) -> Option<f64> {
    if verdict == Verdict::DoesNotHold {
        let failed = parts.iter().filter(|part| part.verdict == Verdict::DoesNotHold);
        return failed.filter_map(|part| part.p).min_by(f64::total_cmp);
    }
    least_certain(parts.iter().map(|part| part.p))
}

/// Returns the p-value of the verdict on several operating points, each of which has a verdict and a p-value.
/// The verdict *depends* consists of two verdicts and is as certain as the less certain one: the claim holds at
/// one point, and it does not hold at another. Other points, at which it may be open, make neither less certain.
fn p_of_points(verdict: Verdict, points: &[(Verdict, Option<f64>)]) -> Option<f64> {
    // The most certain point is found among all points, so its p-value is multiplied by their number (C.
    // Bonferroni's inequality).
    let most_certain = |wanted: Verdict| {
        let of_verdict = points.iter().filter(|&&(verdict, _)| verdict == wanted);
        let least = of_verdict.filter_map(|&(_, p)| p).min_by(f64::total_cmp)?;
        Some((least * points.len() as f64).min(1.0))
    };
    match verdict {
        Verdict::DoesNotHold => most_certain(verdict),
        Verdict::Depends => {
            Some(most_certain(Verdict::Holds)?.max(most_certain(Verdict::DoesNotHold)?))
        }
        _ => least_certain(points.iter().map(|&(_, p)| p)),
    }
}

/// Returns the largest of the p-values; `None` if one of them is not known.
fn least_certain(all: impl Iterator<Item = Option<f64>>) -> Option<f64> {
    let all: Option<Vec<f64>> = all.collect();
    all?.into_iter().max_by(f64::total_cmp)
}

/// Judges one claim, which need not belong to the experiment, by the data of `outcome`.
pub(crate) fn judge_one(outcome: &Outcome, claim: &Claim) -> ClaimOutcome {
    let plan = Plan::of(outcome);
    let mut parts: Vec<Part> = Vec::new();
    let mut points = Vec::new();
    for (point, claim) in at_operating_points(outcome, claim) {
        let part = |variant: &String| Part {
            operating_point: point.clone(),
            ..judge_part(outcome, &claim, variant, &plan)
        };
        let here: Vec<Part> = claim.each.iter().map(part).collect();
        let verdict = verdict_of_all(&here);
        points.push((verdict, p_of_all(verdict, &here)));
        parts.extend(here);
    }
    let verdicts: Vec<Verdict> = points.iter().map(|&(verdict, _)| verdict).collect();
    let verdict = verdict_of_points(&verdicts);
    let deciding = deciding_part(&parts, claim.holds, verdict);
    let estimate = deciding.and_then(|part| part.estimate.as_ref());
    ClaimOutcome {
        id: claim.id.clone(),
        statement: claim.statement.clone(),
        verdict,
        metric: claim.metric.clone(),
        compare: claim.compare,
        value: estimate.map(|estimate| estimate.value),
        low: estimate.and_then(|estimate| estimate.low),
        high: estimate.and_then(|estimate| estimate.high),
        bound: deciding.and_then(|part| part.bound),
        paper: claim.paper_value,
        paper_says: claim.paper.clone(),
        threshold: claim.holds,
        primary: claim.primary,
        p: p_of_points(verdict, &points),
        p_with_all: None,
        parts,
    }
}

/// Judges a claim for one variant. A claim about several points is judged at each point, and the worst
/// verdict counts.
fn judge_part(outcome: &Outcome, claim: &Claim, variant: &str, plan: &Plan) -> Part {
    let points = Sides::of(outcome, claim, variant).each_point();
    // One failed point makes the whole claim fail, so each point gets its share of the error.
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
    let worst = worst.expect("a claim has at least one point");
    let mut part = judged.swap_remove(worst);
    if points.len() > 1 && matches!(verdict, Verdict::DoesNotHold | Verdict::Undecided) {
        let place = outcome.point_text(&points[worst].a.points[0]);
        part.note =
            Some(part.note.map_or(format!("at {place}"), |why| format!("at {place}: {why}")));
    }
    part
}

/// Formats a p-value for readers.
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
mod tests;
