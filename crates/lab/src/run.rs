//! Carries an experiment out.

pub mod executable;
mod ground;
pub mod interrupt;
pub mod process;
pub mod progress;
pub mod server;
pub mod site;
pub mod trial;

use crate::{
    environment::Environment,
    experiment::{
        CLIENTS, Experiment, PHASE, Place, RATE, RelativeTo, SaturationOf, Subject, Variant,
    },
    plan::{self, Cell, Point},
    result::{FORMAT, Outcome, Run, Saturation, Status, VariantOutcome},
};
use anyhow::Context as _;
use interrupt::{Interrupt, Interrupted};
use pollux_event::{Capabilities, MechanismSpec, registry};
use progress::Progress;
use server::NotHeld;
use site::Site;
use std::time::{Duration, Instant};
use trial::{Bench, Cpus, Drive, Programs, Step, Trial};

/// A share of the server's time on the CPU's queue above which its CPU was not its own.
const SHARED_CPU: f64 = 0.05;
/// What is set aside of the budget for the report.
const REPORT_S: f64 = 1.5;
/// The share of the time that is kept for runs which must be made again.
const SPARE: f64 = 0.1;
/// More time than any experiment takes.
const UNLIMITED_S: f64 = 1e9;
/// A guess of what a run costs beside its window, before any was made.
const FIRST_OVERHEAD_S: f64 = 0.3;

/// What to run and how.
#[derive(Debug)]
pub struct Settings<'a> {
    /// The experiment.
    pub experiment: &'a Experiment,
    /// Take the quick budget and the quick values.
    pub quick: bool,
    /// Take the paper's own rates.
    pub paper_rates: bool,
    /// What every random choice is drawn from.
    pub seed: u64,
    /// The programs.
    pub programs: Programs,
    /// Ctrl-C.
    pub interrupt: Interrupt,
    /// Where progress is shown.
    pub progress: Progress,
}

/// Runs the experiment. An interrupt is no error: the outcome holds what was measured and says so.
///
/// # Errors
/// When nothing could be measured at all: no variant is available, the saturation of none could
/// be found, the paper has no rates of its own.
pub fn run(settings: &Settings<'_>) -> anyhow::Result<Outcome> {
    let mut conduct = Conduct::new(settings)?;
    match conduct.measure() {
        Err(error) if error.is::<Interrupted>() => conduct.outcome.interrupted = true,
        other => other?,
    }
    let mut outcome = conduct.outcome;
    outcome.notes.extend(shared_cpu(&outcome));
    outcome.elapsed_s = conduct.started_at.elapsed().as_secs_f64();
    outcome.conclude();
    Ok(outcome)
}

/// A running experiment.
struct Conduct<'a> {
    settings: &'a Settings<'a>,
    started_at: Instant,
    variants: Vec<Variant>,
    site: Option<Site>,
    cpus: Cpus,
    outcome: Outcome,
    /// The rate of each phase in requests per second, in their order.
    phase_rps: Vec<f64>,
    /// Cells, less their rate, whose connections the server cannot hold, and what it said: this
    /// does not change from block to block.
    not_held: Vec<(Cell, String)>,
    /// What runs cost beside their windows, so far.
    overhead_s: f64,
    runs_made: u32,
    /// The least that a probe for saturation cost beside its window: a guess for the first block.
    probe_overhead_s: f64,
}

