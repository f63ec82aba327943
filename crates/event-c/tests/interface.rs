//! Tests the interface from C: the man page names every function, and a C program runs an echo server
//! on each mechanism, with the static and with the shared library, as `make install-c` installs them
//! and pkg-config finds them.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

/// How strict the compiler is with programs of users.
const STRICT: [&str; 6] =
    ["-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Wstrict-prototypes", "-Werror"];

fn here(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn run(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    output
}

#[test]
fn the_man_page_names_every_function_and_constant() {
    let header = fs::read_to_string(here("include/pollux.h")).expect("the header");
    let page = fs::read_to_string(here("man/pollux_event.3")).expect("the man page");
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let words = header.split(|c| !is_word(c));
    let mut names: Vec<_> =
        words.filter(|w| w.starts_with("pollux_") || w.starts_with("POLLUX_")).collect();
    names.sort_unstable();
    names.dedup();
    assert!(names.len() > 20, "{names:?}");
    let missing: Vec<_> =
        names.iter().filter(|&&name| name != "POLLUX_H" && !page.contains(name)).collect();
    assert!(missing.is_empty(), "pollux_event(3) does not name {missing:?}");
}

#[test]
fn the_program_in_the_book_is_valid_c() {
    let page = fs::read_to_string(here("../../docs/libraries.md")).expect("the page");
    let (_, rest) = page.split_once("\n```c\n").expect("a program in C");
    let (program, _) = rest.split_once("\n```\n").expect("its end");
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("echo.c");
    fs::write(&file, format!("{program}\n")).expect("the program is written");
    let mut cc = Command::new("cc");
    run(cc.args(STRICT).arg("-fsyntax-only").arg("-I").arg(here("include")).arg(&file));
}

/// The directory in which cargo has put the libraries.
fn libraries() -> PathBuf {
    let test = env::current_exe().expect("this program");
    let deps = test.parent().expect("its directory");
    for directory in [deps, deps.parent().expect("the profile's directory")] {
        if directory.join("libpollux.a").is_file() && directory.join("libpollux.so").is_file() {
            return directory.to_owned();
        }
    }
    panic!("no libpollux.a and libpollux.so in {} or above it", deps.display());
}

#[test]
fn an_echo_server_in_c_runs_on_each_mechanism() {
    let directory = tempfile::tempdir().expect("a directory");
    let root = directory.path().join("root");
    let mut make = Command::new("make");
    make.args(["--silent", "install-c", "PREFIX=/opt/pollux"]).current_dir(here("../.."));
    make.arg(format!("DESTDIR={}", root.display()));
    run(make.arg(format!("LIBRARIES={}", libraries().display())));
    let prefix = root.join("opt/pollux");
    assert!(prefix.join("share/man/man3/pollux_event.3").is_file());
    let flags = |link: &[&str]| {
        let mut pkg_config = Command::new("pkg-config");
        pkg_config.env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig")).args(link).arg("pollux");
        // Files that were installed for /opt/pollux are below `root`.
        pkg_config.env("PKG_CONFIG_SYSROOT_DIR", &root);
        String::from_utf8(run(&mut pkg_config).stdout).expect("text")
    };
    for (kind, flags) in [
        ("static", flags(&["--static", "--cflags", "--libs"])),
        ("shared", flags(&["--cflags", "--libs"])),
    ] {
        let program = directory.path().join(kind);
        let mut cc = Command::new("cc");
        cc.args(STRICT).arg("-o").arg(&program).arg(here("tests/echo.c"));
        for flag in flags.split_whitespace() {
            // A shared library is in the same directory as the static one, so the intended one is
            // named.
            match flag {
                "-lpollux" if kind == "static" => cc.arg("-l:libpollux.a"),
                flag => cc.arg(flag),
            };
        }
        run(cc.arg("-pthread"));
        let start = || {
            let mut command = Command::new(&program);
            command.env("LD_LIBRARY_PATH", prefix.join("lib"));
            command
        };
        let names = String::from_utf8(run(&mut start()).stdout).expect("names");
        assert_eq!(names.lines().count(), ::pollux_event::registry::ALL.len());
        let mut ran = 0;
        for name in names.lines() {
            let output = start().arg(name).output().expect("the program starts");
            let message = String::from_utf8_lossy(&output.stderr);
            match output.status.code() {
                Some(0) => ran += 1,
                Some(77) => eprintln!("{name}, {kind}: {message}"),
                _ => panic!("{name}, {kind}: {}: {message}", output.status),
            }
        }
        assert!(ran >= 5, "{kind}: only {ran} of the mechanisms ran");
    }
}
