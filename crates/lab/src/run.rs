//! Runs an experiment.

mod blocks;
mod cpus;
pub mod executable;
mod ground;
pub mod interrupt;
pub mod journal;
pub mod limits;
pub mod process;
pub mod progress;
pub mod rates;
pub mod redis;
mod resume;
pub mod server;
pub mod site;
pub mod trial;
mod variants;
mod warm_up;

use crate::{
    claims,
    environment::{Cpus, Environment},
    experiment::{
        CLIENTS, Cells, Experiment, PHASE, Phase, RATE, RelativeTo, SaturationOf, Subject, Variant,
    },
    law::fit,
    plan::{self, Cell, Point},
    result::{Look, Outcome, Run, Saturation, Status},
    statistics::sequential,
    steady,
};
use anyhow::Context as _;
use blocks::Blocks;
use interrupt::{Interrupt, Interruption};
use journal::Journal;
use pollux_event::{Capabilities, MechanismSpec, registry};
use process::Scheduling;
use progress::Progress;
use server::HoldShortfall;
use site::Site;
use std::{path::Path, time::Instant};
use trial::{Bench, Drive, LoadPhase, Programs, Trial};
pub(crate) use variants::variants;
#[cfg(test)]
pub(crate) use variants::what_it_is;

/// The number of blocks that the windows are chosen for: the windows are so long that this many blocks fit
/// into the time, if the experiment has as many.
const AIMED_AT: u32 = 10;
/// The shortest warm-up, in experiments that have one: the connections of the first requests open in this
/// time.
const LEAST_WARMUP_S: f64 = 0.1;
/// The part of the budget that is reserved for the report.
const REPORT_S: f64 = 1.5;
/// The share of the time that is reserved for repeating runs.
const SPARE: f64 = 0.1;
/// More time than any experiment takes.
const UNLIMITED_S: f64 = 1e9;
/// The assumed cost of a run beside its window, before any run was made.
const FIRST_OVERHEAD_S: f64 = 0.3;

/// The experiment to run, and the settings of the run.
#[derive(Debug)]
pub struct Settings<'a> {
    /// The experiment, in the form in which it is run.
    pub experiment: &'a Experiment,
    /// Whether this is a quick form; it is written into the result.
    pub quick: bool,
    /// Whether the paper's own rates are used.
    pub paper_rates: bool,
    /// Rates of an earlier run: if given, nothing is probed.
    pub rates: Option<rates::Rates>,
    /// The seed of all random choices.
    pub seed: u64,
    /// The programs.
    pub programs: Programs,
    /// Ctrl-C.
    pub interrupt: Interrupt,
    /// The progress bar.
    pub progress: Progress,
    /// The directory into which each run is written when it ends; if absent, runs stay in memory until the
    /// end.
    pub keep_in: Option<&'a Path>,
    /// The earlier results from which to continue ([`journal::read`]).
    pub resume: Option<Outcome>,
    /// The commit that this program was built from, if known.
    pub built: Option<&'a str>,
}

/// Runs the experiment. An interrupt is not an error: the outcome contains the measurements so far and is
/// marked as interrupted.
///
/// # Errors
/// When nothing could be measured: no variant is available, no saturation could be found, or the paper has
/// no rates of its own.
pub fn run(settings: &Settings<'_>) -> anyhow::Result<Outcome> {
    let mut session = Session::new(settings)?;
    match session.measure() {
        Err(error) if error.is::<Interruption>() => session.outcome.interrupted = true,
        other => other?,
    }
    let shared = cpus::shared_cpu(&session.outcome);
    if let (Some(note), None) = (shared, session.outcome.environment.guest_mips) {
        session.note(note);
    }
    if let Some(note) = trial::baseline::note(&session.outcome) {
        session.note(note);
    }
    let mut outcome = session.outcome;
    outcome.elapsed_s = session.started_at.elapsed().as_secs_f64();
    outcome.conclude();
    Ok(outcome)
}

