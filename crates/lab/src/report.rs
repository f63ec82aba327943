//! Shows an outcome: a page that opens from disk, and tables for the terminal.

pub mod csv;
pub mod figure;
pub mod forest;
pub mod format;
pub mod html;
pub mod markdown;
pub mod overview;
pub mod papers;
pub mod terminal;

use crate::{
    archive,
    claims::{Bound, Verdict},
    experiment::{Figure, Value},
    plan::{self, Dimension, Point},
    result::{self, Outcome, Run, Status},
};
use anyhow::Context as _;
use std::{
    fs,
    path::{Path, PathBuf},
};

/// The page's file name inside the result directory.
pub const FILE: &str = "report.html";

/// What lies in the folder of a report, for its links.
#[derive(Clone, Debug)]
pub struct Files {
    /// The raw data: `result.json`, packed or not.
    pub data: &'static str,
    /// Files of experiments (`*.toml`): those that are not built in.
    pub experiments: Vec<String>,
}

impl Files {
    /// Those of `directory`.
    pub fn beside(directory: &Path) -> Self {
        let names = fs::read_dir(directory).into_iter().flatten().flatten();
        let mut experiments: Vec<String> = names
            .filter_map(|entry| entry.file_name().into_string().ok())
            .filter(|name| name.ends_with(".toml"))
            .collect();
        experiments.sort();
        let data = if archive::is_packed(directory) { archive::PACKED } else { result::FILE };
        Self { data, experiments }
    }
}

/// Writes `report.html`, `runs.csv` and the figures (`figures/ID.svg`) into `directory`; returns the page.
///
/// # Errors
/// When a file cannot be written; the message names it.
pub fn write(outcome: &Outcome, directory: &Path) -> anyhow::Result<PathBuf> {
    let drawn = figures(outcome, directory)?;
    let runs = directory.join(csv::FILE);
    fs::write(&runs, csv::runs(outcome)).with_context(|| runs.display().to_string())?;
    let path = directory.join(FILE);
    let page = html::page(outcome, &drawn, &Files::beside(directory));
    fs::write(&path, page).with_context(|| path.display().to_string())?;
    Ok(path)
}

/// Writes the figures alone, all claims in one picture ([`forest`]) among them; returns each panel with its SVG.
///
/// # Errors
/// When a file cannot be written; the message names it.
pub fn figures<'a>(
    outcome: &'a Outcome,
    directory: &Path,
) -> anyhow::Result<Vec<(Panel<'a>, String)>> {
    let folder = directory.join("figures");
    fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    let mut drawn = Vec::new();
    for panel in panels(outcome) {
        let svg = figure::draw(outcome, &panel)?;
        let path = folder.join(format!("{}.svg", panel.id));
        fs::write(&path, &svg).with_context(|| path.display().to_string())?;
        drawn.push((panel, svg));
    }
    if !outcome.claims.is_empty() {
        let path = folder.join(forest::FILE);
        fs::write(&path, forest::file(&outcome.claims))
            .with_context(|| path.display().to_string())?;
    }
    Ok(drawn)
}

/// What came out, in a sentence or two: how many claims hold, and what became of those that stand for a
/// figure of a paper.
pub fn in_words(outcome: &Outcome) -> String {
    if outcome.runs.iter().all(|run| run.status != Status::Valid) {
        let reason = outcome.runs.iter().rev().find_map(|run| run.reason.as_deref());
        return format!(
            "Nothing was measured: no run counts{}.",
            reason.map_or_else(String::new, |reason| format!(" ({reason})"))
        );
    }
    if outcome.claims.is_empty() {
        return "It makes no claim.".into();
    }
    let verdicts = [
        (Verdict::Holds, "holds", "hold"),
        (Verdict::DoesNotHold, "does not hold", "do not hold"),
        (Verdict::Undecided, "is undecided", "are undecided"),
        (
            Verdict::Seen,
            "is seen, not decided: a verdict takes six blocks",
            "are seen, not decided: a verdict takes six blocks",
        ),
        (Verdict::NotApplicable, "is not applicable here", "are not applicable here"),
    ];
    let parts: Vec<String> = verdicts
        .into_iter()
        .filter_map(|(verdict, one, many)| {
            match outcome.claims.iter().filter(|claim| claim.verdict == verdict).count() {
                0 => None,
                1 => Some(format!("1 {one}")),
                count => Some(format!("{count} {many}")),
            }
        })
        .collect();
    let mut text = match outcome.claims.as_slice() {
        [_] => "It makes one claim.".to_owned(),
        all => format!("Of {} claims {}.", all.len(), parts.join(", ")),
    };
    let is_only = outcome.claims.len() == 1;
    for claim in outcome.claims.iter().filter(|claim| claim.primary || is_only) {
        text.push_str(&format!(" {}: {}", claim.id, claim.verdict));
        if let Some(value) = claim.value {
            let sign = Bound::sign(claim.bound);
            text.push_str(&format!(" ({sign}{})", format::number(value)));
        }
        text.push('.');
    }
    text
}

