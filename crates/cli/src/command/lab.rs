//! `pollux lab`.

mod advise;
mod earlier;
mod floor;
mod guest;

use crate::{duration, message::say, names, print::print_all, terminal, usage::UsageError};
use anyhow::Context as _;
use pollux_event::MechanismSpec;
use pollux_lab::{
    advise::Question,
    archive, compare, environment,
    experiment::{self, Cells, Experiment, Form, Machine},
    format,
    law::{diagram, fit},
    report::{self, overview, results},
    result::{Outcome, Status},
    run::{
        self, Settings, executable::Executable, interrupt::Interrupt, journal, progress::Progress,
        trial::Programs,
    },
    tries::Register,
    wait_cost::{self, WaitCost},
};
use pollux_vm::Mips;
use std::{
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

/// The command's arguments.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  pollux lab list                       the experiments, and how long each takes
  pollux lab run idle --quick           into results/idle-DATE-TIME/
  pollux lab run my-own.toml --out out  an experiment of your own
  pollux lab report results/idle-…      renders the page again")]
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
    /// Render the report of a result directory again from its result.json; for several directories,
    /// render one page over all of them, ordered by paper
    #[command(after_help = "Examples:
  pollux lab report results/idle-20261121-120000
  pollux lab report docs/runs/*/ --out docs     the pages about all of them")]
    Report {
        /// The result directories
        #[arg(required = true, value_name = "DIR")]
        directories: Vec<PathBuf>,
        /// The directory for papers.html, papers.md and results.md [default: the current directory]
        #[arg(long, value_name = "DIR")]
        out: Option<PathBuf>,
    },
    /// Compare two results of one experiment, cell by cell: two kernels, machines or builds
    #[command(
        after_help = "Example:\n  pollux lab compare results/idle-6.1 results/idle-6.12 --csv out.csv"
    )]
    Compare {
        /// The first result directory
        a: PathBuf,
        /// The second
        b: PathBuf,
        /// Write every row to this file, too
        #[arg(long, value_name = "FILE")]
        csv: Option<PathBuf>,
    },
    /// Make a run ready to publish: compressed raw data, figures, and a README.md that shows them
    #[command(after_help = "Example:
  pollux lab archive results/idle-20261121-120000 docs/runs/2026-11-21-idle

The report is left out: `pollux lab report` renders it from the archived data.")]
    Archive {
        /// The result directory
        directory: PathBuf,
        /// The directory to write to; it is created when it does not exist
        to: PathBuf,
    },
    /// Measure how much of its best rate each mechanism keeps on this machine, with the given numbers of
    /// idle connections and open requests
    #[command(after_help = "Example:
  pollux lab advise --idle 10000 --open 64 --rate 5000

It takes a minute: each mechanism that this kernel has of select, poll, epoll2,
devpoll, epoll, epoll-et and uring-poll, with and without the idle connections.

Exit status: 0 when a mechanism was measured, 1 when the measurement failed, 2
for a usage error, 4 when no run is valid, 130 after Ctrl-C.")]
    Advise {
        /// Connections that stay open and send nothing: 1 to 15000
        #[arg(long, value_name = "N", default_value_t = 1000)]
        idle: u32,
        /// Requests that may be open (sent, not yet answered) at once: 2 to 4000
        #[arg(long, value_name = "N", default_value_t = 64)]
        open: u32,
        /// Requests a second that the server is to answer
        #[arg(long, value_name = "N", default_value_t = 1000.0)]
        rate: f64,
        /// How long the measurement may take
        #[arg(long, value_name = "TIME", default_value = "52s", value_parser = duration::parse)]
        time: Duration,
    },
    /// Fit the batching law to a third of a result's cells and report how well it predicts the others
    #[command(after_help = "Examples:
  pollux lab law results/batching-fit --predict > predictions.json
  pollux lab law results/batching-fit results/batching-rest
  pollux lab law docs/runs/2026-11-30-provos-fig11-13")]
    Law {
        /// The result to fit on: a third of its cells, chosen by a seed
        directory: PathBuf,
        /// A result with the other cells, measured later
        rest: Option<PathBuf>,
        /// Print the predictions for the other cells as JSON, without what was measured in them
        #[arg(long)]
        predict: bool,
        /// Draw, for each mechanism, how much of its best rate remains with idle connections, as
        /// phase-MECHANISM.svg in this directory
        #[arg(long, value_name = "DIR", conflicts_with = "predict")]
        diagrams: Option<PathBuf>,
    },
    /// Measure what one wait of a mechanism costs, with no server around it
    WaitCost(WaitCostArgs),
    /// Answer all input with the same bytes: the least work that a server on epoll can do for a request
    Floor(floor::Args),
}

#[derive(clap::Args)]
#[command(after_help = "Examples:
  pollux lab wait-cost --mechanism poll --watched 10000
  pollux lab wait-cost --mechanism epoll-et --watched 10000 --ready 100 --pin 0

In the guest of `pollux vm`, which has kprobes, also:
  pollux lab wait-cost --mechanism poll --watched 500 --kernel-calls tcp_poll

Prints one JSON document. Only the wait and the delivery of its events are
timed.

Exit status: 0 when the wait was measured, 1 when the measurement failed, 2 for
a usage error.")]
struct WaitCostArgs {
    /// NAME[:KEY=VALUE,…] (see `pollux doctor`)
    #[arg(long, value_name = "NAME", hide_possible_values = true,
          value_parser = names::mechanism::<MechanismSpec>())]
    mechanism: MechanismSpec,
    /// How many TCP sockets are watched
    #[arg(long, value_name = "N")]
    watched: usize,
    /// Which of them are made ready before each wait: N of them, different ones each time; `same`, one
    /// socket, always the same one; half; all
    #[arg(long, value_name = "N|same|half|all", default_value = "1")]
    ready: wait_cost::Ready,
    /// How many interests are changed before each wait; the changes are timed, too
    #[arg(long, value_name = "N", default_value_t = 0)]
    changes: usize,
    /// The longest time to measure
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = duration::parse)]
    duration: Duration,
    /// The maximum number of waits to measure. With the same seed, the same sockets are made ready for
    /// every mechanism
    #[arg(long, value_name = "N")]
    waits: Option<u64>,
    /// Functions of the kernel whose calls are counted, in waits after the timed ones (needs
    /// kprobes, which the guest of `pollux vm` has)
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    kernel_calls: Vec<String>,
    /// Seed of the choice of sockets that are made ready
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
  pollux lab run gammo-fig5-6 --time 10m  the full form in less time
  pollux lab run provos-fig14 --guest     with /dev/poll
  pollux lab run mail-hints --deterministic    the same figures in each run
  pollux lab run mail-hints --deterministic --blocks 24    for undecided claims
  pollux lab run idle --quick --json | jq '.claims[] | {id, verdict}'

With --guest, or within `pollux vm`, the [guest] table of an experiment replaces
its values and times, because the CPU of the guest is emulated.

The server runs on the first CPU that this process may use, the generator on the
second. Ctrl-C ends the run; the measurements so far are written and marked as
interrupted.

Exit status: 0 when the experiment was measured, 1 when the measurement failed,
2 for a usage error, 4 when no run is valid, 130 after Ctrl-C; with a guest also
those of `pollux vm`.")]
struct RunArgs {
    /// Name of a built-in experiment (see `pollux lab list`), or path of a .toml file
    #[arg(value_parser = names::Experiment, hide_possible_values = true)]
    experiment: String,
    /// Continue the run in this directory, which was stopped or killed. Experiment, form, seed, build and
    /// machine must be the same; the time is that of the earlier run
    #[arg(long, value_name = "DIR", conflicts_with_all = ["out", "time"])]
    resume: Option<PathBuf>,
    /// The short form: fewer repetitions, shorter windows
    #[arg(long)]
    quick: bool,
    /// The total time of the run, instead of the form's own; at least one pass over all cells is made.
    /// With --deterministic, the guest is stopped after this time, and its measurements are lost
    /// [default: see `pollux lab list`; with --deterministic 4h]
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    time: Option<Duration>,
    /// The maximum number of blocks, instead of the form's own. The run ends sooner when its primary
    /// claims are decided, or when the time is over
    #[arg(long, value_name = "N", conflicts_with = "resume",
        value_parser = clap::value_parser!(u32).range(1..=BLOCKS_MAX))]
    blocks: Option<u32>,
    /// Where to write result.json and report.html; a directory with an earlier result is refused
    /// [default: results/ID-DATE-TIME]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Seed of the order of runs, of the arrivals and of the confidence intervals
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Use the paper's own request rates instead of shares of what this machine can serve
    #[arg(long)]
    paper_rates: bool,
    /// Use the absolute request rates of the run in this result directory, instead of probing what this
    /// machine can serve. Experiment and form must be the same
    #[arg(long, value_name = "DIR", conflicts_with_all = ["paper_rates", "deterministic", "resume"])]
    rates_of: Option<PathBuf>,
    /// Measure a part of the cells: the third that a law is fitted on, or the rest (`pollux lab law`)
    #[arg(long, value_name = "fit|rest", value_parser = cells)]
    cells: Option<Cells>,
    /// Print result.json on stdout instead of tables
    #[arg(long)]
    json: bool,
    /// Run in an isolated guest whose clocks count instructions, so that each run gives the same figures.
    /// Meanwhile, and if the guest is stopped, `pollux lab report DIR` shows the finished runs
    #[arg(long, conflicts_with = "guest", conflicts_with = "resume")]
    deterministic: bool,
    /// How many million instructions make one second of the guest's clocks: 1000, 500, 250 (near the
    /// papers' machines) or 125 [default: 250 for a server, 1000 for waits without a server]
    #[arg(long, value_name = "N", requires = "deterministic")]
    mips: Option<Mips>,
    /// Run on this kernel an experiment that is meant for the guest of `pollux vm`
    #[arg(long, conflicts_with = "guest")]
    here: bool,
    /// Run in the guest of `pollux vm`, which has /dev/poll, an experiment that is meant for this
    /// kernel
    #[arg(long)]
    guest: bool,
}

/// The maximum value of --blocks; each block is a pass over all cells.
const BLOCKS_MAX: i64 = 1_000;

/// The exit status after Ctrl-C: 128 + SIGINT, as in shells.
const INTERRUPTED: u8 = 130;

/// The exit status if no run is valid.
const NO_VALID_RUN: u8 = 4;

/// Runs the command.
pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    match args.command {
        Subcommand::List => list(),
        Subcommand::Run(args) => measure(&args),
        Subcommand::WaitCost(args) => {
            let question = WaitCost {
                mechanism: args.mechanism,
                watched: args.watched,
                ready: args.ready,
                changes: args.changes,
                duration: args.duration,
                waits: args.waits,
                kernel_calls: args.kernel_calls,
                seed: args.seed,
                cpu: args.pin,
            };
            question.check().map_err(|error| UsageError::new(format!("{error:#}")))?;
            let document = wait_cost::measure(&question)?;
            print_all(&format!("{document}\n"))?;
            Ok(ExitCode::SUCCESS)
        }
        Subcommand::Floor(args) => floor::run(&args),
        Subcommand::Advise { idle, open, rate, time } => {
            advise::run(Question { idle, open, rate_rps: rate, seconds: time.as_secs_f64() })
        }
        Subcommand::Law { directory, rest, predict, diagrams } => {
            let mut outcome = journal::read_judged(&directory)?;
            if let Some(rest) = rest {
                fit::add(&mut outcome, journal::read_judged(&rest)?)?;
            }
            let fits = fit::of(&outcome, fit::SEED);
            anyhow::ensure!(
                !fits.is_empty(),
                "{}: too few cells to fit the law: a mechanism needs cells that differ in their waits per \
                 request, for example at several rates",
                directory.display()
            );
            if let Some(directory) = diagrams {
                std::fs::create_dir_all(&directory)
                    .with_context(|| directory.display().to_string())?;
                for fit in &fits {
                    let file = directory.join(format!("phase-{}.svg", fit.variant));
                    std::fs::write(&file, diagram::draw(fit))
                        .with_context(|| file.display().to_string())?;
                }
            }
            let text = if predict { fit::predictions(&fits)? + "\n" } else { fit::text(&fits) };
            print_all(&text)?;
            Ok(ExitCode::SUCCESS)
        }
        Subcommand::Compare { a, b, csv } => compare(&a, &b, csv.as_deref()),
        Subcommand::Report { directories, out } if directories.len() > 1 || out.is_some() => {
            overview(&directories, &out.unwrap_or_else(|| PathBuf::from(".")))
        }
        Subcommand::Report { directories, .. } => {
            let directory = &directories[0];
            let outcome = journal::read_judged(directory)?;
            if archive::is_packed(directory) {
                report::keep(&outcome, directory)?;
            } else {
                outcome.write(directory)?;
            }
            let page = report::write(&outcome, directory)?;
            print_all(&format!("{}\n", page.display()))?;
            Ok(ExitCode::SUCCESS)
        }
        Subcommand::Archive { directory, to } => {
            let outcome = journal::read_judged(&directory)?;
            report::keep(&outcome, &to)?;
            print_all(&format!("{}\n", to.join(archive::PAGE).display()))?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn compare(a: &Path, b: &Path, csv: Option<&Path>) -> anyhow::Result<ExitCode> {
    let (first, second) = (journal::read_judged(a)?, journal::read_judged(b)?);
    let rows = compare::rows(&first, &second)?;
    if let Some(path) = csv {
        fs::write(path, compare::csv(&rows)).with_context(|| path.display().to_string())?;
    }
    let head = format!("A  {}\nB  {}\n", a.display(), b.display());
    let width = Some(terminal::width());
    let conditions = compare::conditions(&first, &second);
    print_all(&[head, conditions, compare::text(&first, &rows, width)].join("\n"))?;
    Ok(ExitCode::SUCCESS)
}

/// Writes the page about all runs in `directories`, as HTML and as Markdown for the repository.
fn overview(directories: &[PathBuf], out: &Path) -> anyhow::Result<ExitCode> {
    fs::create_dir_all(out).with_context(|| out.display().to_string())?;
    let mut runs = Vec::new();
    for given in directories {
        match journal::read_judged(given) {
            Ok(outcome) => {
                let directory = overview::link(given, out)?;
                runs.push(overview::Publication { given: given.clone(), directory, outcome });
            }
            // `docs/runs` also holds results of benchmarks, which this page does not show.
            Err(error) => say(format_args!("left out: {error:#}")),
        }
    }
    anyhow::ensure!(
        !runs.is_empty(),
        "none of these directories holds a result of `pollux lab run`"
    );
    let register = Register::beside(directories)?;
    let mut files = vec![
        (overview::FILE, overview::page(&runs, &register)?),
        (overview::MARKDOWN, overview::markdown(&runs, &register)?),
    ];
    match results::markdown(&runs, &register) {
        Ok((page, readings)) => {
            files.extend([(results::FILE, page), (results::READINGS, readings)]);
            fs::create_dir_all(out.join("results")).with_context(|| out.display().to_string())?;
        }
        // The rows of this page name published runs, so it cannot be written for other runs.
        Err(error) => say(format_args!("no {}: {error:#}", results::FILE)),
    }
    for (file, text) in files {
        let path = out.join(file);
        fs::write(&path, text).with_context(|| path.display().to_string())?;
        print_all(&format!("{}\n", path.display()))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn list() -> anyhow::Result<ExitCode> {
    let experiments: Vec<Experiment> =
        experiment::ids().map(experiment::find).collect::<anyhow::Result<_>>()?;
    let width = terminal::width();
    let mut text = String::new();
    for experiment in experiments {
        let claims: Vec<&str> = experiment.claim.iter().map(|claim| claim.id.as_str()).collect();
        text.push_str(&format!("{}\n", experiment.id));
        for part in [
            experiment.title.clone(),
            format!("after {}", experiment.source),
            format!("judges {}", claims.join(", ")),
            times(&experiment)?,
        ] {
            text.push_str(&terminal::wrap(&part, width, "    "));
            text.push('\n');
        }
    }
    print_all(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// Returns how long the quick and the full form of an experiment take, on the host and in a guest.
fn times(experiment: &Experiment) -> anyhow::Result<String> {
    let both = |machine| -> anyhow::Result<String> {
        let time = |quick| -> anyhow::Result<String> {
            Ok(format::seconds(experiment.form(Form { machine, quick })?.budget.seconds))
        };
        Ok(format!("--quick {}, full {}", time(true)?, time(false)?))
    };
    let (here, there) = (both(Machine::Host)?, both(Machine::Guest)?);
    Ok(match experiment.place {
        Machine::Host if experiment.guest.is_empty() => here,
        Machine::Host => format!("{here}; with --guest {there} and the boot"),
        Machine::Guest | Machine::DeterministicGuest => format!("in a guest: {there} and the boot"),
    })
}

/// Returns the commit that this program was built from, if the build recorded it.
fn built() -> Option<&'static str> {
    environment::commit(env!("POLLUX_BUILD"))
}

fn cells(text: &str) -> Result<Cells, String> {
    match text {
        "fit" => Ok(Cells::Fit),
        "rest" => Ok(Cells::Rest),
        _ => Err("the value must be fit or rest".into()),
    }
}

fn measure(args: &RunArgs) -> anyhow::Result<ExitCode> {
    let experiment = experiment::find(&args.experiment)?;
    let directory = match args.out.as_ref().or(args.resume.as_ref()) {
        Some(directory) => directory.clone(),
        None => run::default_directory(&experiment.id),
    };
    if let Some(out) = &args.out {
        earlier::refuse(out)?;
    }
    if args.paper_rates {
        experiment.paper_rates().map_err(|error| UsageError::new(format!("{error:#}")))?;
    }
    let wants_guest =
        args.guest || args.deterministic || (experiment.place != Machine::Host && !args.here);
    let machine = match environment::guest() {
        Some(_) if args.deterministic => Machine::DeterministicGuest,
        Some(_) => Machine::Guest,
        None if wants_guest => return guest::run(args, &experiment),
        None => Machine::Host,
    };
    let mut experiment = experiment.form(Form { machine, quick: args.quick })?;
    experiment.cells = args.cells.unwrap_or(experiment.cells);
    let resume = args.resume.as_deref().map(journal::read).transpose()?;
    if let Some(earlier) = &resume {
        // The earlier run may have had `--time`; the remaining blocks get the same budget.
        experiment.budget = earlier.experiment.budget;
    } else {
        let budget = &mut experiment.budget;
        budget.seconds = args.time.map_or(budget.seconds, |time| time.as_secs_f64());
        budget.blocks = args.blocks.unwrap_or(budget.blocks);
    }
    let rates = match &args.rates_of {
        Some(earlier) => {
            Some(run::rates::drawn(&Outcome::read(earlier)?, &experiment, args.quick)?)
        }
        None => None,
    };
    // Created before the measurement, because a run that cannot be written would be lost.
    fs::create_dir_all(&directory).with_context(|| directory.display().to_string())?;
    let executable = Executable::of_this_process()?;
    let settings = Settings {
        experiment: &experiment,
        quick: args.quick,
        paper_rates: args.paper_rates,
        rates,
        seed: args.seed,
        programs: Programs::of(executable.path()),
        interrupt: Interrupt::on_signals().context("cannot catch Ctrl-C")?,
        progress: Progress::shown(terminal::shows_progress()),
        keep_in: Some(&directory),
        resume,
        built: built(),
    };
    let outcome = run::run(&settings);
    settings.progress.finish();
    let outcome = outcome?;
    outcome.write(&directory)?;
    journal::end(&directory);
    let page = report::write(&outcome, &directory)?;
    if args.json {
        print_all(&format!("{}\n", serde_json::to_string_pretty(&outcome)?))?;
    } else {
        show(&outcome, &directory, &page)?;
    }
    let has_valid_run = outcome.runs.iter().any(|run| run.status == Status::Valid);
    if !has_valid_run {
        say(format_args!("{}", report::in_words(&outcome)));
    }
    Ok(exit_code(outcome.interrupted, has_valid_run))
}

/// Returns the exit status of a measurement.
fn exit_code(is_interrupted: bool, has_valid_run: bool) -> ExitCode {
    match (is_interrupted, has_valid_run) {
        (true, _) => ExitCode::from(INTERRUPTED),
        (false, false) => ExitCode::from(NO_VALID_RUN),
        (false, true) => ExitCode::SUCCESS,
    }
}

fn show(outcome: &Outcome, directory: &Path, page: &Path) -> anyhow::Result<()> {
    let width = terminal::width();
    let mut parts = vec![
        report::terminal::tables(outcome, width),
        report::terminal::claims(outcome, width),
        report::terminal::notes(outcome, width),
    ];
    // A sealed guest does not know where the host will put its results; the host has printed the path.
    if directory != Path::new(guest::RESULTS) || outcome.environment.guest_mips.is_none() {
        let data = directory.join(archive::FILE);
        parts.push(format!("\nraw data  {}\nreport    {}\n", data.display(), page.display()));
    }
    print_all(&parts.concat())
}
