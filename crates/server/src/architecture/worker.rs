//! Worker threads: each has a file table, listeners, connections and an index of files of its own.

use crate::{
    config::{Config, Listen},
    engine::{
        control::{Inbox, LineCounter, Remote},
        event::{Engine, Renewer},
    },
    log::LogWriter,
    protocol::rules::Rules,
    reactor::Reactor,
    reload::Offer,
    service::{Service, worker_state::WorkerState},
    services::{hub::HubShared, site::Contents},
    stats::{Counters, Statistics},
    transport::listener::Listener,
    upgrade::successor::Reports,
};
use anyhow::Context;
use pollux_event::{
    Mechanism, MechanismSpec,
    registry::{Visitor, with_mechanism},
};
use pollux_sys::{self as sys, OwnFileTables};
use serde::Serialize;
use std::{
    os::fd::{AsFd, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
        mpsc::{Sender, channel},
    },
    thread::{self, JoinHandle},
};

/// A running worker, seen from the main thread.
#[derive(Debug)]
pub(crate) struct Worker {
    remote: Arc<Remote>,
    counters: Counters,
    thread: JoinHandle<anyhow::Result<Statistics>>,
}

/// What a worker reports when it is ready.
#[derive(Clone, Debug, Serialize)]
pub struct WorkerInfo {
    /// The kernel's number of its thread.
    pub tid: i32,
    /// The CPU that it is pinned to.
    pub cpu: Option<usize>,
    /// Where it listens.
    #[serde(skip)]
    pub(crate) listens: Vec<Listen>,
}

/// The hub that all workers share, if there is one, and the number of the worker.
pub(crate) type HubPart = Option<(Arc<HubShared>, usize)>;

/// Makes the service of one worker.
pub(crate) type MakeService<S> =
    Arc<dyn Fn(&Config, &Rules, Arc<Contents>, HubPart) -> anyhow::Result<S> + Send + Sync>;

/// Puts a service made for a new configuration in the place of the present one, whose rules are given.
pub(crate) type Replace<S> = fn(&mut S, S, Arc<Rules>, &mut Reactor);

/// What a worker is given.
pub(crate) struct Task<S> {
    pub(crate) config: Arc<Config>,
    pub(crate) rules: Arc<Rules>,
    /// What all workers have of the files.
    pub(crate) contents: Arc<Contents>,
    /// What all workers have of the hub.
    pub(crate) hub: Option<Arc<HubShared>>,
    pub(crate) mechanism: MechanismSpec,
    pub(crate) index: usize,
    /// Makes the worker's service, in its thread.
    pub(crate) make: MakeService<S>,
    /// How the service changes with the configuration, if it can, and where new ones are offered.
    pub(crate) renewals: Option<(Replace<S>, Offer)>,
    /// What to accept from, by number in the main thread's table, which keeps them.
    pub(crate) listeners: Vec<Arc<Listener>>,
    pub(crate) max_connections: usize,
    pub(crate) log: Option<LogWriter>,
    /// Where to report what became of an upgrade.
    pub(crate) reports: Reports,
    /// Notified when the worker has ended, for whatever reason.
    pub(crate) ends: Ends,
}

/// The control handle and the counters of a worker that has panicked. The worker that takes its place goes on with them,
/// because other threads use them.
#[derive(Debug)]
pub(crate) struct Former {
    remote: Arc<Remote>,
    pub(crate) counters: Counters,
}

/// How a worker has ended.
pub(crate) enum Ending {
    /// Its thread panicked.
    Panicked(Former),
    /// Its loop was done, or failed.
    Ended(anyhow::Result<()>),
}

