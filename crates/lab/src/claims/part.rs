//! One part of a claim: one variant at one point, judged step by step.

use super::{
    decide::Evidence,
    drift::Drift,
    limit::{self, Limits},
    looks::Plan,
    outlook,
    sides::{LostBlocks, Sides},
};
use crate::{
    experiment::{Claim, ReceiveOn, Threshold},
    format, metric,
    result::{Outcome, Status},
    statistics::{Estimate, MIN_BLOCKS, Sample},
    verdict::{Bound, Outlook, Part, Verdict},
};

/// A question to be judged, and the plan of looks.
pub(super) struct Question<'a> {
    pub(super) outcome: &'a Outcome,
    pub(super) claim: &'a Claim,
    pub(super) variant: &'a str,
    pub(super) sides: &'a Sides<'a>,
    /// The number of parts that share the error of the claim.
    pub(super) tested: usize,
    pub(super) plan: &'a Plan,
}

/// The data that answer the question.
struct Answer {
    sample: Sample,
    /// The sample with the counts of this point alone, if `sample` has the counts of several points.
    here: Option<Sample>,
    lost: LostBlocks,
    limits: Limits,
    /// Whether more blocks would change nothing, because a side is at a limit.
    is_limited: bool,
}

/// Evidence, with its outlook and notes.
struct Finding {
    evidence: Evidence,
    outlook: Option<Outlook>,
    is_final: bool,
    notes: Vec<String>,
}

