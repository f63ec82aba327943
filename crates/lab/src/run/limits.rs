//! Searches for the limit of each server at each point: the highest rate that it still answers completely.
//!
//! The search runs before the blocks. Limits differ by a few per cent, so one list of rates for all servers
//! would need fine steps over the whole range. Instead, each server gets rates around its own limit (its
//! ladder) beside the common rates. The readings of the search decide no claim: they only choose the rates
//! of the blocks.

use super::*;
use crate::{
    experiment::Value,
    metric::Metric,
    result::{Ladder, LimitProbe},
};

/// The most probes of one search: enough for a bisection from the whole range of rates down to one step.
const MOST_PROBES: usize = 9;
/// The usual number of probes of a search, for the estimate of the remaining time.
const PROBES: f64 = 4.0;
/// A server has answered a rate completely if the part that it did not answer is smaller than this many steps.
const WHOLE: f64 = 0.8;
/// The least tolerated part, as a share of the rate: requests at both ends of the window may be missing,
/// which matters where the steps are very fine.
const LEAST_LACK: f64 = 0.0075;
/// The next rate after an overload: the answered rate plus this many times the tolerated part.
const BEYOND: f64 = 1.5;
/// The search ends when a rate that was not answered completely is at most this many steps above the limit.
const NEAR: f64 = 2.0;
/// The last rate of a ladder is at least this multiple of the limit. `claims/limit.rs` accepts a rate as
/// answered completely when 2 % are missing; the last rate must lie above that.
const LAST: f64 = 1.0205;
/// The search may find a limit that is too low, by one step or by this share of it. The last rate is higher
/// by the larger of the two.
const LEAST_ABOVE: f64 = 0.008;
/// The first rate of a ladder is this many steps below the limit: one of them in case the search found a limit
/// that is a step too high. If all rates lay above the limit, no number of blocks could find it.
const FIRST: f64 = 2.0;
/// The first rate is also at least this share of the limit below it, however fine the steps are.
const LEAST_BELOW: f64 = 0.016;
/// The shortest window of a probe, in seconds. The rates that a server answers in two different seconds differ by
/// 1.5 %, and a single probe chooses the rates of many blocks.
const PROBE_S: f64 = 8.0;

/// The state of a search: its range, its step, and the probes so far.
struct Search<'a> {
    step: f64,
    lowest_rps: f64,
    highest_rps: f64,
    probes: &'a [LimitProbe],
}

/// The next action of a search.
#[derive(Debug, PartialEq)]
enum Next {
    /// Probe this rate.
    Probe(f64),
    /// The search has ended: this is the best estimate of the limit.
    Limit(f64),
    /// The search has ended: the server answers even the highest rate.
    Unknown,
}

impl Search<'_> {
    fn is_whole(&self, probe: &LimitProbe) -> bool {
        probe.answered_rps >= (1.0 - self.lack()) * probe.offered_rps
    }

    /// The share of a rate that may be missing from a completely answered rate.
    fn lack(&self) -> f64 {
        (WHOLE * self.step).max(LEAST_LACK)
    }

    fn next(&self) -> Next {
        if self.probes.is_empty() {
            return Next::Probe(self.highest_rps);
        }
        let offered = |probe: &&LimitProbe| probe.offered_rps;
        let (whole, rest): (Vec<&LimitProbe>, Vec<&LimitProbe>) =
            self.probes.iter().partition(|probe| self.is_whole(probe));
        let Some(too_high) = rest.into_iter().min_by(|a, b| offered(a).total_cmp(&offered(b)))
        else {
            return Next::Unknown;
        };
        let answered = whole.iter().map(offered).filter(|&rps| rps < too_high.offered_rps);
        let answered = answered.fold(0.0, f64::max);
        let limit = too_high.answered_rps.max(answered);
        let near = 1.0 + NEAR * self.step;
        let is_near = too_high.offered_rps <= near * too_high.answered_rps.max(answered);
        if is_near || too_high.offered_rps <= self.lowest_rps || self.probes.len() == MOST_PROBES {
            return Next::Limit(limit);
        }
        let guess = (too_high.answered_rps * (1.0 + BEYOND * self.lack())).max(self.lowest_rps);
        // A server may answer less under overload than at its limit, and a rate that was answered is not
        // probed again.
        let is_between = guess > answered * (1.0 + self.step / 2.0);
        let between = if is_between { guess } else { (answered * too_high.offered_rps).sqrt() };
        Next::Probe(between.round())
    }
}

/// The ladder: rates from safely below a limit to safely above it, except those near a common rate.
fn around(limit_rps: f64, step: f64, common: &[f64]) -> Vec<f64> {
    let last = ((LAST * (1.0 + step.max(LEAST_ABOVE)) - 1.0) / step).ceil() as i32;
    let first = -FIRST.max((LEAST_BELOW / step).ceil()) as i32;
    let rates = (first..=last).map(|k| (limit_rps * (1.0 + f64::from(k) * step)).round());
    let inside = |rate: &f64| {
        common.first().is_some_and(|lowest| rate > lowest)
            && common.last().is_some_and(|highest| rate < highest)
    };
    let is_new = |rate: &f64| common.iter().all(|near| (rate / near - 1.0).abs() > step / 3.0);
    let mut rates: Vec<f64> = rates.filter(inside).filter(is_new).collect();
    rates.dedup();
    rates
}

