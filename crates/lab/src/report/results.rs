//! `docs/results.md`: one row for each result of the papers, for a reader who does not know the
//! identifiers.
//!
//! `results.toml` names the claims of each row. The run that decides a claim is the one of docs/papers.md; the
//! numbers and the verdicts come from its raw data.

mod points;
mod verdict;

pub use verdict::ReaderVerdict;

use super::{
    earlier,
    markdown::cell,
    operating_point,
    overview::{Publication, Published, name, picture},
};
use crate::{claims, experiment::Claim, tries::Register, verdict::ClaimOutcome};
use anyhow::Context as _;
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, fmt::Write as _};

/// The page's file name.
pub const FILE: &str = "results.md";
/// The file with the numbers of the page's rows, beside the page.
pub const READINGS: &str = "results/readings.json";

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Results {
    section: Vec<Section>,
}

/// The rows of one paper.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Section {
    title: String,
    /// A text below the rows, for what does not fit into one of them.
    #[serde(default)]
    note: String,
    row: Vec<Row>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Row {
    /// The figure or the section of the paper.
    figure: String,
    /// The claim in plain words.
    claim: String,
    /// The paper's number or words.
    paper: String,
    /// The difference from the paper's experiment, beside the difference of the machines.
    #[serde(default)]
    differs: String,
    /// The figure of the run that is shown, or one of its drawings, such as `throughput-3`; if absent, one of the
    /// metric of the first reading.
    picture: Option<String>,
    /// The parameter that decides the result if the readings disagree. Empty if each reading is a statement
    /// of its own: then each has its own verdict.
    #[serde(default)]
    decided_by: String,
    /// The reason why this machine cannot test the claim.
    not_testable: Option<String>,
    #[serde(default)]
    reading: Vec<Reading>,
}

/// One number: a claim as one run judges it.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Reading {
    /// The claim's identifier; absent if no experiment can test it.
    claim: Option<String>,
    /// The part of the row that this reading is about.
    #[serde(default)]
    of: String,
    /// The directory of the run, without its date; if absent, the run that decides the claim in docs/papers.md.
    run: Option<String>,
    /// The reason why this machine cannot test the claim.
    not_testable: Option<String>,
    /// Why a run that began before a day cannot test the claim.
    before: Option<Before>,
}

/// A reason that applies to runs that began before a day.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Before {
    day: String,
    why: String,
}

/// A row with its numbers.
#[derive(Debug, Serialize)]
struct Line<'a> {
    /// The whole text of the row; the repository's test looks for numbers under this name.
    statement: String,
    /// One verdict, or one for each reading.
    verdicts: Vec<ReaderVerdict>,
    readings: Vec<Number<'a>>,
    #[serde(skip)]
    row: &'a Row,
}

#[derive(Debug, Serialize)]
struct Number<'a> {
    /// What the number is about, in a row of several statements.
    of: &'a str,
    #[serde(skip)]
    source: Option<Source<'a>>,
    run: Option<String>,
    at: String,
    /// The number as the page shows it.
    text: String,
    value: Option<f64>,
    low: Option<f64>,
    high: Option<f64>,
    verdict: ReaderVerdict,
    /// The verdicts under other thresholds that were once written down, if they differ.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    earlier: Vec<String>,
    /// How this machine differs from the paper's.
    machine: Vec<String>,
}

/// A claim with the run that decides it.
#[derive(Debug)]
struct Source<'a> {
    run: &'a Publication,
    claim: Claim,
    judged: ClaimOutcome,
}

fn results() -> anyhow::Result<Results> {
    toml::from_str(include_str!("../results.toml")).context("results.toml")
}

/// Returns the run whose directory has this name after its date; if there are several, the newest.
fn find<'a>(runs: &'a [Publication], wanted: &str) -> anyhow::Result<&'a Publication> {
    let is_it = |run: &&Publication| name(&run.directory).get(11..) == Some(wanted);
    let found = runs.iter().filter(is_it).max_by_key(|run| name(&run.directory));
    found.with_context(|| {
        format!("results.toml names the run {wanted}, which is not among those given")
    })
}

/// Returns the claim `id` as `run` judges it. If the run does not have the claim, it is judged here by the
/// run's data.
fn judged<'a>(run: &'a Publication, id: &str) -> Option<Source<'a>> {
    let outcome = &run.outcome;
    let of_run = || {
        let judged = outcome.claims.iter().find(|claim| claim.id == id)?;
        let claim = outcome.experiment.find_claim(id)?;
        Some((claim.clone(), judged.clone()))
    };
    let of_today = || {
        let claim = outcome.todays_claim(id)?;
        let judged = claims::judge_one(outcome, &claim);
        Some((claim, judged))
    };
    let (claim, judged) = of_run().or_else(of_today)?;
    Some(Source { run, claim, judged })
}

