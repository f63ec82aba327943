//! Files and sockets that are opened with root's rights and used after these are given up: TCP
//! sockets and logs.
//!
//! A socket is bound early, but listens only after a server has taken it. Until then the kernel
//! refuses connections, and a socket that no server takes never gets a connection.

use super::listener;
use rustix::fs::OFlags;
use socket2::Socket;
use std::{
    fs::{self, File, OpenOptions},
    io,
    net::SocketAddr,
    os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

static OPEN: Mutex<Open> = Mutex::new(Open { sockets: Vec::new(), logs: Vec::new() });

struct Open {
    sockets: Vec<Bound>,
    logs: Vec<(PathBuf, File)>,
}

/// A socket that is bound and does not listen.
struct Bound {
    /// The address of the configuration, whose port may be 0.
    requested: SocketAddr,
    /// The address with the port that the kernel chose.
    actual: SocketAddr,
    shares: bool,
    socket: Socket,
}

fn open<T>(work: impl FnOnce(&mut Open) -> T) -> T {
    work(&mut OPEN.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Binds `count` sockets to `address`, which `flag` names. If the kernel chooses the port, all sockets have the same
/// port.
///
/// # Errors
/// The errors of [`listener::tcp_of`].
pub(crate) fn bind(
    flag: &str,
    address: SocketAddr,
    count: usize,
    shares: bool,
) -> anyhow::Result<()> {
    if shares {
        listener::check_free(address)?;
    }
    let mut actual = address;
    for _ in 0..count {
        let socket = listener::bound(flag, actual, shares)?;
        actual = socket.local_addr()?.as_socket().unwrap_or(actual);
        open(|open| open.sockets.push(Bound { requested: address, actual, shares, socket }));
    }
    Ok(())
}

/// Returns a socket that was bound for this address, if one is left.
pub(crate) fn take(address: SocketAddr, shares: bool) -> Option<Socket> {
    open(|open| {
        let index = open.sockets.iter().position(|bound| bound.is_for(address, shares))?;
        Some(open.sockets.remove(index).socket)
    })
}

/// Returns whether a socket was bound for this address; then the address is available to this
/// server.
pub(crate) fn has(address: SocketAddr) -> bool {
    open(|open| open.sockets.iter().any(|bound| bound.is_for(address, bound.shares)))
}

impl Bound {
    fn is_for(&self, address: SocketAddr, shares: bool) -> bool {
        (self.requested == address || self.actual == address) && self.shares == shares
    }
}

/// Opens a log. A new file belongs to the user and the group with these numbers, which the server is
/// to become, so that it can open the file again.
///
/// A link that the user may have made is left to the user: root would open every file that it leads to.
///
/// # Errors
/// The errors of open(2).
pub(crate) fn open_log(path: &Path, user: u32, group: u32) -> io::Result<()> {
    let file = match OpenOptions::new().append(true).create_new(true).open(path) {
        Ok(file) => {
            std::os::unix::fs::fchown(&file, Some(user), Some(group))?;
            file
        }
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let flags = if is_in_directory_of_root(path) { 0 } else { libc::O_NOFOLLOW };
            match open_to_append(path, flags) {
                // The server opens it later, as the user.
                Err(error) if error.raw_os_error() == Some(libc::ELOOP) => return Ok(()),
                opened => opened?,
            }
        }
        Err(error) => return Err(error),
    };
    open(|open| open.logs.push((path.to_owned(), file)));
    Ok(())
}

/// Opens a log to append to it, with further `flags` of open(2).
///
/// # Errors
/// The errors of open(2). A pipe that no process reads is an error, too: open(2) would wait for a reader, with all
/// signals blocked.
pub(crate) fn open_to_append(path: &Path, flags: i32) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.append(true).custom_flags(flags | libc::O_NONBLOCK);
    let file = options.open(path).map_err(|error| match error.raw_os_error() {
        Some(libc::ENXIO) if fs::metadata(path).is_ok_and(|file| file.file_type().is_fifo()) => {
            io::Error::other("no process reads this pipe: start its reader first")
        }
        _ => error,
    })?;
    // Only the open must not wait. A write to a slow reader may wait: meanwhile the queue of the log drops lines.
    let flags = rustix::fs::fcntl_getfl(&file)?;
    rustix::fs::fcntl_setfl(&file, flags.difference(OFlags::NONBLOCK))?;
    Ok(file)
}

/// Returns whether only root can make links in the directory of this file.
fn is_in_directory_of_root(path: &Path) -> bool {
    /// The right to write for the group and for others.
    const OTHERS_WRITE: u32 = 0o022;
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    fs::metadata(directory.unwrap_or(Path::new(".")))
        .is_ok_and(|directory| directory.uid() == 0 && directory.mode() & OTHERS_WRITE == 0)
}

/// Returns the log that was opened at `path`, at the first call only.
pub(crate) fn take_log(path: &Path) -> Option<File> {
    open(|open| {
        let index = open.logs.iter().position(|(opened, _)| opened == path)?;
        Some(open.logs.remove(index).1)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    /// Regression: the user of the server could make root append the server's lines to any file, by a link in the
    /// directory of the log.
    #[test]
    fn a_link_to_a_log_that_the_user_may_have_made_is_left_to_the_user() {
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
        let [log, target, link] = ["log", "target", "link"].map(|name| folder.path().join(name));
        fs::write(&target, "").unwrap();
        symlink(&target, &link).unwrap();
        let (user, group) =
            (fs::metadata(&target).unwrap().uid(), fs::metadata(&target).unwrap().gid());
        open_log(&link, user, group).unwrap();
        assert!(take_log(&link).is_none());
        // A new log, and one that exists.
        for _ in 0..2 {
            open_log(&log, user, group).unwrap();
            assert!(take_log(&log).is_some());
        }
        assert!(is_in_directory_of_root(Path::new("/etc/passwd")));
        assert!(!is_in_directory_of_root(&link));
    }

    /// Regression: the message about the address of `--admin` named `--listen` as the flag to change.
    #[test]
    fn an_address_in_use_is_reported_with_its_flag() {
        let other = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = other.local_addr().unwrap();
        let error = bind("--admin", address, 1, false).unwrap_err().to_string();
        assert!(error.contains("another address: --admin ADDRESS:PORT"), "{error}");
    }

    #[test]
    fn sockets_of_one_address_have_one_port_and_are_taken_once() {
        let any = SocketAddr::from(([127, 0, 0, 9], 0));
        bind(listener::LISTEN, any, 3, true).unwrap();
        assert!(take(any, false).is_none(), "these share their port");
        let first = take(any, true).unwrap().local_addr().unwrap().as_socket().unwrap();
        assert_ne!(first.port(), 0);
        assert!(has(first));
        assert!(take(first, true).is_some());
        assert!(take(first, true).is_some());
        assert!(take(first, true).is_none());
        assert!(!has(first));
    }
}
