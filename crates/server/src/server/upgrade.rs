//! Leaving the service to a successor, and taking it over from the former server.

use super::{Server, Units};
use crate::{
    admin::web::Web,
    architecture::worker::Worker,
    engine::control::WorkerCommand,
    services::hub::{HubNews, HubShared, refuse_log},
    upgrade::{
        Role,
        channel::Channel,
        successor::{Offered, Successor},
    },
};
use anyhow::{Context, anyhow, bail, ensure};
use pollux_event::{Capabilities, registry};
use std::{
    os::{
        fd::{AsFd, OwnedFd},
        unix::net::UnixStream,
    },
    sync::{Arc, PoisonError, mpsc::channel},
    time::{Duration, Instant},
};

/// How long the workers may take to hand over their idle connections.
const PATIENCE: Duration = Duration::from_secs(30);

impl Server {
    /// Whether another process can succeed this one, or this one another.
    ///
    /// # Errors
    /// Why it cannot.
    pub(crate) fn check_can_be_succeeded(&self) -> anyhow::Result<()> {
        ensure!(
            matches!(self.units, Units::Workers(_)),
            "--architecture {}: an upgrade without a gap needs --architecture event; restart the server \
             instead",
            self.architecture
        );
        let name = &self.mechanism.name;
        let has_one_owner = registry::find(name)
            .is_some_and(|found| found.capabilities.contains(Capabilities::ONE_OWNER));
        ensure!(
            !has_one_owner,
            "--mechanism {name}: with it the kernel reports a listener to one process only; an upgrade \
             without a gap needs another one"
        );
        Ok(())
    }

    fn event_workers(&self) -> &[Worker] {
        match &self.units {
            Units::Workers(workers) => workers,
            Units::Threads(_) | Units::Processes(_) => &[],
        }
    }

    /// All listening sockets, for a successor.
    pub(crate) fn offered(&self) -> Vec<Offered<'_>> {
        let mut all: Vec<Offered<'_>> = Vec::new();
        let mut offered = Vec::new();
        for listener in &self.listeners {
            // Workers may share one.
            let pointer = Arc::as_ptr(listener);
            if offered.contains(&pointer) {
                continue;
            }
            offered.push(pointer);
            all.push(Offered {
                role: Role::Clients,
                place: listener.place(),
                configured: listener.configured().to_string(),
                socket: listener.as_fd(),
            });
        }
        if let Some(operator) = &self.operator {
            let (path, socket) = operator.listener();
            let configured = path.to_string_lossy().into_owned();
            all.push(Offered { role: Role::Control, place: 0, configured, socket });
        }
        if let Some(web) = &self.web {
            let (configured, socket) = web.listener();
            let configured = configured.to_string();
            all.push(Offered { role: Role::Admin, place: 0, configured, socket });
        }
        all
    }

    /// Has all workers stop accepting and hand over their idle connections. Returns how many the successor
    /// has.
    ///
    /// # Errors
    /// Why that did not work. Then the successor has to end, and after that [`Server::stay`] is to be called.
    pub(crate) fn depart(&mut self, successor: &Successor) -> anyhow::Result<u64> {
        self.hand_over_hub(successor)?;
        let (sender, reports) = channel();
        let wait_for =
            |sender| *self.reports.lock().unwrap_or_else(PoisonError::into_inner) = sender;
        wait_for(Some(sender));
        let outcome = (|| {
            let workers = self.event_workers();
            for worker in workers {
                let (near, far) = Channel::pair().context("a channel for connections")?;
                successor.give_channel(&far)?;
                worker.remote().give(WorkerCommand::Depart, near.as_fd())?;
            }
            let deadline = Instant::now() + PATIENCE;
            let mut sum = 0;
            for _ in workers {
                let left = deadline.saturating_duration_since(Instant::now());
                let report = reports.recv_timeout(left).map_err(|_| {
                    anyhow!("a worker does not hand over within {} s", PATIENCE.as_secs())
                })?;
                match report.outcome {
                    Ok(count) => sum += count,
                    Err(reason) => bail!("worker {}: {reason}", report.worker),
                }
            }
            Ok(sum)
        })();
        wait_for(None);
        outcome
    }

    /// Sends the hub's log, so that its subscribers can follow.
    fn hand_over_hub(&mut self, successor: &Successor) -> anyhow::Result<()> {
        let Some(hub) = self.hub.clone() else { return Ok(()) };
        let (near, far) = UnixStream::pair().context("a socket for the hub's history")?;
        successor.give_hub(far.as_fd())?;
        drop(far);
        // Publishers wait for answers from now on.
        self.start_news(&hub)?;
        hub.hand_over(near).map(drop)
    }

    /// Notifies workers of what is published from now on.
    pub(super) fn start_news(&mut self, hub: &Arc<HubShared>) -> anyhow::Result<()> {
        if self.news.is_none() {
            let remotes = self.event_workers().iter().map(|worker| worker.remote().clone());
            self.news = Some(HubNews::start(hub.clone(), remotes.collect())?);
        }
        Ok(())
    }

    /// Takes in the log of the former server's hub, which comes on this socket.
    ///
    /// # Errors
    /// It is no log.
    pub(crate) fn take_over_hub(&self, socket: OwnedFd) -> anyhow::Result<()> {
        let socket = UnixStream::from(socket);
        match &self.hub {
            Some(hub) => hub.take_over(socket),
            None => refuse_log(socket),
        }
        .context("the hub's history")
    }

    /// The former server has no log, or has sent it: the hub need not wait for it.
    pub(crate) fn release_hub(&self) {
        if let Some(hub) = &self.hub {
            hub.release();
        }
    }

    /// After [`Server::depart`], when the successor has ended: serves as before.
    pub(crate) fn stay(&self) {
        if let Some(hub) = &self.hub {
            hub.stay();
        }
        for worker in self.event_workers() {
            worker.remote().end_upgrade(WorkerCommand::Stay);
        }
    }

    /// Leaves all sockets to the successor, which has them. The workers end when all exchanges in progress
    /// have ended, or after `drain`; a connection that becomes idle goes to the successor.
    pub(crate) fn leave(&mut self, drain: Duration) {
        // Only one process orders certificates.
        self.acme = None;
        if let Some(operator) = &mut self.operator {
            operator.leave_to_successor();
        }
        if let Some(web) = self.web.take() {
            web.observed().begin_stop();
            Web::leave_to_successor(web);
        }
        for file in self.files.drain(..) {
            file.leave_to_successor();
        }
        self.listeners.clear();
        self.replacements = None;
        for worker in self.event_workers() {
            worker.remote().end_upgrade(WorkerCommand::Leave { drain });
        }
    }

    /// Has a worker take in the connections that come on this channel, the one with this number.
    ///
    /// # Errors
    /// The worker has ended.
    pub(crate) fn adopt(&self, channel: OwnedFd, number: usize) -> anyhow::Result<()> {
        let workers = self.event_workers();
        let worker = workers.get(number % workers.len().max(1)).context("no worker")?;
        worker.remote().give(WorkerCommand::Adopt, channel.as_fd()).context("a worker")
    }

    /// Waits for a moment until the answers on the control socket have left.
    pub(crate) fn await_operators(&self) {
        if let Some(operator) = &self.operator {
            operator.await_clients();
        }
    }
}
