//! Runs as they come, one JSON line each: a full disk, a kill or a power cut loses the current run at most.
//!
//! The file stands beside `result.json`, which is written without runs when the rates are known and whole
//! at the end; then the journal goes. Each run is on the disk before the next one begins, so that a power
//! cut loses no more than a kill.

use crate::{
    archive::{replace, to_disk},
    result::{Outcome, Run},
};
use anyhow::Context as _;
use std::{
    fs::{self, File},
    io::{ErrorKind, Write as _},
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
    /// Opens it in `directory` with the runs of `outcome`, and puts that beside it, as it stands but for
    /// the runs.
    ///
    /// # Errors
    /// When the directory cannot be written to.
    pub fn begin(directory: &Path, outcome: &Outcome) -> anyhow::Result<Self> {
        let path = directory.join(FILE);
        let lines: anyhow::Result<Vec<String>> = outcome.runs.iter().map(line).collect();
        // Written anew: behind a line that was cut short the next run could not be read. And before the
        // result loses its runs, so that at each instant one of the two files has all of them.
        replace(&path, lines?.concat().as_bytes())?;
        Outcome { runs: Vec::new(), interrupted: true, ..outcome.clone() }.write(directory)?;
        let file = File::options().append(true).open(&path);
        let file = file.with_context(|| path.display().to_string())?;
        Ok(Self { path, file })
    }

    /// Adds a run.
    ///
    /// # Errors
    /// When it cannot be written; what was written before is safe.
    pub fn add(&mut self, run: &Run) -> anyhow::Result<()> {
        let written = self.file.write_all(line(run)?.as_bytes());
        written.and_then(|()| to_disk(&self.file)).with_context(|| {
            format!(
                "{}: all runs before this one are in it; `--resume` goes on",
                self.path.display()
            )
        })
    }
}

fn line(run: &Run) -> anyhow::Result<String> {
    Ok(serde_json::to_string(run).context("a run")? + "\n")
}

/// What was measured, also before a stop: the result, with the runs that are in the journal only.
///
/// # Errors
/// When there is no result in `directory`, or its journal cannot be read.
pub fn read(directory: &Path) -> anyhow::Result<Outcome> {
    let (outcome, _) = read_all(directory)?;
    Ok(outcome)
}

/// The same, judged as it stands, for display. A run that continues from it does not count this as a look
/// ([`Outcome::looks`]).
///
/// # Errors
/// As [`read`].
pub fn read_judged(directory: &Path) -> anyhow::Result<Outcome> {
    let (mut outcome, is_judged) = read_all(directory)?;
    if !is_judged {
        outcome.conclude();
    }
    Ok(outcome)
}

/// What was measured, and whether the runs are those that it was judged by.
fn read_all(directory: &Path) -> anyhow::Result<(Outcome, bool)> {
    let mut outcome = Outcome::read(directory)?;
    let path = directory.join(FILE);
    let bytes = match fs::read(&path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok((outcome, true)),
        read => read.with_context(|| path.display().to_string())?,
    };
    // A line that was cut short is no run. One in the middle is of an earlier version, which went on
    // behind it.
    let lines = bytes.split(|&byte| byte == b'\n');
    let runs: Vec<Run> = lines.filter_map(|line| serde_json::from_slice(line).ok()).collect();
    // An empty one was begun, and its result was not yet put beside it.
    let is_judged = runs.is_empty();
    if !is_judged {
        outcome.runs = runs;
    }
    Ok((outcome, is_judged))
}

/// Takes the journal away, once all is in the result.
pub fn end(directory: &Path) {
    // It would be read again by `--resume`, with the same runs: no harm if it stays.
    let _ = fs::remove_file(directory.join(FILE));
}
