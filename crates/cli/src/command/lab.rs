//! `pollux lab`.

use crate::duration;
use anyhow::Context as _;
use pollux_event::MechanismSpec;
use pollux_lab::{
    environment,
    experiment::{self, Budget, Experiment, Place},
    report,
    result::Outcome,
    run::{
        self, Settings, executable::Executable, interrupt::Interrupt, progress::Progress,
        trial::Programs,
    },
    wait_cost::{self, WaitCost},
};
use std::{
    fs,
    io::{self, Write},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
    time::Duration,
};

/// The command's arguments.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  pollux lab list
  pollux lab run idle --quick             in a minute and a half, into results/idle-DATE-TIME/
  pollux lab run my-own.toml --out out    an experiment of your own
  pollux lab report results/idle-…        renders the page again from result.json")]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Subcommand,
}

#[derive(clap::Subcommand)]
enum Subcommand {
    /// List the experiments
    #[command(after_help = "Example:\n  pollux lab list")]
    List,
    /// Run an experiment: measure, judge its claims, draw a report
    Run(RunArgs),
    /// Render the report of a result directory again from its result.json
    #[command(after_help = "Example:\n  pollux lab report results/idle-2026-11-21-1200")]
    Report {
        /// The result directory
        directory: PathBuf,
    },
    /// Measure what one wait of a mechanism costs, with no server around it
    WaitCost(WaitCostArgs),
}

#[derive(clap::Args)]
#[command(after_help = "Examples:
  pollux lab wait-cost --mechanism poll --watched 10000
  pollux lab wait-cost --mechanism epoll-et --watched 10000 --ready 100 --duration 2s --pin 0
  pollux vm -- pollux lab wait-cost --mechanism poll --watched 500 --kernel-calls tcp_poll

Prints one JSON document. Only the wait and the handing out of its events are timed.")]
struct WaitCostArgs {
    /// NAME[:KEY=VALUE,…] (see `pollux doctor`)
    #[arg(long, value_name = "NAME")]
    mechanism: MechanismSpec,
    /// How many TCP sockets are watched
    #[arg(long, value_name = "N")]
    watched: usize,
    /// How many of them are made ready before each wait
    #[arg(long, value_name = "N", default_value_t = 1)]
    ready: usize,
    /// How many interests are changed before each wait, as part of what is timed
    #[arg(long, value_name = "N", default_value_t = 0)]
    changes: usize,
    /// How long to measure at most
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = duration::parse)]
    duration: Duration,
    /// How many waits to measure at most: with the same seed, the same ones for every mechanism
    #[arg(long, value_name = "N")]
    waits: Option<u64>,
    /// Functions of the kernel whose calls are counted, in waits after the timed ones (needs
    /// kprobes, which the guest of `pollux vm` has)
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    kernel_calls: Vec<String>,
    /// Decides which are made ready
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// The CPU to run on
    #[arg(long, value_name = "CPU")]
    pin: Option<u32>,
}

#[derive(clap::Args)]
#[command(after_help = "Examples:
  pollux lab run idle --quick
  pollux lab run idle --seed 7 --out results/idle-7
  pollux lab run gammo-fig5-6 --time 10m  the full form in less time: fewer or shorter runs
  pollux lab run provos-fig14 --guest     with /dev/poll
  pollux lab run idle --quick --json | jq '.claims[] | {id, verdict}'

With --guest, or within `pollux vm`, an experiment takes the form that its [guest] table says, for
the CPU there is emulated.

The server runs on the first CPU that this process may use, the generator on the second. Ctrl-C
ends the run; what was measured so far is written and marked as interrupted (exit code 130).")]
struct RunArgs {
    /// Name of a built-in experiment (see `pollux lab list`), or path of a .toml file
    experiment: String,
    /// The short form: fewer repetitions, shorter windows
    #[arg(long)]
    quick: bool,
    /// The time to spend, all in, instead of the form's own; one pass over all cells is made in any
    /// case [default: see `pollux lab list`]
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    time: Option<Duration>,
    /// Where to write result.json and report.html [default: results/ID-DATE-TIME]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// What the order of runs, the arrivals and the intervals are drawn from
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The paper's own request rates instead of shares of what this machine can serve
    #[arg(long)]
    paper_rates: bool,
    /// Print result.json on stdout instead of tables
    #[arg(long)]
    json: bool,
    /// Run on this kernel an experiment that is meant for the guest of `pollux vm`
    #[arg(long, conflicts_with = "guest")]
    here: bool,
    /// Run in the guest of `pollux vm`, which has /dev/poll, an experiment that is meant for this
    /// kernel
    #[arg(long)]
    guest: bool,
}

/// Columns of the tables when standard output is no terminal.
const WIDTH: u16 = 110;

/// Exit code after Ctrl-C: 128 + SIGINT, as shells have it.
const INTERRUPTED: u8 = 130;

/// How much longer than its budget an experiment may take in a guest: one pass over all cells is
/// made in any case, and an emulated machine is slow.
const GUEST_PATIENCE: f64 = 4.0;
/// Seconds for the guest's boot, the module's build included.
const GUEST_BOOT_S: f64 = 300.0;

