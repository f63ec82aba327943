//! The page: one file that opens from disk, without scripts or other files to fetch.

mod cells;
mod runs;

use super::{files::Files, panel::Panel, summary};
use crate::{
    claims::p_text,
    experiment::RelativeTo,
    format::{self, escape},
    result::Outcome,
    statistics::CONFIDENCE,
    verdict::{Bound, ClaimOutcome, Part, Verdict},
};
use std::fmt::Write as _;

/// A third of the largest number of command lines that the page shows; `result.json` has all.
const MAX_COMMANDS: usize = 12;

/// The parts of the page in their order, with anchor and name.
const PARTS: [(&str, &str); 8] = [
    ("asked", "Question"),
    ("result", "Result"),
    ("figures", "Figures"),
    ("claims", "Claims"),
    ("cells", "Cells"),
    ("ran", "Variants"),
    ("machine", "The machine"),
    ("runs", "Every run"),
];

/// Renders the page: the question and the result, figures, tables, the raw runs. `drawn` are the panels
/// with their SVG, `files` the files that the page may link to.
pub fn page(outcome: &Outcome, drawn: &[(Panel<'_>, String)], files: &Files) -> String {
    let experiment = &outcome.experiment;
    let mut page = begin(&escape(&experiment.title));
    head(&mut page, outcome, !drawn.is_empty());
    if !drawn.is_empty() {
        page.push_str(
            "<h2 id=\"figures\">Figures</h2>\n<p class=\"soft\">A point is the mean over the blocks (the \
             geometric mean if all values are positive), a bar is its interval (with six blocks or more), a dot \
             is one block. Series at the same place are drawn a little apart. A ring marks a server without idle \
             CPU time: its cost is only a bound.</p>\n",
        );
    }
    for (panel, svg) in drawn {
        figure(&mut page, outcome, panel, svg);
    }
    claims(&mut page, outcome);
    let panels: Vec<&Panel<'_>> = drawn.iter().map(|(panel, _)| panel).collect();
    cells::tables(&mut page, outcome, &panels);
    conditions(&mut page, outcome);
    environment(&mut page, outcome);
    runs::table(&mut page, outcome, files);
    page + END
}

/// Returns the start of a page with this title.
pub(super) fn begin(title: &str) -> String {
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n<title>{title}</title>\n\
         <style>\n{}</style>\n</head>\n<body>\n<main>\n",
        include_str!("page.css")
    )
}

/// The end of a page.
pub(super) const END: &str = "</main>\n</body>\n</html>\n";

fn paragraphs(page: &mut String, text: &str) {
    for paragraph in text.split("\n\n").map(str::trim).filter(|paragraph| !paragraph.is_empty()) {
        // Text between backticks is code, as in the pages of archives.
        let parts = paragraph.split('`').map(escape).enumerate();
        let text: Vec<String> = parts
            .map(|(index, part)| match index % 2 {
                0 => part,
                _ => format!("<code>{part}</code>"),
            })
            .collect();
        let _ = writeln!(page, "<p>{}</p>", text.concat());
    }
}

fn head(page: &mut String, outcome: &Outcome, has_figures: bool) {
    let experiment = &outcome.experiment;
    let form = if outcome.quick { "quick form" } else { "full form" };
    let blocks = outcome.blocks();
    let _ = writeln!(
        page,
        "<h1>{}</h1>\n<p class=\"soft\">Experiment <code>{}</code> ({form}), after {}. {}, {} runs \
         in {blocks} blocks, {}.</p>",
        escape(&experiment.title),
        escape(&experiment.id),
        escape(&experiment.source),
        escape(&outcome.started_at),
        outcome.runs.len(),
        format::seconds(outcome.elapsed_s),
    );
    page.push_str("<nav>");
    let is_there = |anchor: &str| match anchor {
        "claims" => !outcome.claims.is_empty(),
        "figures" | "cells" => has_figures,
        _ => true,
    };
    for (anchor, name) in PARTS.into_iter().filter(|(anchor, _)| is_there(anchor)) {
        let _ = write!(page, "<a href=\"#{anchor}\">{name}</a> ");
    }
    page.push_str("</nav>\n");
    if outcome.interrupted {
        page.push_str(
            "<p class=\"warn\"><strong>Interrupted.</strong> The report shows the measurements before \
             the interruption; the last block is incomplete.</p>\n",
        );
    }
    page.push_str("<h2 id=\"asked\">Question</h2>\n");
    paragraphs(page, &experiment.summary);
    let _ = writeln!(
        page,
        "<h2 id=\"result\">Result</h2>\n<p>{}</p>",
        escape(&summary::in_words(outcome))
    );
    if let Some(noise) = summary::noise(outcome) {
        let _ = writeln!(page, "<p class=\"warn\">{}</p>", escape(&noise));
    }
    let all: Vec<(String, &ClaimOutcome)> =
        outcome.claims.iter().map(|claim| (anchor(&claim.id), claim)).collect();
    page.push_str(&super::forest::draw(&all));
    if !all.is_empty() {
        let _ = writeln!(page, "<p class=\"soft\">{}</p>", super::forest::LEGEND);
    }
}

fn anchor(id: &str) -> String {
    format!("claim-{id}")
}

pub(super) fn verdict(verdict: Verdict) -> String {
    let (class, sign) = match verdict {
        Verdict::Holds => ("holds", "✓"),
        Verdict::DoesNotHold => ("fails", "✗"),
        Verdict::Undecided => ("undecided", "?"),
        Verdict::Seen => ("undecided", "~"),
        Verdict::NotTestable => ("undecided", "–"),
        Verdict::Depends => ("undecided", "±"),
    };
    format!("<span class=\"verdict {class}\">{sign} {verdict}</span>")
}

fn measured(value: f64, interval: String) -> String {
    let interval = if interval.is_empty() { "no interval".into() } else { interval };
    format!("{}<small>{interval}</small>", format::number(value))
}

fn claims(page: &mut String, outcome: &Outcome) {
    if outcome.claims.is_empty() {
        return;
    }
    let _ = write!(
        page,
        "<h2 id=\"claims\">Claims</h2>\n<p class=\"soft\">Each block gives one value of each comparison. The \
         first result is the mean over the blocks (of ratios the geometric mean) with Student's {:.0} % interval. \
         The second is the Hodges–Lehmann estimate with its exact interval, on which outliers have little effect. \
         A verdict needs six blocks and has an error of 5 % over all looks at the data. A claim about several \
         variants holds if it holds for each. It does not hold if one variant is on the other side of the threshold, \
         after a correction for the number of variants. In a latency, a failed request counts with its time-out. p \
         is the probability of a result at least this clear if the true value were at the threshold; the second p \
         is for all claims with ★ together. A claim is also undecided if a value is only a limit: a reply rate when \
         the server answered every request, or a cost when the server had no idle CPU time.</p>\n<div class=\"scroll\"><table>\n\
         <thead><tr><th>Claim</th><th>Statement</th><th>Verdict</th><th class=\"number\">Measured</th>\
         <th class=\"number\">Holds if</th><th class=\"number\">Paper</th></tr></thead>\n",
        CONFIDENCE * 100.0
    );
    for (claim, data) in outcome.claims.iter().zip(&outcome.experiment.claim) {
        let _ = writeln!(
            page,
            "<tr id=\"{}\"><td><strong>{}{}</strong></td><td>{}<small>{}: {}</small>{}</td><td>{}<small>{}</small></td>\
             <td class=\"number\">{}</td><td class=\"number\">{}</td><td class=\"number\">{}</td></tr>",
            escape(&anchor(&claim.id)),
            escape(&claim.id),
            if claim.primary { " ★" } else { "" },
            escape(&claim.statement),
            escape(&data.source),
            escape(&claim.paper_says),
            parts(claim),
            verdict(claim.verdict),
            escape(&p_and_why_open(claim)),
            measured_claim(claim),
            escape(&claim.condition()),
            escape(&claim.of_paper().unwrap_or_else(|| "–".into())),
        );
    }
    page.push_str("</table></div>\n");
}

/// Returns the text under a verdict. The notes are shown with the parts.
fn p_and_why_open(claim: &ClaimOutcome) -> String {
    let outlooks = claim.parts.iter().filter_map(|part| Some(part.outlook?.to_string()));
    let p = Some(p_values(claim)).filter(|text| !text.is_empty());
    p.into_iter().chain(outlooks).collect::<Vec<_>>().join("; ")
}

fn p_values(claim: &ClaimOutcome) -> String {
    let alone = claim.p.map_or_else(String::new, |p| format!("p {}", p_text(p)));
    let all = claim.p_with_all.filter(|&all| Some(all) != claim.p);
    all.map_or(alone.clone(), |all| format!("{alone}, with all {}", p_text(all)))
}

fn measured_claim(claim: &ClaimOutcome) -> String {
    let (Some(value), Some(measured)) = (claim.value, claim.measured()) else {
        return "–".into();
    };
    if claim.span().is_some() {
        return escape(&measured);
    }
    // Here the interval has a line of its own.
    let mut text = escape(Bound::sign(claim.bound));
    let interval = claim.interval_text();
    let interval = if interval.is_empty() { "no interval".into() } else { interval };
    let unit = claim.unit();
    let _ = write!(text, "{} {unit}<small>{interval}</small>", claim.number(value));
    let deciding = claim.deciding().and_then(|part| part.estimate);
    if let Some((value, ranks)) = deciding.and_then(|e| Some((e.rank_value?, e.rank?))) {
        let ends = claim.ends(Some(ranks.low), Some(ranks.high));
        let _ = write!(text, "<small>ranks: {} {ends}</small>", claim.number(value));
    }
    text
}

fn parts(claim: &ClaimOutcome) -> String {
    if claim.parts.len() == 1 && claim.parts[0].note.is_none() {
        return String::new();
    }
    let line = |part: &Part| {
        let figure = match (&part.estimate, &part.note) {
            (Some(_), note) => format!(
                "{} {}{}",
                part.verdict,
                claim.reading_of(part).unwrap_or_default(),
                note.as_ref().map(|note| format!(": {}", escape(note))).unwrap_or_default()
            ),
            (None, Some(note)) => format!("not judged: {}", escape(note)),
            (None, None) => "not judged".into(),
        };
        format!("<small>{}: {figure}</small>", escape(&part.name()))
    };
    claim.parts.iter().map(line).collect()
}

/// Returns the figure's title; if the figure has several panels, with the values of its other axes.
pub(super) fn title(outcome: &Outcome, panel: &Panel<'_>) -> String {
    let mut title = panel.figure.title.clone();
    if panel.has_others {
        let _ = write!(title, ": {}", outcome.point_text(&panel.at));
    }
    if let (part, parts @ 2..) = panel.part {
        let _ = write!(title, " ({part} of {parts})");
    }
    title
}

fn figure(page: &mut String, outcome: &Outcome, panel: &Panel<'_>, svg: &str) {
    let caption = escape(panel.figure.caption.trim());
    let bars = super::figure::note(outcome, panel).map_or_else(String::new, |note| {
        format!("In the background: {note}, means over the blocks. ")
    });
    let _ = writeln!(
        page,
        "<figure id=\"{}\">\n<div class=\"scroll\">{svg}</div>\n<figcaption>{caption} {bars}<a href=\"#{}\">The \
         same as a table.</a></figcaption>\n</figure>",
        escape(&panel.id),
        escape(&cells::anchor(panel))
    );
}

fn conditions(page: &mut String, outcome: &Outcome) {
    page.push_str("<h2 id=\"ran\">Variants and conditions</h2>\n<div class=\"scroll\"><table>\n");
    page.push_str(
        "<thead><tr><th>Variant</th><th>Mechanism</th><th>Ran</th><th>Remarks</th></tr></thead>\n",
    );
    for variant in &outcome.variants {
        let runs: Vec<_> = outcome.runs.iter().filter(|r| r.cell.variant == variant.name).collect();
        let mut ran: Vec<&str> =
            runs.iter().map(|run| run.mechanism.as_str()).filter(|m| !m.is_empty()).collect();
        ran.sort_unstable();
        ran.dedup();
        let mut remarks: Vec<String> = variant.unavailable.iter().map(|r| escape(r)).collect();
        for cell in &outcome.cells {
            let is_listed = cell.excluded > 0 && !outcome.is_left_out(cell);
            if cell.cell.variant == variant.name && is_listed {
                let point = outcome.point_text(&cell.cell.point);
                remarks.push(escape(&format!("{point}: {}", cell.excluded_text())));
            }
        }
        let left_out = outcome.left_out_texts(Some(&variant.name));
        remarks.extend(left_out.iter().map(|text| escape(text)));
        let _ = writeln!(
            page,
            "<tr><td>{}</td><td><code>{}</code></td><td>{}</td><td>{}</td></tr>",
            escape(&variant.name),
            escape(&variant.mechanism),
            if ran.is_empty() { "did not run".into() } else { escape(&ran.join(", ")) },
            remarks.join("<br>")
        );
    }
    page.push_str("</table></div>\n");
    if !outcome.saturation.is_empty() {
        let _ = write!(
            page,
            "<h3>How the rate was found</h3>\n<p>{}</p>\n<table>\n<thead><tr><th>Variant</th>\
             <th class=\"number\">Replies/s</th><th>Remarks</th></tr></thead>\n",
            escape(&how_rates_were_found(outcome))
        );
        for probe in &outcome.saturation {
            let _ = writeln!(
                page,
                "<tr><td>{}</td><td class=\"number\">{}</td><td>{}</td></tr>",
                escape(&probe.cell.variant),
                probe.rps.map_or_else(|| "–".into(), format::number),
                escape(probe.note.as_deref().unwrap_or(""))
            );
        }
        page.push_str("</table>\n");
    }
    ladders(page, outcome);
    for note in &outcome.notes {
        let _ = writeln!(page, "<p class=\"soft\">{}</p>", escape(note));
    }
    commands(page, outcome);
}

/// Describes what the rates of the run are multiples of.
fn how_rates_were_found(outcome: &Outcome) -> String {
    let rate = outcome.experiment.rate.as_ref();
    let has_reference = rate.is_some_and(|rate| rate.reference.is_some());
    if let (true, Some(probe)) = (has_reference, outcome.saturation.first()) {
        let (variant, place) = (&probe.cell.variant, outcome.point_text(&probe.cell.point));
        return format!(
            "The saturation of {variant} in a closed loop ({place}). All rates are multiples of it."
        );
    }
    let whose = match rate.map(|rate| rate.relative_to) {
        Some(RelativeTo::Fastest) => "fastest",
        _ => "slowest",
    };
    format!(
        "The saturation of each variant in a closed loop, at the last value of every axis. The rates are shares of \
         the {whose} variant's saturation."
    )
}

/// Writes the limit that was found for each server, and the server's own rates around it.
fn ladders(page: &mut String, outcome: &Outcome) {
    if outcome.ladders.is_empty() {
        return;
    }
    page.push_str(
        "<h3>The limit of each server</h3>\n<p>The run searches the limits before the first block. Each server gets rates \
         around its own limit as well as the rates that all servers get.</p>\n<table>\n<thead><tr><th>Server</th><th class=\"number\">Limit (replies/s)\
         </th><th>Its own rates</th></tr></thead>\n",
    );
    for ladder in &outcome.ladders {
        let rates: Vec<String> = ladder.rates_rps.iter().copied().map(format::number).collect();
        let _ = writeln!(
            page,
            "<tr><td>{}</td><td class=\"number\">{}</td><td>{}</td></tr>",
            escape(&ladder.line.name()),
            ladder.limit_rps.map_or_else(|| "not found".into(), format::number),
            rates.join(", ")
        );
    }
    page.push_str("</table>\n");
}

fn commands(page: &mut String, outcome: &Outcome) {
    let mut shown: Vec<&str> = Vec::new();
    for variant in &outcome.variants {
        let last = outcome.runs.iter().rev().find(|run| run.cell.variant == variant.name);
        shown.extend(last.into_iter().flat_map(|run| &run.commands).map(String::as_str));
    }
    if shown.is_empty() {
        return;
    }
    let _ = writeln!(
        page,
        "<details><summary>Command lines of one run of each variant</summary>\n<pre>{}</pre>\n\
         </details>",
        escape(&shown[..shown.len().min(3 * MAX_COMMANDS)].join("\n"))
    );
}

fn environment(page: &mut String, outcome: &Outcome) {
    let e = &outcome.environment;
    page.push_str("<h2 id=\"machine\">The machine</h2>\n<div class=\"scroll\"><table>\n");
    let mut row = |name: &str, value: Option<String>| {
        let value = value.unwrap_or_else(|| "not known".into());
        let _ = writeln!(page, "<tr><th>{}</th><td>{}</td></tr>", escape(name), escape(&value));
    };
    let revision = e.revision.as_ref().map_or_else(String::new, |r| format!(", revision {r}"));
    row("Pollux", Some(format!("{}{revision}", e.pollux)));
    row("Command", Some(e.command.clone()));
    row("Kernel", Some(e.kernel.clone()));
    row("System", e.system.clone());
    let virtual_machine = if e.virtual_machine { ", virtual machine" } else { "" };
    row("CPU", e.cpu.as_ref().map(|cpu| format!("{cpu}, {} CPUs{virtual_machine}", e.cpus)));
    row(
        "Pinned",
        e.pinned.map(|cpus| {
            format!("server on CPU {}, generator on CPU {}", cpus.server, cpus.generator)
        }),
    );
    let received =
        e.receive_cpu.map_or("the sender's".into(), |cpu| format!("{cpu}, the server's"));
    row("Packets received on CPU", Some(received));
    row("Frequency governor", e.governor.clone());
    row("Memory", e.memory_bytes.map(format::bytes));
    row("Load average before", e.load_average.map(|load| load.to_string()));
    for (name, (soft, hard)) in &e.limits {
        let limit = |limit: &Option<u64>| {
            limit.map_or_else(|| "unlimited".into(), |limit| limit.to_string())
        };
        row(&format!("limit {name}"), Some(format!("{} (hard {})", limit(soft), limit(hard))));
    }
    for (name, value) in &e.sysctls {
        row(name, Some(value.clone()));
    }
    page.push_str("</table></div>\n");
}
