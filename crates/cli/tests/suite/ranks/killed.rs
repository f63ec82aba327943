//! A rank that dies ends the run, and is named; an interrupt ends it, too.

use super::{Launcher, document, finish};
use pollux_testkit::{becomes_true, wait_for};
use std::{
    fs,
    net::TcpListener,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

/// The request rate of all ranks together, per second.
const RATE: usize = 300;

/// Starts a server that answers every request immediately. Returns its URL and the number of requests
/// it has answered.
fn server() -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let answered = Arc::new(AtomicUsize::new(0));
    let count = answered.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            use std::io::{Read, Write};
            let mut stream = stream;
            let mut head = [0; 4096];
            let _ = stream.read(&mut head);
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
            count.fetch_add(1, SeqCst);
        }
    });
    (format!("http://{address}/"), answered)
}

/// Finds the process with these variables in its environment; a variable with the value `None` must be
/// absent.
fn find(variables: &[(&str, Option<&str>)]) -> Option<i32> {
    fs::read_dir("/proc").unwrap().flatten().find_map(|entry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        let command = fs::read(entry.path().join("cmdline")).ok()?;
        let environment = fs::read(entry.path().join("environ")).ok()?;
        let has = |name: &str, value: Option<&str>| {
            let mut all = environment.split(|&byte| byte == 0);
            match value {
                Some(value) => all.any(|one| one == format!("{name}={value}").as_bytes()),
                None => !all.any(|one| one.starts_with(format!("{name}=").as_bytes())),
            }
        };
        let is_pollux = command.split(|&byte| byte == 0).nth(1) == Some(b"load");
        (is_pollux && variables.iter().all(|&(name, value)| has(name, value))).then_some(pid)
    })
}

fn kill_one(launcher: Launcher, tag: &str, is_stand_in: bool) {
    let (url, answered) = server();
    let tag = format!("{tag}-{}", std::process::id());
    let arguments = [
        "load",
        &url,
        "--rate",
        &RATE.to_string(),
        "--duration",
        "60s",
        "--max-lag",
        "1h",
        "--json",
    ];
    let child = launcher.start(3, &tag, &arguments);
    let mut variables =
        vec![("POLLUX_TEST_TAG", Some(&tag[..])), (launcher.rank_variable(), Some("2"))];
    let guard;
    if launcher == Launcher::Mpich {
        // The environment of the rank itself names its supervisor, which stands in for the rank.
        let mut of_stand_in = variables.clone();
        of_stand_in.push(("POLLUX_RANK_SUPERVISOR", None));
        let stand_in = wait_for("the supervisor of rank 2", || find(&of_stand_in));
        guard = stand_in.to_string();
        variables.push(("POLLUX_RANK_SUPERVISOR", (!is_stand_in).then_some(&guard)));
    }
    let pid = wait_for("rank 2", || find(&variables));
    // Waits until the ranks have met, sent requests for three seconds, and reported some.
    let send = becomes_true(Duration::from_secs(90), || answered.load(SeqCst) >= 3 * RATE);
    assert!(send, "they send nothing");
    let killed_at = Instant::now();
    rustix::process::kill_process(
        rustix::process::Pid::from_raw(pid).unwrap(),
        rustix::process::Signal::KILL,
    )
    .unwrap();
    let output = finish(child);
    assert!(!output.status.success(), "a run that lost a rank is no success");
    assert!(killed_at.elapsed() < Duration::from_secs(40), "it went on");
    let report = document(&output);
    let reason = report["invalid_reason"].as_str().unwrap();
    assert!(reason.contains("rank 2 (") && reason.contains("was lost"), "{reason}");
    assert_eq!(report["valid"], false);
    assert_eq!(report["interrupted"], true);
    assert!(report["requests"]["completed"].as_u64().unwrap() > 0, "{report}");
    let members = report["ranks"]["members"].as_array().unwrap_or_else(|| panic!("{report}"));
    assert_eq!(members.len(), 3);
    let sent: Vec<_> =
        members.iter().map(|member| member["requests"]["sent"].as_u64().unwrap()).collect();
    assert!(sent.iter().all(|&sent| sent > 0), "the last report of each: {sent:?}");
    if !is_stand_in {
        assert_eq!(members[2]["lost"], "its process ended", "{report}");
    }
}

/// Regression test: after an interrupt `mpirun` of Open MPI kills the other ranks of a host as soon as one has
/// ended, and rank 0, the last to end, once wrote no report.
pub(crate) fn an_interrupt(launcher: Launcher) {
    let (url, answered) = server();
    let rate = RATE.to_string();
    let arguments =
        ["load", &url, "--rate", &rate, "--duration", "60s", "--max-lag", "1h", "--json"];
    let child = launcher.start(2, "interrupt", &arguments);
    let send = becomes_true(Duration::from_secs(90), || answered.load(SeqCst) >= RATE);
    assert!(send, "they send nothing");
    let launched = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(launched, rustix::process::Signal::INT).unwrap();
    let report = document(&finish(child));
    assert_eq!(report["interrupted"], true, "{report}");
    let members = report["ranks"]["members"].as_array().unwrap_or_else(|| panic!("{report}"));
    assert_eq!(members.len(), 2, "{report}");
    for member in members {
        assert!(member["requests"]["completed"].as_u64().unwrap() > 0, "{report}");
        assert!(member["lost"].is_null(), "{report}");
    }
}

pub(crate) fn a_rank(launcher: Launcher) {
    kill_one(launcher, "rank", false);
}

/// MPICH's launcher then kills all other ranks at once, too: the report still contains their
/// measurements.
pub(crate) fn a_stand_in(launcher: Launcher) {
    kill_one(launcher, "stand-in", true);
}
