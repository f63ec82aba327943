//! The executable from which the programs of a run are started.

use crate::environment;
use anyhow::Context as _;
use std::{
    env, fs,
    path::{Path, PathBuf},
};
use tempfile::TempDir;

/// The executable that is running, or a copy of it, which is deleted when this value is dropped.
#[derive(Debug)]
pub struct Executable {
    path: PathBuf,
    _copy: Option<TempDir>,
}

impl Executable {
    /// Returns this process's executable. In a guest, it is copied into the guest's memory: reading it from
    /// the host's file tree goes through an emulated device at each start, and an experiment starts
    /// hundreds of processes.
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
