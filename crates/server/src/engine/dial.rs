//! Sockets on their way to somewhere, for the links of applications.

use crate::reactor::Endpoint;
use pollux_sys as sys;
use socket2::{Domain, SockAddr, SockRef, Socket, Type};
use std::{
    io,
    os::fd::{AsFd, OwnedFd},
};

/// The kind of failure that a service receives. A lack of descriptors or memory on this host is one
/// kind: it says nothing about the address that was dialled.
pub(super) fn kind_of(error: &io::Error) -> io::ErrorKind {
    match error.raw_os_error() {
        Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM) => {
            io::ErrorKind::QuotaExceeded
        }
        _ => error.kind(),
    }
}

/// A socket on its way to `endpoint`, non-blocking.
pub(super) fn connect(endpoint: &Endpoint) -> io::Result<OwnedFd> {
    match endpoint {
        Endpoint::Tcp(address) | Endpoint::Tls(address, _) => {
            let destination = sys::Address::from(*address);
            let socket = sys::tcp_socket(&destination)?;
            // Else the second half of a request could wait for the peer's delayed acknowledgement.
            SockRef::from(&socket).set_tcp_nodelay(true)?;
            match sys::connect(socket.as_fd(), &destination) {
                Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => Err(error),
                _ => Ok(socket),
            }
        }
        Endpoint::Unix(path) => {
            let socket = Socket::new(Domain::UNIX, Type::STREAM.nonblocking().cloexec(), None)?;
            // EAGAIN is a full backlog: unlike TCP's, it would never come to an end by itself.
            sys::count(sys::Call::Connect, || socket.connect(&SockAddr::unix(path)?))?;
            Ok(socket.into())
        }
        Endpoint::Connected(made) => made.take().ok_or_else(|| io::ErrorKind::NotConnected.into()),
    }
}
