//! The socket and its threads.

use super::{request, response, routes, snapshot::Observed};
use crate::{
    config::Listen,
    transport::{
        listener::{self, SocketFile},
        passed,
    },
};
use anyhow::Context;
use pollux_http::Status;
use pollux_sys::spawn_detached;
use socket2::{Domain, SockRef, Socket, Type};
use std::{
    io,
    net::Shutdown,
    os::fd::OwnedFd,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

/// So many clients at once; a further one is answered 503. A page that is open in a browser is one of them.
const CLIENTS_MAX: usize = 32;
/// Connections that the kernel queues.
const BACKLOG: u32 = 64;
/// How long a client may take none of a response.
const WRITE_PATIENCE: Duration = Duration::from_secs(10);
/// Between two tries to accept when there is no descriptor or memory.
const PAUSE: Duration = Duration::from_millis(100);

/// The admin listener of a running server. Dropping it closes the listener; responses that are being sent end by
/// themselves.
#[derive(Debug)]
pub(crate) struct Web {
    listener: Arc<Socket>,
    address: Listen,
    observed: Arc<Observed>,
    thread: Option<JoinHandle<()>>,
    _file: Option<SocketFile>,
}

impl Web {
    /// Listens at `address` and serves what `observed` has.
    ///
    /// # Errors
    /// Says which address is at fault.
    pub(crate) fn start(address: &Listen, observed: Arc<Observed>) -> anyhow::Result<Self> {
        let (socket, file) = listen(address).with_context(|| format!("--admin {address}"))?;
        let address = listener::address_of(&socket)?;
        let listener = Arc::new(Socket::from(socket));
        let mut web = Self {
            listener: listener.clone(),
            address,
            observed: observed.clone(),
            thread: None,
            _file: file,
        };
        let thread = thread::Builder::new().name("admin".into());
        web.thread = Some(thread.spawn(move || accept(&listener, &observed))?);
        Ok(web)
    }

    /// Where it listens, with the port that the kernel chose.
    pub(crate) fn address(&self) -> &Listen {
        &self.address
    }

    /// The state that it serves.
    pub(crate) fn observed(&self) -> &Observed {
        &self.observed
    }
}

impl Drop for Web {
    fn drop(&mut self) {
        self.observed.begin_stop();
        // Wakes the thread that waits in accept(2).
        let _ = self.listener.shutdown(Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Blocking, unlike the workers' listeners.
fn listen(address: &Listen) -> anyhow::Result<(OwnedFd, Option<SocketFile>)> {
    let (socket, file) = match address {
        Listen::Tcp(address) => (listener::tcp(*address, BACKLOG, false)?, None),
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
    };
    SockRef::from(&socket).set_nonblocking(false)?;
    Ok((socket, file))
}

fn accept(listener: &Socket, observed: &Arc<Observed>) {
    let clients = Arc::new(AtomicUsize::new(0));
    loop {
        let socket = match listener.accept() {
            Ok((socket, _)) => socket,
            // shutdown(2)
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => return,
            Err(_) if observed.is_stopping() => return,
            Err(_) => {
                thread::sleep(PAUSE);
                continue;
            }
        };
        if clients.fetch_add(1, SeqCst) >= CLIENTS_MAX {
            clients.fetch_sub(1, SeqCst);
            // A socket that was just accepted has room for it.
            let _ = socket.set_nonblocking(true);
            let _ = response::refuse(&mut &socket, Status::ServiceUnavailable, "too many clients");
            continue;
        }
        let (count, observed) = (clients.clone(), observed.clone());
        let here = clients.clone();
        let started = spawn_detached(c"admin-client", move || {
            // A client that went away is no failure of ours.
            let _ = serve(&socket, &observed);
            here.fetch_sub(1, SeqCst);
        });
        if started.is_err() {
            count.fetch_sub(1, SeqCst);
        }
    }
}

fn serve(socket: &Socket, observed: &Observed) -> io::Result<()> {
    socket.set_write_timeout(Some(WRITE_PATIENCE))?;
    let mut writer = socket;
    match request::read(socket)? {
        Ok(request) => routes::answer(&request, observed, &mut writer),
        Err(reject) => response::refuse(&mut writer, reject.status, reject.reason),
    }?;
    // A client that is still sending would make close(2) a reset, which may take the response away.
    let _ = socket.shutdown(Shutdown::Write);
    request::discard(socket);
    Ok(())
}
