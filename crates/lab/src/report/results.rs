//! `docs/results.md`: one row for each result of the papers, for a reader who does not know the
//! identifiers.
//!
//! `results.toml` names the published runs for each row; the numbers and the verdicts come from their
//! raw data.

mod verdict;

pub use verdict::ReaderVerdict;

use super::{
    earlier,
    markdown::cell,
    operating_point,
    overview::{Publication, Published, name},
};
use crate::{
    claims,
    experiment::Claim,
    verdict::{ClaimOutcome, Verdict},
};
use anyhow::Context as _;
use serde::{Deserialize, Serialize};
use std::fmt::Write as _;
use toml::Table;

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
    row: Vec<Row>,
}

#[derive(Debug, Deserialize)]
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
    /// Drawings of runs: `provos-fig10/errors-2`. The first one that was kept is shown.
    #[serde(default)]
    picture: Vec<String>,
    /// The parameter that decides the result if the readings disagree.
    #[serde(default)]
    decided_by: String,
    /// The reason why this machine cannot test the claim.
    not_testable: Option<String>,
    #[serde(default)]
    reading: Vec<Reading>,
}

/// One number: a claim of a run, or a claim that is computed here from the run's data.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Reading {
    /// The directory of the run, without its date.
    run: String,
    /// The operating point in words; if absent, the values of the axes.
    at: Option<String>,
    /// The claim's identifier in that run.
    claim: Option<String>,
    /// A claim about the run's data that the run itself does not have, without an identifier and a statement.
    #[serde(rename = "ask")]
    query: Option<Table>,
    /// For such a claim: the claim whose runs are counted as tries.
    tries_of: Option<String>,
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
    verdict: ReaderVerdict,
    readings: Vec<Number>,
    #[serde(skip)]
    row: &'a Row,
}

#[derive(Debug, Serialize)]
struct Number {
    run: String,
    at: String,
    /// The number as the page shows it; one line for each operating point.
    lines: Vec<String>,
    value: Option<f64>,
    low: Option<f64>,
    high: Option<f64>,
    blocks: u32,
    verdict: ReaderVerdict,
    /// The verdicts under other thresholds that were once written down, if they differ.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    earlier: Vec<String>,
    /// How this machine differs from the paper's.
    machine: String,
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

fn number(
    runs: &[Publication],
    published: &Published<'_>,
    row: &Row,
    reading: &Reading,
) -> anyhow::Result<Number> {
    let run = find(runs, &reading.run)?;
    let outcome = &run.outcome;
    let (judged, claim) = match (&reading.claim, &reading.query) {
        (Some(id), None) => {
            let judged = outcome.claims.iter().find(|claim| claim.id == *id);
            let claim = outcome.experiment.claim.iter().find(|claim| claim.id == *id);
            judged.cloned().zip(claim.cloned())
        }
        (None, Some(query)) => {
            let claim = claim_of(row, query)?;
            Some((claims::judge_one(outcome, &claim), claim))
        }
        _ => anyhow::bail!("a reading of {} has either a claim or a question", row.figure),
    }
    .unzip();
    let tries_of = reading.claim.as_ref().or(reading.tries_of.as_ref());
    let doubt = judged
        .as_ref()
        .and_then(|judged| published.doubt(tries_of.map_or("", String::as_str), judged));
    let too_early = reading.before.as_ref().filter(|it| run.day() < it.day.as_str());
    let too_early = too_early.map(|it| it.why.clone());
    let verdict = match (&judged, doubt) {
        // The experiment may have changed since the run.
        (None, _) => ReaderVerdict::NotTestable("the published run does not judge it".into()),
        (Some(_), _) if too_early.is_some() => {
            ReaderVerdict::NotTestable(too_early.unwrap_or_default())
        }
        (Some(judged), Some(over)) => {
            ReaderVerdict::NotSignificant { over, alone: Box::new(ReaderVerdict::of(judged)) }
        }
        (Some(judged), None) => ReaderVerdict::of(judged),
    };
    let point = || claim.as_ref().map(|claim| operating_point::operating_point(outcome, claim));
    let earlier = |id: &String| {
        let claim = claim.as_ref().filter(|claim| claim.id == *id)?;
        Some(earlier::other_verdicts(outcome, claim))
    };
    Ok(Number {
        run: name(&run.directory),
        at: reading.at.clone().or_else(point).unwrap_or_default(),
        lines: judged.as_ref().map_or_else(|| vec!["–".to_owned()], lines),
        value: judged.as_ref().and_then(|it| it.value),
        low: judged.as_ref().and_then(|it| it.low),
        high: judged.as_ref().and_then(|it| it.high),
        blocks: outcome.blocks(),
        verdict,
        earlier: reading.claim.as_ref().and_then(earlier).unwrap_or_default(),
        machine: operating_point::machine(outcome),
    })
}

/// Returns the number of each operating point, or the only number of the claim.
fn lines(claim: &ClaimOutcome) -> Vec<String> {
    let has_points = claim.parts.iter().any(|part| part.operating_point.is_some());
    if !has_points || claim.parts.len() < 2 {
        return vec![claim.measured().unwrap_or_else(|| "–".into())];
    }
    let line = |part: &crate::verdict::Part| {
        let says = match claim.verdict {
            Verdict::Depends => format!(": {}", part.verdict),
            _ => String::new(),
        };
        let number = claim.reading_of(part).unwrap_or_else(|| "–".into());
        let point = part.operating_point.as_deref().unwrap_or_default();
        format!("{point}: {number}{says}")
    };
    claim.parts.iter().map(line).collect()
}

/// Returns the claim that a query makes.
fn claim_of(row: &Row, query: &Table) -> anyhow::Result<Claim> {
    let mut claim = query.clone();
    for key in ["id", "statement", "source", "primary", "control"] {
        anyhow::ensure!(
            !claim.contains_key(key),
            "results.toml: a question of {} has the key {key}, which only claims have",
            row.figure
        );
    }
    claim.insert("id".into(), row.figure.clone().into());
    claim.insert("statement".into(), row.claim.clone().into());
    claim.try_into().with_context(|| format!("results.toml: a question of {}", row.figure))
}

fn line<'a>(
    runs: &[Publication],
    published: &Published<'_>,
    row: &'a Row,
) -> anyhow::Result<Line<'a>> {
    let number = |reading| number(runs, published, row, reading);
    let readings: Vec<Number> = row.reading.iter().map(number).collect::<anyhow::Result<_>>()?;
    let verdict = match &row.not_testable {
        Some(why) => ReaderVerdict::NotTestable(why.clone()),
        None => {
            let verdicts = readings.iter().map(|number| number.verdict.clone()).collect();
            ReaderVerdict::of_all(verdicts, &row.decided_by)
        }
    };
    let mut line = Line { statement: String::new(), verdict, readings, row };
    line.statement =
        [&row.claim, &row.paper, &line.here(), &line.verdict(), &line.at(), &line.differs()]
            .map(String::as_str)
            .join(" | ");
    Ok(line)
}

