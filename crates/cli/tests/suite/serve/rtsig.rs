//! The mechanisms that use real-time signals in the server: the threads that the signals reach, other
//! uses of signals, and requests when the queue overflows.

use super::{INDEX, serve, site};
use pollux_testkit::{
    http::Client,
    serve::{Serve, describe},
};
use rustix::process::Signal;
use serde_json::Value;
use std::{collections::BTreeMap, fs};
use tempfile::TempDir;

/// The signals that the C library leaves to programs, as bits of a mask in /proc.
const REAL_TIME: u64 = !0 << 33;

const SPECS: [&str; 5] = [
    "rtsig",
    "rtsig:dequeue=one",
    "rtsig:dequeue=one,overflow=handoff",
    "hybrid",
    "hybrid:partner=poll",
];

/// The signal masks of one thread, by their names in /proc/PID/task/TID/status.
type Masks = BTreeMap<String, u64>;

/// Returns the number and the masks of every thread. Threads that end in the meantime are left out.
fn threads(server: &Serve) -> Vec<(u64, Masks)> {
    let tasks = fs::read_dir(format!("/proc/{}/task", server.pid())).unwrap();
    tasks
        .filter_map(|task| {
            let path = task.unwrap().path();
            let number = path.file_name()?.to_str()?.parse().ok()?;
            let status = fs::read_to_string(path.join("status")).ok()?;
            let masks = status.lines().filter_map(|line| {
                let (name, value) = line.split_once(':')?;
                let is_mask = name.starts_with("Sig") || name == "ShdPnd";
                Some((
                    name.to_owned(),
                    u64::from_str_radix(is_mask.then(|| value.trim())?, 16).ok()?,
                ))
            });
            Some((number, masks.collect()))
        })
        .collect()
}

fn workers(server: &Serve) -> Vec<u64> {
    let workers = server.listening()["workers"].as_array().unwrap();
    workers.iter().map(|worker| worker["tid"].as_u64().unwrap()).collect()
}

/// Checks that signals are queued for workers only, and that no thread handles them with a handler.
fn assert_signals_stay_with_workers(server: &Serve, spec: &str) {
    let workers = workers(server);
    let threads = threads(server);
    assert!(threads.len() > workers.len(), "{spec}: the main thread and the log's are seen, too");
    for (number, masks) in threads {
        let real_time = |name: &str| masks[name] & REAL_TIME;
        assert_eq!(real_time("ShdPnd"), 0, "{spec}: queued for the process, not for a thread");
        assert_eq!(real_time("SigCgt"), 0, "{spec}: nobody handles them");
        assert_ne!(real_time("SigIgn"), 0, "{spec}: a stray one is ignored, it does not kill");
        if !workers.contains(&number) {
            assert_eq!(real_time("SigPnd"), 0, "{spec}: queued for thread {number}, no worker");
        }
    }
}

#[test]
fn signals_reach_the_workers_only() {
    const CLIENTS: usize = 60;
    for spec in SPECS {
        let site = site(0);
        let log = site.path().join("access.log");
        let arguments =
            ["--mechanism", spec, "--workers", "2", "--access-log", log.to_str().unwrap()];
        let mut server = serve(site.path(), &arguments);
        assert_eq!(server.listening()["mechanism_spec"], spec);
        let mut clients: Vec<Client> = (0..CLIENTS).map(|_| server.client()).collect();
        for round in 0..5 {
            // While the server is stopped, the pending signals can be observed.
            server.freeze();
            for client in &mut clients {
                client.send("GET / HTTP/1.1\r\nHost: test\r\n\r\n");
            }
            assert_signals_stay_with_workers(&server, spec);
            if round == 0 {
                let workers = workers(&server);
                let mut waiting = threads(&server);
                waiting.retain(|(number, masks)| {
                    workers.contains(number) && masks["SigPnd"] & REAL_TIME != 0
                });
                assert!(!waiting.is_empty(), "{spec}: no worker has a signal");
            }
            server.signal(Signal::CONT);
            for client in &mut clients {
                assert_eq!(client.reply().text(), INDEX, "{spec}, round {round}");
            }
            // A process without children ignores this signal by default.
            server.signal(Signal::CHILD);
        }
        let statistics = server.statistics();
        assert_eq!(statistics["requests"], 5 * CLIENTS, "{spec}: {statistics}");
        assert!(statistics["details"]["signals"].as_u64() > Some(0), "{spec}: {statistics}");
        drop(clients);
        let (status, last) = if spec.starts_with("rtsig") {
            server.stop()
        } else {
            server.signal(Signal::INT);
            server.wait()
        };
        assert!(status.success(), "{spec}: {}", describe(status));
        assert_eq!(last["connections"]["open"], 0, "{spec}: {last}");
        let lines = fs::read_to_string(&log).unwrap().lines().count();
        let dropped = last["log_lines_dropped"].as_u64().unwrap() as usize;
        assert_eq!(lines + dropped, 5 * CLIENTS, "{spec}: {last}");
    }
}

