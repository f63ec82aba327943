//! One run: a server, its idle connections, a load (or several, one after the other); everything
//! ended at its end.

use super::{interrupt::Interrupt, process::Process, server::Server, site::Site};
use crate::{
    experiment::{Experiment, Flags, IDLE, Subject, Value, Variant, arguments},
    measure::{self, Raw},
    plan::Cell,
};
use anyhow::Context as _;
use pollux_event::MechanismSpec;
use std::{
    ffi::OsString,
    time::{Duration, Instant},
};

/// How much longer than its window a load may take: its own time-outs, the merging of histograms.
const LOAD_GRACE: Duration = Duration::from_secs(40);
/// How long Ctrl-C may go unnoticed.
const INTERRUPT_GRAIN: Duration = Duration::from_millis(20);
/// The generator's exit code for "I was the bottleneck".
const EXIT_INVALID: i32 = 3;

/// The programs that a run starts: executable and first arguments.
#[derive(Clone, Debug)]
pub struct Programs {
    /// `pollux serve`.
    pub serve: Vec<OsString>,
    /// `pollux load`.
    pub load: Vec<OsString>,
    /// `pollux idle`.
    pub idle: Vec<OsString>,
    /// `pollux lab wait-cost`.
    pub wait: Vec<OsString>,
}

impl Programs {
    /// All of them from the executable that runs now.
    ///
    /// # Errors
    /// When its path is not known.
    pub fn of_this_executable() -> std::io::Result<Self> {
        let executable = std::env::current_exe()?.into_os_string();
        let command = |words: &[&str]| -> Vec<OsString> {
            let words = words.iter().map(OsString::from);
            std::iter::once(executable.clone()).chain(words).collect()
        };
        Ok(Self {
            serve: command(&["serve"]),
            load: command(&["load"]),
            idle: command(&["idle"]),
            wait: command(&["lab", "wait-cost"]),
        })
    }
}

/// Which CPUs the two sides are pinned to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Cpus {
    /// The server's.
    pub server: u32,
    /// The generator's and the idle holder's.
    pub generator: u32,
}

/// How the load is driven.
#[derive(Clone, Copy, Debug)]
pub enum Drive {
    /// At the cell's rate, if it has one; else as the experiment's flags say.
    AsPlanned,
    /// At so many requests a second: a phase.
    Rate(f64),
    /// In a closed loop of so many connections, to find the saturation.
    Saturate(u32),
}

/// One load on a server.
#[derive(Clone, Copy, Debug)]
pub struct Step<'a> {
    /// What is measured.
    pub cell: &'a Cell,
    /// How.
    pub drive: Drive,
    /// For how many seconds.
    pub window_s: f64,
}

/// The server's figures at an instant.
struct Reading {
    at: Instant,
    cpu: measure::CpuTime,
    statistics: serde_json::Value,
}

/// Everything that the runs of an experiment share.
#[derive(Debug)]
pub struct Bench<'a> {
    /// The experiment.
    pub experiment: &'a Experiment,
    /// The programs.
    pub programs: &'a Programs,
    /// Where they run.
    pub cpus: Cpus,
    /// What is served, if anything is.
    pub site: Option<&'a Site>,
    /// Ctrl-C.
    pub interrupt: &'a Interrupt,
}

/// What a run left.
#[derive(Debug, Default)]
pub struct Trial {
    /// Seconds from the start of the experiment.
    pub started_s: f64,
    /// The measured window that was asked for.
    pub window_s: f64,
    /// The raw data.
    pub raw: Raw,
    /// The mechanism that ran, as the server said.
    pub mechanism: String,
    /// The command lines.
    pub commands: Vec<String>,
}

