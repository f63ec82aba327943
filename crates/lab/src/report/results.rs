//! `docs/results.md`: one row for each result of the papers, for a reader who does not know the
//! identifiers.
//!
//! `results.toml` names the published runs for each row; the numbers and the verdicts come from their
//! raw data.

use super::{
    markdown::cell,
    overview::{Publication, name},
};
use crate::{
    claims,
    experiment::{Claim, Threshold},
    statistics::Compare,
    verdict::{ClaimOutcome, Verdict},
};
use anyhow::Context as _;
use serde::{Deserialize, Serialize};
use std::fmt::{self, Write as _};
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
    /// The difference from the paper's machine.
    differs: String,
    /// A drawing of a run: `provos-fig10/errors-2`.
    picture: Option<String>,
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
#[serde(deny_unknown_fields)]
struct Reading {
    /// The directory of the run, without its date.
    run: String,
    /// The operating point.
    at: String,
    /// The claim's identifier in that run.
    claim: Option<String>,
    /// A claim about the run's data that the run itself does not have, without an identifier and a statement.
    #[serde(rename = "ask")]
    query: Option<Table>,
}

/// The verdict in the words of the page.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ReaderVerdict {
    /// At least half of the paper's effect, or the equality that the paper states, was measured.
    Reproduced,
    /// The effect has the paper's direction, but less than half of its size.
    DirectionOnly,
    /// There is no such effect, or the opposite effect.
    Contradicted,
    /// Reasonable operating points disagree; the text names the parameter that decides.
    Depends(String),
    /// The data here cannot decide the claim; the text is the reason.
    NotTestable(String),
}

impl fmt::Display for ReaderVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Reproduced => f.write_str("**reproduced**"),
            Self::DirectionOnly => f.write_str("**direction only**"),
            Self::Contradicted => f.write_str("**contradicted**"),
            Self::Depends(on) => write!(f, "**depends** on {on}"),
            Self::NotTestable(why) => write!(f, "**not testable**: {why}"),
        }
    }
}

impl ReaderVerdict {
    /// Returns the reader's verdict on one claim.
    pub fn of(claim: &ClaimOutcome, compare: Compare) -> Self {
        match claim.verdict {
            Verdict::Holds => Self::Reproduced,
            Verdict::Depends => Self::Depends(claim.remark().unwrap_or_default()),
            Verdict::DoesNotHold if goes_the_way(claim, compare) => Self::DirectionOnly,
            Verdict::DoesNotHold => Self::Contradicted,
            Verdict::Undecided | Verdict::Seen | Verdict::NotTestable => {
                let why = claim.remark().or_else(|| claim.parts.iter().find_map(|part| part.why()));
                Self::NotTestable(why.unwrap_or_else(|| claim.verdict.to_string()))
            }
        }
    }

    /// Returns the reader's verdict on several readings of one result.
    pub fn of_all(readings: Vec<Self>, decided_by: &str) -> Self {
        let is_open = |verdict: &Self| matches!(verdict, Self::NotTestable(_));
        let mut decided = readings.iter().filter(|verdict| !is_open(verdict));
        let Some(first) = decided.next().cloned() else {
            let open = readings.into_iter().next();
            return open
                .unwrap_or_else(|| Self::NotTestable("no published run measures it".into()));
        };
        if decided.all(|verdict| *verdict == first) {
            first
        } else {
            Self::Depends(decided_by.to_owned())
        }
    }
}

/// Returns whether the interval lies on the same side of "no effect" as the claim's threshold.
fn goes_the_way(claim: &ClaimOutcome, compare: Compare) -> bool {
    let none = match compare {
        Compare::Ratio => 1.0,
        Compare::Difference => 0.0,
        Compare::Value => return false,
    };
    let Some((low, high)) = claim.low.zip(claim.high) else { return false };
    match claim.threshold {
        Threshold::Above(limit) => limit > none && low > none,
        Threshold::Below(limit) => limit < none && high < none,
        Threshold::Within(_) => false,
    }
}

