//! Writes the results of a run as JSON and as a text table.

use crate::goal::{Goal, Verdict};
use anyhow::Context;
use std::{
    fs,
    path::{Path, PathBuf},
    time::SystemTime,
};

/// Returns `wanted`, or by default `results/NAME-TIME`.
pub(crate) fn directory(wanted: Option<&Path>, name: &str) -> PathBuf {
    let now = || SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let default = || format!("results/{name}-{}", now().map_or(0, |time| time.as_secs())).into();
    wanted.map_or_else(default, Path::to_owned)
}

/// Writes `result.json` and `table.txt` into `directory`, which is created if it does not exist; prints
/// how many of the goals are met, and the paths of the data.
pub(crate) fn write(
    directory: &Path,
    result: &serde_json::Value,
    table: &str,
    goals: &[Goal],
) -> anyhow::Result<()> {
    let write_file = |name: &str, text: &str| {
        let path = directory.join(name);
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
    };
    fs::create_dir_all(directory)
        .with_context(|| format!("cannot create {}", directory.display()))?;
    write_file("result.json", &(serde_json::to_string_pretty(result)? + "\n"))?;
    write_file("table.txt", table)?;
    let count = |verdict| goals.iter().filter(|goal| goal.verdict == verdict).count();
    if !goals.is_empty() {
        println!(
            "{} of {} goals met, {} missed, {} undecided",
            count(Verdict::Met),
            goals.len(),
            count(Verdict::Missed),
            count(Verdict::Undecided)
        );
    }
    println!("raw data in {}", directory.display());
    Ok(())
}
