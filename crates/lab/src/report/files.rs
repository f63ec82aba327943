//! The files beside a report.

use crate::archive;
use std::{fs, path::Path};

/// The files in the directory of a report, for its links.
#[derive(Clone, Debug)]
pub struct Files {
    /// The raw data: `result.json`, compressed or not.
    pub data: &'static str,
    /// The files of experiments that are not built in (`*.toml`).
    pub experiments: Vec<String>,
}

impl Files {
    /// Returns the files in `directory`.
    pub fn beside(directory: &Path) -> Self {
        let names = fs::read_dir(directory).into_iter().flatten().flatten();
        let mut experiments: Vec<String> = names
            .filter_map(|entry| entry.file_name().into_string().ok())
            .filter(|name| name.ends_with(".toml"))
            .collect();
        experiments.sort();
        Self { data: archive::file_name(directory), experiments }
    }
}
