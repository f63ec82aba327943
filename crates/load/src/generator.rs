//! The generator's own figures, and whether it, and not the server, set the limit.

use crate::{
    config::{Config, Pace},
    report::{Requests, Times},
    thread::Measured,
};
use serde::Serialize;

/// A thread that is busy for more of its time than this has none left: what it measures is itself.
///
/// Busy is not the same as on its CPU. Between two instants that are a few microseconds apart all
/// of the time goes into falling asleep and waking up, or into polling; then the CPU is full although
/// the thread has time to spare. [`Generator::busy_utilization`] leaves that time out.
pub const MAX_BUSY_UTILIZATION: f64 = 0.95;

/// A run shorter than this is not judged by its CPU time: start and end are most of it.
pub const MIN_JUDGED_S: f64 = 0.1;

impl Measured {
    /// The time in which the thread had something to do, at most: it lies within its CPU time, and
    /// outside of what it is known to have waited.
    fn busy_ns(&self) -> u64 {
        self.cpu_ns.min(self.elapsed_ns.saturating_sub(self.spare_ns))
    }
}

/// The generator's own figures.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Generator {
    /// From the scheduled instant until the request was taken up; empty in a closed loop.
    pub lag_us: Times,
    /// CPU time of all threads, user and system, per request of the measured part.
    pub cpu_us_per_request: f64,
    /// Of the thread that used most: all CPU time by elapsed time, 0 to 1.
    pub cpu_utilization: f64,
    /// Of the busiest thread: the share of elapsed time in which it had something to do, 0 to 1;
    /// at most `cpu_utilization`. A run in which it is above [`MAX_BUSY_UTILIZATION`] is invalid.
    pub busy_utilization: f64,
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
        let busiest = |time_ns: fn(&Measured) -> u64| {
            let share = |thread: &Measured| match thread.elapsed_ns {
                0 => 0.0,
                elapsed_ns => (time_ns(thread) as f64 / elapsed_ns as f64).min(1.0),
            };
            threads.iter().map(share).fold(0.0, f64::max)
        };
        Self {
            lag_us: Times::default(),
            cpu_us_per_request: cpu_ns as f64 / 1000.0 / requests.max(1) as f64,
            cpu_utilization: busiest(|thread| thread.cpu_ns),
            busy_utilization: busiest(Measured::busy_ns),
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
    if generator.busy_utilization > MAX_BUSY_UTILIZATION && elapsed_s >= MIN_JUDGED_S {
        let remedy = match config.pace {
            Pace::Open { .. } => remedy,
            Pace::Closed => "add CPUs with --threads and --pin",
        };
        return Some(format!(
            "the generator was the bottleneck: it was busy for {:.0} % of the time; {remedy}",
            generator.busy_utilization * 100.0
        ));
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::Url;
    use std::time::Duration;

    fn judge(p99_us: f64, busy_utilization: f64, unsent: u64, interrupted: bool) -> Option<String> {
        let url: Url = "http://h/".parse().unwrap();
        let config = Config::new(url, 1.0, Duration::from_secs(1));
        let lag = Times { p99: p99_us, ..Times::default() };
        let generator = Generator {
            lag_us: lag,
            cpu_us_per_request: 5.0,
            // Full of polling, which says nothing.
            cpu_utilization: 1.0,
            busy_utilization,
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
    fn time_to_spare_is_not_busy_whether_it_was_slept_or_polled() {
        let measured = |cpu_ns, spare_ns| Measured {
            recorder: crate::record::Recorder::new(1_000_000_000, false),
            scheduled: 0,
            unsent: 0,
            unfinished: 0,
            measured_ns: 0,
            elapsed_ns: 1_000,
            cpu_ns,
            spare_ns,
            last_outcome_ns: 0,
        };
        let shares = |threads: &[Measured]| {
            let generator = Generator::new(threads);
            (generator.cpu_utilization, generator.busy_utilization)
        };
        assert_eq!(shares(&[measured(1_000, 400)]), (1.0, 0.6), "it polled");
        assert_eq!(shares(&[measured(300, 650)]), (0.3, 0.3), "it slept, and was woken by replies");
        assert_eq!(shares(&[measured(1_000, 0)]), (1.0, 1.0), "never idle");
        assert_eq!(shares(&[measured(500, 0), measured(1_000, 900)]), (1.0, 0.5), "two threads");
        assert_eq!(shares(&[measured(1_100, 1_100)]), (1.0, 0.0), "clocks differ by a little");
    }

    #[test]
    fn each_sign_of_a_slow_generator_is_named() {
        assert_eq!(judge(4_999.0, 0.94, 0, false), None);
        assert!(judge(5_001.0, 0.1, 0, false).unwrap().contains("lag"));
        assert!(judge(1.0, 0.96, 0, false).unwrap().contains("busy for 96 %"));
        assert!(judge(1.0, 0.1, 3, false).unwrap().contains("never sent 3 of 10"));
        assert_eq!(judge(1.0, 0.1, 3, true), None, "an interrupt leaves requests unsent");
    }
}
