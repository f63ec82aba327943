//! Runs `scripts/publish docs` in a temporary directory, with a stand-in for `pollux` that fails.

use flate2::{Compression, write::GzEncoder};
use std::{
    fs::{self, File},
    io::Write,
    os::unix::fs::PermissionsExt,
    path::Path,
    process::Command,
};

const TABLE: &str =
    "<!-- lab runs: written by scripts/publish -->\nold\n<!-- end of lab runs -->\n";

/// Runs the script in a directory with one stored run, of an experiment that was given as a file.
/// Returns its exit code, its output on both descriptors, and the table of runs.
fn publish_docs(program: &str) -> (Option<i32>, String, String) {
    let directory = tempfile::tempdir().unwrap();
    let run = directory.path().join("docs/runs/2026-01-01-idle");
    fs::create_dir_all(&run).unwrap();
    let table = directory.path().join("docs/runs/README.md");
    fs::write(&table, TABLE).unwrap();
    let result = r#"{"format": "pollux-lab-result 1", "runs": [], "experiment": {"id": "idle"},
        "environment": {"command": "pollux lab run /tmp/changed.toml --quick"}}"#;
    let file = File::create(run.join("result.json.gz")).unwrap();
    GzEncoder::new(file, Compression::fast()).write_all(result.as_bytes()).unwrap();
    let pollux = directory.path().join("pollux");
    fs::write(&pollux, format!("#!/bin/sh\n{program}\n")).unwrap();
    fs::set_permissions(&pollux, fs::Permissions::from_mode(0o700)).unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/publish");
    let mut command = Command::new("python3");
    command.arg(script.canonicalize().unwrap()).arg("docs");
    let output = command.env("POLLUX", &pollux).current_dir(&directory).output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    (output.status.code(), text, fs::read_to_string(&table).unwrap())
}

#[test]
fn a_run_that_cannot_be_judged_anew_fails_the_command() {
    if Command::new("python3").arg("--version").output().is_err() {
        eprintln!("SKIPPED: there is no python3, in which scripts/publish is written");
        return;
    }
    let (code, output, table) = publish_docs(r#"[ "$2" != archive ]"#);
    assert_eq!((code, &*table), (Some(1), TABLE), "{output}");
    assert!(
        output.contains("2026-01-01-idle: not judged again") && !output.contains("all done"),
        "{output}"
    );
    let (code, output, _) = publish_docs(r#"[ "$2" != report ]"#);
    assert_eq!(code, Some(1), "{output}");
    assert!(output.contains("lab report` ended with status 1"), "{output}");
    let (code, output, table) = publish_docs("true");
    assert_eq!(code, Some(0), "{output}");
    assert!(
        output.contains("all done")
            && table.contains(
                "| [idle](2026-01-01-idle/README.md) | `pollux lab run idle --quick`, 0 blocks |"
            ),
        "{table}"
    );
}
