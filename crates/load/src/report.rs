//! What a run found: the figures of the text and the JSON output.

use crate::{
    config::{Config, Pace},
    generator::{self, Generator},
    idle::IdleReport,
    outcome::Failure,
    plan::Plan,
    record::{Interval, Recorder, SAMPLE_NS},
    session::Sessions,
    thread::Measured,
};
use hdrhistogram::Histogram;
use serde::Serialize;
use std::{collections::BTreeMap, time::SystemTime};

/// A distribution of times in microseconds. Without values (`count` 0) all are 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Times {
    /// How many values.
    pub count: u64,
    /// Mean.
    pub mean: f64,
    /// Standard deviation.
    pub stddev: f64,
    /// Least.
    pub min: f64,
    /// Median.
    pub p50: f64,
    /// 90th percentile.
    pub p90: f64,
    /// 95th percentile.
    pub p95: f64,
    /// 99th percentile.
    pub p99: f64,
    /// 99.9th percentile.
    pub p99_9: f64,
    /// 99.99th percentile.
    pub p99_99: f64,
    /// Greatest.
    pub max: f64,
}

impl From<&Histogram<u64>> for Times {
    fn from(histogram: &Histogram<u64>) -> Self {
        if histogram.is_empty() {
            return Self::default();
        }
        let us = |nanoseconds: u64| nanoseconds as f64 / 1000.0;
        let at = |quantile: f64| us(histogram.value_at_quantile(quantile));
        Self {
            count: histogram.len(),
            mean: histogram.mean() / 1000.0,
            stddev: histogram.stdev() / 1000.0,
            min: us(histogram.min()),
            p50: at(0.5),
            p90: at(0.9),
            p95: at(0.95),
            p99: at(0.99),
            p99_9: at(0.999),
            p99_99: at(0.9999),
            max: us(histogram.max()),
        }
    }
}

/// How many requests went which way. `scheduled` = `completed` + `failed` + `unsent` +
/// `unfinished`.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Requests {
    /// Their instant came within the measured part.
    pub scheduled: u64,
    /// Sent, whole or in part.
    pub sent: u64,
    /// Answered as expected.
    pub completed: u64,
    /// Ended in an error.
    pub failed: u64,
    /// Never taken up by the generator.
    pub unsent: u64,
    /// Without an outcome when the run was interrupted.
    pub unfinished: u64,
}

/// Good replies a second, httperf's figures.
#[derive(Clone, Debug, Serialize)]
pub struct ReplyRate {
    /// Over the whole measured part.
    pub mean: f64,
    /// Of the samples.
    pub min: f64,
    /// Of the samples.
    pub max: f64,
    /// Of the samples.
    pub stddev: f64,
    /// One for each whole second of the measured part.
    pub samples: Vec<f64>,
}

/// What happened to connections in the set-up and the measured part.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Connections {
    /// Handshakes completed.
    pub opened: u64,
    /// Handshakes that failed.
    pub failed: u64,
    /// Kept-alive connections that the server closed between requests.
    pub dropped_idle: u64,
}

/// Bad replies by reason; their sum is `errors.bad_reply`.
#[derive(Clone, Debug, Serialize)]
pub struct BadReplies {
    /// Not HTTP, or wrongly framed.
    pub malformed: u64,
    /// What was wrong with the first of these, in words.
    pub first_malformed: Option<String>,
    /// An unexpected status.
    pub status: u64,
    /// An unexpected length.
    pub length: u64,
}

/// All that a run found; serialised, the document of `pollux load --json`.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Whether the figures say something about the server.
    pub valid: bool,
    /// Why they do not.
    pub invalid_reason: Option<String>,
    /// The first URL.
    pub url: String,
    /// The server's address.
    pub address: String,
    /// `open` or `closed`.
    pub mode: &'static str,
    /// The schedule's rate; none in a closed loop.
    pub offered_rps: Option<f64>,
    /// The measured part in seconds: by the schedule, or until the interrupt, or in a closed loop
    /// as it was.
    pub duration_s: f64,
    /// From the start of the measured part until the last request had its outcome.
    pub elapsed_s: f64,
    /// Requests.
    pub requests: Requests,
    /// Connections.
    pub connections: Connections,
    /// How sessions ended; without sessions all 0.
    pub sessions: Sessions,
    /// Replies a second.
    pub reply_rate_rps: ReplyRate,
    /// From the scheduled instant to the end of the reply.
    pub latency_us: Times,
    /// From the send to the end of the reply.
    pub service_us: Times,
    /// From connect(2) to the end of the handshake.
    pub connect_us: Times,
    /// Failed requests by kind.
    pub errors: BTreeMap<&'static str, u64>,
    /// Bad replies by reason.
    pub bad_replies: BadReplies,
    /// Whole replies by status.
    pub statuses: BTreeMap<u16, u64>,
    /// The generator's own figures.
    pub generator: Generator,
    /// Idle connections held meanwhile.
    pub idle: IdleReport,
    /// Bytes received, heads and all.
    pub bytes_received: u64,
    /// Bytes of content received.
    pub content_bytes: u64,
    /// The seed of the schedule.
    pub seed: u64,
    /// When the measured part began, in seconds since 1970 (UTC).
    pub started_at_unix_s: f64,
    /// Ended by SIGINT or SIGTERM.
    pub interrupted: bool,
    /// For `--hdr`.
    #[serde(skip)]
    pub intervals: Vec<Interval>,
}