impl Question<'_> {
    /// Returns the part with its verdict.
    pub(super) fn part(&self) -> Part {
        let mut part = Part { variant: self.variant.to_owned(), ..Part::default() };
        let answer = match self.answer(&mut part) {
            Ok(answer) => answer,
            Err((verdict, why)) => {
                return Part { verdict, note: Some(why), is_final: true, ..part };
            }
        };
        match self.plan.level {
            Some(level) if answer.sample.blocks() >= MIN_BLOCKS => {
                self.decided(part, &answer, level)
            }
            level => self.seen(part, &answer, level.is_some()),
        }
    }

    /// Returns the data, or the reason why there are none. Stores the estimate in `part` as soon as it
    /// is known.
    fn answer(&self, part: &mut Part) -> Result<Answer, (Verdict, String)> {
        if let Some(reason) = self.sides.nothing_to_compare() {
            return Err((Verdict::NotTestable, reason));
        }
        let Some(sample) = self.sides.sample() else { return Err(self.why_missing()) };
        let lost = self.sides.lost();
        let sample = sample.lacking(lost.blocks);
        let estimate = sample.estimate();
        part.estimate = Some(estimate);
        if let Some(reason) = self.not_its_own_network() {
            return Err((Verdict::NotTestable, reason));
        }
        let limits = limit::of(self.outcome, self.sides);
        let is_limited = limits.leave_open(self.claim.holds, estimate.value);
        let here = self.sides.sample_here().map(|here| here.lacking(lost.blocks));
        Ok(Answer { sample, here, lost, limits, is_limited })
    }

    /// Completes a part that has too few blocks for a decision; `is_look` is true if the plan has a look
    /// now.
    fn seen(&self, mut part: Part, answer: &Answer, is_look: bool) -> Part {
        let Answer { sample, lost, .. } = answer;
        let limited = answer.is_limited.then(|| answer.limits.note(|_| false)).flatten();
        part.verdict = Verdict::Seen;
        part.outlook = self.outlook(answer);
        part.note = limited;
        if is_look {
            // If so many blocks are lost, further blocks will be lost too.
            part.outlook = part.outlook.filter(|_| !lost.are_too_many());
            let blocks = (sample.blocks(), self.outcome.blocks());
            let few =
                format!("only {} of {} blocks have valid runs of both sides", blocks.0, blocks.1);
            let notes = [Some(few), lost.reason.clone(), part.note];
            part.note = Some(notes.into_iter().flatten().collect::<Vec<_>>().join("; "));
        }
        part
    }

    fn decided(&self, mut part: Part, answer: &Answer, level: f64) -> Part {
        let Answer { sample, lost, .. } = answer;
        part.deciding = sample.interval(level);
        part.bound = answer.limits.bound().or((sample.endless() > 0).then_some(Bound::AtLeast));
        let finding = self.finding(answer, level);
        let mut finding = self.with_server_alone(finding, answer, level, &mut part);
        finding.notes.extend(lost.note());
        if lost.are_too_many() {
            finding.evidence = Evidence::NONE;
        }
        part.verdict = finding.evidence.verdict(level);
        part.is_final = finding.is_final;
        if let (Verdict::DoesNotHold, Some(here)) = (part.verdict, &answer.here) {
            part.estimate = Some(here.estimate());
        }
        let is_noise = part.verdict.is_open() && !part.is_final && !lost.are_too_many();
        part.outlook = finding.outlook.filter(|_| is_noise);
        part.note = (!finding.notes.is_empty()).then(|| finding.notes.join("; "));
        part.p = Some(self.plan.overall(finding.evidence.p()));
        part
    }

    fn evidence(&self, answer: &Answer, limits: &Limits, holds: Threshold) -> Evidence {
        let of = |sample: &Sample| Evidence::of(sample, holds, limits);
        of(&answer.sample).with_doubts_of(answer.here.as_ref().map(of)).of_several(self.tested)
    }

    /// Returns the evidence of the sides within their limits, also for the case that the drift of the
    /// server continues.
    fn finding(&self, answer: &Answer, level: f64) -> Finding {
        let Answer { sample, limits, .. } = answer;
        let holds = self.claim.holds;
        let decides =
            |limits: &Limits| self.evidence(answer, limits, holds).verdict(level).is_decided();
        let mut notes = Vec::new();
        let mut is_final = false;
        if !decides(limits) && (answer.is_limited || decides(&Limits::default())) {
            notes.extend(limits.note(decides));
            is_final = answer.is_limited;
        }
        let drift = Drift::of(self.outcome, self.sides, level);
        let at_worst = drift.evidence(holds, |holds| self.evidence(answer, limits, holds));
        let keeps_open = drift.leaves_open(holds, sample.estimate().value)
            || decides(limits) && !at_worst.verdict(level).is_decided();
        notes.extend(drift.note(keeps_open));
        if sample.endless() > 0 {
            notes.push(format!(
                "in {} of {} blocks side b is 0 or less, so the ratio counts as above every threshold",
                sample.endless(),
                sample.blocks()
            ));
        }
        let outlook = self.outlook(answer);
        Finding { evidence: at_worst, outlook, is_final: is_final | keeps_open, notes }
    }

    /// Combines the finding with the figure of the server alone if the generator uses a part of its CPU:
    /// both must agree.
    fn with_server_alone(
        &self,
        mut finding: Finding,
        answer: &Answer,
        level: f64,
        part: &mut Part,
    ) -> Finding {
        let Some(alone) = self.sides.of_server_alone() else { return finding };
        let (sample, lost) = (alone.sample(), alone.lost());
        let sample = sample.filter(|_| !lost.are_too_many()).map(|it| it.lacking(lost.blocks));
        let own = sample.as_ref().map_or(Evidence::NONE, |sample| {
            Evidence::of(sample, self.claim.holds, &Limits::default()).of_several(self.tested)
        });
        part.alone = sample.as_ref().map(Sample::estimate);
        let both = finding.evidence.and(own);
        let is_open = |evidence: Evidence| !evidence.verdict(level).is_decided();
        if is_open(both) && !is_open(finding.evidence) {
            finding.notes.push(not_by_itself(part.alone.as_ref()));
        }
        if is_open(both) && !answer.is_limited {
            let of_rates = finding.outlook.filter(|_| is_open(finding.evidence));
            let of_own = sample.filter(|_| is_open(own));
            let of_own = of_own.and_then(|sample| self.outlook_of(&sample, &Limits::default()));
            finding.outlook = Outlook::longest(of_rates, of_own);
        }
        Finding { evidence: both, ..finding }
    }

    /// Returns the outlook of the claim, for example the number of blocks that would decide it; `None` if a
    /// limit keeps it open.
    fn outlook(&self, answer: &Answer) -> Option<Outlook> {
        (!answer.is_limited).then(|| self.outlook_of(&answer.sample, &answer.limits)).flatten()
    }

    fn outlook_of(&self, sample: &Sample, limits: &Limits) -> Option<Outlook> {
        let level = |blocks| self.plan.level_with(blocks);
        let (claim, estimate) = (self.claim, sample.estimate());
        outlook::of(sample, &estimate, claim.compare, claim.holds, limits, self.tested, level)
    }

    /// Returns the reason why a claim cannot be judged by a figure that depends on the CPU that receives
    /// packets: the experiment requires the server's CPU for that work, and this was not possible.
    fn not_its_own_network(&self) -> Option<String> {
        let (outcome, sides) = (self.outcome, self.sides);
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

    /// Returns why the data are missing (an arm is not available, or no run counts), with the verdict
    /// that follows.
    fn why_missing(&self) -> (Verdict, String) {
        let Self { outcome, claim, variant, sides, .. } = self;
        if sides.any_pair() {
            return (
                Verdict::Undecided,
                format!("{} is 0 or less on one side: there is no ratio", claim.metric),
            );
        }
        for (name, points) in sides.named() {
            let Some(found) = outcome.variants.iter().find(|v| v.name == name) else {
                return (Verdict::NotTestable, format!("{name} was not run"));
            };
            if let Some(reason) = &found.unavailable {
                return (Verdict::NotTestable, format!("{name}: {reason}"));
            }
            for point in points {
                let runs: Vec<_> = outcome.runs_at(name, point).collect();
                let Some(last) = runs.last() else {
                    return (Verdict::NotTestable, format!("{name} was not measured there"));
                };
                if runs.iter().all(|run| run.status != Status::Valid) {
                    let failed = runs.iter().all(|run| run.status == Status::Failed);
                    let verdict = if failed { Verdict::NotTestable } else { Verdict::Undecided };
                    let reason = last.reason.clone();
                    return (verdict, reason.unwrap_or_else(|| "no run counts".into()));
                }
            }
        }
        let doubt = outcome.runs.iter().filter(|run| run.cell.variant == *variant);
        match doubt.filter_map(|run| run.raw.latency_doubt()).next_back() {
            Some(reason) if claim.metric.ends_with("_us") => {
                (Verdict::Undecided, format!("the runs have no {}: {reason}", claim.metric))
            }
            _ => (Verdict::NotTestable, format!("the runs have no {}", claim.metric)),
        }
    }
}

/// Returns the reason why the best rates of servers that share a CPU with the generator decide nothing:
/// the ratio of the rates that each server would reach alone, by its own CPU time per reply, is
/// different or less certain.
fn not_by_itself(alone: Option<&Estimate>) -> String {
    let shared = "the generator has a part of that CPU";
    let Some(alone) = alone else {
        return format!("{shared}, and what the server alone spends on a reply is not known there");
    };
    let ends = format::ends(alone.low, alone.high);
    let value = format::number(alone.value);
    format!("{shared}: by what the server alone spends on a reply it is {value} {ends}")
}
