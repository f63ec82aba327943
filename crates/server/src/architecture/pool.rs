//! The assignment is a pool: each worker serves one connection after the other.

use super::{panics::PanicLimit, thread::ThreadWorker};
use crate::architecture::worker::WorkerInfo;
use anyhow::Context;
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::mpsc::Sender,
    time::Instant,
};

/// Runs a thread of the pool. A panic ends only the connection that is being served; the thread
/// then starts again with a new engine.
///
/// # Errors
/// The reason why the thread did not become ready or cannot wait for connections; or too many
/// panics.
pub(super) fn run(
    worker: &ThreadWorker,
    ready: &Sender<WorkerInfo>,
    limit: &PanicLimit,
) -> anyhow::Result<()> {
    loop {
        // Unwind safety: a panic can leave only the engine in an inconsistent state, and the engine
        // is dropped.
        match catch_unwind(AssertUnwindSafe(|| serve(worker, ready))) {
            Ok(outcome) => return outcome,
            Err(_) => {
                let index = worker.index;
                worker.leave();
                limit.admit(Instant::now()).with_context(|| format!("thread {index} panicked"))?;
                worker.plan.scoreboard.count_replacement();
                tracing::error!(
                    "thread {index} panicked and lost its connection; another takes its place"
                );
            }
        }
    }
}

fn serve(worker: &ThreadWorker, ready: &Sender<WorkerInfo>) -> anyhow::Result<()> {
    let mut engine = worker.begin(ready)?;
    let queue = worker.plan.queues.of(worker.index);
    while let Some(socket) = engine.accept(queue)? {
        engine.serve(socket);
    }
    engine.finish();
    Ok(())
}
