//! The outcome as text, for the end of a run.

use super::format;
use crate::{metric, plan, result::Outcome, stats::Estimate};
use comfy_table::{Cell as TableCell, CellAlignment, ContentArrangement, Table, presets};

/// A table for each figure that asks for one: a row a variant, a column a point.
pub fn tables(outcome: &Outcome, width: Option<u16>) -> String {
    let mut text = String::new();
    let mut seen = Vec::new();
    for figure in &outcome.experiment.figure {
        if figure.in_terminal && !seen.contains(&figure.y) {
            seen.push(figure.y.clone());
            text.push_str(&format!("{}\n", metric::title(&figure.y)));
            text.push_str(&metric_table(outcome, &figure.y, width));
            text.push_str("\n\n");
        }
    }
    text
}

fn table(width: Option<u16>) -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_BORDERS_ONLY);
    table.set_content_arrangement(ContentArrangement::Dynamic);
    if let Some(width) = width {
        table.set_width(width);
    }
    table
}

fn metric_table(outcome: &Outcome, name: &str, width: Option<u16>) -> String {
    let points = plan::points(&outcome.dimensions);
    let mut table = table(width);
    let varied = |name: &String| outcome.values(name).is_some_and(|values| values.len() > 1);
    let mut head = vec![TableCell::new("")];
    for point in &points {
        let parts: Vec<String> = point
            .iter()
            .filter(|(axis, _)| varied(axis))
            .map(|(axis, value)| format!("{axis} {}", format::value(value)))
            .collect();
        head.push(TableCell::new(parts.join("\n")).set_alignment(CellAlignment::Right));
    }
    table.set_header(head);
    for variant in &outcome.variants {
        let mut row = vec![TableCell::new(&variant.name)];
        for point in &points {
            let text = if variant.unavailable.is_some() {
                "not here".to_owned()
            } else {
                match outcome.cell(&variant.name, point) {
                    Some(cell) if cell.valid == 0 => "see notes".to_owned(),
                    Some(cell) => cell.metrics.get(name).map_or_else(|| "–".into(), estimate),
                    None => "not run".to_owned(),
                }
            };
            row.push(TableCell::new(text).set_alignment(CellAlignment::Right));
        }
        table.add_row(row);
    }
    table.to_string()
}

fn estimate(estimate: &Estimate) -> String {
    match (estimate.low, estimate.high) {
        (Some(low), Some(high)) => {
            let spread = (high - low) / 2.0;
            format!("{} ±{}", format::number(estimate.value), format::like(spread, estimate.value))
        }
        _ => format::number(estimate.value),
    }
}

/// The claims with their verdicts.
pub fn claims(outcome: &Outcome, width: Option<u16>) -> String {
    if outcome.claims.is_empty() {
        return String::new();
    }
    let mut table = table(width);
    table.set_header(["claim", "verdict", "measured", "holds if", "the paper", "statement"]);
    for claim in &outcome.claims {
        let measured = claim.value.map_or_else(
            || "–".to_owned(),
            |value| {
                let interval = format::interval(&Estimate {
                    value,
                    low: claim.low,
                    high: claim.high,
                    blocks: 0,
                });
                format!("{} {interval}", format::number(value))
            },
        );
        table.add_row([
            claim.id.clone(),
            claim.verdict.to_string(),
            measured,
            claim.threshold.to_string(),
            claim.paper.map_or_else(|| "–".into(), format::number),
            claim.statement.clone(),
        ]);
    }
    format!("{table}\n")
}

/// What a reader must know: what is not there, and why.
pub fn notes(outcome: &Outcome) -> String {
    let mut text = String::new();
    if outcome.interrupted {
        text.push_str("INTERRUPTED: what is shown was measured before the end.\n");
    }
    for variant in &outcome.variants {
        if let Some(reason) = &variant.unavailable {
            text.push_str(&format!("not here: {reason}\n"));
        }
    }
    for cell in outcome.cells.iter().filter(|cell| cell.excluded > 0) {
        text.push_str(&format!(
            "{} ({}): {} of {} runs do not count: {}\n",
            cell.cell.variant,
            super::point_text(outcome, &cell.cell.point),
            cell.excluded,
            cell.excluded + cell.valid,
            cell.reason.as_deref().unwrap_or("no reason given")
        ));
    }
    for claim in &outcome.claims {
        let undecided = claim.parts.iter().filter(|part| part.estimate.is_some());
        for note in undecided.filter_map(|part| part.note.as_ref()) {
            text.push_str(&format!("{} is undecided: {note}\n", claim.id));
        }
    }
    for note in &outcome.notes {
        text.push_str(&format!("{note}\n"));
    }
    text
}
