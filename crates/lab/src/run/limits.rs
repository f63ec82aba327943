//! The limit of each server at each point, sought before the blocks, so that the rates of these lie around it.
//!
//! Limits differ by a few per cent, so a ladder common to all servers would need fine steps over all of
//! them. Here each server has its own steps beside the common rates. The readings of the search decide
//! nothing: they show where to measure.

use super::*;
use crate::{
    experiment::Value,
    metric::Metric,
    result::{Ladder, LimitProbe},
};

/// The most probes of one search: enough to halve the way between the lowest and the highest rate down to a step.
const MOST_PROBES: usize = 9;
/// About so many are enough as a rule.
const PROBES: f64 = 4.0;
/// A server that lacks less than this part of a step has answered everything; or less than this part of the
/// rate, where the steps are so fine that the ends of the window lack as much.
const WHOLE: f64 = 0.8;
const LEAST_LACK: f64 = 0.0075;
/// The next rate after an overload: the answered rate plus this many times the tolerated lack.
const BEYOND: f64 = 1.5;
/// A rate that was not answered whole is near enough to the limit when it is no more than so many steps above it.
const NEAR: f64 = 2.0;
/// The ladder's last step is above what counts as answered whole, which is all but two of a hundred
/// (`claims/limit.rs`), even where the limit was found a step too low, or by this part of it.
const LAST: f64 = 1.0205;
const LEAST_ABOVE: f64 = 0.008;
/// And its first is below the limit by two steps, even where that was found a step too high; by this part of the
/// limit at least, however fine the steps are. Of ten steps that all lie above a limit no number of blocks says
/// what it is.
const FIRST: f64 = 2.0;
const LEAST_BELOW: f64 = 0.016;
/// A probe lasts so many seconds at least: in one second a server answers a hundredth and a half more or less than in
/// another, and one probe is to say where many blocks measure.
const PROBE_S: f64 = 8.0;

/// The probes so far: offered and answered rates.
struct Search<'a> {
    step: f64,
    lowest_rps: f64,
    highest_rps: f64,
    probes: &'a [LimitProbe],
}

/// What a search wants next.
#[derive(Debug, PartialEq)]
enum Next {
    /// An answer at this rate.
    Probe(f64),
    /// Nothing: this is about the limit, or the nearest that is known to it.
    Limit(f64),
    /// Nothing: it answers the highest rate.
    Unknown,
}

impl Search<'_> {
    fn is_whole(&self, probe: &LimitProbe) -> bool {
        probe.answered_rps >= (1.0 - self.lack()) * probe.offered_rps
    }

    /// The part of a rate that a server may lack and still count as answering all of it.
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

