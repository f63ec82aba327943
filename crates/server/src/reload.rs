//! Changes of the configuration while the server runs.
//!
//! The caller of [`crate::run()`] provides the function that reads the configuration again
//! ([`Reload`]). The main thread calls it, checks the result, and offers it to the workers, which
//! change to it together (`engine::event::renew`).

use crate::{
    protocol::rules::Rules,
    services::site::{Contents, Tree},
    settings::Settings,
};
use anyhow::{Context, bail};
use std::{
    fmt, fs, iter,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    },
    time::{Duration, Instant},
};

/// The time in which all workers together must prepare for a configuration, or change to it.
const PATIENCE: Duration = Duration::from_secs(10);

/// The reason why a reload is reported as an error although the new configuration is in force.
#[derive(Debug)]
pub(crate) struct NoConfirmation;

impl fmt::Display for NoConfirmation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the new configuration is in force, but a worker has not confirmed it")
    }
}

/// A configuration that was read again.
#[derive(Debug)]
pub struct ReloadedConfig {
    /// The configuration that the server is to run with.
    pub config: Settings,
    /// The changes, a line for each key; empty if nothing has changed.
    pub changes: Vec<String>,
    /// Whether it names other certificate files. Their certificates are used after
    /// [`Reload::accept`].
    pub replaces_certificates: bool,
}

/// Reads the configuration again.
pub trait Reload {
    /// Returns the configuration as its files are now. `current` is the configuration that the
    /// server runs with: unchanged caches and certificates are taken from it.
    ///
    /// # Errors
    /// The configuration cannot be used, or a change needs a restart. The message says where and
    /// why; nothing has changed then.
    fn read(&mut self, current: &Settings) -> anyhow::Result<ReloadedConfig>;

    /// Notes that the server now runs with the configuration that was read last.
    fn accept(&mut self);
}

/// A configuration as it is offered to the workers.
#[derive(Debug)]
pub(crate) struct Renewal {
    pub(crate) number: u64,
    pub(crate) config: Arc<Settings>,
    pub(crate) rules: Arc<Rules>,
    pub(crate) contents: Arc<Contents>,
    /// The maximum number of connections of each worker.
    pub(crate) max_connections: Vec<usize>,
    answers: Sender<Answer>,
}

type Answer = (usize, Result<(), String>);

/// The place where workers find the configuration that is offered.
pub(crate) type Offer = Arc<Mutex<Option<Arc<Renewal>>>>;

impl Renewal {
    /// Creates a renewal, and the receiver of the workers' answers.
    pub(crate) fn new(
        number: u64,
        config: Arc<Settings>,
        contents: Arc<Contents>,
        max_connections: Vec<usize>,
        former: &Rules,
    ) -> (Self, Receiver<Answer>) {
        let (answers, receiver) = channel();
        let rules = Arc::new(Rules::new(&config).counting_on(former));
        (Self { number, config, rules, contents, max_connections, answers }, receiver)
    }

    /// Reports the result of the renewal in a worker.
    pub(crate) fn answer(&self, worker: usize, outcome: Result<(), String>) {
        // The main thread may have given up waiting.
        let _ = self.answers.send((worker, outcome));
    }
}

/// Waits until all of `workers` have reported success.
///
/// # Errors
/// A worker has failed, or does not answer in time.
pub(crate) fn await_all(answers: &Receiver<Answer>, workers: usize) -> anyhow::Result<()> {
    let started_at = Instant::now();
    for _ in 0..workers {
        let left = PATIENCE.saturating_sub(started_at.elapsed());
        match answers.recv_timeout(left) {
            Ok((_, Ok(()))) => {}
            Ok((worker, Err(message))) => bail!("worker {worker}: {message}"),
            Err(RecvTimeoutError::Timeout) => {
                bail!("a worker does not answer within {} s", PATIENCE.as_secs())
            }
            Err(RecvTimeoutError::Disconnected) => bail!("a worker has ended"),
        }
    }
    Ok(())
}

/// The directories of all sites, each with its device and inode: a path leads to another directory after the
/// directory, or a link on the path, has been replaced.
#[derive(Debug, Default)]
pub(crate) struct SiteRoots(Vec<(PathBuf, Option<(u64, u64)>)>);

impl SiteRoots {
    /// Returns the directories of a configuration, as they are now.
    pub(crate) fn of(config: &Settings) -> Self {
        let hosts = config.hosts.iter().map(|host| &host.site);
        let sites = iter::once(&config.site).chain(hosts);
        let directories = sites.filter_map(|site| site.directory.clone());
        let root = |directory: PathBuf| {
            let metadata = fs::metadata(&directory).ok();
            (directory, metadata.map(|metadata| (metadata.dev(), metadata.ino())))
        };
        Self(directories.map(root).collect())
    }

    /// Returns a line for each path that leads to another directory in `now`.
    pub(crate) fn changes(&self, now: &Self) -> Vec<String> {
        let is_replaced = |path: &Path, present: &(u64, u64)| {
            self.0.iter().any(|(known, former)| {
                known == path && former.as_ref().is_some_and(|former| former != present)
            })
        };
        let mut changes = Vec::new();
        for (path, present) in &now.0 {
            if present.as_ref().is_some_and(|present| is_replaced(path, present)) {
                changes.push(format!("{}: it is another directory now", path.display()));
            }
        }
        changes
    }
}

/// Checks that the directories of all sites can be opened, before any worker changes.
///
/// # Errors
/// The message names the directory at fault.
pub(crate) fn check_sites(config: &Settings) -> anyhow::Result<()> {
    Tree::of(&config.site)?;
    for host in &config.hosts {
        let names = host.names.join(", ");
        Tree::of(&host.site).with_context(|| format!("the site {names}"))?;
    }
    Ok(())
}
