//! The experiment `push` with the real hub, generator and holder of connections, in a form that takes
//! seconds.

use serde_json::Value as Json;
use std::{fs, process::Command};

/// Returns the built-in experiment with these variants and numbers of subscribers, in one short pass.
/// The generator may be late by any time, because only counts matter here.
fn tiny(variants: &[&str], subscribers: &str) -> String {
    let text = pollux_lab::experiment::text("push").unwrap();
    let mut experiment: toml::Table = text.parse().unwrap();
    let names: Vec<toml::Value> = variants.iter().map(|&name| name.into()).collect();
    let quick = experiment["quick"].as_table_mut().unwrap();
    // The form keeps all axes and no claim, because the claims name other numbers of subscribers.
    quick.retain(|key, _| key == "budget");
    quick.insert("variants".into(), names.into());
    let budget = quick["budget"].as_table_mut().unwrap();
    for (name, value) in [("min-window-seconds", 0.2), ("max-window-seconds", 0.2)] {
        budget.insert(name.into(), value.into());
    }
    let push = experiment["push"].as_table_mut().unwrap();
    push.insert("quiet-seconds".into(), 2.0.into());
    push.insert("updates-per-second".into(), 40.0.into());
    let load = experiment["load"].as_table_mut().unwrap();
    load.insert("max-lag".into(), "1m".into());
    load.insert("timeout".into(), "30s".into());
    let axes = experiment["axis"].as_array_mut().unwrap();
    let subscribers: toml::Table = format!("values = {subscribers}").parse().unwrap();
    axes[0]["values"] = subscribers["values"].clone();
    experiment.insert("connections-per-worker".into(), 500.into());
    experiment.remove("claim");
    toml::to_string(&experiment).unwrap()
}

fn runs(experiment: &str) -> Vec<Json> {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("tiny.toml"), experiment).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_pollux"))
        .args(["lab", "run", "tiny.toml", "--quick", "--blocks", "1", "--out", "out"])
        .current_dir(directory.path())
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    let result = fs::read_to_string(directory.path().join("out/result.json"));
    let result: Json =
        serde_json::from_str(&result.unwrap_or_else(|_| panic!("{stderr}"))).unwrap();
    result["runs"].as_array().unwrap().clone()
}

#[test]
fn updates_reach_one_one_in_a_hundred_and_all() {
    let mut measured = 0;
    for run in runs(&tiny(&["epoll-et", "floor-push"], "[1200]")) {
        let updates_to = run["point"]["updates-to"].as_str().unwrap();
        let is_floor = run["variant"] == "floor-push";
        if is_floor && updates_to != "all" {
            assert!(run["reason"].as_str().unwrap().contains("it has no topics"), "{run}");
            continue;
        }
        assert_eq!(run["status"], "valid", "{}", run["reason"]);
        let recipients = match updates_to {
            "one" => 1,
            "one-in-a-hundred" => 12,
            _ => 1200,
        };
        let raw = &run["raw"];
        assert_eq!(raw["push"]["recipients"], recipients, "{}", raw["push"]);
        let updates = raw["load"]["publications"]["acknowledged"].as_u64().unwrap();
        // An update to all subscribers is limited by `deliveries-per-second`, 20,000: as many updates
        // as fit into a window of 0.2 s, and at least two.
        assert_eq!(updates, if recipients == 1200 { 4 } else { 8 }, "{}", raw["load"]);
        assert_eq!(raw["load"]["deliveries"]["delivered"], updates * recipients, "{}", raw["load"]);
        let metric = |name: &str| run["metrics"][name].as_f64();
        let (update, delivery) =
            (metric("server_cpu_us_per_update"), metric("server_cpu_us_per_delivery"));
        let ratio = update.unwrap() / delivery.unwrap();
        assert!((ratio / recipients as f64 - 1.0).abs() < 1e-6, "{ratio}");
        assert_eq!(metric("wrong_deliveries"), Some(0.0));
        assert!(metric("latency_p50_us").is_some() && metric("latency_p99_us").is_some());
        // No client subscribed between the two readings: the requests are the publications.
        if !is_floor {
            let serve = run["commands"][0].as_str().unwrap();
            assert!(serve.contains("--workers 3") || serve.contains("--workers=3"), "{serve}");
            let requests = |when: &str| raw[when]["requests"].as_u64().unwrap();
            assert_eq!(requests("after") - requests("before"), updates);
        }
        // Memory is reported where at least 1,000 subscribers receive nothing.
        let has_memory = metric("user_bytes_per_subscriber").is_some();
        assert_eq!(has_memory, updates_to != "all", "{}", run["metrics"]);
        measured += 1;
    }
    assert_eq!(measured, 4);
}

/// The subscribers have no token, so the hub sends them no private update, however fast the machine is. Before, the
/// test needed subscribers that are slower than the publisher, which a busy machine did not guarantee.
#[test]
fn a_run_that_loses_deliveries_does_not_count() {
    let text = tiny(&["epoll-et"], "[60]");
    let body = "publish-body = \"topic=load&private=on&data={data}\"";
    let private = text.replacen("[load]\n", &format!("[load]\n{body}\n"), 1);
    assert_ne!(private, text);
    // The generator waits for each missing delivery, so there is only one point.
    let lossy = private.replacen("\"one\", \"one-in-a-hundred\", ", "", 1);
    assert_ne!(lossy, private);
    let found = runs(&lossy);
    assert!(!found.is_empty());
    for run in found {
        let updates = &run["raw"]["load"]["publications"]["acknowledged"];
        let lost = 60 * updates.as_u64().unwrap();
        assert!(lost > 0, "{run}");
        assert_eq!(run["status"], "invalid", "{run}");
        let reason = run["reason"].as_str().unwrap();
        assert!(reason.contains(&format!("not every delivery was right: {lost} lost")), "{reason}");
    }
}
