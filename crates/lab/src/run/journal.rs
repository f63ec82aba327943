//! The journal of finished runs, one JSON line each: a full disk, a kill or a power cut loses at most the
//! current run.
//!
//! The file is in the same directory as `result.json`. That file is written without runs when the rates are
//! known, and with all runs at the end; then the journal is deleted. Each run is written to disk before the
//! next one begins, so that a power cut loses no more than a kill.
//!
//! A sealed guest has no access to the host's files before its end. Its journal also goes, byte by byte, to an
//! I/O port whose bytes the host writes to a file ([`PORT`]). The first line of that file is `result.json`.

use crate::{
    archive::{replace, to_disk},
    result::{FORMAT, Outcome, Run},
};
use anyhow::Context as _;
use std::{
    fs::{self, File},
    io::{self, ErrorKind, Write as _},
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
};

/// The file's name inside the result directory.
pub const FILE: &str = "runs.jsonl";
/// The environment variable with the number of the I/O port to which a sealed guest's journal also goes.
pub const PORT: &str = "POLLUX_JOURNAL_PORT";
/// The file whose bytes are the I/O ports (port(4)).
const PORTS: &str = "/dev/port";

/// An open journal.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    file: File,
    port: Option<Port>,
}

/// The I/O port to which a sealed guest's journal goes.
#[derive(Debug)]
struct Port {
    ports: File,
    number: u64,
}

impl Port {
    /// Returns the port that [`PORT`] names, if it names one.
    fn of_environment() -> anyhow::Result<Option<Self>> {
        let Ok(number) = std::env::var(PORT) else { return Ok(None) };
        let number = number.parse().with_context(|| format!("{PORT}={number}"))?;
        let ports = File::options().write(true).open(PORTS).context(PORTS)?;
        Ok(Some(Self { ports, number }))
    }

    /// Writes each byte to the port: a longer write would go on to the next ports.
    fn write(&self, text: &str) -> io::Result<()> {
        text.as_bytes().chunks(1).try_for_each(|byte| self.ports.write_all_at(byte, self.number))
    }
}

impl Journal {
    /// Creates the journal in `directory` with the runs of `outcome`, and writes `outcome` without its runs
    /// to `result.json`.
    ///
    /// # Errors
    /// When the directory cannot be written to.
    pub fn begin(directory: &Path, outcome: &Outcome) -> anyhow::Result<Self> {
        let path = directory.join(FILE);
        let lines: anyhow::Result<Vec<String>> = outcome.runs.iter().map(line).collect();
        // The journal is written anew: a run appended after an incomplete line could not be read. It is
        // written before the result loses its runs, so that at each instant one of the two files contains
        // all runs.
        replace(&path, lines?.concat().as_bytes())?;
        let begun = Outcome { runs: Vec::new(), interrupted: true, ..outcome.clone() };
        begun.write(directory)?;
        let port = Port::of_environment()?;
        if let Some(port) = &port {
            port.write(&(serde_json::to_string(&begun)? + "\n")).context(PORTS)?;
        }
        let file = File::options().append(true).open(&path);
        let file = file.with_context(|| path.display().to_string())?;
        Ok(Self { path, file, port })
    }

    /// Adds a run.
    ///
    /// # Errors
    /// When the run cannot be written. The runs written before it are safe.
    pub fn add(&mut self, run: &Run) -> anyhow::Result<()> {
        let line = line(run)?;
        if let Some(port) = &self.port {
            port.write(&line).context(PORTS)?;
        }
        let written = self.file.write_all(line.as_bytes());
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

/// Reads the result, with the runs that are only in the journal; also after an interrupted run.
///
/// # Errors
/// When there is no result in `directory`, or its journal cannot be read.
pub fn read(directory: &Path) -> anyhow::Result<Outcome> {
    let (outcome, _) = read_all(directory)?;
    Ok(outcome)
}

/// Reads the result like [`read`] and judges the runs so far, for display. A run that continues from this
/// result does not count this as a look ([`Outcome::looks`]).
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

/// Returns the result, and whether its verdicts were made from the same runs.
fn read_all(directory: &Path) -> anyhow::Result<(Outcome, bool)> {
    let path = directory.join(FILE);
    let bytes = match fs::read(&path) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            return Ok((Outcome::read(directory)?, true));
        }
        read => read.with_context(|| path.display().to_string())?,
    };
    let header = bytes.split(|&byte| byte == b'\n').next().unwrap_or_default();
    let begun =
        serde_json::from_slice(header).ok().filter(|begun: &Outcome| begun.format == FORMAT);
    let mut outcome = begun.map_or_else(|| Outcome::read(directory), Ok)?;
    // An incomplete line is not a run. It can also be in the middle of the file: an earlier version
    // appended runs after it.
    let lines = bytes.split(|&byte| byte == b'\n');
    let runs: Vec<Run> = lines.filter_map(|line| serde_json::from_slice(line).ok()).collect();
    // An empty journal was just created: the result beside it still has its runs.
    let is_judged = runs.is_empty();
    if !is_judged {
        outcome.runs = runs;
    }
    Ok((outcome, is_judged))
}

/// Deletes the journal after all runs were written to the result.
pub fn end(directory: &Path) {
    // If the journal remains, `--resume` reads the same runs again, which does no harm.
    let _ = fs::remove_file(directory.join(FILE));
}
