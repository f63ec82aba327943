//! `pollux lab run` in the guest of `pollux vm`.

use super::RunArgs;
use crate::{message::say, usage::UsageError};
use anyhow::Context as _;
use pollux_lab::{
    environment,
    experiment::{Cells, Experiment, Form, Machine, Subject},
    network,
    run::{self, journal, process, redis},
};
use pollux_vm::{Mips, REPORT_PORT};
use std::{
    os::unix::process::CommandExt,
    path::Path,
    process::{Command, ExitCode},
};

/// The factor by which an experiment may exceed its budget in a guest: one pass over all cells is
/// always made, and an emulated machine is slow.
const GUEST_PATIENCE: f64 = 4.0;
/// The seconds for the guest's boot, including the build of the module.
const GUEST_BOOT_S: f64 = 300.0;

/// The paths in a sealed guest: this program, an experiment of the user's own, and the results.
const PROGRAM: &str = "/bin/pollux";
const EXPERIMENT: &str = "/experiment.toml";
pub(super) const RESULTS: &str = "/results";
/// The default time after which a sealed guest is stopped, in seconds of the host.
const SEALED_S: f64 = 4.0 * 3600.0;

/// The memory of a sealed guest with Redis, whose server may have a thread and two connections for each of 15,000
/// clients.
const REDIS_MEMORY: &str = "4G";

/// Runs the experiment with this program in a guest, which either uses this file tree or is sealed.
pub(super) fn run(args: &RunArgs, experiment: &Experiment) -> anyhow::Result<ExitCode> {
    let program = std::env::current_exe().context("the path of this program")?;
    let mut command = command(&program, args, experiment)?;
    // `pollux vm` replaces this process and so receives the signals: only it can end the guest.
    Err(command.exec()).with_context(|| program.display().to_string())
}

/// Returns the command line of `pollux vm` that runs the experiment.
fn command(program: &Path, args: &RunArgs, experiment: &Experiment) -> anyhow::Result<Command> {
    let directory = args.out.clone().unwrap_or_else(|| run::default_directory(&experiment.id));
    let directory = std::path::absolute(&directory)?;
    let mut command = Command::new(program);
    command.arg("vm");
    let flags =
        [("--quick", args.quick), ("--paper-rates", args.paper_rates), ("--json", args.json)];
    let mut inner = vec!["lab".to_owned(), "run".to_owned()];
    if args.deterministic || experiment.place == Machine::DeterministicGuest {
        if args.resume.is_some() {
            return Err(UsageError::new(
                "a sealed guest cannot read the results of an earlier run: leave --resume out",
            )
            .into());
        }
        let mips = args.mips.unwrap_or(match experiment.subject {
            Subject::Server => Mips::PAPERS,
            Subject::Wait => Mips::NANOSECOND,
        });
        command.args(["--deterministic", "--mips", &mips.to_string()]);
        let patience = args.time.map_or(SEALED_S, |time| time.as_secs_f64());
        command.arg("--timeout").arg(format!("{patience:.0}"));
        command.arg("--carry").arg(format!("{}:{PROGRAM}", program.display()));
        command.args(["--carry", "/etc/os-release"]);
        command.args(needs(experiment)?);
        let is_file = args.experiment.ends_with(".toml");
        if is_file {
            command.arg("--carry").arg(format!("{}:{EXPERIMENT}", args.experiment));
        }
        command.arg("--fetch").arg(format!("{RESULTS}:{}", directory.display()));
        // The finished runs are there if the guest is stopped, and while it runs.
        command.arg("--report").arg(directory.join(journal::FILE));
        command.arg("--env").arg(format!("{}={REPORT_PORT}", journal::PORT));
        let revision = environment::revision(super::built()).unwrap_or_default();
        command.arg("--env").arg(format!("{}={revision}", environment::REVISION));
        command.args(["--", PROGRAM]);
        inner.push(if is_file { EXPERIMENT } else { &args.experiment }.to_owned());
        inner.extend(["--deterministic", "--out", RESULTS].map(str::to_owned));
        say(format_args!(
            "pollux lab: a sealed guest runs the experiment, at most for {patience:.0} s; `pollux lab report \
             {}` shows the runs that are finished",
            directory.display()
        ));
    } else {
        // The budget counts only the time inside the guest; boot and shutdown need more. A guest
        // that hangs is killed.
        let form = Form { machine: Machine::Guest, quick: args.quick };
        let planned = experiment.form(form)?.budget.seconds;
        let (seconds, where_to) = match &args.resume {
            // A continued run keeps the budget of the earlier run.
            Some(earlier) => {
                let seconds = journal::read(earlier)?.experiment.budget.seconds;
                let earlier = std::path::absolute(earlier)?.display().to_string();
                (seconds, vec!["--resume".to_owned(), earlier])
            }
            None => {
                let seconds = args.time.map_or(planned, |time| time.as_secs_f64());
                let [time, out] = ["--time", "--out"].map(str::to_owned);
                let directory = directory.display().to_string();
                (seconds, vec![time, format!("{seconds}"), out, directory])
            }
        };
        let patience = seconds.max(planned) * GUEST_PATIENCE + GUEST_BOOT_S;
        command.arg("--timeout").arg(format!("{patience:.0}")).arg("--").arg(program);
        inner.extend([args.experiment.clone(), "--here".to_owned()]);
        inner.extend(where_to);
        if let Some(earlier) = &args.rates_of {
            let earlier = std::path::absolute(earlier)?;
            inner.extend(["--rates-of".to_owned(), earlier.display().to_string()]);
        }
    }
    let part = args.cells.and_then(|cells| match cells {
        Cells::All => None,
        Cells::Fit => Some("fit"),
        Cells::Rest => Some("rest"),
    });
    inner.extend(part.iter().flat_map(|part| ["--cells", part]).map(str::to_owned));
    inner.extend(flags.iter().filter(|(_, on)| *on).map(|(flag, _)| (*flag).to_owned()));
    inner.extend(["--seed".to_owned(), args.seed.to_string()]);
    inner.extend(args.blocks.iter().flat_map(|blocks| ["--blocks".to_owned(), blocks.to_string()]));
    command.args(inner);
    Ok(command)
}

