//! `pollux lab` and `pollux doctor` as users start them, with the real server and generator.

use pollux_testkit::{becomes_true, find_within, wait_until};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::{
    fs,
    path::Path,
    process::{Child, Command, Output, Stdio},
    time::{Duration, Instant},
};

/// Two mechanisms, with and without idle connections, for a moment.
const SMALL: &str = r#"
id = "small"
title = "A small experiment"
source = "this test"
summary = "Two mechanisms."
workload = "6-kb"
[server]
interest = "per-state"
[load]
requests-per-connection = 1
max-lag = "10s"
[[variant]]
name = "poll"
mechanism = "poll"
[[variant]]
name = "edge"
mechanism = "epoll-et"
[[axis]]
name = "idle"
label = "idle connections"
values = [0, 20]
[rate]
fractions = [0.1]
saturation-connections = 4
[budget]
seconds = 600
blocks = 30
min-window-seconds = 0.5
max-window-seconds = 5
[quick]
budget = { blocks = 3, min-window-seconds = 0.3, max-window-seconds = 0.3, saturation-seconds = 0.3 }
[[figure]]
id = "cpu"
title = "CPU"
x = "idle"
y = "server_cpu_us_per_request"
in-terminal = true
[[claim]]
id = "T1"
statement = "poll costs more with idle connections"
source = "this test"
paper = "as this test has it"
paper-value = 2.0
metric = "server_cpu_us_per_request"
compare = "ratio"
each = ["poll"]
a = { at = { idle = "max" } }
b = { at = { idle = "min" } }
holds = { above = 1.0 }
"#;

fn pollux(arguments: &[&str], directory: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pollux"));
    command.args(arguments).current_dir(directory).stdin(Stdio::null());
    command
}

fn run(arguments: &[&str], directory: &Path) -> Output {
    pollux(arguments, directory).output().unwrap()
}

fn directory_with_experiment() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("small.toml"), SMALL).unwrap();
    directory
}

