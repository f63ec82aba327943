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
mod sides;

pub use decide::Bound;
pub(crate) use limit::{COST, is_saturated};
pub use outlook::Outlook;

use crate::{
    experiment::{Claim, ReceiveOn, Threshold},
    metric,
    report::papers,
    result::{Look, Outcome, Status},
    statistics::{ERROR, Estimate, Interval, MIN_BLOCKS, Sample, holm, sequential},
};
use decide::Evidence;
use drift::Drift;
use limit::Limits;
use looks::Plan;
use serde::{Deserialize, Serialize};
use sides::Sides;
use std::{collections::BTreeMap, fmt};

/// What became of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Verdict {
    /// The figures lie where the claim says, by more than chance.
    #[serde(rename = "holds")]
    Holds,
    /// They lie on the other side, by more than chance.
    #[serde(rename = "does not hold")]
    DoesNotHold,
    /// Chance may have put them where they are, or the figure was at a limit that is not the server's.
    #[serde(rename = "undecided")]
    Undecided,
    /// There are figures, of too few blocks to decide anything.
    #[serde(rename = "seen, not decided")]
    Seen,
    /// Something that the claim speaks of is not there: a mechanism, or room for its connections.
    #[serde(rename = "not applicable here")]
    NotApplicable,
}

impl Verdict {
    /// Whether it says yes or no.
    pub fn is_decided(self) -> bool {
        matches!(self, Self::Holds | Self::DoesNotHold)
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Holds => "holds",
            Self::DoesNotHold => "does not hold",
            Self::Undecided => "undecided",
            Self::Seen => "seen, not decided",
            Self::NotApplicable => "not applicable here",
        })
    }
}

/// A claim as judged for one variant.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Part {
    /// The variant.
    pub variant: String,
    /// The verdict.
    pub verdict: Verdict,
    /// The figure with its interval, when there are data.
    pub estimate: Option<Estimate>,
    /// Of a reply rate where the generator has a part of the server's CPU: the same by what the server alone
    /// spends on a reply. Such a claim is decided where both say so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alone: Option<Estimate>,
    /// The interval that decides: wider than the other, the earlier the experiment looked.
    #[serde(default)]
    pub deciding: Option<Interval>,
    /// The probability of figures that speak as clearly if the truth were at the threshold, over all
    /// looks.
    #[serde(default)]
    pub p: Option<f64>,
    /// When the figure is a bound: the server was at the limit of its CPU.
    #[serde(default)]
    pub bound: Option<Bound>,
    /// Why there are no data, why they do not decide, or what to know of them.
    pub note: Option<String>,
    /// Where it is open: what it would take to decide it. None where more blocks would change nothing, for
    /// the reason that the note says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outlook: Option<Outlook>,
    /// More blocks would change nothing: it lies at a limit, or something is not there.
    #[serde(skip)]
    is_final: bool,
}

/// A claim as judged.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClaimOutcome {
    /// The claim's number.
    pub id: String,
    /// What is claimed.
    pub statement: String,
    /// *Holds* when it holds for every variant that it names.
    pub verdict: Verdict,
    /// The figure of the part that decides: the one nearest to failing.
    pub value: Option<f64>,
    /// Its interval's lower end.
    pub low: Option<f64>,
    /// Its interval's upper end.
    pub high: Option<f64>,
    /// Whether that figure is a bound.
    #[serde(default)]
    pub bound: Option<Bound>,
    /// The paper's own number, in the same unit.
    pub paper: Option<f64>,
    /// The paper's own words.
    pub paper_says: String,
    /// When it holds.
    pub threshold: Threshold,
    /// Whether it is the one claim that stands for a figure of a paper.
    #[serde(default)]
    pub primary: bool,
    /// The probability of figures that speak as clearly if the truth were at the threshold.
    #[serde(default)]
    pub p: Option<f64>,
    /// The same, adjusted for all primary claims of the paper in this run ([`holm`]).
    #[serde(default)]
    pub p_with_all: Option<f64>,
    /// Variant by variant.
    pub parts: Vec<Part>,
}

impl Part {
    /// Why there are no data or they do not decide, what to know of them, and what it would take.
    pub fn why(&self) -> Option<String> {
        let outlook = self.outlook.map(|outlook| outlook.to_string());
        let why: Vec<String> = self.note.clone().into_iter().chain(outlook).collect();
        (!why.is_empty()).then(|| why.join("; "))
    }
}

