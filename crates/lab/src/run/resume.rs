//! Continues a run that was stopped before its end.

use super::*;

/// Whether the rates of a run are known. They are drawn after a run has begun.
pub(super) fn has_rates(outcome: &Outcome) -> bool {
    [RATE, PHASE].iter().any(|axis| outcome.values(axis).is_some())
}

impl Session<'_> {
    /// Takes over the results of the earlier run, its rates and its warm-up. A run that was stopped before its
    /// first measurement has only rates; one that was stopped before its rates were drawn has nothing.
    ///
    /// # Errors
    /// When the earlier run had another experiment, other settings or another environment.
    pub(super) fn resume(&mut self, earlier: &Outcome) -> anyhow::Result<()> {
        let settings = self.settings;
        let same = earlier.quick == settings.quick && earlier.seed == settings.seed;
        anyhow::ensure!(
            same && earlier.experiment == self.outcome.experiment,
            "the run to resume has another experiment, form or seed: give the same --quick, --guest, --cells and --seed as \
             before"
        );
        anyhow::ensure!(
            earlier.paper_rates || !settings.paper_rates,
            "the run to resume did not use the paper's own rates: leave --paper-rates out"
        );
        self.outcome.paper_rates = earlier.paper_rates;
        let has_runs = !earlier.runs.is_empty();
        if !has_runs && !has_rates(earlier) {
            return Ok(());
        }
        if let Some(difference) = earlier.environment.difference(&self.outcome.environment) {
            anyhow::bail!(
                "the run to resume was measured in another environment ({difference}): start a new run in another \
                 directory"
            );
        }
        let Outcome { saturation, ladders, dimensions, phase_rps, .. } = earlier.clone();
        self.outcome.saturation = saturation;
        self.outcome.ladders = ladders;
        self.outcome.dimensions = dimensions;
        self.outcome.phase_rps = phase_rps;
        if !has_runs {
            self.note("The rates were drawn before a stop.".into());
            return Ok(());
        }
        let Outcome { runs, warmup_s, started_at, looks, mut notes, .. } = earlier.clone();
        // The end of this run writes a new note about the shared CPU, from all runs.
        let shared = cpus::shared_cpu(earlier);
        notes.retain(|note| Some(note) != shared.as_ref());
        notes.push(format!("Resumed after {} runs.", runs.len()));
        let own = std::mem::replace(&mut self.outcome.notes, notes);
        own.into_iter().for_each(|note| self.note(note));
        self.outcome.runs = runs;
        self.outcome.warmup_s = warmup_s;
        self.outcome.started_at = started_at;
        self.outcome.looks = looks;
        Ok(())
    }
}