#[test]
fn a_small_experiment_from_end_to_end() {
    let directory = directory_with_experiment();
    // The directory is another project's repository.
    for arguments in [&["init", "--quiet"][..], &["add", "."], &["commit", "--quiet", "-m", "one"]]
    {
        let identity = ["-c", "user.name=A", "-c", "user.email=a@example.org"];
        let git = Command::new("git")
            .args(identity)
            .args(arguments)
            .current_dir(directory.path())
            .status();
        assert!(git.unwrap().success(), "git {arguments:?}");
    }
    let arguments = ["lab", "run", "small.toml", "--quick", "--blocks", "1", "--out", "out"];
    let output = run(&arguments, directory.path());
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("server CPU per request (µs)") && text.contains("T1"), "{text}");
    let last: Vec<_> = text.lines().rev().take(2).collect();
    assert!(last[0].starts_with("report ") && last[0].ends_with("out/report.html"), "{text}");
    assert!(last[1].starts_with("raw data ") && last[1].ends_with("out/result.json"), "{text}");

    let result = fs::read_to_string(directory.path().join("out/result.json")).unwrap();
    let result: Value = serde_json::from_str(&result).unwrap();
    let version = String::from_utf8(run(&["--version"], directory.path()).stdout).unwrap();
    let (_, build) = version.trim_end().split_once('(').unwrap();
    let revision = result["environment"]["revision"].as_str();
    assert_eq!(
        revision,
        pollux_lab::environment::commit(build),
        "the program's, not the directory's"
    );
    let runs = result["runs"].as_array().unwrap();
    assert_eq!(runs.len(), 4);
    for run in runs {
        assert_eq!(run["status"], "valid", "{}", run["reason"]);
        let variant = run["variant"].as_str().unwrap();
        assert_eq!(run["mechanism"], if variant == "edge" { "epoll-et" } else { "poll" });
        let requests = run["raw"]["load"]["requests"]["completed"].as_u64().unwrap();
        assert!(requests > 0);
        let bytes = run["raw"]["load"]["content_bytes"].as_u64();
        assert_eq!(bytes, Some(requests * 6 * 1024), "whole documents of 6 KB");
        let cost = run["metrics"]["server_cpu_us_per_request"].as_f64().unwrap();
        assert!(cost > 1.0 && cost < 1e6, "{cost} µs");
        let kernel_call = if variant == "edge" { "epoll_" } else { "ppoll" };
        let metrics = run["metrics"].as_object().unwrap();
        let prefix = format!("calls_per_request.{kernel_call}");
        let counted = metrics.iter().any(|(name, value)| {
            name.starts_with(&prefix) && value.as_f64().is_some_and(|calls| calls > 0.0)
        });
        assert!(counted, "the server counts its waits: {metrics:?}");
    }
    let claim = &result["claims"][0];
    assert_eq!(claim["id"], "T1");
    assert_eq!(claim["paper"], 2.0);
    assert_eq!(claim["verdict"], "seen, not decided", "one block decides nothing");
    assert!(claim["value"].is_f64() && claim["low"].is_null() && claim["high"].is_null());

    // The report is created again from the file alone.
    let page = directory.path().join("out/report.html");
    let first = fs::read_to_string(&page).unwrap();
    fs::remove_file(&page).unwrap();
    let output = run(&["lab", "report", "out"], directory.path());
    assert!(output.status.success());
    assert_eq!(fs::read_to_string(&page).unwrap(), first);

    // The archive: it is smaller, a forge can show it, and it yields the same report.
    let output = run(&["lab", "archive", "out", "kept"], directory.path());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let kept = directory.path().join("kept");
    assert!(!kept.join("result.json").exists() && !kept.join("report.html").exists());
    let size = |path: &Path| fs::metadata(path).unwrap().len();
    let plain = size(&directory.path().join("out/result.json"));
    assert!(size(&kept.join("result.json.gz")) * 4 < plain);
    let shown = fs::read_to_string(kept.join("README.md")).unwrap();
    assert!(shown.contains("![CPU](figures/cpu.svg)") && shown.contains("| T1 |"), "{shown}");
    assert!(kept.join("figures/cpu.svg").exists());
    let here = directory.path().to_str().unwrap();
    assert!(!shown.contains(here), "no place of this machine: {shown}");
    let packed = fs::read(kept.join("result.json.gz")).unwrap();
    // A file from another program, whose verdicts this program does not share.
    fs::write(kept.join("README.md"), "| T1 | holds |").unwrap();
    let output = run(&["lab", "report", "kept"], directory.path());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(fs::read_to_string(kept.join("README.md")).unwrap(), shown);
    let page = fs::read_to_string(kept.join("report.html")).unwrap();
    assert_eq!(page, first.replace("result.json", "result.json.gz"), "but for the link");
    assert_eq!(fs::read(kept.join("result.json.gz")).unwrap(), packed);
}

/// Waits until the experiment has started a server and another process; returns their process IDs.
fn children_at_work(lab: &Child) -> Vec<u32> {
    let path = format!("/proc/{0}/task/{0}/children", lab.id());
    let two = find_within(Duration::from_secs(60), || {
        let text = fs::read_to_string(&path).unwrap_or_default();
        let pids: Vec<u32> = text.split_whitespace().map(|pid| pid.parse().unwrap()).collect();
        (pids.len() >= 2).then_some(pids)
    });
    two.expect("the experiment has two processes")
}

/// Returns whether a process runs. A zombie that waits for init to reap it counts as ended.
fn is_alive(pid: u32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| stat.rsplit_once(')').is_some_and(|(_, state)| !state.starts_with(" Z")))
}

fn assert_gone(pids: &[u32]) {
    wait_until(&format!("the end of the laboratory's processes {pids:?}"), || {
        !pids.iter().any(|&pid| is_alive(pid))
    });
}

