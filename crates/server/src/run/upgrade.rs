//! SIGUSR2 and `pollux ctl upgrade`: a new process takes over.

use super::service_manager;
use crate::{
    Server,
    upgrade::{
        count_failure,
        successor::{ListenerOffer, Successor},
    },
};
use std::{path::Path, time::Duration};

/// The index of the listener of `--redirect-http`, which is in no list of the configuration.
const REDIRECT_INDEX: u16 = u16::MAX;

/// Starts `program` again and hands the service over to it. Returns a line for each kind of object
/// that was handed over. Afterwards this process only finishes the exchanges that it has begun.
///
/// # Errors
/// The reason why the new process cannot take over. This process then serves as before, but the idle
/// connections that the new process had already accepted have been closed.
pub(super) fn upgrade(
    server: &mut Server,
    redirect: Option<&mut Server>,
    program: &Path,
    drain: Duration,
) -> anyhow::Result<Vec<String>> {
    let outcome = service_manager::keep_alive(server.architecture(), || {
        hand_over(server, redirect, program, drain)
    });
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
        // Both servers count their listeners from 0. With port 0 the configured addresses may be equal, too,
        // and the successor of one server would take the listeners of both.
        let offers = redirect.offered().into_iter();
        listeners.extend(offers.map(|offer| ListenerOffer { index: REDIRECT_INDEX, ..offer }));
    }
    let sockets = listeners.len();
    let mut successor = Successor::start(program, &listeners)?;
    drop(listeners);
    let pid = successor.pid();
    let departed = server.depart(&successor);
    let outcome = departed.and_then(|count| successor.confirm().map(|()| count));
    let connections = match outcome {
        Ok(connections) => connections,
        Err(error) => {
            // The successor must end first: the connections that it has taken must not be used here
            // at the same time.
            drop(successor);
            server.stay();
            return Err(error);
        }
    };
    // Not earlier: the service manager would refuse messages of this process, if it must go on. It
    // may refuse READY=1 of the successor if that arrives first, but the service is already active.
    service_manager::succeeded_by(pid);
    server.leave(drain);
    if let Some(redirect) = redirect {
        redirect.leave(drain);
        // Its idle connections are closed. A request that has begun to arrive gets its redirect.
        redirect.begin_stop(drain);
    }
    Ok(vec![
        format!("process: {} -> {pid}", std::process::id()),
        format!("listening sockets handed over: {sockets}"),
        format!("idle connections handed over: {connections}"),
    ])
}
