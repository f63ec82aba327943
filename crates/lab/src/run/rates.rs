//! The rates of a run: given, or shares of what the slowest variant can serve.

use super::*;
use crate::experiment::Value;

/// The rates that an earlier run of the same experiment drew, in the order of its file.
///
/// # Errors
/// When it was another experiment or another form of it, or had no rates.
pub fn drawn(earlier: &Outcome, experiment: &Experiment, quick: bool) -> anyhow::Result<Vec<f64>> {
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
    Ok(rates)
}

impl Conduct<'_> {
    /// The rates of this run in the order of the file; `None` when the experiment has no rate.
    pub(super) fn rates(&mut self) -> anyhow::Result<Option<Vec<f64>>> {
        let Some(rate) = self.settings.experiment.rate.clone() else { return Ok(None) };
        if let Some(rates) = &self.settings.rates {
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
            let window_s = budget.saturation_seconds;
            let step = Step { cell: &cell, drive, window_s, warmup_s: 0.0 };
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
    pub(super) fn probed(&self, which: SaturationOf) -> Vec<String> {
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
