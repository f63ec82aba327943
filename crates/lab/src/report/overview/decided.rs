//! The run that decides each claim, of all published runs, and how certain the claim is over all of them.

use super::{Publication, name};
use crate::{
    experiment::Claim,
    format,
    papers::{Paper, PaperFigure, papers},
    report::{earlier, operating_point},
    statistics::ERROR,
    tries::{self, Register, Tries},
    verdict::{ClaimOutcome, Verdict},
};

/// One claim with the run that decides it.
pub(in crate::report) struct ClaimWithRun<'a> {
    pub(super) run: &'a Publication,
    pub(super) claim: &'a ClaimOutcome,
    /// The number of runs that judge this claim, of those given.
    pub(super) judged: usize,
    /// Every run that was made of the claim.
    pub(super) tries: Tries,
    /// The p-value over all these runs.
    pub(super) p_over_runs: Option<f64>,
    /// The same, with all primary claims of the paper.
    pub(super) p_with_all: Option<f64>,
    /// Other runs with a different result, and that result in words.
    pub(super) others: Vec<(&'a Publication, String)>,
}

/// The claims about one figure of a paper, each with the run that decides it.
pub(super) type Claims<'a> = Vec<(String, Option<ClaimWithRun<'a>>)>;

/// Selects, of several runs that judge a claim, the run with the most evidence. The order of preference:
/// a run that could test the claim, a run with enough blocks for a verdict, a run at today's operating points, the
/// full form, more blocks, the later run. A verdict is no reason for preference, because of many runs one decides by
/// chance.
pub(super) fn decide<'a>(
    runs: &'a [Publication],
    figure: &PaperFigure,
    id: &str,
    register: &Register,
) -> Option<ClaimWithRun<'a>> {
    let judged: Vec<(&Publication, &ClaimOutcome)> = runs
        .iter()
        .filter(|run| figure.experiments.contains(&run.outcome.experiment.id))
        .filter_map(|run| Some((run, run.outcome.claims.iter().find(|claim| claim.id == id)?)))
        .collect();
    let &(run, claim) = judged.iter().max_by_key(|(run, claim)| {
        let there = claim.verdict != Verdict::NotTestable;
        let enough = claim.verdict != Verdict::Seen;
        let is_there_today = run.outcome.has_todays_operating_points(id);
        (there, enough, is_there_today, !run.outcome.quick, run.outcome.blocks(), run.day())
    })?;
    let says_otherwise = |other_run: &Publication, other: &ClaimOutcome| {
        let name = name(&other_run.directory);
        match (claim.verdict.is_decided(), other.verdict) {
            (true, verdict) if verdict.is_decided() && verdict != claim.verdict => {
                Some(format!("the opposite in {name}"))
            }
            // The verdict of the other run counts no more than this one. Readers may remember it, so the table shows
            // what became of it.
            (false, verdict) if verdict.is_decided() => Some(format!("{verdict} in {name}")),
            // The full form may have more extreme points: its result after a single pass is not a
            // verdict, but it is worth knowing.
            (true, Verdict::Seen) => other
                .value
                .filter(|&value| other.threshold.has(value) != (claim.verdict == Verdict::Holds))
                .map(|value| format!("{} was seen in {name}", format::number(value))),
            _ => None,
        }
    };
    let others = judged
        .iter()
        .filter_map(|&(run, claim)| Some((run, says_otherwise(run, claim)?)))
        .collect();
    let published = judged.iter().map(|(run, claim)| (run.day(), claim.verdict));
    let tries = register.of(id, published);
    Some(ClaimWithRun {
        run,
        claim,
        judged: judged.len(),
        tries,
        p_over_runs: claim.p.map(|p| tries::over_runs(p, tries)),
        p_with_all: None,
        others,
    })
}

