//! What waiting costs with each mechanism, measured side by side.
//!
//! `cargo bench -p pollux-event` measures and prints a table; `-- --json FILE` or `-- --out FOLDER`
//! keeps the raw data, `-- --help` tells the rest. `cargo test` runs it tiny, so that it never rots.
//!
//! Three cases, on real TCP connections:
//! - **wait**: one of N connections becomes ready; what the turn (write, wait, take the event,
//!   read) costs above the same write and read without any mechanism. What the mechanism does
//!   while the data arrive is part of it.
//! - **change**: the interest in k of N quiet connections is changed; per change. Where changes are
//!   gathered, with the wait that sends them, above that wait alone.
//! - **all-ready**: data have arrived on all N; the waits until each has been reported, per event
//!   (the event buffer holds N). Beside it **arrival**: what the sender pays per write.
//!
//! Machines drift, so nothing is measured in a block: in each round every variant has its turn,
//! then all again in reverse order (A B C C B A). A round gives one figure for each variant, the
//! thread's CPU time, and one ratio to `epoll`; reported are the medians over the rounds with 95 %
//! bootstrap intervals.

mod cases;
mod goal;
mod options;
mod pool;
mod report;
mod run;
mod statistics;

use anyhow::{Context, Result};
use clap::Parser;
use libtest_mimic::{Arguments, Trial};
use options::Options;

fn main() -> Result<()> {
    // `cargo bench` says so; `cargo test`, whose options are libtest's, does not.
    if !std::env::args().any(|argument| argument == "--bench") {
        let trial = Trial::test("every_mechanism_is_measured", || Ok(tiny()?));
        let paths = Trial::test("paths_are_the_callers", || Ok(options::check_paths()?));
        libtest_mimic::run(&Arguments::from_args(), vec![trial, paths]).exit();
    }
    let options = Options::parse();
    let results = run::run(&options.plan()?)?;
    let table = report::table(&results);
    print!("{table}");
    options.write(&(serde_json::to_string_pretty(&report::json(&results))? + "\n"), &table)
}

/// The bench in miniature: everything runs, every figure is there, none is judged.
fn tiny() -> Result<()> {
    let plan = run::Plan::tiny()?;
    let results = run::run(&plan)?;
    let table = report::table(&results);
    for variant in &plan.variants {
        let name = variant.to_string();
        let has = |case: &str| {
            results.figures.iter().any(|figure| figure.case == case && figure.name == name)
        };
        for case in ["wait", "change", "all-ready", "arrival"] {
            anyhow::ensure!(has(case), "{name} has no figure for {case}:\n{table}");
        }
        anyhow::ensure!(table.contains(&name), "{name} is not in the table:\n{table}");
    }
    let json = report::json(&results);
    let figures = json["figures"].as_array().context("figures")?;
    anyhow::ensure!(figures.len() == results.figures.len(), "{json}");
    for figure in figures {
        let samples = figure["samples_ns"].as_array().context("samples_ns")?;
        anyhow::ensure!(samples.len() == plan.rounds, "a sample a round: {figure}");
        anyhow::ensure!(samples.iter().all(|sample| sample.is_f64()), "finite: {figure}");
    }
    Ok(())
}
