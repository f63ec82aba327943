//! The raw runs in a collapsed table: one line each, with the metrics of the figures.

use crate::{
    format::{self, escape},
    metric::{self, Metric},
    report::{csv, files::Files},
    result::{Outcome, Run},
};
use std::fmt::Write as _;

/// The largest number of runs that a page lists. More would make the page slow, and long lists are read
/// by programs anyway.
const MAX_RUNS: usize = 500;
/// The largest number of metrics in addition to the rates.
const MAX_METRICS: usize = 6;
/// The offered rate and the reply rate, which are always the first metrics.
const RATES: [&str; 2] = [Metric::Offered.name(), Metric::Throughput.name()];

/// Returns the metrics of the table: the rates, then those of the figures in their order. A metric that
/// no run has is left out.
fn metrics(outcome: &Outcome) -> Vec<&str> {
    let mut names: Vec<&str> = RATES.to_vec();
    for figure in &outcome.experiment.figure {
        if !names.contains(&figure.y.as_str()) {
            names.push(&figure.y);
        }
    }
    names.retain(|name| outcome.runs.iter().any(|run| run.metrics.contains_key(*name)));
    names.truncate(RATES.len() + MAX_METRICS);
    names
}

/// Writes the table, with links to the files that have more data.
pub(super) fn table(page: &mut String, outcome: &Outcome, files: &Files) {
    let link = |name: &str| format!("<a href=\"{0}\">{0}</a>", escape(name));
    let _ = write!(
        page,
        "<h2 id=\"runs\">Every run</h2>\n<p>{} has all metrics. The raw data, the command lines and the seed ({}) are in {}; \
         <code>pollux lab report</code> makes this page from that file alone.",
        link(csv::FILE),
        outcome.seed,
        link(files.data)
    );
    for file in &files.experiments {
        let _ = write!(page, " The experiment: {}.", link(file));
    }
    page.push_str("</p>\n");
    if outcome.runs.is_empty() {
        return;
    }
    let all = outcome.runs.len();
    let left_out = all.saturating_sub(MAX_RUNS);
    let count = |count: usize| format::count(count as u64);
    let summary = match left_out {
        0 => format!("All {} runs", count(all)),
        _ => format!(
            "The first {} of {} runs, which is the most that a page lists. The other {} are in {}",
            count(MAX_RUNS),
            count(all),
            count(left_out),
            csv::FILE
        ),
    };
    let _ = write!(
        page,
        "<details class=\"runs\"><summary>{summary}</summary>\n<div class=\"scroll\"><table>\n<thead><tr>\
         <th scope=\"col\" class=\"number\">Block</th><th scope=\"col\">Variant</th>"
    );
    let axes: Vec<_> = outcome.dimensions.iter().filter(|axis| axis.values.len() > 1).collect();
    for axis in &axes {
        let _ = write!(page, "<th scope=\"col\" class=\"number\">{}</th>", escape(&axis.name));
    }
    let metrics = metrics(outcome);
    for name in &metrics {
        let title = escape(&metric::title(name));
        let _ = write!(page, "<th scope=\"col\" class=\"number wrap\">{title}</th>");
    }
    page.push_str("<th scope=\"col\">Status</th></tr></thead>\n<tbody>\n");
    for run in outcome.runs.iter().take(MAX_RUNS) {
        row(page, run, axes.iter().map(|axis| axis.name.as_str()), &metrics);
    }
    page.push_str("</tbody></table></div></details>\n");
}

fn row<'a>(page: &mut String, run: &Run, axes: impl Iterator<Item = &'a str>, metrics: &[&str]) {
    let _ = write!(
        page,
        "<tr><td class=\"number\">{}</td><td>{}</td>",
        run.block + 1,
        escape(&run.cell.variant)
    );
    let number = |text: String| format!("<td class=\"number\">{}</td>", escape(&text));
    for axis in axes {
        page.push_str(&number(run.cell.point.get(axis).map_or_else(|| "–".into(), format::value)));
    }
    for name in metrics {
        let value = run.metrics.get(*name).map_or_else(|| "–".into(), |&v| format::number(v));
        page.push_str(&number(value));
    }
    // The reason is in the last column because it may be long.
    let reason = run
        .reason
        .as_ref()
        .map_or_else(String::new, |reason| format!("<small>{}</small>", escape(reason)));
    let _ = writeln!(page, "<td>{}{reason}</td></tr>", run.status);
}