impl Worker {
    /// Starts a worker and waits until it is ready to accept.
    ///
    /// # Errors
    /// Whatever kept it from being ready.
    pub(crate) fn start<S: Service + 'static>(
        task: Task<S>,
        former: Option<Former>,
    ) -> anyhow::Result<(Self, WorkerInfo)> {
        const NO_SOCKETS: &str = "no sockets to talk to a worker with";
        let (remote, far_end, raised, counters) = match former {
            Some(Former { remote, counters }) => {
                let (far_end, raised) = remote.pair_again().context(NO_SOCKETS)?;
                (remote, far_end, raised, counters)
            }
            None => {
                let (remote, far_end, raised) = Remote::pair().context(NO_SOCKETS)?;
                (Arc::new(remote), far_end, raised, Counters::default())
            }
        };
        let far_end = Arc::new(far_end);
        let (ready, is_ready) = channel();
        let thread = thread::Builder::new().name(format!("worker-{}", task.index)).spawn({
            let (far_end, counters) = (far_end.clone(), counters.clone());
            move || {
                let _end = End(task.ends.clone());
                run(task, counters, (far_end, raised), &ready)
            }
        })?;
        match is_ready.recv() {
            Ok(info) => Ok((Self { remote, counters, thread }, info)),
            Err(_) => Err(match join(thread) {
                Ok(_) => anyhow::anyhow!("a worker ended before it was ready"),
                Err(error) => error,
            }),
        }
    }

    /// What it counts, readable at any time.
    pub(crate) fn counters(&self) -> &Counters {
        &self.counters
    }

    /// The handle that sends commands to it.
    pub(crate) fn remote(&self) -> &Arc<Remote> {
        &self.remote
    }

    /// Whether its thread has ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.thread.is_finished()
    }

    /// How it has ended.
    pub(crate) fn ending(self) -> Ending {
        match self.thread.join() {
            Ok(outcome) => Ending::Ended(outcome.map(drop)),
            Err(_) => Ending::Panicked(Former { remote: self.remote, counters: self.counters }),
        }
    }

    /// Waits until it has ended.
    pub(crate) fn join(self) -> anyhow::Result<Statistics> {
        join(self.thread)
    }
}

fn join(thread: JoinHandle<anyhow::Result<Statistics>>) -> anyhow::Result<Statistics> {
    thread.join().unwrap_or_else(|_| Err(anyhow::anyhow!("a worker panicked")))
}

/// Counts the workers that have ended, and calls a function for each.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ends {
    count: Arc<AtomicUsize>,
    notify: Option<fn()>,
}

impl Ends {
    /// `notify` is called by the worker's thread, after it has been counted.
    pub(crate) fn new(notify: Option<fn()>) -> Self {
        Self { count: Arc::default(), notify }
    }

    /// Another worker has taken the place of one that has ended.
    pub(crate) fn forget_one(&self) {
        self.count.fetch_sub(1, Ordering::SeqCst);
    }

    /// How many workers have ended.
    pub(crate) fn count(&self) -> usize {
        self.count.load(Ordering::SeqCst)
    }
}

/// Reports a worker's end also when it panics.
pub(crate) struct End(pub(crate) Ends);

impl Drop for End {
    fn drop(&mut self) {
        self.0.count.fetch_add(1, Ordering::SeqCst);
        if let Some(notify) = self.0.notify {
            notify();
        }
    }
}

/// A worker's life.
fn run<S: Service>(
    task: Task<S>,
    counters: Counters,
    (far_end, raised): (Arc<OwnedFd>, LineCounter),
    ready: &Sender<WorkerInfo>,
) -> anyhow::Result<Statistics> {
    let Task {
        config,
        rules,
        contents,
        hub,
        mechanism,
        index,
        make,
        renewals,
        listeners,
        max_connections,
        log,
        reports,
        ..
    } = task;
    let listens = listeners.iter().map(|listener| listener.address().clone()).collect();
    let mut kept = own_files(config.own_tables_of_workers(), &far_end, &listeners)?;
    // The main thread's own: were they dropped here at last, they would be closed in the wrong
    // table. It holds them at least until this worker is ready.
    drop((far_end, listeners));
    let inbox = Inbox::new(kept.remove(0), raised);
    let listeners = kept;
    let cpu = pin(&config, index)?;
    sys::set_timing(config.time_system_calls);
    let service = make(&config, &rules, contents, hub.map(|hub| (hub, index)))?;
    let renewer =
        renewals.map(|(replace, offer)| Renewer::new(index, offer, make.clone(), replace));
    let local = WorkerState { counters, ..WorkerState::new(log).with_records(&config) };
    let info = WorkerInfo { tid: rustix::thread::gettid().as_raw_nonzero().get(), cpu, listens };
    let name = mechanism.name.clone();
    let job = Job {
        config,
        mechanism,
        service,
        renewer,
        reports: (index, reports),
        rules,
        local,
        listeners,
        max_connections,
        inbox,
        info,
        ready,
    };
    with_mechanism(&name, job)?
}

