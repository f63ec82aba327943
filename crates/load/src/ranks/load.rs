//! `pollux load` by several ranks.

use super::{
    Heartbeat, OWN_CLOCK, PeerResults, Ranks,
    clock::{ClockOffset, ClockReading},
    report::{ClockComparison, RankReport},
    share,
};
use crate::{
    config::Config,
    idle::IdleReport,
    report::Report,
    run::{self, Run},
    thread::{Gauges, ThreadResult},
};
use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use std::{
    hash::{DefaultHasher, Hash, Hasher},
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

/// A longer description is sent as its beginning and a hash.
const MAX_TASK_CHARACTERS: usize = 16 << 10;

/// A description of everything in `config` that must be the same on every rank; addresses and CPUs,
/// which belong to one host, are omitted.
pub fn task(config: &Config) -> String {
    let common = Config {
        sources: None,
        cpus: Vec::new(),
        hdr: config.hdr.as_ref().map(|_| PathBuf::new()),
        progress: false,
        ..config.clone()
    };
    let text = format!("load {common:?}");
    if text.chars().count() <= MAX_TASK_CHARACTERS {
        return text;
    }
    let mut hash = DefaultHasher::new();
    text.hash(&mut hash);
    let start: String = text.chars().take(MAX_TASK_CHARACTERS).collect();
    format!("{start} {:016x}", hash.finish())
}

/// The result of a rank.
#[derive(Serialize, Deserialize)]
struct RankOutcome {
    threads: Vec<ThreadResult>,
    idle: IdleReport,
    /// The time by which it missed the common start.
    late_ns: u64,
}

/// The time from `now_ns` to the common start at `at_ns` by the same clock, and the time by which the
/// start was missed.
fn until_start(at_ns: i64, now_ns: i64) -> (u64, u64) {
    let left_ns = at_ns.saturating_sub(now_ns);
    (left_ns.max(0).unsigned_abs(), left_ns.min(0).unsigned_abs())
}

/// Runs this rank's part of `config`. Rank 0 returns the report of all ranks, the others `None`.
///
/// # Errors
/// As [`crate::run()`], of any rank: rank 0 names the rank.
pub fn run(config: &Config, ranks: &mut Ranks, stop: &AtomicBool) -> Result<Option<Report>> {
    match try_run(config, ranks, stop) {
        Ok(report) => Ok(report),
        Err(error) => ranks.give_up(error).map(|()| None),
    }
}

fn try_run(config: &Config, ranks: &mut Ranks, stop: &AtomicBool) -> Result<Option<Report>> {
    config.check()?;
    let own = share::config(config, ranks.rank(), ranks.size())?;
    warn_of_binding(config.threads);
    let mut late_ns = 0;
    let Run { plan, threads, idle } = run::measure(&own, stop, |plan, gauges, idle| {
        let gauges = gauges.clone();
        ranks.heartbeat(move || heartbeat(&gauges, idle()));
        let (_, at_ns) = ranks.ready(Heartbeat::default())?;
        let (left_ns, missed_ns) = until_start(at_ns, ClockReading::now().monotonic_ns);
        late_ns = missed_ns;
        Ok(plan.now_ns() + left_ns)
    })?;
    let interrupted = stop.load(Relaxed);
    let measured_ns = threads.iter().map(|thread| thread.measured_ns).max().unwrap_or(0);
    let outcome = RankOutcome { threads, idle, late_ns };
    let measured = postcard::to_stdvec(&outcome).context("what was measured")?;
    let Some(PeerResults { peers, fault }) = ranks.finish(interrupted, measured.clone())? else {
        return Ok(None);
    };

    // Each rank's figures are computed from its result in the same way as those of a whole run.
    let (mut members, mut threads, mut idle) = (Vec::new(), Vec::new(), IdleReport::default());
    let mut add = |rank: u32, host: &str, pid: u32, handed: EncodedResult<'_>| -> Result<()> {
        let EncodedResult { clock, interrupted, measured } = handed;
        let read = || -> Result<RankOutcome> {
            let mut outcome: RankOutcome = postcard::from_bytes(measured)
                .with_context(|| format!("what rank {rank} ({host}) measured"))?;
            // All ranks began at the same instant of rank 0's clock, except for the lateness that
            // is reported.
            outcome.threads.iter_mut().for_each(|thread| thread.measured_ns = measured_ns);
            Ok(outcome)
        };
        let outcome = read()?;
        idle += outcome.idle;
        threads.extend(outcome.threads);
        let alone = read()?;
        let report = Report::new(config, &plan, alone.threads, alone.idle, interrupted);
        let late_us = alone.late_ns as f64 / 1000.0;
        let member = member(rank, host, pid, ClockComparison::new(clock), &report);
        members.push(RankReport { late_us, ..member });
        Ok(())
    };
    let handed = EncodedResult { clock: OWN_CLOCK, interrupted, measured: &measured };
    add(0, &ranks.host, std::process::id(), handed)?;
    for peer in &peers {
        let Some(handed) = &peer.result else { continue };
        let (interrupted, measured) = (handed.interrupted, &handed.measured[..]);
        let handed = EncodedResult { clock: handed.clock, interrupted, measured };
        add(peer.identity.rank, &peer.identity.host, peer.identity.pid, handed)?;
    }
    let mut report = Report::new(config, &plan, threads, idle, stop.load(Relaxed));
    for peer in peers.iter().filter(|peer| peer.result.is_none()) {
        members.push(peer.report_of_loss());
    }
    members.sort_by_key(|member| member.rank);
    let ranks = ranks.report(members, fault);
    if let Some(reason) = ranks.invalid_reason(config.max_lag).or(report.invalid_reason.take()) {
        report.invalid_reason = Some(reason);
        report.valid = false;
    }
    report.ranks = Some(ranks);
    Ok(Some(report))
}