/// A running experiment.
struct Session<'a> {
    settings: &'a Settings<'a>,
    started_at: Instant,
    variants: Vec<Variant>,
    site: Option<Site>,
    redis: Option<redis::RedisServer>,
    cpus: Cpus,
    outcome: Outcome,
    journal: Option<Journal>,
    /// Cells (without their rate) whose connections the server cannot hold, with the server's message. They
    /// are not tried again in later blocks.
    not_held: Vec<(Cell, String)>,
    /// The total cost of the runs beside their windows, so far.
    overhead_s: f64,
    runs_made: u32,
    /// The lowest cost of a saturation probe beside its window: the estimate for the first block.
    probe_overhead_s: f64,
}

impl<'a> Session<'a> {
    fn new(settings: &'a Settings<'a>) -> anyhow::Result<Self> {
        let experiment = settings.experiment;
        let started_at = Instant::now();
        let all = variants(experiment);
        let variants =
            variants::tried(&all).with_context(|| format!("experiment {}", experiment.id))?;
        let (cpus, redis_cpu) = cpus::beside(experiment, cpus::cpus()?)?;
        let fault = |fault| {
            format!("The design of this experiment decides a verdict before the run: {fault}.")
        };
        let mut notes: Vec<String> = experiment.design_faults().into_iter().map(fault).collect();
        let receive_cpu = ground::prepare(experiment, cpus, &mut notes)?;
        // The environment is read after the preparation, because a network namespace has its own sysctls.
        let environment = Environment { receive_cpu, ..Environment::look(cpus, settings.built) };
        notes.extend(ground::of_guest(experiment, &environment));
        if cpus.server == cpus.generator
            && redis_cpu.is_none()
            && experiment.subject == Subject::Server
            && environment.guest_mips.is_none()
        {
            notes.push(
                "Only one CPU is available: the server and the generator share it, so the figures are not \
                 those of a server with its own CPU."
                    .into(),
            );
        }
        let redis = experiment.redis.as_ref().zip(redis_cpu);
        let redis = redis
            .map(|(redis, cpu)| redis::RedisServer::start(redis, cpu, &settings.interrupt))
            .transpose()?;
        if let Some(redis) = &redis {
            notes.push(cpus::where_redis_runs(cpus, redis));
        }
        Ok(Self {
            outcome: Outcome {
                quick: settings.quick,
                paper_rates: settings.paper_rates,
                seed: settings.seed,
                started_at: jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
                notes,
                environment,
                variants,
                ..Outcome::new(experiment.clone())
            },
            settings,
            started_at,
            variants: all,
            site: experiment.workload.map(Site::new).transpose()?,
            redis,
            cpus,
            journal: None,
            not_held: Vec::new(),
            overhead_s: 0.0,
            runs_made: 0,
            probe_overhead_s: f64::INFINITY,
        })
    }