impl Report {
    /// Puts the threads' measurements together.
    pub(crate) fn new(
        config: &Config,
        plan: &Plan,
        threads: Vec<Measured>,
        idle: IdleReport,
        interrupted: bool,
    ) -> Self {
        let generator = Generator::new(&threads);
        let scheduled = threads.iter().map(|thread| thread.scheduled).sum();
        let unsent = threads.iter().map(|thread| thread.unsent).sum();
        let unfinished = threads.iter().map(|thread| thread.unfinished).sum();
        let elapsed_ns = threads.iter().map(|thread| thread.elapsed_ns).max().unwrap_or(0);
        let last_outcome_ns = threads.iter().map(|t| t.last_outcome_ns).max().unwrap_or(0);
        let measured_ns = threads.iter().map(|thread| thread.measured_ns).max().unwrap_or(0);
        let mut recorder = merge(threads);

        let window_ns = if interrupted || plan.closed_requests.is_some() {
            elapsed_ns.min(plan.window_ns)
        } else {
            plan.window_ns
        };
        let requests = Requests {
            scheduled,
            sent: recorder.sent,
            completed: recorder.completed,
            failed: recorder.failures.total(),
            unsent,
            unfinished,
        };
        let lag = Times::from(&recorder.lag);
        let elapsed_s = elapsed_ns as f64 / 1e9;
        let verdict =
            generator::verdict(config, &generator, &lag, &requests, elapsed_s, interrupted);
        let statuses = (0u16..).zip(&recorder.statuses).filter(|&(_, &count)| count > 0);
        let statuses = statuses.map(|(status, &count)| (status, count)).collect();
        Self {
            valid: verdict.is_none(),
            invalid_reason: verdict,
            url: plan.targets.urls()[0].to_string(),
            address: plan.destination.to_string(),
            mode: if plan.schedule.is_some() { "open" } else { "closed" },
            offered_rps: match config.pace {
                Pace::Open { rate_rps, .. } => Some(rate_rps),
                Pace::Closed => None,
            },
            duration_s: window_ns as f64 / 1e9,
            elapsed_s,
            requests,
            connections: Connections {
                opened: recorder.connections.opened,
                failed: recorder.connections.failed,
                dropped_idle: recorder.connections.dropped_idle,
            },
            sessions: recorder.sessions,
            reply_rate_rps: reply_rate(&recorder, window_ns, last_outcome_ns),
            latency_us: Times::from(&recorder.latency),
            service_us: Times::from(&recorder.service),
            connect_us: Times::from(&recorder.connect),
            errors: Failure::ALL
                .iter()
                .map(|&kind| (kind.name(), recorder.failures.of(kind)))
                .collect(),
            bad_replies: BadReplies {
                malformed: recorder.bad_replies.malformed,
                first_malformed: recorder.bad_replies.first_malformed.take(),
                status: recorder.bad_replies.status,
                length: recorder.bad_replies.length,
            },
            statuses,
            generator: Generator { lag_us: lag, ..generator },
            idle,
            bytes_received: recorder.bytes_received,
            content_bytes: recorder.content_bytes,
            seed: plan.seed,
            started_at_unix_s: unix_s(plan.origin_time) + measured_ns as f64 / 1e9,
            interrupted,
            intervals: recorder.take_intervals(),
        }
    }
}

