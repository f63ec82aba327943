//! The commit of a source tree: from git, or from the file that `git archive` wrote.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// A commit, and the files with which it changes.
#[derive(Debug)]
pub(crate) struct CommitInfo {
    /// `32b38f2 2026-11-21`, or that it is not known.
    pub(crate) commit: String,
    /// The files whose change requires another look.
    pub(crate) changes_with: Vec<PathBuf>,
}

/// The commit of the tree that holds the directory `package`. `given` is taken as it is: packagers
/// know better.
pub(crate) fn find(package: &Path, given: Option<String>) -> CommitInfo {
    if let Some(commit) = given.filter(|text| !text.is_empty()) {
        return CommitInfo { commit, changes_with: Vec::new() };
    }
    // `git archive`, and with it a forge's tarball, replaces the placeholder (.gitattributes).
    let archived = fs::read_to_string(package.join("build/archived")).unwrap_or_default();
    if !archived.is_empty() && !archived.contains("Format") {
        return CommitInfo { commit: archived.trim().to_owned(), changes_with: Vec::new() };
    }
    let git = |arguments: &[&str]| {
        let output = Command::new("git").arg("-C").arg(package).args(arguments).output().ok()?;
        let text = String::from_utf8(output.stdout).ok()?;
        (output.status.success() && !text.is_empty()).then(|| text.trim().to_owned())
    };
    // In somebody else's repository (a vendored copy) git would name a commit of theirs.
    let is_ours = git(&["ls-files", "--error-unmatch", "build.rs"]).is_some();
    let commit = is_ours.then(|| git(&["log", "-1", "--format=%h %cs", "--abbrev=10"])).flatten();
    let log = git(&["rev-parse", "--git-path", "logs/HEAD"]).map(|path| package.join(path));
    CommitInfo {
        commit: commit.unwrap_or_else(|| "commit not known".into()),
        changes_with: log.into_iter().filter(|path| path.exists()).collect(),
    }
}
