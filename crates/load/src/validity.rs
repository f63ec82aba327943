//! Whether the figures of a run describe the server or the generator.
//!
//! There are two questions, for two kinds of figures:
//!
//! - `of_run`: was the generator the bottleneck? Then no figure of the report describes the server. The
//!   generator was the bottleneck if it never sent a part of the schedule, for lack of time or of
//!   descriptors and ports (httperf(1) has the same rule: the server did not get the load that the
//!   report states), or if its lag was beyond `--max-lag`, or if it was busy all the time. A closed
//!   loop has no schedule, so it has no lag; there the generator was the bottleneck if it was runnable
//!   without a CPU for more than `--max-starved` of the time.
//! - `of_latency`: are the latencies the server's? Latency counts from the scheduled instant, so each
//!   contains the generator's lag. Whether a lag is small depends on the latency: 1 ms is a tenth of a
//!   median of 10 ms, but more than a median of 200 µs. The rule: neither at the median nor at the 99th
//!   percentile may the lag be more than `--max-lag-share` of the latency (failures counted as the
//!   timeout). The rule does not affect rate, errors and the server's CPU time.

use crate::{
    config::{Config, Pace},
    generator::Generator,
    outcome::{Failure, Failures, Requests},
    times::Times,
};

/// A thread that is busy for more of its time than this has no reserve: it measures itself.
///
/// Busy is not the same as on its CPU. Between two instants that are a few microseconds apart, all of
/// the time is spent on falling asleep and waking up, or on polling; then the CPU is full although the
/// thread has time left. [`Generator::busy_utilization`] excludes that time.
pub const MAX_BUSY_UTILIZATION: f64 = 0.95;

/// A run shorter than this is not judged by its CPU time: start and end are most of it.
pub const MIN_JUDGED_S: f64 = 0.1;

/// The reason why the run does not describe the server, if there is one.
pub(crate) fn of_run(
    config: &Config,
    generator: &Generator,
    lag: &Times,
    requests: &Requests,
    failures: &Failures,
    elapsed_s: f64,
    interrupted: bool,
) -> Option<String> {
    let remedy = match config.pace {
        Pace::Open { .. } => "lower --rate, or add CPUs with --threads and --pin",
        Pace::Closed => "add CPUs with --threads and --pin",
    };
    if requests.unsent > 0 && !interrupted {
        return Some(format!(
            "the generator was the bottleneck: it never sent {} of {} requests; {remedy}",
            requests.unsent, requests.scheduled
        ));
    }
    for (kind, what) in [(Failure::NoDescriptors, "descriptor"), (Failure::NoPorts, "local port")] {
        let wanting = failures.of(kind);
        if wanting > 0 {
            return Some(format!(
                "the generator was the bottleneck: it had no {what} for {wanting} of {} requests; {}",
                requests.scheduled,
                kind.advice().unwrap_or_default()
            ));
        }
    }
    let max_lag_us = config.max_lag.as_nanos() as f64 / 1000.0;
    if lag.p99 > max_lag_us {
        return Some(format!(
            "the generator was the bottleneck: the 99th percentile of its own lag was {:.0} µs, \
             above --max-lag {:.0} µs; {remedy}",
            lag.p99, max_lag_us
        ));
    }
    if elapsed_s < MIN_JUDGED_S {
        return None;
    }
    if generator.busy_utilization > MAX_BUSY_UTILIZATION {
        return Some(format!(
            "the generator was the bottleneck: it was busy for {:.0} % of the time; {remedy}",
            generator.busy_utilization * 100.0
        ));
    }
    // With a warm-up, requests from before the window may still wait for a server that does not answer.
    let failed = requests.failed > 0 || requests.unfinished > 0;
    if config.pace == Pace::Closed
        && requests.sent == 0
        && !failed
        && config.warmup.is_zero()
        && !interrupted
    {
        return Some(format!(
            "the generator was the bottleneck: it sent no request in {elapsed_s:.1} s, as it does \
             when others have its CPU; stop what else runs, or give it a CPU of its own with --pin"
        ));
    }
    let starved = generator.run_delay_share.unwrap_or(0.0);
    if config.pace == Pace::Closed && starved > config.max_starved {
        return Some(format!(
            "the generator was the bottleneck: for {:.0} % of the time it waited for a CPU that \
             others had, above --max-starved {:.0}%; stop what else runs, or give it a CPU of its \
             own with --pin",
            starved * 100.0,
            config.max_starved * 100.0
        ));
    }
    None
}