fn started(directory: &Path) -> Child {
    pollux(&["lab", "run", "small.toml", "--out", "out"], directory)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

#[test]
fn ctrl_c_writes_what_was_measured_and_leaves_no_process() {
    let directory = directory_with_experiment();
    let mut lab = started(directory.path());
    let pids = children_at_work(&lab);
    // timeout(1) sends its signal to the command and to its process group: both are one interrupt.
    for _ in 0..2 {
        kill_process(Pid::from_child(&lab), Signal::INT).unwrap();
    }
    assert_eq!(lab.wait().unwrap().code(), Some(130));
    assert_gone(&pids);
    let result = fs::read_to_string(directory.path().join("out/result.json")).unwrap();
    let result: Value = serde_json::from_str(&result).unwrap();
    assert_eq!(result["interrupted"], true);
    let page = fs::read_to_string(directory.path().join("out/report.html")).unwrap();
    assert!(page.contains("Interrupted."));
}

#[test]
fn the_processes_die_with_a_laboratory_that_is_killed() {
    let directory = directory_with_experiment();
    let mut lab = started(directory.path());
    let pids = children_at_work(&lab);
    lab.kill().unwrap();
    lab.wait().unwrap();
    assert_gone(&pids);
}

#[test]
fn what_a_killed_laboratory_had_measured_is_reported() {
    let directory = directory_with_experiment();
    let arguments = ["lab", "run", "small.toml", "--time", "30s", "--out", "out"];
    let mut lab = pollux(&arguments, directory.path())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let journal = directory.path().join("out/runs.jsonl");
    let is_written = becomes_true(Duration::from_secs(120), || {
        assert!(lab.try_wait().unwrap().is_none(), "it ended");
        fs::read_to_string(&journal).is_ok_and(|text| text.ends_with('\n'))
    });
    assert!(is_written, "no run was written");
    lab.kill().unwrap();
    lab.wait().unwrap();
    let output = run(&["lab", "report", "out"], directory.path());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let result = fs::read_to_string(directory.path().join("out/result.json")).unwrap();
    let result: Value = serde_json::from_str(&result).unwrap();
    assert!(!result["runs"].as_array().unwrap().is_empty() && result["interrupted"] == true);
    let page = fs::read_to_string(directory.path().join("out/report.html")).unwrap();
    assert!(page.contains("Interrupted."));
    assert!(journal.exists(), "for --resume");

    // The same command does not overwrite a result that is complete, of a killed run, or archived.
    let kept = run(&["lab", "archive", "out", "kept"], directory.path());
    assert!(kept.status.success(), "{}", String::from_utf8_lossy(&kept.stderr));
    fs::create_dir(directory.path().join("killed")).unwrap();
    fs::rename(&journal, directory.path().join("killed/runs.jsonl")).unwrap();
    for out in ["out", "kept", "killed"] {
        let arguments = ["lab", "run", "small.toml", "--quick", "--blocks", "1", "--out", out];
        let again = run(&arguments, directory.path());
        let stderr = String::from_utf8(again.stderr).unwrap();
        assert_eq!(again.status.code(), Some(1), "{out}: {stderr}");
        assert!(stderr.contains(&format!("--resume {out}")), "{stderr}");
    }
}

/// Runs one block of [`SMALL`] with one variant and these changes, without claims, idle connections
/// and a probe of the saturation. Returns the output and the runs.
fn one_run(out: &str, changes: &[(&str, &str)]) -> (Output, Vec<Value>) {
    let directory = tempfile::tempdir().unwrap();
    let smaller = [
        ("fractions = [0.1]", "rps = [50]"),
        ("values = [0, 20]", "values = [0]"),
        ("[[variant]]\nname = \"edge\"\nmechanism = \"epoll-et\"\n", ""),
    ];
    let mut experiment = SMALL.to_owned();
    for (old, new) in smaller.iter().chain(changes) {
        assert!(experiment.contains(old), "{old}");
        experiment = experiment.replace(old, new);
    }
    experiment.truncate(experiment.find("[[claim]]").unwrap());
    fs::write(directory.path().join("one.toml"), experiment).unwrap();
    let arguments = ["lab", "run", "one.toml", "--quick", "--blocks", "1", "--out", out];
    let output = run(&arguments, directory.path());
    let result = fs::read_to_string(directory.path().join(out).join("result.json"));
    let result: Value = serde_json::from_str(&result.expect("what was seen is kept")).unwrap();
    (output, result["runs"].as_array().unwrap().clone())
}

/// A script that runs experiments must be able to detect that there is no result.
#[test]
fn an_experiment_of_which_no_run_counts_ends_with_a_code_of_its_own() {
    let ended = |max_lag: &str| {
        let change = ("max-lag = \"10s\"", format!("max-lag = \"{max_lag}\""));
        let (output, runs) = one_run(max_lag, &[(change.0, &change.1)]);
        let statuses: Vec<_> = runs.iter().map(|run| run["status"].clone()).collect();
        (output.status.code(), String::from_utf8(output.stderr).unwrap(), statuses)
    };
    // No generator is so punctual.
    let (code, stderr, statuses) = ended("1ns");
    assert_eq!(code, Some(4), "{stderr}");
    assert!(
        stderr.contains("There is no result: no run is valid (") && stderr.contains("lag"),
        "{stderr}"
    );
    assert!(!statuses.is_empty() && statuses.iter().all(|status| status == "invalid"));
    // Positive control: the same where the generator may be late.
    let (code, stderr, statuses) = ended("10s");
    assert_eq!((code, statuses), (Some(0), vec!["valid".into()]), "{stderr}");
}

/// Regression: half of figures 5 and 6 failed with "no request came within 40s", each after 40 s,
/// although the generator had reported the missing flag immediately.
#[test]
fn a_generator_that_refuses_its_flags_is_the_reason_at_once() {
    let reason = |most: &str| {
        let limit = format!("max-lag = \"10s\"\nmax-connections = {most}");
        let warm_up = "saturation-seconds = 0.3, warmup-seconds = 0.1";
        let changes =
            [("max-lag = \"10s\"", limit.as_str()), ("saturation-seconds = 0.3", warm_up)];
        let (_, runs) = one_run(most, &changes);
        runs[0]["reason"].as_str().map(str::to_owned)
    };
    let begun = Instant::now();
    let refused = reason("1000000000").expect("no machine has so many descriptors");
    assert!(
        refused.contains("ended before its first request") && refused.contains("--max-connections"),
        "{refused}"
    );
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
    // Positive control: so few connections are possible.
    assert_eq!(reason("8"), None);
}

/// On a busy machine the generator may be the bottleneck: then the advice says so, and has no figure.
#[test]
fn advice_is_measured_here() {
    let directory = tempfile::tempdir().unwrap();
    let arguments =
        ["lab", "advise", "--idle", "20", "--open", "4", "--rate", "10", "--time", "2s"];
    let output = run(&arguments, directory.path());
    let (text, errors) = (String::from_utf8_lossy(&output.stdout), output.stderr.as_slice());
    let row = |name: &str| text.lines().find(|line| line.starts_with(&format!("{name} ")));
    let rows = ["select", "poll", "epoll2", "devpoll", "epoll", "epoll-et", "uring-poll"].map(row);
    let is_measured = |row: &&Option<&str>| row.expect("each has a row").contains("/s ");
    let measured = rows.iter().filter(is_measured).count();
    let others = rows.iter().flatten().filter(|row| row.contains("not measured: ")).count();
    assert_eq!(measured + others, rows.len(), "{text}");
    let (code, says) = match measured {
        0 => (Some(4), "Nothing could be measured."),
        _ => (Some(0), "These answer 10.0 a second: "),
    };
    assert_eq!(output.status.code(), code, "{text} {}", String::from_utf8_lossy(errors));
    assert!(text.contains(says), "{text}");
    let output = run(&["lab", "advise", "--idle", "0"], directory.path());
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("--idle 0: 1 to 15000"));
}