impl<'a> Conduct<'a> {
    fn new(settings: &'a Settings<'a>) -> anyhow::Result<Self> {
        let experiment = settings.experiment;
        let started_at = Instant::now();
        let all = variants(experiment);
        let variants: Vec<VariantOutcome> = all
            .iter()
            .map(|variant| VariantOutcome {
                name: variant.name.clone(),
                mechanism: variant.mechanism.clone(),
                unavailable: unavailable(variant),
            })
            .collect();
        anyhow::ensure!(
            variants.iter().any(|v| v.unavailable.is_none()),
            "this kernel has none of the mechanisms of experiment {}{}",
            experiment.id,
            variants
                .iter()
                .filter_map(|v| v.unavailable.as_ref())
                .fold(String::new(), |text, reason| { format!("{text}\n  {reason}") })
        );
        let cpus = cpus()?;
        let mut notes = Vec::new();
        let receive_cpu = ground::prepare(experiment, cpus, &mut notes)?;
        // After it: a network namespace has sysctls of its own.
        let environment = Environment { receive_cpu, ..Environment::look(cpus) };
        if let Some(kernel) = &environment.guest {
            notes.push(format!(
                "These figures come from an emulated CPU: the guest of `pollux vm`, Linux {kernel}. \
                 It is slower than a real one, by ten times or so, but not by the same factor in all \
                 that it does. Only ratios between variants within this guest count; no time here \
                 says anything about a machine."
            ));
        }
        if cpus.server == cpus.generator && experiment.subject == Subject::Server {
            notes.push(
                "This machine lends one CPU only: server and generator share it, and their \
                 figures are not those of a server with a CPU of its own."
                    .into(),
            );
        }
        Ok(Self {
            outcome: Outcome {
                format: FORMAT.into(),
                experiment: experiment.clone(),
                quick: settings.quick,
                paper_rates: settings.paper_rates,
                seed: settings.seed,
                started_at: jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
                elapsed_s: 0.0,
                interrupted: false,
                notes,
                environment,
                variants,
                dimensions: experiment.dimensions(settings.quick),
                saturation: Vec::new(),
                claims: Vec::new(),
                cells: Vec::new(),
                runs: Vec::new(),
            },
            settings,
            started_at,
            variants: all,
            site: experiment.workload.map(Site::new).transpose()?,
            cpus,
            phase_rps: Vec::new(),
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
            interrupt: &self.settings.interrupt,
        }
    }

    fn available(&self) -> impl Iterator<Item = &Variant> {
        self.variants
            .iter()
            .zip(&self.outcome.variants)
            .filter(|(_, outcome)| outcome.unavailable.is_none())
            .map(|(variant, _)| variant)
    }

    /// What is left of the time. A clock that counts instructions leaps while the guest waits for
    /// the host's files, and tells nothing: there every block is made.
    fn left_s(&self) -> f64 {
        let budget = self.settings.experiment.budget(self.settings.quick);
        let place = self.settings.experiment.place;
        if place == Place::DeterministicGuest && self.outcome.environment.guest.is_some() {
            return UNLIMITED_S;
        }
        budget.seconds - REPORT_S - self.started_at.elapsed().as_secs_f64()
    }

    fn measure(&mut self) -> anyhow::Result<()> {
        if let Some(rates) = self.rates()? {
            let phases = &self.settings.experiment.phase;
            self.outcome.dimensions.push(if phases.is_empty() {
                plan::rate_dimension(&rates)
            } else {
                self.phase_rps = rates;
                plan::phase_dimension(phases)
            });
        }
        let names: Vec<String> = self.available().map(|variant| variant.name.clone()).collect();
        let cells = plan::cells(names.iter().map(String::as_str), &self.outcome.dimensions)?;
        // What one server meets: the phases, which are the last axis, or one cell.
        let courses: Vec<&[Cell]> = cells.chunks(self.phase_rps.len().max(1)).collect();
        let budget = *self.settings.experiment.budget(self.settings.quick);
        for block in 0..budget.blocks {
            let open = courses.iter().filter(|course| self.not_held(&course[0]).is_none()).count();
            let blocks_left = (budget.blocks - block) as usize;
            let overhead = self.overhead();
            let windows = self.windows_of_a_run();
            let least = windows as f64 * budget.min_window_seconds + overhead;
            if block > 0 && self.left_s() < open as f64 * least {
                self.outcome.notes.push(format!(
                    "The time of {} s was over after {block} of {} blocks.",
                    budget.seconds, budget.blocks
                ));
                break;
            }
            let for_runs = self.left_s() * (1.0 - SPARE);
            let all_windows = open * blocks_left * windows;
            let window =
                plan::window_seconds(&budget, for_runs, all_windows, overhead / windows as f64);
            self.block(&courses, block, window)?;
        }
        Ok(())
    }

    /// How many windows a run has: one, or one for each phase that has no length of its own.
    fn windows_of_a_run(&self) -> usize {
        let phases = &self.settings.experiment.phase;
        phases.iter().filter(|phase| phase.seconds.is_none()).count().max(1)
    }

    /// Measures every course once, and those again in which the generator was the bottleneck, as
    /// far as there is time.
    fn block(&mut self, courses: &[&[Cell]], block: u32, window: f64) -> anyhow::Result<()> {
        let budget = *self.settings.experiment.budget(self.settings.quick);
        let later = (budget.blocks - block - 1) as usize * courses.len();
        let windows = self.windows_of_a_run() as f64;
        let mut invalid = Vec::new();
        let order = plan::block_order(courses.len(), block, self.settings.seed);
        for (done, course) in order.into_iter().map(|index| courses[index]).enumerate() {
            if let Some(reason) = self.not_held(&course[0]) {
                if block == 0 {
                    let reason = reason.to_owned();
                    for cell in course {
                        let (trial, reason) = (Trial::default(), Some(reason.clone()));
                        self.record(cell, block, trial, Status::Failed, reason);
                    }
                }
                continue;
            }
            let run = windows * window + self.overhead();
            self.settings.progress.running(
                &format!("block {} of {}: {}", block + 1, budget.blocks, course_name(course)),
                (block as usize * courses.len() + done) as u64,
                u64::from(budget.blocks) * courses.len() as u64,
                Duration::from_secs_f64((courses.len() - done + later) as f64 * run),
            );
            let again = self.one(course, block, window, &vec![true; course.len()])?;
            if again.contains(&true) {
                invalid.push((course, again));
            }
        }
        for (course, again) in invalid {
            let overhead = self.overhead();
            let needed = later as f64 * (windows * budget.min_window_seconds + overhead)
                + windows * window
                + overhead;
            if self.left_s() < needed {
                break;
            }
            self.one(course, block, window, &again)?;
        }
        Ok(())
    }

    /// What a run costs beside its window, as seen so far.
    fn overhead(&self) -> f64 {
        if self.runs_made == 0 {
            let phases = &self.settings.experiment.phase;
            let guess = match self.probe_overhead_s {
                seen if seen.is_finite() => seen,
                _ => FIRST_OVERHEAD_S,
            };
            guess + phases.iter().filter_map(|phase| phase.seconds).sum::<f64>()
        } else {
            self.overhead_s / f64::from(self.runs_made)
        }
    }

    /// One run of a course. Records the cells that are `wanted`; says which of them should be
    /// measured again, since the generator was the bottleneck.
    fn one(
        &mut self,
        course: &[Cell],
        block: u32,
        window_s: f64,
        wanted: &[bool],
    ) -> anyhow::Result<Vec<bool>> {
        let started_at = Instant::now();
        // Within a block all meet the same arrivals.
        let seed = self.settings.seed.wrapping_add(u64::from(block));
        let phases = &self.settings.experiment.phase;
        let steps: Vec<Step<'_>> = course
            .iter()
            .enumerate()
            .map(|(index, cell)| Step {
                cell,
                drive: self.phase_rps.get(index).map_or(Drive::AsPlanned, |&rps| Drive::Rate(rps)),
                window_s: phases.get(index).and_then(|phase| phase.seconds).unwrap_or(window_s),
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
            self.record(cell, block, trial, status, reason);
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
    ) {
        let metrics = trial.raw.metrics();
        self.outcome.runs.push(Run {
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
        });
    }

    /// What the server said when it could not hold this cell's connections, at whatever rate.
    fn not_held(&self, cell: &Cell) -> Option<&str> {
        let cell = without_rate(cell);
        let known = self.not_held.iter().find(|(other, _)| *other == cell);
        known.map(|(_, reason)| reason.as_str())
    }

    /// One run. The outer error is the interrupt, the inner what went wrong with the run.
    fn trial(
        &mut self,
        steps: &[Step<'_>],
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
            Err(error) if error.is::<Interrupted>() => Err(error),
            Err(error) if error.is::<NotHeld>() => {
                self.not_held.push((without_rate(cell), format!("{error:#}")));
                Ok((trials, Err(error)))
            }
            other => Ok((trials, other)),
        }
    }

    /// The rates of this run in the order of the file; `None` when the experiment has no rate.
    fn rates(&mut self) -> anyhow::Result<Option<Vec<f64>>> {
        let Some(rate) = self.settings.experiment.rate.clone() else { return Ok(None) };
        if self.settings.paper_rates {
            return Ok(Some(self.settings.experiment.paper_rates()?.to_vec()));
        }
        let budget = *self.settings.experiment.budget(self.settings.quick);
        // The point that costs most is the last on every axis; clients are near.
        let point: Point = self
            .outcome
            .dimensions
            .iter()
            .filter(|dimension| dimension.name != CLIENTS)
            .filter_map(|d| Some((d.name.clone(), d.values.last()?.clone())))
            .collect();
        let probed = self.probed(budget.saturation_of);
        let count = probed.len() as u64;
        for (done, variant) in probed.into_iter().enumerate() {
            let cell = Cell { variant, point: point.clone() };
            self.settings.progress.running(
                &format!("saturation: {}", name(&cell)),
                done as u64,
                count,
                Duration::from_secs_f64(self.left_s().max(0.0)),
            );
            let drive = Drive::Saturate(rate.saturation_connections);
            let step = Step { cell: &cell, drive, window_s: budget.saturation_seconds };
            let started_at = Instant::now();
            let (mut trials, result) = self.trial(&[step], self.settings.seed)?;
            if result.is_ok() {
                // The least, since the first one reads the programs from disk.
                let overhead = started_at.elapsed().as_secs_f64() - budget.saturation_seconds;
                self.probe_overhead_s = self.probe_overhead_s.min(overhead);
            }
            let trial = trials.pop().context("one step, one trial")?;
            let rps = result.is_ok().then(|| trial.raw.metrics().get("throughput_rps").copied());
            let note = match result {
                Err(error) => Some(format!("{error:#}")),
                Ok(()) => trial.raw.validity().err(),
            };
            self.outcome.saturation.push(Saturation {
                cell,
                rps: rps.flatten(),
                note,
                raw: trial.raw,
            });
        }
        let found = self.outcome.saturation.iter().filter_map(|s| s.rps).filter(|&rps| rps > 0.0);
        let reference = match rate.relative_to {
            RelativeTo::Slowest => found.min_by(f64::total_cmp),
            RelativeTo::Fastest => found.max_by(f64::total_cmp),
        };
        let reference = reference.with_context(|| {
            let notes: Vec<String> = self
                .outcome
                .saturation
                .iter()
                .map(|s| format!("\n  {}: {}", name(&s.cell), s.note.as_deref().unwrap_or("0")))
                .collect();
            format!("the saturation of no variant could be measured{}", notes.concat())
        })?;
        let phases = &self.settings.experiment.phase;
        let fractions = match &rate.quick_fractions {
            _ if !phases.is_empty() => phases.iter().map(|phase| phase.fraction).collect(),
            Some(fractions) if self.settings.quick => fractions.clone(),
            _ => rate.fractions.clone(),
        };
        Ok(Some(fractions.iter().map(|fraction| (fraction * reference).round().max(1.0)).collect()))
    }

    /// The names of the variants whose saturation is measured.
    fn probed(&self, which: SaturationOf) -> Vec<String> {
        let costly = |variant: &&Variant| {
            let spec = variant.mechanism.parse::<MechanismSpec>();
            spec.and_then(|spec| registry::capabilities(&spec)).is_ok_and(|capabilities| {
                capabilities.intersects(Capabilities::SCANS | Capabilities::WAKES_FOR_NOTHING)
            })
        };
        let chosen: Vec<String> = match which {
            SaturationOf::All => Vec::new(),
            SaturationOf::Costly => {
                self.available().filter(costly).map(|v| v.name.clone()).collect()
            }
        };
        if chosen.is_empty() { self.available().map(|v| v.name.clone()).collect() } else { chosen }
    }
}

/// A note when the server was kept from its CPU: what else ran there may have changed the figures.
fn shared_cpu(outcome: &Outcome) -> Option<String> {
    let share = |run: &Run| run.metric("server_queue_share");
    let counted = outcome.runs.iter().filter(|run| share(run).is_some()).count();
    let mut shared: Vec<(&Run, f64)> = outcome
        .runs
        .iter()
        .filter_map(|run| Some((run, share(run).filter(|&share| share > SHARED_CPU)?)))
        .collect();
    shared.sort_by(|a, b| b.1.total_cmp(&a.1));
    let (worst, most) = shared.first()?;
    let (why, advice) = match outcome.environment.receive_cpu {
        // A thread of the kernel's does it beside the server when there is much of it.
        Some(_) => ("the network's receive work, or something else,", ""),
        None => ("something else", " Run it again on a quiet machine."),
    };
    Some(format!(
        "In {} of {counted} runs the server waited for its CPU during more than {:.0} % of the \
         time (most: {:.0} %, {}): {why} ran on CPU {}.{advice}",
        shared.len(),
        SHARED_CPU * 100.0,
        most * 100.0,
        name(&worst.cell),
        outcome.environment.pinned.map_or(0, |cpus| cpus.server),
    ))
}

fn without_rate(cell: &Cell) -> Cell {
    let mut cell = cell.clone();
    cell.point.remove(RATE);
    cell.point.remove(PHASE);
    cell
}

/// The experiment's variants; every mechanism in the registry when it names none.
fn variants(experiment: &Experiment) -> Vec<Variant> {
    if !experiment.variant.is_empty() {
        return experiment.variant.clone();
    }
    registry::ALL.iter().map(|entry| Variant::of_mechanism(entry.name)).collect()
}

/// Why this kernel does not have the variant's mechanism.
fn unavailable(variant: &Variant) -> Option<String> {
    let tried = variant.mechanism.parse::<MechanismSpec>().and_then(|spec| registry::probe(&spec));
    tried.err().map(|error| error.to_string())
}

/// The first two CPUs that this process may use.
fn cpus() -> anyhow::Result<Cpus> {
    let set = rustix::thread::sched_getaffinity(None).context("sched_getaffinity")?;
    let mut usable = (0..rustix::thread::CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu));
    let server = usable.next().context("this process may use no CPU")? as u32;
    Ok(Cpus { server, generator: usable.next().map_or(server, |cpu| cpu as u32) })
}

/// A cell in words: `poll, idle 8000, rate 500`.
pub fn name(cell: &Cell) -> String {
    cell.point
        .iter()
        .fold(cell.variant.clone(), |text, (axis, value)| format!("{text}, {axis} {value}"))
}

/// What one server meets, in words.
fn course_name(course: &[Cell]) -> String {
    match course {
        [cell] => name(cell),
        _ => format!("{}, {} phases", name(&without_rate(&course[0])), course.len()),
    }
}

/// Where results go when nothing else is said: `results/ID-DATE-TIME`, in UTC.
pub fn default_directory(id: &str) -> std::path::PathBuf {
    let now = jiff::Timestamp::now().strftime("%Y%m%d-%H%M%S");
    std::path::Path::new("results").join(format!("{id}-{now}"))
}