/// Returns the soft and the hard limit of queued signals.
fn queue_limits(server: &Serve) -> (String, String) {
    let limits = fs::read_to_string(format!("/proc/{}/limits", server.pid())).unwrap();
    let line = limits.lines().find_map(|line| line.strip_prefix("Max pending signals")).unwrap();
    let mut fields = line.split_whitespace().map(str::to_owned);
    (fields.next().unwrap(), fields.next().unwrap())
}

/// Returns a server with a queue of 16 signals that has just received one request from each client,
/// all at once, and its statistics after each client has its reply. Signals that other processes of
/// the user have queued count too, so the first overflow may occur earlier. The site is returned as
/// well, since the server compares its files with the disk after half a second.
fn overflowed(spec: &str) -> (TempDir, Serve, Vec<Client>, Value) {
    const CLIENTS: usize = 200;
    let site = site(0);
    let mut server = serve(site.path(), &["--mechanism", spec, "--signal-queue", "16"]);
    let limits = queue_limits(&server);
    assert_eq!(limits.0, "16", "{spec}");
    assert_ne!(limits.1, "16", "{spec}: a hard limit could not be raised again");
    let mut clients: Vec<Client> = (0..CLIENTS).map(|_| server.client()).collect();
    for client in &mut clients {
        assert_eq!(client.get("/").text(), INDEX, "{spec}");
    }
    // A stopped server receives no signals: they accumulate, however fast the server is.
    server.freeze();
    for client in &mut clients {
        client.send("GET / HTTP/1.1\r\nHost: test\r\n\r\n");
    }
    server.signal(Signal::CONT);
    for client in &mut clients {
        assert_eq!(client.reply().text(), INDEX, "{spec}");
    }
    let after = server.statistics();
    assert_eq!(after["requests"], 2 * CLIENTS, "{spec}: {after}");
    assert_eq!(after["connections"]["open"], CLIENTS, "{spec}: none is lost: {after}");
    assert!(after["details"]["overflows"].as_u64() > Some(0), "{spec}: {after}");
    (site, server, clients, after)
}

#[test]
fn an_overflow_in_place_loses_nothing_and_goes_on_with_signals() {
    for spec in ["rtsig", "rtsig:dequeue=one"] {
        let (_site, mut server, mut clients, after) = overflowed(spec);
        let details = &after["details"];
        assert_eq!(details["recoveries"], details["overflows"], "{spec}: {after}");
        let signals = details["signals"].as_u64().unwrap();
        assert_eq!(clients[0].get("/").text(), INDEX, "{spec}");
        let then = server.statistics()["details"]["signals"].as_u64().unwrap();
        assert!(then > signals, "{spec}: signals tell again");
        drop(clients);
        assert!(server.stop().0.success());
    }
}

#[test]
fn an_overflow_with_handoff_leaves_it_to_the_partner_for_good() {
    let spec = "rtsig:overflow=handoff";
    let (_site, mut server, mut clients, after) = overflowed(spec);
    let details = &after["details"];
    assert_eq!(details["overflows"], 1, "{after}");
    assert!(details["handed_over"].as_u64() > Some(0), "{after}");
    let signals = details["signals"].as_u64().unwrap();
    assert_eq!(clients[0].get("/").text(), INDEX);
    let then = server.statistics();
    assert_eq!(then["details"]["signals"], signals, "there is no way back");
    assert!(then["details"]["partner_waits"].as_u64() > details["partner_waits"].as_u64());
    assert_signals_stay_with_workers(&server, spec);
    drop(clients);
    assert!(server.stop().0.success());
}

#[test]
fn the_hybrid_goes_to_its_partner_and_comes_back() {
    for spec in ["hybrid", "hybrid:partner=poll"] {
        let (_site, mut server, mut clients, after) = overflowed(spec);
        assert!(after["details"]["switches_by_overflow"].as_u64() > Some(0), "{spec}: {after}");
        // From now on, the server only receives requests for statistics.
        let quiet = server.wait_until("the way back", |s| s["details"]["on_partner"] == 0);
        let back = quiet["details"]["switches_to_signals"].as_u64().unwrap();
        assert!(back >= 1, "{spec}: {quiet}");
        let signals = quiet["details"]["signals"].as_u64().unwrap();
        for client in &mut clients {
            assert_eq!(client.get("/").text(), INDEX, "{spec}");
        }
        let then = server.statistics()["details"]["signals"].as_u64().unwrap();
        assert!(then > signals, "{spec}: signals tell again");
        drop(clients);
        assert!(server.stop().0.success());
    }
}

#[test]
fn a_queue_above_the_hard_limit_is_refused() {
    let site = site(0);
    let server = serve(site.path(), &[]);
    let (_, hard) = queue_limits(&server);
    let Ok(hard) = hard.parse::<u64>() else {
        eprintln!("skipped: the hard limit of queued signals is {hard}");
        return;
    };
    let output = std::process::Command::new(super::BINARY)
        .args(["serve", "--listen", "127.0.0.1:0", "--signal-queue", &(hard + 1).to_string()])
        .arg(site.path())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.contains("--signal-queue") && stderr.contains(&hard.to_string()), "{stderr}");
}
