//! A running server and its workers, as the caller controls them.

mod acme;
mod mechanism;
mod renew;
mod replace;
mod upgrade;
mod view;

pub(crate) use renew::Renewed;

use crate::{
    admin::{Operator, SharedStores, Stores, Tasks, web::Web},
    architecture::{
        Assignment, HubNews, Plan, Processes, Threads, limits,
        worker::{Ends, MakeService, Worker, WorkerInfo, WorkerTask},
    },
    config::{Accepting, Architecture, HubConfig, Listen, PROCESSES_DEFAULT},
    engine::{control::total, event::Replace},
    log::{self, Log, LogProcess},
    protocol::rules::Rules,
    reload::{Offer, SiteRoots},
    service::Service,
    services::{
        Generations, Hosts,
        hub::HubShared,
        site::{Contents, Tree},
    },
    settings::{Settings, Tls},
    stats::{Counters, Counts, Statistics, scoreboard::Scoreboard},
    transport::{
        listener::{self, Listener, SocketFile},
        queue::Queues,
    },
    upgrade::successor::Reports,
};
use anyhow::Context;
use pollux_acme::Renewer;
use pollux_event::MechanismSpec;
use pollux_sys as sys;
use replace::{Part, Replacements, Start};
use std::{sync::Arc, time::Duration};

/// A running server. Dropping it stops it at once, without waiting for the workers;
/// [`Server::stop`] gives requests in progress time to finish. The file of a UNIX listener is
/// removed with the server, unless another file has replaced it.
#[derive(Debug)]
pub struct Server {
    worker_set: WorkerSet,
    architecture: Architecture,
    accepting: Option<Accepting>,
    infos: Vec<WorkerInfo>,
    addresses: Vec<Listen>,
    mechanism: MechanismSpec,
    log: Option<Log>,
    /// The listeners of all workers. A listener that workers share is contained once for each of
    /// them.
    listeners: Vec<Arc<Listener>>,
    /// The files of UNIX listeners, which are removed with the server.
    files: Vec<SocketFile>,
    ends: Ends,
    /// The caches of all sites, in which all workers store responses.
    caches: SharedStores,
    /// The tasks that the control socket passes to the main thread.
    tasks: Option<Tasks>,
    /// The control socket, which is open for as long as the server runs.
    operator: Option<Operator>,
    /// The admin listener, which serves the statistics over HTTP.
    web: Option<Web>,
    hub: Option<Arc<HubShared>>,
    /// The thread that notifies each worker of updates that other workers publish.
    news: Option<HubNews>,
    /// The place where a new configuration is offered to the workers, and how many were offered.
    offer: Offer,
    renewals: u64,
    /// The channel through which workers report the result of an upgrade.
    reports: Reports,
    /// The configuration of the workers, if it can be changed.
    config: Option<Arc<Settings>>,
    /// The directories of its sites.
    roots: SiteRoots,
    /// The rules that were made from `config`.
    rules: Option<Arc<Rules>>,
    /// The certificates.
    tls: Option<Arc<Tls>>,
    /// The data that is needed to replace a worker that has panicked.
    replacements: Option<Replacements>,
    /// The thread that orders certificates.
    acme: Option<Renewer>,
}

/// The workers of the server, by kind.
#[derive(Debug)]
enum WorkerSet {
    /// Threads, each of which waits for many connections at a time.
    Workers(Vec<Worker>),
    /// Threads of this process, each of which blocks for one connection.
    Threads(Threads),
    /// Processes, each of which blocks for one connection.
    Processes(Box<Processes>),
}

impl Server {
    /// Starts the workers and returns when all of them are ready to accept.
    ///
    /// # Errors
    /// The message names the setting, the address, the file or the limit at fault; nothing runs
    /// then. An architecture with processes is an error, too, because only [`run()`](crate::run())
    /// can supervise them.
    pub fn start(config: Settings) -> anyhow::Result<Self> {
        let name = config.architecture;
        anyhow::ensure!(
            !name.has_processes(),
            "--architecture {name}: processes are looked after by pollux_server::run, not by Server"
        );
        Self::start_watched(config, None)
    }

