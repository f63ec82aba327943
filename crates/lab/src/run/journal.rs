//! Runs as they come, one JSON line each: a full disk, a kill or a power cut loses the current run at most.
//!
//! The file stands beside `result.json`, which is written without runs when the rates are known and whole
//! at the end; then the journal goes.

use crate::result::{Outcome, Run};
use anyhow::Context as _;
use std::{
    fs::{self, File},
    io::Write as _,
    path::{Path, PathBuf},
};

/// The file's name inside the result directory.
pub const FILE: &str = "runs.jsonl";

/// An open journal.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    file: File,
}

impl Journal {
    /// Opens it in `directory` and puts `outcome` beside it, as it stands but for the runs.
    ///
    /// # Errors
    /// When the directory cannot be written to.
    pub fn begin(directory: &Path, outcome: &Outcome) -> anyhow::Result<Self> {
        let path = directory.join(FILE);
        let file = File::options().create(true).append(true).open(&path);
        let file = file.with_context(|| path.display().to_string())?;
        let mut journal = Self { path, file };
        Outcome { runs: Vec::new(), interrupted: true, ..outcome.clone() }.write(directory)?;
        if fs::metadata(&journal.path).is_ok_and(|metadata| metadata.len() == 0) {
            outcome.runs.iter().try_for_each(|run| journal.add(run))?;
        }
        Ok(journal)
    }

    /// Adds a run.
    ///
    /// # Errors
    /// When it cannot be written; what was written before is safe.
    pub fn add(&mut self, run: &Run) -> anyhow::Result<()> {
        let line = serde_json::to_string(run).context("a run")? + "\n";
        self.file.write_all(line.as_bytes()).with_context(|| {
            format!(
                "{}: all runs before this one are in it; `--resume` goes on",
                self.path.display()
            )
        })
    }
}

/// What was measured before, to go on from: the result without its conclusions, and every whole line of
/// the journal.
///
/// # Errors
/// When there is no result in `directory`.
pub fn read(directory: &Path) -> anyhow::Result<Outcome> {
    let mut outcome = Outcome::read(directory)?;
    let path = directory.join(FILE);
    if let Ok(text) = fs::read_to_string(&path) {
        // The last line may have been cut short.
        outcome.runs = text.lines().map_while(|line| serde_json::from_str(line).ok()).collect();
    }
    outcome.interrupted = false;
    Ok(outcome)
}

/// Takes the journal away, once all is in the result.
pub fn end(directory: &Path) {
    // It would be read again by `--resume`, with the same runs: no harm if it stays.
    let _ = fs::remove_file(directory.join(FILE));
}
