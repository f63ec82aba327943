//! Renders an outcome: a page for local viewing, and tables for the terminal.

pub mod csv;
mod earlier;
pub mod figure;
mod files;
pub mod forest;
pub mod html;
pub mod markdown;
mod operating_point;
pub mod overview;
mod panel;
pub mod results;
mod summary;
pub mod terminal;

pub use files::Files;
pub use panel::{Panel, panels};
pub use summary::{in_words, noise};

use crate::{archive, result::Outcome};
use anyhow::Context as _;
use std::{
    fs,
    path::{Path, PathBuf},
};

/// The page's file name inside the result directory.
pub const FILE: &str = "report.html";

/// Writes `report.html`, `runs.csv` and the figures (`figures/ID.svg`) into `directory`; returns the page.
///
/// # Errors
/// When a file cannot be written; the message names it.
pub fn write(outcome: &Outcome, directory: &Path) -> anyhow::Result<PathBuf> {
    let drawn = figures(outcome, directory)?;
    archive::write_into(directory, csv::FILE, csv::runs(outcome))?;
    let page = html::page(outcome, &drawn, &Files::beside(directory));
    archive::write_into(directory, FILE, page)
}

/// Writes only the figures, including one picture of all claims ([`forest`]); returns each panel with its
/// SVG.
///
/// # Errors
/// When a file cannot be written; the message names it.
pub fn figures<'a>(
    outcome: &'a Outcome,
    directory: &Path,
) -> anyhow::Result<Vec<(Panel<'a>, String)>> {
    let figures = directory.join("figures");
    fs::create_dir_all(&figures).with_context(|| figures.display().to_string())?;
    let mut drawn = Vec::new();
    for panel in panels(outcome) {
        let svg = figure::draw(outcome, &panel)?;
        archive::write_into(&figures, &format!("{}.svg", panel.id), &svg)?;
        drawn.push((panel, svg));
    }
    if !outcome.claims.is_empty() {
        archive::write_into(&figures, forest::FILE, forest::file(&outcome.claims))?;
    }
    Ok(drawn)
}

/// Writes the archived form of `outcome` into `directory`: compressed raw data, figures, a page.
///
/// # Errors
/// When a file cannot be written; the message names it.
pub fn keep(outcome: &Outcome, directory: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(directory).with_context(|| directory.display().to_string())?;
    let data = serde_json::to_string(outcome)?;
    archive::write_packed(&archive::without_start_directory(&data), directory)?;
    let figures = figures(outcome, directory)?;
    let page = markdown::page(outcome, &figures, &Files::beside(directory));
    archive::write_into(directory, archive::PAGE, archive::without_start_directory(&page))?;
    Ok(())
}