impl Session<'_> {
    /// Searches for the limit of the server of each course, if the experiment has a `limit_step`, and adds the
    /// rates of all ladders to the axis of rates.
    pub(super) fn seek_limits(&mut self, courses: &[&[Cell]]) -> anyhow::Result<()> {
        let step = self.settings.experiment.rate.as_ref().and_then(|rate| rate.limit_step);
        // No search with the paper's rates, or if an earlier run has found the limits.
        let is_wanted = !self.outcome.paper_rates && self.settings.rates.is_none();
        let is_new = is_wanted && self.outcome.ladders.is_empty();
        let Some(step) = step.filter(|_| is_new) else { return Ok(()) };
        let common: Vec<f64> = self
            .outcome
            .values(RATE)
            .unwrap_or_default()
            .iter()
            .filter_map(Value::number)
            .collect();
        let (Some(&lowest_rps), Some(&highest_rps)) = (common.first(), common.last()) else {
            return Ok(());
        };
        let mut lines: Vec<Cell> = courses.iter().map(|course| without_rate(&course[0])).collect();
        lines.dedup();
        let count = lines.len();
        // The outcome gets all ladders or none: a resumed run would take half of them for complete.
        let mut ladders = Vec::new();
        for (done, line) in lines.into_iter().enumerate() {
            let mut probes = Vec::new();
            let limit_rps = loop {
                if self.not_held(&line).is_some() {
                    break None;
                }
                let rate = match (Search { step, lowest_rps, highest_rps, probes: &probes }).next()
                {
                    Next::Probe(rate) => rate,
                    Next::Limit(limit) => break Some(limit),
                    Next::Unknown => break None,
                };
                let what = format!("searching the limit of {}: {rate} a second", line.name());
                self.settings.progress.running(&what, done, count, self.time_for_s(count - done));
                let Some(answered_rps) = self.answered(&line, rate)? else {
                    self.note(format!(
                        "The limit of {} was not found: a probe at {rate} a second failed. This server is \
                         offered only the common rates.",
                        line.name()
                    ));
                    break None;
                };
                probes.push(LimitProbe { offered_rps: rate, answered_rps });
            };
            let rates_rps = limit_rps.map_or_else(Vec::new, |limit| around(limit, step, &common));
            ladders.push(Ladder { line, limit_rps, rates_rps, probes });
        }
        let own = ladders.iter().flat_map(|ladder| &ladder.rates_rps);
        let mut all: Vec<f64> = common.iter().chain(own).copied().collect();
        all.sort_by(f64::total_cmp);
        all.dedup();
        self.outcome.ladders = ladders;
        let rates = plan::rate_dimension(&all);
        for dimension in &mut self.outcome.dimensions {
            if dimension.name == RATE {
                *dimension = rates.clone();
            }
        }
        self.note(format!(
            "Before the blocks, a search found the limit of each server to within a share of about {step}. Each \
             server is offered the {} common rates and rates of its own around its limit.",
            common.len()
        ));
        Ok(())
    }

    /// The window of a probe, in seconds.
    fn probe_s(&self) -> f64 {
        self.settings.experiment.budget.min_window_seconds.max(PROBE_S)
    }

    /// The estimated time of the search for this many limits, in seconds.
    fn time_for_s(&self, lines: usize) -> f64 {
        PROBES * lines as f64 * (self.probe_s() + self.outcome.warmup_s + self.overhead())
    }

    /// Offers `line` this rate and returns the answered rate. `None` if the measurement failed twice, for
    /// example because the generator was the bottleneck.
    fn answered(&mut self, line: &Cell, rate: f64) -> anyhow::Result<Option<f64>> {
        let mut cell = line.clone();
        cell.point.insert(RATE.into(), Value::Number(rate));
        let window_s = self.probe_s();
        let warmup_s = self.outcome.warmup_s;
        let step = LoadPhase { cell: &cell, drive: Drive::AsPlanned, window_s, warmup_s };
        for _ in 0..2 {
            // No block uses this seed for its arrivals.
            let (trials, result) = self.trial(&[step], self.settings.seed.wrapping_sub(1))?;
            let raw = &trials[0].raw;
            if result.is_ok() && raw.validity().is_ok() {
                return Ok(raw.metrics().get(Metric::Throughput.name()).copied());
            }
            if self.not_held(line).is_some() {
                break;
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The limit that the search finds for a server that answers `of(rate)`, and the number of probes.
    fn found(step: f64, mut of: impl FnMut(f64) -> f64) -> (Option<f64>, usize) {
        let mut probes: Vec<LimitProbe> = Vec::new();
        loop {
            let search = Search { step, lowest_rps: 500.0, highest_rps: 1450.0, probes: &probes };
            match search.next() {
                Next::Probe(rate) => {
                    probes.push(LimitProbe { offered_rps: rate, answered_rps: of(rate).min(rate) });
                }
                Next::Limit(limit) => return (Some(limit), probes.len()),
                Next::Unknown => return (None, probes.len()),
            }
        }
    }

    #[test]
    fn a_steady_limit_is_found_with_few_probes() {
        for step in [0.006, 0.0125, 0.04] {
            for limit in [520.0, 777.0, 1234.0, 1400.0] {
                let (found, probes) = found(step, |_| limit);
                let found = found.unwrap();
                assert!((found / limit - 1.0).abs() <= step, "{limit}: {found} in steps of {step}");
                assert!(probes <= 3, "{limit}: {probes}");
            }
        }
    }

    #[test]
    fn noise_of_the_size_of_a_step_does_not_mislead_the_search() {
        use rand::{RngExt, SeedableRng, rngs::StdRng};
        let mut random = StdRng::seed_from_u64(3);
        for _ in 0..200 {
            let limit: f64 = random.random_range(600.0..1400.0);
            // The server answers its full limit under slight overload, and less under heavy overload.
            let (limit_rps, probes) = found(0.0125, |rate: f64| {
                let lost = (rate / limit - 1.0).max(0.0) * random.random_range(0.0..0.8);
                limit * (1.0 - lost) * random.random_range(0.993..1.007)
            });
            let ratio = limit_rps.unwrap() / limit;
            assert!((0.97..1.03).contains(&ratio), "{ratio}");
            assert!(probes <= MOST_PROBES, "{probes}");
        }
    }

    /// How many of 1,000 ladders in steps of `step` have rates on both sides of the limit. Probes last `probe_s`
    /// seconds; the answered rate varies by 1.5 % from second to second, as with poll and idle connections.
    fn ladders_around(step: f64, probe_s: f64) -> usize {
        use crate::statistics::normal;
        use rand::{SeedableRng, rngs::StdRng};
        let mut random = StdRng::seed_from_u64(5);
        let deviation = 0.015 / probe_s.sqrt();
        let limit = 1210.0;
        let is_around = |_: &u32| {
            let (found, _) = found(step, |_| limit * (1.0 + deviation * normal(&mut random)));
            let rates = around(found.unwrap(), step, &[500.0, 1450.0]);
            rates[0] < limit && rates[rates.len() - 1] > LAST * limit
        };
        (0..1_000).filter(is_around).count()
    }

    #[test]
    fn a_ladder_contains_its_limit_however_fine_its_steps_are() {
        for step in [0.003, 0.004, 0.006, 0.0125] {
            let around = ladders_around(step, PROBE_S);
            assert!(around >= 985, "{step}: {around} of 1,000");
        }
        // Positive control: probes of one second are too short.
        assert!(ladders_around(0.004, 1.0) < 800);
    }

    #[test]
    fn a_rate_that_still_grows_under_overload_has_its_limit_where_it_first_falls_short() {
        // The server answers all of 1,200 and 1,275 of 1,450.
        let (found, probes) = found(0.0125, |rate| 1200.0 + 0.3 * (rate - 1200.0));
        let found = found.unwrap();
        assert!((1190.0..1230.0).contains(&found), "{found}");
        assert!(probes <= 6, "{probes}");
    }

    #[test]
    fn a_server_that_collapses_has_its_limit_below_the_collapse() {
        let (found, probes) = found(0.0125, |rate| if rate <= 1170.0 { rate } else { 400.0 });
        let found = found.unwrap();
        assert!((1130.0..=1170.0).contains(&found), "{found}");
        assert!(probes <= MOST_PROBES, "{probes}");
    }

    #[test]
    fn limits_beyond_the_rates() {
        assert_eq!(found(0.0125, |rate| rate).0, None, "the highest rate is answered");
        let (below, _) = found(0.0125, |_| 300.0);
        assert_eq!(below, Some(300.0));
        assert_eq!(around(300.0, 0.0125, &[500.0, 1450.0]), Vec::<f64>::new());
    }

    #[test]
    fn a_ladder_ends_where_no_server_answers_all() {
        let common = [500.0, 1100.0, 1450.0];
        let own = |limit: f64, step: f64| around(limit, step, &common);
        assert_eq!(own(1200.0, 0.0125), [1170.0, 1185.0, 1200.0, 1215.0, 1230.0, 1245.0]);
        assert_eq!(own(1200.0, 0.05), [1080.0, 1140.0, 1200.0, 1260.0, 1320.0]);
        assert_eq!(own(1101.0, 0.0125), [1073.0, 1087.0, 1115.0, 1129.0, 1142.0], "1,100 is there");
        assert_eq!(own(1440.0, 0.0125), [1404.0, 1422.0, 1440.0], "none above the highest");
        for step in [0.002, 0.006, 0.0125, 0.05, 0.1] {
            // The ladder has rates on both sides even of a limit that was found a step too low or too high.
            let rates = around(1200.0, step, &[10.0, 9000.0]);
            assert!(rates[rates.len() - 1] > LAST * 1200.0 * (1.0 + step) - 1.0, "{step}");
            assert!(rates[0] < 1200.0 * (1.0 - step), "{step}");
            // Also if one probe was 1.5 % too high.
            assert!(rates[0] < 1200.0 * 0.985, "{step}");
        }
    }
}