/// Returns the arguments of `pollux vm` for what an experiment needs in a sealed guest beside this program.
fn needs(experiment: &Experiment) -> anyhow::Result<Vec<String>> {
    let carry =
        |file: &Path, name: &str| ["--carry".to_owned(), format!("{}:/bin/{name}", file.display())];
    let mut words = Vec::new();
    if experiment.clients.is_some() {
        // Clients are put far away by tc and the kernel's netem.
        words.extend(carry(&network::find_tc()?, "tc"));
        words.extend(["--kernel-module", "sch_netem"].map(str::to_owned));
    }
    if experiment.redis.is_some() {
        words.extend(carry(&redis::program("redis-server")?, "redis-server"));
        words.extend(carry(&process::find_taskset()?, "taskset"));
        if experiment.variant.iter().any(|variant| variant.redis_benchmark.is_some()) {
            words.extend(carry(&redis::program("redis-benchmark")?, "redis-benchmark"));
        }
        words.extend(["--memory".to_owned(), REDIS_MEMORY.to_owned()]);
    }
    Ok(words)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use pollux_lab::{experiment, result::Outcome};

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        run: RunArgs,
    }

    fn arguments(line: &[&str]) -> anyhow::Result<Vec<String>> {
        let line = [&["run"][..], line].concat();
        let args = Cli::try_parse_from(line)?.run;
        let experiment = experiment::find(&args.experiment)?;
        let command = command(Path::new("/bin/pollux"), &args, &experiment)?;
        Ok(command.get_args().map(|word| word.to_string_lossy().into_owned()).collect())
    }

    #[test]
    fn the_flags_reach_the_guest_and_a_continued_run_keeps_its_budget() {
        let directory = tempfile::tempdir().unwrap();
        let earlier = directory.path().to_str().unwrap();
        let guest = Form { machine: Machine::Guest, quick: false };
        let mut experiment = experiment::find("mail-hints").unwrap().form(guest).unwrap();
        experiment.budget.seconds = 5_000.0;
        let begun = Outcome { interrupted: true, ..Outcome::new(experiment) };
        begun.write(directory.path()).unwrap();
        let words = arguments(&["mail-hints", "--resume", earlier]).unwrap();
        assert!(words.windows(2).any(|pair| pair == ["--resume", earlier]), "{words:?}");
        assert!(words.iter().all(|word| word != "--out" && word != "--time"), "{words:?}");
        let patience = 5_000.0 * GUEST_PATIENCE + GUEST_BOOT_S;
        let timeout = ["--timeout".to_owned(), format!("{patience:.0}")];
        assert!(words.windows(2).any(|pair| pair == timeout), "{words:?}");

        let words = arguments(&["mail-hints", "--time", "60s"]).unwrap();
        assert!(words.windows(2).any(|pair| pair == ["--time", "60"]), "{words:?}");
        assert!(words.iter().any(|word| word == "--out"), "{words:?}");

        // The flag is passed on to both kinds of guest.
        for flags in [["--deterministic"].as_slice(), &["--guest"]] {
            let words = arguments(&[&["mail-hints", "--blocks", "24"], flags].concat()).unwrap();
            assert!(words.windows(2).any(|pair| pair == ["--blocks", "24"]), "{words:?}");
        }

        for flags in [["--deterministic"].as_slice(), &["--guest"]] {
            let words = arguments(&[&["batching", "--cells", "fit"], flags].concat()).unwrap();
            assert!(words.windows(2).any(|pair| pair == ["--cells", "fit"]), "{words:?}");
        }

        // A sealed guest gets the programs that an experiment needs, and no others.
        let programs = ["tc", "redis-server", "redis-benchmark"];
        for (experiment, wanted) in [
            ("mail-hints", &[][..]),
            ("gammo-wan", &["tc"]),
            ("zerohttpd-table", &["redis-server"]),
            ("guestbook-redis", &["redis-server", "redis-benchmark"]),
        ] {
            let words = arguments(&[experiment, "--deterministic"]).unwrap();
            let has = |program: &&str| {
                let end = format!(":/bin/{program}");
                words.iter().any(|word| word.ends_with(&end))
            };
            let carried: Vec<&str> = programs.into_iter().filter(has).collect();
            assert_eq!(carried, wanted, "{words:?}");
            let netem = ["--kernel-module".to_owned(), "sch_netem".to_owned()];
            let has_netem = words.windows(2).any(|pair| pair == netem);
            assert_eq!(has_netem, experiment == "gammo-wan", "{words:?}");
        }

        // The experiment itself requires a sealed guest.
        let refused = arguments(&["provos-ablation", "--resume", earlier]).unwrap_err();
        assert!(refused.is::<UsageError>(), "{refused:#}");
        assert!(refused.to_string().contains("leave --resume out"), "{refused:#}");
    }
}
