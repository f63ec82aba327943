//! A comparison of two results of one experiment, cell by cell: two kernels, two machines, two builds.
//!
//! The blocks of two runs are not pairs, so each cell is compared by Welch's test of the logarithms
//! ([`crate::statistics::welch`]) or, if a value is 0, of the difference. Many cells are compared at once,
//! so the decision whether a cell has changed is adjusted for their number ([`crate::statistics::holm`]).

use crate::{
    format, metric,
    plan::Point,
    result::{CellSummary, Outcome},
    statistics::{Compare, ERROR, Estimate, MIN_BLOCKS, holm, welch},
};
use anyhow::ensure;
use comfy_table::{Cell as TableCell, CellAlignment, ContentArrangement, Table, presets};
use std::collections::BTreeSet;

/// One cell of both results, by one metric.
#[derive(Clone, Debug)]
pub struct Row {
    /// The metric.
    pub metric: String,
    /// The variant.
    pub variant: String,
    /// The values of the axes.
    pub point: Point,
    /// The first result's figure.
    pub a: Estimate,
    /// The second result's figure.
    pub b: Estimate,
    /// The kind of [`Row::change`]: a ratio, or a difference if a value is 0.
    pub compare: Compare,
    /// The second figure divided by the first, or the second minus the first.
    pub change: Estimate,
    /// The probability of such a difference by chance, adjusted for all cells.
    pub p: f64,
}

impl Row {
    /// Whether the cell changed by more than chance. `false` with fewer than six blocks, which cannot
    /// decide it.
    pub fn changed(&self) -> bool {
        self.p <= ERROR && self.change.blocks >= MIN_BLOCKS
    }

    /// Whether the second figure is less than the first.
    fn is_less(&self) -> bool {
        self.change.value < if self.compare == Compare::Ratio { 1.0 } else { 0.0 }
    }
}

/// Returns the metrics of the first result's figures.
fn metrics(outcome: &Outcome) -> BTreeSet<&str> {
    outcome.experiment.figure.iter().map(|figure| figure.y.as_str()).collect()
}

/// Compares the metrics of the first result's figures, in every cell that both results have.
///
/// # Errors
/// When the results are of different experiments, have no cell in common, or have too few runs.
pub fn rows(a: &Outcome, b: &Outcome) -> anyhow::Result<Vec<Row>> {
    ensure!(
        a.experiment.id == b.experiment.id,
        "{} and {} are different experiments: nothing in them is the same cell",
        a.experiment.id,
        b.experiment.id
    );
    let metrics = metrics(a);
    let (mut rows, mut has_common) = (Vec::new(), false);
    for cell in &a.cells {
        let Some(other) = b.cell(&cell.cell.variant, &cell.cell.point) else { continue };
        has_common = true;
        for &metric in &metrics {
            rows.extend(row(a, b, cell, other, metric));
        }
    }
    ensure!(
        has_common,
        "the two have no cell in common: rates that are shares of a saturation differ from run to run; \
         give both the same with [rate] rps, or --paper-rates"
    );
    ensure!(
        !rows.is_empty(),
        "no figure has two runs of a cell in both results, which the comparison needs: measure both with \
         more --blocks"
    );
    let p: Vec<f64> = rows.iter().map(|row| row.p).collect();
    for (row, p) in rows.iter_mut().zip(holm::adjust(&p)) {
        row.p = p;
    }
    Ok(rows)
}

fn row(
    a: &Outcome,
    b: &Outcome,
    cell: &CellSummary,
    other: &CellSummary,
    metric: &str,
) -> Option<Row> {
    let (of_a, of_b) = (values(a, cell, metric), values(b, cell, metric));
    let ratio = welch::ratio(&of_a, &of_b, ERROR).map(|found| (Compare::Ratio, found));
    let difference = || welch::difference(&of_a, &of_b, ERROR).map(|it| (Compare::Difference, it));
    let (compare, (change, p)) = ratio.or_else(difference)?;
    Some(Row {
        metric: metric.to_owned(),
        variant: cell.cell.variant.clone(),
        point: cell.cell.point.clone(),
        a: *cell.metrics.get(metric)?,
        b: *other.metrics.get(metric)?,
        compare,
        change,
        p,
    })
}

/// Returns the values of one cell, from the runs that count.
fn values(outcome: &Outcome, cell: &CellSummary, metric: &str) -> Vec<f64> {
    let runs = outcome.runs_at(&cell.cell.variant, &cell.cell.point);
    runs.filter_map(|run| run.metric(metric)).collect()
}

