//! Rounds of interleaved measurements.

use super::{
    cases::{Case, Outcome, measure},
    goals,
    pool::{Pool, capacity},
};
use anyhow::{Context, Result, ensure};
use indicatif::{ProgressBar, ProgressStyle};
use pollux_event::{Error, MechanismSpec, registry};
use pollux_lab::statistics::{Compare, Estimate, estimate, paired};
use std::time::Duration;

/// The sizes of the sets in which interests are changed: the cost of a change may grow with the set.
const CHANGE_SETS: [usize; 2] = [1_000, 10_000];

/// The number of interests that are changed before a wait.
const CHANGED: [usize; 3] = [1, 16, 256];

/// The mechanism that all others are compared with.
pub(crate) const REFERENCE: &str = "epoll";

/// The variants and cases to measure.
pub(crate) struct Plan {
    pub(crate) variants: Vec<MechanismSpec>,
    pub(crate) sizes: Vec<usize>,
    pub(crate) change_sets: Vec<usize>,
    pub(crate) changed: Vec<usize>,
    pub(crate) rounds: usize,
    pub(crate) slice: Duration,
}

/// The result of one variant in one case.
pub(crate) struct Figure {
    pub(crate) case: &'static str,
    /// The number of connections.
    pub(crate) n: usize,
    /// The number of changes before a wait.
    pub(crate) changed: Option<usize>,
    pub(crate) name: String,
    /// Nanoseconds, one value per round.
    pub(crate) samples_ns: Vec<f64>,
    pub(crate) ns: Estimate,
    pub(crate) ratio: Option<Estimate>,
}

/// The results.
pub(crate) struct Results {
    pub(crate) figures: Vec<Figure>,
    /// The measurements that were not possible, each with its reason.
    pub(crate) notes: Vec<String>,
    pub(crate) rounds: usize,
    pub(crate) slice: Duration,
}

#[cfg(test)]
impl Results {
    /// For the tests: results with these figures, as if they had been measured.
    pub(crate) fn of(figures: Vec<Figure>) -> Self {
        Self { figures, notes: vec![], rounds: 6, slice: Duration::ZERO }
    }
}

impl Plan {
    /// Every mechanism that this kernel offers, each with the ablation that matters here.
    pub(crate) fn full() -> Result<Self> {
        let mut variants = Vec::new();
        for description in registry::ALL {
            variants.push(description.name.parse()?);
            if description.name == "uring-poll" {
                variants.push("uring-poll:taskrun=defer".parse()?);
            }
            if description.name == "rtsig" {
                variants.push(goals::ONE.parse()?);
            }
        }
        Ok(Self {
            variants,
            sizes: vec![10, 100, 1_000, 10_000, 20_000],
            change_sets: CHANGE_SETS.into(),
            changed: CHANGED.into(),
            rounds: 15,
            slice: Duration::from_millis(5),
        })
    }

    /// A plan that takes a second, for the tests; it has only available mechanisms.
    #[cfg(test)]
    pub(crate) fn tiny() -> Result<Self> {
        let mut plan = Self {
            sizes: vec![10, 100],
            change_sets: vec![50],
            changed: vec![1, 16],
            rounds: 2,
            slice: Duration::from_micros(100),
            ..Self::full()?
        };
        plan.variants.retain(|spec| registry::probe(spec).is_ok());
        Ok(plan)
    }
}

/// Runs `plan`.
pub(crate) fn run(plan: &Plan) -> Result<Results> {
    let mut results =
        Results { figures: vec![], notes: vec![], rounds: plan.rounds, slice: plan.slice };
    let sizes = sizes_that_fit(plan, capacity()?, &mut results.notes);
    let variants = variants_that_work(plan, &mut results.notes)?;
    let largest = sizes.iter().copied().max().unwrap_or(0);
    let mut change_sets: Vec<_> = plan.change_sets.iter().map(|&set| set.min(largest)).collect();
    change_sets.dedup();
    let pool = Pool::open(largest).context("opening the connections")?;

    let waits = sizes.iter().map(|&size| Case::Wait { size });
    let changes = change_sets.iter().flat_map(|&size| {
        let fitting = plan.changed.iter().filter(move |&&changed| changed <= size);
        fitting.map(move |&changed| Case::Change { size, changed })
    });
    let all = sizes.iter().map(|&size| Case::AllReady { size });
    let cases: Vec<_> = waits.chain(changes).chain(all).collect();

    let steps = cases.len() * plan.rounds * 2 * (variants.len() + 1);
    // The progress bar is drawn only if standard error is a terminal.
    let progress = ProgressBar::new(steps as u64)
        .with_style(ProgressStyle::with_template("{bar:40} {percent:>3} % {msg} {eta}")?);
    for case in cases {
        progress.set_message(format!("{case:?}"));
        let measured = rounds(plan, &variants, case, &pool, &progress, &mut results.notes)?;
        summarise(case, &variants, &measured, &mut results.figures);
    }
    progress.finish_and_clear();
    Ok(results)
}

