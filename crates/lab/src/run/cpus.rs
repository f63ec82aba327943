//! The CPUs on which the processes of a run execute, and a note when other work ran there.

use super::redis;
use crate::environment::Cpus;
use crate::{
    experiment::{Core, Experiment},
    metric::Metric,
    result::{Outcome, Run},
};
use anyhow::Context as _;

/// The share of the time that a server may wait in the CPU's run queue. Above it, the server shared its
/// CPU.
const SHARED_CPU: f64 = 0.05;

/// Returns the CPUs that this process may use.
fn usable() -> anyhow::Result<impl Iterator<Item = u32>> {
    let set = rustix::thread::sched_getaffinity(None).context("sched_getaffinity")?;
    let all = 0..rustix::thread::CpuSet::MAX_CPU;
    Ok(all.filter(move |&cpu| set.is_set(cpu)).map(|cpu| cpu as u32))
}

/// Returns the first two CPUs that this process may use.
pub(super) fn cpus() -> anyhow::Result<Cpus> {
    let mut usable = usable()?;
    let server = usable.next().context("this process may use no CPU")?;
    Ok(Cpus { server, generator: usable.next().unwrap_or(server) })
}

/// The CPUs of the server and the generator in an experiment with Redis, and the CPU of Redis.
pub(super) fn beside(experiment: &Experiment, cpus: Cpus) -> anyhow::Result<(Cpus, Option<u32>)> {
    let Some(redis) = &experiment.redis else { return Ok((cpus, None)) };
    let taken = [cpus.server, cpus.generator];
    if let Some(free) = usable()?.find(|cpu| !taken.contains(cpu)) {
        return Ok((cpus, Some(free)));
    }
    Ok(match redis.core {
        Core::Server => (cpus, Some(cpus.server)),
        Core::Generator => (cpus, Some(cpus.generator)),
    })
}

/// Describes on which CPU Redis runs and which processes share it.
pub(super) fn where_redis_runs(cpus: Cpus, redis: &redis::RedisServer) -> String {
    let cpu = redis.cpu();
    let with = match cpu {
        _ if cpu == cpus.server && cpu == cpus.generator => "with server and generator",
        _ if cpu == cpus.server => {
            "with the server: a server cannot use that CPU alone, and what it answers is limited by both"
        }
        _ if cpu == cpus.generator => "with the generator; the server has the other CPU alone",
        _ => "alone",
    };
    format!("Redis runs on CPU {cpu} {with}. It was started as: {}", redis.command_line())
}

/// A note when the server had to wait for its CPU: other work on that CPU may have changed the figures.
pub(super) fn shared_cpu(outcome: &Outcome) -> Option<String> {
    if outcome.experiment.redis.is_some() {
        // `where_redis_runs` describes the processes that share the CPU.
        return None;
    }
    // Only servers with one thread have this metric.
    let share = |run: &Run| run.metric(Metric::ServerQueue.name());
    let counted = outcome.runs.iter().filter(|run| share(run).is_some()).count();
    let mut shared: Vec<(&Run, f64)> = outcome
        .runs
        .iter()
        .filter_map(|run| Some((run, share(run).filter(|&share| share > SHARED_CPU)?)))
        .collect();
    shared.sort_by(|a, b| b.1.total_cmp(&a.1));
    let (worst, most) = shared.first()?;
    let (why, advice) = match outcome.environment.receive_cpu {
        // A kernel thread does the receive work beside the server when there is a lot of it.
        Some(_) => ("the network's receive work, or something else,", ""),
        None => ("something else", " Run it again on a quiet machine."),
    };
    Some(format!(
        "In {} of {counted} runs the server waited for its CPU during more than {:.0} % of the \
         time (most: {:.0} %, {}): {why} ran on CPU {}.{advice}",
        shared.len(),
        SHARED_CPU * 100.0,
        most * 100.0,
        worst.cell.name(),
        outcome.environment.pinned.map_or(0, |cpus| cpus.server),
    ))
}
