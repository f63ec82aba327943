//! The README.md of a published run, which code hosting sites show for its directory.

use super::{csv, files::Files, forest, html, panel::Panel, summary, terminal};
use crate::{format, result::Outcome};
use std::fmt::Write as _;

/// The width of tables and notes in the page's source, in columns.
const WIDTH: u16 = 100;

/// Escapes `|`, which would end a cell of a table.
pub(super) fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}

/// Renders the page: question, result, figures, tables, and a link to the raw data. `drawn` are the panels
/// whose figures are in `figures/`; `files` are the files that the page may link to.
pub fn page(outcome: &Outcome, drawn: &[(Panel<'_>, String)], files: &Files) -> String {
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
    let _ = writeln!(page, "## Question\n\n{}\n", experiment.summary.trim());
    let _ = writeln!(page, "## Result\n\n{}\n", summary::in_words(outcome));
    if !outcome.claims.is_empty() {
        let _ = writeln!(
            page,
            "![All claims with their figures](figures/{})\n\n{}\n",
            forest::FILE,
            forest::LEGEND
        );
    }
    if !drawn.is_empty() {
        page.push_str("## Figures\n\n");
    }
    for (panel, _) in drawn {
        let title = html::title(outcome, panel);
        let _ = writeln!(page, "![{title}](figures/{}.svg)\n", panel.id);
    }
    claims(&mut page, outcome);
    let tables = terminal::tables(outcome, WIDTH);
    if !tables.is_empty() {
        let _ = writeln!(
            page,
            "## Cells\n\n<details><summary>The main figures as tables</summary>\n\n\
             ```text\n{}\n```\n\n</details>\n",
            tables.trim_end()
        );
    }
    let notes = terminal::notes(outcome, WIDTH);
    if !notes.is_empty() {
        let _ = writeln!(page, "## Notes\n\n```text\n{notes}```\n");
    }
    runs(&mut page, files);
    page
}

fn claims(page: &mut String, outcome: &Outcome) {
    if outcome.claims.is_empty() {
        return;
    }
    page.push_str("## Claims\n\n");
    page.push_str("| claim | verdict | measured | holds if | paper | statement |\n");
    page.push_str("|---|---|---|---|---|---|\n");
    for claim in &outcome.claims {
        let measured = claim.measured().unwrap_or_else(|| "–".into());
        let _ = writeln!(
            page,
            "| {} | {}{} | {measured} | {} | {} | {} |",
            claim.id,
            claim.verdict,
            claim.remark().map_or_else(String::new, |why| format!(" ({})", cell(&why))),
            cell(&claim.condition()),
            claim.of_paper().unwrap_or_else(|| "–".into()),
            cell(&claim.statement)
        );
    }
    page.push('\n');
}

/// Links the raw data. A published run has no `runs.csv`, because that file is large and can be made
/// from the raw data.
fn runs(page: &mut String, files: &Files) {
    let _ = write!(
        page,
        "## Every run\n\nRaw data: [{0}]({0}). `pollux lab report DIRECTORY` makes the whole report from it; each run \
         is a line of its `{1}`.",
        files.data,
        csv::FILE
    );
    for file in &files.experiments {
        let _ = write!(page, " The experiment: [{file}]({file}).");
    }
    page.push('\n');
}
