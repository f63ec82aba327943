//! Runs `scripts/publish` in a temporary directory, with a stand-in for `pollux`.

use flate2::{Compression, write::GzEncoder};
use std::{
    fs::{self, File},
    io::Write,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
};

const TABLE: &str =
    "<!-- lab runs: written by scripts/publish -->\nold\n<!-- end of lab runs -->\n";
/// A stand-in whose `lab archive FROM TO` copies the result.
const COPIES: &str =
    r#"if [ "$2" = archive ] && [ "$3" != "$4" ]; then mkdir -p "$4" && cp "$3"/* "$4"; fi"#;

/// A directory with `docs/runs` and a stand-in for `pollux`.
struct Checkout(tempfile::TempDir);

impl Checkout {
    fn new(program: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir_all(directory.path().join("docs/runs")).unwrap();
        fs::write(directory.path().join("docs/runs/README.md"), TABLE).unwrap();
        let pollux = directory.path().join("pollux");
        fs::write(&pollux, format!("#!/bin/sh\n{program}\n")).unwrap();
        fs::set_permissions(&pollux, fs::Permissions::from_mode(0o700)).unwrap();
        Self(directory)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Stores a result, with one run of this value and one verdict.
    fn store(&self, name: &str, value: u32, verdict: &str) {
        let result = serde_json::json!({
            "format": "pollux-lab-result 1", "runs": [{ "block": 0, "value": value }],
            "experiment": { "id": "idle" },
            "environment": { "command": "pollux lab run /tmp/changed.toml --quick" },
            "claims": [{ "id": "P4", "verdict": verdict }],
        });
        fs::create_dir_all(self.path(name)).unwrap();
        let file = File::create(self.path(name).join("result.json.gz")).unwrap();
        GzEncoder::new(file, Compression::fast()).write_all(result.to_string().as_bytes()).unwrap();
    }

    /// Runs the script. Returns its exit code and its output on both descriptors.
    fn publish(&self, arguments: &[&str]) -> (Option<i32>, String) {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/publish");
        let mut command = Command::new("python3");
        command.arg(script.canonicalize().unwrap()).args(arguments);
        let command = command.env("POLLUX", self.path("pollux")).current_dir(&self.0);
        let output = command.output().unwrap();
        let text = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8_lossy(&text).into_owned())
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_default()
    }
}

fn has_python() -> bool {
    let is_there = Command::new("python3").arg("--version").output().is_ok();
    if !is_there {
        eprintln!("SKIPPED: there is no python3, in which scripts/publish is written");
    }
    is_there
}

#[test]
fn a_run_that_cannot_be_judged_anew_fails_the_command() {
    if !has_python() {
        return;
    }
    let publish_docs = |program: &str| {
        let checkout = Checkout::new(program);
        checkout.store("docs/runs/2026-01-01-idle", 1, "holds");
        let (code, output) = checkout.publish(&["docs"]);
        (code, output, checkout.read("docs/runs/README.md"))
    };
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
                "| [idle](2026-01-01-idle/README.md) | `pollux lab run idle --quick`, 1 blocks |"
            ),
        "{table}"
    );
}

/// Each run of a claim is counted, also if a newer run has replaced it.
#[test]
fn a_run_that_is_replaced_stays_in_the_list_of_tries() {
    if !has_python() {
        return;
    }
    let checkout = Checkout::new(COPIES);
    let (old, part) = ("2026-01-01-provos-fig4-9", "2026-01-02-provos-fig4-9-poll");
    checkout.store(&format!("docs/runs/{old}"), 1, "does not hold");
    checkout.store(&format!("docs/runs/{part}"), 2, "undecided");
    checkout.store("made", 3, "holds");
    let keep = ["keep", "provos-fig4-9", "made", "provos-fig4-9-poll"];
    let (code, output) = checkout.publish(&keep);
    assert_eq!(code, Some(0), "{output}");
    let tries = || checkout.read("docs/runs/tries.toml");
    let entry = |run: &str, verdict: &str| {
        let by =
            fs::read_dir(checkout.path("docs/runs")).unwrap().map(|it| it.unwrap().file_name());
        let by = by.map(|it| it.into_string().unwrap()).find(|it| it.ends_with("-provos-fig4-9"));
        format!(
            "\n[[replaced]]\nrun = \"{run}\"\nby = \"{}\"\n[replaced.verdicts]\n\"P4\" = \"{verdict}\"\n",
            by.unwrap()
        )
    };
    assert_eq!(tries(), entry(old, "does not hold") + &entry(part, "undecided"));
    assert!(!checkout.path(&format!("docs/runs/{old}")).exists());
    assert!(!checkout.path(&format!("docs/runs/{part}")).exists());
    // The same result is no further run; another one of the same day is.
    let again = ["keep", "provos-fig4-9", "made"];
    let count = || tries().matches("[[replaced]]").count();
    assert_eq!((checkout.publish(&again).0, count()), (Some(0), 2));
    checkout.store("made", 4, "holds");
    assert_eq!((checkout.publish(&again).0, count()), (Some(0), 3), "{}", tries());
    let (code, output) = checkout.publish(&keep);
    assert_eq!(code, Some(2), "there is no such run any more: {output}");
}
