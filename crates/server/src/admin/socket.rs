//! The socket and its threads.

use super::{
    answer::{AnswerError, answer, not_here},
    protocol::{ErrorKind, Event, REQUEST_MAX, Request},
    tasks::{Task, Tasks},
};
use crate::transport::listener::{self, SocketFile};
use anyhow::Context;
use pollux_cache::Store;
use pollux_sys::spawn_detached;
use rustix::fs::Mode;
use socket2::{Domain, Socket, Type};
use std::{
    io::{self, BufRead, BufReader, BufWriter, Read, Write},
    net::Shutdown,
    os::unix::net::UnixStream,
    path::Path,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

/// The most clients at once; a further one receives an error.
const CLIENTS_MAX: usize = 8;
/// How long a client may be silent.
const READ_PATIENCE: Duration = Duration::from_secs(10);
/// How long one may take nothing of an answer: somebody may look at a list page by page.
const WRITE_PATIENCE: Duration = Duration::from_secs(600);
/// Between two tries to accept when there is no descriptor or memory.
const PAUSE: Duration = Duration::from_millis(100);

/// The cache of the default site, if it has one: another one after a change of the configuration.
pub(crate) type SharedStore = Arc<Mutex<Option<Store>>>;

/// The control socket of a running server. Gone, with its file, when it is dropped.
#[derive(Debug)]
pub(crate) struct Operator {
    listener: Arc<Socket>,
    thread: Option<JoinHandle<()>>,
    _file: SocketFile,
}

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
        let listener = Arc::new(listener);
        let mut operator = Self { listener: listener.clone(), thread: None, _file: file };
        let thread = thread::Builder::new().name("operator".into());
        operator.thread = Some(thread.spawn(move || accept(&listener, &(store, tasks)))?);
        Ok(operator)
    }
}

impl Drop for Operator {
    fn drop(&mut self) {
        // This ends the thread's accept(2).
        let _ = self.listener.shutdown(Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn listen(path: &Path) -> io::Result<(Socket, SocketFile)> {
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

fn accept(listener: &Socket, managed: &Managed) {
    let clients = Arc::new(AtomicUsize::new(0));
    loop {
        let stream = match listener.accept() {
            Ok((socket, _)) => UnixStream::from(std::os::fd::OwnedFd::from(socket)),
            // shutdown(2)
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => return,
            Err(_) => {
                thread::sleep(PAUSE);
                continue;
            }
        };
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
