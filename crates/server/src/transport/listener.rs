//! Listening sockets.

use super::{early, inherited, passed, role::Role};
use crate::config::Listen;
use anyhow::{Context, bail};
use rustix::{
    fs::{FlockOperation, Mode, OFlags, flock, fstat, lstat, open},
    io::Errno,
};
use socket2::{Domain, Protocol, SockAddr, SockRef, Socket, Type};
use std::{
    fs::File,
    io,
    net::{IpAddr, SocketAddr},
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::{fs::FileTypeExt, net::UnixStream},
    },
    path::{Path, PathBuf},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

/// A listening socket. The main thread creates it before any worker starts and lends it to workers, which
/// accept from copies of their own. Because the main thread keeps the socket, another process can take it
/// over.
#[derive(Debug)]
pub struct Listener {
    address: Listen,
    configured: Listen,
    index: u16,
    protocol: ListenProtocol,
    socket: OwnedFd,
}

/// The protocol of a listener's clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ListenProtocol {
    /// HTTP/1.1 without encryption.
    Http,
}

impl Listener {
    /// Creates a listener from this socket. `configured` is its address in the configuration, and `index`
    /// is its index there.
    ///
    /// # Errors
    /// The socket's address has an unknown type.
    pub(crate) fn new(socket: OwnedFd, configured: &Listen, index: usize) -> anyhow::Result<Self> {
        let address = address_of(&socket)?;
        let configured = configured.clone();
        let index = u16::try_from(index).context("too many listeners")?;
        Ok(Self { address, configured, index, protocol: ListenProtocol::Http, socket })
    }

    /// Returns the address in the configuration, which may have port 0.
    pub(crate) fn configured(&self) -> &Listen {
        &self.configured
    }

    /// Returns its index among the configured listeners.
    pub(crate) fn index(&self) -> u16 {
        self.index
    }

    /// Returns the address on which it listens, with the port that the kernel chose.
    pub fn address(&self) -> &Listen {
        &self.address
    }

