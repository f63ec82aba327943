//! A running server: its workers, seen from outside.

use crate::{
    config::{Config, Listen, MechanismChoice},
    limits, listener,
    log::Log,
    statistics::Statistics,
    worker::{Command, Ends, Task, Worker, WorkerInfo},
};
use anyhow::{Context, bail};
use pollux_event::{MechanismSpec, registry};
use std::{os::fd::OwnedFd, path::PathBuf, sync::Arc, sync::mpsc::channel, time::Duration};

/// What `auto` tries, the best first.
const AUTO: [&str; 3] = ["epoll-et", "epoll", "poll"];

/// How long a worker may take to send its figures.
const STATISTICS_TIMEOUT: Duration = Duration::from_secs(10);

/// A running server.
#[derive(Debug)]
pub struct Server {
    workers: Vec<Worker>,
    infos: Vec<WorkerInfo>,
    addresses: Vec<Listen>,
    mechanism: MechanismSpec,
    log: Option<Log>,
    /// UNIX sockets' paths, to be removed at the end.
    paths: Vec<PathBuf>,
    ends: Ends,
}

impl Server {
    /// Starts the workers and returns when all of them are ready to accept.
    ///
    /// # Errors
    /// Names the setting, the address, the file or the limit at fault; nothing runs then.
    pub fn start(config: Config) -> anyhow::Result<Self> {
        Self::start_watched(config, None)
    }

    /// As [`Server::start`]; `at_end` is called by each worker's thread when it ends.
    pub(crate) fn start_watched(config: Config, at_end: Option<fn()>) -> anyhow::Result<Self> {
        config.check()?;
        let mechanism = choose(&config.mechanism)?;
        let open_files = limits::raise_open_files();
        let max_connections = limits::connections_per_worker(&config, open_files);
        let log = config.access_log.as_ref().map(Log::start).transpose()?;
        let mut listens = config.listen.clone();
        let mut shared: Vec<OwnedFd> = Vec::new();
        let mut paths = Vec::new();
        for listen in &listens {
            match listen {
                Listen::Tcp(address) if config.workers > 1 => listener::check_free(*address)?,
                Listen::Tcp(_) => {}
                Listen::Unix(path) => {
                    shared.push(listener::unix(path, config.backlog)?);
                    paths.push(path.clone());
                }
            }
        }
        let shared = Arc::new(shared);
        let config = Arc::new(config);
        let mut server = Self {
            workers: Vec::new(),
            infos: Vec::new(),
            addresses: Vec::new(),
            mechanism,
            log,
            paths,
            ends: Ends::new(at_end),
        };
        for index in 0..config.workers {
            let task = Task {
                config: config.clone(),
                mechanism: server.mechanism.clone(),
                index,
                listens: listens.clone(),
                shared: shared.clone(),
                max_connections,
                log: server.log.as_ref().map(Log::writer),
                ends: server.ends.clone(),
            };
            let (worker, info) = match Worker::start(task) {
                Ok(started) => started,
                Err(error) => {
                    let _ = server.stop(Duration::ZERO);
                    return Err(error);
                }
            };
            if index == 0 {
                // Ports that the kernel chose for the first worker are everybody's.
                listens.clone_from(&info.listens);
                server.addresses.clone_from(&info.listens);
            }
            server.workers.push(worker);
            server.infos.push(info);
        }
        Ok(server)
    }

    /// Where it listens, with the ports that the kernel chose.
    pub fn addresses(&self) -> &[Listen] {
        &self.addresses
    }

    /// The mechanism that really runs.
    pub fn mechanism(&self) -> &MechanismSpec {
        &self.mechanism
    }

    /// The workers.
    pub fn workers(&self) -> &[WorkerInfo] {
        &self.infos
    }

    /// The present figures of all workers together.
    pub fn statistics(&self) -> Statistics {
        let (sender, receiver) = channel();
        for worker in &self.workers {
            worker.send(Command::Statistics(sender.clone()));
        }
        drop(sender);
        let mut all = Statistics::default();
        while let Ok(one) = receiver.recv_timeout(STATISTICS_TIMEOUT) {
            all.merge(&one);
        }
        all
    }

    /// How many workers have not ended.
    pub(crate) fn running(&self) -> usize {
        self.workers.len().saturating_sub(self.ends.count())
    }

    /// Tells the workers to stop; a second call may shorten the time.
    pub fn begin_stop(&self, grace: Duration) {
        for worker in &self.workers {
            worker.send(Command::Stop { grace });
        }
    }

    /// Stops: closes the listeners and idle connections, lets requests in flight end within
    /// `grace`, then closes the rest. Returns the last figures.
    ///
    /// # Errors
    /// What ended a worker before it was told to stop.
    pub fn stop(self, grace: Duration) -> anyhow::Result<Statistics> {
        self.begin_stop(grace);
        self.wait()
    }

    /// Waits until the workers have ended.
    ///
    /// # Errors
    /// As [`Server::stop`].
    pub fn wait(self) -> anyhow::Result<Statistics> {
        let mut all = Statistics::default();
        let mut failure = None;
        for worker in self.workers {
            match worker.join() {
                Ok(one) => all.merge(&one),
                Err(error) => failure = Some(error),
            }
        }
        if let Some(log) = self.log {
            log.finish();
        }
        for path in self.paths {
            let _ = std::fs::remove_file(path);
        }
        match failure {
            Some(error) => Err(error.context("a worker failed")),
            None => Ok(all),
        }
    }
}

fn choose(choice: &MechanismChoice) -> anyhow::Result<MechanismSpec> {
    let MechanismChoice::Auto = choice else {
        let MechanismChoice::Named(spec) = choice else { bail!("no mechanism") };
        registry::probe(spec).with_context(|| format!("--mechanism {spec}"))?;
        return Ok(spec.clone());
    };
    let mut reasons = Vec::new();
    for name in AUTO.iter().filter(|name| registry::find(name).is_some()) {
        let spec: MechanismSpec = name.parse()?;
        match registry::probe(&spec) {
            Ok(()) => {
                tracing::info!("--mechanism auto chose {name}");
                return Ok(spec);
            }
            Err(error) => reasons.push(error.to_string()),
        }
    }
    bail!("no mechanism works here: {}", reasons.join("; "))
}
