//! A page in Markdown: what a forge shows for the folder of a published run.

use super::{Panel, format, terminal};
use crate::{archive::PACKED, result::Outcome};
use std::fmt::Write as _;

/// Columns of the notes' lines in the source.
const WIDTH: u16 = 100;

/// Text in a table's cell: a bar would end it.
pub(super) fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}

/// Renders the page. `drawn` are the panels whose figures stand under `figures/`.
pub fn page(outcome: &Outcome, drawn: &[(Panel<'_>, String)]) -> String {
    let experiment = &outcome.experiment;
    let mut page = format!("# {}\n\n", experiment.title);
    let _ = writeln!(
        page,
        "Experiment `{}` ({} form), after {}: {} runs, {}, begun {}.\n\n    {}\n",
        experiment.id,
        if outcome.quick { "quick" } else { "full" },
        experiment.source,
        outcome.runs.len(),
        format::seconds(outcome.elapsed_s),
        outcome.started_at,
        outcome.environment.command
    );
    let _ = writeln!(
        page,
        "Raw data: [{PACKED}]({PACKED}). `pollux lab report FOLDER` renders the whole report from it.\n"
    );
    if !outcome.claims.is_empty() {
        page.push_str("| claim | verdict | measured | holds if | paper | statement |\n");
        page.push_str("|---|---|---|---|---|---|\n");
        for claim in &outcome.claims {
            let measured = format::measured(claim).unwrap_or_else(|| "–".into());
            let _ = writeln!(
                page,
                "| {} | {}{} | {measured} | {} | {} | {} |",
                claim.id,
                claim.verdict,
                claim.remark().map_or_else(String::new, |why| format!(" ({})", cell(&why))),
                cell(&claim.threshold.to_string()),
                claim.paper.map_or_else(|| "–".into(), format::number),
                cell(&claim.statement)
            );
        }
        page.push('\n');
    }
    for (panel, _) in drawn {
        let several = panel.id != panel.figure.id;
        let at = if several { super::point_text(outcome, &panel.at) } else { String::new() };
        let title =
            [panel.figure.title.as_str(), at.as_str()].join(if several { ": " } else { "" });
        let _ = writeln!(page, "![{title}](figures/{}.svg)\n", panel.id);
    }
    let notes = terminal::notes(outcome, WIDTH);
    if !notes.is_empty() {
        let _ = writeln!(page, "```text\n{notes}```");
    }
    page
}
