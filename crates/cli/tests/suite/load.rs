//! `pollux load` as a program: exit statuses, JSON, signals, files.

mod status;

use crate::load_server::Server;
use pollux_testkit::{KillOnDrop, wait_until};
use serde_json::Value;

use std::{
    io::{BufRead, BufReader},
    process::{Command, Output, Stdio},
    time::{Duration, Instant},
};

fn pollux(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pollux"));
    command.args(arguments).stdin(Stdio::null());
    command
}

fn run(arguments: &[&str]) -> Output {
    pollux(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// The lag and the time without a CPU are not judged, because tests run on busy machines.
const PATIENT: [&str; 4] = ["--max-lag", "1h", "--max-starved", "100%"];

fn load(arguments: &[&str]) -> Output {
    run(&[&["load"], arguments, &PATIENT].concat())
}

#[test]
fn the_json_document_has_its_keys() {
    let server = Server::good("hello");
    let out = load(&[
        server.url("/x").to_string().as_str(),
        "--rate",
        "200",
        "--requests",
        "50",
        "--json",
    ]);
    assert!(out.status.success(), "{}", text(&out.stderr));
    let stdout = text(&out.stdout);
    assert_eq!(stdout.lines().count(), 1);
    let mut document: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!(document["requests"]["completed"], 50);
    assert_eq!(document["valid"], true);
    // On a busy machine this key may have a reason.
    *document.get_mut("latency_invalid_reason").expect("the key is always there") = Value::Null;
    insta::assert_json_snapshot!(shape(&document));
}

/// Returns the document with every value replaced by its type.
fn shape(value: &Value) -> Value {
    match value {
        Value::Object(map) => map.iter().map(|(key, value)| (key.clone(), shape(value))).collect(),
        Value::Array(values) => values.iter().take(1).map(shape).collect(),
        Value::Number(number) if number.is_f64() => "float".into(),
        Value::Number(_) => "integer".into(),
        Value::String(_) => "string".into(),
        Value::Bool(_) => "bool".into(),
        Value::Null => Value::Null,
    }
}

#[test]
fn the_summary_has_the_papers_figures() {
    let server = Server::good("hello");
    let out = load(&[server.url("/x").to_string().as_str(), "--rate", "200", "--requests", "50"]);
    assert!(out.status.success(), "{}", text(&out.stderr));
    let summary = text(&out.stdout);
    for part in [
        "open loop, 200 requests/s",
        "50 scheduled, 50 sent, 50 completed, 0 failed",
        "stddev",
        "p99.99",
        "latency  ",
        "service  ",
        "connect  ",
        "µs CPU a request",
    ] {
        assert!(summary.contains(part), "{part} is missing in:\n{summary}");
    }
    assert!(text(&out.stderr).is_empty(), "no progress without a terminal");
}

#[test]
fn sessions_reach_the_server_as_connections_of_so_many_requests() {
    let site = tempfile::tempdir().unwrap();
    for (name, bytes) in [("small", 1), ("large", 100_000)] {
        std::fs::write(site.path().join(name), vec![b'x'; bytes]).unwrap();
    }
    let list = site.path().join("urls");
    std::fs::write(&list, "/small 9\n/large 1\n").unwrap();
    let mut server = pollux_testkit::serve::Serve::start(
        env!("CARGO_BIN_EXE_pollux"),
        site.path(),
        &["--mechanism", "epoll"],
    );
    let url = format!("http://{}/", server.address());
    let (list, mut bytes) = (list.to_str().unwrap(), Vec::new());
    for round in 1..=2 {
        let out = load(&[
            &url,
            "--url-file",
            list,
            "--rate",
            "400",
            "--requests",
            "200",
            "--session-requests",
            "5",
            "--think-time",
            "2ms",
            "--seed",
            "3",
            "--json",
        ]);
        assert!(out.status.success(), "{}", text(&out.stderr));
        let report: Value = serde_json::from_slice(&out.stdout).unwrap();
        assert_eq!(report["requests"]["completed"], 200, "{report}");
        assert_eq!(report["sessions"]["completed"], 40, "{report}");
        bytes.push(report["content_bytes"].as_u64().unwrap());
        let statistics = server.statistics();
        assert_eq!(statistics["requests"], 200 * round, "{statistics}");
        assert_eq!(statistics["connections"]["accepted"], 40 * round, "{statistics}");
    }
    // About 20 of the requests are for the large file.
    assert!((800_000..4_000_000).contains(&bytes[0]), "{bytes:?}");
    assert_eq!(bytes[0], bytes[1], "the seed decides which client requests what");
    assert!(server.stop().0.success());
}

#[test]
fn an_invalid_run_exits_with_3_and_says_why() {
    let server = Server::good("hello");
    let url = server.url("/x").to_string();
    let arguments = [&url, "--rate", "200", "--requests", "20", "--max-lag", "1ns"];
    let out = run(&[&["load"], &arguments[..]].concat());
    assert_eq!(out.status.code(), Some(3));
    assert!(text(&out.stdout).contains("INVALID      the generator was the bottleneck"));
    let out = run(&[&["load"], &arguments[..], &["--json"]].concat());
    assert_eq!(out.status.code(), Some(3));
    let document: Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(document["valid"], false);
    assert!(document["invalid_reason"].as_str().unwrap().contains("--max-lag"));
}

/// A process that uses all of its CPU until it is dropped.
fn busy_on(cpu: usize) -> KillOnDrop {
    let script = "while :; do :; done";
    let cpu = cpu.to_string();
    KillOnDrop(Command::new("taskset").args(["-c", &cpu, "sh", "-c", script]).spawn().unwrap())
}

/// The generator has a low priority (nice) beside two busy loops on its CPU, so that it gets about 1 %
/// of the CPU.
#[test]
fn a_closed_loop_without_a_cpu_is_invalid() {
    let server = Server::good("hello");
    let url = server.url("/x").to_string();
    let _others = [busy_on(0), busy_on(0)];
    let niced = |more: &[&str]| {
        let loop_of = ["load", &url, "--connections", "2", "--duration", "600ms", "--pin", "0"];
        let mut command = Command::new("nice");
        command.args(["-n", "19", env!("CARGO_BIN_EXE_pollux")]);
        let out = command.args(loop_of).args(["--json"]).args(more).output().unwrap();
        let document: Value = serde_json::from_slice(&out.stdout).unwrap();
        (out.status.code(), document)
    };
    // A run that never got the CPU sends nothing, and is invalid for that reason. In a run whose
    // server had no CPU either, the generator waits for responses and not for its CPU.
    let sent = |document: &Value| document["requests"]["sent"].as_u64() > Some(0);
    let share = |document: &Value| document["generator"]["run_delay_share"].as_f64();
    let mut tries = (0..10).map(|_| niced(&[])).inspect(|(code, document)| {
        assert!(sent(document) || *code == Some(3), "{document}");
    });
    let Some((code, document)) =
        tries.find(|(_, document)| sent(document) && share(document).is_none_or(|s| s > 0.1))
    else {
        panic!("no run was kept from its CPU");
    };
    if share(&document).is_none() {
        eprintln!("skipped: this kernel counts no run delay");
        return;
    }
    let reason = document["invalid_reason"].as_str().unwrap_or_default();
    assert!(reason.contains("--max-starved 10%"), "{document}");
    assert_eq!(code, Some(3));
    // The same run is valid if the command allows it. Here too, a run that sent nothing shows nothing.
    let mut tries = (0..10).map(|_| niced(&["--max-starved", "100%"]));
    let (code, document) = tries.find(|(_, document)| sent(document)).expect("a run that sent");
    assert_eq!((code, &document["valid"]), (Some(0), &true.into()), "{document}");
}

#[test]
fn what_cannot_be_run_names_its_cause_and_exits_with_1_or_2() {
    let free = "http://127.0.0.1:1/";
    for (code, arguments, part) in [
        (2, &["https://127.0.0.1/", "-q", "1", "--insecure", "--cacert", "f"][..], "--cacert"),
        (2, &[free, "--rate", "1", "--tls-resume"], "--tls-resume"),
        (2, &["https://127.0.0.1:1/", "--cacert", "/no/such/file"], "/no/such/file"),
        (2, &["127.0.0.1:80", "--rate", "1"], "write http://127.0.0.1:80"),
        (2, &["unix:/run/site.sock", "--rate", "1"], "Unix sockets are not supported"),
        (2, &[free, "--rate", "0"], "--rate"),
        // At this rate the second request would be sent centuries later.
        (2, &[free, "--rate", "1e-300", "-n", "3"], "more than 7 days"),
        (2, &[free, "--rate", "10", "--burst", "0"], "--burst 0"),
        (2, &[free, "--rate", "10", "--burst", "3", "-n", "10"], "not a multiple"),
        (2, &[free, "--rate", "1", "--threads", "0"], "--threads"),
        (1, &[free, "--rate", "1", "--source", "192.0.2.1"], "192.0.2.1"),
        (1, &[free, "--rate", "1", "--pin", "100000"], "--pin"),
        (2, &[free, "--rate", "1", "--body", "/no/such/file"], "/no/such/file"),
        (2, &[free, "--rate", "1", "--url-file", "/no/such/file"], "/no/such/file"),
        (1, &[free, "--rate", "1", "--hdr", "/no/such/directory/x"], "--hdr"),
        (1, &[free, "--connections", "2"], "refused"),
        (2, &[free, "--rate", "1", "--idle", "0", "--duration", "0s"], "--duration"),
        (1, &["http://no-such-host.invalid/", "--rate", "1"], "cannot be resolved"),
    ] {
        let out = run(&[&["load"], arguments].concat());
        let stderr = text(&out.stderr);
        assert_eq!(out.status.code(), Some(code), "{arguments:?}: {stderr}");
        assert!(stderr.contains(part), "{arguments:?}: {stderr}");
        assert!(out.stdout.is_empty());
    }
}

#[test]
fn a_lost_standard_error_changes_no_exit_status() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    for arguments in
        [&["load", "http://127.0.0.1:9/", "--rate", "0"][..], &["idle", "nowhere", "-c", "1"]]
    {
        let status = pollux(arguments).stderr(writer.try_clone().unwrap()).status().unwrap();
        assert_eq!(status.code(), Some(2), "{arguments:?}");
    }
}

/// Tests the flags of oha and hey on one example.
#[test]
fn the_flags_of_other_generators_mean_the_same() {
    let server = Server::good("hello");
    let url = server.url("/x").to_string();
    let document = |arguments: &[&str]| -> Value {
        let out = load(&[&[url.as_str(), "--json"], arguments].concat());
        assert!(out.status.success(), "{}", text(&out.stderr));
        serde_json::from_slice(&out.stdout).unwrap()
    };
    let closed = document(&["-n", "30", "-c", "3"]);
    assert_eq!((&closed["mode"], &closed["requests"]["completed"]), (&"closed".into(), &30.into()));
    assert_eq!(closed["connections"]["opened"], 3);
    let open = document(&["-z", "100ms", "-q", "200"]);
    assert_eq!((&open["mode"], &open["offered_rps"]), (&"open".into(), &200.0.into()));
    assert_eq!((&open["duration_s"], &open["requests"]["scheduled"]), (&0.1.into(), &20.into()));
    let default = document(&["-z", "100ms"]);
    assert_eq!((&default["mode"], &default["offered_rps"]), (&"open".into(), &100.0.into()));
}

#[test]
fn a_summary_has_a_histogram_and_eighty_columns() {
    let server = Server::start(|mut peer| {
        while peer.request().is_some() {
            peer.reply(404, "not here");
        }
    });
    let url = server.url("/a/path/that/is/longer/than/most/of/those/that/are/requested/in/a/test");
    let url = url.to_string();
    let out = load(&[&url, "-n", "40", "-q", "400", "--expect-status", "any"]);
    let summary = text(&out.stdout);
    assert!(out.status.success() && summary.contains("statuses     404: 40"), "{summary}");
    assert!(summary.contains(&"#".repeat(49)), "{summary}");
    assert!(!summary.contains('\x1b'), "{summary}");
    // A 404 is a response, but not the expected one.
    let out = load(&[&url, "-n", "40", "-q", "400"]);
    let refused = text(&out.stdout);
    assert_eq!(out.status.code(), Some(4), "{refused}");
    assert!(refused.contains("40 of a status that was not expected"), "{refused}");
    assert!(!refused.contains("bad reply"), "{refused}");
    for line in summary.lines().chain(refused.lines()).filter(|line| !line.contains("http://")) {
        assert!(line.chars().count() <= 80, "{line}");
    }
}

#[test]
fn errors_of_requests_are_counted_and_are_no_errors_of_the_run() {
    let url = "http://127.0.0.1:1/";
    let out = load(&[url, "--rate", "200", "--requests", "20", "--json"]);
    // A run without any successful request has its own exit status.
    assert_eq!(out.status.code(), Some(4), "{}", text(&out.stderr));
    let document: Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(document["errors"]["refused"], 20);
}

#[test]
fn no_descriptor_is_a_kind_of_its_own_with_advice() {
    // A server that never answers, so that all connections stay open.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let limited = |more: &str| {
        let binary = env!("CARGO_BIN_EXE_pollux");
        let script = format!(
            "ulimit -n 80 && exec {binary} load {url} --rate 1000 --requests 100 --timeout 3s \
             --max-lag 1h {more}"
        );
        Command::new("sh").args(["-c", &script]).output().unwrap()
    };
    let out = limited("--json");
    // The limit is the generator's, not the server's.
    assert_eq!(out.status.code(), Some(3), "{}", text(&out.stderr));
    let document: Value = serde_json::from_slice(&out.stdout).unwrap();
    let reason = document["invalid_reason"].as_str().unwrap();
    assert!(reason.contains("no descriptor for") && reason.contains("--threads"), "{reason}");
    let short = document["errors"]["no_descriptors"].as_u64().unwrap();
    assert!((20..60).contains(&short), "{}", document["errors"]);
    assert_eq!(document["errors"]["timeout"].as_u64().unwrap() + short, 100);
    let out = limited("");
    assert!(text(&out.stdout).contains("--max-connections"), "{}", text(&out.stdout));
    let out = limited("--max-connections 1000");
    assert_eq!(out.status.code(), Some(1));
    assert!(text(&out.stderr).contains("limit on descriptors, 80"), "{}", text(&out.stderr));
}