/// A row with its numbers.
#[derive(Debug, Serialize)]
struct Line<'a> {
    /// The whole text of the row; the repository's test looks for numbers under this name.
    statement: String,
    verdict: ReaderVerdict,
    readings: Vec<Number<'a>>,
    #[serde(skip)]
    row: &'a Row,
}

#[derive(Debug, Serialize)]
struct Number<'a> {
    run: String,
    at: &'a str,
    /// The number as the page shows it.
    text: String,
    value: Option<f64>,
    low: Option<f64>,
    high: Option<f64>,
    blocks: u32,
    verdict: ReaderVerdict,
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

fn number<'a>(runs: &[Publication], row: &Row, reading: &'a Reading) -> anyhow::Result<Number<'a>> {
    let run = find(runs, &reading.run)?;
    let outcome = &run.outcome;
    let (judged, compare) = match (&reading.claim, &reading.query) {
        (Some(id), None) => {
            let here = || format!("the run {} makes no claim {id}", reading.run);
            let judged = outcome.claims.iter().find(|claim| claim.id == *id);
            let claim = outcome.experiment.claim.iter().find(|claim| claim.id == *id);
            (judged.with_context(here)?.clone(), claim.with_context(here)?.compare)
        }
        (None, Some(query)) => {
            let claim = claim_of(row, query)?;
            (claims::judge_one(outcome, &claim), claim.compare)
        }
        _ => anyhow::bail!("a reading of {} has either a claim or a question", row.figure),
    };
    Ok(Number {
        run: name(&run.directory),
        at: &reading.at,
        text: judged.measured().unwrap_or_else(|| "–".into()),
        value: judged.value,
        low: judged.low,
        high: judged.high,
        blocks: outcome.blocks(),
        verdict: ReaderVerdict::of(&judged, compare),
    })
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

fn line<'a>(runs: &[Publication], row: &'a Row) -> anyhow::Result<Line<'a>> {
    let readings: Vec<Number<'a>> =
        row.reading.iter().map(|it| number(runs, row, it)).collect::<anyhow::Result<_>>()?;
    let verdict = match &row.not_testable {
        Some(why) => ReaderVerdict::NotTestable(why.clone()),
        None => {
            let verdicts = readings.iter().map(|number| number.verdict.clone()).collect();
            ReaderVerdict::of_all(verdicts, &row.decided_by)
        }
    };
    let says = |number: &Number<'_>| format!("{} {} {:?}", number.text, number.at, number.verdict);
    let mut words = vec![row.claim.clone(), row.paper.clone(), row.differs.clone()];
    words.extend(readings.iter().map(says));
    words.push(verdict.to_string());
    Ok(Line { statement: words.join(" | "), verdict, readings, row })
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
         **direction only**: the effect has the paper's direction but less than half of its size. **contradicted**: \
         no such effect, or the opposite effect. **depends**: two reasonable operating points give different results; \
         the row has both numbers. **not testable**: this machine or these data cannot decide the claim.\n\n\
         A ratio has a 95 % interval over the blocks of one run. [papers.md](papers.md) has every claim, \
         [runs/](runs/README.md) has the raw data, and \
         [decisions/0120-thresholds.md](decisions/0120-thresholds.md) explains the thresholds and lists all runs of \
         each primary claim.\n",
    );
    let mut all = Vec::new();
    for section in &results.section {
        let _ = write!(
            text,
            "\n## {}\n\n<!-- figures: docs/{READINGS} -->\n| figure | claim | the paper | here | verdict | operating \
             point | what differs |\n|---|---|---|---|---|---|---|\n",
            section.title
        );
        for row in &section.row {
            let line = line(runs, row)?;
            markdown_row(&mut text, runs, &line)?;
            all.push(serde_json::to_value(&line)?);
        }
    }
    Ok((text, serde_json::to_string_pretty(&all)? + "\n"))
}

