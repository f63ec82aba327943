//! The socket and its threads.

use super::{
    answer::{AnswerError, answer, not_here},
    protocol::{ErrorKind, Event, REQUEST_MAX, Request},
    tasks::{Task, Tasks},
};
use crate::{
    transport::{
        accept_loop::{AcceptLoop, LoopOwner},
        listener::{self, SocketFile},
    },
    upgrade::{self, Role},
};
use anyhow::Context;
use pollux_cache::Store;
use pollux_sys::spawn_detached;
use rustix::fs::Mode;
use socket2::{Domain, Socket, Type};
use std::{
    io::{self, BufRead, BufReader, BufWriter, Read, Write},
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::net::UnixStream,
    },
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

/// The most clients at once; a further one receives an error.
const CLIENTS_MAX: usize = 8;
/// How long a client may be silent.
const READ_PATIENCE: Duration = Duration::from_secs(10);
/// How long one may take nothing of an answer: somebody may look at a list page by page.
const WRITE_PATIENCE: Duration = Duration::from_secs(600);
/// How long a server that ends waits for its last answers to be read.
const LAST_PATIENCE: Duration = Duration::from_secs(1);
/// Between two looks whether they are.
const PAUSE: Duration = Duration::from_millis(1);

/// The cache of the default site, if it has one: another one after a change of the configuration.
pub(crate) type SharedStore = Arc<Mutex<Option<Store>>>;

/// The control socket of a running server. Gone, with its file, when it is dropped.
#[derive(Debug)]
pub(crate) struct Operator {
    path: PathBuf,
    listener: Arc<Socket>,
    /// `None` when the loop has been ended.
    running: Option<(LoopOwner, JoinHandle<()>)>,
    clients: Clients,
    file: Option<SocketFile>,
}

/// How many clients are connected.
type Clients = Arc<AtomicUsize>;

impl Operator {
    /// Listens at `path`, for `store`; what the main thread has to do is put into `tasks`.
    ///
    /// # Errors
    /// Somebody listens there, or there can be no socket.
    pub(crate) fn start(
        path: &Path,
        store: SharedStore,
        tasks: Option<Tasks>,
    ) -> anyhow::Result<Self> {
        let (listener, file) =
            listen(path).with_context(|| format!("--control {}", path.display()))?;
        let (listener, clients) = (Arc::new(listener), Clients::default());
        let (accepting, owner) = AcceptLoop::new(listener.clone())?;
        let thread = thread::Builder::new().name("operator".into()).spawn({
            let clients = clients.clone();
            move || accept(&accepting, &clients, &(store, tasks))
        })?;
        let running = Some((owner, thread));
        Ok(Self { path: path.into(), listener, running, clients, file: Some(file) })
    }

    /// The listener, and its path.
    pub(crate) fn listener(&self) -> (&Path, BorrowedFd<'_>) {
        (&self.path, self.listener.as_fd())
    }

    /// Another process has taken the listener over: this one accepts no more, and leaves the file to it.
    /// Clients that are connected still get their answers.
    pub(crate) fn leave_to_successor(&mut self) {
        self.end_loop();
        if let Some(file) = self.file.take() {
            file.leave_to_successor();
        }
    }

    /// Waits for a moment until the clients have their answers: the process may be about to end.
    pub(crate) fn await_clients(&self) {
        let started_at = Instant::now();
        while self.clients.load(SeqCst) > 0 && started_at.elapsed() < LAST_PATIENCE {
            thread::sleep(PAUSE);
        }
    }

    fn end_loop(&mut self) {
        if let Some((owner, thread)) = self.running.take() {
            drop(owner);
            let _ = thread.join();
        }
    }
}

impl Drop for Operator {
    fn drop(&mut self) {
        self.end_loop();
    }
}

