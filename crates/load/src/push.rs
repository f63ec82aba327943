//! Subscribers of a push server (server-sent events), and updates that are published by a schedule.
//!
//! Each thread holds a part of the subscribers, in one interest set, and checks every event of each
//! subscriber: its content, its order, and its time. Another thread publishes, at the instants of a
//! [`schedule`](crate::schedule) that is drawn before the run. Latency counts from the scheduled
//! instant of an update to each of its deliveries, so that any delay of an update is included.

mod config;
mod order;
mod payload;
pub(crate) mod plan;
mod publisher;
pub(crate) mod record;
mod report;
mod stream;
mod subscribers;

pub use config::{DATA, MAX_PUBLICATIONS, PublishOptions, PushConfig};
pub use record::Subscribers;
pub use report::{Deliveries, Publications, PushGenerator, PushReport};

use crate::{
    host::{RESERVED_DESCRIPTORS, pin, raise_descriptors},
    idle::{MAX_HOLDERS, setup_patience},
    progress::Progress,
    schedule::nanoseconds,
};
use anyhow::{Context, Result, bail, ensure};
use plan::PushPlan;
use publisher::Publisher;
use record::{PushRun, SubscriberRecord};
use std::{
    hash::{BuildHasher, RandomState},
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread::ScopedJoinHandle,
    time::{Duration, Instant},
};
use subscribers::SubscriberLoop;

/// The time from the moment when all streams are open to the schedule's start.
const START_DELAY_NS: u64 = 50_000_000;

/// The interval between two checks whether all deliveries have arrived.
const LOOK: Duration = Duration::from_millis(1);

/// An instant at which all streams are open and no update is pending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// All streams are open, and nothing has been published.
    Holding,
    /// All deliveries have arrived.
    Delivered,
}

impl Moment {
    /// Its name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Holding => "holding",
            Self::Delivered => "delivered",
        }
    }
}

/// Holds the subscribers, publishes the updates until the end or until `stop` is set, and returns the
/// report. With a quiet time, `observe` is called at the beginning of each quiet period; if deliveries
/// are missing, only at the first.
///
/// # Errors
/// The configuration contradicts itself; a name does not resolve; the subscribers cannot be held.
/// Updates that fail or are lost do not fail the run: they are in the report.
pub fn run(
    config: &PushConfig,
    stop: &AtomicBool,
    observe: impl FnMut(Moment),
) -> Result<PushReport> {
    config.check()?;
    let number = RandomState::new().hash_one(std::process::id()) as u32;
    let plan = PushPlan::new(config, number)?;
    let delay_ns = config.quiet_time.map_or(0, nanoseconds).max(START_DELAY_NS);
    let run = measure(plan, true, stop, observe, |plan| Ok(plan.now_ns() + delay_ns))?;
    Ok(PushReport::new(run, stop.load(Relaxed)))
}

/// Holds the subscribers of `plan`; with `publishes` also publishes. After the set-up, `start` is
/// called to get the schedule's first instant in the plan's time; `observe` is as in [`run`].
///
/// # Errors
/// As [`run`], and those of `start`.
pub(crate) fn measure(
    plan: PushPlan,
    publishes: bool,
    stop: &AtomicBool,
    mut observe: impl FnMut(Moment),
    start: impl FnOnce(&PushPlan) -> Result<u64>,
) -> Result<PushRun> {
    let threads = thread_count(&plan)?;
    let mut progress = Progress::new(plan.config.progress);
    let (records, publisher) = std::thread::scope(|scope| {
        let holders = (0..threads)
            .map(|index| start_holder(scope, &plan, (index, threads), stop))
            .collect::<Result<Vec<_>>>();
        let outcome = holders.and_then(|holders| {
            let publisher = publishes.then(|| Publisher::connect(&plan, stop)).transpose()?;
            wait_until_held(&plan, &holders, stop, &mut progress)?;
            let is_quiet = plan.config.quiet_time.is_some();
            if is_quiet {
                observe(Moment::Holding);
            }
            let start_ns = start(&plan)?.max(1);
            plan.progress.start_ns.store(start_ns, Relaxed);
            let published = publisher.map(|one| one.run(start_ns)).transpose()?;
            if is_quiet && is_delivered(&plan, &holders) {
                observe(Moment::Delivered);
            }
            let records = holders.into_iter().map(join).collect::<Result<Vec<_>>>()?;
            Ok((records, published))
        });
        // The scope waits for its threads, so they must be stopped.
        if outcome.is_err() {
            plan.progress.is_broken.store(true, Relaxed);
        }
        outcome
    })?;
    progress.finish();
    Ok(PushRun { plan, threads: records, publisher })
}