    /// Returns the protocol of its clients.
    pub fn protocol(&self) -> ListenProtocol {
        self.protocol
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// The listeners of each worker, and the files of UNIX sockets.
pub(crate) type OpenedListeners = (Vec<Vec<Arc<Listener>>>, Vec<SocketFile>);

/// Creates a server's listeners at all `addresses`: each worker gets its own, in the order of the addresses;
/// listeners of UNIX sockets are shared by all workers. If the kernel chooses a port for the first worker,
/// the others use the same port. Listeners that a former server has handed over are used and not created
/// again.
///
/// # Errors
/// The error names the address at fault.
pub(crate) fn open_all(
    addresses: &[Listen],
    backlog: u32,
    workers: usize,
) -> anyhow::Result<OpenedListeners> {
    let (mut shared, mut files) = (Vec::new(), Vec::new());
    for (index, one) in addresses.iter().enumerate() {
        let sockets = match one {
            Listen::Tcp(_) => continue,
            Listen::Unix(path) => {
                let (socket, file) = open_unix(path, one, backlog)?;
                files.push(file);
                vec![socket]
            }
            Listen::Passed(name) => {
                let sockets = inherited::take(Role::Clients, &one.to_string());
                if sockets.is_empty() { passed::take(name.as_deref())? } else { sockets }
            }
        };
        for socket in sockets {
            shared.push(Arc::new(Listener::new(socket, one, index)?));
        }
    }
    let mut of_each = vec![shared; workers];
    // All addresses are checked before any is used: if the second address is in use, the server has not
    // disturbed the first.
    let mut inherited = Vec::new();
    for (index, one) in addresses.iter().enumerate() {
        let Listen::Tcp(address) = one else { continue };
        let sockets = inherited::take(Role::Clients, &one.to_string());
        if sockets.is_empty() && workers > 1 {
            check_free(*address)?;
        }
        inherited.push((*address, index, sockets));
    }
    for (address, index, sockets) in inherited {
        let of_workers = tcp_of_workers(address, index, sockets, (backlog, workers))?;
        for (own, listeners) in of_each.iter_mut().zip(of_workers) {
            own.extend(listeners);
        }
    }
    Ok((of_each, files))
}

fn open_unix(
    path: &Path,
    configured: &Listen,
    backlog: u32,
) -> anyhow::Result<(OwnedFd, SocketFile)> {
    match inherited::take(Role::Clients, &configured.to_string()).pop() {
        Some(socket) => Ok((socket, SocketFile::taken_over(path))),
        None => unix(path, backlog),
    }
}

/// Returns the listeners at one address, for each worker. All listeners of a former server stay open, even
/// if it had more or fewer workers: connections may wait at any of them.
fn tcp_of_workers(
    address: SocketAddr,
    index: usize,
    inherited: Vec<OwnedFd>,
    (backlog, workers): (u32, usize),
) -> anyhow::Result<Vec<Vec<Arc<Listener>>>> {
    let (count, configured) = (workers, Listen::Tcp(address));
    let mut address = address;
    let mut sockets = Vec::new();
    for socket in inherited {
        // The configured backlog may have changed.
        rustix::net::listen(&socket, backlog_of(backlog))?;
        sockets.push(Arc::new(Listener::new(socket, &configured, index)?));
    }
    if sockets.is_empty() {
        for _ in 0..count {
            let socket = tcp(address, backlog, count > 1)?;
            let listener = Listener::new(socket, &configured, index)?;
            if let Listen::Tcp(chosen) = listener.address() {
                address = *chosen;
            }
            sockets.push(Arc::new(listener));
        }
    }
    let of_worker = |worker: usize| match sockets.get(worker) {
        Some(_) => sockets.iter().skip(worker).step_by(count).cloned().collect(),
        None => vec![sockets[worker % sockets.len()].clone()],
    };
    Ok((0..count).map(of_worker).collect())
}

/// Returns the backlog in the type of listen(2).
fn backlog_of(backlog: u32) -> i32 {
    backlog.min(i32::MAX as u32) as i32
}

/// The time for which a starting server waits for other servers that bind a socket in the same directory,
/// each of which takes far less than a millisecond; and the pause between two attempts.
const LOCK_PATIENCE: Duration = Duration::from_secs(2);
const LOCK_PAUSE: Duration = Duration::from_millis(5);

/// The flag with the addresses for clients.
pub(crate) const LISTEN: &str = "--listen";

/// Opens a TCP listener. With `shares`, several workers may listen on the port, each with a queue of its
/// own (SO_REUSEPORT, socket(7)).
///
/// # Errors
/// The error names the address at fault, and the flag for another address.
pub(crate) fn tcp(address: SocketAddr, backlog: u32, shares: bool) -> anyhow::Result<OwnedFd> {
    tcp_of(LISTEN, address, backlog, shares)
}

/// Does the same as [`tcp`] for the address of another flag.
///
/// # Errors
/// The same as [`tcp`].
pub(crate) fn tcp_of(
    flag: &str,
    address: SocketAddr,
    backlog: u32,
    shares: bool,
) -> anyhow::Result<OwnedFd> {
    let open = || -> io::Result<OwnedFd> {
        let socket = match early::take(address, shares) {
            Some(socket) => socket,
            None => bind_tcp(address, shares)?,
        };
        socket.listen(backlog_of(backlog))?;
        Ok(socket.into())
    };
    open().with_context(|| advise(flag, &address.to_string()))
}

/// Creates a socket like [`tcp_of`], but it does not listen yet.
///
/// # Errors
/// The same as [`tcp_of`].
pub(crate) fn bound(flag: &str, address: SocketAddr, shares: bool) -> anyhow::Result<Socket> {
    bind_tcp(address, shares).with_context(|| advise(flag, &address.to_string()))
}

fn bind_tcp(address: SocketAddr, shares: bool) -> io::Result<Socket> {
    let kind = Type::STREAM.nonblocking().cloexec();
    let socket = Socket::new(Domain::for_address(address), kind, Some(Protocol::TCP))?;
    // Otherwise a restart would have to wait until the TIME_WAIT of old connections is over.
    socket.set_reuse_address(true)?;
    if address.is_ipv6() {
        socket.set_only_v6(false)?;
    }
    if shares {
        socket.set_reuse_port(true)?;
    }
    // Accepted sockets inherit TCP_NODELAY. Without it, the second half of a response could wait for the
    // peer's delayed acknowledgement.
    socket.set_tcp_nodelay(true)?;
    socket.bind(&address.into())?;
    Ok(socket)
}

/// Checks that no other server listens on the address: SO_REUSEPORT alone would share the port with another
/// server of the same user, without an error.
///
/// # Errors
/// The errors of [`tcp`]: the address is in use, or not available.
pub(crate) fn check_free(address: SocketAddr) -> anyhow::Result<()> {
    if early::has(address) {
        return Ok(());
    }
    tcp(address, 1, false).map(drop)
}

/// Opens a UNIX listener. If a socket file exists and no process listens on it any more, it is replaced.
///
/// # Errors
/// The error names the path at fault.
pub(crate) fn unix(path: &Path, backlog: u32) -> anyhow::Result<(OwnedFd, SocketFile)> {
    let open = || -> io::Result<(OwnedFd, SocketFile)> {
        let socket = Socket::new(Domain::UNIX, Type::STREAM.nonblocking().cloexec(), None)?;
        let file = listen_at(&socket, path, backlog_of(backlog))?;
        Ok((socket.into(), file))
    };
    open().with_context(|| advise(LISTEN, &format!("unix:{}", path.display())))
}

/// Binds to `path` and listens. If a socket file exists there and no process listens on it any more, it is
/// replaced.
///
/// # Errors
/// The errors of bind(2), such as that another process listens there; or the existing file is not a socket.
pub(crate) fn listen_at(socket: &Socket, path: &Path, backlog: i32) -> io::Result<SocketFile> {
    // Servers that start at the same time do this one after the other. A socket that is bound and does not
    // listen yet looks like the socket of a server that has ended. And a file that is removed after a check
    // may by then belong to another server, which has replaced it meanwhile. In both cases a running server
    // would lose its socket.
    let lock = lock_directory_of(path);
    bind_path(socket, path)?;
    let file = SocketFile::at(path);
    let outcome = socket.listen(backlog);
    // Dropping `file` takes the same lock.
    drop(lock);
    outcome.map(|()| file)
}

/// The file of a UNIX listener that this server has created. It is removed when this value is dropped, if
/// the path still leads to this file and not to one that another process has created since.
#[derive(Debug)]
pub(crate) struct SocketFile {
    path: PathBuf,
    /// The file itself, as a descriptor that only identifies it (O_PATH): while the descriptor is open, no
    /// other file has its inode number. If the descriptor could not be opened, the owner of the file cannot
    /// be determined later, so the file stays.
    file: Option<OwnedFd>,
    /// Whether the file belongs to the former server until that server has confirmed the upgrade.
    is_taken_over: bool,
}

impl SocketFile {
    /// Returns the file that is now at `path`, after this server has bound a socket there.
    fn at(path: &Path) -> Self {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = open(path, flags, Mode::empty()).ok();
        Self { path: path.to_owned(), file, is_taken_over: false }
    }

    /// Returns the file that is now at `path`, after the former server has bound the socket.
    pub(crate) fn taken_over(path: &Path) -> Self {
        let mut file = Self::at(path);
        file.is_taken_over = true;
        file
    }

    /// Drops this value without removing the file, because another process has taken the socket over, and
    /// the file with it.
    pub(crate) fn leave_to_successor(mut self) {
        self.file = None;
    }

    fn is_still_there(&self) -> bool {
        let Some(Ok(made)) = self.file.as_ref().map(fstat) else { return false };
        let there = lstat(&self.path);
        there.is_ok_and(|there| (there.st_dev, there.st_ino) == (made.st_dev, made.st_ino))
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if self.file.is_none() || self.is_taken_over && !inherited::has_succeeded() {
            return;
        }
        // Without the lock, another starting server could replace the file between the check and the
        // removal.
        let _lock = lock_directory_of(&self.path);
        if self.is_still_there() {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Locks the directory of `path` with flock(2), which leaves no file behind and ends with its holder. A server holds
/// the lock from before it binds a socket in the directory until it listens, and while it removes one.
/// Returns `None` if the directory cannot be locked (no permission to read it; NFS), or if another process
/// holds the lock for long for its own reasons, as tmpfiles.d(5) suggests: then servers that start at the
/// same moment may disturb each other.
fn lock_directory_of(path: &Path) -> Option<File> {
    let directory = path.parent().filter(|directory| !directory.as_os_str().is_empty());
    let directory = File::open(directory.unwrap_or(Path::new("."))).ok()?;
    let start = Instant::now();
    while start.elapsed() < LOCK_PATIENCE {
        match flock(&directory, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Some(directory),
            Err(Errno::WOULDBLOCK | Errno::INTR) => thread::sleep(LOCK_PAUSE),
            Err(_) => return None,
        }
    }
    None
}

fn bind_path(socket: &Socket, path: &Path) -> io::Result<()> {
    let address = SockAddr::unix(path)?;
    let Err(error) = socket.bind(&address) else { return Ok(()) };
    if error.kind() != io::ErrorKind::AddrInUse {
        return Err(error);
    }
    // connect(2) is also refused for a file of another kind, but such a file contains a user's data.
    if !std::fs::symlink_metadata(path)?.file_type().is_socket() {
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, "the file there is no socket"));
    }
    let is_stale = UnixStream::connect(path)
        .is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused);
    if !is_stale {
        return Err(error);
    }
    std::fs::remove_file(path)?;
    socket.bind(&address)
}

fn advise(flag: &str, address: &str) -> String {
    format!("cannot listen on {address} (another address: {flag} ADDRESS:PORT)")
}

/// Returns the address on which a listener really listens, with the port that the kernel chose.
pub(crate) fn address_of(socket: &OwnedFd) -> anyhow::Result<Listen> {
    let address = SockRef::from(socket).local_addr()?;
    if let Some(tcp) = address.as_socket() {
        return Ok(Listen::Tcp(tcp));
    }
    match address.as_pathname() {
        Some(path) => Ok(Listen::Unix(path.into())),
        None => bail!("a listener has neither a TCP address nor a path"),
    }
}

/// Returns the peer's address; `None` for a UNIX socket.
pub(crate) fn peer(socket: BorrowedFd<'_>) -> Option<IpAddr> {
    peer_address(socket).map(|address| address.ip())
}

/// Returns the peer's address and port; `None` for a UNIX socket.
pub(crate) fn peer_address(socket: BorrowedFd<'_>) -> Option<SocketAddr> {
    SockRef::from(&socket).peer_addr().ok()?.as_socket().map(canonical)
}

/// Returns the address to which the peer has connected; `None` for a UNIX socket.
pub(crate) fn own_address(socket: BorrowedFd<'_>) -> Option<SocketAddr> {
    SockRef::from(&socket).local_addr().ok()?.as_socket().map(canonical)
}

/// Converts an IPv4-mapped address to IPv4, because an IPv4 client of an IPv6 listener has such an address.
pub(super) fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}