#[test]
fn no_port_is_a_kind_of_its_own_with_advice() {
    // A new network namespace with eight ports, all used by idle connections; this needs root.
    let probe = Command::new("unshare").args(["-n", "ip", "link", "set", "lo", "up"]).output();
    if !probe.is_ok_and(|out| out.status.success()) {
        eprintln!("skipped: unshare -n or ip(8) is not to be had here");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("index.html"), "x").unwrap();
    let script = format!(
        "ip link set lo up\n\
         echo '40000 40007' > /proc/sys/net/ipv4/ip_local_port_range\n\
         {binary} serve {directory} --listen 127.0.0.1:30999 --json > {directory}/ready & server=$!\n\
         until grep -q listening {directory}/ready; do sleep 0.05; done\n\
         {binary} load http://127.0.0.1:30999/ --rate 1000 --requests 100 --max-lag 1h --idle 8\n\
         kill $server",
        binary = env!("CARGO_BIN_EXE_pollux"),
        directory = directory.path().display()
    );
    let out = Command::new("timeout").args(["30", "unshare", "-n", "sh", "-c", &script]).output();
    let out = out.unwrap();
    let summary = text(&out.stdout);
    assert!(summary.contains("100 no ports: "), "{summary}{}", text(&out.stderr));
    assert!(summary.contains("--source 127.0.1.0/24"), "{summary}");
}

