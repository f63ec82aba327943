//! The assignment is a pool: each unit takes one connection after the other.

use super::thread::Unit;
use crate::architecture::worker::WorkerInfo;
use std::sync::mpsc::Sender;

/// A unit's life.
///
/// # Errors
/// What kept it from being ready, or from waiting for connections.
pub(super) fn run(unit: &Unit, ready: &Sender<WorkerInfo>) -> anyhow::Result<()> {
    let mut engine = unit.begin(ready)?;
    let queue = unit.plan.queues.of(unit.index);
    while let Some(socket) = engine.accept(queue)? {
        engine.serve(socket);
    }
    engine.finish();
    Ok(())
}