impl ClaimWithRun<'_> {
    /// Returns the results of other runs in words.
    pub(super) fn other_verdicts(&self) -> Option<String> {
        let words: Vec<&str> = self.others.iter().map(|(_, words)| words.as_str()).collect();
        (!words.is_empty()).then(|| words.join(", "))
    }

    /// Describes where the claim is read in this run.
    pub(super) fn operating_point(&self) -> String {
        self.experiments_claim().map_or_else(String::new, |claim| {
            operating_point::operating_point(&self.run.outcome, claim)
        })
    }

    /// Returns the verdicts under other thresholds of the claim, in words, if they differ.
    pub(super) fn other_thresholds(&self) -> Vec<String> {
        let claim = self.experiments_claim();
        claim.map_or_else(Vec::new, |claim| earlier::other_verdicts(&self.run.outcome, claim))
    }

    fn experiments_claim(&self) -> Option<&Claim> {
        self.run.outcome.experiment.find_claim(&self.claim.id)
    }

    /// Returns why the verdict is not significant although the run by itself decides the claim, if so.
    pub(super) fn doubt(&self) -> Option<String> {
        doubt(self.claim.verdict, self.tries, self.p_over_runs, self.p_with_all)
    }

    /// Returns the reason why this run represents the claim.
    pub(super) fn why_chosen(&self) -> String {
        let form = if self.run.outcome.quick { "quick" } else { "full" };
        let blocks = self.run.outcome.blocks();
        match self.judged {
            1 => format!("the only one that is kept ({form} form, {blocks} blocks)"),
            judged => format!(
                "of {judged} that are kept, the one with the most evidence ({form} form, {blocks} blocks)"
            ),
        }
    }
}

fn doubt(
    verdict: Verdict,
    tries: Tries,
    p_over_runs: Option<f64>,
    p_with_all: Option<f64>,
) -> Option<String> {
    let is_decided = verdict.is_decided() || verdict == Verdict::Depends;
    let of_runs = match tries.made() {
        1 => String::new(),
        made => format!(" over {made} runs"),
    };
    let is_too_large = |p: Option<f64>| p.is_some_and(|p| p > ERROR);
    if !is_decided {
        None
    } else if is_too_large(p_over_runs) {
        Some(format!("not significant{of_runs}"))
    } else if is_too_large(p_with_all) {
        Some(format!("not significant{of_runs} with all primary claims of the paper"))
    } else {
        None
    }
}

/// Returns every claim of a paper, figure by figure. The p-values are those over all runs of a claim; the
/// paper's primary claims share one error.
pub(super) fn of_paper<'a>(
    runs: &'a [Publication],
    paper: &Paper,
    register: &Register,
) -> Vec<Claims<'a>> {
    let of_figure = |figure: &PaperFigure| {
        let claims = figure.claims.iter();
        claims.map(|id| (id.clone(), decide(runs, figure, id, register))).collect()
    };
    let mut figures: Vec<Claims<'a>> = paper.figure.iter().map(of_figure).collect();
    let mut primary: Vec<&mut ClaimWithRun<'a>> = figures
        .iter_mut()
        .flatten()
        .filter_map(|(_, decided)| decided.as_mut())
        .filter(|decided| decided.claim.primary && decided.claim.p.is_some())
        .collect();
    let p: Vec<(f64, Tries)> =
        primary.iter().filter_map(|it| Some((it.claim.p?, it.tries))).collect();
    for (decided, p) in primary.iter_mut().zip(tries::with_all(&p)) {
        decided.p_with_all = Some(p);
    }
    figures
}

/// The claims of all papers, each with the run that decides it.
pub(in crate::report) struct Published<'a>(Vec<Vec<(String, ClaimWithRun<'a>)>>);

impl<'a> Published<'a> {
    /// Returns the claims that `runs` decide.
    ///
    /// # Errors
    /// Fails if the list of figures is not valid.
    pub(in crate::report) fn of(
        runs: &'a [Publication],
        register: &Register,
    ) -> anyhow::Result<Self> {
        let of_paper = |paper: &Paper| {
            let claims = of_paper(runs, paper, register).into_iter().flatten();
            claims.filter_map(|(id, decided)| Some((id, decided?))).collect()
        };
        Ok(Self(papers()?.paper.iter().map(of_paper).collect()))
    }

