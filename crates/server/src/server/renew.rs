//! Changes of the configuration of a running server.

use super::{Server, WorkerSet};
use crate::{
    admin::{PendingTask, SharedStores, Tasks},
    architecture::limits,
    config::Architecture,
    reload::{self, NoConfirmation, Reload, Renewal, SiteRoots},
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

/// Waits until the caches of all sites have written their remaining data to their directories. `config` must be the
/// configuration in force, because a reload may have replaced the caches that the server had at its start.
pub(super) fn flush_caches(config: &Settings) {
    let until = Instant::now() + FLUSH_PATIENCE;
    let is_late = |store: &&pollux_cache::Store| {
        !store.flush(until.saturating_duration_since(Instant::now()))
    };
    // All caches are flushed, also those after a late one.
    if config.cache_stores().filter(is_late).count() > 0 {
        tracing::warn!("--cache-dir: not all was written within {FLUSH_PATIENCE:?}");
    }
}

/// Returns the counters of all caches, added up; `None` if there is no cache.
pub(super) fn statistics_of(caches: &SharedStores) -> Option<pollux_cache::Statistics> {
    caches.lock().unwrap_or_else(PoisonError::into_inner).statistics()
}

/// What a reload has done.
#[derive(Debug)]
pub(crate) struct Renewed {
    /// The changes, one line for each.
    pub(crate) changes: Vec<String>,
    /// Why a log was not opened again; it is in the server's messages, too.
    pub(crate) log_failure: Option<String>,
}

impl Server {
    /// Returns the next task that an operator has sent for the main thread.
    pub(crate) fn next_task(&self) -> Option<PendingTask> {
        self.tasks.as_ref().and_then(Tasks::next)
    }

    /// Reads certificates and configuration again, and opens the logs again.
    ///
    /// # Errors
    /// The configuration or the certificates cannot be used, or a change needs a restart. The
    /// server then keeps its present configuration and certificates, but the log has been opened
    /// again. After [`NoConfirmation`] the new configuration and certificates are in force.
    pub(crate) fn renew(
        &mut self,
        reload: Option<&mut (dyn Reload + '_)>,
    ) -> anyhow::Result<Renewed> {
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
        let mut confirmation = Ok(());
        if let Some((reloaded, reload, current)) = reloaded {
            let mut reloaded = reloaded?;
            // Before the workers open them: if one is replaced meanwhile, the next reload opens it again.
            let roots = SiteRoots::of(&reloaded.config);
            reloaded.changes.extend(self.roots.changes(&roots));
            if !reloaded.changes.is_empty() {
                confirmation = self.change_to(reloaded.config, roots, &current)?;
                // Confirmed or not: the next reload is compared with what is in force.
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
        let log_failure = match log {
            Some(Ok(line)) => {
                changes.push(line.into());
                None
            }
            Some(Err(failure)) => Some(failure),
            None => None,
        };
        if changes.is_empty() && log_failure.is_none() && self.config.is_none() {
            self.refuse_reload()?;
        }
        confirmation.context(NoConfirmation)?;
        Ok(Renewed { changes, log_failure })
    }

    /// Opens the logs again, after log rotation has moved their files away. Returns the line about it, or the reason
    /// why not; `None` if there is no log.
    pub(super) fn renew_log(&self) -> Option<Result<&'static str, String>> {
        let failure = match (&self.log, &self.worker_set) {
            (Some(log), _) => log.reopen(),
            // The process that writes reports a failure itself.
            (None, WorkerSet::Processes(processes)) if processes.reopen_log() => None,
            _ => return None,
        };
        Some(failure.map_or(Ok("access-log: opened again"), Err))
    }

    /// Changes the configuration of all workers to this one.
    ///
    /// # Errors
    /// The configuration cannot be used. After [`NoConfirmation`] it is in force.
    pub(crate) fn change(&mut self, config: Settings) -> anyhow::Result<()> {
        let Some(current) = self.config.clone() else { return self.refuse_reload() };
        let roots = SiteRoots::of(&config);
        self.change_to(config, roots, &current)?.context(NoConfirmation)
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

    /// Changes all workers to another configuration, whose directories are `roots`. If a worker cannot prepare for it, no
    /// worker changes. Otherwise the new configuration is in force; the result within says whether all workers have
    /// confirmed it.
    fn change_to(
        &mut self,
        mut config: Settings,
        roots: SiteRoots,
        current: &Settings,
    ) -> anyhow::Result<anyhow::Result<()>> {
        config.check()?;
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
        let Some(former) = self.rules.as_deref() else { return Ok(Ok(())) };
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
        let WorkerSet::Workers(workers) = &self.worker_set else { return Ok(Ok(())) };
        let offer = |renewal| *self.offer.lock().unwrap_or_else(PoisonError::into_inner) = renewal;
        offer(Some(Arc::new(renewal)));
        workers.iter().for_each(|worker| worker.remote().prepare_renewal(number));
        if let Err(error) = reload::await_all(&answers, workers.len()) {
            offer(None);
            return Err(error);
        }
        // From here on only the workers can answer, so that the wait ends with the last of them.
        offer(None);
        workers.iter().for_each(|worker| worker.remote().commit_renewal(number));
        let confirmation = reload::await_all(&answers, workers.len());
        self.caches.lock().unwrap_or_else(PoisonError::into_inner).replace(stores);
        self.config = Some(config);
        self.roots = roots;
        self.rules = Some(rules);
        if let Some(replacements) = &mut self.replacements {
            replacements.contents = in_use;
        }
        Ok(confirmation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        architecture::worker::MakeService,
        protocol::rules::Rules,
        reload::ReloadedConfig,
        service::ServiceContext,
        services::{Generations, Hosts},
    };
    use std::num::NonZeroU32;

    struct Source {
        next: Settings,
        is_accepted: bool,
    }

    impl Reload for Source {
        fn read(&mut self, _: &Settings) -> anyhow::Result<ReloadedConfig> {
            let changes = vec!["max-requests".into()];
            Ok(ReloadedConfig { config: self.next.clone(), changes, replaces_certificates: false })
        }

        fn accept(&mut self) {
            self.is_accepted = true;
        }
    }

    fn panic_at_the_change(
        _: &mut Generations,
        _: Generations,
        _: Arc<Rules>,
        _: &mut ServiceContext<'_>,
    ) {
        panic!("planted");
    }

    /// Regression: the reader of the configuration kept the former one, although the new one was in force, and the log
    /// said that the former one was.
    #[test]
    fn a_change_that_a_worker_does_not_confirm_is_in_force() {
        let folder = tempfile::tempdir().unwrap();
        let make: MakeService<Generations> = Arc::new(|config, rules, contents, _| {
            Ok(Generations::new(Hosts::open(config, rules, contents)?))
        });
        let config = Settings::new(folder.path());
        let mut server =
            Server::start_making(config, None, make, Some(panic_at_the_change)).unwrap();
        let mut next = Settings::new(folder.path());
        next.max_requests = NonZeroU32::new(7);
        let mut source = Source { next, is_accepted: false };
        let error = server.renew(Some(&mut source)).unwrap_err();
        assert!(error.is::<NoConfirmation>(), "{error:#}");
        assert!(source.is_accepted);
        assert_eq!(server.config().unwrap().max_requests, NonZeroU32::new(7));
    }
}
