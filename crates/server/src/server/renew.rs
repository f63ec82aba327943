//! Changes of the configuration of a running server.

use super::{Server, WorkerSet};
use crate::{
    admin::{PendingTask, SharedStores, Tasks, sum_of},
    architecture::limits,
    config::Architecture,
    reload::{self, Reload, Renewal, SiteRoots},
    settings::Settings,
};
use anyhow::{Context, ensure};
use std::{
    sync::{Arc, PoisonError},
    time::{Duration, Instant},
};

/// Returns the caches that commands on the control socket refer to: those of all sites.
pub(super) fn stores_of(config: &Settings) -> Vec<pollux_cache::Store> {
    config.cache_stores().cloned().collect()
}

/// The time in which a stopped server must write the remaining data for --cache-dir.
const FLUSH_PATIENCE: Duration = Duration::from_secs(10);

/// Waits until the caches in use have written what is left for their directories. Only the server knows these caches,
/// because a reload may replace them.
pub(super) fn flush_caches(config: &Settings) {
    let until = Instant::now() + FLUSH_PATIENCE;
    let is_late = |store: &&pollux_cache::Store| {
        !store.flush(until.saturating_duration_since(Instant::now()))
    };
    // Each of them, also after one that is late.
    if config.cache_stores().filter(is_late).count() > 0 {
        tracing::warn!("--cache-dir: not all was written within {FLUSH_PATIENCE:?}");
    }
}

/// Returns the counters of the caches in use, added up; `None` if there is no cache.
pub(super) fn statistics_of(caches: &SharedStores) -> Option<pollux_cache::Statistics> {
    sum_of(&caches.lock().unwrap_or_else(PoisonError::into_inner))
}

impl Server {
    /// Returns the next task that an operator has sent for the main thread.
    pub(crate) fn next_task(&self) -> Option<PendingTask> {
        self.tasks.as_ref().and_then(Tasks::next)
    }

