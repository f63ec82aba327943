//! The options of the bench.

use crate::run::Plan;
use anyhow::{Context, Result};
use clap::Parser;
use pollux_event::MechanismSpec;
use std::{path::PathBuf, time::Duration};

/// What waiting costs with each mechanism, measured side by side.
#[derive(Parser, Debug)]
#[command(after_help = "Examples:\n  \
    cargo bench -p pollux-event\n  \
    cargo bench -p pollux-event -- --mechanism epoll-et,uring-poll --sizes 1000,10000\n  \
    cargo bench -p pollux-event -- --rounds 40 --json wait.json")]
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
    #[arg(long, default_value_t = 15, value_name = "N", value_parser = clap::value_parser!(u32).range(2..=10_000))]
    rounds: u32,
    /// How long a variant is measured at a time
    #[arg(long, default_value_t = 5, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..=10_000))]
    slice_ms: u64,
    /// Writes the raw data there
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Given by cargo
    #[arg(long, hide = true)]
    bench: bool,
}

impl Options {
    /// What is to be measured.
    pub(crate) fn plan(&self) -> Result<Plan> {
        let mut plan = Plan::full()?;
        if !self.mechanism.is_empty() {
            // The comma separates mechanisms here, so that of a spec is written as a slash.
            let wanted = self.mechanism.iter().map(|text| text.replace('/', ","));
            let wanted = std::iter::once("epoll".to_owned()).chain(wanted);
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