    /// Returns the run that decides the claim `id`.
    pub(in crate::report) fn run_of(&self, id: &str) -> Option<&'a Publication> {
        self.0.iter().flatten().find(|it| it.0 == id).map(|(_, decided)| decided.run)
    }

    /// Returns why `claim`, which another run may decide or which compares the same data in another way, is
    /// not significant over all runs of the claim `id`.
    pub(in crate::report) fn doubt(&self, id: &str, claim: &ClaimOutcome) -> Option<String> {
        let has_it = |paper: &&Vec<(String, ClaimWithRun<'_>)>| paper.iter().any(|it| it.0 == id);
        let Some(paper) = self.0.iter().find(has_it) else {
            return doubt(claim.verdict, Tries::default(), claim.p, None);
        };
        let tries = paper.iter().find(|it| it.0 == id).map_or_else(Tries::default, |it| it.1.tries);
        let p_over_runs = claim.p.map(|p| tries::over_runs(p, tries));
        // The claim takes the place of the one that represents it in its paper.
        let primary = paper.iter().filter(|it| it.1.claim.primary);
        let family: Vec<(&str, f64, Tries)> = primary
            .filter_map(|(other, it)| {
                let p = if other == id { claim.p } else { it.claim.p };
                Some((other.as_str(), p?, it.tries))
            })
            .collect();
        let p: Vec<(f64, Tries)> = family.iter().map(|&(_, p, tries)| (p, tries)).collect();
        let place = family.iter().position(|it| it.0 == id);
        let p_with_all = place.map(|place| tries::with_all(&p)[place]);
        doubt(claim.verdict, tries, p_over_runs, p_with_all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        claims::made,
        experiment::find,
        plan::{Cell, Point},
        result::Outcome,
    };
    use std::path::PathBuf;

    /// Regression test: P11 was once shown by a run at half of the limit, where no server melts down, because that
    /// run had more blocks.
    #[test]
    fn a_run_at_todays_operating_points_comes_first() {
        let run = |name: &str, blocks: u32, has_points: bool| {
            let mut experiment = find("provos-overflow").unwrap();
            if !has_points {
                experiment.claim.iter_mut().for_each(|claim| claim.operating_points = None);
            }
            let claim = serde_json::json!({
                "id": "P11", "statement": "s", "verdict": "does not hold", "value": 0.8, "low": 0.7, "high": 0.9,
                "paper": null, "paper_says": "p", "threshold": { "below": 0.5 }, "parts": [],
            });
            let cell = Cell { variant: "handoff".into(), point: Point::new() };
            let runs = vec![made::run(cell, blocks - 1, Default::default())];
            let mut outcome = Outcome { dimensions: Vec::new(), runs, ..Outcome::new(experiment) };
            outcome.claims = vec![serde_json::from_value(claim).unwrap()];
            let directory = PathBuf::from(format!("runs/{name}"));
            Publication { given: directory.clone(), directory, outcome }
        };
        let mut figures = papers().unwrap().paper.into_iter().flat_map(|paper| paper.figure);
        let figure = figures.find(|figure| figure.claims.iter().any(|id| id == "P11")).unwrap();
        let shown = |runs: &[Publication]| {
            let decided = decide(runs, &figure, "P11", &Register::default()).unwrap();
            name(&decided.run.directory)
        };
        let (older, newer) = (run("older", 12, false), run("newer", 6, true));
        assert_eq!(shown(&[older, newer]), "newer");
        assert_eq!(shown(&[run("many", 12, true), run("few", 6, true)]), "many");
    }

    #[test]
    fn what_one_run_decides_may_not_be_significant_over_all_runs() {
        let once = Tries::default();
        let eleven = tries::tests::register().of("P2", std::iter::empty());
        let doubt = |verdict, tries, p: f64, all: f64| doubt(verdict, tries, Some(p), Some(all));
        assert_eq!(
            doubt(Verdict::Holds, eleven, 0.45, 1.0).unwrap(),
            "not significant over 11 runs"
        );
        assert_eq!(
            doubt(Verdict::DoesNotHold, once, 0.018, 0.12).unwrap(),
            "not significant with all primary claims of the paper"
        );
        assert_eq!(doubt(Verdict::Holds, eleven, 0.02, 0.04), None);
        assert_eq!(doubt(Verdict::Undecided, eleven, 1.0, 1.0), None, "it is not decided at all");
    }
}
