//! `pollux idle` by several ranks.

use super::{
    Heartbeat, OWN_CLOCK, PeerResults, Ranks,
    report::{ClockComparison, RankReport, RanksReport},
    share,
};
use crate::{
    host::raise_descriptors,
    idle::{IdlePlan, IdlePool, IdleReport},
    progress::Progress,
};
use anyhow::{Context, Result};
use std::{
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    time::{Duration, Instant},
};

/// The idle connections of all ranks.
#[derive(Debug)]
pub struct IdleTotals {
    /// The sum.
    pub idle: IdleReport,
    /// Per rank.
    pub ranks: RanksReport,
    /// The run was ended by a signal, or because a rank was lost.
    pub interrupted: bool,
}

/// A description of everything that must be the same on every rank; addresses and CPUs, which belong to one
/// host, are omitted.
pub fn idle_task(plan: &IdlePlan, duration: Option<Duration>) -> String {
    let common = IdlePlan { sources: None, cpus: Vec::new(), ..plan.clone() };
    format!("idle {common:?} {duration:?}")
}

/// Holds this rank's part of the idle connections until `duration` after all ranks hold theirs, or
/// until `stop`. Calls `on_held` at rank 0 with the sum. Returns the totals at rank 0, `None` at
/// the others.
///
/// # Errors
/// As [`crate::run::hold_idle`], of any rank: rank 0 names the rank.
pub fn hold_idle(
    plan: &IdlePlan,
    duration: Option<Duration>,
    show_progress: bool,
    ranks: &mut Ranks,
    stop: &AtomicBool,
    on_held: impl FnOnce(IdleReport),
) -> Result<Option<IdleTotals>> {
    match try_hold(plan, duration, show_progress, ranks, stop, on_held) {
        Ok(outcome) => Ok(outcome),
        Err(error) => ranks.give_up(error).map(|()| None),
    }
}

fn try_hold(
    plan: &IdlePlan,
    duration: Option<Duration>,
    show_progress: bool,
    ranks: &mut Ranks,
    stop: &AtomicBool,
    on_held: impl FnOnce(IdleReport),
) -> Result<Option<IdleTotals>> {
    let mut plan = plan.clone();
    plan.config.count = share::part(plan.config.count as u64, ranks.rank(), ranks.size()) as usize;
    plan.rate = plan.rate.map(|rate| rate / ranks.size() as f64);
    let descriptors = raise_descriptors()?;
    if let Some(sources) = plan.sources {
        sources.check(plan.destination.ip())?;
    }
    let mut progress = Progress::new(show_progress && ranks.is_first());
    let mut pool = IdlePool::start(&plan, descriptors)?;
    let gauge = pool.gauge();
    ranks.heartbeat(move || Heartbeat { idle: gauge(), ..Heartbeat::default() });
    if !pool.wait_until_held(stop, |held| progress.idle(held, plan.config.count))? {
        anyhow::bail!("interrupted while idle connections were being opened");
    }
    progress.finish();
    let (others, _) = ranks.ready(Heartbeat { idle: pool.report(), ..Heartbeat::default() })?;
    if ranks.is_first() {
        let mut all = pool.report();
        others.iter().for_each(|other| all += other.idle);
        on_held(all);
    }
    // The other ranks wait for rank 0's message, so that all hold until the last moment.
    let until = duration.filter(|_| ranks.is_first()).map(|duration| Instant::now() + duration);
    while !stop.load(Relaxed) && until.is_none_or(|until| Instant::now() < until) {
        pool.check()?;
        std::thread::sleep(Progress::PERIOD);
    }
    let interrupted = stop.load(Relaxed);
    // Counted before the first rank closes its connections, so that it is the number that all held at
    // the same time.
    let own = pool.report();
    ranks.stop_all();
    let measured = postcard::to_stdvec(&own).context("what was held")?;
    let collected = ranks.finish(interrupted, measured)?;
    pool.stop()?;
    let Some(PeerResults { peers, fault }) = collected else { return Ok(None) };

    let clock = ClockComparison::new(OWN_CLOCK);
    let mut members = vec![RankReport::idle(0, &ranks.host, std::process::id(), clock, own)];
    let mut all = own;
    for peer in &peers {
        let Some(handed) = &peer.result else {
            members.push(peer.report_of_loss());
            continue;
        };
        let identity = &peer.identity;
        let held: IdleReport = postcard::from_bytes(&handed.measured)
            .with_context(|| format!("what rank {} ({}) held", identity.rank, identity.host))?;
        all += held;
        let clock = ClockComparison::new(handed.clock);
        members.push(RankReport::idle(identity.rank, &identity.host, identity.pid, clock, held));
    }
    let ranks = ranks.report(members, fault);
    Ok(Some(IdleTotals { idle: all, ranks, interrupted }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        config::{IdleConfig, IdleKind},
        target::RequestOptions,
        tls::TlsOptions,
    };

    /// Regression test: ranks with other requests, TLS options or times were once not refused.
    #[test]
    fn ranks_differ_only_in_what_belongs_to_their_host() {
        let plan = IdlePlan {
            config: IdleConfig { count: 2, kind: IdleKind::AfterRequest },
            destination: "127.0.0.1:80".parse().unwrap(),
            sources: None,
            url: "http://127.0.0.1/".parse().unwrap(),
            request: RequestOptions::default(),
            tls: TlsOptions::default(),
            timeout: Duration::from_secs(1),
            rate: None,
            cpus: Vec::new(),
            own_file_tables: None,
        };
        let task = |change: fn(&mut IdlePlan)| {
            let mut plan = plan.clone();
            change(&mut plan);
            idle_task(&plan, None)
        };
        let same = idle_task(&plan, None);
        assert_eq!(task(|plan| plan.cpus = vec![1]), same);
        assert_eq!(task(|plan| plan.sources = Some("127.0.1.0/24".parse().unwrap())), same);
        assert_ne!(idle_task(&plan, Some(Duration::from_secs(1))), same);
        for change in [
            (|plan| plan.config.count = 3) as fn(&mut IdlePlan),
            |plan| plan.url.path = "/other".into(),
            |plan| plan.request.headers = vec![("A".into(), "b".into())],
            |plan| plan.tls.resumes = true,
            |plan| plan.timeout = Duration::from_secs(2),
            |plan| plan.rate = Some(5.0),
        ] {
            assert_ne!(task(change), same);
        }
    }
}