    /// Reads certificates and configuration again, and opens the log again. Returns the changes, one line
    /// for each.
    ///
    /// # Errors
    /// The configuration or the certificates cannot be used, or a change needs a restart. The
    /// server then keeps its present configuration and certificates, but the log has been opened
    /// again. If the error says that a worker has not confirmed the change, the new configuration is
    /// in force.
    pub(crate) fn renew(
        &mut self,
        reload: Option<&mut (dyn Reload + '_)>,
    ) -> anyhow::Result<Vec<String>> {
        // First, because the rotation of logs depends on it, whatever is wrong with the rest.
        let log = self.renew_log();
        let mut changes = Vec::new();
        let current = self.config.clone();
        let reload = reload.zip(current);
        // Certificates are read first: if a pair cannot be used, the configuration does not change.
        let certificates = self.tls.as_ref().map_or(Ok(None), |tls| tls.read_again());
        // Processes of a pool have copies of the authorities.
        let tls = self.tls.as_ref().filter(|_| self.architecture != Architecture::Preforked);
        let authorities = tls.map_or(Ok(None), |tls| tls.read_authorities_again());
        let mut reloaded = None;
        if let Some((reload, current)) = reload {
            reloaded = Some((reload.read(&current), reload, current));
        }
        // Files that the new configuration no longer names may be missing.
        let are_replaced =
            matches!(&reloaded, Some((Ok(reloaded), ..)) if reloaded.replaces_certificates);
        let certificates = if are_replaced { None } else { certificates? };
        if certificates.is_some() {
            changes.push("certificates: read again".into());
        }
        let authorities = authorities?;
        if let Some((reloaded, reload, current)) = reloaded {
            let mut reloaded = reloaded?;
            reloaded.changes.extend(self.roots.changes(&SiteRoots::of(&reloaded.config)));
            if !reloaded.changes.is_empty() {
                self.change_to(reloaded.config, &current)?;
                reload.accept();
            }
            changes.extend(reloaded.changes);
        }
        // A configuration that is refused leaves the present certificates in use, too.
        if let (Some(tls), Some(certificates)) = (&self.tls, certificates) {
            tls.replace(certificates);
        }
        if let (Some(tls), Some(authorities)) = (&self.tls, authorities) {
            tls.use_authorities(authorities);
            changes.push("tls-client-ca: read again".into());
        }
        changes.extend(log);
        if changes.is_empty() && self.config.is_none() {
            self.refuse_reload()?;
        }
        Ok(changes)
    }

    /// Opens the logs again. Returns the line about it; `None` if there is no log.
    fn renew_log(&self) -> Option<String> {
        let failure = match &self.log {
            Some(log) => log.reopen(),
            // The process that writes reports a failure itself.
            None if self.reopen_log() => None,
            None => return None,
        };
        Some(failure.unwrap_or_else(|| "access-log: opened again".into()))
    }

    /// Changes the configuration of all workers to this one.
    ///
    /// # Errors
    /// The configuration cannot be used. If the error says that a worker has not confirmed the change,
    /// it is in force.
    pub(crate) fn change(&mut self, config: Settings) -> anyhow::Result<()> {
        match self.config.clone() {
            Some(current) => self.change_to(config, &current),
            None => self.refuse_reload(),
        }
    }

    /// Returns the error for an architecture with blocking workers, which cannot change its
    /// configuration.
    fn refuse_reload(&self) -> anyhow::Result<()> {
        anyhow::bail!(
            "--architecture {}: the configuration is read only at the start; restart the server to change \
             it",
            self.architecture
        )
    }

    /// Returns whether a worker has ended although no stop was requested.
    pub(crate) fn has_lost_worker(&self) -> bool {
        self.running() < self.infos.len()
    }

    /// Changes all workers to another configuration. If a worker cannot prepare for it, no worker
    /// changes. If a worker does not confirm the change, the new configuration is in force all the same.
    fn change_to(&mut self, mut config: Settings, current: &Settings) -> anyhow::Result<()> {
        config.check()?;
        // Before the workers open them: if one is replaced meanwhile, the next reload opens it again.
        let roots = SiteRoots::of(&config);
        reload::check_sites(&config)?;
        ensure!(config.workers == current.workers, "another number of workers needs a restart");
        let open_files = limits::raise_open_files();
        let max_connections = (0..config.workers)
            .map(|index| limits::connections_of_worker(&config, open_files, index))
            .collect();
        config.site.open_files = limits::cached_files(&config, open_files);
        // The workers keep the guestbooks of the running configuration.
        config.guestbook = None;
        config.hosts.iter_mut().for_each(|host| host.guestbook = None);
        let stores = stores_of(&config);
        let Some(former) = self.rules.as_deref() else { return Ok(()) };
        self.renewals += 1;
        let number = self.renewals;
        let cache_bytes = config.site.cache_bytes;
        let contents = crate::services::site::Contents::new(cache_bytes, config.workers);
        config.site.cache_bytes =
            crate::services::site::Contents::of_index(cache_bytes, config.workers);
        let config = Arc::new(config);
        let in_use = contents.clone();
        let (renewal, answers) =
            Renewal::new(number, config.clone(), contents, max_connections, former);
        let rules = renewal.rules.clone();
        let WorkerSet::Workers(workers) = &self.worker_set else { return Ok(()) };
        let offer = |renewal| *self.offer.lock().unwrap_or_else(PoisonError::into_inner) = renewal;
        offer(Some(Arc::new(renewal)));
        workers.iter().for_each(|worker| worker.remote().prepare_renewal(number));
        if let Err(error) = reload::await_all(&answers, workers.len()) {
            offer(None);
            return Err(error);
        }
        workers.iter().for_each(|worker| worker.remote().commit_renewal(number));
        let outcome = reload::await_all(&answers, workers.len());
        offer(None);
        *self.caches.lock().unwrap_or_else(PoisonError::into_inner) = stores;
        self.config = Some(config);
        self.roots = roots;
        self.rules = Some(rules);
        if let Some(replacements) = &mut self.replacements {
            replacements.contents = in_use;
        }
        outcome.context("the new configuration is in force, but a worker has not confirmed it")
    }
}
