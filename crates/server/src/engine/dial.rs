//! Starts the connections of services to upstream servers, without blocking.

use crate::reactor::Endpoint;
use pollux_sys as sys;
use socket2::{Domain, SockAddr, SockRef, Socket, Type};
use std::{
    io,
    os::fd::{AsFd, OwnedFd},
};

/// Returns the kind of failure that a service receives. A lack of descriptors or memory on this host is one
/// kind: it indicates nothing about the address that was dialled.
pub(super) fn kind_of(error: &io::Error) -> io::ErrorKind {
    match error.raw_os_error() {
        Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM) => {
            io::ErrorKind::QuotaExceeded
        }
        _ => error.kind(),
    }
}

/// Creates a non-blocking socket and starts to connect it to `endpoint`.
pub(super) fn connect(endpoint: &Endpoint) -> io::Result<OwnedFd> {
    match endpoint {
        Endpoint::Tcp(address) | Endpoint::Tls(address, _) => {
            let destination = sys::Address::from(*address);
            let socket = sys::tcp_socket(&destination)?;
            // Otherwise the second half of a request could wait for the peer's delayed acknowledgement.
            SockRef::from(&socket).set_tcp_nodelay(true)?;
            match sys::connect(socket.as_fd(), &destination) {
                Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => Err(error),
                _ => Ok(socket),
            }
        }
        Endpoint::Unix(path) => {
            let socket = Socket::new(Domain::UNIX, Type::STREAM.nonblocking().cloexec(), None)?;
            // EAGAIN means a full backlog: unlike with TCP, no later event would complete such a connect.
            sys::count(sys::Call::Connect, || socket.connect(&SockAddr::unix(path)?))?;
            Ok(socket.into())
        }
        Endpoint::Connected(made) => made.take().ok_or_else(|| io::ErrorKind::NotConnected.into()),
    }
}
