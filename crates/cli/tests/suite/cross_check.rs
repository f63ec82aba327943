//! `scripts/cross-check` reads the output of other generators: tests with samples of generators that
//! are seldom installed.

use std::{fs, path::Path, process::Command};

/// Returns whether the script read all samples in a directory correctly, and its output.
fn self_check(directory: &Path) -> (bool, String) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/cross-check");
    let output = Command::new("python3").arg(script).arg("--self-check").arg(directory).output();
    let output = output.expect("python3 is installed (apt-get install python3)");
    let text = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap()).concat();
    (output.status.success(), text)
}

fn samples() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cross-check")
}

#[test]
fn figures_of_wrk_wrk2_and_oha_are_read() {
    let (is_right, text) = self_check(&samples());
    assert!(is_right, "{text}");
}

#[test]
fn a_figure_that_is_read_wrong_is_reported() {
    let directory = tempfile::tempdir().unwrap();
    for sample in fs::read_dir(samples()).unwrap() {
        let sample = sample.unwrap().path();
        let text = fs::read_to_string(&sample).unwrap().replace("1.24ms", "1.25ms");
        fs::write(directory.path().join(sample.file_name().unwrap()), text).unwrap();
    }
    let (is_right, text) = self_check(directory.path());
    assert!(!is_right && text.contains("wrk2: p50 is 1250.0, not 1240.0"), "{text}");
}
