//! A run from start to end: resolve the host, hold idle connections, open the standing ones, start
//! all threads at the same instant, combine their results.

use crate::{
    config::Config,
    host::{RESERVED_DESCRIPTORS, pin, raise_descriptors},
    idle::{IdlePlan, IdlePool, IdleReport},
    plan::Plan,
    progress::Progress,
    report::Report,
    target,
    thread::{Gauges, ThreadResult, Worker},
};
use anyhow::{Context, Error, Result, bail, ensure};
use pollux_sys as sys;
use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering::Relaxed},
        mpsc,
    },
    time::{Duration, Instant},
};

/// The time from the moment when all threads are ready to the schedule's start.
const START_DELAY_NS: u64 = 2_000_000;

/// Sends load to the server according to `config`, until the end or until `stop` is set, and returns
/// the report.
///
/// # Errors
/// The configuration contradicts itself; a name does not resolve; connections could not be opened
/// before the run, or `stop` was set before it began. Errors of single requests do not fail the run: they are
/// in the report.
pub fn run(config: &Config, stop: &AtomicBool) -> Result<Report> {
    config.check()?;
    let run = measure(config, stop, |plan, _, _| {
        // An interrupt also ends the set-up early: connections may be missing, and there is nothing to report.
        ensure!(!stop.load(Relaxed), "interrupted before the run began");
        Ok(plan.now_ns() + START_DELAY_NS)
    })?;
    Ok(Report::new(config, &run.plan, run.threads, run.idle, stop.load(Relaxed)))
}

/// A finished run.
pub(crate) struct Run {
    pub(crate) plan: Plan,
    pub(crate) threads: Vec<ThreadResult>,
    pub(crate) idle: IdleReport,
}

/// Returns the state of the idle connections.
pub(crate) type IdleGauge = Box<dyn Fn() -> IdleReport + Send>;

/// Runs `config`, which was checked. After the set-up, `start` is called for the schedule's first
/// instant in the plan's time.
///
/// # Errors
/// As [`run`], and those of `start`.
pub(crate) fn measure(
    config: &Config,
    stop: &AtomicBool,
    start: impl FnOnce(&Plan, &Arc<[Gauges]>, IdleGauge) -> Result<u64>,
) -> Result<Run> {
    let (first_url, _) = config.urls.first().context("no URL is given")?;
    let destination = target::resolve(&first_url.host, first_url.port, config.sources)?;
    if let Some(sources) = config.sources {
        sources.check(destination.ip())?;
    }
    let descriptors = raise_descriptors()?;
    check_descriptors(config, descriptors)?;
    let plan = Plan::new(config, destination)?;
    if let Some(schedule) = &plan.schedule {
        ensure!(
            !schedule.is_empty(),
            "the schedule is empty: no arrival falls into so short a run at so low a --rate"
        );
    }

    let mut progress = Progress::new(config.progress);
    let idle = match config.idle {
        None => None,
        Some(idle) => {
            let idle_plan = IdlePlan {
                config: idle,
                destination,
                sources: config.sources,
                url: first_url.clone(),
                request: config.request.clone(),
                tls: config.tls.clone(),
                timeout: config.connect_timeout,
                rate: None,
                cpus: config.cpus.clone(),
                own_file_tables: config.own_file_tables,
            };
            let mut pool = IdlePool::start(&idle_plan, descriptors)?;
            let held = pool.wait_until_held(stop, |held| progress.idle(held, idle.count))?;
            if !held {
                bail!("interrupted while idle connections were being opened");
            }
            Some(pool)
        }
    };
    let gauge: IdleGauge = match &idle {
        Some(pool) => Box::new(pool.gauge()),
        None => Box::new(IdleReport::default),
    };
    let start = |gauges: &Arc<[Gauges]>| start(&plan, gauges, gauge);
    let threads = run_threads(config, &plan, stop, start, &mut progress)?;
    // With a real-time priority the generator runs before a server on the same CPU. It may do so only
    // while it sends: evaluating the measurements must not delay the server's last answers, or a reader
    // of its counters.
    if let Err(error) = sys::leave_real_time() {
        tracing::debug!(%error, "the report has the load's priority");
    }
    progress.finish();
    let idle = match idle {
        Some(pool) => pool.stop()?,
        None => IdleReport::default(),
    };
    Ok(Run { plan, threads, idle })
}

/// Refuses more connections than the threads' file tables can hold.
fn check_descriptors(config: &Config, descriptors: u64) -> Result<()> {
    let limit = usize::try_from(descriptors).unwrap_or(usize::MAX);
    let tables = if config.own_file_tables.is_some() { config.threads } else { 1 };
    let room = limit.saturating_sub(RESERVED_DESCRIPTORS).saturating_mul(tables);
    ensure!(room > 0, "the limit on descriptors, {descriptors}, is too low: raise `ulimit -n`");
    if let Some((flag, connections)) = config.connection_limit() {
        ensure!(
            connections <= room,
            "{flag} {connections}: the limit on descriptors, {descriptors} for each of {tables} \
             file tables, leaves room for {room}; add --threads, or raise `ulimit -Hn`"
        );
    }
    Ok(())
}

/// What each thread waits for before it starts.
struct StartGate<'a> {
    /// The schedule's first instant, once all threads are ready; `None` when the set-up has failed.
    start_ns: OnceLock<Option<u64>>,
    stop: &'a AtomicBool,
}

