//! Worker threads: each has a file table, listeners, connections and a cache of its own.

use crate::{
    config::{Config, Listen},
    engine::readiness::Engine,
    listener,
    log::LogWriter,
    service::Service,
    statistics::Statistics,
};
use anyhow::Context;
use pollux_event::{
    Mechanism, MechanismSpec,
    registry::{Visitor, with_mechanism},
    sys,
};
use serde::Serialize;
use std::{
    io::Write,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::net::UnixStream,
    },
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
        mpsc::{Receiver, Sender, channel},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

/// What the main thread asks of a worker.
#[derive(Debug)]
pub(crate) enum Command {
    /// Send your figures.
    Statistics(Sender<Statistics>),
    /// Stop accepting, end what is in flight within the time.
    Stop { grace: Duration },
}

/// The worker's end of the commands: a socket to wait on, and a queue.
///
/// A socket and no eventfd, since not every mechanism can wait for those (RT signals).
#[derive(Debug)]
pub(crate) struct Inbox {
    bell: OwnedFd,
    commands: Receiver<Command>,
}

impl Inbox {
    /// For the interest set.
    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    /// Everything that has been sent.
    pub(crate) fn take(&self) -> Vec<Command> {
        // First the bell: a command sent in between rings once more, which does no harm.
        let mut rings = [0; 64];
        while sys::read(self.bell.as_fd(), &mut rings).is_ok_and(|count| count == rings.len()) {}
        self.commands.try_iter().collect()
    }
}

/// A running worker, seen from the main thread.
#[derive(Debug)]
pub(crate) struct Worker {
    bell: UnixStream,
    commands: Sender<Command>,
    thread: JoinHandle<anyhow::Result<Statistics>>,
}

/// What a worker tells when it is ready.
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

/// What a worker is given.
pub(crate) struct Task {
    pub(crate) config: Arc<Config>,
    pub(crate) mechanism: MechanismSpec,
    pub(crate) index: usize,
    /// Where to listen; ports are known from the second worker on.
    pub(crate) listens: Vec<Listen>,
    /// Listeners that all workers share (UNIX sockets), by number in the main thread's table.
    pub(crate) shared: Arc<Vec<OwnedFd>>,
    pub(crate) max_connections: usize,
    pub(crate) log: Option<LogWriter>,
    /// Told when the worker has ended, however it has.
    pub(crate) ends: Ends,
}

impl Worker {
    /// Starts a worker and waits until it is ready to accept.
    ///
    /// # Errors
    /// Whatever kept it from being ready.
    pub(crate) fn start(task: Task) -> anyhow::Result<(Self, WorkerInfo)> {
        let (bell, far_end) = UnixStream::pair().context("no sockets to talk to a worker with")?;
        bell.set_nonblocking(true)?;
        far_end.set_nonblocking(true)?;
        let far_end = Arc::new(OwnedFd::from(far_end));
        let (commands, queue) = channel();
        let (ready, is_ready) = channel();
        let thread = thread::Builder::new().name(format!("worker-{}", task.index)).spawn({
            let far_end = far_end.clone();
            move || {
                let _end = End(task.ends.clone());
                run(task, far_end, queue, &ready)
            }
        })?;
        match is_ready.recv() {
            Ok(info) => Ok((Self { bell, commands, thread }, info)),
            Err(_) => Err(match join(thread) {
                Ok(_) => anyhow::anyhow!("a worker ended before it was ready"),
                Err(error) => error,
            }),
        }
    }

