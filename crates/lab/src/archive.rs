//! What is kept of a published run: the raw data, compressed, the figures, and a page that a forge
//! shows. The HTML report is rendered again from the raw data (`pollux lab report`).

use crate::{
    report::{self, Files, markdown},
    result::{FILE, Outcome},
};
use anyhow::Context as _;
use flate2::{Compression, GzBuilder, read::GzDecoder};
use std::{
    fs,
    io::{Read as _, Write as _},
    path::Path,
};

/// `result.json`, as gzip compresses it (RFC 1952): `zcat` and `jq` read it.
pub const PACKED: &str = "result.json.gz";
/// The page that a forge shows for the folder.
pub const PAGE: &str = "README.md";
/// The longest `result.json` that is unpacked, in bytes: a small file may claim to hold anything.
const MAX_BYTES: u64 = 1 << 30;

/// Whether the run in `directory` was archived.
pub fn is_packed(directory: &Path) -> bool {
    !directory.join(FILE).exists() && directory.join(PACKED).exists()
}

/// The text of `result.json` in `directory`, unpacked where it is packed.
///
/// # Errors
/// When there is neither, it cannot be read, or is longer than 1 GiB; the message names the file.
pub fn read_text(directory: &Path) -> anyhow::Result<String> {
    if !is_packed(directory) {
        let path = directory.join(FILE);
        return fs::read_to_string(&path).with_context(|| {
            format!("cannot read {} (is it a result directory?)", path.display())
        });
    }
    let path = directory.join(PACKED);
    let read = || -> anyhow::Result<String> {
        let mut text = String::new();
        let file = fs::File::open(&path)?;
        GzDecoder::new(file).take(MAX_BYTES + 1).read_to_string(&mut text)?;
        anyhow::ensure!(text.len() as u64 <= MAX_BYTES, "it holds more than 1 GiB");
        Ok(text)
    };
    read().with_context(|| format!("cannot read {}", path.display()))
}

/// Without the path of the folder in which the program was started: what is published names no
/// place of one machine.
fn shortened(text: &str) -> String {
    match std::env::current_dir().ok().as_deref().and_then(Path::to_str) {
        Some(here) if here.len() > 1 => text.replace(&format!("{here}/"), ""),
        _ => text.to_owned(),
    }
}

/// Writes `result.json.gz` into `directory`, whole or not at all.
///
/// # Errors
/// When the directory cannot be written to; the message names the file.
pub fn write_packed(outcome: &Outcome, directory: &Path) -> anyhow::Result<()> {
    let unfinished = directory.join(format!("{PACKED}.part"));
    let write = || -> anyhow::Result<()> {
        // No time and no name in its head: the same run gives the same bytes.
        let file = fs::File::create(&unfinished)?;
        let mut packed = GzBuilder::new().mtime(0).write(file, Compression::best());
        packed.write_all(shortened(&serde_json::to_string(outcome)?).as_bytes())?;
        packed.finish()?.sync_all()?;
        fs::rename(&unfinished, directory.join(PACKED))?;
        Ok(())
    };
    write().with_context(|| unfinished.display().to_string())
}

/// Writes what is kept of `outcome` into `directory`: packed raw data, figures, a page.
///
/// # Errors
/// When a file cannot be written; the message names it.
pub fn keep(outcome: &Outcome, directory: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(directory).with_context(|| directory.display().to_string())?;
    write_packed(outcome, directory)?;
    let figures = report::figures(outcome, directory)?;
    let path = directory.join(PAGE);
    let page = shortened(&markdown::page(outcome, &figures, &Files::beside(directory)));
    fs::write(&path, page).with_context(|| path.display().to_string())
}
