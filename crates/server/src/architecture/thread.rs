//! Workers that are threads.

use super::{Assignment, Plan, each, panics::PanicLimit, pool};
use crate::{
    architecture::worker::{End, Ends, WorkerInfo, pin},
    engine::blocking::{Blocking, NO_SET},
    log::Log,
    service::worker_state::WorkerState,
    services::Hosts,
    stats::Statistics,
};
use anyhow::Context;
use std::{
    cell::Cell,
    mem,
    sync::{
        Arc,
        mpsc::{Sender, channel},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

/// The threads of a server: those of the pool, or the one that starts a thread for each connection.
#[derive(Debug)]
pub(crate) struct Threads {
    threads: Vec<JoinHandle<anyhow::Result<()>>>,
    infos: Vec<WorkerInfo>,
    plan: Arc<Plan>,
}

impl Threads {
    /// Starts the threads, and returns when they are ready to accept.
    ///
    /// # Errors
    /// The reason why one of them did not become ready. No thread runs in that case.
    pub(crate) fn start(plan: Plan, log: Option<&Log>, ends: &Ends) -> anyhow::Result<Self> {
        let plan = Arc::new(plan);
        let mut all = Self { threads: Vec::new(), infos: Vec::new(), plan: plan.clone() };
        let count = plan.workers();
        let limit = Arc::new(PanicLimit::default());
        for index in 0..count {
            // Each thread that serves needs its own writer for the log. Threads that start later
            // create theirs from this source.
            let log = log.map(Log::source);
            let worker = ThreadWorker { plan: plan.clone(), index, log, slot: Cell::default() };
            if let Err(error) = all.start_one(worker, ends.clone(), limit.clone()) {
                all.begin_stop(Duration::ZERO);
                let _ = all.wait();
                return Err(error.context(format!("thread {index} of {count} (fewer: --pool)")));
            }
        }
        Ok(all)
    }

    fn start_one(
        &mut self,
        worker: ThreadWorker,
        ends: Ends,
        limit: Arc<PanicLimit>,
    ) -> anyhow::Result<()> {
        let (ready, is_ready) = channel();
        let thread =
            thread::Builder::new().name(format!("worker-{}", worker.index)).spawn(move || {
                // Reports the end of this thread, also if it panics.
                let _end = End(ends);
                match worker.plan.assignment {
                    Assignment::Pool(_) => pool::run(&worker, &ready, &limit),
                    Assignment::One => each::run(&worker, &ready),
                }
            })?;
        match is_ready.recv() {
            Ok(info) => {
                self.infos.push(info);
                self.threads.push(thread);
                Ok(())
            }
            Err(_) => Err(match join(thread) {
                Ok(()) => anyhow::anyhow!("a thread ended before it was ready"),
                Err(error) => error,
            }),
        }
    }

    /// Describes the threads that [`Threads::start`] has started. Threads that serve one connection each are
    /// started later and are not described.
    pub(crate) fn infos(&self) -> &[WorkerInfo] {
        &self.infos
    }

    /// Returns a function that adds up the counters of all threads, for use in another thread.
    pub(crate) fn figures(&self) -> impl Fn() -> Statistics + Send + Sync + use<> {
        let plan = self.plan.clone();
        move || plan.scoreboard.statistics()
    }

    /// Returns the counters of all threads together.
    pub(crate) fn statistics(&self) -> Statistics {
        self.plan.scoreboard.statistics()
    }

    /// Requests all threads to stop.
    pub(crate) fn begin_stop(&self, grace: Duration) {
        self.plan.scoreboard.stop(grace);
        self.plan.queues.begin_stop();
    }

    /// Waits until all threads have ended.
    ///
    /// # Errors
    /// The error that ended one of them before it was stopped.
    pub(crate) fn wait(mut self) -> anyhow::Result<Statistics> {
        let mut outcome = Ok(());
        for thread in mem::take(&mut self.threads) {
            outcome = join(thread).and(outcome);
        }
        outcome.map(|()| self.plan.scoreboard.statistics())
    }
}

/// Stops the threads, because nothing else could stop them afterwards.
impl Drop for Threads {
    fn drop(&mut self) {
        if !self.threads.is_empty() {
            self.begin_stop(Duration::ZERO);
        }
    }
}

fn join(thread: JoinHandle<anyhow::Result<()>>) -> anyhow::Result<()> {
    thread.join().unwrap_or_else(|_| Err(anyhow::anyhow!("a thread panicked")))
}

/// The data that a thread starts with.
pub(super) struct ThreadWorker {
    pub(super) plan: Arc<Plan>,
    pub(super) index: usize,
    pub(super) log: Option<crate::log::LogSource>,
    /// The number of its slot of the scoreboard, once it has claimed one.
    slot: Cell<Option<usize>>,
}

impl ThreadWorker {
    /// Frees the slot of an engine that has ended too early. Its counters are kept.
    pub(super) fn leave(&self) {
        if let Some(slot) = self.slot.take() {
            self.plan.scoreboard.leave(slot);
        }
    }

    /// Creates this thread's engine and reports that it is ready.
    pub(super) fn begin(&self, ready: &Sender<WorkerInfo>) -> anyhow::Result<Blocking<Hosts>> {
        let cpu = pin(&self.plan.config, self.index)?;
        let slot =
            self.plan.scoreboard.claim_slot().context("there are more threads than slots")?;
        self.slot.set(Some(slot.index()));
        let worker_state = WorkerState::new(self.log.as_ref().map(|log| log.writer()))
            .with_records(&self.plan.config);
        // The threads that serve open their store at their first use. It is opened once here, so that an error
        // shows before a connection is accepted.
        if self.plan.assignment == Assignment::One {
            self.plan.check()?;
        }
        let mut engine = self.plan.engine(slot, worker_state)?;
        let queue = self.plan.queues.of(self.index);
        engine.prepare(queue).context(NO_SET)?;
        if self.plan.assignment != Assignment::One {
            engine.join_pool(queue);
        }
        let tid = rustix::thread::gettid().as_raw_nonzero().get();
        let _ = ready.send(WorkerInfo { tid, cpu, listens: Vec::new() });
        Ok(engine)
    }
}
