//! The control socket and its threads.

use super::{
    answer::{AnswerError, answer, not_here},
    protocol::{ControlEvent, ControlRequest, ErrorKind, REQUEST_MAX},
    stores::SharedStores,
    tasks::{OperatorTask, Tasks},
};
use crate::transport::{
    accept_loop::{AcceptLoop, LoopOwner},
    inherited,
    listener::{self, SocketFile},
    role::Role,
};
use anyhow::Context;
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
        Arc, PoisonError,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

/// The maximum number of clients at a time; a further client receives an error.
const CLIENTS_MAX: usize = 8;
/// The time for which a client may be silent.
const READ_PATIENCE: Duration = Duration::from_secs(10);
/// The time for which a client may accept no bytes of an answer. It is long because an operator may
/// read a list page by page.
const WRITE_PATIENCE: Duration = Duration::from_secs(600);
/// The time that an ending server waits until its last answers are read.
const LAST_PATIENCE: Duration = Duration::from_secs(1);
/// The pause between two checks whether the answers have been read.
const PAUSE: Duration = Duration::from_millis(1);

/// The control socket of a running server. Dropping it closes the socket and removes its file.
#[derive(Debug)]
pub(crate) struct Operator {
    path: PathBuf,
    listener: Arc<Socket>,
    /// `None` after the loop has ended.
    running: Option<(LoopOwner, JoinHandle<()>)>,
    clients: Clients,
    file: Option<SocketFile>,
}

/// The number of connected clients.
type Clients = Arc<AtomicUsize>;

impl Operator {
    /// Listens at `path`, with commands for `stores`. Work for the main thread is put into `tasks`.
    ///
    /// # Errors
    /// Another process listens there, or the socket cannot be created.
    pub(crate) fn start(
        path: &Path,
        stores: SharedStores,
        tasks: Option<Tasks>,
    ) -> anyhow::Result<Self> {
        let (listener, file) =
            listen(path).with_context(|| format!("--control {}", path.display()))?;
        let (listener, clients) = (Arc::new(listener), Clients::default());
        let (accepting, owner) = AcceptLoop::new(listener.clone())?;
        let thread = thread::Builder::new().name("operator".into()).spawn({
            let clients = clients.clone();
            move || accept(&accepting, &clients, &(stores, tasks))
        })?;
        let running = Some((owner, thread));
        Ok(Self { path: path.into(), listener, running, clients, file: Some(file) })
    }

    /// Returns the listener and its path.
    pub(crate) fn listener(&self) -> (&Path, BorrowedFd<'_>) {
        (&self.path, self.listener.as_fd())
    }

    /// Stops accepting and keeps the file, because another process has taken over the listener.
    /// Connected clients still get their answers.
    pub(crate) fn leave_to_successor(&mut self) {
        self.end_loop();
        if let Some(file) = self.file.take() {
            file.leave_to_successor();
        }
    }

    /// Waits for a short time until the clients have their answers, because the process may be
    /// about to end.
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
    if let Some(socket) = inherited::take(Role::Control, &path.to_string_lossy()).pop() {
        return Ok((socket.into(), SocketFile::taken_over(path)));
    }
    let socket = Socket::new(Domain::UNIX, Type::STREAM.cloexec(), None)?;
    // bind(2) takes the file's mode from the socket: others must not be able to open it at any
    // time.
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

/// The parts of the server that requests use.
type Managed = (SharedStores, Option<Tasks>);

fn accept(accepting: &AcceptLoop, clients: &Clients, managed: &Managed) {
    while let Some(socket) = accepting.next() {
        let stream = UnixStream::from(OwnedFd::from(socket));
        let (clients, managed) = (clients.clone(), managed.clone());
        if clients.fetch_add(1, SeqCst) >= CLIENTS_MAX {
            clients.fetch_sub(1, SeqCst);
            let _ = stream.set_nonblocking(true);
            let message = format!("{CLIENTS_MAX} other clients are connected; try again later");
            let _ = send(&mut &stream, &ControlEvent::Error { kind: ErrorKind::Busy, message });
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
            send(&mut writer, &ControlEvent::Error { kind: ErrorKind::BadRequest, message })?;
            return writer.flush();
        };
        match outcome {
            Ok(count) => send(&mut writer, &ControlEvent::End { count })?,
            Err(AnswerError::Client(kind, message)) => {
                send(&mut writer, &ControlEvent::Error { kind, message })?
            }
            Err(AnswerError::Gone) => return Ok(()),
        }
        writer.flush()?;
    }
}

/// Answers a request: requests about the cache here, the others through the main thread.
fn manage(
    (stores, tasks): &Managed,
    request: &ControlRequest,
    mut send: impl FnMut(&ControlEvent) -> io::Result<()>,
) -> Result<u64, AnswerError> {
    let task = match request {
        ControlRequest::Reload {} => OperatorTask::Reload,
        ControlRequest::Upgrade {} => OperatorTask::Upgrade,
        ControlRequest::List { .. }
        | ControlRequest::Show { .. }
        | ControlRequest::Purge { .. }
        | ControlRequest::Statistics {} => {
            let stores = stores.lock().unwrap_or_else(PoisonError::into_inner).clone();
            if stores.present().is_empty() {
                let message = "there is no cache (pollux serve --cache SIZE)".into();
                return Err(AnswerError::Client(ErrorKind::Rejected, message));
            }
            return answer(&stores, request, send);
        }
    };
    let tasks = tasks.as_ref().ok_or_else(not_here)?;
    let changes =
        tasks.run(task).map_err(|message| AnswerError::Client(ErrorKind::Rejected, message))?;
    for change in &changes {
        send(&ControlEvent::Change { change: change.clone() })?;
    }
    Ok(changes.len() as u64)
}

fn send(writer: &mut impl Write, event: &ControlEvent) -> io::Result<()> {
    let mut line = serde_json::to_vec(event)?;
    line.push(b'\n');
    writer.write_all(&line)
}

#[cfg(test)]
mod tests;
