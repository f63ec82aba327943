//! The files that the server under test serves.

mod specweb99;

use crate::{archive::write_into, experiment::Workload};
use anyhow::Context as _;
use std::{
    fs,
    path::{Path, PathBuf},
};
use tempfile::TempDir;

/// A document root on disk, removed when dropped.
#[derive(Debug)]
pub struct Site {
    directory: TempDir,
    path: &'static str,
    /// The generator's list of requests, with their frequencies.
    urls: Option<PathBuf>,
}

impl Site {
    /// Writes the files of `workload` into a new temporary directory.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub fn new(workload: Workload) -> anyhow::Result<Self> {
        let directory = tempfile::Builder::new().prefix("pollux-lab-").tempdir()?;
        let root = directory.path().join(ROOT);
        fs::create_dir(&root).with_context(|| root.display().to_string())?;
        let one = |path: &'static str, bytes: usize| {
            write_into(&root, &path[1..], vec![b'x'; bytes])?;
            anyhow::Ok((path, None))
        };
        let (path, urls) = match workload {
            Workload::OneByte => one("/one-byte.txt", 1)?,
            // The server generates the page for each request, so the directory is empty.
            Workload::Guestbook => (GUESTBOOK, None),
            Workload::SixKb => one("/document.html", 6 * 1024)?,
            Workload::Specweb99Like => {
                specweb99::write(&root)?;
                // The list is outside the document root.
                let urls = write_into(directory.path(), "urls.txt", specweb99::urls())?;
                ("/", Some(urls))
            }
        };
        Ok(Self { directory, path, urls })
    }

    /// The document root.
    pub fn root(&self) -> PathBuf {
        self.directory.path().join(ROOT)
    }

    /// The path that the generator requests; with [`Site::urls`] it only completes the server's URL.
    pub fn path(&self) -> &str {
        self.path
    }

    /// Writes a list of this many documents: the same file with different queries, which the server
    /// ignores. It is the generator's `--url-file`.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn distinct(&self, number: u32, name: &str) -> anyhow::Result<PathBuf> {
        let (directory, file) = (self.directory.path(), format!("{name}-{number}.txt"));
        let path = directory.join(&file);
        if path.exists() {
            return Ok(path);
        }
        let lines: String = (0..number).map(|n| format!("{}?{name}={n}\n", self.path)).collect();
        write_into(directory, &file, lines)
    }

    /// Creates a temporary directory beside the document root.
    ///
    /// # Errors
    /// When it cannot be created.
    pub fn scratch(&self, name: &str) -> anyhow::Result<TempDir> {
        let directory = tempfile::Builder::new().prefix(name).tempdir_in(self.directory.path());
        directory.with_context(|| self.directory.path().display().to_string())
    }

    /// The generator's `--url-file`, when it requests several documents.
    pub fn urls(&self) -> Option<&Path> {
        self.urls.as_deref()
    }
}

/// The path of the guestbook.
pub const GUESTBOOK: &str = "/guestbook";
/// The document root, below the temporary directory.
const ROOT: &str = "site";
