//! The generator's own figures, and whether it, and not the server, set the limit.

use crate::{
    config::{Config, Pace},
    report::{Requests, Times},
    thread::Measured,
};
use serde::Serialize;

/// A thread that uses more of its CPU than this has no time left: what it measures is itself.
pub const MAX_CPU_UTILIZATION: f64 = 0.95;

/// A run shorter than this is not judged by its CPU time: start and end are most of it.
pub const MIN_JUDGED_S: f64 = 0.1;

/// The generator's own figures.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Generator {
    /// From the scheduled instant until the request was taken up; empty in a closed loop.
    pub lag_us: Times,
    /// CPU time of all threads, user and system, per request of the measured part.
    pub cpu_us_per_request: f64,
    /// Of the busiest thread: CPU time by elapsed time, 0 to 1.
    pub cpu_utilization: f64,
    /// Threads that sent.
    pub threads: usize,
}

impl Generator {
    pub(crate) fn new(threads: &[Measured]) -> Self {
        let cpu_ns: u64 = threads.iter().map(|thread| thread.cpu_ns).sum();
        let requests: u64 = threads
            .iter()
            .map(|thread| thread.recorder.completed + thread.recorder.failures.total())
            .sum();
        let utilization = |thread: &Measured| match thread.elapsed_ns {
            0 => 0.0,
            elapsed_ns => (thread.cpu_ns as f64 / elapsed_ns as f64).min(1.0),
        };
        Self {
            lag_us: Times::default(),
            cpu_us_per_request: cpu_ns as f64 / 1000.0 / requests.max(1) as f64,
            cpu_utilization: threads.iter().map(utilization).fold(0.0, f64::max),
            threads: threads.len(),
        }
    }
}

/// Why the run says nothing about the server, if so.
pub(crate) fn verdict(
    config: &Config,
    generator: &Generator,
    lag: &Times,
    requests: &Requests,
    elapsed_s: f64,
    interrupted: bool,
) -> Option<String> {
    let remedy = "lower --rate, or add CPUs with --threads and --pin";
    if requests.unsent > 0 && !interrupted {
        return Some(format!(
            "the generator was the bottleneck: it never sent {} of {} requests; {remedy}",
            requests.unsent, requests.scheduled
        ));
    }
    let max_lag_us = config.max_lag.as_nanos() as f64 / 1000.0;
    if lag.p99 > max_lag_us {
        return Some(format!(
            "the generator was the bottleneck: the 99th percentile of its own lag was {:.0} µs, \
             above --max-lag {:.0} µs; {remedy}",
            lag.p99, max_lag_us
        ));
    }
    if generator.cpu_utilization > MAX_CPU_UTILIZATION && elapsed_s >= MIN_JUDGED_S {
        let remedy = match config.pace {
            Pace::Open { .. } => remedy,
            Pace::Closed => "add CPUs with --threads and --pin",
        };
        return Some(format!(
            "the generator was the bottleneck: it used {:.0} % of its CPU; {remedy}",
            generator.cpu_utilization * 100.0
        ));
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::Url;
    use std::time::Duration;

    fn judge(p99_us: f64, utilization: f64, unsent: u64, interrupted: bool) -> Option<String> {
        let url: Url = "http://h/".parse().unwrap();
        let config = Config::new(url, 1.0, Duration::from_secs(1));
        let lag = Times { p99: p99_us, ..Times::default() };
        let generator = Generator {
            lag_us: lag,
            cpu_us_per_request: 5.0,
            cpu_utilization: utilization,
            threads: 1,
        };
        let requests = Requests {
            scheduled: 10,
            sent: 10 - unsent,
            completed: 10 - unsent,
            failed: 0,
            unsent,
            unfinished: 0,
        };
        verdict(&config, &generator, &lag, &requests, 1.0, interrupted)
    }

    #[test]
    fn each_sign_of_a_slow_generator_is_named() {
        assert_eq!(judge(4_999.0, 0.94, 0, false), None);
        assert!(judge(5_001.0, 0.1, 0, false).unwrap().contains("lag"));
        assert!(judge(1.0, 0.96, 0, false).unwrap().contains("96 % of its CPU"));
        assert!(judge(1.0, 0.1, 3, false).unwrap().contains("never sent 3 of 10"));
        assert_eq!(judge(1.0, 0.1, 3, true), None, "an interrupt leaves requests unsent");
    }
}