/// Runs the command.
pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    match args.command {
        Subcommand::List => list(),
        Subcommand::Run(args) => measure(&args),
        Subcommand::WaitCost(args) => {
            let document = wait_cost::measure(&WaitCost {
                mechanism: args.mechanism,
                watched: args.watched,
                ready: args.ready,
                changes: args.changes,
                duration: args.duration,
                waits: args.waits,
                kernel_calls: args.kernel_calls,
                seed: args.seed,
                cpu: args.pin,
            })?;
            println!("{document}");
            Ok(ExitCode::SUCCESS)
        }
        Subcommand::Report { directory } => {
            let mut outcome = Outcome::read(&directory)?;
            outcome.conclude();
            outcome.write(&directory)?;
            let page = report::write(&outcome, &directory)?;
            println!("{}", page.display());
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn list() -> anyhow::Result<ExitCode> {
    let experiments: Vec<Experiment> =
        experiment::ids().map(experiment::find).collect::<anyhow::Result<_>>()?;
    let wide = experiments.iter().map(|e| e.id.len()).max().unwrap_or(0);
    let mut text = String::new();
    for experiment in experiments {
        let claims: Vec<&str> = experiment.claim.iter().map(|claim| claim.id.as_str()).collect();
        text.push_str(&format!(
            "{:wide$}  {}\n{:wide$}  after {}; judges {}\n{:wide$}  {}\n",
            experiment.id,
            experiment.title,
            "",
            experiment.source,
            claims.join(", "),
            "",
            times(&experiment)
        ));
    }
    print_all(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// Writes to standard output. A reader who has seen enough, such as `head`, is no error.
fn print_all(text: &str) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => written.context("standard output"),
    }
}

/// How long both forms of an experiment take, where it runs by itself and in a guest.
fn times(experiment: &Experiment) -> String {
    let both = |experiment: &Experiment| {
        let [quick, full] = [&experiment.quick, &experiment.full].map(Budget::text);
        format!("--quick {quick}, full {full}")
    };
    let here = both(experiment);
    let there = both(&experiment.clone().in_guest());
    match experiment.place {
        Place::Host if experiment.guest.is_none() => here,
        Place::Host => format!("{here}; with --guest {there} and the boot"),
        Place::Guest | Place::DeterministicGuest => format!("in a guest: {there} and the boot"),
    }
}

fn measure(args: &RunArgs) -> anyhow::Result<ExitCode> {
    let mut experiment = experiment::find(&args.experiment)?;
    let directory = match &args.out {
        Some(directory) => directory.clone(),
        None => run::default_directory(&experiment.id),
    };
    if args.paper_rates {
        experiment.paper_rates()?;
    }
    let wants_guest = args.guest || (experiment.place != Place::Host && !args.here);
    match environment::guest() {
        Some(_) => experiment = experiment.in_guest(),
        None if wants_guest => return in_guest(args, &experiment),
        None => {}
    }
    if let Some(time) = args.time {
        experiment.budget_mut(args.quick).seconds = time.as_secs_f64();
    }
    // Before anything is measured: a run is not to end with nowhere to put it.
    fs::create_dir_all(&directory).with_context(|| directory.display().to_string())?;
    let executable = Executable::of_this_process()?;
    let settings = Settings {
        experiment: &experiment,
        quick: args.quick,
        paper_rates: args.paper_rates,
        seed: args.seed,
        programs: Programs::of(executable.path()),
        interrupt: Interrupt::on_signals().context("cannot catch Ctrl-C")?,
        progress: Progress::on_terminal(),
    };
    let outcome = run::run(&settings);
    settings.progress.finish();
    let outcome = outcome?;
    outcome.write(&directory)?;
    let page = report::write(&outcome, &directory)?;
    if args.json {
        print_all(&format!("{}\n", serde_json::to_string_pretty(&outcome)?))?;
    } else {
        show(&outcome, &directory, &page)?;
    }
    Ok(if outcome.interrupted { ExitCode::from(INTERRUPTED) } else { ExitCode::SUCCESS })
}

/// Runs the experiment in the guest, on this file tree, by the program that runs now.
fn in_guest(args: &RunArgs, experiment: &Experiment) -> anyhow::Result<ExitCode> {
    let program = std::env::current_exe().context("the path of this program")?;
    let mut command = Command::new(&program);
    command.arg("vm");
    if experiment.place == Place::DeterministicGuest {
        command.arg("--deterministic");
    }
    // The budget is the guest's own time, and boot and end come on top; one that hangs is ended.
    let planned = experiment.clone().in_guest().budget(args.quick).seconds;
    let seconds = args.time.map_or(planned, |time| time.as_secs_f64());
    let patience = seconds.max(planned) * GUEST_PATIENCE + GUEST_BOOT_S;
    command.arg("--timeout").arg(format!("{patience:.0}"));
    command.arg("--").arg(&program).args(["lab", "run", &args.experiment, "--here"]);
    let flags =
        [("--quick", args.quick), ("--paper-rates", args.paper_rates), ("--json", args.json)];
    command.args(flags.iter().filter(|(_, on)| *on).map(|(flag, _)| flag));
    command.arg("--time").arg(format!("{seconds}"));
    command.arg("--seed").arg(args.seed.to_string());
    let directory = args.out.clone().unwrap_or_else(|| run::default_directory(&experiment.id));
    command.arg("--out").arg(std::path::absolute(&directory)?);
    // In place of this process: signals then reach the one that can end the guest.
    Err(command.exec()).with_context(|| program.display().to_string())
}

fn show(outcome: &Outcome, directory: &Path, page: &Path) -> anyhow::Result<()> {
    let width = Some(terminal_width().unwrap_or(WIDTH));
    let parts = [
        report::terminal::tables(outcome, width),
        report::terminal::claims(outcome, width),
        report::terminal::notes(outcome),
        format!("\nraw data  {}\n", directory.join(pollux_lab::result::FILE).display()),
        format!("report    {}\n", page.display()),
    ];
    print_all(&parts.concat())
}

/// Columns of the terminal on stdout; `None` when it is no terminal.
pub(crate) fn terminal_width() -> Option<u16> {
    comfy_table::Table::new().width()
}
