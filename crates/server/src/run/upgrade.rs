//! SIGUSR2 and `pollux ctl upgrade`: a new process takes over.

use super::service_manager;
use crate::{
    Server,
    upgrade::{count_failure, successor::Successor},
};
use std::{path::Path, time::Duration};

/// Starts `program` anew and leaves the service to it. Returns a line for each thing that was handed over;
/// then this process only ends what it has begun.
///
/// # Errors
/// Why the new process cannot take over: nothing has changed then.
pub(super) fn upgrade(
    server: &mut Server,
    redirect: Option<&mut Server>,
    program: &Path,
    drain: Duration,
) -> anyhow::Result<Vec<String>> {
    let outcome = hand_over(server, redirect, program, drain);
    match &outcome {
        Ok(lines) => lines.iter().for_each(|line| tracing::info!("upgrade: {line}")),
        Err(error) => {
            count_failure();
            tracing::error!("upgrade: this process goes on serving: {error:#}");
        }
    }
    outcome
}

fn hand_over(
    server: &mut Server,
    redirect: Option<&mut Server>,
    program: &Path,
    drain: Duration,
) -> anyhow::Result<Vec<String>> {
    server.check_can_be_succeeded()?;
    let mut listeners = server.offered();
    if let Some(redirect) = &redirect {
        listeners.extend(redirect.offered());
    }
    let sockets = listeners.len();
    let mut successor = Successor::start(program, &listeners)?;
    drop(listeners);
    let pid = successor.pid();
    let connections = match server.depart(&successor) {
        Ok(connections) => connections,
        Err(error) => {
            // First this: what it has taken in must not be used here as well.
            drop(successor);
            server.stay();
            return Err(error);
        }
    };
    service_manager::succeeded_by(pid);
    successor.confirm()?;
    server.leave(drain);
    if let Some(redirect) = redirect {
        // What waits there is a redirect, which takes no time.
        redirect.leave(Duration::ZERO);
    }
    Ok(vec![
        format!("process: {} -> {pid}", std::process::id()),
        format!("listening sockets handed over: {sockets}"),
        format!("idle connections handed over: {connections}"),
    ])
}