/// The rates around a limit, from surely below it to surely above it, except those near a common rate.
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
    /// Seeks the limit of every course where the experiment wants that; the axis of the rates then has
    /// those of all ladders.
    pub(super) fn seek_limits(&mut self, courses: &[&[Cell]]) -> anyhow::Result<()> {
        let step = self.settings.experiment.rate.as_ref().and_then(|rate| rate.limit_step);
        // Neither beside the paper's rates alone, nor where an earlier run has sought them. A quick form on the
        // host has no time for it.
        let has_time = self.is_deterministic() || !self.settings.quick;
        let is_wanted = has_time && !self.outcome.paper_rates && self.settings.rates.is_none();
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
        let count = lines.len() as u64;
        // All of them or none: a run that continues from half of them would treat them as complete.
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
                let what = format!("its limit: {}, {rate} a second?", line.name());
                self.settings.progress.running(
                    &what,
                    done as u64,
                    count,
                    self.time_for(count - done as u64),
                );
                let Some(answered_rps) = self.answered(&line, rate)? else {
                    self.note(format!(
                        "The limit of {} was not found: a probe at {rate} a second failed. It is offered the \
                         common rates alone.",
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
            "Where each server's limit lies was sought before the blocks, to about {step} of it; beside the {} \
             rates that all were offered each has its own around that.",
            common.len()
        ));
        Ok(())
    }

    /// How long the window of a probe is.
    fn probe_s(&self) -> f64 {
        let budget = self.settings.experiment.budget(self.settings.quick);
        budget.min_window_seconds.max(PROBE_S)
    }

    /// How long the search of so many limits takes.
    fn time_for(&self, lines: u64) -> Duration {
        let probe_s = self.probe_s() + self.outcome.warmup_s + self.overhead();
        Duration::from_secs_f64(PROBES * lines as f64 * probe_s)
    }

    /// The replies a second of `line` at this rate, by itself; `None` where it could not be measured, or the
    /// generator was the bottleneck twice.
    fn answered(&mut self, line: &Cell, rate: f64) -> anyhow::Result<Option<f64>> {
        let mut cell = line.clone();
        cell.point.insert(RATE.into(), Value::Number(rate));
        let window_s = self.probe_s();
        let warmup_s = self.outcome.warmup_s;
        let step = LoadPhase { cell: &cell, drive: Drive::AsPlanned, window_s, warmup_s };
        for _ in 0..2 {
            // Arrivals that no block has.
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

    /// Where the search ends with a server that answers `of` the offered rate, and the number of probes.
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
    fn a_server_with_a_steady_limit_is_found_at_once() {
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
    fn noise_of_the_size_of_a_step_leads_nowhere_else() {
        use rand::{RngExt, SeedableRng, rngs::StdRng};
        let mut random = StdRng::seed_from_u64(3);
        for _ in 0..200 {
            let limit: f64 = random.random_range(600.0..1400.0);
            // Its limit is where it is offered a little too much; under heavy overload it answers less.
            let (limit_rps, probes) = found(0.0125, |rate: f64| {
                let lost = (rate / limit - 1.0).max(0.0) * random.random_range(0.0..0.8);
                limit * (1.0 - lost) * random.random_range(0.993..1.007)
            });
            let ratio = limit_rps.unwrap() / limit;
            assert!((0.97..1.03).contains(&ratio), "{ratio}");
            assert!(probes <= MOST_PROBES, "{probes}");
        }
    }

    /// How many of a thousand ladders in steps of `step` have rates on both sides of the limit, when probes last
    /// `probe_s` seconds, of which each differs from the others by a hundredth and a half, as with poll among idle
    /// connections.
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
    fn a_ladder_has_its_limit_within_however_fine_its_steps_are() {
        for step in [0.003, 0.004, 0.006, 0.0125] {
            let around = ladders_around(step, PROBE_S);
            assert!(around >= 985, "{step}: {around} of 1,000");
        }
        // With probes of a second it has not: so it is their length that does it.
        assert!(ladders_around(0.004, 1.0) < 800);
    }

    #[test]
    fn a_server_whose_rate_grows_with_the_load_has_its_limit_where_it_first_falls_short() {
        // At 1,200 it answers 1,200, at 1,450 1,275.
        let (found, probes) = found(0.0125, |rate| 1200.0 + 0.3 * (rate - 1200.0));
        let found = found.unwrap();
        assert!((1190.0..1230.0).contains(&found), "{found}");
        assert!(probes <= 6, "{probes}");
    }

    #[test]
    fn one_that_collapses_is_found_where_it_stands() {
        let (found, probes) = found(0.0125, |rate| if rate <= 1170.0 { rate } else { 400.0 });
        let found = found.unwrap();
        assert!((1130.0..=1170.0).contains(&found), "{found}");
        assert!(probes <= MOST_PROBES, "{probes}");
    }

    #[test]
    fn limits_beyond_the_rates() {
        assert_eq!(found(0.0125, |rate| rate).0, None, "it answers the highest");
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
            // Found a step too low or too high, it still has rates on both sides of the limit.
            let rates = around(1200.0, step, &[10.0, 9000.0]);
            assert!(rates[rates.len() - 1] > LAST * 1200.0 * (1.0 + step) - 1.0, "{step}");
            assert!(rates[0] < 1200.0 * (1.0 - step), "{step}");
            // And where one probe had a luck of a hundredth and a half.
            assert!(rates[0] < 1200.0 * 0.985, "{step}");
        }
    }
}