impl ClaimOutcome {
    /// The part whose figure is the claim's.
    pub fn deciding(&self) -> Option<&Part> {
        let is_it = |part: &&Part| part.estimate.is_some_and(|it| Some(it.value) == self.value);
        self.parts.iter().find(is_it)
    }

    /// Why it is open, if it is, and what it would take to decide it; else what to know of the verdict, as the
    /// blocks that lack a side. In words, of each variant that the verdict comes from.
    pub fn remark(&self) -> Option<String> {
        let is_of = |part: &&Part| {
            part.verdict == self.verdict || self.verdict.is_open() && part.verdict.is_open()
        };
        let about = self.parts.iter().filter(|_| self.verdict != Verdict::NotApplicable);
        let said: Vec<String> = about
            .filter(is_of)
            .filter_map(|part| {
                let of = if self.parts.len() > 1 {
                    format!("{}: ", part.variant)
                } else {
                    String::new()
                };
                Some(of + &part.why()?)
            })
            .collect();
        (!said.is_empty()).then(|| said.join("; "))
    }

    /// Whether more blocks would change nothing: it is decided, so surely that `family` such claims may share one
    /// error, or a limit or an absence keeps it from being so.
    fn is_settled(&self, family: usize) -> bool {
        let settled = |part: &Part| part.verdict != Verdict::Seen && part.is_final;
        match self.verdict {
            // The p-values of its paper's other claims are not known here. Bonferroni's correction needs none of
            // them, and Holm's never asks for more.
            verdict if verdict.is_decided() => self.p.is_none_or(|p| p * family as f64 <= ERROR),
            Verdict::Undecided => {
                self.parts.iter().all(|part| part.verdict.is_decided() || settled(part))
            }
            Verdict::Seen => false,
            _ => true,
        }
    }
}

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

