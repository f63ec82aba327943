//! The figures again, as tables: one row per variant, one column per point.

use super::{measured, title};
use crate::{
    experiment::Value,
    format::{self, escape},
    metric,
    report::panel::Panel,
    result::{Outcome, VariantOutcome},
};
use std::fmt::Write as _;

/// Returns the anchor of a figure's table on the page.
pub(super) fn anchor(panel: &Panel<'_>) -> String {
    format!("cells-{}", panel.id)
}

/// Writes one table for each figure.
pub(super) fn tables(page: &mut String, outcome: &Outcome, panels: &[&Panel<'_>]) {
    if panels.is_empty() {
        return;
    }
    page.push_str(
        "<h2 id=\"cells\">Cells</h2>\n<p class=\"soft\">The values of the figures: the mean over the blocks \
         (the geometric mean if all values are positive) and its interval.</p>\n",
    );
    for panel in panels {
        table(page, outcome, panel);
    }
}

fn table(page: &mut String, outcome: &Outcome, panel: &Panel<'_>) {
    let _ = write!(
        page,
        "<h3 id=\"{}\"><a href=\"#{}\">{}</a></h3>\n<div class=\"scroll\"><table>\n<caption>{}</caption>\n\
         <thead><tr><th></th>",
        escape(&anchor(panel)),
        escape(&panel.id),
        escape(&title(outcome, panel)),
        escape(&metric::title(&panel.figure.y))
    );
    for value in &panel.x.values {
        let value = escape(&format::value(value));
        let _ = write!(
            page,
            "<th scope=\"col\" class=\"number\">{} {value}</th>",
            escape(&panel.x.name)
        );
    }
    page.push_str("</tr></thead>\n<tbody>\n");
    for variant in panel.variants {
        let _ = write!(page, "<tr><th scope=\"row\">{}</th>", escape(&variant.name));
        for x in &panel.x.values {
            let cell = cell(outcome, panel, variant, x);
            let _ = write!(page, "<td class=\"number\">{cell}</td>");
        }
        page.push_str("</tr>\n");
    }
    page.push_str("</tbody></table></div>\n");
}

fn cell(outcome: &Outcome, panel: &Panel<'_>, variant: &VariantOutcome, x: &Value) -> String {
    if variant.unavailable.is_some() {
        return "not here".into();
    }
    match outcome.cell(&variant.name, &panel.point(x)) {
        None if !outcome.measures(&variant.name, &panel.point(x)) => "–".into(),
        None => "not run".into(),
        Some(cell) if outcome.is_left_out(cell) => "–".into(),
        Some(cell) if cell.valid == 0 => "no run counts".into(),
        Some(cell) => cell.metrics.get(&panel.figure.y).map_or_else(
            || "–".into(),
            |estimate| measured(estimate.value, format::interval(estimate)),
        ),
    }
}
