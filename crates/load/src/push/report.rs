//! The results of a run with subscribers.

use super::record::{PublisherRecord, PushRun, SubscriberRecord, Subscribers};
use crate::{
    histogram::histogram,
    outcome::Failure,
    own_cpu::OwnCpu,
    ranks::RanksReport,
    record::Interval,
    times::Times,
    validity::{MAX_BUSY_UTILIZATION, MIN_JUDGED_S},
};
use serde::Serialize;
use std::{collections::BTreeMap, time::SystemTime};

/// The updates of a run, the warm-up's included.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Publications {
    /// By the schedule, or until the interrupt.
    pub scheduled: u64,
    /// Posted.
    pub sent: u64,
    /// Answered with a status of success.
    pub acknowledged: u64,
    /// Posted, and not acknowledged.
    pub failed: u64,
    /// The reason why the first one failed.
    pub first_failure: Option<String>,
}

/// The deliveries of the acknowledged updates, the warm-up's included. `expected` = `delivered` + `lost`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Deliveries {
    /// Acknowledged updates times subscribers.
    pub expected: u64,
    /// Updates that a subscriber received, each counted once.
    pub delivered: u64,
    /// Updates that a subscriber never received.
    pub lost: u64,
    /// Updates that a subscriber received again.
    pub duplicated: u64,
    /// Updates that a subscriber received after later ones.
    pub reordered: u64,
    /// Events whose content differs from the published content.
    pub corrupt: u64,
    /// Events that do not belong to this run, such as a server's greeting.
    pub foreign: u64,
}

/// The generator's own figures.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct PushGenerator {
    /// The delay of a publication: from the instant at which an update could have been posted (its
    /// scheduled instant, or the answer to the previous update) until it was posted.
    pub lag_us: Times,
    /// CPU time of the threads that hold subscribers, user and system, for each delivery.
    pub cpu_us_per_delivery: f64,
    /// CPU time by elapsed time, 0 to 1, of the thread that used most.
    pub cpu_utilization: f64,
    /// The fraction of elapsed time in which a thread waited for a CPU, of the thread that waited
    /// longest. `None` if the kernel does not count it.
    pub run_delay_share: Option<f64>,
    /// Threads that held subscribers.
    pub threads: usize,
}

/// All results of a run; serialised, the document of `pollux load --subscribe --json`.
#[derive(Debug, Serialize)]
pub struct PushReport {
    /// Whether the figures describe the server.
    pub valid: bool,
    /// The reason if they do not.
    pub invalid_reason: Option<String>,
    /// The subscription.
    pub url: String,
    /// The address that its host resolved to.
    pub address: String,
    /// The start of the schedule, in seconds of Unix time.
    pub started_at_unix_s: f64,
    /// The warm-up by the schedule, in seconds.
    pub warmup_s: f64,
    /// The length of the schedule, or the time until the interrupt; the warm-up included.
    pub duration_s: f64,
    /// From the start of the schedule until the last delivery, or until the end if deliveries are missing.
    pub elapsed_s: f64,
    /// Updates per second.
    pub offered_rps: f64,
    /// The length of an update's content in bytes.
    pub update_bytes: usize,
    /// The subscribers.
    pub subscribers: Subscribers,
    /// The updates.
    pub publications: Publications,
    /// Their deliveries.
    pub deliveries: Deliveries,
    /// From the scheduled instant of an update to each of its deliveries.
    pub latency_us: Times,
    /// From the scheduled instant of an update to its last delivery, for updates that all subscribers
    /// received.
    pub fan_out_us: Times,
    /// From the scheduled instant of an update until the server acknowledged it.
    pub answer_us: Times,
    /// From the instant of --reconnect-at until each subscriber had its stream again.
    pub reconnect_us: Times,
    /// Streams that ended or could not be opened, by reason.
    pub errors: BTreeMap<&'static str, u64>,
    /// Bytes received by subscribers.
    pub bytes_received: u64,
    /// The generator.
    pub generator: PushGenerator,
    /// Ended by a signal.
    pub interrupted: bool,
    /// The ranks of a run by several processes.
    pub ranks: Option<RanksReport>,
    /// The histograms of each second.
    #[serde(skip)]
    pub intervals: Vec<Interval>,
}

