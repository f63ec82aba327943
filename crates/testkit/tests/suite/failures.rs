//! Tests of `scripts/failures`, which prints a summary of the failed tests at the end of CI.

use std::{fs, path::Path, process::Command};

/// Output of libtest for two files of tests. In the first file one test failed and one passed.
const LOG: &str = "\
running 2 tests
test a::list ... FAILED
test b ... ok

failures:

---- a::list stdout ----

thread 'a::list' panicked at tests/lab.rs:412:9:
assertion `left == right` failed
  left: 1
 right: 2
stack backtrace:
   0: begin_unwind


failures:
    a::list

test result: FAILED. 1 passed; 1 failed

running 1 test
test c ... ok

test result: ok. 1 passed; 0 failed
";

fn of(log: &str) -> String {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("test.log");
    fs::write(&path, log).unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/failures");
    let output = Command::new(script).arg(path).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_failed_test_is_named_with_its_first_lines() {
    let expected = "\
---- a::list stdout ----
    thread 'a::list' panicked at tests/lab.rs:412:9:
    assertion `left == right` failed
      left: 1
     right: 2
";
    assert_eq!(of(LOG), expected);
}

#[test]
fn long_output_is_cut() {
    let long = "x".repeat(2_000);
    let log = LOG.replace("  left: 1\n", &"many\n".repeat(20)).replace("assertion", &long);
    let output = of(&log);
    assert!(output.lines().count() < 10, "{output}");
    assert!(output.lines().all(|line| line.len() < 500), "{output}");
}

#[test]
fn a_passed_run_prints_nothing() {
    assert_eq!(of("test result: ok. 1 passed; 0 failed\n"), "");
}