/// A sentence when the machine was not quiet: how many of the runs that count were kept from their CPU, and
/// how many did not count.
pub fn noise(outcome: &Outcome) -> Option<String> {
    let made = outcome.runs.len();
    // A generator that ran out of descriptors or ports would do so on a quiet machine, too.
    let was_disturbed = |run: &&Run| run.status == Status::Invalid && run.raw.shortage().is_none();
    let lost = outcome.runs.iter().filter(was_disturbed).count();
    (made > 0 && lost * 10 >= made).then(|| {
        format!(
            "This machine was not quiet: {lost} of {made} runs do not count, for the generator was kept \
             from its work. Run it again with nothing else running."
        )
    })
}

/// One drawing: a figure at one value of each axis that it is not drawn along.
#[derive(Clone, Debug, PartialEq)]
pub struct Panel<'a> {
    /// File name.
    pub id: String,
    /// The figure that it belongs to.
    pub figure: &'a Figure,
    /// The axis along which it is drawn.
    pub x: &'a Dimension,
    /// The values of the other axes.
    pub at: Point,
}

impl Panel<'_> {
    /// What the other axes stand at, when there is a choice: `idle 8,000`.
    pub fn subtitle(&self, outcome: &Outcome) -> String {
        let parts: Vec<String> = self
            .at
            .iter()
            .filter_map(|(name, value)| {
                let dimension = outcome.dimensions.iter().find(|d| d.name == *name)?;
                let value = format::value(value);
                Some(format!("{}: {value}", dimension.label))
            })
            .collect();
        parts.join(", ")
    }

    /// The point at `x`.
    pub fn point(&self, x: &Value) -> Point {
        let mut point = self.at.clone();
        point.insert(self.x.name.clone(), x.clone());
        point
    }
}

/// All drawings of an outcome, in the order of the file.
pub fn panels(outcome: &Outcome) -> Vec<Panel<'_>> {
    let mut panels = Vec::new();
    for figure in &outcome.experiment.figure {
        let Some(x) = outcome.dimensions.iter().find(|d| d.name == figure.x) else { continue };
        let others: Vec<Dimension> = outcome
            .dimensions
            .iter()
            .filter(|dimension| dimension.name != figure.x)
            .map(|dimension| {
                let chosen = figure.at.get(&dimension.name);
                let chosen = chosen.and_then(|select| select.among(&dimension.values));
                let values = chosen.map_or_else(|| dimension.values.clone(), |v| vec![v.clone()]);
                Dimension { values, ..dimension.clone() }
            })
            .collect();
        let points = plan::points(&others);
        let several = points.len() > 1;
        for (index, at) in points.into_iter().enumerate() {
            let id =
                if several { format!("{}-{}", figure.id, index + 1) } else { figure.id.clone() };
            panels.push(Panel { id, figure, x, at });
        }
    }
    panels
}

/// The axes that vary, in words: `idle 8,000`; "everywhere" when none does.
pub(crate) fn point_text(outcome: &Outcome, point: &Point) -> String {
    let part = |(axis, value): (&String, &Value)| {
        let several = outcome.values(axis).is_some_and(|values| values.len() > 1);
        several.then(|| format!("{axis} {}", format::value(value)))
    };
    let parts: Vec<_> = point.iter().filter_map(part).collect();
    if parts.is_empty() { "everywhere".into() } else { parts.join(", ") }
}
