//! Listening sockets that the service manager has opened (sd_listen_fds(3)): systemd's socket activation.
//!
//! With them, the server needs no privilege for a port below 1024. While the server restarts, connections
//! wait in the socket, which stays open.

use anyhow::{Context, ensure};
use listenfd::ListenFd;
use socket2::SockRef;
use std::{
    io,
    os::fd::OwnedFd,
    sync::{Mutex, PoisonError},
};

/// The sockets that were passed: taken from the environment once, and stored for servers that start later
/// in this process.
static PASSED: Mutex<Option<Vec<PassedSocket>>> = Mutex::new(None);

#[derive(Debug)]
struct PassedSocket {
    name: String,
    socket: OwnedFd,
}

/// Returns the sockets passed under `name`, or all of them. Each is a non-blocking copy.
///
/// # Errors
/// No such socket was passed: the message names the passed sockets. Or a passed socket listens neither on
/// TCP nor on a UNIX path.
pub(crate) fn take(name: Option<&str>) -> anyhow::Result<Vec<OwnedFd>> {
    let mut passed = PASSED.lock().unwrap_or_else(PoisonError::into_inner);
    let all = match &mut *passed {
        Some(all) => all,
        none => none.insert(from_environment().context("the sockets that were passed")?),
    };
    let wanted: Vec<_> =
        all.iter().filter(|one| name.is_none_or(|name| one.name == name)).collect();
    ensure!(!wanted.is_empty(), "{}", none_of(name, all));
    wanted.iter().map(|one| copy(&one.socket).context("a socket that was passed")).collect()
}

fn copy(socket: &OwnedFd) -> io::Result<OwnedFd> {
    let copy = socket.try_clone()?;
    let options = SockRef::from(&copy);
    options.set_nonblocking(true)?;
    // As for the server's own listeners (`listener::tcp`); units rarely have NoDelay=yes. A UNIX socket has no such
    // option.
    let _ = options.set_tcp_nodelay(true);
    Ok(copy)
}

fn none_of(name: Option<&str>, all: &[PassedSocket]) -> String {
    let wanted = name.map_or("systemd".to_owned(), |name| format!("systemd:{name}"));
    if all.is_empty() {
        return format!(
            "--listen {wanted}: no socket was passed: start the server by a socket unit, or try \
             systemd-socket-activate(1)"
        );
    }
    let names: Vec<_> = all.iter().map(|one| one.name.as_str()).collect();
    format!(
        "--listen {wanted}: no socket of this name was passed, but of these: {} (FileDescriptorName= in \
         the socket unit)",
        names.join(", ")
    )
}

fn from_environment() -> io::Result<Vec<PassedSocket>> {
    // Read first, because taking the sockets removes the variables.
    let names = std::env::var("LISTEN_FDNAMES").unwrap_or_default();
    let mut sockets = ListenFd::from_env();
    (0..sockets.len())
        .map(|index| {
            let socket = match sockets.take_tcp_listener(index) {
                Ok(socket) => socket.map(OwnedFd::from),
                Err(_) => sockets.take_unix_listener(index)?.map(OwnedFd::from),
            };
            let socket = socket.ok_or(io::ErrorKind::NotFound)?;
            // sd_listen_fds_with_names(3): a socket without a name is called "unknown".
            let name = names.split(':').nth(index).filter(|name| !name.is_empty());
            Ok(PassedSocket { name: name.unwrap_or("unknown").into(), socket })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        net::{TcpListener, TcpStream},
        os::{fd::AsFd as _, unix::net::UnixListener},
    };

    /// Regression: with the socket of a unit without NoDelay=yes, the last part of a response could wait for the
    /// client's delayed acknowledgement.
    #[test]
    fn connections_of_a_passed_socket_send_at_once() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let copy = copy(&listener.into()).unwrap();
        let _client = TcpStream::connect(address).unwrap();
        let accepted = pollux_sys::accept(copy.as_fd()).unwrap();
        assert!(SockRef::from(&accepted).tcp_nodelay().unwrap());
    }

    #[test]
    fn a_unix_socket_can_be_passed() {
        let directory = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(directory.path().join("socket")).unwrap();
        copy(&listener.into()).unwrap();
    }
}