/// A rank's line: the figures of the report that its own result makes.
fn member(rank: u32, host: &str, pid: u32, clock: ClockComparison, report: &Report) -> RankReport {
    RankReport {
        requests: report.requests,
        lag_p99_us: report.generator.lag_us.p99,
        busy_utilization: report.generator.busy_utilization,
        invalid_reason: report.invalid_reason.clone(),
        ..RankReport::idle(rank, host, pid, clock, report.idle)
    }
}

struct EncodedResult<'a> {
    clock: (ClockOffset, ClockOffset),
    interrupted: bool,
    measured: &'a [u8],
}

fn heartbeat(gauges: &Arc<[Gauges]>, idle: IdleReport) -> Heartbeat {
    let mut heartbeat = Heartbeat { idle, ..Heartbeat::default() };
    for gauges in gauges.iter() {
        heartbeat.sent += gauges.sent.load(Relaxed);
        heartbeat.completed += gauges.completed.load(Relaxed);
        heartbeat.failed += gauges.failed.load(Relaxed);
    }
    heartbeat
}

/// Open MPI binds each rank to one CPU by default.
fn warn_of_binding(threads: usize) {
    let Ok(cpus) = rustix::thread::sched_getaffinity(None) else { return };
    let cpus = cpus.count() as usize;
    if cpus < threads {
        tracing::warn!(
            "the launcher binds this rank to {cpus} CPUs, for {threads} threads: give mpirun \
             --bind-to none"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::until_start;
    use crate::record::{Recorder, Reply};

    #[test]
    fn a_start_that_is_over_is_missed_by_so_much() {
        assert_eq!(until_start(7_000, 4_000), (3_000, 0));
        assert_eq!(until_start(7_000, 7_000), (0, 0));
        assert_eq!(until_start(7_000, 9_500), (0, 2_500));
        assert_eq!(until_start(-1, 1), (0, 2), "the clock of a host that has just started");
    }

    const SECOND_NS: u64 = 1_000_000_000;

    /// Reply `number` of a run, with a latency from 1 µs to a minute.
    fn reply(number: u64) -> Reply {
        let latency_ns = 1000 + number.wrapping_mul(0x9e37_79b9_7f4a_7c15) % (60 * SECOND_NS);
        Reply {
            latency_ns,
            service_ns: latency_ns / 3,
            at_ns: (number * 1_000_000) as i64,
            measured: true,
        }
    }

    #[test]
    fn four_ranks_histograms_are_those_of_one_process() {
        const REPLIES: u64 = 5_000;
        let record = |first: u64, step: usize| {
            let mut recorder = Recorder::new(10 * SECOND_NS, true);
            (first..REPLIES).step_by(step).for_each(|number| recorder.complete(reply(number)));
            recorder.close_interval(10 * SECOND_NS);
            recorder
        };
        let one = record(0, 1);
        let mut four: Option<Recorder> = None;
        for rank in 0..4 {
            let sent = postcard::to_stdvec(&record(rank, 4)).unwrap();
            let received: Recorder = postcard::from_bytes(&sent).unwrap();
            match &mut four {
                None => four = Some(received),
                Some(four) => four.merge(received),
            }
        }
        let mut four = four.unwrap();
        assert_eq!(one.latency, four.latency);
        assert_eq!(one.service, four.service);
        assert_eq!((one.completed, &one.samples), (REPLIES, &four.samples));
        assert_eq!(four.completed, REPLIES);
        assert_eq!(four.take_intervals().len(), 4);
    }
}
