//! Listening sockets that the service manager has opened (sd_listen_fds(3)): systemd's socket activation.
//!
//! With them, the server needs no privilege for a port below 1024. While the server restarts, connections
//! wait in the socket, which stays open.

use anyhow::{Context, anyhow, ensure};
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
    /// The error says why it is no socket for clients. A unit may pass other descriptors as well (`OpenFile=`,
    /// `ListenDatagram=`), for which the configuration need not have a use.
    socket: io::Result<OwnedFd>,
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
        none => none.insert(from_environment()),
    };
    let wanted: Vec<_> =
        all.iter().filter(|one| name.is_none_or(|name| one.name == name)).collect();
    ensure!(!wanted.is_empty(), "{}", none_of(name, all));
    let open = |one: &&PassedSocket| {
        let socket = one.socket.as_ref().map_err(|error| anyhow!("{error}"));
        let copied = socket.and_then(|socket| Ok(copy(socket)?));
        copied.with_context(|| format!("the socket that was passed as systemd:{}", one.name))
    };
    wanted.iter().map(open).collect()
}

fn copy(socket: &OwnedFd) -> io::Result<OwnedFd> {
    let copy = socket.try_clone()?;
    let options = SockRef::from(&copy);
    if !options.is_listener()? {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it does not listen"));
    }
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

fn from_environment() -> Vec<PassedSocket> {
    // Read first, because taking the sockets removes the variables.
    let names = std::env::var("LISTEN_FDNAMES").unwrap_or_default();
    let mut sockets = ListenFd::from_env();
    (0..sockets.len())
        .map(|index| {
            let socket = match sockets.take_tcp_listener(index) {
                Ok(socket) => Ok(socket.map(OwnedFd::from)),
                Err(_) => sockets.take_unix_listener(index).map(|socket| socket.map(OwnedFd::from)),
            };
            let neither = "it is neither a TCP nor a UNIX stream socket";
            let socket = socket.ok().flatten().ok_or_else(|| io::Error::other(neither));
            // sd_listen_fds_with_names(3): a socket without a name is called "unknown".
            let name = names.split(':').nth(index).filter(|name| !name.is_empty());
            PassedSocket { name: name.unwrap_or("unknown").into(), socket }
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

    /// Regression: a server said that it serves, and accepted nothing.
    #[test]
    fn a_socket_that_does_not_listen_is_an_error() {
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None);
        let error = copy(&socket.unwrap().into()).unwrap_err();
        assert!(error.to_string().contains("does not listen"), "{error}");
    }

    #[test]
    fn a_unix_socket_can_be_passed() {
        let directory = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(directory.path().join("socket")).unwrap();
        copy(&listener.into()).unwrap();
    }
}
