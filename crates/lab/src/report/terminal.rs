//! The outcome as text, for the end of a run.

use super::summary;
use crate::{
    format, metric, plan,
    result::{CellSummary, Outcome, VariantOutcome},
    statistics::{Estimate, MIN_BLOCKS},
    verdict::Verdict,
};
use comfy_table::{Cell as TableCell, CellAlignment, ContentArrangement, Table, presets};

/// Returns a table for each figure that has one: a row per variant, a column per point. Columns that do
/// not fit into `width` are put into a further table below.
pub fn tables(outcome: &Outcome, width: u16) -> String {
    let mut text = String::new();
    let mut seen = Vec::new();
    for figure in &outcome.experiment.figure {
        if figure.in_terminal && !seen.contains(&figure.y) {
            seen.push(figure.y.clone());
            text.push_str(&format!("{}\n", metric::title(&figure.y)));
            text.push_str(&metric_tables(outcome, &figure.y, width.into()));
            text.push('\n');
        }
    }
    let figures = outcome.cells.iter().flat_map(|cell| &cell.metrics);
    if figures.into_iter().any(|(name, figure)| seen.contains(name) && figure.range.is_some()) {
        let note = format!(
            "Values in brackets are the smallest and the largest of fewer than {MIN_BLOCKS} runs, which have no interval."
        );
        put(&mut text, &note, width, "");
        text.push('\n');
    }
    text
}

/// One column of a table: its header, and a cell for each variant.
struct Column {
    head: String,
    cells: Vec<String>,
}

impl Column {
    /// Returns the width of the column on the terminal, including the space on both sides.
    fn width(&self) -> usize {
        let lines = self.head.lines().chain(self.cells.iter().map(String::as_str));
        lines.map(textwrap::core::display_width).max().unwrap_or(0) + 2
    }
}

/// The width of a table's two borders.
const BORDERS: usize = 2;

fn metric_tables(outcome: &Outcome, name: &str, width: usize) -> String {
    let names = Column {
        head: String::new(),
        cells: outcome.variants.iter().map(|variant| variant.name.clone()).collect(),
    };
    let room = width.saturating_sub(names.width() + BORDERS);
    let mut text = String::new();
    let mut row: Vec<Column> = Vec::new();
    for column in columns(outcome, name) {
        let used: usize = row.iter().map(Column::width).sum();
        if !row.is_empty() && used + column.width() > room {
            text.push_str(&table(&names, &row));
            row.clear();
        }
        row.push(column);
    }
    text + &table(&names, &row)
}

fn columns(outcome: &Outcome, name: &str) -> Vec<Column> {
    let points = plan::points(&outcome.dimensions).into_iter();
    // A column in which no cell is measured says nothing.
    points
        .filter(|point| !outcome.leaves_out(&outcome.variants, point))
        .map(|point| {
            let head = outcome.varied(&point).join("\n");
            let cell = |variant: &VariantOutcome| match outcome.cell(&variant.name, &point) {
                _ if variant.unavailable.is_some() => "not here".to_owned(),
                Some(cell) if outcome.is_left_out(cell) => "–".to_owned(),
                Some(cell) if cell.valid == 0 => "see notes".to_owned(),
                Some(cell) => cell.metrics.get(name).map_or_else(|| "–".into(), estimate),
                None if !outcome.measures(&variant.name, &point) => "–".to_owned(),
                None => "not run".to_owned(),
            };
            Column { head, cells: outcome.variants.iter().map(cell).collect() }
        })
        .collect()
}

fn table(names: &Column, columns: &[Column]) -> String {
    let mut table = Table::new();
    table.load_style(presets::UTF8_BORDERS_ONLY);
    table.set_content_arrangement(ContentArrangement::Disabled);
    let right = |text: &String| TableCell::new(text).set_alignment(CellAlignment::Right);
    let head = columns.iter().map(|column| right(&column.head));
    table.set_header([TableCell::new(&names.head)].into_iter().chain(head));
    for (index, name) in names.cells.iter().enumerate() {
        let cells = columns.iter().map(|column| right(&column.cells[index]));
        table.add_row([TableCell::new(name)].into_iter().chain(cells));
    }
    format!("{table}\n")
}

fn estimate(estimate: &Estimate) -> String {
    match (estimate.low, estimate.high) {
        (Some(low), Some(high)) => {
            let spread = (high - low) / 2.0;
            format!("{} ±{}", format::number(estimate.value), format::like(spread, estimate.value))
        }
        _ => estimate.range.map_or_else(
            || format::number(estimate.value),
            |seen| {
                let like = |end| format::like(end, estimate.value);
                format!(
                    "{} ({}–{})",
                    format::number(estimate.value),
                    like(seen.low),
                    like(seen.high)
                )
            },
        ),
    }
}

/// Returns the claims with their verdicts, in lines of at most `width` columns.
pub fn claims(outcome: &Outcome, width: u16) -> String {
    let mut text = String::new();
    for claim in &outcome.claims {
        let mut line = format!("{}  {}", claim.id, claim.verdict);
        if let Some(measured) = claim.measured() {
            line.push_str(&format!("  measured {measured}"));
        }
        line.push_str(&format!("  holds if {}", claim.condition()));
        if let Some(paper) = claim.of_paper() {
            line.push_str(&format!("  the paper {paper}"));
        }
        put(&mut text, &line, width, "    ");
        put(&mut text, &format!("    {}", claim.statement), width, "    ");
        // A verdict that depends on the operating point is of no use without the points.
        for part in claim.parts.iter().filter(|_| claim.verdict == Verdict::Depends) {
            let reading = claim.reading_of(part).unwrap_or_else(|| "no figure".to_owned());
            let line = format!("    {}: {}, {reading}", part.name(), part.verdict);
            put(&mut text, &line, width, "      ");
        }
    }
    text
}

/// Adds a paragraph; all its lines except the first begin with `indent`.
fn put(text: &mut String, paragraph: &str, width: u16, indent: &str) {
    text.push_str(&format::wrap(paragraph, width.into(), "", indent));
    text.push('\n');
}

/// Returns important notes for the reader: missing parts, and the reasons. Each note begins a line, and
/// lines have at most `width` columns.
pub fn notes(outcome: &Outcome, width: u16) -> String {
    let mut text = String::new();
    let mut note = |note: String| put(&mut text, &note, width, "  ");
    if outcome.interrupted {
        note("INTERRUPTED: the report shows the measurements before the interruption.".into());
    }
    for variant in &outcome.variants {
        if let Some(reason) = &variant.unavailable {
            note(format!("not here: {reason}"));
        }
    }
    let noise = summary::noise(outcome);
    if let Some(noise) = &noise {
        note(noise.to_string());
    }
    // If the machine was not quiet, the sentence above covers all these cells.
    let is_listed = |cell: &&CellSummary| {
        cell.excluded > 0 && (noise.is_none() || cell.valid == 0) && !outcome.is_left_out(cell)
    };
    for cell in outcome.cells.iter().filter(is_listed) {
        let (variant, point) = (&cell.cell.variant, outcome.point_text(&cell.cell.point));
        note(format!("{variant} ({point}): {}", cell.excluded_text()));
    }
    outcome.left_out_texts(None).into_iter().for_each(&mut note);
    for claim in &outcome.claims {
        let measured = claim.parts.iter().filter(|part| part.estimate.is_some());
        for (part, why) in measured.filter_map(|part| Some((part, part.why()?))) {
            let (says, _) = part.verdict.predicate();
            note(format!("{} {says}: {why}", claim.id));
        }
    }
    for text in &outcome.notes {
        note(text.clone());
    }
    text
}