    /// Does the same as [`Server::start`]. Each worker's thread calls `at_end` when it ends. If the
    /// workers are processes, the caller must be the only thread, and must then supervise them with
    /// [`Server::next_signal`].
    pub(crate) fn start_watched(config: Settings, at_end: Option<fn()>) -> anyhow::Result<Self> {
        let make: MakeService<Generations> = Arc::new(|config, rules, contents, hub| {
            let mut hosts = Hosts::open(config, rules, contents)?;
            if let Some((hub, index)) = hub {
                hosts.add_hub(hub, index);
            }
            Ok(Generations::new(hosts))
        });
        Self::start_making(config, at_end, make, Some(Generations::adopt))
    }

    /// Starts a server whose workers run the caller's own service. `make` is called once in each
    /// worker's thread, so the service need not be `Send`.
    ///
    /// # Errors
    /// The errors of [`Server::start`]; any other architecture than `event`; and the errors of
    /// `make`.
    pub fn start_with<S: Service + 'static>(
        config: Settings,
        make: impl Fn() -> anyhow::Result<S> + Send + Sync + 'static,
    ) -> anyhow::Result<Self> {
        let name = config.architecture;
        anyhow::ensure!(
            name == Architecture::Event,
            "--architecture {name}: a service of your own runs with --architecture event"
        );
        Self::start_making(config, None, Arc::new(move |_, _, _, _| make()), None)
    }

    fn start_making<S: Service + 'static>(
        mut config: Settings,
        at_end: Option<fn()>,
        make: MakeService<S>,
        replace: Option<Replace<S>>,
    ) -> anyhow::Result<Self> {
        config.check()?;
        let admin = config.admin.take();
        let (tls, acme) = (config.tls.clone(), config.acme.clone());
        let mut server = Self::start_serving(config, at_end, make, replace)?;
        server.acme = acme::start(acme.as_deref(), tls.as_ref())?;
        server.tls = tls;
        if let Some(address) = admin {
            server.web = Some(Web::start(&address, Arc::new(server.view()))?);
        }
        Ok(server)
    }

    fn start_serving<S: Service + 'static>(
        mut config: Settings,
        at_end: Option<fn()>,
        make: MakeService<S>,
        replace: Option<Replace<S>>,
    ) -> anyhow::Result<Self> {
        let caches = Stores::shared(renew::stores_of(&config));
        let tasks = at_end.map(Tasks::new);
        let operator = match &config.control {
            Some(path) => Some(Operator::start(path, caches.clone(), tasks.clone())?),
            None => None,
        };
        let pool = config.pool_size().unwrap_or(1);
        if let Some(assignment) = Assignment::of(config.architecture, pool) {
            let server = Self::start_workers(config, assignment, at_end)?;
            return Ok(Self { caches, tasks, operator, ..server });
        }
        let mechanism = mechanism::choose(&config.mechanism)?;
        let open_files = limits::raise_open_files();
        let connections: Vec<_> = (0..config.workers)
            .map(|index| limits::connections_of_worker(&config, open_files, index))
            .collect();
        config.site.open_files = limits::cached_files(&config, open_files);
        let log = Log::of(&config.log)?;
        let (listeners, files) =
            listener::open_all(&config.listen, config.backlog, config.workers)?;
        let rules = Arc::new(Rules::new(&config));
        let contents = Contents::new(config.site.cache_bytes, config.workers);
        config.site.cache_bytes = Contents::of_index(config.site.cache_bytes, config.workers);
        let origin = HubConfig::origin_of(&config.listen, config.tls.is_some());
        let open_hub = |hub| HubShared::open(hub, &origin, config.workers);
        let hub = config.hub.as_ref().map(open_hub).transpose()?;
        let config = Arc::new(config);
        let current = replace.is_some().then(|| config.clone());
        let mut server = Self {
            worker_set: WorkerSet::Workers(Vec::new()),
            architecture: Architecture::Event,
            accepting: None,
            infos: Vec::new(),
            addresses: Vec::new(),
            mechanism,
            log,
            listeners: Vec::new(),
            files,
            ends: Ends::new(at_end),
            caches,
            tasks,
            operator,
            web: None,
            hub: None,
            news: None,
            offer: Offer::default(),
            renewals: 0,
            reports: Reports::default(),
            config: current,
            roots: SiteRoots::of(&config),
            rules: Some(rules.clone()),
            tls: None,
            replacements: None,
            acme: None,
        };
        let start: Start = Box::new({
            let hub = hub.clone();
            move |server, part| {
                let task = WorkerTask {
                    config: part.config,
                    rules: part.rules,
                    contents: part.contents,
                    hub: hub.clone(),
                    mechanism: server.mechanism.clone(),
                    index: part.index,
                    make: make.clone(),
                    renewals: replace.map(|replace| (replace, server.offer.clone())),
                    listeners: part.listeners,
                    max_connections: part.max_connections,
                    log: server.log.as_ref().map(Log::writer),
                    reports: server.reports.clone(),
                    ends: server.ends.clone(),
                };
                Worker::start(task, part.former)
            }
        });
        for (index, (max_connections, listeners)) in
            connections.into_iter().zip(&listeners).enumerate()
        {
            server.listeners.extend(listeners.iter().cloned());
            let part = Part {
                index,
                config: config.clone(),
                rules: rules.clone(),
                contents: contents.clone(),
                listeners: listeners.clone(),
                max_connections,
                former: None,
            };
            let (worker, info) = match start(&server, part) {
                Ok(started) => started,
                Err(error) => {
                    let _ = server.stop(Duration::ZERO);
                    return Err(error);
                }
            };
            if index == 0 {
                server.addresses.clone_from(&info.listens);
                // A listener that was taken over from several workers is contained several times.
                server.addresses.dedup();
            }
            if let WorkerSet::Workers(workers) = &mut server.worker_set {
                workers.push(worker);
            }
            server.infos.push(info);
        }
        server.replacements = Some(Replacements::new(start, listeners, contents, &config));
        if let Some(hub) = hub.as_ref().filter(|hub| hub.needs_news()) {
            server.start_news(hub)?;
        }
        server.hub = hub;
        Ok(server)
    }

    /// Starts the workers of an architecture whose engine blocks.
    fn start_workers(
        mut config: Settings,
        assignment: Assignment,
        at_end: Option<fn()>,
    ) -> anyhow::Result<Self> {
        let architecture = config.architecture;
        let open_files = limits::raise_open_files();
        let max_connections = if architecture.has_processes() {
            // Each process has its own file table.
            config.max_connections.unwrap_or(PROCESSES_DEFAULT)
        } else {
            config
                .max_connections
                .unwrap_or_else(|| limits::workers(&config, open_files, assignment))
        };
        // The size of the scoreboard is a multiple of it.
        let max_connections = max_connections.min(limits::TASKS_MAX);
        config.site.open_files = limits::cached_files(&config, open_files);
        let assignment = match assignment {
            // `Settings::pool_size` knows configured limits only.
            Assignment::Pool(size) if size > max_connections && !architecture.has_processes() => {
                tracing::warn!(
                    "a pool of {size} has no room: the limit of open files ({open_files}) leaves \
                     room for {max_connections} (`ulimit -Hn`, or --pool {max_connections})"
                );
                Assignment::Pool(max_connections)
            }
            _ => assignment,
        };
        let tree = if architecture.has_processes() {
            None
        } else {
            // All threads share one descriptor of the directory, and have equal parts of the files
            // that may be open.
            if let Assignment::Pool(size) = assignment {
                config.site.open_files = (config.site.open_files / size as u64).max(1);
            }
            Tree::of(&config.site)?
        };
        let (workers, slots) = match assignment {
            Assignment::Pool(size) => (size, size),
            Assignment::One => (max_connections, max_connections + 1),
        };
        // Threads share cached contents. Each process has an equal part of the memory.
        let (cache_bytes, sharers) = if architecture.has_processes() {
            (config.site.cache_bytes / workers as u64, 1)
        } else {
            (config.site.cache_bytes, workers)
        };
        let contents = match architecture {
            Architecture::Forking => Contents::of_one_connection(),
            _ => Contents::new(cache_bytes, sharers),
        };
        config.site.cache_bytes = Contents::of_index(cache_bytes, sharers);
        if assignment == Assignment::One {
            config.site.cache_bytes = config.site.cache_bytes.min(limits::CACHE_OF_ONE);
            // Such a worker has no descriptor left for it.
            config.site.open_files = 0;
        }
        let way = config.way_to_accept();
        let (queues, files) = Queues::open(&config.listen, config.backlog, way, slots)?;
        let addresses = queues.addresses()?;
        let ends = Ends::new(at_end);
        let scoreboard = Arc::new(Scoreboard::new(slots).context("no memory that workers share")?);
        let rules = Rules::of_slots(&config, slots).context("no memory that workers share")?;
        let rules = Arc::new(rules);
        let log = config.log.clone();
        let plan =
            Plan { config, rules, tree, contents, assignment, queues, max_connections, scoreboard };
        plan.allow_eviction()?;
        let (worker_set, infos, log) = if architecture.has_processes() {
            let log = LogProcess::of(&log)?;
            let processes = Processes::start(plan, log)?;
            let infos = processes.infos().to_vec();
            (WorkerSet::Processes(Box::new(processes)), infos, None)
        } else {
            let log = Log::of(&log)?;
            let threads = Threads::start(plan, log.as_ref(), &ends)?;
            let infos = threads.infos().to_vec();
            (WorkerSet::Threads(threads), infos, log)
        };
        let mechanism = "poll".parse()?;
        // The forking architecture also waits for signals, and therefore uses ppoll(2).
        let accepting = (architecture != Architecture::Forking).then_some(way);
        Ok(Self {
            worker_set,
            architecture,
            accepting,
            infos,
            addresses,
            mechanism,
            log,
            listeners: Vec::new(),
            files,
            ends,
            caches: SharedStores::default(),
            tasks: None,
            operator: None,
            web: None,
            hub: None,
            news: None,
            offer: Offer::default(),
            renewals: 0,
            reports: Reports::default(),
            config: None,
            roots: SiteRoots::default(),
            rules: None,
            tls: None,
            replacements: None,
            acme: None,
        })
    }

    /// Returns the architecture: which worker serves which connection.
    pub fn architecture(&self) -> Architecture {
        self.architecture
    }

    /// Returns the listeners of all workers, which the main thread keeps open. Empty in the
    /// architectures in which a thread or a process serves one connection at a time.
    pub fn listeners(&self) -> impl Iterator<Item = &Listener> {
        self.listeners.iter().map(|listener| &**listener)
    }

    /// Returns the addresses that the server listens on, with the ports that the kernel chose.
    pub fn addresses(&self) -> &[Listen] {
        &self.addresses
    }

    /// Returns the address of the admin listener, with the port that the kernel chose.
    pub fn admin_address(&self) -> Option<&Listen> {
        self.web.as_ref().map(Web::address)
    }

    /// Returns whether every worker answers within ten seconds. Blocking workers are not asked,
    /// because each waits for its client for as long as the timeouts allow; only their threads and
    /// processes are counted.
    pub(crate) fn is_alive(&self) -> bool {
        match &self.worker_set {
            WorkerSet::Workers(workers) => {
                let replies: Vec<_> =
                    workers.iter().map(|worker| worker.remote().request_statistics()).collect();
                replies.into_iter().all(|reply| reply.wait().is_some())
            }
            _ => self.running() > 0,
        }
    }

    /// Returns the mechanism that really runs. Blocking engines wait for their one client with
    /// ppoll(2), which is `poll`. How they wait for the next connection is another matter
    /// ([`Server::accepting`]).
    pub fn mechanism(&self) -> &MechanismSpec {
        &self.mechanism
    }

    /// Returns how blocking workers wait for connections; `None` if connections are waited for with
    /// [`Server::mechanism`], like all other events.
    pub fn accepting(&self) -> Option<Accepting> {
        self.accepting
    }

    /// Returns the workers.
    pub fn workers(&self) -> &[WorkerInfo] {
        &self.infos
    }

    /// Returns the counters of all workers together, read from their memory: no command is sent, so
    /// no worker is disturbed, and a busy worker does not delay the result. Workers that are
    /// processes, and workers that serve one connection at a time, publish their counters before
    /// each wait.
    pub fn counts(&self) -> Counts {
        match &self.worker_set {
            WorkerSet::Workers(workers) => {
                let mut all = Counts::default();
                workers.iter().for_each(|worker| all.merge(&worker.counters().read()));
                all
            }
            WorkerSet::Threads(threads) => threads.statistics().counts,
            WorkerSet::Processes(processes) => processes.statistics().counts,
        }
    }

    /// Returns the counters of each worker that runs an event loop, by number; none in the
    /// architectures in which a thread or a process serves one connection at a time.
    pub fn worker_counters(&self) -> Vec<Counters> {
        match &self.worker_set {
            WorkerSet::Workers(workers) => {
                workers.iter().map(|worker| worker.counters().clone()).collect()
            }
            WorkerSet::Threads(_) | WorkerSet::Processes(_) => Vec::new(),
        }
    }

    /// Returns the present statistics of all workers together, including their system calls and the
    /// counters of their mechanisms. Event-loop workers receive a command for these and answer
    /// after their next wait; if only counters are needed, [`Server::counts`] is enough.
    pub fn statistics(&self) -> Statistics {
        let cache = renew::statistics_of(&self.caches);
        let workers = match &self.worker_set {
            WorkerSet::Workers(workers) => workers,
            WorkerSet::Threads(threads) => return Statistics { cache, ..threads.statistics() },
            WorkerSet::Processes(processes) => return processes.statistics(),
        };
        let hub = self.hub.as_ref().map(|hub| hub.statistics());
        Statistics { cache, hub, ..total(workers.iter().map(Worker::remote)) }
    }

    /// Waits for one of `signals`, which are blocked, and supervises worker processes meanwhile.
    /// Returns `None` when a stop was requested and the supervised processes have ended.
    ///
    /// # Errors
    /// No wait is possible.
    pub(crate) fn next_signal(&mut self, signals: &[sys::Signal]) -> anyhow::Result<Option<i32>> {
        match &mut self.worker_set {
            WorkerSet::Processes(processes) => processes.next_signal(),
            _ => Ok(Some(sys::wait_signal(signals)?)),
        }
    }

    /// Returns the configuration in force, if a running server can change it.
    pub(crate) fn config(&self) -> Option<&Settings> {
        self.config.as_deref()
    }

    /// Returns how many workers have not ended.
    pub(crate) fn running(&self) -> usize {
        match &self.worker_set {
            WorkerSet::Processes(processes) => processes.running(),
            _ => self.infos.len().saturating_sub(self.ends.count()),
        }
    }

    /// Requests the workers to stop; a second call may shorten the time.
    pub fn begin_stop(&mut self, grace: Duration) {
        if let Some(web) = &self.web {
            web.view().begin_stop();
        }
        // Only the workers' copies of the listeners are left then. When the workers close them, the
        // kernel stops accepting.
        self.listeners.clear();
        self.replacements = None;
        match &self.worker_set {
            WorkerSet::Workers(workers) => workers.iter().for_each(|one| one.remote().stop(grace)),
            WorkerSet::Threads(threads) => threads.begin_stop(grace),
            WorkerSet::Processes(processes) => processes.begin_stop(grace),
        }
    }

    /// Opens the files of the logs again, after log rotation has moved them away; the server's
    /// messages record this. Returns false if there is no log.
    pub fn reopen_log(&self) -> bool {
        self.renew_log().is_some()
    }

    /// Stops the server: closes the listeners and idle connections, lets requests in progress
    /// finish within `grace`, then closes the other connections. Returns the last statistics.
    ///
    /// # Errors
    /// The error that ended a worker before it was stopped.
    pub fn stop(mut self, grace: Duration) -> anyhow::Result<Statistics> {
        self.begin_stop(grace);
        self.wait()
    }

    /// Waits until the workers have ended.
    ///
    /// # Errors
    /// The errors of [`Server::stop`].
    pub fn wait(self) -> anyhow::Result<Statistics> {
        let outcome = match self.worker_set {
            WorkerSet::Workers(workers) => {
                let mut all = Ok(Statistics::default());
                for worker in workers {
                    match (worker.join(), &mut all) {
                        (Ok(one), Ok(all)) => all.merge(&one),
                        (Ok(_), Err(_)) => {}
                        (Err(error), _) => all = Err(error),
                    }
                }
                all
            }
            WorkerSet::Threads(threads) => threads.wait(),
            WorkerSet::Processes(processes) => processes.wait(),
        };
        if let Some(log) = self.log {
            log.finish(log::PATIENCE);
        }
        if let Some(config) = &self.config {
            renew::flush_caches(config);
        }
        drop(self.files);
        let cache = renew::statistics_of(&self.caches);
        let hub = self.hub.as_ref().map(|hub| hub.statistics());
        outcome.map(|all| Statistics { cache, hub, ..all }).context("a worker failed")
    }
}