/// The notifier and the listeners, as this thread's own: in a file table of its own where the
/// program has promised what that takes, else as copies in the common one; likewise where it is
/// forbidden (unshare(2) in many containers).
fn own_files(
    promise: Option<OwnFileTables>,
    notifier: &OwnedFd,
    listeners: &[Arc<Listener>],
) -> anyhow::Result<Vec<OwnedFd>> {
    let kept: Vec<_> = std::iter::once(notifier.as_fd())
        .chain(listeners.iter().map(|listener| listener.as_fd()))
        .collect();
    if let Some(promise) = promise {
        match sys::own_file_table(promise, &kept) {
            Ok(copies) => return Ok(copies),
            Err(error) => {
                tracing::info!("workers share one file table, and with it RLIMIT_NOFILE: {error}");
            }
        }
    }
    kept.iter().map(|fd| Ok(fd.try_clone_to_owned()?)).collect()
}

/// Pins this thread to the CPU of its number, if there is one.
pub(crate) fn pin(config: &Config, index: usize) -> anyhow::Result<Option<usize>> {
    let Some(&cpu) = config.pin.get(index % config.pin.len().max(1)) else { return Ok(None) };
    let mut cpus = rustix::thread::CpuSet::new();
    anyhow::ensure!(
        cpu < rustix::thread::CpuSet::MAX_CPU,
        "cannot pin worker {index} to CPU {cpu}: there is no such CPU"
    );
    cpus.set(cpu);
    rustix::thread::sched_setaffinity(None, &cpus)
        .with_context(|| format!("cannot pin worker {index} to CPU {cpu} (see `nproc --all`)"))?;
    Ok(Some(cpu))
}

/// The part that is made for each mechanism.
struct Job<'a, S> {
    config: Arc<Config>,
    mechanism: MechanismSpec,
    service: S,
    renewer: Option<Renewer<S>>,
    reports: (usize, Reports),
    rules: Arc<Rules>,
    local: WorkerState,
    listeners: Vec<OwnedFd>,
    max_connections: usize,
    inbox: Inbox,
    info: WorkerInfo,
    ready: &'a Sender<WorkerInfo>,
}

impl<S: Service> Visitor for Job<'_, S> {
    type Output = anyhow::Result<Statistics>;

    fn visit<M: Mechanism>(self) -> Self::Output {
        let engine = Engine::<M, S>::new(
            &self.config,
            &self.mechanism.options(),
            self.service,
            (self.rules, self.local),
            (self.listeners, self.max_connections),
            self.inbox,
        )?;
        let _ = self.ready.send(self.info);
        let (index, reports) = self.reports;
        engine.with_renewer(self.renewer).with_reports(index, reports).run()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{services::Hosts, transport::listener};
    use pollux_event::mechanism::{epoll::EpollLevel, poll::Poll};
    use pollux_testkit::http::PATIENCE;
    use socket2::SockRef;
    use std::{
        net::Shutdown,
        time::{Duration, Instant},
    };

    /// A worker whose listener was shut down by another process that shares it.
    fn without_a_listener<M: Mechanism>() {
        let listener = listener::tcp("127.0.0.1:0".parse().unwrap(), 8, false).unwrap();
        let shared = listener.try_clone().unwrap();
        let (remote, far_end, raised) = Remote::pair().unwrap();
        let worker = thread::spawn(move || {
            let directory = tempfile::tempdir().unwrap();
            let config = Config::new(directory.path());
            let rules = Arc::new(Rules::new(&config));
            let routes = Hosts::open(&config, &rules, Contents::new(0, 1)).unwrap();
            let inbox = Inbox::new(far_end, raised);
            let options = "epoll".parse::<MechanismSpec>().unwrap().options();
            let own = (rules, WorkerState::new(None));
            Engine::<M, _>::new(&config, &options, routes, own, (vec![listener], 10), inbox)
                .unwrap()
                .run()
                .unwrap()
        });
        SockRef::from(&shared).shutdown(Shutdown::Both).unwrap();
        // First it has noticed that: otherwise the one call would be that of the stop.
        let started_at = Instant::now();
        let calls =
            || remote.request_statistics().answer().unwrap().system_calls.of(sys::Call::Accept);
        while calls() == 0 {
            assert!(started_at.elapsed() < PATIENCE, "it has not noticed that");
            thread::sleep(Duration::from_millis(5));
        }
        thread::sleep(Duration::from_millis(100));
        // It still runs, and stops on command.
        remote.stop(Duration::ZERO);
        let statistics = worker.join().unwrap();
        assert_eq!(statistics.system_calls.of(sys::Call::Accept), 1);
    }

    #[test]
    fn what_listens_no_more_is_given_up() {
        without_a_listener::<EpollLevel>();
        without_a_listener::<Poll>();
    }
}
