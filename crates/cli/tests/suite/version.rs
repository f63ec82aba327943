//! `pollux --version`: the commit, as found in git, in a tarball or in a packager's setting.

#[path = "../../build/commit.rs"]
mod commit;

use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
};

fn git(directory: &Path, arguments: &[&str]) -> String {
    let output = Command::new("git")
        .args(["-c", "user.name=A", "-c", "user.email=a@example.org"])
        .args(arguments)
        .current_dir(directory)
        .stderr(Stdio::inherit())
        .output()
        .unwrap();
    assert!(output.status.success(), "git {arguments:?}");
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// Creates a repository with the files that `git archive` needs. Returns it and its commit.
fn repository() -> (tempfile::TempDir, String) {
    let root = tempfile::tempdir().unwrap();
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let package = root.path().join("crates/cli");
    fs::create_dir_all(package.join("build")).unwrap();
    fs::write(package.join("build.rs"), "").unwrap();
    fs::copy(here.join("build/archived"), package.join("build/archived")).unwrap();
    fs::copy(here.join("../../.gitattributes"), root.path().join(".gitattributes")).unwrap();
    git(root.path(), &["init", "--quiet"]);
    git(root.path(), &["add", "."]);
    git(root.path(), &["commit", "--quiet", "--message", "one"]);
    let commit = git(root.path(), &["rev-parse", "--short=7", "HEAD"]);
    (root, commit)
}

#[test]
fn a_checkout_names_its_commit_and_when_to_look_again() {
    let (root, commit) = repository();
    let built = commit::find(&root.path().join("crates/cli"), None);
    assert!(built.commit.starts_with(&commit), "{built:?}");
    let [log] = &built.changes_with[..] else { panic!("{built:?}") };
    assert!(fs::read_to_string(log).unwrap().contains("one"));
}

#[test]
fn a_tarball_without_git_names_its_commit() {
    let (root, commit) = repository();
    git(root.path(), &["archive", "--output", "all.tar", "HEAD"]);
    let unpacked = tempfile::tempdir().unwrap();
    let status = Command::new("tar")
        .arg("-xf")
        .arg(root.path().join("all.tar"))
        .current_dir(unpacked.path())
        .status()
        .unwrap();
    assert!(status.success());
    let built = commit::find(&unpacked.path().join("crates/cli"), None);
    assert!(built.commit.starts_with(&commit), "{built:?}");
}

#[test]
fn a_tree_of_unknown_origin_says_so_and_a_packager_is_believed() {
    let nowhere = tempfile::tempdir().unwrap();
    assert_eq!(commit::find(nowhere.path(), None).commit, "commit not known");
    assert_eq!(commit::find(nowhere.path(), Some("1.0-3".into())).commit, "1.0-3");
    // A copy within another repository does not have that repository's commit.
    let (root, _) = repository();
    let vendored = root.path().join("vendored");
    fs::create_dir(&vendored).unwrap();
    fs::write(vendored.join("build.rs"), "").unwrap();
    assert_eq!(commit::find(&vendored, None).commit, "commit not known");
}

#[test]
fn the_program_says_what_it_is() {
    let output = Command::new(env!("CARGO_BIN_EXE_pollux")).arg("--version").output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let start = format!("pollux {} (", env!("CARGO_PKG_VERSION"));
    assert!(text.starts_with(&start) && text.trim_end().ends_with(')'), "{text}");
    assert!(text.contains(" build, ") && text.contains("linux"), "{text}");
    assert_eq!(text.lines().count(), 1, "{text}");
}