/// Waits until all deliveries have arrived; returns whether they have. Threads with missing deliveries
/// end by themselves.
fn is_delivered(plan: &PushPlan, holders: &[Holder<'_>]) -> bool {
    loop {
        if plan.progress.complete_threads.load(Relaxed) == holders.len() {
            return true;
        }
        if holders.iter().any(ScopedJoinHandle::is_finished) {
            return false;
        }
        std::thread::sleep(LOOK);
    }
}

/// The number of threads: as many as were requested, or as the descriptors of their file tables
/// require.
fn thread_count(plan: &PushPlan) -> Result<usize> {
    let subscribers = plan.config.subscribers;
    let limit = usize::try_from(raise_descriptors()?).unwrap_or(usize::MAX);
    let table = limit.saturating_sub(RESERVED_DESCRIPTORS);
    ensure!(
        table > 0,
        "the limit on descriptors, {limit}, leaves none for subscribers: raise `ulimit -n`"
    );
    let needed = subscribers.div_ceil(table);
    ensure!(
        needed <= if plan.config.own_file_tables.is_some() { MAX_HOLDERS } else { 1 },
        "{subscribers} subscribers need {needed} file tables of {limit} descriptors, and at most \
         {MAX_HOLDERS} are made: raise the hard limit (`ulimit -Hn`)"
    );
    Ok(needed.max(plan.config.threads).min(subscribers))
}

type Holder<'scope> = ScopedJoinHandle<'scope, Result<SubscriberRecord>>;

fn start_holder<'scope, 'env>(
    scope: &'scope std::thread::Scope<'scope, 'env>,
    plan: &'env PushPlan,
    (index, threads): (usize, usize),
    stop: &'env AtomicBool,
) -> Result<Holder<'scope>> {
    let all = plan.config.subscribers;
    let part = all / threads + usize::from(index < all % threads);
    let cpu = plan.config.cpus.get(index % plan.config.cpus.len().max(1)).copied();
    std::thread::Builder::new()
        .name(format!("subscribers-{index}"))
        .spawn_scoped(scope, move || {
            let held = pin(cpu)
                .and_then(|()| SubscriberLoop::new(plan, part, (index, threads)))
                .and_then(|subscribers| subscribers.run(stop));
            if held.is_err() {
                plan.progress.is_broken.store(true, Relaxed);
            }
            held
        })
        .context("starting a thread that holds subscribers")
}

fn join(holder: Holder<'_>) -> Result<SubscriberRecord> {
    match holder.join() {
        Ok(outcome) => outcome,
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

/// Waits until every subscriber has its stream.
///
/// # Errors
/// No further stream was opened for [`setup_patience`], with the last reason; or the run was
/// interrupted.
fn wait_until_held(
    plan: &PushPlan,
    holders: &[Holder<'_>],
    stop: &AtomicBool,
    progress: &mut Progress,
) -> Result<()> {
    let wanted = plan.config.subscribers;
    let patience = setup_patience(plan.config.connect_timeout);
    let (mut most, mut progressed_at) = (0, Instant::now());
    loop {
        let held = plan.progress.held.load(Relaxed);
        progress.idle(held, wanted);
        if held >= wanted {
            return Ok(());
        }
        if stop.load(Relaxed) {
            bail!("interrupted while subscribers were being connected");
        }
        if held > most {
            (most, progressed_at) = (held, Instant::now());
        }
        let is_broken = holders.iter().any(ScopedJoinHandle::is_finished);
        if is_broken || progressed_at.elapsed() > patience {
            let last = plan.progress.last_failure.lock().ok().and_then(|mut last| last.take());
            let reason = last.map(|(kind, reason)| match kind.advice() {
                Some(advice) => format!("; the last failure was: {reason}; {advice}"),
                None => format!("; the last failure was: {reason}"),
            });
            bail!(
                "only {most} of {wanted} subscribers of {} got a stream{}",
                plan.config.url,
                reason.unwrap_or_default()
            );
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}