/// Lists the parts that are not compared: cells that one result lacks, and figures from too few runs.
fn left_out(a: &Outcome, b: &Outcome) -> String {
    let lacks = |one: &Outcome, other: &Outcome| {
        let lacking = |cell: &&CellSummary| {
            cell.valid > 0 && other.cell(&cell.cell.variant, &cell.cell.point).is_none()
        };
        one.cells.iter().filter(lacking).count()
    };
    let both = a
        .cells
        .iter()
        .filter_map(|cell| b.cell(&cell.cell.variant, &cell.cell.point).map(|other| (cell, other)));
    let metrics = metrics(a);
    let few = |(cell, other): (&CellSummary, &CellSummary)| {
        let runs = |metric: &str| [values(a, cell, metric).len(), values(b, other, metric).len()];
        let few = |counts: &[usize; 2]| counts.iter().any(|&n| n < 2) && *counts != [0, 0];
        metrics.iter().map(|metric| runs(metric)).filter(few).count()
    };
    let mut text = String::new();
    let mut line = |count: usize, what: &str| {
        if count > 0 {
            text.push_str(&format!("{what}: {count}\n"));
        }
    };
    line(lacks(a, b), "cells that only A has, not compared");
    line(lacks(b, a), "cells that only B has, not compared");
    line(both.map(few).sum(), "figures with fewer than two runs on one side, not compared");
    text
}

/// Lists the differences between the machines, and the settings that only one of them has.
pub fn conditions(a: &Outcome, b: &Outcome) -> String {
    let mut text = String::new();
    let mut line = |name: &str, a: &str, b: &str| {
        if a != b {
            text.push_str(&format!("{name}: {a} | {b}\n"));
        }
    };
    let none = || "not known".to_owned();
    line("kernel", &a.environment.kernel, &b.environment.kernel);
    let cpu = |o: &Outcome| o.environment.cpu.clone().unwrap_or_else(none);
    line("CPU", &cpu(a), &cpu(b));
    let revision = |o: &Outcome| o.environment.revision.clone().unwrap_or_else(none);
    line("revision", &revision(a), &revision(b));
    line("measured", &a.started_at, &b.started_at);
    text + &left_out(a, b)
}

/// Formats the comparison as tables, one for each metric.
pub fn text(a: &Outcome, rows: &[Row], width: Option<u16>) -> String {
    let mut text = String::new();
    let metrics: BTreeSet<&str> = rows.iter().map(|row| row.metric.as_str()).collect();
    for name in metrics {
        let mut table = Table::new();
        table.load_style(presets::UTF8_BORDERS_ONLY);
        table.set_content_arrangement(ContentArrangement::Dynamic);
        if let Some(width) = width {
            table.set_width(width);
        }
        let of_metric = || rows.iter().filter(|row| row.metric == name);
        let any = |compare| of_metric().any(|row| row.compare == compare);
        let change = match (any(Compare::Ratio), any(Compare::Difference)) {
            (true, true) => "B ÷ A or ±(B − A)",
            (false, _) => "B − A",
            _ => "B ÷ A",
        };
        table.set_header(["variant", "where", "A", "B", change, "95 % interval", ""]);
        for row in of_metric() {
            let right = |text: String| TableCell::new(text).set_alignment(CellAlignment::Right);
            let change = match (row.changed(), metric::find(name).and_then(|m| m.less_is_better)) {
                (false, _) if row.change.blocks < MIN_BLOCKS => "too few blocks",
                (false, _) => "",
                (true, None) => "changed",
                (true, Some(less)) if less == row.is_less() => "better",
                (true, Some(_)) => "worse",
            };
            let change_by = format::number(row.change.value);
            let is_more = row.compare == Compare::Difference && row.change.value > 0.0;
            table.add_row([
                TableCell::new(&row.variant),
                TableCell::new(a.point_text(&row.point)),
                right(format::number(row.a.value)),
                right(format::number(row.b.value)),
                right(if is_more { format!("+{change_by}") } else { change_by }),
                right(if row.change.blocks < MIN_BLOCKS {
                    String::new()
                } else {
                    format::interval(&row.change)
                }),
                TableCell::new(change),
            ]);
        }
        text.push_str(&format!("{}\n{table}\n\n", metric::title(name)));
    }
    let changed = rows.iter().filter(|row| row.changed()).count();
    text.push_str(&format!(
        "{changed} of {} figures changed by more than chance (5 % over all of them together)\n",
        rows.len()
    ));
    text
}

/// Formats the comparison as CSV.
pub fn csv(rows: &[Row]) -> String {
    let axes: BTreeSet<&str> =
        rows.iter().flat_map(|row| row.point.keys()).map(String::as_str).collect();
    let mut head = vec!["metric".to_owned(), "variant".to_owned()];
    head.extend(axes.iter().map(|axis| (*axis).to_owned()));
    let figures = ["a", "b", "ratio", "difference", "low", "high", "p", "changed"];
    head.extend(figures.map(str::to_owned));
    let mut text = crate::report::csv::line(&head);
    for row in rows {
        let mut fields = vec![row.metric.clone(), row.variant.clone()];
        fields.extend(
            axes.iter()
                .map(|axis| row.point.get(*axis).map_or_else(String::new, ToString::to_string)),
        );
        let by = |compare| (row.compare == compare).then_some(row.change.value);
        let (ratio, difference) = (by(Compare::Ratio), by(Compare::Difference));
        fields.extend([row.a.value, row.b.value].map(|value| value.to_string()));
        let changes = [ratio, difference, row.change.low, row.change.high];
        fields.extend(changes.map(|it| it.map_or_else(String::new, |value| value.to_string())));
        fields.extend([row.p.to_string(), row.changed().to_string()]);
        text.push_str(&crate::report::csv::line(&fields));
    }
    text
}
