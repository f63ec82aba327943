//! Where the programs of a run are started from.

use crate::environment;
use anyhow::Context as _;
use std::{
    env, fs,
    path::{Path, PathBuf},
};
use tempfile::TempDir;

/// The executable that runs now, or a copy of it, which goes with this value.
#[derive(Debug)]
pub struct Executable {
    path: PathBuf,
    _copy: Option<TempDir>,
}

impl Executable {
    /// In a guest a copy in its memory: from the host's file tree it would be read through an
    /// emulated machine at each start, and an experiment starts hundreds of processes.
    ///
    /// # Errors
    /// When its path is not known or it cannot be copied.
    pub fn of_this_process() -> anyhow::Result<Self> {
        let path = env::current_exe().context("the path of this program")?;
        if environment::guest().is_none() {
            return Ok(Self { path, _copy: None });
        }
        let directory = tempfile::Builder::new().prefix("pollux-").tempdir();
        let directory = directory.context("a directory for this program (TMPDIR)")?;
        let copy = directory.path().join("pollux");
        fs::copy(&path, &copy).with_context(|| copy.display().to_string())?;
        Ok(Self { path: copy, _copy: Some(directory) })
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }
}
