//! The assignment is a pool: each unit takes one connection after the other.

use super::{panics::PanicLimit, thread::Unit};
use crate::architecture::worker::WorkerInfo;
use anyhow::Context;
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::mpsc::Sender,
    time::Instant,
};

/// A thread of the pool. After a panic, which costs the connection that it serves, it begins anew.
///
/// # Errors
/// What kept it from being ready, or from waiting for connections; too many panics.
pub(super) fn run(
    unit: &Unit,
    ready: &Sender<WorkerInfo>,
    limit: &PanicLimit,
) -> anyhow::Result<()> {
    loop {
        // What a panic leaves half done belongs to the engine, which is dropped.
        match catch_unwind(AssertUnwindSafe(|| serve(unit, ready))) {
            Ok(outcome) => return outcome,
            Err(_) => {
                let index = unit.index;
                unit.leave();
                limit.admit(Instant::now()).with_context(|| format!("thread {index} panicked"))?;
                unit.plan.scoreboard.count_replacement();
                tracing::error!(
                    "thread {index} panicked and lost its connection; another takes its place"
                );
            }
        }
    }
}

fn serve(unit: &Unit, ready: &Sender<WorkerInfo>) -> anyhow::Result<()> {
    let mut engine = unit.begin(ready)?;
    let queue = unit.plan.queues.of(unit.index);
    while let Some(socket) = engine.accept(queue)? {
        engine.serve(socket);
    }
    engine.finish();
    Ok(())
}