/// Returns the claim `id` of the run that a reading names, or of the run that decides it. If no run judges the
/// claim, the run with the most evidence that has its data is taken.
fn source<'a>(
    runs: &'a [Publication],
    published: &Published<'a>,
    reading: &Reading,
    id: &str,
) -> anyhow::Result<Option<Source<'a>>> {
    if let Some(wanted) = &reading.run {
        return Ok(judged(find(runs, wanted)?, id));
    }
    if let Some(run) = published.run_of(id) {
        return Ok(judged(run, id));
    }
    let mut with_data: Vec<&Publication> = runs.iter().collect();
    with_data.sort_by_key(|run| (!run.outcome.quick, run.outcome.blocks(), run.day().to_owned()));
    Ok(with_data.into_iter().rev().find_map(|run| judged(run, id)))
}

fn number<'a>(
    runs: &'a [Publication],
    published: &Published<'a>,
    reading: &'a Reading,
) -> anyhow::Result<Number<'a>> {
    let id = reading.claim.as_deref().unwrap_or_default();
    let source = source(runs, published, reading, id)?;
    let not_testable = || {
        let before = reading.before.as_ref();
        let too_early =
            before.filter(|it| source.as_ref().is_some_and(|of| of.run.day() < &*it.day));
        reading.not_testable.clone().or_else(|| Some(too_early?.why.clone()))
    };
    let verdict = match (not_testable(), &source) {
        (Some(why), _) => ReaderVerdict::NotTestable(why),
        (None, None) => ReaderVerdict::NotTestable("no published run has the data".into()),
        (None, Some(source)) => {
            let alone = ReaderVerdict::of(&source.judged);
            match published.doubt(id, &source.judged) {
                Some(over) => ReaderVerdict::NotSignificant { over, alone: Box::new(alone) },
                None => alone,
            }
        }
    };
    let judged = source.as_ref().map(|source| &source.judged);
    let outcome = source.as_ref().map(|source| &source.run.outcome);
    let at = source.as_ref().map(|Source { run, claim, .. }| {
        let point = operating_point::operating_point(&run.outcome, claim);
        format!("{point}; {} blocks", run.outcome.blocks())
    });
    let earlier = source.as_ref().map(|it| earlier::other_verdicts(&it.run.outcome, &it.claim));
    Ok(Number {
        of: &reading.of,
        run: source.as_ref().map(|source| name(&source.run.directory)),
        at: at.unwrap_or_default(),
        text: judged.map_or_else(|| "–".to_owned(), points::line),
        value: judged.and_then(|it| it.value),
        low: judged.and_then(|it| it.low),
        high: judged.and_then(|it| it.high),
        verdict,
        earlier: earlier.unwrap_or_default(),
        machine: outcome.map_or_else(Vec::new, operating_point::facts),
        source,
    })
}

fn line<'a>(
    runs: &'a [Publication],
    published: &Published<'a>,
    row: &'a Row,
) -> anyhow::Result<Line<'a>> {
    let number = |reading| number(runs, published, reading);
    let readings: Vec<Number<'_>> =
        row.reading.iter().map(number).collect::<anyhow::Result<_>>()?;
    let each = || readings.iter().map(|number| number.verdict.clone()).collect();
    let verdicts = match &row.not_testable {
        Some(why) => vec![ReaderVerdict::NotTestable(why.clone())],
        None if row.has_statements() => each(),
        None => vec![ReaderVerdict::of_all(each(), &row.decided_by)],
    };
    Ok(Line { statement: String::new(), verdicts, readings, row })
}

impl Row {
    /// Whether each reading is a statement of its own.
    fn has_statements(&self) -> bool {
        self.reading.len() > 1 && self.decided_by.is_empty()
    }
}

impl Number<'_> {
    /// Returns the text with what it is about before it.
    fn about(&self, text: &str) -> String {
        if self.of.is_empty() { text.to_owned() } else { format!("{}: {text}", self.of) }
    }

    /// Returns the number with a link to its run.
    fn here(&self) -> String {
        let run = self.run.iter().map(|run| format!(" ([run](runs/{run}/README.md))"));
        run.fold(self.about(&self.text), |text, link| text + &link)
    }

    /// Returns the verdicts under other thresholds, as the end of a verdict.
    fn earlier(&self) -> String {
        self.earlier.iter().fold(String::new(), |text, earlier| text + "; " + earlier)
    }
}

