//! The rates of a run: given as absolute numbers, or as shares of a measured saturation.

use super::*;
use crate::{
    experiment::{Reference, Value},
    metric::Metric,
    result::Ladder,
};

/// The most probes of one variant. A probe is repeated while the generator is the bottleneck.
const MOST_PROBES: u32 = 3;

/// Rates as absolute numbers, in requests per second.
#[derive(Clone, Debug)]
pub struct Rates {
    /// The rates in the order of the file.
    pub rates: Vec<f64>,
    /// The rates among them that belong to one server's ladder.
    pub ladders: Vec<Ladder>,
}

/// Returns the rates that an earlier run of the same experiment used.
///
/// # Errors
/// When the earlier run had another experiment or form, or no rates.
pub fn drawn(earlier: &Outcome, experiment: &Experiment, quick: bool) -> anyhow::Result<Rates> {
    let form = |quick| if quick { "quick" } else { "full" };
    anyhow::ensure!(
        earlier.experiment.id == experiment.id && earlier.quick == quick,
        "the rates are those of {} in its {} form, not of {} in its {} one",
        earlier.experiment.id,
        form(earlier.quick),
        experiment.id,
        form(quick)
    );
    let rates: Vec<f64> = match &earlier.phase_rps[..] {
        [] => earlier.values(RATE).unwrap_or_default().iter().filter_map(Value::number).collect(),
        phases => phases.to_vec(),
    };
    anyhow::ensure!(!rates.is_empty(), "no rates were drawn there");
    let phases = experiment.phase.len();
    anyhow::ensure!(phases == 0 || phases == rates.len(), "the phases are not the same");
    Ok(Rates { rates, ladders: earlier.ladders.clone() })
}

impl Session<'_> {
    /// Determines the rates of this run in the order of the file; `None` when the experiment has no rate.
    pub(super) fn rates(&mut self) -> anyhow::Result<Option<Vec<f64>>> {
        let Some(rate) = self.settings.experiment.rate.clone() else { return Ok(None) };
        if let Some(Rates { rates, ladders }) = &self.settings.rates {
            self.outcome.ladders.clone_from(ladders);
            self.outcome.notes.push(
                "The rates are those of an earlier run, as absolute numbers: nothing was probed."
                    .into(),
            );
            return Ok(Some(rates.clone()));
        }
        if self.outcome.paper_rates {
            return Ok(Some(self.settings.experiment.paper_rates()?.to_vec()));
        }
        if !rate.rps.is_empty() {
            return Ok(Some(rate.rps));
        }
        let budget = self.settings.experiment.budget;
        // The most expensive point has the last value of every axis; clients are near.
        let point: Point = self
            .outcome
            .dimensions
            .iter()
            .filter(|dimension| dimension.name != CLIENTS)
            .filter_map(|d| Some((d.name.clone(), d.values.last()?.clone())))
            .collect();
        let probed = match &rate.reference {
            Some(reference) => vec![self.reference_cell(reference, point)],
            None => self
                .probed(budget.saturation_of)
                .into_iter()
                .map(|variant| Cell { variant, point: point.clone() })
                .collect(),
        };
        let count = probed.len();
        for (done, cell) in probed.into_iter().enumerate() {
            let what = format!("saturation: {}", cell.name());
            self.settings.progress.running(&what, done, count, self.left_s());
            let drive = Drive::Saturate(rate.saturation_connections);
            let window_s = budget.saturation_seconds;
            let probe = self.probe(LoadPhase { cell: &cell, drive, window_s, warmup_s: 0.0 })?;
            self.outcome.saturation.push(probe);
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
                .map(|s| format!("\n  {}: {}", s.cell.name(), s.note.as_deref().unwrap_or("0")))
                .collect();
            format!("the saturation of no variant could be measured{}", notes.concat())
        })?;
        let phases = &self.settings.experiment.phase;
        let fractions = match &phases[..] {
            [] => rate.fractions.clone(),
            phases => phases.iter().map(|phase| phase.fraction).collect(),
        };
        Ok(Some(fractions.iter().map(|fraction| (fraction * reference).round().max(1.0)).collect()))
    }

    /// Returns the cell whose limit is the reference of all rates. `point` supplies the axes that the
    /// reference does not name.
    fn reference_cell(&self, reference: &Reference, mut point: Point) -> Cell {
        for (name, value) in &mut point {
            let values = self.outcome.values(name).unwrap_or_default();
            if let Some(named) = reference.at.get(name).and_then(|select| select.among(values)) {
                value.clone_from(named);
            }
        }
        Cell { variant: reference.variant.clone(), point }
    }

    /// Measures the saturation of one variant. A probe in which the generator was the bottleneck measures
    /// the generator, so it is repeated. If all probes are invalid, the best one is used, with a note.
    fn probe(&mut self, step: LoadPhase<'_>) -> anyhow::Result<Saturation> {
        let mut best: Option<Saturation> = None;
        let mut made = 0;
        loop {
            let started_at = Instant::now();
            let (mut trials, result) = self.trial(&[step], self.settings.seed)?;
            made += 1;
            let trial = trials.pop().context("one step, one trial")?;
            let cell = step.cell.clone();
            let raw = trial.raw;
            match result {
                Err(error) if best.is_none() => {
                    let note = Some(format!("{error:#}"));
                    return Ok(Saturation { cell, rps: None, note, raw });
                }
                Err(_) => break,
                Ok(()) => {}
            }
            // The minimum, because the first probe reads the programs from disk.
            let overhead = started_at.elapsed().as_secs_f64() - step.window_s;
            self.probe_overhead_s = self.probe_overhead_s.min(overhead);
            let rps = raw.metrics().get(Metric::Throughput.name()).copied();
            let note = raw.validity().err();
            let is_valid = note.is_none();
            if is_valid || best.as_ref().is_none_or(|best| rps > best.rps) {
                best = Some(Saturation { cell, rps, note, raw });
            }
            // In a guest whose clock counts instructions, another probe would give the same figures.
            let is_last = made == MOST_PROBES || self.is_deterministic() || self.left_s() < 0.0;
            if is_valid || is_last {
                break;
            }
        }
        let best = best.context("a probe was made")?;
        if let Some(reason) = &best.note {
            self.note(format!(
                "Of {made} probes of what {} can serve none was valid ({reason}): the rates, which are \
                 shares of it, may be too low.",
                best.cell.variant
            ));
        }
        Ok(best)
    }

    /// The names of the variants whose saturation is measured.
    pub(super) fn probed(&self, which: SaturationOf) -> Vec<String> {
        let costly = |variant: &&Variant| {
            let spec = variant.mechanism.parse::<MechanismSpec>();
            spec.and_then(|spec| registry::capabilities(&spec)).is_ok_and(|capabilities| {
                capabilities.intersects(Capabilities::SCANS | Capabilities::SPURIOUS_WAKEUPS)
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
