//! A test in a process of its own, though it is compiled into the program that all tests of its
//! crate share: it may measure the process's memory, install a subscriber, or count what threads do.

use std::{env, process::Command};

/// Holds the name of the test that a process was started for.
const VARIABLE: &str = "POLLUX_TEST_ALONE";

/// Returns from the calling test unless it has the process to itself. Otherwise the test runs, alone, in
/// a new process of the same program, and fails here if it fails there.
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

/// Whether this process was started for the test of this path (crate, modules, function). If not,
/// starts such a process and waits for it.
///
/// # Panics
/// If the test fails in its own process, or if no test there has that name.
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
    // With the prints of the harness, so that they are captured here as any test's.
    print!("{out}");
    eprint!("{errors}");
    assert!(output.status.success(), "{name} fails in a process of its own: {}", output.status);
    assert!(out.contains("1 passed"), "there is no test {name}");
    false
}

#[cfg(test)]
mod tests {
    use std::panic::catch_unwind;

    /// Positive control: what fails alone fails here. Without the variable's value it would start
    /// processes without end.
    #[test]
    fn a_failure_in_the_other_process_is_one_here() {
        let failed = catch_unwind(|| super::is_alone("it::alone::tests::fails_alone"));
        assert!(failed.is_err(), "the failure was lost");
        let unknown = catch_unwind(|| super::is_alone("it::alone::tests::there_is_no_such_test"));
        assert!(unknown.is_err(), "a test that is not there has passed");
    }

    /// The control of the test above, which starts it.
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