impl Line<'_> {
    fn each(&self, of: impl Fn(&Number<'_>) -> String) -> String {
        let texts = self.readings.iter().map(of);
        let mut each: Vec<String> = texts.filter(|text| !text.is_empty()).collect();
        each.dedup();
        each.join("<br>")
    }

    /// Returns the numbers, each with its own verdict if the verdicts differ and are not shown as a list.
    fn here(&self) -> String {
        let differ = self.readings.iter().any(|it| it.verdict != self.readings[0].verdict);
        let says = differ && !self.row.has_statements();
        let verdict =
            |it: &Number<'_>| if says { format!(" {}", it.verdict.name()) } else { String::new() };
        let here = self.each(|it| it.here() + &verdict(it));
        if here.is_empty() { "–".to_owned() } else { here }
    }

    /// Returns the verdict or the verdicts, with those under other thresholds if they differ.
    fn verdict(&self) -> String {
        if !self.row.has_statements() {
            let earlier = self.readings.iter().map(Number::earlier);
            return earlier.fold(self.verdicts[0].to_string(), |text, earlier| text + &earlier);
        }
        let verdict = |it: &Number<'_>| format!("{}{}", it.verdict, it.earlier());
        let first = verdict(&self.readings[0]);
        let is_one = self.readings.iter().all(|it| verdict(it) == first);
        if is_one { first } else { self.each(|it| it.about(&verdict(it))) }
    }

    /// Returns what differs from the paper's experiment: the machines first, as far as they are not `common`.
    fn differs(&self, common: &[String]) -> String {
        let beside = |it: &Number<'_>| operating_point::beside(&it.machine, common);
        let mut parts: Vec<String> = self.readings.iter().map(beside).collect();
        parts.push(self.row.differs.clone());
        parts.retain(|part| !part.is_empty());
        parts.dedup();
        parts.join("; ")
    }

    /// Returns the picture of the first reading that has one.
    fn picture(&self) -> String {
        let file = |number: &Number<'_>| {
            let Source { run, claim, .. } = number.source.as_ref()?;
            let file = picture::file_of(run, claim, self.row.picture.as_deref())?;
            Some(format!("runs/{}/{file}", name(&run.directory)))
        };
        let file = self.readings.iter().find_map(file);
        let image =
            |file| format!("<br><img src=\"{file}\" width=\"200\" alt=\"{}\">", self.row.figure);
        file.map_or_else(String::new, image)
    }

    /// Writes the row, and keeps its text for the file of readings.
    fn write(&mut self, text: &mut String, common: &[String]) {
        let row = self.row;
        let at = self.each(|it| it.at.clone());
        let (here, verdict, differs) = (self.here(), self.verdict(), self.differs(common));
        let cells = [&row.claim, &row.paper, &here, &verdict, &at, &differs].map(|it| cell(it));
        let cells = cells.join(" | ");
        let _ = writeln!(text, "| {}{} | {cells} |", cell(&row.figure), self.picture());
        self.statement = cells;
    }
}

/// Returns the machine of most readings.
fn common(lines: &[Line<'_>]) -> Vec<String> {
    let mut counts: BTreeMap<&[String], usize> = BTreeMap::new();
    for number in lines.iter().flat_map(|line| &line.readings).filter(|it| it.run.is_some()) {
        *counts.entry(&number.machine).or_default() += 1;
    }
    let most = counts.into_iter().max_by_key(|(_, count)| *count);
    most.map_or_else(Vec::new, |(machine, _)| machine.to_vec())
}

/// Returns the page, and the JSON text of its numbers.
///
/// # Errors
/// Fails if `results.toml` names a run that does not exist.
pub fn markdown(runs: &[Publication], register: &Register) -> anyhow::Result<(String, String)> {
    let results = results()?;
    let published = Published::of(runs, register)?;
    let (mut text, mut all) = (String::new(), Vec::new());
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for section in &results.section {
        let lines = section.row.iter().map(|row| line(runs, &published, row));
        let mut lines: Vec<Line<'_>> = lines.collect::<anyhow::Result<_>>()?;
        let common = common(&lines);
        let _ = write!(
            text,
            "\n## {}\n\nThe machine, unless a row says otherwise: {}.\n\n<!-- figures: docs/{READINGS} -->\n| figure | \
             claim | the paper | here | verdict | operating point | what differs |\n|---|---|---|---|---|---|---|\n",
            section.title,
            common.join(", ")
        );
        for line in &mut lines {
            line.write(&mut text, &common);
            line.verdicts.iter().for_each(|it| *counts.entry(it.name()).or_default() += 1);
            all.push(serde_json::to_value(&*line)?);
        }
        if !section.note.is_empty() {
            let _ = write!(text, "\n{}\n", section.note);
        }
    }
    let counts: Vec<String> =
        counts.iter().map(|(name, count)| format!("{count} {name}")).collect();
    let page = format!("{HEAD}\nVerdicts on this page: {}.\n{text}", counts.join(", "));
    Ok((page, serde_json::to_string_pretty(&all)? + "\n"))
}

/// The beginning of the page.
const HEAD: &str = "\
# Results, paper by paper

`pollux lab report docs/runs/*/ --out docs` writes this page from the published runs; do not change it by hand.

**reproduced**: at least half of the paper's effect, or the equality that the paper states. **direction only**: the
effect has the paper's direction, but is less than half as large, or the paper gives no size. **contradicted**: no such
effect, or the opposite. **depends**: two reasonable operating points give different results. **not significant**: the
run alone decides the claim, but not after a correction for all runs of it and for all primary claims of the paper.
**not testable**: this machine or these data cannot decide the claim.

Numbers are ratios, or shares of the requests, unless they have a unit, with a 95 % interval over the blocks of a run;
several operating points with one verdict have one range. A rate x1.05 is 1.05 times poll's own limit with one idle connection.
The hollow marks of a picture are the numbers of the paper, with their source; where there are none, the text of the
paper has no number that the picture could show.
[papers.md](papers.md) has every claim, every run and the machines of the papers, [runs/](runs/README.md) the raw data,
and [decisions/0120-thresholds.md](decisions/0120-thresholds.md) the thresholds.
";

#[cfg(test)]
mod tests;
