//! `pollux load --subscribe` and `pollux idle --subscribe` in front of a hub.

use super::*;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// Starts a hub with this operator's address, and returns its URL.
fn hub(admin: &str) -> (tempfile::TempDir, Serve, String) {
    let (directory, server) = serve(&["--admin", admin, "--workers", "2"]);
    let url = format!("http://{}/", server.address());
    (directory, server, url)
}

#[test]
fn every_delivery_of_the_hub_is_counted() {
    let (directory, _server, url) = hub(&lifetime::free_address());
    let log = directory.path().join("log.hlog");
    let output = Command::new(BINARY)
        .args(["load", &url, "--subscribe", "30", "--rate", "50", "--requests", "20", "--json"])
        .args(["--max-lag", "1h", "--timeout", "60s", "--hdr", log.to_str().unwrap()])
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["valid"], true, "{report}");
    assert_eq!(report["publications"]["acknowledged"], 20);
    assert_eq!(report["deliveries"]["delivered"], 600);
    for fault in ["lost", "duplicated", "reordered", "corrupt", "foreign"] {
        assert_eq!(report["deliveries"][fault], 0, "{fault}");
    }
    assert_eq!(report["subscribers"]["at_end"], 30);
    let log = std::fs::read_to_string(log).unwrap();
    assert!(log.contains("Tag=publish"), "{log}");
}

/// Regression test: these options were once accepted, and had no effect.
#[test]
fn options_without_a_meaning_for_subscribers_are_refused() {
    let url = "http://127.0.0.1:9/";
    for option in [["--close", "reset"], ["--max-lag-share", "10%"], ["--max-starved", "5%"]] {
        let output = Command::new(BINARY)
            .args(["load", url, "--subscribe", "3", "--requests", "1"])
            .args(option)
            .output()
            .unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert!(error.contains("cannot be used with") && error.contains(option[0]), "{error}");
    }
}

#[test]
fn idle_subscribers_are_held_while_updates_arrive() {
    let admin = lifetime::free_address();
    let (_directory, server, url) = hub(&admin);
    let subscribers = || metric(&admin, "pollux_hub_subscribers{kind=\"stream\"} ");
    let mut idle = Reader::start(Command::new(BINARY).args([
        "idle",
        &url,
        "-c",
        "25",
        "--subscribe",
        "--json",
    ]));
    let line = |idle: &Reader| -> Value { serde_json::from_str(&idle.line()).unwrap() };
    let holding = line(&idle);
    assert_eq!((&holding["event"], &holding["held"]), (&"holding".into(), &25.into()));
    assert_eq!(subscribers(), 25);
    for number in 0..3 {
        let number = number.to_string();
        assert!(push(&server, &["--topic", "load", "--data", &number]).status().unwrap().success());
    }
    kill_process(Pid::from_child(&idle.child), Signal::INT).unwrap();
    let end = line(&idle);
    assert_eq!((&end["event"], &end["held"]), (&"statistics".into(), &25.into()));
    assert!(idle.child.wait().unwrap().success());
    // A hub that refuses subscribers is not held.
    let refused = Command::new(BINARY)
        .args(["idle", &format!("{url}other"), "-c", "2", "--subscribe", "--timeout", "5s"])
        .output()
        .unwrap();
    assert!(!refused.status.success());
    assert!(String::from_utf8_lossy(&refused.stderr).contains("status"), "{refused:?}");
}
