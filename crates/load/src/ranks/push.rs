//! `pollux load --subscribe` by several ranks: each holds its part of the subscribers, and rank 0
//! publishes. All ranks have the same schedule and start, so each measures the latency of its own
//! deliveries.

use super::{
    Heartbeat, OWN_CLOCK, PeerResults, Ranks,
    clock::ClockReading,
    report::{ClockComparison, RankReport, RanksReport},
    share,
};
use crate::{
    idle::IdleReport,
    push::{self, PushConfig, PushReport, plan::PushPlan, record::SubscriberRecord},
    report::Requests,
};
use anyhow::{Context, Result, ensure};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// A description of everything in `config` that must be the same on every rank; addresses and CPUs,
/// which belong to one host, are omitted.
pub fn push_task(config: &PushConfig) -> String {
    let common = PushConfig { sources: None, cpus: Vec::new(), progress: false, ..config.clone() };
    format!("load {common:?}")
}

/// Runs this rank's part of `config`. Rank 0 returns the report of all ranks, the others `None`.
///
/// # Errors
/// As [`crate::push::run()`], of any rank: rank 0 names the rank.
pub fn run_push(
    config: &PushConfig,
    ranks: &mut Ranks,
    stop: &AtomicBool,
) -> Result<Option<PushReport>> {
    match try_run(config, ranks, stop) {
        Ok(report) => Ok(report),
        Err(error) => ranks.give_up(error).map(|()| None),
    }
}

fn try_run(
    config: &PushConfig,
    ranks: &mut Ranks,
    stop: &AtomicBool,
) -> Result<Option<PushReport>> {
    config.check()?;
    ensure!(config.quiet_time.is_none(), "--quiet-time: for one process, not for several ranks");
    let (rank, size) = (ranks.rank(), ranks.size());
    let part = share::part(config.subscribers as u64, rank, size) as usize;
    ensure!(part > 0, "--subscribe {}: {size} ranks share them", config.subscribers);
    let own =
        PushConfig { subscribers: part, progress: config.progress && rank == 0, ..config.clone() };
    // The marks of the contents are the same on all ranks.
    let plan = PushPlan::new(&own, config.seed as u32)?;
    let mut run = push::measure(
        plan,
        ranks.is_first(),
        stop,
        |_| (),
        |plan| {
            let progress = plan.progress.clone();
            ranks.heartbeat(move || Heartbeat {
                completed: progress.delivered.load(Relaxed),
                idle: IdleReport { held: progress.held.load(Relaxed), ..IdleReport::default() },
                ..Heartbeat::default()
            });
            let (_, at_ns) = ranks.ready(Heartbeat::default())?;
            let left_ns = at_ns.saturating_sub(ClockReading::now().monotonic_ns);
            // If the start was missed, the latencies show it.
            Ok(plan.now_ns().saturating_add_signed(left_ns))
        },
    )?;
    let interrupted = stop.load(Relaxed);
    let measured = postcard::to_stdvec(&run.threads).context("what was measured")?;
    let Some(PeerResults { peers, fault }) = ranks.finish(interrupted, measured)? else {
        return Ok(None);
    };
    let clock = ClockComparison::new(OWN_CLOCK);
    let mut members = vec![member(0, &ranks.host, std::process::id(), clock, &run.threads)];
    members[0].requests.sent = run.publisher.as_ref().map_or(0, |publisher| publisher.sent);
    for peer in &peers {
        let identity = &peer.identity;
        let Some(handed) = &peer.result else {
            members.push(RankReport::lost(peer));
            continue;
        };
        let threads: Vec<SubscriberRecord> = postcard::from_bytes(&handed.measured)
            .with_context(|| format!("what rank {} ({}) measured", identity.rank, identity.host))?;
        let clock = ClockComparison::new(handed.clock);
        members.push(member(identity.rank, &identity.host, identity.pid, clock, &threads));
        run.threads.extend(threads);
    }
    let mut report = PushReport::new(run, stop.load(Relaxed));
    let ranks = RanksReport::new(ranks, members, fault);
    if let Some(reason) = ranks.invalid_reason(config.max_lag).or(report.invalid_reason.take()) {
        report.invalid_reason = Some(reason);
        report.valid = false;
    }
    report.ranks = Some(ranks);
    Ok(Some(report))
}

/// A rank's line: the deliveries are its completed requests, and its subscribers are held.
fn member(
    rank: u32,
    host: &str,
    pid: u32,
    clock: ClockComparison,
    threads: &[SubscriberRecord],
) -> RankReport {
    let sum = |count: fn(&SubscriberRecord) -> u64| threads.iter().map(count).sum::<u64>();
    let held = IdleReport {
        wanted: sum(|thread| thread.subscribers.wanted as u64) as usize,
        held: sum(|thread| thread.subscribers.at_end as u64) as usize,
        dropped: sum(|thread| thread.subscribers.dropped),
        ..IdleReport::default()
    };
    let delivered = sum(|thread| thread.delivered.iter().map(|&got| u64::from(got)).sum());
    let requests = Requests {
        scheduled: delivered,
        sent: 0,
        completed: delivered,
        failed: 0,
        unsent: 0,
        unfinished: 0,
    };
    RankReport { requests, ..RankReport::idle(rank, host, pid, clock, held) }
}
