//! Tests of the page of results.

use super::{verdict::tests::claim, *};
use crate::{
    experiment::{Threshold, find as find_experiment, ids},
    result::Outcome,
    statistics::Compare,
    verdict::Verdict,
};
use std::path::PathBuf;

/// The page is one page: about this many rows.
const ROWS: std::ops::RangeInclusive<usize> = 20..=28;
/// The most characters of a cell that `results.toml` gives.
const MAX_CELL: usize = 132;
/// The most readings of a row, which has a line for each.
const MAX_READINGS: usize = 3;

#[test]
fn a_figure_has_the_unit_of_its_metric() {
    let mut claim = ClaimOutcome {
        value: Some(325_066_422.0),
        metric: "partner_after_load_ns".into(),
        compare: Compare::Value,
        ..claim(Verdict::Holds, [3e8, 3.5e8], Threshold::Below(1e9))
    };
    assert_eq!(claim.measured().unwrap(), "0.325 [0.300, 0.350] s");
    assert_eq!(claim.condition(), "< 1 s");
    claim.compare = Compare::Ratio;
    assert!(!claim.measured().unwrap().contains(" s"), "a ratio has no unit");
}

#[test]
fn the_list_of_results_is_right() {
    let sections = results().unwrap().section;
    let rows: Vec<Row> = sections.into_iter().flat_map(|section| section.row).collect();
    assert!(ROWS.contains(&rows.len()), "{} rows", rows.len());
    let claims: Vec<String> =
        ids().flat_map(|id| find_experiment(id).unwrap().claim).map(|claim| claim.id).collect();
    for row in &rows {
        assert!(row.not_testable.is_some() || !row.reading.is_empty(), "{}", row.claim);
        assert!(row.reading.len() <= MAX_READINGS, "{}", row.claim);
        for text in [&row.claim, &row.paper, &row.differs, &row.decided_by] {
            assert!(text.chars().count() <= MAX_CELL, "too long: {text}");
        }
        for reading in &row.reading {
            assert!(!row.has_statements() || !reading.of.is_empty(), "{reading:?}");
            assert!(reading.claim.is_some() || reading.not_testable.is_some(), "{reading:?}");
            assert!(reading.claim.iter().all(|id| claims.contains(id)), "{reading:?}");
        }
    }
}

fn number<'a>(of: &'a str, text: &str, verdict: ReaderVerdict) -> Number<'a> {
    Number {
        of,
        source: None,
        run: Some("2026-11-29-provos-fig10".into()),
        at: "poll; idle 501".into(),
        text: text.into(),
        value: None,
        low: None,
        high: None,
        verdict,
        earlier: Vec::new(),
        machine: vec!["a machine".into()],
    }
}

/// Writes a row of two readings, and returns its cells.
fn cells(decided_by: &str, readings: Vec<Number<'_>>) -> Vec<String> {
    let reading = || Reading { claim: Some("P4".into()), ..Reading::default() };
    let (decided_by, reading) = (decided_by.to_owned(), vec![reading(), reading()]);
    let row = Row { figure: "Figure 10".into(), decided_by, reading, ..Row::default() };
    let each = readings.iter().map(|it| it.verdict.clone()).collect();
    let verdicts = vec![ReaderVerdict::of_all(each, &row.decided_by)];
    let mut line = Line { statement: String::new(), verdicts, readings, row: &row };
    let mut text = String::new();
    line.write(&mut text, &["another machine".to_owned()]);
    assert_eq!(text.lines().count(), 1, "{text}");
    text.split('|').map(|cell| cell.trim().to_owned()).collect()
}

#[test]
fn statements_have_a_verdict_each_and_readings_have_one_together() {
    let (yes, no) = (ReaderVerdict::Reproduced, ReaderVerdict::Contradicted);
    let readings = || vec![number("501", "0.9", yes.clone()), number("251", "0.8", no.clone())];
    let run = "([run](runs/2026-11-29-provos-fig10/README.md))";
    let of_statements = cells("", readings());
    assert_eq!(of_statements[4], format!("501: 0.9 {run}<br>251: 0.8 {run}"));
    assert_eq!(of_statements[5], "501: **reproduced**<br>251: **contradicted**");
    assert_eq!(of_statements[6], "poll; idle 501", "what is the same is said once");
    assert_eq!(of_statements[7], "a machine");
    let together = cells("the rate", readings());
    assert_eq!(together[4], format!("501: 0.9 {run} reproduced<br>251: 0.8 {run} contradicted"));
    assert_eq!(together[5], "**depends** on the rate");
    let agree = vec![number("501", "0.9", yes.clone()), number("251", "0.8", yes.clone())];
    assert_eq!(cells("", agree)[5], "**reproduced**");
}

