//! Changes of the configuration while the server runs.
//!
//! The caller of [`crate::run()`] says how a configuration is read again ([`Reload`]); the main thread has
//! it read and checked, and offers it to the workers, who change to it together
//! (`engine::event::renew`).

use crate::{
    config::Config,
    protocol::rules::Rules,
    services::site::{Contents, Tree},
};
use anyhow::{Context, bail};
use std::{
    sync::{
        Arc, Mutex,
        mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    },
    time::{Duration, Instant},
};

/// How long all workers together may take to prepare for a configuration, or to change to it.
const PATIENCE: Duration = Duration::from_secs(10);

/// A configuration that was read again.
#[derive(Debug)]
pub struct Reloaded {
    /// What the server is to run with.
    pub config: Config,
    /// What has changed, a line for each key; empty if nothing has.
    pub changes: Vec<String>,
    /// Whether it names other files of certificates, which are used after [`Reload::accept`].
    pub replaces_certificates: bool,
}

/// Reads the configuration again.
pub trait Reload {
    /// The configuration as its files are now. `current` is what the server runs with: caches and
    /// certificates that have not changed are taken from there.
    ///
    /// # Errors
    /// The configuration cannot be used, or a change needs a restart. The message says where and why;
    /// nothing has changed then.
    fn read(&mut self, current: &Config) -> anyhow::Result<Reloaded>;

    /// The server runs by the configuration that was read last.
    fn accept(&mut self);
}

/// A configuration as it is offered to the workers.
#[derive(Debug)]
pub(crate) struct Renewal {
    pub(crate) number: u64,
    pub(crate) config: Arc<Config>,
    pub(crate) rules: Arc<Rules>,
    pub(crate) contents: Arc<Contents>,
    /// Of each worker.
    pub(crate) max_connections: Vec<usize>,
    answers: Sender<Answer>,
}

type Answer = (usize, Result<(), String>);

/// Where workers find the configuration that is offered.
pub(crate) type Offer = Arc<Mutex<Option<Arc<Renewal>>>>;

impl Renewal {
    /// A renewal, and where the workers' answers come.
    pub(crate) fn new(
        number: u64,
        config: Arc<Config>,
        contents: Arc<Contents>,
        max_connections: Vec<usize>,
        former: &Rules,
    ) -> (Self, Receiver<Answer>) {
        let (answers, receiver) = channel();
        let rules = Arc::new(Rules::new(&config).counting_on(former));
        (Self { number, config, rules, contents, max_connections, answers }, receiver)
    }

    /// Says what became of it in a worker.
    pub(crate) fn answer(&self, worker: usize, outcome: Result<(), String>) {
        // The main thread may have given up waiting.
        let _ = self.answers.send((worker, outcome));
    }
}

/// Waits until all of `workers` have said that it worked.
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
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                bail!("a worker does not answer within {} s", PATIENCE.as_secs())
            }
        }
    }
    Ok(())
}

/// Whether the directories of all sites can be opened, before any worker is concerned.
///
/// # Errors
/// Names the directory at fault.
pub(crate) fn check_sites(config: &Config) -> anyhow::Result<()> {
    Tree::of(&config.site)?;
    for host in &config.hosts {
        let names = host.names.join(", ");
        Tree::of(&host.site).with_context(|| format!("the site {names}"))?;
    }
    Ok(())
}
