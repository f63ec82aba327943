//! Tests of `scripts/run-tests`: a test that fails once is tried again, alone.

use pollux_testkit::write_program;
use std::{
    fs,
    path::Path,
    process::{Command, Output},
};

/// A program that prints output like libtest. `FAILURES` tests fail; with `--exact NAME`, the named
/// test runs alone. If the file `program.healed` exists beside the program, a test that runs alone
/// passes.
const PROGRAM: &str = r#"#!/bin/sh
for argument; do last=$argument; done
if [ "$1" = --ignored ]; then shift; fi
if [ "$1" = --exact ]; then
    echo "$last" >>"$0.alone"
    if [ -e "$0.healed" ]; then
        echo "test $last ... ok"
        echo "test result: ok. 1 passed; 0 failed; 0 ignored"
        exit 0
    fi
    echo "test $last ... FAILED"
    echo "test result: FAILED. 0 passed; 1 failed; 0 ignored"
    exit 101
fi
i=0
while [ $i -lt FAILURES ]; do
    i=$((i + 1))
    echo "test area::number_$i ... FAILED"
done
echo "test result: FAILED. 7 passed; FAILURES failed; 0 ignored"
exit STATUS
"#;

struct Run {
    folder: tempfile::TempDir,
    output: Output,
}

impl Run {
    fn new(failures: usize, status: u8, is_healed: bool, arguments: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("program");
        let failures = failures.to_string();
        let text = PROGRAM.replace("FAILURES", &failures).replace("STATUS", &status.to_string());
        write_program(&program, &text);
        if is_healed {
            fs::write(folder.path().join("program.healed"), "").unwrap();
        }
        let list = folder.path().join("list");
        let (here, path) = (folder.path().display(), program.display());
        fs::write(&list, format!("crate\tsuite\t{here}\t{path}\n")).unwrap();
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/run-tests");
        let mut command = Command::new(script);
        // The doc tests are not part of this test: `true` replaces cargo.
        command.args(arguments).arg(list).env("CARGO", "true");
        Self { output: command.output().unwrap(), folder }
    }

    fn text(&self) -> String {
        String::from_utf8(self.output.stdout.clone()).unwrap()
    }

    /// Returns the names of the tests that ran alone.
    fn alone(&self) -> String {
        fs::read_to_string(self.folder.path().join("program.alone")).unwrap_or_default()
    }
}

#[test]
fn a_test_that_passes_at_the_second_try_passes_and_is_named() {
    let run = Run::new(2, 101, true, &[]);
    assert!(run.output.status.success(), "{}", run.text());
    assert_eq!(run.alone(), "area::number_1\narea::number_2\n");
    assert!(run.text().contains("\npassed at the second try: crate area::number_2\n"));
}

#[test]
fn a_test_that_fails_twice_fails() {
    for arguments in [&[][..], &["--ignored"]] {
        let run = Run::new(1, 101, false, arguments);
        assert_eq!(run.output.status.code(), Some(1), "{}", run.text());
        assert!(run.text().contains("\nfailed at the second try: crate area::number_1\n"));
    }
}

#[test]
fn many_failures_and_a_crash_get_no_second_try() {
    for (failures, status) in [(4, 101), (1, 134)] {
        let run = Run::new(failures, status, true, &[]);
        assert_eq!(run.output.status.code(), Some(1), "{failures}, {status}: {}", run.text());
        assert_eq!(run.alone(), "", "{failures}, {status}");
    }
}
