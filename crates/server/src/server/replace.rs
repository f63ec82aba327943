//! Replacement of worker threads: a thread that panics loses its connections, and another one
//! replaces it.

use super::{Server, WorkerSet};
use crate::{
    architecture::{
        limits,
        panics::PanicLimit,
        worker::{Ending, Former, Worker, WorkerInfo},
    },
    protocol::rules::Rules,
    services::site::Contents,
    settings::{GuestbookConfig, Settings},
    stats::Counter,
    transport::listener::Listener,
};
use anyhow::{Context, bail};
use std::{
    fmt, iter,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

/// A worker that has reported its end leaves its thread soon. These are the interval and the
/// maximum number of checks for that.
const LOOK: Duration = Duration::from_millis(1);
const LOOKS_MAX: usize = 1_000;

/// The data in which one worker differs from the next.
pub(super) struct Part {
    pub(super) index: usize,
    pub(super) config: Arc<Settings>,
    pub(super) rules: Arc<Rules>,
    pub(super) contents: Arc<Contents>,
    pub(super) listeners: Vec<Arc<Listener>>,
    pub(super) max_connections: usize,
    /// The worker that it replaces.
    pub(super) former: Option<Former>,
}

/// A function that starts a worker.
pub(super) type Start =
    Box<dyn Fn(&Server, Part) -> anyhow::Result<(Worker, WorkerInfo)> + Send + Sync>;

/// The data that is needed to start a worker again.
pub(super) struct Replacements {
    start: Start,
    /// The listeners of each worker.
    listeners: Vec<Vec<Arc<Listener>>>,
    /// The content cache in use.
    pub(super) contents: Arc<Contents>,
    /// The guestbook of each site, that of the default site first.
    guestbooks: Vec<Option<Arc<GuestbookConfig>>>,
    limit: PanicLimit,
}

impl fmt::Debug for Replacements {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Replacements").field("limit", &self.limit).finish_non_exhaustive()
    }
}

impl Replacements {
    pub(super) fn new(
        start: Start,
        listeners: Vec<Vec<Arc<Listener>>>,
        contents: Arc<Contents>,
        config: &Settings,
    ) -> Self {
        let hosts = config.hosts.iter().map(|host| host.guestbook.clone());
        let guestbooks = iter::once(config.guestbook.clone()).chain(hosts).collect();
        Self { start, listeners, contents, guestbooks, limit: PanicLimit::default() }
    }
}

impl Server {
    /// Replaces the workers that have panicked.
    ///
    /// # Errors
    /// A worker has ended for another reason, or cannot be replaced. The server must then end.
    pub(crate) fn replace_lost_workers(&mut self) -> anyhow::Result<()> {
        while self.has_lost_worker() {
            let index = self.find_ended().context("a worker ended by itself")?;
            let WorkerSet::Workers(workers) = &mut self.worker_set else {
                bail!("a worker ended by itself")
            };
            match workers.remove(index).ending() {
                Ending::Panicked(former) => self
                    .replace(index, former)
                    .with_context(|| format!("worker {index} panicked"))?,
                Ending::Ended(outcome) => {
                    outcome.context("a worker failed")?;
                    bail!("a worker ended by itself");
                }
            }
        }
        Ok(())
    }

    /// Returns the number of a worker whose thread has ended.
    fn find_ended(&self) -> Option<usize> {
        let WorkerSet::Workers(workers) = &self.worker_set else { return None };
        for _ in 0..LOOKS_MAX {
            let ended = workers.iter().position(Worker::has_ended);
            if ended.is_some() {
                return ended;
            }
            thread::sleep(LOOK);
        }
        None
    }

    fn replace(&mut self, index: usize, former: Former) -> anyhow::Result<()> {
        let (Some(replacements), Some(config), Some(rules)) =
            (self.replacements.take(), self.config.clone(), self.rules.clone())
        else {
            bail!("it cannot be replaced");
        };
        replacements.limit.admit(Instant::now())?;
        // The configuration of a reload has no guestbooks, since the workers keep theirs. A new worker needs those of the
        // start. A site that has one keeps its number.
        let mut config = Settings::clone(&config);
        let mut guestbooks = replacements.guestbooks.iter().cloned();
        config.guestbook = guestbooks.next().flatten();
        for (host, guestbook) in config.hosts.iter_mut().zip(guestbooks) {
            host.guestbook = guestbook;
        }
        let max_connections =
            limits::connections_of_worker(&config, limits::raise_open_files(), index);
        let counters = &former.counters;
        counters.set(Counter::Closed, counters.get(Counter::Accepted));
        // These counters are numbers of what exists now, and the new worker has nothing yet.
        for present in [
            Counter::Busy,
            Counter::Streams,
            Counter::FormerConfigurations,
            Counter::HubPolls,
            Counter::HubTopicSets,
        ] {
            counters.set(present, 0);
        }
        counters.add(Counter::WorkersReplaced, 1);
        let part = Part {
            index,
            config: Arc::new(config),
            rules,
            contents: replacements.contents.clone(),
            listeners: replacements.listeners[index].clone(),
            max_connections,
            former: Some(former),
        };
        let (worker, info) = (replacements.start)(self, part)?;
        if let WorkerSet::Workers(workers) = &mut self.worker_set {
            workers.insert(index, worker);
        }
        self.infos[index] = info;
        self.ends.forget_one();
        self.replacements = Some(replacements);
        tracing::error!(
            "worker {index} panicked and lost its connections; another takes its place"
        );
        Ok(())
    }
}