impl Line<'_> {
    fn each(&self, of: impl Fn(&Number) -> String) -> String {
        self.readings.iter().map(of).collect::<Vec<_>>().join("<br>")
    }

    /// Returns the numbers, each with its own verdict if the verdicts differ.
    fn here(&self) -> String {
        let differ = self.readings.iter().any(|it| it.verdict != self.readings[0].verdict);
        let here = self.each(|it| {
            let verdict = if differ { format!(" {}", it.verdict) } else { String::new() };
            format!("{} ([run](runs/{}/README.md)){verdict}", it.lines.join("<br>"), it.run)
        });
        if here.is_empty() { "–".to_owned() } else { here }
    }

    /// Returns the verdict, and the verdicts under other thresholds if they differ.
    fn verdict(&self) -> String {
        let mut text = self.verdict.to_string();
        let mut earlier: Vec<&String> = self.readings.iter().flat_map(|it| &it.earlier).collect();
        earlier.dedup();
        for earlier in earlier {
            let _ = write!(text, "; {earlier}");
        }
        text
    }

    fn at(&self) -> String {
        self.each(|it| format!("{} ({} blocks)", it.at, it.blocks))
    }

    /// Returns what differs from the paper's experiment: the machines first.
    fn differs(&self) -> String {
        let mut parts: Vec<&str> = self.readings.iter().map(|it| it.machine.as_str()).collect();
        parts.dedup();
        parts.push(&self.row.differs);
        parts.retain(|part| !part.is_empty());
        parts.join("; ")
    }
}