/// timeout(1) sends its signal to the command and to its process group: two signals are one interrupt.
#[test]
fn sigint_prints_what_was_measured() {
    for signals in [1, 2] {
        let server = Server::good("hello");
        let url = server.url("/x").to_string();
        let mut child = pollux(&["load", &url, "--rate", "200", "--connections", "1"])
            .args(["--duration", "60", "--json"])
            .args(PATIENT)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        wait_until("40 requests", || server.counters.heads().len() >= 40);
        let pid = rustix::process::Pid::from_child(&child);
        for _ in 0..signals {
            rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
        }
        let interrupted_at = Instant::now();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(0));
        assert!(interrupted_at.elapsed() < Duration::from_secs(20));
        let document: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(document["interrupted"], true);
        // On the one connection, each request was sent after the response to the request before.
        assert!(document["requests"]["completed"].as_u64().unwrap() >= 39, "{line}");
    }
}

#[test]
fn an_hdr_log_is_written_with_an_interval_a_second() {
    let server = Server::good("hello");
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("run.hlog");
    let started_at = Instant::now();
    let out = load(&[
        server.url("/x").to_string().as_str(),
        "--rate",
        "100",
        "--duration",
        "2s",
        "--hdr",
        path.to_str().unwrap(),
    ]);
    assert!(out.status.success(), "{}", text(&out.stderr));
    let log = std::fs::read_to_string(&path).unwrap();
    assert!(log.contains("#[StartTime: ") && log.contains("#[BaseTime: "), "{log}");
    // V2, deflated: the first bytes of the cookie in Base64.
    let latency = log.lines().filter(|line| !line.starts_with(['#', 'T', '"']));
    let latency: Vec<_> = latency.collect();
    let most = started_at.elapsed().as_secs() as usize + 2;
    assert!((2..=most).contains(&latency.len()), "{log}");
    assert!(latency.iter().all(|line| line.contains(",HISTFAAA")), "{log}");
    assert_eq!(log.matches("Tag=service,").count(), latency.len());
}