/// Returns a run of a built-in experiment, with rates and without measurements.
fn run(name: &str, id: &str) -> Publication {
    let mut outcome = Outcome::new(find_experiment(id).unwrap());
    outcome.dimensions.push(crate::plan::rate_dimension(&[500.0, 1_000.0]));
    let directory = PathBuf::from(format!("runs/{name}"));
    Publication { given: directory.clone(), directory, outcome }
}

/// A row of a claim that is newer than the run is filled by the run's data, and a run that lacks the points of
/// the claim does not fill it.
#[test]
fn a_claim_is_read_from_a_run_that_has_its_points() {
    let mut older = run("2026-11-25-provos-fig4-9", "provos-fig4-9");
    older.outcome.experiment.claim.clear();
    let found = judged(&older, "P1-latency").unwrap();
    assert_eq!(found.claim.id, "P1-latency");
    assert!(judged(&older, "P3-answered").is_none(), "it has no rate of 0.95");
    assert!(judged(&older, "P4").is_none(), "another experiment has this claim");
    let mut without_poll = run("2026-11-25-provos-fig4-9", "provos-fig4-9");
    without_poll.outcome.experiment.claim.clear();
    without_poll.outcome.experiment.variant.retain(|it| it.name != "poll");
    assert!(judged(&without_poll, "P1-latency").is_none(), "it has no poll");
    assert!(judged(&without_poll, "P3-latency").is_some(), "which is about /dev/poll alone");
    let cell = crate::plan::Cell { variant: "poll".into(), point: Default::default() };
    let (rps, raw) = (Some(1_000.0), crate::measure::Raw::default());
    older.outcome.saturation.push(crate::result::Saturation { cell, rps, note: None, raw });
    older.outcome.dimensions.retain(|dimension| dimension.name != "rate");
    older.outcome.dimensions.push(crate::plan::rate_dimension(&[500.0, 950.0]));
    assert!(judged(&older, "P3-answered").is_some());
    older.outcome.experiment.rate.as_mut().unwrap().reference = None;
    assert!(judged(&older, "P3-answered").is_none(), "0.95 of something else");
    older.outcome.dimensions.retain(|dimension| dimension.name != "idle");
    assert!(judged(&older, "P1-latency").is_none(), "it has no idle connections");
}

/// Regression test: P1-zero was once *contradicted* by a run at a rate below poll's limit, at which poll answered
/// every request.
#[test]
fn a_run_that_could_not_come_out_otherwise_decides_nothing() {
    let results = results().unwrap();
    let mut rows = results.section.iter().flat_map(|section| &section.row);
    let row = rows.find(|row| row.reading.iter().any(|it| it.claim.as_deref() == Some("P1-zero")));
    let with_rate = |name: &str| {
        let mut run = run(name, "provos-fig4-9");
        let cell = crate::plan::Cell { variant: "poll".into(), point: Default::default() };
        let (rps, raw) = (Some(1_000.0), crate::measure::Raw::default());
        run.outcome.saturation.push(crate::result::Saturation { cell, rps, note: None, raw });
        run.outcome.dimensions.retain(|dimension| dimension.name != "rate");
        run.outcome.dimensions.push(crate::plan::rate_dimension(&[500.0, 1_050.0]));
        run
    };
    let older = with_rate("2026-11-25-provos-fig4-9-least");
    let newer = with_rate("2026-11-30-provos-fig4-9");
    let register = Register::default();
    let of = |runs: &[Publication]| {
        let published = Published::of(runs, &register).unwrap();
        line(runs, &published, row.unwrap()).unwrap().verdicts.remove(0).to_string()
    };
    assert!(of(&[older]).contains("nine tenths of poll's limit"));
    assert!(!of(&[newer]).contains("nine tenths of poll's limit"));
}
