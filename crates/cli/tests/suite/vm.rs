//! `pollux vm` as a program, and whether its end leaves anything behind.

use crate::guest::{pollux, success_of};
use pollux_testkit::{becomes_true, find_within, write_program};
use std::{
    fs,
    io::Read,
    path::Path,
    process::{Child, Command, Stdio},
    time::Duration,
};

const LIMIT: Duration = Duration::from_secs(120);

fn guests_run() -> bool {
    success_of(&mut pollux("vm", &["--module", "none", "--", "true"])).is_some()
}

/// Waits for the QEMU that `pollux` starts, and returns its process ID.
fn qemu_of(pollux: &Child) -> u32 {
    let children = format!("/proc/{0}/task/{0}/children", pollux.id());
    let is_qemu = |pid: &&str| {
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        name.starts_with("qemu")
    };
    let found = find_within(LIMIT, || {
        let pids = fs::read_to_string(&children).unwrap_or_default();
        pids.split_whitespace().find(is_qemu).map(|pid| pid.parse().unwrap())
    });
    found.unwrap_or_else(|| panic!("no QEMU within {LIMIT:?}"))
}

fn is_running(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    !stat.is_empty() && !stat.contains(") Z ")
}

#[test]
#[ignore = "slow: boots several guests"]
fn signals_leave_nothing_behind() {
    if !guests_run() {
        return;
    }
    for (signal, status) in [("INT", Some(130)), ("TERM", Some(143)), ("KILL", None)] {
        let temporary = tempfile::tempdir().unwrap();
        let mut child = pollux("vm", &["--module", "none", "--", "sleep", "1000"])
            .env("TMPDIR", temporary.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let qemu = qemu_of(&child);
        let sent = Command::new("kill").args(["-s", signal, &child.id().to_string()]).status();
        assert!(sent.unwrap().success());
        assert_eq!(child.wait().unwrap().code(), status, "SIG{signal}");
        let is_gone = becomes_true(LIMIT, || !is_running(qemu));
        assert!(is_gone, "SIG{signal} left QEMU ({qemu}) behind");
        let left: Vec<_> = fs::read_dir(temporary.path()).unwrap().flatten().collect();
        assert!(left.is_empty(), "SIG{signal} left {left:?}");
    }
}

#[test]
#[ignore = "slow: boots several guests"]
fn a_closed_pipe_ends_the_guest() {
    if !guests_run() {
        return;
    }
    let mut child = pollux("vm", &["--module", "none", "--", "yes"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut first = [0; 4];
    let mut out = child.stdout.take().unwrap();
    out.read_exact(&mut first).unwrap();
    drop(out);
    let output = child.wait_with_output().unwrap();
    assert_eq!((&first, output.status.code()), (b"y\ny\n", Some(123)));
    assert!(String::from_utf8_lossy(&output.stderr).contains("standard output"));
}

#[test]
fn mistakes_are_reported_before_anything_is_fetched() {
    let nowhere = Path::new(env!("CARGO_TARGET_TMPDIR")).join("untouched cache");
    for (arguments, words) in [
        (&["--kernel", "5.10", "--", "true"][..], "6.12"),
        (&["--forward", "80", "--", "true"], "HOST_PORT:GUEST_PORT"),
        (&["--deterministic", "--cpus", "2", "--", "true"], "--deterministic"),
        (&["--timeout", "0", "--", "true"], "--timeout"),
        (&["--cpus", "0", "--", "true"], "processors"),
        (&["--memory", "1", "--", "true"], "MiB"),
        (&[], "<CMD>"),
    ] {
        let output = pollux("vm", arguments).env("POLLUX_CACHE", &nowhere).output().unwrap();
        assert!(!output.status.success());
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(text.contains(words), "{arguments:?}: {text}");
        assert!(!nowhere.exists(), "{arguments:?} made a cache");
    }
}

/// A kernel that dies by itself, as one did on a busy host, is started once more, and only once; a run
/// in which a module may have caused the failure is never repeated.
#[test]
#[ignore = "slow: boots several guests"]
fn a_kernel_that_died_alone_is_started_once_more() {
    if !guests_run() {
        return;
    }
    let real = pollux_sys::find_program("qemu-system-x86_64").unwrap();
    for (deaths, modules, started, status) in
        [(1, "", 2, 0), (2, "", 2, 125), (1, " devpoll(O+)", 1, 125)]
    {
        let directory = tempfile::tempdir().unwrap();
        let log = directory.path().join("log");
        let script = format!(
            "#!/bin/sh\necho started >>'{log}'\nif [ \"$(wc -l <'{log}')\" -le {deaths} ]; then\n\
             echo '[    1.731547] Oops: int3: 0000 [#1] PREEMPT SMP NOPTI'\n\
             echo '[    1.739167] Modules linked in:{modules}'\n\
             echo '[    1.739731] Kernel panic - not syncing: Fatal exception in interrupt'\n\
             exit 0\nfi\nexec '{real}' \"$@\"\n",
            log = log.display(),
            real = real.display()
        );
        let program = directory.path().join("qemu-system-x86_64");
        write_program(&program, &script);
        let path = format!("{}:{}", directory.path().display(), std::env::var("PATH").unwrap());
        let console = directory.path().join("console");
        let done = pollux("vm", &["--module", "none", "--console"])
            .arg(&console)
            .args(["--", "echo", "it ran"])
            .env("PATH", path)
            .output()
            .unwrap();
        let stderr = String::from_utf8_lossy(&done.stderr);
        assert_eq!(done.status.code(), Some(status), "{stderr}");
        assert_eq!(fs::read_to_string(&log).unwrap().lines().count(), started, "{stderr}");
        assert_eq!(stderr.contains("started once more"), started == 2, "{stderr}");
        assert_eq!(done.stdout == b"it ran\n", status == 0);
        let console = fs::read_to_string(&console).unwrap();
        assert_eq!(console.matches("Oops").count(), deaths, "the log has every start");
    }
}