#[test]
fn a_log_that_cannot_be_written_does_not_lose_the_report() {
    let server = Server::good("x");
    let url = server.url("/").to_string();
    let out = load(&[&url, "-n", "3", "--hdr", "/dev/full"]);
    assert_eq!(out.status.code(), Some(1));
    assert!(text(&out.stderr).contains("--hdr /dev/full"), "{}", text(&out.stderr));
    assert!(text(&out.stdout).contains("3 scheduled"), "{}", text(&out.stdout));
}

/// A URL beside `--url-file` names the server under load; no other server gets requests.
#[test]
fn a_url_file_drives_no_other_server_than_was_named() {
    let named = Server::good("x");
    let other = Server::good("x");
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), format!("{}\n", other.url("/a"))).unwrap();
    let url = named.url("/").to_string();
    let out = load(&[&url, "--url-file", file.path().to_str().unwrap(), "-n", "3"]);
    let stderr = text(&out.stderr);
    assert_eq!(out.status.code(), Some(2), "{stderr}");
    assert!(stderr.contains("one run drives one server"), "{stderr}");
    assert_eq!(other.counters.connections(), 0);
}

#[test]
fn a_url_file_is_drawn_by_weight() {
    let server = Server::good("hello");
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("urls");
    std::fs::write(&path, "/a 9\n/b 1\n").unwrap();
    let out = load(&[
        server.url("/x").to_string().as_str(),
        "--url-file",
        path.to_str().unwrap(),
        "--connections",
        "2",
        "--requests",
        "200",
        "--header",
        "X-From: test",
    ]);
    assert!(out.status.success(), "{}", text(&out.stderr));
    let heads = server.counters.heads();
    let a = heads.iter().filter(|head| head.starts_with("GET /a ")).count();
    let b = heads.iter().filter(|head| head.starts_with("GET /b ")).count();
    assert_eq!(a + b, 200);
    assert!(a > 5 * b && b > 0, "{a} {b}");
    assert!(heads.iter().all(|head| head.contains("X-From: test\r\n")));
}

