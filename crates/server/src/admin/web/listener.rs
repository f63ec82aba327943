//! The admin listener's socket and threads.

use super::{
    request::{self, Refusal},
    response, routes,
    snapshot::ServerView,
};
use crate::{
    config::Listen,
    transport::{
        accept_loop::{AcceptLoop, LoopOwner},
        inherited,
        listener::{self, SocketFile},
        passed,
        role::Role,
    },
};
use anyhow::Context;
use pollux_http::Status;
use pollux_sys::spawn_detached;
use socket2::{Domain, Socket, Type};
use std::{
    io,
    net::Shutdown,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

/// The maximum number of clients at a time; a further client gets 503. A page that is open in a
/// browser is one client.
const CLIENTS_MAX: usize = 32;
/// The maximum number of connections that the kernel queues.
const BACKLOG: u32 = 64;
/// The time for which a client may accept no bytes of a response.
const WRITE_PATIENCE: Duration = Duration::from_secs(10);

/// The admin listener of a running server. Dropping it closes the listener; responses that are
/// being sent are still completed.
#[derive(Debug)]
pub(crate) struct Web {
    listener: Arc<Socket>,
    /// The address as it is configured.
    configured: Listen,
    address: Listen,
    view: Arc<ServerView>,
    /// `None` after the loop has ended.
    running: Option<(LoopOwner, JoinHandle<()>)>,
    file: Option<SocketFile>,
}

impl Web {
    /// Listens at `configured` and serves the state of `view`.
    ///
    /// # Errors
    /// The message names the address at fault.
    pub(crate) fn start(configured: &Listen, view: Arc<ServerView>) -> anyhow::Result<Self> {
        let (socket, file) = listen(configured).with_context(|| format!("--admin {configured}"))?;
        let address = listener::address_of(&socket)?;
        let listener = Arc::new(Socket::from(socket));
        let (accepting, owner) = AcceptLoop::new(listener.clone())?;
        let thread = thread::Builder::new().name("admin".into()).spawn({
            let view = view.clone();
            move || accept(&accepting, &view)
        })?;
        let running = Some((owner, thread));
        Ok(Self { listener, configured: configured.clone(), address, view, running, file })
    }

    /// Returns the listener and its address as it is configured.
    pub(crate) fn listener(&self) -> (&Listen, BorrowedFd<'_>) {
        (&self.configured, self.listener.as_fd())
    }

    /// Stops accepting and keeps the file, because another process has taken over the listener.
    pub(crate) fn leave_to_successor(mut self) {
        if let Some(file) = self.file.take() {
            file.leave_to_successor();
        }
    }

    /// Returns the address that it listens on, with the port that the kernel chose.
    pub(crate) fn address(&self) -> &Listen {
        &self.address
    }

    /// Returns the state that it serves.
    pub(crate) fn view(&self) -> &ServerView {
        &self.view
    }
}

impl Drop for Web {
    fn drop(&mut self) {
        self.view.begin_stop();
        if let Some((owner, thread)) = self.running.take() {
            drop(owner);
            let _ = thread.join();
        }
    }
}

fn listen(address: &Listen) -> anyhow::Result<(OwnedFd, Option<SocketFile>)> {
    if let Some(socket) = inherited::take(Role::Admin, &address.to_string()).pop() {
        let file = match address {
            Listen::Unix(path) => Some(SocketFile::taken_over(path)),
            Listen::Tcp(_) | Listen::Passed(_) => None,
        };
        return Ok((socket, file));
    }
    Ok(match address {
        Listen::Tcp(address) => (listener::tcp_of("--admin", *address, BACKLOG, false)?, None),
        Listen::Unix(path) => {
            let socket = Socket::new(Domain::UNIX, Type::STREAM.cloexec(), None)?;
            let file = listener::listen_at(&socket, path, BACKLOG as i32)?;
            (socket.into(), Some(file))
        }
        Listen::Passed(name) => {
            let mut sockets = passed::take(name.as_deref())?;
            anyhow::ensure!(sockets.len() == 1, "one socket is wanted, not {}", sockets.len());
            (sockets.remove(0), None)
        }
    })
}

fn accept(accepting: &AcceptLoop, view: &Arc<ServerView>) {
    let clients = Arc::new(AtomicUsize::new(0));
    while let Some(socket) = accepting.next() {
        if clients.fetch_add(1, SeqCst) >= CLIENTS_MAX {
            clients.fetch_sub(1, SeqCst);
            // The send buffer of a new socket has room for this response.
            let _ = socket.set_nonblocking(true);
            let (status, reason) = (Status::ServiceUnavailable, "too many clients");
            let _ = response::refuse(&mut &socket, status, reason, false);
            continue;
        }
        let (count, view) = (clients.clone(), view.clone());
        let here = clients.clone();
        let started = spawn_detached(c"admin-client", move || {
            // The error of a client that has disconnected is not an error of the server.
            let _ = serve(&socket, &view);
            here.fetch_sub(1, SeqCst);
        });
        if started.is_err() {
            count.fetch_sub(1, SeqCst);
        }
    }
}

fn serve(socket: &Socket, view: &ServerView) -> io::Result<()> {
    socket.set_write_timeout(Some(WRITE_PATIENCE))?;
    let mut writer = socket;
    match request::read(socket)? {
        Ok(request) => routes::answer(&request, view, &mut writer),
        Err(Refusal { reject, is_head }) => {
            response::refuse(&mut writer, reject.status, reject.reason, is_head)
        }
    }?;
    // If unread input is left, close(2) resets the connection, and the client may lose the
    // response.
    let _ = socket.shutdown(Shutdown::Write);
    request::discard(socket);
    Ok(())
}