#[test]
fn the_cost_of_a_wait_is_one_document() {
    let directory = tempfile::tempdir().unwrap();
    let arguments =
        ["lab", "wait-cost", "--mechanism", "epoll", "--watched", "5", "--duration", "20ms"];
    let output = run(&arguments, directory.path());
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&document["mechanism_spec"], &document["watched"]), (&"epoll".into(), &5.into()));
    assert!(document["wait_ns"]["p50"].as_u64().unwrap() > 0);
    assert!(!document["system_calls"].as_object().unwrap().is_empty());
}

/// Regression test: such command lines had exit status 1, and a very large --watched aborted the program.
#[test]
fn a_wait_that_cannot_be_measured_is_a_usage_error() {
    let directory = tempfile::tempdir().unwrap();
    for (arguments, says) in [
        (["--watched", "0", "--waits", "1"], "--watched 0: from 1 to"),
        (["--watched", "99999999999999", "--waits", "1"], "--watched 99999999999999: from 1 to"),
        (["--watched", "5", "--ready", "6"], "--ready 6: from 1 to --watched 5"),
        (["--watched", "5", "--changes", "5"], "--changes 5: at most 4"),
        (["--watched", "5", "--waits", "0"], "--waits 0: at least one"),
        (["--watched", "5", "--pin", "99999"], "--pin 99999: no such CPU"),
    ] {
        let all = [&["lab", "wait-cost", "--mechanism", "epoll"][..], &arguments].concat();
        let output = run(&all, directory.path());
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {stderr}");
        assert!(stderr.contains(says), "{stderr}");
    }
}

