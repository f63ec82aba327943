//! Measures how long the servers of a run need until they are steady.
//!
//! If the experiment has a pilot, the pilot measures that time; otherwise the experiment states it. When
//! claims are judged, the measured windows show whether the warm-up was long enough.

use super::*;

impl Session<'_> {
    /// Returns how long each load lasts before it is measured: until every variant is steady at the last
    /// value of every axis and the highest rate.
    pub(super) fn warm_up(&mut self, courses: &[&[Cell]]) -> anyhow::Result<f64> {
        let experiment = self.settings.experiment;
        let most = experiment.budget.warmup_seconds;
        let has_none = experiment.subject != Subject::Server || !self.outcome.phase_rps.is_empty();
        if most == 0.0 || has_none {
            return Ok(0.0);
        }
        if !experiment.budget.pilot {
            return Ok(most);
        }
        let names: Vec<String> = self.available().map(|variant| variant.name.clone()).collect();
        let mut longest: f64 = 0.0;
        for (done, name) in names.iter().enumerate() {
            // The courses of a variant are in the order of the axes, so its last one is the most expensive.
            let runs = |course: &&&[Cell]| {
                course[0].variant == *name && self.not_held(&course[0]).is_none()
            };
            let last = courses.iter().rev().find(runs);
            let Some(cell) = last.map(|course| &course[0]) else { continue };
            let window_s = 2.0 * most;
            let what = format!("until it is steady: {}", cell.name());
            let left_s = (names.len() - done) as f64 * window_s;
            self.settings.progress.running(&what, done, names.len(), left_s);
            let step = LoadPhase { cell, drive: Drive::AsPlanned, window_s, warmup_s: 0.0 };
            let (trials, result) = self.trial(&[step], self.settings.seed)?;
            let Some((mut replies, interval_s)) = trials[0].raw.series() else { continue };
            if result.is_err() {
                continue;
            }
            // The time after the last request is not part of the steady state.
            replies.truncate((window_s / interval_s) as usize);
            match steady::settled_after(&replies) {
                Some(after) => longest = longest.max(interval_s * after as f64),
                None => {
                    longest = most;
                    self.outcome.notes.push(format!(
                        "{name} was not steady within {most} s of the highest rate, the longest \
                         warm-up that the experiment allows: what is measured there may still change."
                    ));
                }
            }
        }
        Ok(at_least(longest, most))
    }
}

/// Limits `steady_s` to the range from [`LEAST_WARMUP_S`] to `most` and rounds it up to hundredths, because
/// the generator's flag is a number of seconds.
fn at_least(steady_s: f64, most: f64) -> f64 {
    (steady_s.max(LEAST_WARMUP_S).min(most) * 100.0).ceil() / 100.0
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_warm_up_is_neither_too_short_nor_too_long() {
        assert_eq!(super::at_least(0.0, 2.0), 0.1);
        assert_eq!(super::at_least(0.301, 2.0), 0.31);
        assert_eq!(super::at_least(5.0, 2.0), 2.0);
    }
}
