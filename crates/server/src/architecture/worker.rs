//! Worker threads: each has a file table, listeners, connections and an index of files of its own.

use crate::{
    config::Listen,
    engine::{
        control::{Inbox, Remote, SharedMemory},
        event::{Engine, Renewer, Replace},
    },
    log::LogWriter,
    protocol::rules::Rules,
    reload::{Offer, Renewal},
    service::{Service, worker_state::WorkerState},
    services::{hub::HubShared, site::Contents},
    settings::Settings,
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

/// The properties that a worker reports when it is ready.
#[derive(Clone, Debug, Serialize)]
pub struct WorkerInfo {
    /// The thread ID of the worker.
    pub tid: i32,
    /// The CPU that it is pinned to.
    pub cpu: Option<usize>,
    /// The addresses that it listens on.
    #[serde(skip)]
    pub(crate) listens: Vec<Listen>,
}

/// The hub that all workers share, if there is one, and the index of the worker.
pub(crate) type HubPart = Option<(Arc<HubShared>, usize)>;

/// Makes the service of one worker.
pub(crate) type MakeService<S> =
    Arc<dyn Fn(&Settings, &Rules, Arc<Contents>, HubPart) -> anyhow::Result<S> + Send + Sync>;

/// Everything that a worker needs to start.
pub(crate) struct WorkerTask<S> {
    pub(crate) config: Arc<Settings>,
    pub(crate) rules: Arc<Rules>,
    /// The part of the file index that all workers share.
    pub(crate) contents: Arc<Contents>,
    /// The part of the hub that all workers share.
    pub(crate) hub: Option<Arc<HubShared>>,
    pub(crate) mechanism: MechanismSpec,
    pub(crate) index: usize,
    /// Makes the worker's service, in its thread.
    pub(crate) make: MakeService<S>,
    /// The function that replaces the service when the configuration changes, and the place where new
    /// configurations are offered; `None` if the service cannot change.
    pub(crate) renewals: Option<(Replace<S>, Offer)>,
    /// The listeners to accept from. Their descriptors are in the file table of the main thread.
    pub(crate) listeners: Vec<Arc<Listener>>,
    pub(crate) max_connections: usize,
    pub(crate) log: Option<LogWriter>,
    /// The channel for the result of an upgrade.
    pub(crate) reports: Reports,
    /// Notified when the worker has ended for any reason.
    pub(crate) ends: Ends,
}

/// The control handle and the counters of a worker that has panicked. Other threads use them, so the worker that
/// replaces it continues to use them, too.
#[derive(Debug)]
pub(crate) struct Former {
    remote: Arc<Remote>,
    pub(crate) counters: Counters,
}

/// The way in which a worker has ended.
pub(crate) enum Ending {
    /// Its thread panicked.
    Panicked(Former),
    /// Its loop returned, with success or with an error.
    Ended(anyhow::Result<()>),
}

impl Worker {
    /// Starts a worker and waits until it is ready to accept.
    ///
    /// # Errors
    /// The reason why the worker did not become ready.
    pub(crate) fn start<S: Service + 'static>(
        task: WorkerTask<S>,
        former: Option<Former>,
    ) -> anyhow::Result<(Self, WorkerInfo)> {
        const NO_SOCKETS: &str = "cannot create the control sockets of a worker";
        let (remote, far_end, shared, counters) = match former {
            Some(Former { remote, counters }) => {
                let (far_end, shared) = remote.pair_again().context(NO_SOCKETS)?;
                (remote, far_end, shared, counters)
            }
            None => {
                let (remote, far_end, shared) = Remote::pair().context(NO_SOCKETS)?;
                (Arc::new(remote), far_end, shared, Counters::default())
            }
        };
        let far_end = Arc::new(far_end);
        let (ready, is_ready) = channel();
        let thread = thread::Builder::new().name(format!("worker-{}", task.index)).spawn({
            let (far_end, counters) = (far_end.clone(), counters.clone());
            move || {
                let _end = End(task.ends.clone());
                run(task, counters, (far_end, shared), &ready)
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

    /// Returns the worker's counters, which can be read at any time.
    pub(crate) fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Returns the handle that sends commands to the worker.
    pub(crate) fn remote(&self) -> &Arc<Remote> {
        &self.remote
    }

    /// Returns whether its thread has ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.thread.is_finished()
    }

    /// Returns how the worker has ended.
    pub(crate) fn ending(self) -> Ending {
        match self.thread.join() {
            Ok(outcome) => Ending::Ended(outcome.map(drop)),
            Err(_) => Ending::Panicked(Former { remote: self.remote, counters: self.counters }),
        }
    }

    /// Waits until the worker has ended.
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
    /// Creates a counter. Each worker's thread calls `notify` after its end has been counted.
    pub(crate) fn new(notify: Option<fn()>) -> Self {
        Self { count: Arc::default(), notify }
    }

    /// Subtracts one from the count, after another worker has replaced one that had ended.
    pub(crate) fn forget_one(&self) {
        self.count.fetch_sub(1, Ordering::SeqCst);
    }

    /// Returns how many workers have ended.
    pub(crate) fn count(&self) -> usize {
        self.count.load(Ordering::SeqCst)
    }
}

/// Counts the end of a worker when it is dropped, so that a panic is counted, too.
pub(crate) struct End(pub(crate) Ends);

impl Drop for End {
    fn drop(&mut self) {
        self.0.count.fetch_add(1, Ordering::SeqCst);
        if let Some(notify) = self.0.notify {
            notify();
        }
    }
}

/// Runs the worker in its thread, from its start to its end.
fn run<S: Service + 'static>(
    task: WorkerTask<S>,
    counters: Counters,
    (far_end, shared): (Arc<OwnedFd>, Arc<SharedMemory>),
    ready: &Sender<WorkerInfo>,
) -> anyhow::Result<Statistics> {
    let WorkerTask {
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
    let mut files = own_files(config.own_tables_of_workers(), &far_end, &listeners)?;
    // These descriptors belong to the main thread's file table. If this thread dropped the last
    // reference, it would close descriptors of its own table instead. The main thread keeps a
    // reference at least until this worker is ready.
    drop((far_end, listeners));
    let inbox = Inbox::new(files.remove(0), shared);
    let listeners = files;
    let cpu = pin(&config, index)?;
    sys::set_timing(config.time_system_calls);
    let service = make(&config, &rules, contents, hub.map(|hub| (hub, index)))?;
    let renewer = renewals.map(|(replace, offer)| {
        let make_again = move |renewal: &Renewal| {
            make(&renewal.config, &renewal.rules, renewal.contents.clone(), None)
        };
        Renewer::new(index, offer, Box::new(make_again), replace)
    });
    let worker_state = WorkerState { counters, ..WorkerState::new(log).with_records(&config) };
    let info = WorkerInfo { tid: rustix::thread::gettid().as_raw_nonzero().get(), cpu, listens };
    let name = mechanism.name.clone();
    let job = EngineParts {
        config,
        mechanism,
        service,
        renewer,
        reports: (index, reports),
        rules,
        worker_state,
        listeners,
        max_connections,
        inbox,
        info,
        ready,
    };
    with_mechanism(&name, job)?
}

/// Copies of the notifier and the listeners for this thread. They are in a file table of its own if
/// the program has given its `promise`. Otherwise, and where unshare(2) is forbidden as in many
/// containers, they are in the table that all threads share.
fn own_files(
    promise: Option<OwnFileTables>,
    notifier: &OwnedFd,
    listeners: &[Arc<Listener>],
) -> anyhow::Result<Vec<OwnedFd>> {
    let files: Vec<_> = std::iter::once(notifier.as_fd())
        .chain(listeners.iter().map(|listener| listener.as_fd()))
        .collect();
    if let Some(promise) = promise {
        match sys::own_file_table(promise, &files) {
            Ok(copies) => return Ok(copies),
            Err(error) => {
                tracing::info!("workers share one file table, and with it RLIMIT_NOFILE: {error}");
            }
        }
    }
    files.iter().map(|fd| Ok(fd.try_clone_to_owned()?)).collect()
}

/// Pins this thread to the CPU of its number, if there is one.
pub(crate) fn pin(config: &Settings, index: usize) -> anyhow::Result<Option<usize>> {
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

/// The data that [`run`] passes to the code that is compiled for each mechanism.
struct EngineParts<'a, S> {
    config: Arc<Settings>,
    mechanism: MechanismSpec,
    service: S,
    renewer: Option<Renewer<S>>,
    reports: (usize, Reports),
    rules: Arc<Rules>,
    worker_state: WorkerState,
    listeners: Vec<OwnedFd>,
    max_connections: usize,
    inbox: Inbox,
    info: WorkerInfo,
    ready: &'a Sender<WorkerInfo>,
}

impl<S: Service> Visitor for EngineParts<'_, S> {
    type Output = anyhow::Result<Statistics>;

    fn visit<M: Mechanism>(self) -> Self::Output {
        let engine = Engine::<M, S>::new(
            &self.config,
            &self.mechanism.options(),
            self.service,
            (self.rules, self.worker_state),
            (self.listeners, self.max_connections),
            self.inbox,
        )?;
        // A reload may replace this configuration. As long as the worker held it, its caches would keep their
        // memory and their directories.
        drop(self.config);
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
    use pollux_testkit::wait_until;
    use socket2::SockRef;
    use std::{net::Shutdown, time::Duration};

    /// Runs a worker whose listener is shut down by another process that shares it.
    fn without_a_listener<M: Mechanism>() {
        let listener = listener::tcp("127.0.0.1:0".parse().unwrap(), 8, false).unwrap();
        let copy = listener.try_clone().unwrap();
        let (remote, far_end, shared) = Remote::pair().unwrap();
        let worker = thread::spawn(move || {
            let directory = tempfile::tempdir().unwrap();
            let config = Settings::new(directory.path());
            let rules = Arc::new(Rules::new(&config));
            let routes = Hosts::open(&config, &rules, Contents::new(0, 1)).unwrap();
            let inbox = Inbox::new(far_end, shared);
            let options = "epoll".parse::<MechanismSpec>().unwrap().options();
            let own = (rules, WorkerState::new(None));
            Engine::<M, _>::new(&config, &options, routes, own, (vec![listener], 10), inbox)
                .unwrap()
                .run()
                .unwrap()
        });
        SockRef::from(&copy).shutdown(Shutdown::Both).unwrap();
        // The worker must notice the shutdown before it is stopped: the stop calls accept, too.
        let calls =
            || remote.request_statistics().wait().unwrap().system_calls.of(sys::Call::Accept);
        wait_until("the call of accept", || calls() > 0);
        // Long enough for a worker that does not notice the shutdown to call accept again.
        thread::sleep(Duration::from_millis(100));
        // The worker still runs, and stops on command.
        remote.stop(Duration::ZERO);
        let statistics = worker.join().unwrap();
        assert_eq!(statistics.system_calls.of(sys::Call::Accept), 1);
    }

    #[test]
    fn a_listener_that_was_shut_down_is_given_up() {
        without_a_listener::<EpollLevel>();
        without_a_listener::<Poll>();
    }
}