    /// Sends a command; a worker that has ended does not hear it.
    pub(crate) fn send(&self, command: Command) {
        if self.commands.send(command).is_ok() {
            // When it is full, it has rung already.
            let _ = (&self.bell).write(&[1]);
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

/// Counts the workers that have ended, and tells somebody of each.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ends {
    count: Arc<AtomicUsize>,
    tell: Option<fn()>,
}

impl Ends {
    /// `tell` is called by the worker's thread, after it has been counted.
    pub(crate) fn new(tell: Option<fn()>) -> Self {
        Self { count: Arc::default(), tell }
    }

    /// How many workers have ended.
    pub(crate) fn count(&self) -> usize {
        self.count.load(Ordering::SeqCst)
    }
}

/// Reports a worker's end also when it panics.
struct End(Ends);

impl Drop for End {
    fn drop(&mut self) {
        self.0.count.fetch_add(1, Ordering::SeqCst);
        if let Some(tell) = self.0.tell {
            tell();
        }
    }
}

/// A worker's life.
fn run(
    task: Task,
    far_end: Arc<OwnedFd>,
    commands: Receiver<Command>,
    ready: &Sender<WorkerInfo>,
) -> anyhow::Result<Statistics> {
    let Task { config, mechanism, index, listens, shared, max_connections, log, .. } = task;
    let mut kept = own_files(&far_end, &shared)?;
    // The main thread's own: were they dropped here at last, they would be closed in the wrong
    // table. It holds them at least until this worker is ready.
    drop((far_end, shared));
    let inbox = Inbox { bell: kept.remove(0), commands };
    let mut listeners = kept;
    for listen in &listens {
        if let Listen::Tcp(address) = listen {
            listeners.push(listener::tcp(*address, config.backlog, config.workers > 1)?);
        }
    }
    let cpu = pin(&config, index)?;
    sys::set_timing(config.time_system_calls);
    let service = Service::new(&config, log)?;
    let info = WorkerInfo {
        tid: rustix::thread::gettid().as_raw_nonzero().get(),
        cpu,
        listens: listeners.iter().map(listener::address_of).collect::<Result<_, _>>()?,
    };
    let name = mechanism.name.clone();
    let job = Job { config, mechanism, service, listeners, max_connections, inbox, info, ready };
    with_mechanism(&name, job)?
}

/// A file table of this thread's own, with the bell and the shared listeners in it; where that
/// is forbidden (unshare(2) in many containers), copies in the common one.
fn own_files(bell: &OwnedFd, shared: &[OwnedFd]) -> anyhow::Result<Vec<OwnedFd>> {
    let kept: Vec<_> = std::iter::once(bell).chain(shared.iter()).map(AsFd::as_fd).collect();
    sys::own_file_table(&kept).or_else(|error| {
        tracing::info!("workers share one file table, and with it RLIMIT_NOFILE: {error}");
        kept.iter().map(|fd| Ok(fd.try_clone_to_owned()?)).collect()
    })
}

fn pin(config: &Config, index: usize) -> anyhow::Result<Option<usize>> {
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
struct Job<'a> {
    config: Arc<Config>,
    mechanism: MechanismSpec,
    service: Service,
    listeners: Vec<OwnedFd>,
    max_connections: usize,
    inbox: Inbox,
    info: WorkerInfo,
    ready: &'a Sender<WorkerInfo>,
}

impl Visitor for Job<'_> {
    type Output = anyhow::Result<Statistics>;

    fn visit<M: Mechanism>(self) -> Self::Output {
        let engine = Engine::<M>::new(
            &self.config,
            &self.mechanism.options(),
            self.service,
            self.listeners,
            self.max_connections,
            self.inbox,
        )?;
        let _ = self.ready.send(self.info);
        engine.run()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pollux_event::mechanism::{epoll::Epoll, poll::Poll};
    use socket2::SockRef;
    use std::net::Shutdown;

    /// A worker whose listener somebody else has shut down, as who shares it can.
    fn without_a_listener<M: Mechanism>() {
        let listener = listener::tcp("127.0.0.1:0".parse().unwrap(), 8, false).unwrap();
        let shared = listener.try_clone().unwrap();
        let (mut bell, far_end) = UnixStream::pair().unwrap();
        far_end.set_nonblocking(true).unwrap();
        let (commands, queue) = channel();
        let worker = thread::spawn(move || {
            let directory = tempfile::tempdir().unwrap();
            let config = Config::new(directory.path());
            let service = Service::new(&config, None).unwrap();
            let inbox = Inbox { bell: far_end.into(), commands: queue };
            let options = "epoll".parse::<MechanismSpec>().unwrap().options();
            Engine::<M>::new(&config, &options, service, vec![listener], 10, inbox)
                .unwrap()
                .run()
                .unwrap()
        });
        SockRef::from(&shared).shutdown(Shutdown::Both).unwrap();
        thread::sleep(Duration::from_millis(300));
        // It is there, and stops when it is told.
        commands.send(Command::Stop { grace: Duration::ZERO }).unwrap();
        bell.write_all(&[1]).unwrap();
        let statistics = worker.join().unwrap();
        assert_eq!(statistics.system_calls.of(sys::Call::Accept), 1);
    }

    #[test]
    fn what_listens_no_more_is_given_up() {
        without_a_listener::<Epoll<false>>();
        without_a_listener::<Poll>();
    }
}