fn run_threads(
    config: &Config,
    plan: &Plan,
    stop: &AtomicBool,
    start: impl FnOnce(&Arc<[Gauges]>) -> Result<u64>,
    progress: &mut Progress,
) -> Result<Vec<ThreadResult>> {
    let gauges: Arc<[Gauges]> = (0..plan.threads).map(|_| Gauges::default()).collect();
    let gate = StartGate { start_ns: OnceLock::new(), stop };
    let (failing, failures) = mpsc::sync_channel(plan.threads);
    std::thread::scope(|scope| {
        let mut threads = Vec::new();
        // The first error of the set-up.
        let mut failure = None;
        for (index, gauges) in gauges.iter().enumerate() {
            let cpu = config.cpus.get(index % config.cpus.len().max(1)).copied();
            let (failing, gate) = (failing.clone(), &gate);
            let thread = std::thread::Builder::new()
                .name(format!("load-{index}"))
                .spawn_scoped(scope, move || run_thread(plan, gauges, index, cpu, failing, gate));
            match thread.with_context(|| format!("starting {} threads", plan.threads)) {
                Ok(thread) => threads.push(thread),
                Err(error) => {
                    failure = Some(error);
                    break;
                }
            }
        }
        drop(failing);
        // Ends when each thread that was started has dropped its sender.
        for error in failures {
            failure.get_or_insert(error);
        }
        let started = failure.map_or_else(|| start(&gauges), Err);
        let _ = gate.start_ns.set(started.as_ref().ok().copied());
        let start_ns = started?;
        // Without a progress bar this thread sleeps to the end: its wake-ups could fall on the
        // server's CPU.
        while progress.shows() && !threads.iter().all(|thread| thread.is_finished()) {
            progress.run(plan, &gauges, plan.now_ns().saturating_sub(start_ns));
            std::thread::sleep(Progress::PERIOD);
        }
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    })
}

fn run_thread(
    plan: &Plan,
    gauges: &Gauges,
    index: usize,
    cpu: Option<usize>,
    failing: mpsc::SyncSender<Error>,
    gate: &StartGate<'_>,
) -> Result<ThreadResult> {
    let worker = set_up_thread(plan, gauges, index, cpu, gate.stop);
    // The receiver is there until every thread has dropped its sender.
    let worker = worker.map_err(|error| failing.send(error)).ok();
    drop(failing);
    match (worker, gate.start_ns.wait()) {
        (Some(worker), &Some(start_ns)) => worker.run(start_ns, gate.stop),
        _ => bail!("the set-up failed"),
    }
}

fn set_up_thread<'a>(
    plan: &'a Plan,
    gauges: &'a Gauges,
    index: usize,
    cpu: Option<usize>,
    stop: &AtomicBool,
) -> Result<Worker<'a>> {
    pin(cpu)?;
    // A descriptor limit of its own, and cheaper system calls. Containers may forbid it; then
    // descriptors run short sooner, which is counted and reported.
    if let Some(promise) = plan.own_file_tables
        && let Err(error) = sys::own_file_table(promise, &[])
    {
        tracing::debug!(%error, "the threads share one file table");
    }
    let mut worker = Worker::new(plan, gauges, index)?;
    worker.set_up(stop)?;
    Ok(worker)
}

/// The flag that SIGINT and SIGTERM set, for [`run`] and [`IdlePool::wait_until_held`]. A later signal
/// ends the process at once, with status 130.
///
/// # Errors
/// The signals cannot be caught, or the thread cannot be started.
pub fn stop_on_signals() -> Result<Arc<AtomicBool>> {
    use signal_hook::{
        consts::{SIGINT, SIGTERM},
        iterator::Signals,
    };
    // The signals are not blocked, because processes that this one starts would inherit that.
    let mut signals = Signals::new([SIGINT, SIGTERM]).context("catching SIGINT and SIGTERM")?;
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = stop.clone();
    std::thread::Builder::new()
        .name("signals".into())
        .spawn(move || {
            // Not derived from `stop`, which is also set when another rank is lost: the first signal
            // then comes from the launcher, and must not prevent this process from reporting.
            let on_first = || stopped.store(true, Relaxed);
            if sys::second_interrupt(signals.forever(), on_first).is_some() {
                signal_hook::low_level::exit(130);
            }
        })
        .context("a thread that waits for SIGINT and SIGTERM")?;
    Ok(stop)
}

/// Holds idle connections until `duration` is over or `stop` is set, and calls `on_held` once, when all
/// are open. The report contains whether all were held to the end.
///
/// # Errors
/// As [`IdlePool::start`], [`IdlePool::wait_until_held`] and [`IdlePool::check`].
pub fn hold_idle(
    plan: &IdlePlan,
    duration: Option<Duration>,
    show_progress: bool,
    stop: &AtomicBool,
    on_held: impl FnOnce(IdleReport),
) -> Result<IdleReport> {
    let descriptors = raise_descriptors()?;
    if let Some(sources) = plan.sources {
        sources.check(plan.destination.ip())?;
    }
    let mut progress = Progress::new(show_progress);
    let mut pool = IdlePool::start(plan, descriptors)?;
    if pool.wait_until_held(stop, |held| progress.idle(held, plan.config.count))? {
        progress.finish();
        on_held(pool.report());
        let until = duration.map(|duration| Instant::now() + duration);
        while !stop.load(Relaxed) && until.is_none_or(|until| Instant::now() < until) {
            pool.check()?;
            std::thread::sleep(Progress::PERIOD);
        }
    }
    pool.stop()
}
