//! The code of a child process, from its start to its end.

use super::super::Plan;
use crate::{
    architecture::worker::pin,
    engine::blocking::{Blocking, NO_SET},
    log::LogSource,
    service::worker_state::WorkerState,
    services::Hosts,
    stats::scoreboard::ScoreboardSlot,
};
use anyhow::Context;
use pollux_sys::{self as sys, PollFd};
use std::{
    io,
    os::fd::{AsFd, AsRawFd, OwnedFd},
};

/// The report of a child that is ready. Any other report is the reason why the child is not ready.
const READY: &[u8] = b"ready";
/// The maximum number of bytes of a reason.
const REASON_BYTES: usize = 4096;

/// The data that a child process starts with.
pub(super) struct Life<'p> {
    pub(super) plan: &'p Plan,
    /// Its position in the pool, or the number of its connection. This decides on which CPU it
    /// runs.
    pub(super) index: usize,
    pub(super) slot: ScoreboardSlot,
    pub(super) log: Option<LogSource>,
}

impl Life<'_> {
    /// Serves one connection after the other, until a stop is requested.
    pub(super) fn in_a_pool(self, ready: Option<OwnedFd>) -> u8 {
        let (plan, index) = (self.plan, self.index);
        let queue = plan.queues.of(index);
        let begun = self.begin().and_then(|mut engine| {
            engine.prepare(queue).context(NO_SET)?;
            engine.join_pool(queue);
            Ok(engine)
        });
        let mut engine = match (begun, &ready) {
            (Ok(engine), Some(ready)) => {
                report(ready, READY);
                engine
            }
            (Ok(engine), None) => engine,
            (Err(error), Some(ready)) => {
                report(ready, format!("{error:#}").as_bytes());
                return 1;
            }
            (Err(error), None) => return failed(&error),
        };
        drop(ready);
        let outcome = loop {
            match engine.accept(queue) {
                Ok(Some(socket)) => engine.serve(socket),
                Ok(None) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        engine.finish();
        outcome.map_or_else(|error| failed(&error.into()), |()| 0)
    }

    /// Serves one connection.
    pub(super) fn of_one(self, socket: OwnedFd) -> u8 {
        match self.begin() {
            Ok(mut engine) => {
                engine.serve(socket);
                engine.finish();
                0
            }
            Err(error) => failed(&error.context("a connection is closed unserved")),
        }
    }

    /// Reports whether this process could serve connections.
    pub(super) fn for_trial(self, ready: &OwnedFd) -> u8 {
        match self.plan.check() {
            Ok(()) => report(ready, READY),
            Err(error) => report(ready, format!("{error:#}").as_bytes()),
        }
        0
    }

    fn begin(self) -> anyhow::Result<Blocking<Hosts>> {
        let Self { plan, index, slot, log } = self;
        pin(&plan.config, index)?;
        // If this process's parent has drawn random numbers before, its state is copied, and all processes would draw
        // the same ones: the same identifiers of requests, for instance.
        let reseeded = rand::rng().reseed();
        reseeded.map_err(|error| anyhow::anyhow!("random numbers: {error}"))?;
        if let Some(guard) = &plan.rules.guard {
            guard.claim_slot(slot.index());
        }
        let worker_state = WorkerState::new(log.map(|log| log.writer()));
        plan.engine(slot, worker_state.with_records(&plan.config))
    }
}

fn failed(error: &anyhow::Error) -> u8 {
    tracing::error!("a process ends: {error:#}");
    1
}

fn report(ready: &OwnedFd, what: &[u8]) {
    let _ = sys::write(ready.as_fd(), &what[..what.len().min(REASON_BYTES)]);
}

/// Waits until a child has reported that it is ready. `reports` is the read end of its pipe, which
/// no other process holds.
///
/// # Errors
/// The reason why the child is not ready.
pub(super) fn wait_until_ready(reports: &OwnedFd) -> anyhow::Result<()> {
    let mut all = Vec::new();
    let mut buffer = [0; REASON_BYTES];
    loop {
        let mut polled = [PollFd { fd: reports.as_raw_fd(), events: libc::POLLIN, revents: 0 }];
        sys::ppoll(&mut polled, None).context("waiting for a process to be ready")?;
        match sys::read(reports.as_fd(), &mut buffer) {
            Ok(0) => break,
            Ok(count) => all.extend_from_slice(&buffer[..count]),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error.into()),
        }
        if all == READY {
            return Ok(());
        }
    }
    match &all[..] {
        [] => anyhow::bail!("a process ended before it was ready"),
        reason => Err(anyhow::anyhow!("{}", String::from_utf8_lossy(reason).into_owned())),
    }
}
