//! `make bench-event`: the cost of waiting with each mechanism, measured side by side in this process.
//!
//! Three cases, on real TCP connections:
//! - **wait**: one of N connections becomes ready. The figure is the cost of one round (write, wait,
//!   take the event, read) above the same write and read without any mechanism. It includes the work of
//!   the mechanism while the data arrive.
//! - **change**: the interest in k of N quiet connections is changed; the figure is per change. Where
//!   changes are gathered, it includes the wait that sends them, minus the cost of that wait alone.
//! - **all-ready**: data have arrived on all N connections. The figure is the cost of the waits until
//!   each has been reported, per event (the event buffer holds N). A second figure, **arrival**, is the
//!   sender's cost per write.
//!
//! Machines drift, so no variant is measured in one block: in each round every variant is measured
//! once, then all again in reverse order (A B C C B A). A round gives one figure for each variant, the
//! thread's CPU time, and one ratio to `epoll`. Over the rounds they are summarised like the
//! laboratory's figures ([`pollux_lab::statistics`]).

mod cases;
mod goals;
mod pool;
mod report;
mod run;

use crate::{goal, output};
use anyhow::Context;
use pollux_event::MechanismSpec;
use pollux_lab::{
    environment::{Cpus, Environment},
    statistics::rank,
};
use run::{Plan, REFERENCE, Results};
use serde_json::{Value, json};
use std::{path::PathBuf, time::Duration};

/// What waiting costs with each mechanism, side by side in this process
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    pollux-bench mechanisms --mechanism epoll-et,uring-poll --sizes 1000,10000\n  \
    pollux-bench mechanisms --rounds 40 --out results/wait")]
pub(crate) struct Options {
    /// Mechanisms beside epoll, comma-separated; several options of one as name:key=value/key=value
    #[arg(long, value_delimiter = ',', value_name = "SPEC")]
    mechanism: Vec<String>,
    /// Numbers of connections
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "10,100,1000,10000,20000",
        value_name = "N"
    )]
    sizes: Vec<usize>,
    /// Rounds; each measures every variant twice
    #[arg(long, default_value_t = 15, value_name = "N", value_parser = clap::value_parser!(u32).range(2..=MAX_ROUNDS))]
    rounds: u32,
    /// How long a variant is measured at a time
    #[arg(long, default_value_t = 5, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..=10_000))]
    slice_ms: u64,
    /// Where result.json and table.txt go [default: results/bench-event-TIME]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

/// Intervals of ranks exist only up to this number of rounds.
const MAX_ROUNDS: i64 = rank::MAX_VALUES as i64;

/// Measures, and prints and stores the results.
pub(crate) fn measure(options: &Options) -> anyhow::Result<()> {
    let results = run::run(&options.plan()?)?;
    let goals = goals::goals(&results);
    let mut text = report::tables(&results);
    if !goals.is_empty() {
        text += &format!("\n{}\n", goal::table(&goals));
    }
    print!("{text}");
    let directory = output::directory(options.out.as_deref(), "bench-event");
    output::write(&directory, &result(&results, &goals), &text, &goals)
}

/// The results for programs, as JSON.
fn result(results: &Results, goals: &[goal::Goal]) -> Value {
    // No CPU is pinned, because there is no other process.
    let environment =
        Environment { pinned: None, ..Environment::look(Cpus { server: 0, generator: 0 }, None) };
    json!({
        "bench": "mechanisms",
        "environment": environment,
        "rounds": results.rounds,
        "slice_ms": results.slice.as_secs_f64() * 1e3,
        "notes": results.notes,
        "goals": goals,
        "figures": report::figures(results),
    })
}

impl Options {
    /// The plan of the measurement.
    fn plan(&self) -> anyhow::Result<Plan> {
        let mut plan = Plan::full()?;
        if !self.mechanism.is_empty() {
            // On this command line a comma separates mechanisms, so a comma inside a spec is written as
            // a slash.
            let wanted = self.mechanism.iter().map(|text| text.replace('/', ","));
            let wanted = std::iter::once(REFERENCE.to_owned()).chain(wanted);
            plan.variants.clear();
            for text in wanted {
                let spec: MechanismSpec =
                    text.parse().with_context(|| format!("--mechanism {text}"))?;
                if !plan.variants.contains(&spec) {
                    plan.variants.push(spec);
                }
            }
        }
        plan.sizes = self.sizes.clone();
        plan.sizes.retain(|&size| size > 0);
        plan.sizes.sort_unstable();
        plan.sizes.dedup();
        anyhow::ensure!(!plan.sizes.is_empty(), "--sizes: at least one number above 0");
        plan.rounds = self.rounds as usize;
        plan.slice = Duration::from_millis(self.slice_ms);
        Ok(plan)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pollux_lab::statistics::MIN_BLOCKS;

    /// A small measurement: everything runs, every figure is present, none is judged.
    #[test]
    fn every_mechanism_is_measured() {
        let plan = Plan::tiny().unwrap();
        assert!(plan.rounds < MIN_BLOCKS);
        let results = run::run(&plan).unwrap();
        let tables = report::tables(&results);
        for variant in &plan.variants {
            let name = variant.to_string();
            let has = |case: &str| {
                results.figures.iter().any(|figure| figure.case == case && figure.name == name)
            };
            for case in ["wait", "change", "all-ready", "arrival"] {
                assert!(has(case), "{name} has no figure for {case}:\n{tables}");
            }
            assert!(tables.contains(&name), "{name} is not in the tables:\n{tables}");
        }
        let goals = goals::goals(&results);
        assert!(goals.iter().all(|goal| goal.verdict == goal::Verdict::Undecided), "{goals:?}");
        let result = result(&results, &goals);
        let figures = result["figures"].as_array().unwrap();
        assert_eq!(figures.len(), results.figures.len(), "{result}");
        for figure in figures {
            let samples = figure["samples_ns"].as_array().unwrap();
            assert_eq!(samples.len(), plan.rounds, "a sample a round: {figure}");
            assert!(samples.iter().all(Value::is_f64), "finite: {figure}");
        }
    }
}