impl Bench<'_> {
    /// Measures the `steps` on one server, one after the other without a gap: each load but the
    /// last is left to its last replies when it has sent its last request, and the next begins.
    /// What was found before an error stays in `trials`, one for each step.
    ///
    /// # Errors
    /// When the server, the idle holder or a generator fails; when another mechanism runs than
    /// was asked for; on Ctrl-C.
    pub fn measure(
        &self,
        variant: &Variant,
        steps: &[Step<'_>],
        seed: u64,
        trials: &mut [Trial],
    ) -> anyhow::Result<()> {
        let first = steps.first().context("a run has at least one step")?;
        if self.experiment.subject == Subject::Wait {
            return self.measure_wait(variant, first.cell, first.window_s, seed, &mut trials[0]);
        }
        let site = self.site.context("an experiment with a server has a site")?;
        let server = Server::start(&self.serve(site, variant, first.cell), self.interrupt)?;
        for trial in &mut *trials {
            trial.commands.push(server.command().to_owned());
            trial.mechanism.clone_from(&server.mechanism);
            trial.raw.listening = server.listening.clone();
        }
        same_mechanism(variant, &server.mechanism)?;
        let _holder = self.hold_idle(&server, first.cell, trials)?;

        let url = format!("http://{}{}", server.address, site.path());
        let statistics = server.statistics(self.interrupt)?;
        let cpu = measure::cpu_time(server.pid())?;
        let mut earlier = Reading { at: Instant::now(), cpu, statistics };
        let mut generators = Vec::with_capacity(steps.len());
        for (step, trial) in steps.iter().zip(&mut *trials) {
            let load = self.load(url.clone(), step.cell, step.drive, step.window_s, seed);
            let mut generator = Process::spawn("the generator", &load)?;
            trial.commands.push(generator.command().to_owned());
            if generators.len() + 1 < steps.len() {
                self.sleep_until(earlier.at + Duration::from_secs_f64(step.window_s))?;
            } else {
                trial.raw.load = self.result_of(&mut generator, step.window_s)?;
            }
            generators.push(generator);
            let (at, cpu) = (Instant::now(), measure::cpu_time(server.pid())?);
            let later = Reading { at, cpu, statistics: server.statistics(self.interrupt)? };
            trial.raw.wall_ns = (later.at - earlier.at).as_nanos() as u64;
            trial.raw.cpu = later.cpu - earlier.cpu;
            trial.raw.before = std::mem::replace(&mut earlier, later).statistics;
            trial.raw.after = earlier.statistics.clone();
        }
        generators.pop();
        for ((generator, trial), step) in generators.iter_mut().zip(trials).zip(steps) {
            trial.raw.load = self.result_of(generator, step.window_s)?;
        }
        Ok(())
    }

    /// What the generator wrote at its end.
    fn result_of(
        &self,
        generator: &mut Process,
        window_s: f64,
    ) -> anyhow::Result<serde_json::Value> {
        let limit = Duration::from_secs_f64(window_s) + LOAD_GRACE;
        let (status, text) = generator.output(limit, self.interrupt)?;
        if !status.success() && status.code() != Some(EXIT_INVALID) {
            generator.drain_stderr();
            anyhow::bail!("{}", generator.complaint(&format!("failed ({status})")));
        }
        serde_json::from_str(&text)
            .with_context(|| generator.complaint("did not write a JSON document"))
    }

    fn sleep_until(&self, instant: Instant) -> anyhow::Result<()> {
        loop {
            self.interrupt.check()?;
            let left = instant.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            std::thread::sleep(left.min(INTERRUPT_GRAIN));
        }
    }

    /// Measures the wait of the mechanism alone.
    fn measure_wait(
        &self,
        variant: &Variant,
        cell: &Cell,
        window_s: f64,
        seed: u64,
        trial: &mut Trial,
    ) -> anyhow::Result<()> {
        let mut flags = self.experiment.wait.clone();
        for axis in &self.experiment.axis {
            if let Some(flag) = &axis.wait_flag {
                flags.insert(flag.clone(), cell.point[&axis.name].clone());
            }
        }
        flags.insert("mechanism".into(), Value::Word(variant.mechanism.clone()));
        flags.insert("duration".into(), Value::Word(format!("{window_s}s")));
        flags.insert("seed".into(), Value::Word(seed.to_string()));
        flags.insert("pin".into(), Value::Number(f64::from(self.cpus.server)));
        let program = with_flags(&self.programs.wait, &flags);
        let mut process = Process::spawn("the measurement", &program)?;
        trial.commands.push(process.command().to_owned());
        let limit = Duration::from_secs_f64(window_s) + LOAD_GRACE;
        let (status, text) = process.output(limit, self.interrupt)?;
        if !status.success() {
            process.drain_stderr();
            anyhow::bail!("{}", process.complaint(&format!("failed ({status})")));
        }
        trial.raw.load = serde_json::from_str(&text)
            .with_context(|| process.complaint("did not write a JSON document"))?;
        let ran = trial.raw.load["mechanism_spec"].as_str().unwrap_or_default();
        ran.clone_into(&mut trial.mechanism);
        same_mechanism(variant, &trial.mechanism)
    }

    fn serve(&self, site: &Site, variant: &Variant, cell: &Cell) -> Vec<OsString> {
        let mut flags: Flags = self.experiment.server.clone();
        flags.extend(variant.server.clone());
        for axis in &self.experiment.axis {
            if let Some(flag) = &axis.server_flag {
                flags.insert(flag.clone(), cell.point[&axis.name].clone());
            }
        }
        flags.insert("mechanism".into(), Value::Word(variant.mechanism.clone()));
        flags.insert("listen".into(), Value::Word("127.0.0.1:0".into()));
        flags.insert("pin".into(), Value::Number(f64::from(self.cpus.server)));
        flags.insert("json".into(), Value::Flag(true));
        let mut program = with_flags(&self.programs.serve, &flags);
        program.push(site.root().into());
        program
    }

    fn load(
        &self,
        url: String,
        cell: &Cell,
        drive: Drive,
        window_s: f64,
        seed: u64,
    ) -> Vec<OsString> {
        let mut flags: Flags = self.experiment.load.clone();
        for axis in &self.experiment.axis {
            if let Some(flag) = &axis.load_flag {
                flags.insert(flag.clone(), cell.point[&axis.name].clone());
            }
        }
        if let Some(urls) = self.site.and_then(Site::urls) {
            flags.insert("url-file".into(), Value::Word(urls.display().to_string()));
        }
        match drive {
            Drive::Saturate(connections) => {
                // A closed loop has no sessions that start by a schedule, but as many requests on
                // each connection.
                if let Some(requests) = flags.remove("session-requests") {
                    flags.remove("think-time");
                    flags.insert("requests-per-connection".into(), requests);
                }
                flags.insert("connections".into(), Value::Number(f64::from(connections)));
            }
            Drive::Rate(rps) => {
                flags.insert("rate".into(), Value::Number(rps));
            }
            Drive::AsPlanned => {
                if let Some(rate) = cell.point.get(crate::experiment::RATE) {
                    flags.insert("rate".into(), rate.clone());
                }
            }
        }
        flags.insert("duration".into(), Value::Word(format!("{window_s}s")));
        flags.insert("seed".into(), Value::Word(seed.to_string()));
        flags.insert("pin".into(), Value::Number(f64::from(self.cpus.generator)));
        flags.insert("json".into(), Value::Flag(true));
        let mut program = with_flags(&self.programs.load, &flags);
        program.push(url.into());
        program
    }

    /// Opens the cell's idle connections and waits until the server has them all.
    fn hold_idle(
        &self,
        server: &Server,
        cell: &Cell,
        trials: &mut [Trial],
    ) -> anyhow::Result<Option<Process>> {
        let wanted = cell.point.get(IDLE).and_then(Value::number).unwrap_or(0.0) as u64;
        if wanted == 0 {
            return Ok(None);
        }
        let mut flags = self.experiment.idle.clone();
        flags.insert("connections".into(), Value::Number(wanted as f64));
        flags.insert("pin".into(), Value::Number(f64::from(self.cpus.generator)));
        flags.insert("json".into(), Value::Flag(true));
        let mut program = with_flags(&self.programs.idle, &flags);
        program.push(server.address.clone().into());
        let mut holder = Process::spawn("the idle holder", &program)?;
        for trial in trials {
            trial.commands.push(holder.command().to_owned());
        }
        server.await_open(wanted, &mut holder, self.interrupt)?;
        Ok(Some(holder))
    }
}

/// # Errors
/// When another mechanism ran than was asked for.
fn same_mechanism(variant: &Variant, ran: &str) -> anyhow::Result<()> {
    // In the order in which a spec prints its options.
    let wanted = variant.mechanism.parse::<MechanismSpec>()?.to_string();
    anyhow::ensure!(ran == wanted, "asked for mechanism {wanted}, but {ran} runs");
    Ok(())
}

fn with_flags(program: &[OsString], flags: &Flags) -> Vec<OsString> {
    program.iter().cloned().chain(arguments(flags).into_iter().map(OsString::from)).collect()
}
