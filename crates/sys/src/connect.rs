//! Outgoing TCP connections: socket, bind to a source, connect.

use super::{Call, check, count, socket::FLAGS};
use rustix::net::{self, AddressFamily, SocketType, sockopt};
use std::{
    io,
    net::{IpAddr, SocketAddr},
    os::fd::{AsRawFd, BorrowedFd, OwnedFd},
    time::Duration,
};

/// The address of a socket, of either family.
#[derive(Clone, Copy)]
pub struct Address(SocketAddr);

impl From<SocketAddr> for Address {
    fn from(address: SocketAddr) -> Self {
        Self(address)
    }
}

impl From<IpAddr> for Address {
    /// The address with port 0: any port.
    fn from(address: IpAddr) -> Self {
        SocketAddr::new(address, 0).into()
    }
}

/// socket(2): TCP, non-blocking, close-on-exec, of the family of `destination`.
#[inline]
pub fn tcp_socket(destination: &Address) -> io::Result<OwnedFd> {
    let family = match destination.0 {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    Ok(count(Call::Socket, || net::socket_with(family, SocketType::STREAM, FLAGS, None))?)
}

/// connect(2). On a non-blocking socket EINPROGRESS is the usual result: the handshake continues, and
/// send(2) fails with EAGAIN until it is complete.
#[inline]
pub fn connect(socket: BorrowedFd<'_>, destination: &Address) -> io::Result<()> {
    Ok(count(Call::Connect, || net::connect(socket, &destination.0))?)
}

/// bind(2) to the source address of a later connection. connect(2) chooses the port
/// (IP_BIND_ADDRESS_NO_PORT, Linux 4.2), so that the limit on ports applies to each pair of source and
/// destination and not to each source.
#[inline]
pub fn bind_source(socket: BorrowedFd<'_>, source: &Address) -> io::Result<()> {
    let on: libc::c_int = 1;
    // SAFETY: the kernel reads one int, `on`.
    count(Call::Setsockopt, || unsafe {
        check(libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_IP,
            libc::IP_BIND_ADDRESS_NO_PORT,
            (&raw const on).cast(),
            size_of_val(&on) as libc::socklen_t,
        ))
    })?;
    Ok(count(Call::Bind, || net::bind(socket, &source.0))?)
}

/// SO_LINGER with time 0: the close sends a reset and leaves no TIME_WAIT.
#[inline]
pub fn reset_on_close(socket: BorrowedFd<'_>) -> io::Result<()> {
    let set = || sockopt::set_socket_linger(socket, Some(Duration::ZERO));
    Ok(count(Call::Setsockopt, set)?)
}

/// Takes the pending error of a socket (SO_ERROR), such as the reason why a connect failed.
pub fn take_socket_error(socket: BorrowedFd<'_>) -> io::Result<()> {
    Ok(count(Call::Getsockopt, || sockopt::socket_error(socket))??)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{net::TcpListener, os::fd::AsFd};

    #[test]
    fn a_connection_comes_from_its_source_in_both_families() {
        for (listen, source) in [("127.0.0.1:0", "127.0.1.77"), ("[::1]:0", "::1")] {
            let Ok(listener) = TcpListener::bind(listen) else {
                eprintln!("skipped: no {listen} here");
                continue;
            };
            let destination = Address::from(listener.local_addr().unwrap());
            let source: IpAddr = source.parse().unwrap();
            let socket = tcp_socket(&destination).unwrap();
            bind_source(socket.as_fd(), &source.into()).unwrap();
            let outcome = connect(socket.as_fd(), &destination);
            if let Err(error) = outcome {
                assert_eq!(error.raw_os_error(), Some(libc::EINPROGRESS), "{error}");
            }
            let (_, peer) = listener.accept().unwrap();
            assert_eq!(peer.ip(), source);
            take_socket_error(socket.as_fd()).unwrap();
        }
    }

    #[test]
    fn a_reset_on_close_is_seen_as_a_reset() {
        use std::io::Read;
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let destination = Address::from(listener.local_addr().unwrap());
        let socket = tcp_socket(&destination).unwrap();
        reset_on_close(socket.as_fd()).unwrap();
        let _ = connect(socket.as_fd(), &destination);
        let (mut stream, _) = listener.accept().unwrap();
        drop(socket);
        let error = stream.read(&mut [0; 8]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    }
}
