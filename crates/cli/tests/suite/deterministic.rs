//! An experiment in the deterministic guest.

use crate::guest;
use serde_json::Value as Json;
use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    thread,
};
use toml::{Table, Value};

/// Fractions of the rate that the server answers in a closed loop; its limit is between them. At the
/// first fraction the server is not busy all the time.
const FRACTIONS: [f64; 4] = [0.5, 1.03, 1.06, 1.3];
/// The longest time, in windows, between the two readings of a server that is not busy all the time.
const MOST_WINDOW: f64 = 1.1;

/// Two runs at the same time, around the limit, where the CPU is neither busy all the time nor idle
/// most of it. Before QEMU's threads took turns, no two of four such runs agreed
/// (docs/runs/2026-11-25-repeat).
#[test]
#[ignore = "slow: a sealed guest, for minutes"]
fn two_runs_of_many_windows_agree_in_every_byte() {
    let text = pollux_lab::experiment::text("gammo-fig7").unwrap();
    let mut experiment: Table = text.parse().unwrap();
    experiment.remove("deterministic");
    experiment.remove("claim");
    experiment.insert("variants".into(), vec![Value::from("select")].into());
    experiment.remove("variant");
    experiment["rate"]["fractions"] = FRACTIONS.map(Value::Float).to_vec().into();
    experiment["axis"][0]["values"] = vec![Value::from("inf")].into();
    experiment["axis"][1]["values"] = vec![Value::from(512)].into();
    for overlay in ["quick", "guest"] {
        let overlay = experiment[overlay].as_table_mut().unwrap();
        overlay.retain(|key, _| key == "load" || key == "budget");
    }

    let Some([one, other]) = two_at_once(&experiment) else { return };
    let result: Json = serde_json::from_str(&one).unwrap();
    let runs = result["runs"].as_array().unwrap();
    assert_eq!(runs.len(), FRACTIONS.len());
    // The generator's computation of its figures, after it has sent all requests, must not delay the
    // reading of the server's counters. While the generator kept its priority to its end, the readings
    // were 1.24 windows apart (docs/runs/2026-11-26-generator-priority). Beyond its limit a server is
    // always busy, and answers for longer than the window.
    let rate = |run: &&Json| run["point"]["rate"].as_f64().unwrap();
    let least = runs.iter().map(|run| rate(&run)).fold(f64::INFINITY, f64::min);
    for run in runs.iter().filter(|run| rate(run) == least) {
        let windows =
            run["raw"]["wall_ns"].as_f64().unwrap() / 1e9 / run["window_s"].as_f64().unwrap();
        assert!((1.0..MOST_WINDOW).contains(&windows), "{windows}");
    }
    assert!(one == other, "the first line that differs: {}", first_difference(&one, &other));
}

/// Returns the results of two runs at the same time; `None` where no guest can run.
fn two_at_once(experiment: &Table) -> Option<[String; 2]> {
    let directories = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let results = thread::scope(|scope| {
        let runs = directories.each_ref().map(|directory| {
            let directory = directory.path();
            scope.spawn(move || result_of(experiment, directory))
        });
        runs.map(|run| run.join().unwrap())
    });
    let [one, other] = results;
    Some([one?, other?].map(|path| fs::read_to_string(path).unwrap()))
}

/// Returns the number of the first line in which two texts differ, and the line in both.
fn first_difference(one: &str, other: &str) -> String {
    let mut pairs = one.lines().zip(other.lines()).zip(1..);
    match pairs.find(|((one, other), _)| one != other) {
        Some(((one, other), number)) => format!("{number}: {one} | {other}"),
        None => format!("{} and {} bytes", one.len(), other.len()),
    }
}

/// Runs one block of an experiment in the deterministic guest, and returns the path of the result;
/// `None` where no such guest can run.
fn result_of(experiment: &Table, directory: &Path) -> Option<PathBuf> {
    fs::write(directory.join("part.toml"), toml::to_string(experiment).unwrap()).unwrap();
    // The laboratory looks for the sources of the module there.
    let kmod = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../kmod");
    symlink(kmod, directory.join("kmod")).unwrap();
    let arguments =
        ["run", "part.toml", "--deterministic", "--quick", "--blocks", "1", "--out", "out"];
    let mut command = guest::pollux("lab", &arguments);
    command.current_dir(directory);
    guest::success_of(&mut command)?;
    Some(directory.join("out/result.json"))
}
