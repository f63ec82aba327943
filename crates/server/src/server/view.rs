//! The state of a server that the admin listener shows.

use super::{Server, WorkerSet, renew};
use crate::{
    admin::web::{ServerInfo, ServerView},
    engine::control::total,
    stats::Statistics,
};
use std::sync::{Arc, Weak};

impl Server {
    /// Returns the state for the admin listener.
    pub(super) fn view(&self) -> ServerView {
        let info = ServerInfo {
            mechanism: self.mechanism.to_string(),
            architecture: self.architecture.name().into(),
            workers: self.infos.len(),
            acme: self.acme_status(),
        };
        let caches = self.caches.clone();
        // The admin listener must not keep the hub in memory after the end of the server.
        let hub = self.hub.as_ref().map(Arc::downgrade);
        let figures: Box<dyn Fn() -> Statistics + Send + Sync> = match &self.worker_set {
            WorkerSet::Workers(workers) => {
                let remotes: Vec<_> =
                    workers.iter().map(|worker| worker.remote().clone()).collect();
                Box::new(move || total(&remotes))
            }
            WorkerSet::Threads(threads) => Box::new(threads.figures()),
            // `Settings::check` refuses an admin listener with processes.
            WorkerSet::Processes(_) => Box::new(Statistics::default),
        };
        let (all, ends) = (self.infos.len(), self.ends.clone());
        ServerView::new(
            info,
            Box::new(move || {
                let hub = hub.as_ref().and_then(Weak::upgrade).map(|hub| hub.statistics());
                Statistics { cache: renew::statistics_of(&caches), hub, ..figures() }
            }),
            Box::new(move || all.saturating_sub(ends.count())),
        )
    }
}
