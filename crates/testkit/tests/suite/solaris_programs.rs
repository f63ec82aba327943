//! Runs `kmod/solaris-programs` twice at the same time, in a temporary directory, with a program that
//! does nothing.

use pollux_testkit::{becomes_true, write_program};
use std::{
    fs::{self, File},
    path::Path,
    process::{Child, Command},
    time::Duration,
};

const PATIENCE: Duration = Duration::from_secs(60);

/// A build that runs until the file `go` exists. The header that it includes must exist all the time.
const RECIPE: &str = r#"
about='nothing' source_package='toy'
build() {
    echo begin >>"$POLLUX_CACHE/builds"
    until [ -e "$POLLUX_CACHE/go" ]; do
        [ -e "$DEVPOLL_INCLUDE/sys/devpoll.h" ]
        sleep 0.02
    done
}
"#;

fn wait_for(what: &str, is_so: impl FnMut() -> bool) {
    assert!(becomes_true(PATIENCE, is_so), "{what}");
}

/// Regression: both runs once built at the same time in one directory, and each replaced the headers
/// of the other.
#[test]
fn of_two_runs_at_a_time_one_builds_and_the_other_waits() {
    for (needed, option) in [("bash", "--version"), ("make", "--version"), ("flock", "--version")] {
        if Command::new(needed).arg(option).output().is_err() {
            eprintln!("SKIPPED: there is no {needed}");
            return;
        }
    }
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    for made in ["kmod/programs", "kmod/devpoll/include", "bin", "cache/solaris/archives"] {
        fs::create_dir_all(at(made)).unwrap();
    }
    fs::copy(root.join("kmod/solaris-programs"), at("kmod/solaris-programs")).unwrap();
    for name in ["Makefile", "devpoll.4", "include/sys/devpoll.h", "include/linux/devpoll.h"] {
        let copy = at("kmod/devpoll").join(name);
        fs::create_dir_all(copy.parent().unwrap()).unwrap();
        fs::copy(root.join("kmod/devpoll").join(name), copy).unwrap();
    }
    fs::write(at("kmod/programs/toy"), RECIPE).unwrap();
    fs::write(at("cache/solaris/archives/toy_1.dsc"), "").unwrap();
    write_program(&at("bin/apt-get"), "#!/bin/sh\n");
    write_program(&at("bin/dpkg-source"), "#!/bin/sh\nmkdir \"$4\"\n");

    let path = format!("{}:{}", at("bin").display(), std::env::var("PATH").unwrap());
    let start = |log: &str| -> Child {
        let output = File::create(at(log)).unwrap();
        Command::new(at("kmod/solaris-programs"))
            .args(["--build", "toy"])
            .env("PATH", &path)
            .env("POLLUX_CACHE", at("cache"))
            .env("POLLUX", "true")
            .stderr(output.try_clone().unwrap())
            .stdout(output)
            .spawn()
            .unwrap()
    };
    let read = |log: &str| fs::read_to_string(at(log)).unwrap_or_default();
    let mut first = start("first");
    wait_for("it builds", || {
        assert!(first.try_wait().unwrap().is_none(), "{}", read("first"));
        read("cache/builds") == "begin\n"
    });
    let mut second = start("second");
    wait_for("the other waits, or builds", || {
        read("second").contains("waits") || read("cache/builds") != "begin\n"
    });
    fs::write(at("cache/go"), "").unwrap();
    let ends = [first.wait().unwrap(), second.wait().unwrap()];
    assert!(ends.iter().all(|end| end.success()), "{}{}", read("first"), read("second"));
    assert_eq!(read("cache/builds"), "begin\n", "it is built once");
}
