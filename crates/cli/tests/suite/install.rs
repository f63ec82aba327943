//! `make install` into a temporary directory, with the program that was built for the tests.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Returns the service unit of the package, and the values of its SystemCallFilter= in their order.
fn unit() -> (String, Vec<String>) {
    let unit = fs::read_to_string(root().join("packaging/systemd/pollux.service")).unwrap();
    let filters = unit.lines().filter_map(|line| line.strip_prefix("SystemCallFilter="));
    let filters = filters.map(str::to_owned).collect();
    (unit, filters)
}

fn install(into: &Path) -> Output {
    Command::new("make")
        .args(["--silent", "install", "PREFIX=/usr"])
        .arg(format!("BINARY={}", env!("CARGO_BIN_EXE_pollux")))
        .arg(format!("DESTDIR={}", into.display()))
        .current_dir(root())
        .output()
        .unwrap()
}

#[test]
fn program_completions_and_man_pages_are_installed() {
    let root = tempfile::tempdir().unwrap();
    let output = install(root.path());
    assert!(output.status.success(), "{}", text(&output.stderr));
    let usr = root.path().join("usr");
    let installed = |path: &str| fs::read_to_string(usr.join(path)).expect(path);

    let version = Command::new(usr.join("bin/pollux")).arg("--version").output().unwrap();
    assert!(text(&version.stdout).starts_with("pollux "));

    for (path, words) in [
        ("share/zsh/site-functions/_pollux", ["#compdef pollux", "gammo-fig7", "uring-poll"]),
        ("share/fish/vendor_completions.d/pollux.fish", ["-c pollux", "wait-cost", "uring-poll"]),
        ("share/man/man1/pollux-serve.1", [".TH", "SYNOPSIS", "mechanism"]),
        ("share/man/man1/pollux-lab-run.1", [".TH", "SYNOPSIS", "Exit status"]),
    ] {
        let content = installed(path);
        for word in words {
            assert!(content.contains(word), "{path}: no {word}");
        }
    }
    let pages: Vec<_> = fs::read_dir(usr.join("share/man/man1")).unwrap().collect();
    assert!(pages.len() >= 11, "{pages:?}");

    // bash itself completes names of experiments and of mechanisms.
    let completed = |words: &str| {
        let script = format!(
            ". '{}'; COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); \
             _pollux pollux \"${{COMP_WORDS[-1]}}\" \"${{COMP_WORDS[-2]}}\"; \
             echo \"${{COMPREPLY[@]}}\"",
            usr.join("share/bash-completion/completions/pollux").display()
        );
        let output = Command::new("bash").args(["-c", &script]).output().unwrap();
        assert!(output.stderr.is_empty(), "{}", text(&output.stderr));
        text(&output.stdout)
    };
    assert!(completed("pollux lab run gammo-fig").contains("gammo-fig7"));
    assert!(completed("pollux serve --mechanism epoll-").contains("epoll-et"));
}

/// Regression: capset(2) was refused, so the service kept its capability, and with `sandbox = "kill"` it did not start.
#[test]
fn the_service_may_give_up_its_capability() {
    let (unit, filters) = unit();
    assert!(unit.contains("\nAmbientCapabilities=CAP_NET_BIND_SERVICE\n"), "{unit}");
    // systemd applies these lines in order; @privileged contains capset.
    let position = |wanted: &str| filters.iter().position(|filter| *filter == wanted);
    assert!(position("~@privileged").unwrap() < position("capset").unwrap(), "{filters:?}");
}

/// Regression: with systemd 252 (Debian 12), whose @system-service does not contain these calls, the service had no
/// sandbox.
#[test]
fn the_service_may_enter_its_sandbox() {
    let (_, filters) = unit();
    let allowed: Vec<_> = filters.iter().flat_map(|filter| filter.split_whitespace()).collect();
    for call in
        ["landlock_create_ruleset", "landlock_add_rule", "landlock_restrict_self", "seccomp"]
    {
        assert!(allowed.contains(&call), "{call} is not in {allowed:?}");
    }
}

/// Regression: with CARGO_TARGET_DIR, `make install` and `make deb` took an older program below `target`, or none.
#[test]
fn what_cargo_built_in_another_directory_is_installed() {
    let output = Command::new("make")
        .args(["--dry-run", "install", "deb", "PREFIX=/usr", "DESTDIR=", "BINARY=", "LIBRARIES="])
        .arg("CARGO_TARGET_DIR=/elsewhere")
        .current_dir(root())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let commands = text(&output.stdout);
    for command in [
        "install -D -m 755 '/elsewhere/release/pollux' '/usr/bin/pollux'",
        "scripts/install-c '/usr' '/elsewhere/release'",
        "scripts/deb '/elsewhere/release/pollux' '/elsewhere/release' target/deb",
    ] {
        assert!(commands.contains(command), "{command} in {commands}");
    }
}

/// Regression: a program that was linked with the library did not start before a call of ldconfig(8).
#[test]
fn the_loader_learns_of_a_library_that_root_installs() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root may change the loader's cache");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let [programs, built, prefix] = ["bin", "built", "usr"].map(|name| folder.path().join(name));
    fs::create_dir(&programs).unwrap();
    fs::create_dir(&built).unwrap();
    for library in ["libpollux.a", "libpollux.so"] {
        fs::write(built.join(library), "").unwrap();
    }
    let ldconfig = programs.join("ldconfig");
    pollux_testkit::write_program(&ldconfig, "#!/bin/sh\n: >\"$0.called\"\n");
    let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap());
    let script = root().join("scripts/install-c");
    for (destination, is_called) in
        [(folder.path().join("staged").display().to_string(), false), (String::new(), true)]
    {
        let mut install = Command::new(&script);
        install.arg(&prefix).arg(&built).env("PATH", &path).env("DESTDIR", &destination);
        let output = install.output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        assert_eq!(programs.join("ldconfig.called").exists(), is_called, "DESTDIR={destination}");
    }
    assert!(prefix.join("lib/libpollux.so.0").exists());
}

/// Regression: `make deb BINARY=…` with a program of `make static` ended without a message.
#[test]
fn a_package_of_a_static_program_needs_no_c_library() {
    // Only the function of this name is run.
    const SCRIPT: &str = "set -euo pipefail
        eval \"$(sed -n '/^c_library() {/,/^}/p' scripts/deb)\"
        version=$(c_library \"$1\")
        echo \"[$version]\"";
    let version = |file: &str| {
        let output = Command::new("bash")
            .args(["-c", SCRIPT, "bash", file])
            .current_dir(root())
            .output()
            .unwrap();
        assert!(output.status.success(), "{file}: {}", text(&output.stderr));
        text(&output.stdout)
    };
    // Like a static program, it has no dynamic symbols.
    assert_eq!(version("scripts/deb"), "[]\n");
    if cfg!(target_env = "gnu") {
        let version = version(env!("CARGO_BIN_EXE_pollux"));
        assert!(version.starts_with("[2."), "{version}");
    }
}
