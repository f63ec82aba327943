//! Upgrades: handing the service over to a successor, and taking it over from the former server.

use super::{Server, WorkerSet};
use crate::{
    admin::web::Web,
    architecture::{HubNews, worker::Worker},
    engine::control::WorkerCommand,
    services::hub::{HubShared, refuse_log},
    settings::Settings,
    transport::role::Role,
    upgrade::{
        channel::Channel,
        distribution,
        successor::{ListenerOffer, Successor},
    },
};
use anyhow::{Context, anyhow, bail, ensure};
use pollux_event::{Capabilities, registry};
use std::{
    collections::VecDeque,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::net::UnixStream,
    },
    sync::{Arc, PoisonError, mpsc::channel},
    time::{Duration, Instant},
};

/// How long the workers may take to hand over their idle connections.
const PATIENCE: Duration = Duration::from_secs(30);

impl Server {
    /// Checks that this process can hand over to another process, or take over from one.
    ///
    /// # Errors
    /// The reason why it cannot.
    pub(crate) fn check_can_be_succeeded(&self) -> anyhow::Result<()> {
        Settings::check_upgrade(self.architecture)?;
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
        match &self.worker_set {
            WorkerSet::Workers(workers) => workers,
            WorkerSet::Threads(_) | WorkerSet::Processes(_) => &[],
        }
    }

    /// Returns all listening sockets, for a successor.
    pub(crate) fn offered(&self) -> Vec<ListenerOffer<'_>> {
        let mut all: Vec<ListenerOffer<'_>> = Vec::new();
        let mut offered = Vec::new();
        for listener in &self.listeners {
            // Workers may share a listener.
            let pointer = Arc::as_ptr(listener);
            if offered.contains(&pointer) {
                continue;
            }
            offered.push(pointer);
            all.push(ListenerOffer {
                role: Role::Clients,
                index: listener.index(),
                configured: listener.configured().to_string(),
                socket: listener.as_fd(),
            });
        }
        if let Some(operator) = &self.operator {
            let (path, socket) = operator.listener();
            let configured = path.to_string_lossy().into_owned();
            all.push(ListenerOffer { role: Role::Control, index: 0, configured, socket });
        }
        if let Some(web) = &self.web {
            let (configured, socket) = web.listener();
            let configured = configured.to_string();
            all.push(ListenerOffer { role: Role::Admin, index: 0, configured, socket });
        }
        all
    }

    /// Makes all workers stop accepting and hand over their idle connections. Returns how many
    /// connections the successor has taken.
    ///
    /// # Errors
    /// The reason why that failed. The successor must then end, and after that the caller must call
    /// [`Server::stay`].
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

    /// Sends the log of the hub, so that its subscribers can be handed over.
    fn hand_over_hub(&mut self, successor: &Successor) -> anyhow::Result<()> {
        let Some(hub) = self.hub.clone() else { return Ok(()) };
        let (near, far) = UnixStream::pair().context("a socket for the hub's history")?;
        successor.give_hub(far.as_fd())?;
        drop(far);
        // From now on the answers to publishers are delayed.
        self.start_news(&hub)?;
        hub.hand_over(near).map(drop)
    }

    /// Starts to notify workers of updates that are published from now on.
    pub(super) fn start_news(&mut self, hub: &Arc<HubShared>) -> anyhow::Result<()> {
        if self.news.is_none() {
            let remotes = self.event_workers().iter().map(|worker| worker.remote().clone());
            self.news = Some(HubNews::start(hub.clone(), remotes.collect())?);
        }
        Ok(())
    }

    /// Receives the log of the former server's hub from this socket.
    ///
    /// # Errors
    /// The data is not such a log.
    pub(crate) fn take_over_hub(&self, socket: OwnedFd) -> anyhow::Result<()> {
        let socket = UnixStream::from(socket);
        match &self.hub {
            Some(hub) => hub.take_over(socket),
            None => refuse_log(socket),
        }
        .context("the hub's history")
    }

    /// Tells the hub not to wait for a log: the former server has none, or has sent it.
    pub(crate) fn release_hub(&self) {
        if let Some(hub) = &self.hub {
            hub.release();
        }
    }

    /// Serves as before. To be called after [`Server::depart`], when the successor has ended.
    pub(crate) fn stay(&self) {
        if let Some(hub) = &self.hub {
            hub.stay();
        }
        for worker in self.event_workers() {
            worker.remote().end_upgrade(WorkerCommand::Stay);
        }
    }

    /// Leaves all sockets to the successor, which has them already. The workers end when all
    /// exchanges in progress have ended, or after `drain`; a connection that becomes idle is handed
    /// to the successor.
    pub(crate) fn leave(&mut self, drain: Duration) {
        // Only one process may order certificates.
        self.acme = None;
        if let Some(operator) = &mut self.operator {
            operator.leave_to_successor();
        }
        if let Some(web) = self.web.take() {
            web.view().begin_stop();
            Web::leave_to_successor(web);
        }
        for file in self.files.drain(..) {
            file.leave_to_successor();
        }
        self.listeners.clear();
        self.replacements = None;
        // The successor waits for the directories of caches.
        let stores = self.config.iter().flat_map(|config| config.cache_stores());
        stores.for_each(pollux_cache::Store::release_directory);
        for worker in self.event_workers() {
            worker.remote().end_upgrade(WorkerCommand::Leave { drain });
        }
    }

    /// Takes over the connections that arrive on `channel`, in all workers. `number` selects the
    /// worker that gets the first ones.
    ///
    /// # Errors
    /// A worker has ended, or there are too few descriptors.
    pub(crate) fn adopt(&self, channel: OwnedFd, number: usize) -> anyhow::Result<()> {
        let adopt = |worker: &Worker, channel: BorrowedFd<'_>| {
            worker.remote().give(WorkerCommand::Adopt, channel).context("a worker")
        };
        let workers = self.event_workers();
        if let [worker] = workers {
            return adopt(worker, channel.as_fd());
        }
        let mut channels = VecDeque::new();
        for worker in workers {
            let (near, far) = Channel::pair().context("a channel for connections")?;
            adopt(worker, far.as_fd())?;
            channels.push_back(near);
        }
        ensure!(!channels.is_empty(), "no worker");
        let first = number % channels.len();
        channels.rotate_left(first);
        distribution::start(Channel::of(channel), channels).context("a thread")
    }

    /// Waits for a short time until the answers on the control socket have been sent.
    pub(crate) fn await_operators(&self) {
        if let Some(operator) = &self.operator {
            operator.await_clients();
        }
    }
}