fn markdown_row(text: &mut String, runs: &[Publication], line: &Line<'_>) -> anyhow::Result<()> {
    let row = line.row;
    let picture = match &row.picture {
        Some(picture) => {
            let (run, figure) = picture.split_once('/').context("picture = \"RUN/FIGURE\"")?;
            let directory = name(&find(runs, run)?.directory);
            format!(
                "<br><img src=\"runs/{directory}/figures/{figure}.svg\" width=\"200\" alt=\"{}\">",
                row.figure
            )
        }
        None => String::new(),
    };
    let each = |of: &dyn Fn(&Number<'_>) -> String| {
        line.readings.iter().map(of).collect::<Vec<_>>().join("<br>")
    };
    let here = each(&|it| format!("{} ([run](runs/{}/README.md))", it.text, it.run));
    let here = if here.is_empty() { "–".to_owned() } else { here };
    let at = each(&|it| format!("{} ({} blocks)", it.at, it.blocks));
    let _ = writeln!(
        text,
        "| {}{picture} | {} | {} | {here} | {} | {at} | {} |",
        cell(&row.figure),
        cell(&row.claim),
        cell(&row.paper),
        cell(&line.verdict.to_string()),
        cell(&row.differs),
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(verdict: Verdict, ends: [f64; 2], threshold: Threshold) -> ReaderVerdict {
        let claim = ClaimOutcome {
            id: String::new(),
            statement: String::new(),
            verdict,
            metric: "throughput_rps".into(),
            compare: Compare::Ratio,
            value: None,
            low: Some(ends[0]),
            high: Some(ends[1]),
            bound: None,
            paper: None,
            paper_says: String::new(),
            threshold,
            primary: false,
            p: None,
            p_with_all: None,
            parts: Vec::new(),
        };
        ReaderVerdict::of(&claim, Compare::Ratio)
    }

    #[test]
    fn half_of_the_effect_is_reproduced_and_less_is_its_direction() {
        let below = Threshold::Below(0.6);
        assert_eq!(verdict(Verdict::Holds, [0.2, 0.3], below), ReaderVerdict::Reproduced);
        assert_eq!(verdict(Verdict::DoesNotHold, [0.8, 0.9], below), ReaderVerdict::DirectionOnly);
        assert_eq!(verdict(Verdict::DoesNotHold, [0.9, 1.1], below), ReaderVerdict::Contradicted);
        assert_eq!(verdict(Verdict::DoesNotHold, [1.1, 1.2], below), ReaderVerdict::Contradicted);
        let alike = Threshold::Within([0.95, 1.05]);
        assert_eq!(verdict(Verdict::DoesNotHold, [1.1, 1.2], alike), ReaderVerdict::Contradicted);
    }

    #[test]
    fn readings_that_disagree_depend_on_a_parameter() {
        let of = |all: &[ReaderVerdict]| ReaderVerdict::of_all(all.to_vec(), "the cap");
        let (yes, no) = (ReaderVerdict::Reproduced, ReaderVerdict::Contradicted);
        let open = ReaderVerdict::NotTestable("noise".into());
        assert_eq!(of(&[yes.clone(), no.clone()]), ReaderVerdict::Depends("the cap".into()));
        assert_eq!(of(&[yes.clone(), open.clone()]), yes);
        assert_eq!(of(std::slice::from_ref(&open)), open);
        assert!(matches!(of(&[]), ReaderVerdict::NotTestable(_)));
    }

    #[test]
    fn the_list_of_results_is_right() {
        let rows: Vec<Row> = results().unwrap().section.into_iter().flat_map(|s| s.row).collect();
        assert!((20..=40).contains(&rows.len()), "{} rows", rows.len());
        for row in &rows {
            assert!(row.not_testable.is_some() || !row.reading.is_empty(), "{}", row.claim);
            assert!(row.reading.len() < 2 || !row.decided_by.is_empty(), "{}", row.claim);
            for query in row.reading.iter().filter_map(|reading| reading.query.as_ref()) {
                claim_of(row, query).unwrap();
            }
        }
    }
}
