//! Tests wait for events and states, not for a time: the number of sleeps in test code does not grow,
//! and each has a comment with its reason.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// The number of sleeps in test code. They pace a slow peer, show that nothing happens, or let
/// something grow old. If a change removes some, lower this number. `pollux_testkit` has functions that
/// wait for everything else.
const SLEEPS_MAX: usize = 61;

/// How many lines above a sleep its comment may end.
const COMMENT_LINES: usize = 3;

/// Returns whether each line of a source is test code.
fn in_tests<'a>(file: &Path, text: &'a str) -> impl Iterator<Item = (bool, &'a str)> {
    let is_test_file = file.components().any(|part| {
        let part = part.as_os_str();
        ["tests", "examples", "tests.rs", "testkit"].iter().any(|name| part == *name)
    });
    // A unit test is in a module at the end of its file.
    let mut is_test = is_test_file;
    let mut lines = text.lines().peekable();
    std::iter::from_fn(move || {
        let line = lines.next()?;
        let next = lines.peek().map_or("", |next| next.trim_start());
        is_test |= line.trim() == "#[cfg(test)]" && next.starts_with("mod ") && next.ends_with('{');
        Some((is_test, line))
    })
}

/// Returns the numbers of the lines that sleep in test code, and whether each has a reason.
fn sleeps(file: &Path, text: &str) -> Vec<(usize, bool)> {
    let lines: Vec<_> = in_tests(file, text).collect();
    let is_comment = |(_, line): &(bool, &str)| line.trim_start().starts_with("//");
    let sleeps = lines.iter().enumerate().filter(|(_, (is_test, line))| {
        *is_test && (line.contains("thread::sleep(") || line.trim_start().starts_with("sleep("))
    });
    let with_reason = sleeps.map(|(index, _)| {
        let above = &lines[index.saturating_sub(COMMENT_LINES)..index];
        (index + 1, above.iter().any(is_comment))
    });
    with_reason.collect()
}

fn sources(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).expect("a directory").flatten();
    let all = entries.flat_map(|entry| {
        let path = entry.path();
        if path.is_dir() { sources(&path) } else { vec![path] }
    });
    all.filter(|path| path.extension().is_some_and(|extension| extension == "rs")).collect()
}

#[test]
fn tests_sleep_seldom_and_say_why() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the folder of the crates");
    let (mut count, mut wrong) = (0, Vec::new());
    for path in sources(crates) {
        // This file quotes sleeps.
        if path.ends_with("suite/sleeps.rs") {
            continue;
        }
        let file = path.strip_prefix(crates).expect("a file of a crate");
        for (line, has_reason) in sleeps(file, &fs::read_to_string(&path).expect("a source")) {
            count += 1;
            if !has_reason {
                wrong.push(format!("{}:{line}", file.display()));
            }
        }
    }
    let wrong = wrong.join("\n");
    assert!(wrong.is_empty(), "wait for an event, or say in a comment why not:\n{wrong}");
    assert!(count > 20, "only {count} sleeps were found: the search is broken");
    assert!(count <= SLEEPS_MAX, "{count} sleeps in tests; wait for an event instead");
}

#[test]
fn the_count_of_sleeps_can_fail() {
    let planted = "fn a() {\n    thread::sleep(ONE);\n}\n\n#[cfg(test)]\nmod tests {\n    // A slow \
                   peer.\n    thread::sleep(ONE);\n\n    a();\n    b();\n    sleep(ONE);\n}\n";
    assert_eq!(sleeps(Path::new("a/src/b.rs"), planted), [(8, true), (12, false)]);
    let all = [(2, false), (8, true), (12, false)];
    for file in ["a/tests/b.rs", "a/src/b/tests.rs", "testkit/src/b.rs", "a/examples/b.rs"] {
        assert_eq!(sleeps(Path::new(file), planted), all, "{file}");
    }
}
