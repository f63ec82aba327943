//! Outgoing TCP connections: socket, bind to a source, connect.

use super::{Call, check, count};
use std::{
    io, mem,
    net::{IpAddr, SocketAddr},
    os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
};

/// A socket address in the kernel's form, made once and used for many connections.
#[derive(Clone, Copy)]
pub struct Address {
    storage: libc::sockaddr_storage,
    len: libc::socklen_t,
}

impl Address {
    /// The address family: AF_INET or AF_INET6.
    pub fn family(&self) -> libc::c_int {
        libc::c_int::from(self.storage.ss_family)
    }
}

impl From<SocketAddr> for Address {
    fn from(address: SocketAddr) -> Self {
        // SAFETY: all-zero is a valid sockaddr_storage.
        let mut storage: libc::sockaddr_storage = unsafe { mem::zeroed() };
        let place = (&raw mut storage).cast::<u8>();
        let len = match address {
            SocketAddr::V4(v4) => {
                let raw = libc::sockaddr_in {
                    sin_family: libc::AF_INET as libc::sa_family_t,
                    sin_port: v4.port().to_be(),
                    sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(v4.ip().octets()) },
                    sin_zero: [0; 8],
                };
                // SAFETY: sockaddr_storage is large enough and aligned for every address family.
                unsafe { place.cast::<libc::sockaddr_in>().write(raw) };
                mem::size_of::<libc::sockaddr_in>()
            }
            SocketAddr::V6(v6) => {
                let raw = libc::sockaddr_in6 {
                    sin6_family: libc::AF_INET6 as libc::sa_family_t,
                    sin6_port: v6.port().to_be(),
                    sin6_flowinfo: v6.flowinfo(),
                    sin6_addr: libc::in6_addr { s6_addr: v6.ip().octets() },
                    sin6_scope_id: v6.scope_id(),
                };
                // SAFETY: as above.
                unsafe { place.cast::<libc::sockaddr_in6>().write(raw) };
                mem::size_of::<libc::sockaddr_in6>()
            }
        };
        Self { storage, len: len as libc::socklen_t }
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
    let kind = libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: takes no pointer; a descriptor it returns is new and ours.
    count(Call::Socket, || unsafe {
        check(libc::socket(destination.family(), kind, 0)).map(|fd| OwnedFd::from_raw_fd(fd))
    })
}

/// connect(2). On a non-blocking socket EINPROGRESS is the rule: the handshake goes on, and a
/// send tells (EAGAIN while it does).
#[inline]
pub fn connect(socket: BorrowedFd<'_>, destination: &Address) -> io::Result<()> {
    // SAFETY: the kernel reads `len` bytes of the storage, which `From` has initialised.
    count(Call::Connect, || unsafe {
        check(libc::connect(
            socket.as_raw_fd(),
            (&raw const destination.storage).cast(),
            destination.len,
        ))
        .map(drop)
    })
}

/// bind(2) to the source address of a connection to come. The port is left to connect(2)
/// (IP_BIND_ADDRESS_NO_PORT, Linux 4.2), so that the port budget counts per pair of source and
/// destination and not per source.
#[inline]
pub fn bind_source(socket: BorrowedFd<'_>, source: &Address) -> io::Result<()> {
    set_socket_option(socket, libc::IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT, 1i32)?;
    // SAFETY: the kernel reads `len` bytes of the storage, which `From` has initialised.
    count(Call::Bind, || unsafe {
        check(libc::bind(socket.as_raw_fd(), (&raw const source.storage).cast(), source.len))
            .map(drop)
    })
}

/// SO_LINGER with time 0: the close sends a reset and leaves no TIME_WAIT behind.
#[inline]
pub fn reset_on_close(socket: BorrowedFd<'_>) -> io::Result<()> {
    let linger = libc::linger { l_onoff: 1, l_linger: 0 };
    set_socket_option(socket, libc::SOL_SOCKET, libc::SO_LINGER, linger)
}

/// setsockopt(2) with a plain value.
#[inline]
pub(super) fn set_socket_option<T: Copy>(
    socket: BorrowedFd<'_>,
    level: libc::c_int,
    name: libc::c_int,
    value: T,
) -> io::Result<()> {
    // SAFETY: the kernel reads `size_of::<T>()` bytes of `value`.
    count(Call::Setsockopt, || unsafe {
        check(libc::setsockopt(
            socket.as_raw_fd(),
            level,
            name,
            (&raw const value).cast(),
            mem::size_of::<T>() as libc::socklen_t,
        ))
        .map(drop)
    })
}

/// Takes the pending error of a socket (SO_ERROR), such as why a connect failed.
pub fn take_socket_error(socket: BorrowedFd<'_>) -> io::Result<()> {
    let mut error: libc::c_int = 0;
    let mut len = mem::size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes into `error`.
    count(Call::Getsockopt, || unsafe {
        check(libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ERROR,
            (&raw mut error).cast(),
            &mut len,
        ))
    })?;
    if error == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(error)) }
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