fn sizes_that_fit(plan: &Plan, capacity: usize, notes: &mut Vec<String>) -> Vec<usize> {
    let mut sizes: Vec<usize> = plan.sizes.iter().map(|&size| size.min(capacity)).collect();
    sizes.dedup();
    if let Some(largest) = plan.sizes.iter().find(|&&size| size > capacity) {
        notes.push(format!(
            "{largest} connections do not fit under the hard RLIMIT_NOFILE: {capacity} instead"
        ));
    }
    sizes
}

fn variants_that_work(plan: &Plan, notes: &mut Vec<String>) -> Result<Vec<MechanismSpec>> {
    let mut variants = Vec::new();
    for spec in &plan.variants {
        match registry::probe(spec) {
            Ok(()) => variants.push(spec.clone()),
            Err(error @ Error::Unavailable { .. }) => notes.push(error.to_string()),
            Err(error) => return Err(error).with_context(|| spec.to_string()),
        }
    }
    ensure!(variants.iter().any(|spec| spec.name == REFERENCE), "{REFERENCE} must be measured");
    Ok(variants)
}

/// The results of each round, from its two measurements: cost, and cost of arrival if the case has one.
/// The first row is the work without a mechanism; the row of a variant that does not fit is empty.
type RoundSamples = Vec<Vec<(f64, Option<f64>)>>;

fn rounds(
    plan: &Plan,
    variants: &[MechanismSpec],
    case: Case,
    pool: &Pool,
    progress: &ProgressBar,
    notes: &mut Vec<String>,
) -> Result<RoundSamples> {
    let rows: Vec<_> = std::iter::once(None).chain(variants.iter().map(Some)).collect();
    let mut measured: RoundSamples = vec![Vec::new(); rows.len()];
    let mut fits = vec![true; rows.len()];
    for _ in 0..plan.rounds {
        let mut sums = vec![(0.0, None); rows.len()];
        for row in (0..rows.len()).chain((0..rows.len()).rev()) {
            progress.inc(1);
            if !fits[row] {
                continue;
            }
            match measure(rows[row], case, pool, plan.slice)? {
                Outcome::Measured(cost) => {
                    let (ns, arrival): &mut (f64, Option<f64>) = &mut sums[row];
                    *ns += cost.ns / 2.0;
                    *arrival = cost.arrival_ns.map(|more| arrival.unwrap_or(0.0) + more / 2.0);
                }
                Outcome::DoesNotFit(reason) => {
                    fits[row] = false;
                    let note = format!("{reason}; it has no figures for larger sets");
                    if !notes.contains(&note) {
                        notes.push(note);
                    }
                }
            }
        }
        for row in (0..rows.len()).filter(|&row| fits[row]) {
            measured[row].push(sums[row]);
        }
    }
    Ok(measured)
}

fn summarise(
    case: Case,
    variants: &[MechanismSpec],
    measured: &RoundSamples,
    figures: &mut Vec<Figure>,
) {
    let (name, n, changed) = match case {
        Case::Wait { size } => ("wait", size, None),
        Case::Change { size, changed } => ("change", size, Some(changed)),
        Case::AllReady { size } => ("all-ready", size, None),
    };
    let reference = variants.iter().position(|spec| spec.name == REFERENCE).expect("checked") + 1;
    for (index, spec) in variants.iter().enumerate() {
        let mut add = |case, samples_ns: Vec<f64>, references: Vec<f64>| {
            // A variant that does not fit has no samples.
            let Some(ns) = estimate(&samples_ns) else { return };
            let pairs = samples_ns.iter().zip(&references);
            let pairs = pairs.map(|(&ns, &reference)| (Some(ns), Some(reference)));
            // A ratio to a reference that is lost in the noise has no meaning.
            let ratio = paired(pairs, Compare::Ratio).filter(|_| is_above_nothing(&references));
            figures.push(Figure {
                case,
                n,
                changed,
                name: spec.to_string(),
                ns,
                samples_ns,
                ratio,
            });
        };
        add(name, above_none(measured, index + 1), above_none(measured, reference));
        if matches!(case, Case::AllReady { .. }) {
            let arrival =
                |row: usize| measured[row].iter().filter_map(|(_, arrival)| *arrival).collect();
            add("arrival", arrival(index + 1), arrival(0));
        }
    }
}

/// Whether the `values` are above zero by more than chance. Six values, the fewest that have an
/// interval, have their range as the interval; with fewer values the range is used in the same way.
fn is_above_nothing(values: &[f64]) -> bool {
    let interval = estimate(values).and_then(|estimate| estimate.rank);
    interval.map_or_else(|| values.iter().all(|&value| value > 0.0), |interval| interval.low > 0.0)
}

/// The cost of a row in each round, above the cost of the work without a mechanism in the same round.
fn above_none(measured: &RoundSamples, row: usize) -> Vec<f64> {
    measured[row].iter().zip(&measured[0]).map(|((ns, _), (none, _))| ns - none).collect()
}