#[test]
fn both_commands_have_examples() {
    for command in ["load", "idle"] {
        let help = text(&run(&[command, "--help"]).stdout);
        assert!(help.contains("Examples:") && help.contains("pollux "), "{help}");
        assert!(help.contains("Exit status"), "{help}");
        // clap adapts its own text to the width of the terminal, so only the examples are checked.
        let examples = &help[help.find("Examples:").unwrap()..];
        let wide = examples.lines().find(|line| line.chars().count() > 80);
        assert_eq!(wide, None);
    }
}

/// A server that is stopped for a second delays all requests that are scheduled in the meantime. A
/// closed loop waits for the server, so that its percentiles hide the delay; the report says so.
#[test]
fn a_server_stopped_for_a_second_shows_in_the_open_loop_alone() {
    use rustix::process::Signal;
    let site = tempfile::tempdir().unwrap();
    std::fs::write(site.path().join("a"), "x").unwrap();
    let mut server = pollux_testkit::serve::Serve::start(
        env!("CARGO_BIN_EXE_pollux"),
        site.path(),
        &["--mechanism", "epoll"],
    );
    let url = format!("http://{}/a", server.address());
    let mut stopped = |how: &[&str]| -> Value {
        let before = server.statistics()["requests"].as_u64().unwrap();
        let arguments = [&["load", &url, "--duration", "3s", "--json"], how, &PATIENT].concat();
        let child = pollux(&arguments).stdout(Stdio::piped()).spawn().unwrap();
        server.wait_until("the run to be under way", |now| {
            now["requests"].as_u64() > Some(before + 50)
        });
        server.signal(Signal::STOP);
        // The stall that the run must show.
        std::thread::sleep(Duration::from_secs(1));
        server.signal(Signal::CONT);
        let out = child.wait_with_output().unwrap();
        serde_json::from_slice(&out.stdout).unwrap()
    };
    let open = stopped(&["--rate", "200", "--connections", "4"]);
    let closed = stopped(&["--connections", "4"]);
    assert!(server.stop().0.success());
    let of = |document: &Value, quantile: &str| document["latency_us"][quantile].as_f64().unwrap();
    // A third of the 600 requests were due while the server was stopped, and waited for half a second
    // on average.
    assert!(of(&open, "p90") > 500_000.0, "{open}");
    assert!(of(&open, "mean") > 100_000.0, "{open}");
    assert_eq!((&open["omitted_requests"], &open["notes"]), (&0.into(), &serde_json::json!([])));
    // Four requests of some thousands were slow; the requests that a second would have contained were
    // never sent.
    assert!(of(&closed, "max") > 900_000.0, "{closed}");
    assert!(of(&closed, "p90") < of(&open, "p90") / 2.0, "{closed}");
    let answered = closed["requests"]["completed"].as_u64().unwrap();
    assert!(closed["omitted_requests"].as_u64().unwrap() > answered / 10, "{closed}");
    assert!(closed["notes"][0].as_str().unwrap().contains("--rate"), "{closed}");
}