fn unix_s(time: SystemTime) -> f64 {
    time.duration_since(SystemTime::UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

fn merge(threads: Vec<Measured>) -> Recorder {
    let mut recorders = threads.into_iter().map(|thread| thread.recorder);
    let mut whole = recorders.next().expect("there is at least one thread");
    recorders.for_each(|recorder| whole.merge(recorder));
    whole
}

/// The samples of the whole seconds in the window. A window shorter than a second has one sample,
/// over the time until the last outcome if that is later: a single request has a rate too.
fn reply_rate(recorder: &Recorder, window_ns: u64, last_outcome_ns: u64) -> ReplyRate {
    let whole = (window_ns / SAMPLE_NS) as usize;
    if whole == 0 {
        let time_ns = window_ns.max(last_outcome_ns).max(1);
        let rate = recorder.completed as f64 * 1e9 / time_ns as f64;
        return ReplyRate { mean: rate, min: rate, max: rate, stddev: 0.0, samples: vec![rate] };
    }
    let in_window = window_ns.div_ceil(SAMPLE_NS) as usize;
    let replies: u64 = recorder.samples.iter().take(in_window).sum();
    let mut samples: Vec<f64> =
        recorder.samples.iter().take(whole).map(|&count| count as f64).collect();
    samples.resize(whole, 0.0);
    let average = samples.iter().sum::<f64>() / whole as f64;
    let squares: f64 = samples.iter().map(|sample| (sample - average).powi(2)).sum();
    // The standard deviation of a sample, as httperf has it.
    let stddev = if whole > 1 { (squares / (whole - 1) as f64).sqrt() } else { 0.0 };
    ReplyRate {
        mean: replies as f64 * 1e9 / window_ns as f64,
        min: samples.iter().copied().fold(f64::INFINITY, f64::min),
        max: samples.iter().copied().fold(0.0, f64::max),
        stddev,
        samples,
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::record::Reply;

    /// A report in which nothing happened.
    pub(crate) fn empty() -> Report {
        let config =
            Config::new("http://127.0.0.1/".parse().unwrap(), 1.0, std::time::Duration::MAX);
        let config = Config { length: crate::schedule::Length::Requests(1), ..config };
        let plan = Plan::new(&config, "127.0.0.1:80".parse().unwrap()).unwrap();
        let measured = Measured {
            recorder: Recorder::new(SAMPLE_NS, false),
            scheduled: 0,
            unsent: 0,
            unfinished: 0,
            measured_ns: 0,
            elapsed_ns: 0,
            cpu_ns: 0,
            spare_ns: 0,
            last_outcome_ns: 0,
        };
        Report::new(&config, &plan, vec![measured], IdleReport::default(), false)
    }

    fn recorder(at: &[u64], window_ns: u64) -> Recorder {
        let mut recorder = Recorder::new(window_ns, false);
        for &at_ns in at {
            recorder.complete(Reply { latency_ns: 1, service_ns: 1, at_ns });
        }
        recorder
    }

    #[test]
    fn the_rate_is_that_of_the_window_whatever_comes_later() {
        let second = SAMPLE_NS;
        let all = [0, 1, 2, second, second + 1, 2 * second + 5, 9 * second];
        let rate = reply_rate(&recorder(&all, 2 * second), 2 * second, 9 * second);
        assert_eq!(rate.samples, [3.0, 2.0]);
        assert_eq!((rate.mean, rate.min, rate.max), (2.5, 2.0, 3.0));
        assert!((rate.stddev - 0.5f64.sqrt()).abs() < 1e-12);
    }

    #[test]
    fn a_part_of_a_second_counts_in_the_mean_only() {
        let second = SAMPLE_NS;
        let rate = reply_rate(&recorder(&[0, second + 1], 3 * second / 2), 3 * second / 2, 0);
        assert_eq!(rate.samples, [1.0]);
        assert!((rate.mean - 2.0 / 1.5).abs() < 1e-12);
    }

    #[test]
    fn one_request_has_a_rate() {
        let rate = reply_rate(&recorder(&[500_000_000], 1_000_000), 1_000_000, 500_000_000);
        assert_eq!(rate.mean, 2.0);
    }

    #[test]
    fn times_are_in_microseconds() {
        let mut histogram = crate::record::histogram();
        for nanoseconds in 1..=1000u64 {
            histogram.record(nanoseconds * 1000).unwrap();
        }
        let times = Times::from(&histogram);
        assert_eq!(times.count, 1000);
        assert!((times.mean - 500.5).abs() < 0.5, "{}", times.mean);
        assert!((times.p50 - 500.0).abs() < 1.0 && (times.p99 - 990.0).abs() < 1.0);
        assert!((times.max - 1000.0).abs() < 1.0);
        assert_eq!(Times::from(&crate::record::histogram()), Times::default());
    }
}