/// Judges by the first blocks alone. Who has seen the verdict and goes on for want of a better one would
/// spend the error twice.
fn judge_first(outcome: &Outcome, blocks: u32) -> Vec<ClaimOutcome> {
    let mut first = outcome.clone();
    first.runs.retain(|run| run.block < blocks);
    let mut judged = judge_all(&first);
    let why = format!(
        "judged by the first {blocks} blocks: then the time was over, and with it the error was spent"
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
    watched.all(|(claim, judged)| judged.is_settled(family(claims, claim)))
}

/// How many primary claims share an error with this one: those of its paper, or those of this experiment, if it is
/// given as a file and has more.
fn family(claims: &[Claim], claim: &Claim) -> usize {
    let Some(paper) = claim.paper_key().filter(|_| claim.primary) else { return 1 };
    let here =
        claims.iter().filter(|other| other.primary && other.paper_key() == Some(paper)).count();
    here.max(papers::primary_claims_of(paper))
}

/// What is so if all of `parts` are to hold.
fn of_all(parts: &[Part]) -> Verdict {
    let any = |verdict: Verdict| parts.iter().any(|part| part.verdict == verdict);
    // An arm that is missing might have failed, and one that failed might be the exception.
    let worst = [Verdict::NotApplicable, Verdict::DoesNotHold, Verdict::Undecided, Verdict::Seen];
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

fn judge_one(outcome: &Outcome, claim: &Claim) -> ClaimOutcome {
    let plan = Plan::of(outcome);
    let parts: Vec<Part> =
        claim.each.iter().map(|variant| judge_part(outcome, claim, variant, &plan)).collect();
    let verdict = of_all(&parts);
    let deciding = deciding_part(&parts, claim.holds, verdict);
    let estimate = deciding.and_then(|part| part.estimate.as_ref());
    // It holds if each part does, so the least sure part says how sure it is; it fails with one.
    let all: Option<Vec<f64>> = parts.iter().map(|part| part.p).collect();
    let failed = parts.iter().filter(|part| part.verdict == Verdict::DoesNotHold);
    let p = match verdict {
        Verdict::DoesNotHold => failed.filter_map(|part| part.p).min_by(f64::total_cmp),
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
        .map(|sides| judge_sides(outcome, claim, variant, sides, tested, plan))
        .collect();
    let verdict = of_all(&judged);
    let p = |index: &usize| judged[*index].p.unwrap_or(1.0);
    let worst = (0..judged.len()).filter(|&index| judged[index].verdict == verdict);
    let worst = match verdict {
        Verdict::DoesNotHold => worst.min_by(|a, b| p(a).total_cmp(&p(b))),
        _ => worst.max_by(|a, b| p(a).total_cmp(&p(b))),
    };
    let worst = worst.expect("a claim speaks of one point at least");
    let mut part = judged.swap_remove(worst);
    if points.len() > 1 && matches!(verdict, Verdict::DoesNotHold | Verdict::Undecided) {
        let place = crate::report::point_text(outcome, &points[worst].a.points[0]);
        part.note =
            Some(part.note.map_or(format!("at {place}"), |why| format!("at {place}: {why}")));
    }
    part
}

fn judge_sides(
    outcome: &Outcome,
    claim: &Claim,
    variant: &str,
    sides: &Sides<'_>,
    tested: usize,
    plan: &Plan,
) -> Part {
    let mut part = Part {
        variant: variant.to_owned(),
        verdict: Verdict::Undecided,
        estimate: None,
        alone: None,
        deciding: None,
        p: None,
        bound: None,
        note: None,
        outlook: None,
        is_final: false,
    };
    let closed = |part: Part, verdict, note| Part { verdict, note, is_final: true, ..part };
    if let Some(reason) = sides.nothing_to_compare() {
        return closed(part, Verdict::NotApplicable, Some(reason));
    }
    let Some(sample) = sides.sample() else {
        let (verdict, why) = why_missing(outcome, claim, variant, sides);
        return closed(part, verdict, Some(why));
    };
    let lost = sides.lost();
    let sample = sample.lacking(lost.blocks);
    let estimate = sample.estimate();
    part.estimate = Some(estimate);
    if let Some(reason) = not_its_own_network(outcome, sides) {
        return closed(part, Verdict::NotApplicable, Some(reason));
    }
    let limits = limit::of(outcome, sides);
    // Then more blocks would change nothing.
    let is_limited = limits.leave_open(claim.holds, estimate.value);
    let outlook_of = |sample: &Sample, limits: &Limits| {
        let level = |blocks| plan.level_with(blocks);
        let estimate = sample.estimate();
        Outlook::of(sample, &estimate, claim.compare, claim.holds, limits, tested, level)
    };
    let mut outlook = (!is_limited).then(|| outlook_of(&sample, &limits)).flatten();
    let because_limited = || is_limited.then(|| limits.note(|_| false)).flatten();
    let Some(level) = plan.level else {
        part.verdict = Verdict::Seen;
        part.outlook = outlook;
        part.note = because_limited();
        return part;
    };
    if sample.blocks() < MIN_BLOCKS {
        let made = outcome.blocks();
        part.verdict = Verdict::Seen;
        // Where so many are lost, more of them are the same.
        part.outlook = outlook.filter(|_| !lost.are_too_many());
        let few = format!("only {} of {made} blocks have both sides", sample.blocks());
        let notes = [Some(few), lost.reason.clone(), because_limited()];
        part.note = Some(notes.into_iter().flatten().collect::<Vec<_>>().join("; "));
        return part;
    }
    part.deciding = sample.interval(level);
    part.bound = limits.bound().or((sample.endless() > 0).then_some(Bound::AtLeast));
    let here = sides.sample_here().map(|here| here.lacking(lost.blocks));
    let evidence_at = |limits: &Limits, holds: Threshold| {
        let of = |sample: &Sample| Evidence::of(sample, holds, limits);
        of(&sample).against(here.as_ref().map(of)).of_several(tested)
    };
    let evidence_by = |limits: &Limits| evidence_at(limits, claim.holds);
    let decides = |limits: &Limits| evidence_by(limits).verdict(level).is_decided();
    let mut notes = Vec::new();
    if !decides(&limits) && (is_limited || decides(&Limits::default())) {
        notes.extend(limits.note(decides));
        part.is_final = is_limited;
    }
    let drift = Drift::of(outcome, sides, level);
    let at_worst = drift.evidence(claim.holds, |holds| evidence_at(&limits, holds));
    let keeps_open = drift.leaves_open(claim.holds, estimate.value)
        || decides(&limits) && !at_worst.verdict(level).is_decided();
    part.is_final |= keeps_open;
    notes.extend(drift.note(keeps_open));
    let mut evidence = at_worst;
    if sample.endless() > 0 {
        notes.push(format!(
            "in {} of {} blocks side b is 0 or less: its ratio counts as above every limit",
            sample.endless(),
            sample.blocks()
        ));
    }
    if let Some(alone) = sides.of_server_alone() {
        let (sample, lost) = (alone.sample(), alone.lost());
        let sample = sample.filter(|_| !lost.are_too_many()).map(|it| it.lacking(lost.blocks));
        let own = sample.as_ref().map_or(Evidence::NONE, |sample| {
            Evidence::of(sample, claim.holds, &Limits::default()).of_several(tested)
        });
        part.alone = sample.as_ref().map(Sample::estimate);
        let both = evidence.and(own);
        let is_open = |evidence: Evidence| !evidence.verdict(level).is_decided();
        if is_open(both) && !is_open(evidence) {
            notes.push(not_by_itself(part.alone.as_ref()));
        }
        if is_open(both) && !is_limited {
            let of_rates = outlook.filter(|_| is_open(evidence));
            let of_own = sample.filter(|_| is_open(own));
            let of_own = of_own.and_then(|sample| outlook_of(&sample, &Limits::default()));
            outlook = Outlook::longest(of_rates, of_own);
        }
        evidence = both;
    }
    notes.extend(lost.note());
    if lost.are_too_many() {
        evidence = Evidence::NONE;
    }
    part.verdict = evidence.verdict(level);
    if let (Verdict::DoesNotHold, Some(here)) = (part.verdict, here) {
        part.estimate = Some(here.estimate());
    }
    let is_noise = part.verdict.is_open() && !part.is_final && !lost.are_too_many();
    part.outlook = outlook.filter(|_| is_noise);
    part.note = (!notes.is_empty()).then(|| notes.join("; "));
    part.p = Some(plan.overall(evidence.p()));
    part
}

/// Why the best rates of servers that have one CPU together with the generator decide nothing: by what each alone
/// spends on a reply there, the ratio of what it would answer is another, or not known so well.
fn not_by_itself(alone: Option<&Estimate>) -> String {
    let shared = "the generator has a part of that CPU";
    let Some(alone) = alone else {
        return format!("{shared}, and what the server alone spends on a reply is not known there");
    };
    let ends = crate::report::format::ends(alone.low, alone.high);
    let value = crate::report::format::number(alone.value);
    format!("{shared}: by what the server alone spends on a reply it is {value} {ends}")
}

/// Why a claim cannot be judged by a figure that depends on where the network's receive work is done: the experiment
/// wants it on the server's CPU, and could not have it.
fn not_its_own_network(outcome: &Outcome, sides: &Sides<'_>) -> Option<String> {
    let environment = &outcome.environment;
    let apart = environment.pinned.is_some_and(|cpus| cpus.server != cpus.generator);
    let wanted = outcome.experiment.receive_on == ReceiveOn::Server && apart;
    let rests_on_it = sides.arms().any(|arm| metric::depends_on_receive_cpu(arm.metric));
    (wanted && rests_on_it && environment.receive_cpu.is_none()).then(|| {
        "without a network namespace of its own the generator does the network's receive work: the server's \
         CPU is spared it, and the generator may be the limit before the server is; run it as root"
            .to_owned()
    })
}

/// Whether the data are missing since something is not there, or since no run counts; and which.
fn why_missing(
    outcome: &Outcome,
    claim: &Claim,
    variant: &str,
    sides: &Sides<'_>,
) -> (Verdict, String) {
    if sides.any_pair() {
        return (
            Verdict::Undecided,
            format!("{} is 0 or less on one side: there is no ratio", claim.metric),
        );
    }
    for (name, points) in sides.named() {
        match outcome.variants.iter().find(|v| v.name == name) {
            None => return (Verdict::NotApplicable, format!("{name} was not run")),
            Some(v) => {
                if let Some(reason) = &v.unavailable {
                    return (Verdict::NotApplicable, format!("{name}: {reason}"));
                }
            }
        }
        for point in points {
            let runs: Vec<_> = outcome
                .runs
                .iter()
                .filter(|run| run.cell.variant == name && run.cell.point == *point)
                .collect();
            let Some(last) = runs.last() else {
                return (Verdict::NotApplicable, format!("{name} was not measured there"));
            };
            if runs.iter().all(|run| run.status != Status::Valid) {
                let failed = runs.iter().all(|run| run.status == Status::Failed);
                let verdict = if failed { Verdict::NotApplicable } else { Verdict::Undecided };
                return (verdict, last.reason.clone().unwrap_or_else(|| "no run counts".into()));
            }
        }
    }
    let doubt = outcome.runs.iter().filter(|run| run.cell.variant == variant);
    match doubt.filter_map(|run| run.raw.latency_doubt()).next_back() {
        Some(reason) if claim.metric.ends_with("_us") => {
            (Verdict::Undecided, format!("the runs have no {}: {reason}", claim.metric))
        }
        _ => (Verdict::NotApplicable, format!("the runs have no {}", claim.metric)),
    }
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
mod made;
#[cfg(test)]
mod table_tests;
#[cfg(test)]
mod tests;
