//! Which CPUs the sides of a run have, and what else ran there.

use super::redis;
use crate::environment::Cpus;
use crate::{
    experiment::{Core, Experiment},
    metric::Metric,
    result::{Outcome, Run},
};
use anyhow::Context as _;

/// A share of the server's time on the CPU's queue above which its CPU was not its own.
const SHARED_CPU: f64 = 0.05;

/// The first two CPUs that this process may use.
pub(super) fn cpus() -> anyhow::Result<Cpus> {
    let set = rustix::thread::sched_getaffinity(None).context("sched_getaffinity")?;
    let mut usable = (0..rustix::thread::CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu));
    let server = usable.next().context("this process may use no CPU")? as u32;
    Ok(Cpus { server, generator: usable.next().map_or(server, |cpu| cpu as u32) })
}

/// Where server and generator run beside Redis, and where that runs.
pub(super) fn beside(experiment: &Experiment, cpus: Cpus) -> anyhow::Result<(Cpus, Option<u32>)> {
    let Some(redis) = &experiment.redis else { return Ok((cpus, None)) };
    let set = rustix::thread::sched_getaffinity(None).context("sched_getaffinity")?;
    let taken = [cpus.server, cpus.generator];
    let mut all = (0..rustix::thread::CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu));
    if let Some(free) = all.find(|&cpu| !taken.contains(&(cpu as u32))) {
        return Ok((cpus, Some(free as u32)));
    }
    Ok(match redis.core {
        Core::Server => (cpus, Some(cpus.server)),
        Core::Generator => (cpus, Some(cpus.generator)),
    })
}

/// On which CPU Redis runs, and which processes share it.
pub(super) fn where_redis_runs(cpus: Cpus, redis: &redis::Running) -> String {
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

/// A note when the server was kept from its CPU: what else ran there may have changed the figures.
pub(super) fn shared_cpu(outcome: &Outcome) -> Option<String> {
    if outcome.experiment.redis.is_some() {
        // What runs there stands in a note of its own.
        return None;
    }
    // Servers of one thread have it.
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
        // A thread of the kernel's does it beside the server when there is much of it.
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
