//! The results of a run: the figures of the text and the JSON output.

use crate::{
    config::{Config, Pace},
    generator::Generator,
    idle::IdleReport,
    omission,
    outcome::{Failure, Requests},
    plan::Plan,
    ranks::RanksReport,
    record::{Interval, Recorder},
    reply_rate::ReplyRate,
    series::Columns,
    session::Sessions,
    thread::ThreadResult,
    times::Times,
    tls::TlsReport,
    validity,
};
use hdrhistogram::Histogram;
use serde::Serialize;
use std::{collections::BTreeMap, time::SystemTime};

/// The connections of the set-up and the measured part.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Connections {
    /// Handshakes completed.
    pub opened: u64,
    /// Handshakes that failed.
    pub failed: u64,
    /// Kept-alive connections that the server closed between requests.
    pub dropped_idle: u64,
}

/// Replies that were not accepted, by reason: `malformed` and `length` are `errors.bad_reply`, `status`
/// is `errors.status`.
#[derive(Clone, Debug, Serialize)]
pub struct BadReplies {
    /// Not HTTP, or with wrong framing.
    pub malformed: u64,
    /// The fault of the first of these.
    pub first_malformed: Option<String>,
    /// An unexpected status.
    pub status: u64,
    /// An unexpected length.
    pub length: u64,
}

/// All results of a run; serialised, the document of `pollux load --json`.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Whether the figures describe the server.
    pub valid: bool,
    /// The reason if they do not.
    pub invalid_reason: Option<String>,
    /// Whether the latencies are the server's. They are not where the generator's own lag is a large
    /// part of them, although the other figures of a valid run are ([`crate::validity`]).
    pub latency_valid: bool,
    /// The reason if they are not.
    pub latency_invalid_reason: Option<String>,
    /// Notes for readers of the figures, in sentences.
    pub notes: Vec<String>,
    /// The first URL.
    pub url: String,
    /// The server's address.
    pub address: String,
    /// `open` or `closed`.
    pub mode: &'static str,
    /// The schedule's rate; none in a closed loop.
    pub offered_rps: Option<f64>,
    /// The length of the measured part in seconds: by the schedule, or until the interrupt; in a closed
    /// loop its real length.
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
    /// The time from the scheduled instant to the end of the reply, of the good replies alone.
    pub latency_us: Times,
    /// The same with the failures, each with the time until it failed and at least the timeout: a
    /// server that answers some requests and leaves others waiting has no better percentiles than one
    /// that answers late.
    pub latency_with_failures_us: Times,
    /// In a closed loop, an estimate of the requests that were not sent because their connections
    /// waited for slow replies; 0 in an open loop, which sends them.
    pub omitted_requests: u64,
    /// From the send to the end of the reply.
    pub service_us: Times,
    /// From connect(2) to the end of the handshake.
    pub connect_us: Times,
    /// TLS handshakes; none of `http` URLs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls: Option<TlsReport>,
    /// Failed requests by kind.
    pub errors: BTreeMap<&'static str, u64>,
    /// The system's message for the first failure counted as `other`.
    pub first_other: Option<String>,
    /// Bad replies by reason.
    pub bad_replies: BadReplies,
    /// Complete replies by status.
    pub statuses: BTreeMap<u16, u64>,
    /// The run in short intervals, the warm-up included.
    pub series: Columns,
    /// The warm-up by the schedule, in seconds.
    pub warmup_s: f64,
    /// The generator's own figures.
    pub generator: Generator,
    /// Idle connections held meanwhile.
    pub idle: IdleReport,
    /// Bytes received for the requests of the measured part, heads and all.
    pub bytes_received: u64,
    /// Bytes of content of the complete replies, whatever their status and length.
    pub content_bytes: u64,
    /// The seed of the schedule.
    pub seed: u64,
    /// The start of the measured part, in seconds since 1970 (UTC).
    pub started_at_unix_s: f64,
    /// Ended by SIGINT or SIGTERM.
    pub interrupted: bool,
    /// The part of each rank, in a run by several ranks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ranks: Option<RanksReport>,
    /// The latencies of the good replies, whose quantiles are `latency_us`.
    #[serde(skip)]
    pub latencies: Histogram<u64>,
    /// The intervals for `--hdr`.
    #[serde(skip)]
    pub intervals: Vec<Interval>,
}