/// The reason why the latencies are the generator's rather than the server's, if there is one.
pub(crate) fn of_latency(config: &Config, lag: &Times, latency: &Times) -> Option<String> {
    if lag.count == 0 || latency.count == 0 {
        return None;
    }
    for (name, lag_us, latency_us) in
        [("median", lag.p50, latency.p50), ("99th percentile", lag.p99, latency.p99)]
    {
        let share = lag_us / latency_us.max(f64::MIN_POSITIVE);
        if share > config.max_lag_share {
            return Some(format!(
                "at the {name} the generator's own lag, {lag_us:.0} µs, is {:.0} % of the latency, \
                 {latency_us:.0} µs, above --max-lag-share {:.0}%: give it a CPU of its own with \
                 --pin, or judge by the service time",
                share * 100.0,
                config.max_lag_share * 100.0
            ));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::Url;
    use std::time::Duration;

    fn config(pace: Pace) -> Config {
        let url: Url = "http://h/".parse().unwrap();
        Config { pace, ..Config::new(url, 1.0, Duration::from_secs(1)) }
    }

    const OPEN: Pace = Pace::Open { rate_rps: 1.0, arrivals: crate::schedule::Arrivals::Constant };

    struct Evidence {
        lag_p99_us: f64,
        busy: f64,
        starved: Option<f64>,
        unsent: u64,
        wanting: Option<Failure>,
        interrupted: bool,
    }

    const GOOD: Evidence = Evidence {
        lag_p99_us: 4_999.0,
        busy: 0.94,
        starved: Some(0.09),
        unsent: 0,
        wanting: None,
        interrupted: false,
    };

    fn judge(pace: Pace, evidence: &Evidence) -> Option<String> {
        let lag = Times { p99: evidence.lag_p99_us, ..Times::default() };
        let generator = Generator {
            lag_us: lag,
            cpu_us_per_request: 5.0,
            // Full because of polling, so it does not show load.
            cpu_utilization: 1.0,
            busy_utilization: evidence.busy,
            run_delay_share: evidence.starved,
            threads: 1,
        };
        let requests = Requests {
            scheduled: 10,
            sent: 10 - evidence.unsent,
            completed: 10 - evidence.unsent,
            failed: 0,
            unsent: evidence.unsent,
            unfinished: 0,
        };
        let mut failures = Failures::default();
        evidence.wanting.into_iter().for_each(|kind| failures.add(kind));
        of_run(&config(pace), &generator, &lag, &requests, &failures, 1.0, evidence.interrupted)
    }

    #[test]
    fn each_sign_of_a_slow_generator_is_named() {
        for pace in [OPEN, Pace::Closed] {
            assert_eq!(judge(pace, &GOOD), None);
            let late = judge(pace, &Evidence { lag_p99_us: 5_001.0, ..GOOD }).unwrap();
            assert!(late.contains("lag was 5001 µs"), "{late}");
            let busy = judge(pace, &Evidence { busy: 0.96, ..GOOD }).unwrap();
            assert!(busy.contains("busy for 96 %"), "{busy}");
            let unsent = judge(pace, &Evidence { unsent: 3, ..GOOD }).unwrap();
            assert!(unsent.contains("never sent 3 of 10"), "{unsent}");
            for (kind, expected) in [
                (Failure::NoDescriptors, "no descriptor for 1 of 10 requests; each thread has"),
                (Failure::NoPorts, "no local port for 1 of 10 requests; each source address"),
            ] {
                let short = judge(pace, &Evidence { wanting: Some(kind), ..GOOD }).unwrap();
                assert!(short.contains(expected), "{short}");
            }
            assert_eq!(judge(pace, &Evidence { wanting: Some(Failure::Timeout), ..GOOD }), None);
            let stopped = Evidence { unsent: 3, interrupted: true, ..GOOD };
            assert_eq!(judge(pace, &stopped), None, "an interrupt leaves requests unsent");
        }
    }

    #[test]
    fn a_closed_loop_that_is_kept_from_its_cpu_is_invalid() {
        let starved = Evidence { starved: Some(0.11), busy: 0.0, ..GOOD };
        let reason = judge(Pace::Closed, &starved).unwrap();
        assert!(reason.contains("for 11 %") && reason.contains("--max-starved 10%"), "{reason}");
        assert_eq!(judge(OPEN, &starved), None, "its lag shows it");
        assert_eq!(
            judge(Pace::Closed, &Evidence { starved: None, ..GOOD }),
            None,
            "not counted here"
        );
    }

    #[test]
    fn latencies_that_are_mostly_lag_are_reported() {
        let times = |p50, p99| Times { count: 9, p50, p99, ..Times::default() };
        let judge = |lag, latency| of_latency(&config(OPEN), &lag, &latency);
        assert_eq!(judge(times(50.0, 500.0), times(100.0, 1_000.0)), None);
        let tail = judge(times(50.0, 501.0), times(100.0, 1_000.0)).unwrap();
        assert!(tail.contains("99th percentile") && tail.contains("50 %"), "{tail}");
        let median = judge(times(51.0, 52.0), times(100.0, 1_000.0)).unwrap();
        assert!(median.contains("median") && median.contains("51 µs"), "{median}");
        // A lag of 4 ms is negligible where answers take a second.
        assert_eq!(judge(times(100.0, 4_000.0), times(900_000.0, 1e6)), None);
        assert_eq!(judge(Times::default(), times(1.0, 1.0)), None, "a closed loop has no lag");
        assert_eq!(judge(times(1.0, 1.0), Times::default()), None, "nothing was answered");
    }
}