#[test]
fn nginx_serves_both_loops() {
    let Some(nginx) = Nginx::start() else {
        eprintln!("skipped: no nginx here");
        return;
    };
    let url = format!("http://{}/file", nginx.port.address());
    for arguments in [
        &["--rate", "300", "--requests", "150"][..],
        &["--rate", "300", "--requests", "150", "--close", "reset", "--idle", "20"],
        &["--rate", "300", "--requests", "150", "--close", "wait", "--method", "HEAD"],
        &[
            "--connections",
            "4",
            "--requests",
            "1000",
            "--idle",
            "20",
            "--idle-kind",
            "after-request",
        ],
    ] {
        let out = load(&[&[url.as_str(), "--json"], arguments].concat());
        assert_eq!(out.status.code(), Some(0), "{arguments:?}: {}", text(&out.stderr));
        let document: Value = serde_json::from_slice(&out.stdout).unwrap();
        assert_eq!(
            document["requests"]["completed"], document["requests"]["scheduled"],
            "{arguments:?}: {}",
            document["errors"]
        );
        assert_eq!(document["idle"]["held"], document["idle"]["wanted"]);
    }
}

struct Nginx {
    process: std::process::Child,
    port: pollux_testkit::Port,
    _directory: tempfile::TempDir,
}

impl Nginx {
    fn start() -> Option<Self> {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        let port = pollux_testkit::Port::reserve();
        std::fs::write(root.join("file"), "x".repeat(6000)).unwrap();
        let temporary = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .map(|name| format!("{name}_temp_path {}/{name};", root.display()))
            .concat();
        let configuration = format!(
            "daemon off; master_process off; worker_processes 1; pid {0}/pid; error_log {0}/error;\n\
             events {{ worker_connections 512; }}\n\
             http {{ access_log off; keepalive_requests 1000000; {temporary}\n\
             server {{ listen {1}; root {0}; }} }}\n",
            root.display(),
            port.address()
        );
        std::fs::write(root.join("nginx.conf"), configuration).unwrap();
        let process = ["nginx", "/usr/sbin/nginx"].iter().find_map(|name| {
            Command::new(name)
                .args(["-p", root.to_str()?, "-c", root.join("nginx.conf").to_str()?])
                .stderr(Stdio::null())
                .spawn()
                .ok()
        })?;
        let nginx = Self { process, port, _directory: directory };
        wait_until("nginx", || std::net::TcpStream::connect(nginx.port.address()).is_ok());
        Some(nginx)
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