impl PushReport {
    /// Evaluates a run.
    pub(crate) fn new(run: PushRun, interrupted: bool) -> Self {
        let PushRun { plan, threads, publisher } = run;
        let publisher = publisher.unwrap_or_else(|| PublisherRecord::new(plan.schedule.len()));
        let mut generator = generator(&threads);
        let elapsed_s = threads.iter().map(|one| one.elapsed_ns).max().unwrap_or(0) as f64 / 1e9;
        let mut all = SubscriberRecord::new(plan.schedule.len());
        let cpu_ns: u64 = threads.iter().map(|thread| thread.cpu.used_ns).sum();
        threads.into_iter().for_each(|thread| all.merge(thread));
        all.intervals.extend(publisher.intervals.iter().cloned());
        all.intervals.sort_by_key(|interval| interval.start_ns);

        let subscribers = all.subscribers.wanted as u64;
        let acknowledged =
            || all.delivered.iter().zip(&publisher.acknowledged).filter(|(_, is)| **is);
        let delivered: u64 = acknowledged().map(|(&got, _)| u64::from(got)).sum();
        let expected = acknowledged().count() as u64 * subscribers;
        let received: u64 = all.delivered.iter().map(|&got| u64::from(got)).sum();
        let mut fan_out = histogram();
        for (number, (&got, &last_ns)) in all.delivered.iter().zip(&all.last_ns).enumerate() {
            let scheduled_ns = plan.schedule.at(number as u64).unwrap_or(0);
            if u64::from(got) == subscribers && plan.is_measured(scheduled_ns) {
                fan_out.saturating_record(last_ns.saturating_sub(scheduled_ns));
            }
        }
        generator.lag_us = Times::from(&publisher.lag);
        generator.cpu_us_per_delivery = cpu_ns as f64 / 1e3 / received.max(1) as f64;
        let started_at =
            plan.origin_time + std::time::Duration::from_nanos(plan.start_ns().unwrap_or_default());
        let warmup_s = plan.config.warmup.as_secs_f64();
        let failures = all.failures;
        // An interrupted run had only the beginning of its schedule. An update is sent at its instant or later.
        let until_ns = publisher.cut_ns.unwrap_or(u64::MAX);
        let scheduled = plan.schedule.before(until_ns).max(publisher.sent);
        let planned_s = plan.schedule.window_ns() as f64 / 1e9 + warmup_s;
        let mut report = Self {
            valid: true,
            invalid_reason: None,
            url: plan.config.url.to_string(),
            address: plan.destination.to_string(),
            started_at_unix_s: started_at
                .duration_since(SystemTime::UNIX_EPOCH)
                .map_or(0.0, |since| since.as_secs_f64()),
            warmup_s,
            duration_s: planned_s.min(until_ns as f64 / 1e9),
            elapsed_s,
            offered_rps: plan.config.rate_rps,
            update_bytes: plan.config.update_bytes,
            subscribers: all.subscribers,
            publications: Publications {
                scheduled,
                sent: publisher.sent,
                acknowledged: acknowledged().count() as u64,
                failed: publisher.failed,
                first_failure: publisher.first_failure,
            },
            deliveries: Deliveries {
                expected,
                delivered,
                lost: expected.saturating_sub(delivered),
                duplicated: all.duplicated,
                reordered: all.reordered,
                corrupt: all.corrupt,
                foreign: all.foreign,
            },
            latency_us: Times::from(&all.latency),
            fan_out_us: Times::from(&fan_out),
            answer_us: Times::from(&publisher.answer),
            reconnect_us: Times::from(&all.reconnect),
            errors: Failure::ALL
                .into_iter()
                .filter(|&kind| failures.of(kind) > 0)
                .map(|kind| (kind.name(), failures.of(kind)))
                .collect(),
            bytes_received: all.bytes_received,
            generator,
            interrupted,
            ranks: None,
            intervals: all.intervals,
        };
        report.invalid_reason = report.reason(plan.config.max_lag);
        report.valid = report.invalid_reason.is_none();
        report
    }

    /// The reason why the run does not describe the server, if there is one.
    fn reason(&self, max_lag: std::time::Duration) -> Option<String> {
        let max_lag_us = max_lag.as_nanos() as f64 / 1e3;
        let lag_us = self.generator.lag_us.p99;
        if lag_us > max_lag_us {
            return Some(format!(
                "the generator was the bottleneck: the 99th percentile of its own lag was {lag_us:.0} µs, \
                 above --max-lag {max_lag_us:.0} µs; give it a CPU of its own with --pin"
            ));
        }
        let busy = self.generator.cpu_utilization;
        (self.elapsed_s >= MIN_JUDGED_S && busy > MAX_BUSY_UTILIZATION).then(|| {
            format!(
                "the generator was the bottleneck: a thread was busy for {:.0} % of the time; lower \
                 --rate, or add CPUs with --threads and --pin",
                busy * 100.0
            )
        })
    }

    /// Whether every subscriber received every acknowledged update once, in order and complete.
    pub fn is_complete(&self) -> bool {
        let Deliveries { lost, duplicated, reordered, corrupt, .. } = self.deliveries;
        lost + duplicated + reordered + corrupt == 0
    }
}

fn generator(threads: &[SubscriberRecord]) -> PushGenerator {
    let share = |thread: &SubscriberRecord, time_ns: u64| match thread.elapsed_ns {
        0 => 0.0,
        elapsed_ns => (time_ns as f64 / elapsed_ns as f64).min(1.0),
    };
    let delay = |thread: &SubscriberRecord| {
        let OwnCpu { delayed_ns, .. } = thread.cpu;
        delayed_ns.map(|delayed_ns| share(thread, delayed_ns))
    };
    PushGenerator {
        cpu_utilization: threads
            .iter()
            .map(|thread| share(thread, thread.cpu.used_ns))
            .fold(0.0, f64::max),
        run_delay_share: threads.iter().filter_map(delay).reduce(f64::max),
        threads: threads.len(),
        ..PushGenerator::default()
    }
}
