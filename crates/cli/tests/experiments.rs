//! The built-in experiments after Provos and Lever, in their quick form and in seconds: they run,
//! and every claim finds what it judges. What they measure here means nothing.

use pollux_lab::experiment;
use serde_json::Value as Json;
use std::{fs, path::Path, process::Command};
use toml::{Table, Value};

/// The quick form of `id` in one pass of the shortest windows, at rates that a busy machine's
/// generator can keep.
fn hurried(id: &str) -> String {
    let mut experiment: Table = experiment::text(id).unwrap().parse().unwrap();
    let quick = experiment["quick"].as_table_mut().unwrap();
    quick.insert("seconds".into(), 1.into());
    quick.insert("blocks".into(), 1.into());
    for window in ["min-window-seconds", "max-window-seconds", "saturation-seconds"] {
        quick.insert(window.into(), 0.1.into());
    }
    let slow = |share: &mut Value| *share = (share.as_float().unwrap() * 0.2).max(0.1).into();
    let fractions = experiment["rate"].get_mut("quick-fractions");
    fractions.into_iter().flat_map(|list| list.as_array_mut().unwrap()).for_each(slow);
    for phase in experiment.get_mut("phase").into_iter().flat_map(|p| p.as_array_mut().unwrap()) {
        slow(&mut phase["fraction"]);
        phase.get_mut("seconds").into_iter().for_each(|seconds| *seconds = 0.2.into());
    }
    for axis in experiment["axis"].as_array_mut().unwrap() {
        // The largest set that is not the paper's own.
        if axis.get("quick-values").and_then(|values| values[0].as_integer()) == Some(2000) {
            axis["quick-values"][0] = 300.into();
        }
    }
    let load = experiment["load"].as_table_mut().unwrap();
    load.insert("max-lag".into(), "1m".into());
    // At random instants a tenth of a second may have none.
    load.insert("arrivals".into(), "constant".into());
    toml::to_string(&experiment).unwrap()
}

fn run(id: &str, directory: &Path) -> Json {
    fs::write(directory.join("hurried.toml"), hurried(id)).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_pollux"))
        .args(["lab", "run", "hurried.toml", "--quick", "--here", "--out", "out"])
        .current_dir(directory)
        .output()
        .unwrap();
    assert!(output.status.success(), "{id}: {}", String::from_utf8_lossy(&output.stderr));
    let result = fs::read_to_string(directory.join("out/result.json")).unwrap();
    serde_json::from_str(&result).unwrap()
}

/// Every variant that this kernel has is measured at every point, and every claim about them has
/// its figure.
fn runs_and_judges(id: &str) {
    let directory = tempfile::tempdir().unwrap();
    let result = run(id, directory.path());
    let runs = result["runs"].as_array().unwrap();
    let unavailable: Vec<&str> = result["variants"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|variant| !variant["unavailable"].is_null())
        .map(|variant| variant["name"].as_str().unwrap())
        .collect();
    for reason in result["variants"].as_array().unwrap().iter().map(|v| &v["unavailable"]) {
        assert!(reason.is_null() || !reason.as_str().unwrap().is_empty(), "{id}: no reason");
    }
    let points: usize = result["dimensions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|dimension| dimension["values"].as_array().unwrap().len())
        .product();
    let variants = result["variants"].as_array().unwrap().len() - unavailable.len();
    assert!(runs.len() >= variants * points, "{id}: {} runs", runs.len());
    for run in runs {
        assert_ne!(run["status"], "failed", "{id}: {} {}", run["variant"], run["reason"]);
    }
    // A busy machine may have kept a generator from its work altogether.
    let counts = |run: &&Json| run["status"] == "valid";
    let valid = runs.iter().filter(counts).count();
    assert!(valid * 2 > runs.len(), "{id}: only {valid} of {} runs count", runs.len());

    let claims = result["claims"].as_array().unwrap();
    assert!(!claims.is_empty(), "{id}");
    for claim in claims {
        // One pass decides nothing.
        assert_eq!(claim["verdict"], "undecided", "{id}: {}", claim["id"]);
        for part in claim["parts"].as_array().unwrap() {
            let note = part["note"].as_str().unwrap_or_default();
            assert_eq!(note.is_empty(), part["estimate"].is_object(), "{id}: {claim}");
            let missing = note.starts_with("the runs have no") || note.contains("not measured");
            assert!(!missing, "{id}: {}: {note}", claim["id"]);
        }
    }
    assert!(directory.path().join("out/report.html").is_file());
}

#[test]
fn provos_fig4_9() {
    runs_and_judges("provos-fig4-9");
}

#[test]
fn provos_fig10() {
    runs_and_judges("provos-fig10");
}

#[test]
fn provos_fig11_13() {
    runs_and_judges("provos-fig11-13");
}

#[test]
fn provos_fig14() {
    runs_and_judges("provos-fig14");
}

#[test]
fn provos_overflow() {
    runs_and_judges("provos-overflow");
}

#[test]
fn provos_hybrid() {
    runs_and_judges("provos-hybrid");
}

#[test]
fn provos_hybrid_quiet() {
    runs_and_judges("provos-hybrid-quiet");
}