#[test]
fn a_low_soft_limit_on_descriptors_is_raised() {
    let output = Command::new("sh")
        .args(["-c", "ulimit -Sn 64; exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_pollux")])
        .args(["lab", "wait-cost", "--mechanism", "poll", "--watched", "200"])
        .args(["--duration", "20ms"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn mistakes_are_answered_with_what_there_is() {
    let directory = tempfile::tempdir().unwrap();
    let stderr_of = |arguments: &[&str]| {
        let output = run(arguments, directory.path());
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let misused = |arguments: &[&str]| {
        let (code, stderr) = stderr_of(arguments);
        assert_eq!(code, Some(2), "{arguments:?}: {stderr}");
        stderr
    };
    let failed = |arguments: &[&str]| {
        let (code, stderr) = stderr_of(arguments);
        assert_eq!(code, Some(1), "{arguments:?}: {stderr}");
        stderr
    };
    let unknown = misused(&["lab", "run", "idel"]);
    assert!(unknown.contains("did you mean 'idle'?") && unknown.contains("lab list"), "{unknown}");
    let no_rates = misused(&["lab", "run", "idle", "--paper-rates"]);
    assert!(no_rates.contains("leave --paper-rates out"), "{no_rates}");
    assert!(!directory.path().join("results").exists(), "nothing was begun");
    if !Path::new("/sys/bus/event_source/devices/kprobe").exists() {
        let no_kprobes = failed(&["lab", "run", "mail-hints", "--here"]);
        let way_out = "`pollux lab run mail-hints --guest`";
        assert!(no_kprobes.contains("no kprobes") && no_kprobes.contains(way_out), "{no_kprobes}");
        fs::remove_dir_all(directory.path().join("results")).unwrap();
    }
    let no_result = failed(&["lab", "report", "nowhere"]);
    assert!(no_result.contains("nowhere/result.json"), "{no_result}");
}

#[test]
fn the_list_names_every_experiment_and_its_claims() {
    let directory = tempfile::tempdir().unwrap();
    let output = run(&["lab", "list"], directory.path());
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success());
    // The position of line breaks depends on the length of the figures before them.
    let flowing = text.split_whitespace().collect::<Vec<_>>().join(" ");
    for expected in [
        "idle",
        "gammo-fig5-6",
        "judges I3, G3-latency, I3-epoll2",
        " s, full 15 min; with --guest --quick ",
    ] {
        assert!(flowing.contains(expected), "{text}");
    }
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
}

#[test]
fn a_reader_that_closes_the_list_early_is_no_error() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let output = Command::new(env!("CARGO_BIN_EXE_pollux"))
        .args(["lab", "list"])
        .stdout(writer)
        .stderr(std::process::Stdio::piped())
        .spawn()
        .and_then(std::process::Child::wait_with_output)
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn output_without_a_reader_changes_no_exit_status() {
    let directory = tempfile::tempdir().unwrap();
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let lost = |arguments: &[&str]| {
        let mut command = pollux(arguments, directory.path());
        command.stdout(writer.try_clone().unwrap()).stderr(writer.try_clone().unwrap());
        command.status().unwrap().code()
    };
    let wait = ["lab", "wait-cost", "--mechanism", "epoll", "--watched", "5", "--duration", "20ms"];
    assert_eq!(lost(&wait), Some(0));
    assert_eq!(lost(&["lab", "report", "nowhere", "nor-here"]), Some(1), "both are left out");
}

#[test]
fn what_contradicts_itself_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let output = run(&["lab", "run", "idle", "--resume", "out", "--time", "1m"], directory.path());
    assert_eq!(output.status.code(), Some(2), "it goes on in the time that it had");
    let output = run(&["lab", "run", "provos-ablation", "--resume", "out"], directory.path());
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(stderr.contains("leave --resume out"), "{stderr}");
}

#[test]
fn the_doctor_speaks_to_people_and_to_programs() {
    let directory = tempfile::tempdir().unwrap();
    let output = run(&["doctor"], directory.path());
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && text.contains("Ways to wait") && text.contains("epoll-et"));
    assert!(!text.contains('\x1b'), "colours on a terminal only");
    let output = run(&["doctor", "--json"], directory.path());
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let poll = report["mechanisms"].as_array().unwrap().iter().find(|m| m["name"] == "poll");
    assert_eq!(poll.unwrap()["available"], true);
    assert!(report["limits"].as_array().unwrap().len() >= 4);
}