    fn bench(&self) -> Bench<'_> {
        Bench {
            experiment: self.settings.experiment,
            programs: &self.settings.programs,
            cpus: self.cpus,
            site: self.site.as_ref(),
            redis: self.redis.as_ref(),
            interrupt: &self.settings.interrupt,
            generator_scheduling: if self.is_deterministic() {
                Scheduling::First
            } else {
                Scheduling::Fair
            },
            mips: self.outcome.environment.guest_mips,
        }
    }

    /// Whether this runs in a guest whose clock counts instructions.
    fn is_deterministic(&self) -> bool {
        ground::is_deterministic(self.settings.experiment)
    }

    fn available(&self) -> impl Iterator<Item = &Variant> {
        self.variants
            .iter()
            .zip(&self.outcome.variants)
            .filter(|(_, outcome)| outcome.unavailable.is_none())
            .map(|(variant, _)| variant)
    }

    /// Returns the remaining time. A clock that counts instructions jumps while the guest waits for the
    /// host's files, so it cannot measure time: in such a guest every block is made.
    fn left_s(&self) -> f64 {
        if self.is_deterministic() {
            return UNLIMITED_S;
        }
        self.settings.experiment.budget.seconds - REPORT_S - self.started_at.elapsed().as_secs_f64()
    }

    /// Adds a note, unless the outcome already has it.
    fn note(&mut self, note: String) {
        if !self.outcome.notes.contains(&note) {
            self.outcome.notes.push(note);
        }
    }

    fn measure(&mut self) -> anyhow::Result<()> {
        if let Some(earlier) = &self.settings.resume {
            self.resume(earlier)?;
        }
        if !resume::has_rates(&self.outcome)
            && let Some(rates) = self.rates()?
        {
            let phases = &self.settings.experiment.phase;
            self.outcome.dimensions.push(if phases.is_empty() {
                plan::rate_dimension(&rates)
            } else {
                self.outcome.phase_rps = rates;
                plan::phase_dimension(phases)
            });
        }
        let mut cells = self.cells()?;
        for cell in &cells {
            let variant = self.variants.iter().find(|variant| variant.name == cell.variant);
            let experiment = self.settings.experiment;
            if let Some(reason) = variant.and_then(|v| experiment.left_out(v, &cell.point)) {
                self.not_held.push((without_rate(cell), reason));
            }
        }
        let budget = self.settings.experiment.budget;
        // A resumed run already has its warm-up time, and each server has its ladder.
        if self.outcome.runs.is_empty() {
            self.outcome.warmup_s = self.warm_up(&self.courses(&cells))?;
            self.seek_limits(&self.courses(&cells))?;
            cells = self.cells()?;
        }
        let courses = self.courses(&cells);
        if let Some(directory) = self.settings.keep_in {
            self.journal = Some(Journal::begin(directory, &self.outcome)?);
        }
        // All servers and blocks have windows of the same length: slow servers must not be measured for a
        // shorter time.
        let windows = self.windows_of_a_run();
        let blocks = Blocks::of(self, courses);
        let runs = (0..self.aimed_at()).map(|block| self.runnable(&blocks.courses(block)));
        let all_windows = runs.sum::<usize>() * windows;
        let for_runs = self.left_s() * (1.0 - SPARE);
        let window = self.window_before().unwrap_or_else(|| {
            plan::window_seconds(&budget, for_runs, all_windows, self.overhead() / windows as f64)
        });
        let looks = sequential::planned(budget.blocks as usize);
        for block in 0..budget.blocks {
            let open = self.runnable(&blocks.courses(block));
            let run = windows as f64 * window + self.overhead();
            if block > 0 && self.left_s() < open as f64 * run {
                self.outcome.notes.push(format!(
                    "The time of {} s ended after {block} of at most {} blocks.",
                    budget.seconds, budget.blocks
                ));
                break;
            }
            if let Some(note) = blocks.note(block) {
                self.note(note);
            }
            self.block(&blocks, block, window)?;
            let made = block + 1;
            let is_look = made < budget.blocks && looks.contains(&(made as usize));
            if is_look && self.is_settled() {
                break;
            }
        }
        Ok(())
    }

    /// Returns the number of courses whose servers can hold the connections.
    fn runnable(&self, courses: &[&[Cell]]) -> usize {
        courses.iter().filter(|course| self.not_held(&course[0]).is_none()).count()
    }

    /// Returns the measured cells: each variant at each of its points.
    fn cells(&self) -> anyhow::Result<Vec<Cell>> {
        let names: Vec<String> = self.available().map(|variant| variant.name.clone()).collect();
        let mut cells = plan::cells(names.iter().map(String::as_str), &self.outcome.dimensions)?;
        cells.retain(|cell| self.outcome.measures(&cell.variant, &cell.point));
        match self.settings.experiment.cells {
            Cells::All => {}
            Cells::Fit => cells.retain(|cell| fit::is_for_fit(fit::SEED, &cell.name())),
            Cells::Rest => cells.retain(|cell| !fit::is_for_fit(fit::SEED, &cell.name())),
        }
        Ok(cells)
    }

    /// Groups the cells that are measured on the same server process: the phases, which are the last axis,
    /// or a single cell.
    fn courses<'c>(&self, cells: &'c [Cell]) -> Vec<&'c [Cell]> {
        cells.chunks(self.outcome.phase_rps.len().max(1)).collect()
    }

    /// Returns the window of the runs that were made earlier, which all have the same length.
    fn window_before(&self) -> Option<f64> {
        let phases = &self.settings.experiment.phase;
        let fixed = |run: &&Run| {
            let name = run.cell.point.get(PHASE).map(ToString::to_string);
            phases.iter().any(|phase| Some(&phase.name) == name.as_ref() && phase.seconds.is_some())
        };
        let found = self.outcome.runs.iter().filter(|run| !fixed(run) && run.window_s > 0.0);
        found.map(|run| run.window_s).next()
    }

    /// Whether more blocks would decide no further claim.
    fn is_settled(&mut self) -> bool {
        if self.outcome.experiment.claim.is_empty() {
            return false;
        }
        // A look before the last one: its verdicts may end the run, and it spends only its own part of the
        // error.
        let look = Look { blocks: self.outcome.blocks(), is_last: false };
        self.outcome.looks.push(look);
        let settled = claims::all_settled(&self.outcome);
        if !settled {
            self.outcome.looks.pop();
        }
        settled
    }

    /// Returns how many blocks should fit into the time.
    fn aimed_at(&self) -> u32 {
        self.settings.experiment.budget.blocks.min(AIMED_AT)
    }

    /// Returns the number of windows in a run: one, or one for each phase without its own length.
    fn windows_of_a_run(&self) -> usize {
        let phases = &self.settings.experiment.phase;
        phases.iter().filter(|phase| phase.seconds.is_none()).count().max(1)
    }

    /// Measures every course once, and repeats those in which the generator was the bottleneck, as far as
    /// time allows.
    fn block(&mut self, blocks: &Blocks<'_>, block: u32, window: f64) -> anyhow::Result<()> {
        let courses = blocks.courses(block);
        let before = blocks.count(0..block);
        let later = blocks.count(block + 1..self.aimed_at());
        let windows = self.windows_of_a_run() as f64;
        let mut invalid = Vec::new();
        let is_made = |runs: &[Run], course: &[Cell]| {
            runs.iter().any(|run| run.block == block && run.cell == course[0])
        };
        for (done, &course) in courses.iter().enumerate() {
            if is_made(&self.outcome.runs, course) {
                continue;
            }
            if let Some(reason) = self.not_held(&course[0]) {
                if block == 0 {
                    let reason = reason.to_owned();
                    for cell in course {
                        let (trial, reason) = (Trial::default(), Some(reason.clone()));
                        self.record(cell, block, trial, Status::Failed, reason)?;
                    }
                }
                continue;
            }
            let run = windows * window + self.overhead();
            let what = format!("block {}: {}", block + 1, course_name(course));
            let total = before + courses.len() + later;
            let left_s = (courses.len() - done + later) as f64 * run;
            self.settings.progress.running(&what, before + done, total, left_s);
            let again = self.one(course, block, window, &vec![true; course.len()])?;
            if again.contains(&true) {
                invalid.push((course, again));
            }
        }
        for (course, again) in invalid {
            let overhead = self.overhead();
            let needed = (later + 1) as f64 * (windows * window + overhead);
            if self.left_s() < needed {
                break;
            }
            self.one(course, block, window, &again)?;
        }
        Ok(())
    }

    /// Returns the cost of a run beside its window, from the runs so far.
    fn overhead(&self) -> f64 {
        if self.runs_made == 0 {
            let phases = &self.settings.experiment.phase;
            let guess = match self.probe_overhead_s {
                seen if seen.is_finite() => seen,
                _ => FIRST_OVERHEAD_S,
            };
            let phases = phases.iter().map(Phase::beside_window_s).sum::<f64>();
            guess + phases + self.outcome.warmup_s
        } else {
            self.overhead_s / f64::from(self.runs_made)
        }
    }

    /// Makes one run of a course and records the cells that are `wanted`. Returns which of them should be
    /// repeated because the generator was the bottleneck.
    fn one(
        &mut self,
        course: &[Cell],
        block: u32,
        window_s: f64,
        wanted: &[bool],
    ) -> anyhow::Result<Vec<bool>> {
        let started_at = Instant::now();
        // Within a block all variants get the same arrivals.
        let seed = self.settings.seed.wrapping_add(u64::from(block));
        let phases = &self.settings.experiment.phase;
        let steps: Vec<LoadPhase<'_>> = course
            .iter()
            .enumerate()
            .map(|(index, cell)| LoadPhase {
                cell,
                drive: self
                    .outcome
                    .phase_rps
                    .get(index)
                    .map_or(Drive::AsPlanned, |&rps| Drive::Rate(rps)),
                window_s: phases.get(index).and_then(|phase| phase.seconds).unwrap_or(window_s),
                warmup_s: phases
                    .get(index)
                    .map_or(self.outcome.warmup_s, |phase| phase.settle_seconds.unwrap_or(0.0)),
            })
            .collect();
        let (trials, result) = self.trial(&steps, seed)?;
        let failure = result.err().map(|error| format!("{error:#}"));
        if failure.is_none() {
            let windows_s = self.windows_of_a_run() as f64 * window_s;
            self.overhead_s += started_at.elapsed().as_secs_f64() - windows_s;
            self.runs_made += 1;
        }
        let mut again = vec![false; course.len()];
        for (index, (cell, trial)) in course.iter().zip(trials).enumerate() {
            if !wanted[index] {
                continue;
            }
            let (status, reason) = match (&failure, trial.raw.validity()) {
                (Some(failure), _) => (Status::Failed, Some(failure.clone())),
                (None, Ok(())) => (Status::Valid, None),
                (None, Err(reason)) => (Status::Invalid, Some(reason)),
            };
            again[index] = status == Status::Invalid;
            self.record(cell, block, trial, status, reason)?;
        }
        Ok(again)
    }

    /// Adds a run to the outcome.
    fn record(
        &mut self,
        cell: &Cell,
        block: u32,
        trial: Trial,
        status: Status,
        reason: Option<String>,
    ) -> anyhow::Result<()> {
        let metrics = trial.raw.metrics();
        let run = Run {
            cell: cell.clone(),
            block,
            started_s: trial.started_s,
            window_s: trial.window_s,
            mechanism: trial.mechanism,
            status,
            reason,
            metrics,
            raw: trial.raw,
            commands: trial.commands,
        };
        let outcome = self.journal.as_mut().map_or(Ok(()), |journal| journal.add(&run));
        self.outcome.runs.push(run);
        outcome
    }

    /// Returns the server's message if it cannot hold this cell's connections, at any rate.
    fn not_held(&self, cell: &Cell) -> Option<&str> {
        let cell = without_rate(cell);
        let known = self.not_held.iter().find(|(other, _)| *other == cell);
        known.map(|(_, reason)| reason.as_str())
    }

    /// Makes one run. The outer error is an interrupt; the inner error is the failure of the run.
    fn trial(
        &mut self,
        steps: &[LoadPhase<'_>],
        seed: u64,
    ) -> anyhow::Result<(Vec<Trial>, anyhow::Result<()>)> {
        let started_s = self.started_at.elapsed().as_secs_f64();
        let cell = steps[0].cell;
        let mut trials: Vec<Trial> = steps
            .iter()
            .map(|step| Trial { started_s, window_s: step.window_s, ..Trial::default() })
            .collect();
        let variant = self.variants.iter().find(|v| v.name == cell.variant).context("a variant")?;
        let result = self.bench().measure(variant, steps, seed, &mut trials);
        match result {
            Err(error) if error.is::<Interruption>() => Err(error),
            Err(error) if error.is::<HoldShortfall>() => {
                self.not_held.push((without_rate(cell), format!("{error:#}")));
                Ok((trials, Err(error)))
            }
            other => Ok((trials, other)),
        }
    }
}

fn without_rate(cell: &Cell) -> Cell {
    let mut cell = cell.clone();
    cell.point.remove(RATE);
    cell.point.remove(PHASE);
    cell
}

/// Describes a course.
fn course_name(course: &[Cell]) -> String {
    match course {
        [cell] => cell.name(),
        _ => format!("{}, {} phases", without_rate(&course[0]).name(), course.len()),
    }
}

/// The default directory for results: `results/ID-DATE-TIME`, in UTC.
pub fn default_directory(id: &str) -> std::path::PathBuf {
    let now = jiff::Timestamp::now().strftime("%Y%m%d-%H%M%S");
    std::path::Path::new("results").join(format!("{id}-{now}"))
}
