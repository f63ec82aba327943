//! The assignment is exactly one connection: a worker is started for each.

use super::{Plan, thread::ThreadWorker};
use crate::{
    architecture::worker::{WorkerInfo, pin},
    log::LogSource,
    service::worker_state::WorkerState,
    stats::scoreboard::{Scoreboard, ScoreboardSlot},
};
use pollux_sys::spawn_detached;
use std::{
    io,
    os::fd::OwnedFd,
    sync::{Arc, Condvar, Mutex, PoisonError, mpsc::Sender},
    thread,
};

/// Accepts connections and starts a thread for each, until a stop has been requested and all
/// threads have ended.
///
/// # Errors
/// The reason why the acceptor did not become ready, or cannot wait for connections.
pub(super) fn run(worker: &ThreadWorker, ready: &Sender<WorkerInfo>) -> anyhow::Result<()> {
    let mut engine = worker.begin(ready)?;
    let running = Arc::new(ThreadCount::default());
    let scoreboard = &worker.plan.scoreboard;
    let (mut has_warned_of_limit, mut has_warned_of_threads) = (false, false);
    let warn_once = |has_warned: &mut bool, what: std::fmt::Arguments<'_>| {
        if !std::mem::replace(has_warned, true) {
            tracing::warn!("{what}; new connections wait meanwhile. (Reported once.)");
        }
    };
    loop {
        // A slot is claimed before the connection is accepted. If there is none, the connection
        // waits in the kernel's queue.
        let slot = loop {
            if let Some(slot) = scoreboard.claim_slot() {
                break Some(slot);
            }
            let most = worker.plan.max_connections;
            warn_once(
                &mut has_warned_of_limit,
                format_args!(
                    "all {most} threads that --max-connections or the limit of open files allows are busy"
                ),
            );
            if !engine.pause(scoreboard, worker.plan.queues.of(0)) {
                break None;
            }
            scoreboard.drain_room();
        };
        let Some(slot) = slot else { break };
        let index = slot.index();
        let Some(socket) = engine.accept(worker.plan.queues.of(0))? else {
            scoreboard.leave(index);
            break;
        };
        slot.set_client(engine.last_client());
        // The socket is passed through `parcel`, which the thread empties when it runs. If the
        // thread cannot be started, the socket stays here and is not closed.
        let parcel = Arc::new(Mutex::new(Some((socket, slot))));
        while let Err(error) = start(&worker.plan, worker.log.clone(), &parcel, &running, index) {
            warn_once(
                &mut has_warned_of_threads,
                format_args!(
                    "a thread cannot be started: {error} (`ulimit -u`, pids.max of the cgroup, memory)"
                ),
            );
            if !engine.rest() {
                scoreboard.leave(index);
                break;
            }
        }
    }
    running.wait();
    engine.finish();
    Ok(())
}

fn start(
    plan: &Arc<Plan>,
    log: Option<LogSource>,
    parcel: &Arc<Mutex<Option<(OwnedFd, ScoreboardSlot)>>>,
    running: &Arc<ThreadCount>,
    index: usize,
) -> io::Result<()> {
    let (plan, parcel, count) = (plan.clone(), parcel.clone(), running.clone());
    running.add();
    let started = spawn_detached(c"connection", move || {
        let _end = End { scoreboard: plan.scoreboard.clone(), index, running: count };
        let parcel = parcel.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some((socket, slot)) = parcel else { return };
        let worker_state = WorkerState::new(log.map(|log| log.writer())).with_records(&plan.config);
        let engine = pin(&plan.config, index).and_then(|_| plan.engine(slot, worker_state));
        match engine {
            Ok(mut engine) => {
                engine.serve(socket);
                engine.finish();
            }
            Err(error) => tracing::error!("a connection is closed unserved: {error:#}"),
        }
    });
    if started.is_err() {
        running.remove();
    }
    started
}

/// Marks the end of a thread when it is dropped, so that a panic is counted, too.
struct End {
    scoreboard: Arc<Scoreboard>,
    index: usize,
    running: Arc<ThreadCount>,
}

impl Drop for End {
    fn drop(&mut self) {
        if thread::panicking() {
            // The next connection gets another thread in any case.
            self.scoreboard.count_replacement();
            tracing::error!("a thread panicked and lost its connection");
        }
        self.scoreboard.leave(self.index);
        self.running.remove();
    }
}

/// The number of threads that serve a connection.
#[derive(Debug, Default)]
struct ThreadCount {
    count: Mutex<usize>,
    none: Condvar,
}

impl ThreadCount {
    fn add(&self) {
        *self.count.lock().unwrap_or_else(PoisonError::into_inner) += 1;
    }

    fn remove(&self) {
        let mut count = self.count.lock().unwrap_or_else(PoisonError::into_inner);
        *count -= 1;
        if *count == 0 {
            self.none.notify_all();
        }
    }

    /// Waits until no thread serves. The threads end by themselves: each obeys the notifier.
    fn wait(&self) {
        let mut count = self.count.lock().unwrap_or_else(PoisonError::into_inner);
        while *count > 0 {
            count = self.none.wait(count).unwrap_or_else(PoisonError::into_inner);
        }
    }
}