/// Returns the page, and the JSON text of its numbers.
///
/// # Errors
/// Fails if `results.toml` names a run or a claim that does not exist.
pub fn markdown(runs: &[Publication]) -> anyhow::Result<(String, String)> {
    let results = results()?;
    let mut text = String::from(
        "# Results, paper by paper\n\n\
         `pollux lab report docs/runs/*/ --out docs` writes this page from the published runs; do not change it by \
         hand.\n\n\
         **reproduced**: we measured at least half of the paper's effect, or the equality that the paper states. \
         **direction only**: the effect has the paper's direction but less than half of its size; or the paper gives \
         no size, and any difference counts. **contradicted**: no such effect, or the opposite effect. **depends**: \
         two reasonable operating points give different results; the row has both numbers. **not significant**: the \
         run decides the claim, but not after a correction for all runs that were made of it and for all primary \
         claims of the paper. **not testable**: this machine or these data cannot decide the claim.\n\n\
         A ratio has a 95 % interval over the blocks of one run. [papers.md](papers.md) has every claim and lists all \
         runs of each primary claim, [runs/](runs/README.md) has the raw data, and \
         [decisions/0120-thresholds.md](decisions/0120-thresholds.md) explains the thresholds.\n",
    );
    let published = Published::of(runs)?;
    let mut all = Vec::new();
    for section in &results.section {
        let _ = write!(
            text,
            "\n## {}\n\n<!-- figures: docs/{READINGS} -->\n| figure | claim | the paper | here | verdict | operating \
             point | what differs |\n|---|---|---|---|---|---|---|\n",
            section.title
        );
        for row in &section.row {
            let line = line(runs, &published, row)?;
            markdown_row(&mut text, runs, &line)?;
            all.push(serde_json::to_value(&line)?);
        }
    }
    Ok((text, serde_json::to_string_pretty(&all)? + "\n"))
}

fn markdown_row(text: &mut String, runs: &[Publication], line: &Line<'_>) -> anyhow::Result<()> {
    let row = line.row;
    let mut picture = String::new();
    for wanted in &row.picture {
        let (run, figure) = wanted.split_once('/').context("picture = [\"RUN/FIGURE\"]")?;
        let run = find(runs, run)?;
        let file = format!("figures/{figure}.svg");
        if run.given.join(&file).exists() {
            let directory = name(&run.directory);
            picture = format!(
                "<br><img src=\"runs/{directory}/{file}\" width=\"200\" alt=\"{}\">",
                row.figure
            );
            break;
        }
    }
    let _ = writeln!(
        text,
        "| {}{picture} | {} | {} | {} | {} | {} | {} |",
        cell(&row.figure),
        cell(&row.claim),
        cell(&row.paper),
        cell(&line.here()),
        cell(&line.verdict()),
        cell(&line.at()),
        cell(&line.differs()),
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        experiment::{Threshold, find as find_experiment, ids},
        statistics::{Compare, estimate},
        verdict::Part,
    };

    /// A claim that depends shows the number of each operating point.
    #[test]
    fn each_operating_point_has_its_number() {
        let part = |cap: u32, value: f64, verdict| Part {
            variant: "poll".into(),
            operating_point: Some(format!("at-once {cap}")),
            verdict,
            estimate: estimate(&[value; 6]),
            ..Part::default()
        };
        let parts = vec![part(8, 0.1, Verdict::Holds), part(512, 0.9, Verdict::DoesNotHold)];
        let mut claim = ClaimOutcome {
            parts,
            value: Some(0.9),
            ..verdict::tests::claim(Verdict::Depends, [0.9, 0.9], Threshold::Below(0.605))
        };
        assert_eq!(
            lines(&claim),
            [
                "at-once 8: 0.100 [0.100, 0.100]: holds",
                "at-once 512: 0.900 [0.900, 0.900]: does not hold"
            ]
        );
        claim.parts.truncate(1);
        assert_eq!(lines(&claim).len(), 1);
    }

    #[test]
    fn a_figure_has_the_unit_of_its_metric() {
        let mut claim = ClaimOutcome {
            value: Some(325_066_422.0),
            metric: "partner_after_load_ns".into(),
            compare: Compare::Value,
            ..verdict::tests::claim(Verdict::Holds, [3e8, 3.5e8], Threshold::Below(1e9))
        };
        assert_eq!(claim.measured().unwrap(), "0.325 [0.300, 0.350] s");
        assert_eq!(claim.condition(), "< 1 s");
        claim.compare = Compare::Ratio;
        assert!(!claim.measured().unwrap().contains(" s"), "a ratio has no unit");
    }

    #[test]
    fn the_list_of_results_is_right() {
        let rows: Vec<Row> = results().unwrap().section.into_iter().flat_map(|s| s.row).collect();
        assert!((20..=40).contains(&rows.len()), "{} rows", rows.len());
        let claims: Vec<String> =
            ids().flat_map(|id| find_experiment(id).unwrap().claim).map(|claim| claim.id).collect();
        for row in &rows {
            assert!(row.not_testable.is_some() || !row.reading.is_empty(), "{}", row.claim);
            assert!(row.reading.len() < 2 || !row.decided_by.is_empty(), "{}", row.claim);
            for reading in &row.reading {
                let named = reading.claim.iter().chain(&reading.tries_of);
                assert!(named.clone().all(|id| claims.contains(id)), "{reading:?}");
            }
            for query in row.reading.iter().filter_map(|reading| reading.query.as_ref()) {
                claim_of(row, query).unwrap();
            }
        }
    }
}