impl Report {
    /// Combines the threads' measurements.
    pub(crate) fn new(
        config: &Config,
        plan: &Plan,
        threads: Vec<ThreadResult>,
        idle: IdleReport,
        interrupted: bool,
    ) -> Self {
        let generator = Generator::new(&threads);
        let scheduled = threads.iter().map(|thread| thread.scheduled).sum();
        let unsent = threads.iter().map(|thread| thread.unsent).sum();
        let unfinished = threads.iter().map(|thread| thread.unfinished).sum();
        let elapsed_ns = threads.iter().map(|thread| thread.elapsed_ns).max().unwrap_or(0);
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
        let verdict = validity::of_run(
            config,
            &generator,
            &lag,
            &requests,
            &recorder.failures,
            elapsed_s,
            interrupted,
        );
        let with_failures = recorder.latency_with_failures(plan.timeout_ns);
        let latency_with_failures_us = Times::from(&with_failures);
        let latency_verdict = validity::of_latency(config, &lag, &latency_with_failures_us);
        let omitted_requests = match config.pace {
            Pace::Open { .. } => 0,
            Pace::Closed => omission::omitted(&recorder.latency, &recorder.failed_latency),
        };
        let note = omission::note(omitted_requests, &recorder.latency, &recorder.failed_latency);
        let statuses = (0u16..).zip(&recorder.statuses).filter(|&(_, &count)| count > 0);
        let statuses = statuses.map(|(status, &count)| (status, count)).collect();
        Self {
            valid: verdict.is_none(),
            invalid_reason: verdict,
            latency_valid: latency_verdict.is_none(),
            latency_invalid_reason: latency_verdict,
            notes: note.into_iter().collect(),
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
            reply_rate_rps: ReplyRate::new(&recorder, window_ns, plan.is_counted),
            latency_us: Times::from(&recorder.latency),
            latency_with_failures_us,
            omitted_requests,
            service_us: Times::from(&recorder.service),
            connect_us: Times::from(&recorder.connect),
            tls: plan.tls.as_ref().map(|_| TlsReport::new(&recorder, elapsed_s)),
            errors: Failure::ALL
                .iter()
                .map(|&kind| (kind.name(), recorder.failures.of(kind)))
                .collect(),
            first_other: recorder.other_reason(),
            bad_replies: BadReplies {
                malformed: recorder.bad_replies.malformed,
                first_malformed: recorder.bad_replies.first_malformed.take(),
                status: recorder.bad_replies.status,
                length: recorder.bad_replies.length,
            },
            statuses,
            series: recorder.series.columns(plan.warmup_ns, window_ns),
            warmup_s: plan.warmup_ns as f64 / 1e9,
            generator: Generator { lag_us: lag, ..generator },
            idle,
            bytes_received: recorder.bytes_received,
            content_bytes: recorder.content_bytes,
            seed: plan.seed,
            started_at_unix_s: unix_s(plan.origin_time) + measured_ns as f64 / 1e9,
            interrupted,
            ranks: None,
            intervals: recorder.take_intervals(),
            latencies: recorder.latency,
        }
    }
}

fn unix_s(time: SystemTime) -> f64 {
    time.duration_since(SystemTime::UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

fn merge(threads: Vec<ThreadResult>) -> Recorder {
    let mut recorders = threads.into_iter().map(|thread| thread.recorder);
    let mut whole = recorders.next().expect("there is at least one thread");
    recorders.for_each(|recorder| whole.merge(recorder));
    whole
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A report in which nothing happened.
    pub(crate) fn empty() -> Report {
        let config =
            Config::new("http://127.0.0.1/".parse().unwrap(), 1.0, std::time::Duration::MAX);
        let config = Config { length: crate::schedule::Length::Requests(1), ..config };
        let plan = Plan::new(&config, "127.0.0.1:80".parse().unwrap()).unwrap();
        Report::new(&config, &plan, vec![ThreadResult::empty()], IdleReport::default(), false)
    }

    /// Units and meanings are on a page of the book.
    #[test]
    fn the_book_explains_each_field_of_the_document() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/measuring.md");
        let page = std::fs::read_to_string(path).unwrap();
        let document = serde_json::to_value(empty()).unwrap();
        let fields = document.as_object().unwrap();
        assert!(fields.len() > 20, "{fields:?}");
        let missing: Vec<_> =
            fields.keys().filter(|name| !page.contains(&format!("`{name}`"))).collect();
        assert!(missing.is_empty(), "docs/measuring.md does not explain {missing:?}");
    }
}