fn listen(path: &Path) -> io::Result<(Socket, SocketFile)> {
    if let Some(socket) = upgrade::take(Role::Control, &path.to_string_lossy()).pop() {
        return Ok((socket.into(), SocketFile::taken_over(path)));
    }
    let socket = Socket::new(Domain::UNIX, Type::STREAM.cloexec(), None)?;
    // bind(2) takes the file's mode from the socket: at no time may others open it.
    rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    let listens = listener::listen_at(&socket, path, CLIENTS_MAX as i32);
    let file = listens.map_err(|error| match error.kind() {
        io::ErrorKind::AddrInUse => {
            io::Error::new(error.kind(), "a running server listens there: take another path")
        }
        _ => error,
    })?;
    Ok((socket, file))
}

/// What a request may be about.
type Managed = (SharedStore, Option<Tasks>);

fn accept(accepting: &AcceptLoop, clients: &Clients, managed: &Managed) {
    while let Some(socket) = accepting.next() {
        let stream = UnixStream::from(OwnedFd::from(socket));
        let (clients, managed) = (clients.clone(), managed.clone());
        if clients.fetch_add(1, SeqCst) >= CLIENTS_MAX {
            clients.fetch_sub(1, SeqCst);
            let _ = stream.set_nonblocking(true);
            let message = format!("{CLIENTS_MAX} other clients are connected; try again later");
            let _ = send(&mut &stream, &Event::Error { kind: ErrorKind::Busy, message });
            continue;
        }
        let count = clients.clone();
        let started = spawn_detached(c"operator-client", move || {
            let _ = serve(&stream, &managed);
            clients.fetch_sub(1, SeqCst);
        });
        if started.is_err() {
            count.fetch_sub(1, SeqCst);
        }
    }
}

fn serve(stream: &UnixStream, managed: &Managed) -> io::Result<()> {
    stream.set_read_timeout(Some(READ_PATIENCE))?;
    stream.set_write_timeout(Some(WRITE_PATIENCE))?;
    let mut reader = BufReader::new(stream);
    let mut writer = BufWriter::new(stream);
    loop {
        let mut line = Vec::new();
        reader.by_ref().take(REQUEST_MAX).read_until(b'\n', &mut line)?;
        if line.is_empty() {
            return Ok(());
        }
        let outcome = if line.ends_with(b"\n") {
            serde_json::from_slice(&line)
                .map_err(|error| AnswerError::Client(ErrorKind::BadRequest, error.to_string()))
                .and_then(|request| manage(managed, &request, |event| send(&mut writer, event)))
        } else {
            let message = format!("a request is a line of at most {REQUEST_MAX} bytes");
            send(&mut writer, &Event::Error { kind: ErrorKind::BadRequest, message })?;
            return writer.flush();
        };
        match outcome {
            Ok(count) => send(&mut writer, &Event::End { count })?,
            Err(AnswerError::Client(kind, message)) => {
                send(&mut writer, &Event::Error { kind, message })?
            }
            Err(AnswerError::Gone) => return Ok(()),
        }
        writer.flush()?;
    }
}

/// Answers a request: what is about the cache here, the rest by way of the main thread.
fn manage(
    (store, tasks): &Managed,
    request: &Request,
    mut send: impl FnMut(&Event) -> io::Result<()>,
) -> Result<u64, AnswerError> {
    let task = match request {
        Request::Reload => Task::Reload,
        Request::Upgrade => Task::Upgrade,
        Request::List { .. }
        | Request::Show { .. }
        | Request::Purge { .. }
        | Request::Statistics => {
            let store = store.lock().unwrap_or_else(PoisonError::into_inner).clone();
            let message = "there is no cache (pollux serve --cache SIZE)".into();
            let store = store.ok_or(AnswerError::Client(ErrorKind::Rejected, message))?;
            return answer(&store, request, send);
        }
    };
    let tasks = tasks.as_ref().ok_or_else(not_here)?;
    let changes =
        tasks.run(task).map_err(|message| AnswerError::Client(ErrorKind::Rejected, message))?;
    for change in &changes {
        send(&Event::Change { change: change.clone() })?;
    }
    Ok(changes.len() as u64)
}

fn send(writer: &mut impl Write, event: &Event) -> io::Result<()> {
    let mut line = serde_json::to_vec(event)?;
    line.push(b'\n');
    writer.write_all(&line)
}

#[cfg(test)]
mod tests;
