//! Measurements for developers of Pollux; each goal is met, missed or undecided.
//!
//! Without a command it is `make bench`: Pollux compared with the floor, nginx, h2o and lighttpd; its
//! pools compared with a floor of threads; `pollux load` compared with wrk. All servers run at once,
//! one worker each, pinned to one CPU; the generator, pinned to the other CPU, loads one at a time.
//! Each round measures every variant once, odd rounds in reverse order. Ratios are computed within a
//! round, so that the machine's drift cancels. The last table lists the goals with their figures.
//!
//! The command `mechanisms` is `make bench-event`: the cost of a wait, in this process. `request`
//! repeats one part of a request, whose instructions another program counts.

mod generator;
mod goal;
mod mechanisms;
mod output;
mod peer;
mod request;
mod scenario;
mod sys;
mod wrk;

use anyhow::Context;
use clap::Parser;
use goal::Goal;
use peer::{DOCUMENTS, H2O, LIGHTTPD, NGINX, Peer, Testbed};
use pollux_lab::{
    environment::Cpus,
    environment::{self, Environment},
    run::interrupt::Interrupt,
};
use serde_json::json;
use std::{fs, path::PathBuf, time::Duration};

/// Measures Pollux: without a command, beside the floor and its peers. Ends with each goal: met, missed or
/// undecided.
#[derive(Parser)]
#[command(
    version,
    args_conflicts_with_subcommands = true,
    after_help = "Examples:\n  pollux-bench --rounds 4 --seconds 1 --out /tmp/bench\n  pollux-bench --parts against --rounds 40 --seconds 1 --against ../before/pollux"
)]
struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    comparison: Comparison,
}

/// What else is measured.
#[derive(clap::Subcommand)]
enum Command {
    Mechanisms(mechanisms::Options),
    Request(request::Options),
}

/// A part of the comparison.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Section {
    Server,
    Pools,
    Idle,
    Generator,
    Against,
}

/// How Pollux is compared with its peers.
#[derive(clap::Args)]
struct Comparison {
    /// Rounds of each comparison; each gives one paired ratio
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(2..=1000))]
    rounds: u32,
    /// Seconds of load per variant and round
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=60))]
    seconds: u64,
    /// Where result.json and table.txt go [default: results/bench-TIME]
    #[arg(long)]
    out: Option<PathBuf>,
    /// Only these parts
    #[arg(long, value_delimiter = ',', default_value = "server,pools,idle,generator")]
    parts: Vec<Section>,
    /// Another build of pollux, compared with this one in a part of its own, `against`; the goal is
    /// that this one costs no more
    #[arg(long, value_name = "BINARY", required_if_eq("parts", "against"))]
    against: Option<PathBuf>,
    /// CPU of the servers
    #[arg(long, default_value_t = 0)]
    server_cpu: u32,
    /// CPU of the generators
    #[arg(long, default_value_t = 1)]
    generator_cpu: u32,
}

/// The common settings of all scenarios.
struct Setup {
    testbed: Testbed,
    rounds: u32,
    duration: Duration,
    generator_cpu: u32,
    progress: indicatif::ProgressBar,
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    // A missed goal is a finding, not a failure of the bench.
    match args.command {
        None => compare(args.comparison),
        Some(Command::Mechanisms(options)) => mechanisms::measure(&options),
        Some(Command::Request(options)) => {
            request::repeat(&options);
            Ok(())
        }
    }
}

/// Compares Pollux with the floor and its peers.
fn compare(args: Comparison) -> anyhow::Result<()> {
    let scratch = tempfile::tempdir()?;
    let documents = scratch.path().join("documents");
    fs::create_dir(&documents)?;
    for (name, length) in DOCUMENTS {
        fs::write(documents.join(name), vec![b'x'; length])?;
    }
    let beside = std::env::current_exe()?;
    let release = beside.parent().context("this program has no directory")?;
    let testbed = Testbed {
        pollux: release.join("pollux"),
        against: args.against,
        documents,
        scratch: scratch.path().to_owned(),
        cpu: args.server_cpu,
        interrupt: Interrupt::on_signals().context("cannot catch Ctrl-C")?,
    };
    for program in [&testbed.pollux].into_iter().chain(&testbed.against) {
        anyhow::ensure!(program.is_file(), "{} is not built: run `make bench`", program.display());
    }
    let setup = Setup {
        testbed,
        rounds: args.rounds,
        duration: Duration::from_secs(args.seconds),
        generator_cpu: args.generator_cpu,
        progress: indicatif::ProgressBar::new_spinner(),
    };
    setup.progress.enable_steady_tick(Duration::from_millis(200));

    let mut goals: Vec<Goal> = Vec::new();
    let mut tables: Vec<comfy_table::Table> = Vec::new();
    let mut raw = serde_json::Map::new();
    let wants = |part| args.parts.contains(&part);
    if wants(Section::Server) {
        scenario::server(&setup, &mut goals, &mut tables, &mut raw)?;
    }
    if wants(Section::Pools) {
        scenario::pools(&setup, &mut tables, &mut raw)?;
    }
    if wants(Section::Against) {
        scenario::against(&setup, &mut goals, &mut raw)?;
    }
    if wants(Section::Idle) {
        scenario::idle(&setup, &mut goals, &mut raw)?;
    }
    if wants(Section::Generator) {
        scenario::generator(&setup, &mut goals, &mut tables, &mut raw)?;
    }
    setup.progress.finish_and_clear();

    let mut text = String::new();
    for table in &tables {
        text += &format!("{table}\n\n");
    }
    text += &format!("{}\n", goal::table(&goals));
    print!("{text}");
    let before = setup.testbed.against.is_some().then_some(Peer::PolluxBefore);
    let versions: serde_json::Map<_, _> = [Peer::Pollux, NGINX, H2O, LIGHTTPD]
        .into_iter()
        .chain(before)
        .map(|peer| (peer.name().to_owned(), peer::version(peer, &setup.testbed).into()))
        .collect();
    // `pollux 0.1.0 (COMMIT DATE, …)`: the commit of the measured program, regardless of the working
    // directory of this one.
    let version = peer::version(Peer::Pollux, &setup.testbed);
    let built = version.split_once('(').and_then(|(_, build)| environment::commit(build));
    let cpus = Cpus { server: args.server_cpu, generator: args.generator_cpu };
    let result = json!({
        "command": std::env::args().collect::<Vec<_>>(),
        "environment": Environment::look(cpus, built),
        "versions": versions,
        "rounds": args.rounds,
        "seconds": args.seconds,
        "goals": goals,
        "raw": raw,
    });
    output::write(&output::directory(args.out.as_deref(), "bench"), &result, &text, &goals)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_options_are_consistent() {
        Args::command().debug_assert();
    }
}
