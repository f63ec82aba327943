//! Runs a test in its own process, although the test is compiled into the program that all tests of
//! its crate share. Such a test may measure the memory of the process, install a `tracing` subscriber,
//! or count what the threads do.

use std::{env, process::Command};

/// The environment variable with the name of the test for which the process was started.
const VARIABLE: &str = "POLLUX_TEST_ALONE";

/// Runs the calling test alone, in a new process of the same program. In the test harness's process
/// the macro starts that process, fails if the test fails there, and returns from the calling
/// function. In the new process it does nothing, so that the body of the test runs.
///
/// The argument is the name of the calling function:
///
/// ```no_run
/// #[test]
/// fn resident_memory_stays_small() {
///     pollux_testkit::alone!(resident_memory_stays_small);
///     // …
/// }
/// ```
#[macro_export]
macro_rules! alone {
    ($test:ident) => {
        if !$crate::alone::is_alone(concat!(module_path!(), "::", stringify!($test))) {
            return;
        }
    };
}

/// Returns whether this process was started for the test with this path (crate, modules, function). If
/// not, starts such a process and waits for its end.
///
/// # Panics
/// If the test fails in its own process, or if that program has no test with this name.
pub fn is_alone(path: &str) -> bool {
    // Test harnesses name tests without the crate.
    let name = path.split_once("::").expect("a crate and a function").1;
    if env::var(VARIABLE).is_ok_and(|only| only == name) {
        return true;
    }
    let output = Command::new(env::current_exe().expect("a test program has a path"))
        .args(["--exact", name, "--include-ignored", "--test-threads=1", "--nocapture"])
        .env(VARIABLE, name)
        .output()
        .expect("the test program starts again");
    let [out, errors] =
        [&output.stdout, &output.stderr].map(|output| String::from_utf8_lossy(output));
    // Printed with the macros, so that the harness captures this output as it captures that of any
    // test.
    print!("{out}");
    eprint!("{errors}");
    assert!(output.status.success(), "{name} fails in a process of its own: {}", output.status);
    assert!(out.contains("1 passed"), "there is no test {name}");
    false
}

#[cfg(test)]
mod tests {
    use std::panic::catch_unwind;

    /// Positive control: a test that fails in its own process also fails in the calling process.
    /// Without the value of the variable, the test would start processes without end.
    #[test]
    fn a_failure_in_the_other_process_is_one_here() {
        let failed = catch_unwind(|| super::is_alone("it::alone::tests::fails_alone"));
        assert!(failed.is_err(), "the failure was lost");
        let unknown = catch_unwind(|| super::is_alone("it::alone::tests::there_is_no_such_test"));
        assert!(unknown.is_err(), "a test that is not there has passed");
    }

    /// The test that the test above starts: it fails on purpose in its own process.
    #[test]
    fn fails_alone() {
        let started = std::env::var(super::VARIABLE).is_ok();
        assert!(!started, "on purpose");
    }

    #[test]
    fn the_macro_runs_its_test_in_another_process() {
        let of_the_harness = std::env::var(super::VARIABLE).is_err();
        crate::alone!(the_macro_runs_its_test_in_another_process);
        assert!(!of_the_harness, "it runs in the harness's own process");
    }
}
