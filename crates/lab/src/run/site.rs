//! What the server under test serves.

use crate::experiment::Workload;
use anyhow::Context as _;
use std::{fs, path::Path};
use tempfile::TempDir;

/// A document root on disk, removed when dropped.
#[derive(Debug)]
pub struct Site {
    directory: TempDir,
    path: &'static str,
}

impl Site {
    /// Writes the files of `workload` into a new temporary directory.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn new(workload: Workload) -> anyhow::Result<Self> {
        let directory = tempfile::Builder::new().prefix("pollux-lab-").tempdir()?;
        let (path, bytes) = match workload {
            Workload::OneByte => ("/one-byte.txt", 1),
            Workload::SixKb => ("/document.html", 6 * 1024),
        };
        let file = directory.path().join(&path[1..]);
        fs::write(&file, vec![b'x'; bytes]).with_context(|| file.display().to_string())?;
        Ok(Self { directory, path })
    }

    /// The document root.
    pub fn root(&self) -> &Path {
        self.directory.path()
    }

    /// The URL's path that the generator asks for.
    pub fn path(&self) -> &str {
        self.path
    }
}
