//! Carries an experiment out.

pub mod interrupt;
pub mod process;
pub mod progress;
pub mod server;
pub mod site;
pub mod trial;

use crate::{
    environment::Environment,
    experiment::{Experiment, RATE, RelativeTo, SaturationOf, Subject, Variant},
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
use trial::{Bench, Cpus, Drive, Programs, Trial};

/// A share of the server's time on the CPU's queue above which its CPU was not its own.
const SHARED_CPU: f64 = 0.05;
/// What is set aside of the budget for the report.
const REPORT_S: f64 = 1.5;
/// The share of the time that is kept for runs which must be made again.
const SPARE: f64 = 0.1;
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
    /// Cells, less their rate, whose connections the server cannot hold, and what it said: this
    /// does not change from block to block.
    not_held: Vec<(Cell, String)>,
    /// What runs cost beside their windows, so far.
    overhead_s: f64,
    runs_made: u32,
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
                environment: Environment::look(cpus),
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
            not_held: Vec::new(),
            overhead_s: 0.0,
            runs_made: 0,
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

    fn left_s(&self) -> f64 {
        let budget = self.settings.experiment.budget(self.settings.quick);
        budget.seconds - REPORT_S - self.started_at.elapsed().as_secs_f64()
    }

    fn measure(&mut self) -> anyhow::Result<()> {
        if let Some(rates) = self.rates()? {
            self.outcome.dimensions.push(plan::rate_dimension(&rates));
        }
        let names: Vec<String> = self.available().map(|variant| variant.name.clone()).collect();
        let cells = plan::cells(names.iter().map(String::as_str), &self.outcome.dimensions)?;
        let budget = *self.settings.experiment.budget(self.settings.quick);
        for block in 0..budget.blocks {
            let open = cells.iter().filter(|cell| self.not_held(cell).is_none()).count();
            let blocks_left = (budget.blocks - block) as usize;
            let overhead = self.overhead();
            if block > 0 && self.left_s() < open as f64 * (budget.min_window_seconds + overhead) {
                self.outcome.notes.push(format!(
                    "The time of {} s was over after {block} of {} blocks.",
                    budget.seconds, budget.blocks
                ));
                break;
            }
            let for_runs = self.left_s() * (1.0 - SPARE);
            let window = plan::window_seconds(&budget, for_runs, open * blocks_left, overhead);
            self.block(&cells, block, window)?;
        }
        Ok(())
    }

    /// Measures every cell once, and those again in which the generator was the bottleneck, as far
    /// as there is time.
    fn block(&mut self, cells: &[Cell], block: u32, window: f64) -> anyhow::Result<()> {
        let budget = *self.settings.experiment.budget(self.settings.quick);
        let later = (budget.blocks - block - 1) as usize * cells.len();
        let mut invalid = Vec::new();
        let order = plan::block_order(cells.len(), block, self.settings.seed);
        for (done, cell) in order.into_iter().map(|index| &cells[index]).enumerate() {
            if let Some(reason) = self.not_held(cell) {
                if block == 0 {
                    let reason = reason.to_owned();
                    self.record(cell, block, Trial::default(), Status::Failed, Some(reason));
                }
                continue;
            }
            let left = (cells.len() - done + later) as f64 * (window + self.overhead());
            self.settings.progress.running(
                &format!("block {} of {}: {}", block + 1, budget.blocks, name(cell)),
                (block as usize * cells.len() + done) as u64,
                u64::from(budget.blocks) * cells.len() as u64,
                Duration::from_secs_f64(left),
            );
            if self.one(cell, block, window)? == Status::Invalid {
                invalid.push(cell);
            }
        }
        for cell in invalid {
            let overhead = self.overhead();
            let needed = later as f64 * (budget.min_window_seconds + overhead) + window + overhead;
            if self.left_s() < needed {
                break;
            }
            self.one(cell, block, window)?;
        }
        Ok(())
    }

    /// What a run costs beside its window, as seen so far.
    fn overhead(&self) -> f64 {
        if self.runs_made == 0 {
            FIRST_OVERHEAD_S
        } else {
            self.overhead_s / f64::from(self.runs_made)
        }
    }

    fn one(&mut self, cell: &Cell, block: u32, window_s: f64) -> anyhow::Result<Status> {
        let started_at = Instant::now();
        // Within a block all meet the same arrivals.
        let seed = self.settings.seed.wrapping_add(u64::from(block));
        let (trial, result) = self.trial(cell, Drive::AsPlanned, window_s, seed)?;
        let (status, reason) = match result {
            Err(error) => (Status::Failed, Some(format!("{error:#}"))),
            Ok(()) => {
                self.overhead_s += started_at.elapsed().as_secs_f64() - window_s;
                self.runs_made += 1;
                match trial.raw.validity() {
                    Ok(()) => (Status::Valid, None),
                    Err(reason) => (Status::Invalid, Some(reason)),
                }
            }
        };
        self.record(cell, block, trial, status, reason);
        Ok(status)
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
        cell: &Cell,
        drive: Drive,
        window_s: f64,
        seed: u64,
    ) -> anyhow::Result<(Trial, anyhow::Result<()>)> {
        let started_s = self.started_at.elapsed().as_secs_f64();
        let mut trial = Trial { started_s, window_s, ..Trial::default() };
        let variant = self.variants.iter().find(|v| v.name == cell.variant).context("a variant")?;
        let result = self.bench().measure(variant, cell, drive, window_s, seed, &mut trial);
        match result {
            Err(error) if error.is::<Interrupted>() => Err(error),
            Err(error) if error.is::<NotHeld>() => {
                self.not_held.push((without_rate(cell), format!("{error:#}")));
                Ok((trial, Err(error)))
            }
            other => Ok((trial, other)),
        }
    }

    /// The rates of this run, lowest first; `None` when the experiment has no rate.
    fn rates(&mut self) -> anyhow::Result<Option<Vec<f64>>> {
        let Some(rate) = self.settings.experiment.rate.clone() else { return Ok(None) };
        if self.settings.paper_rates {
            return Ok(Some(self.settings.experiment.paper_rates()?.to_vec()));
        }
        let budget = *self.settings.experiment.budget(self.settings.quick);
        // The point that costs most is the last on every axis.
        let point: Point = self
            .outcome
            .dimensions
            .iter()
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
            let (trial, result) =
                self.trial(&cell, drive, budget.saturation_seconds, self.settings.seed)?;
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
        let fractions = match &rate.quick_fractions {
            Some(fractions) if self.settings.quick => fractions,
            _ => &rate.fractions,
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
    Some(format!(
        "In {} of {counted} runs the server waited for its CPU during more than {:.0} % of the \
         time (most: {:.0} %, {}): something else ran on CPU {}. Run it again on a quiet machine.",
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
    cell
}

/// The experiment's variants; every mechanism in the registry when it names none.
fn variants(experiment: &Experiment) -> Vec<Variant> {
    if !experiment.variant.is_empty() {
        return experiment.variant.clone();
    }
    registry::ALL
        .iter()
        .map(|entry| Variant {
            name: entry.name.into(),
            mechanism: entry.name.into(),
            server: Default::default(),
        })
        .collect()
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

/// Where results go when nothing else is said: `results/ID-DATE-TIME`, in UTC.
pub fn default_directory(id: &str) -> std::path::PathBuf {
    let now = jiff::Timestamp::now().strftime("%Y%m%d-%H%M%S");
    std::path::Path::new("results").join(format!("{id}-{now}"))
}
