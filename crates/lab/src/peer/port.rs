//! The port of a server that needs its number in advance.

use rustix::net;
use std::{
    net::{Ipv4Addr, SocketAddr, SocketAddrV4},
    os::fd::OwnedFd,
};

/// A port of 127.0.0.1 for a server that needs its port number in advance.
///
/// As long as this value exists, the kernel gives the port to no other socket that binds to port 0. After
/// an early release, another server could take the port before the intended one listens. A server that
/// binds to the port with SO_REUSEADDR, as all servers here do, still gets it: bind(2) allows that as long
/// as no socket listens on the port.
#[derive(Debug)]
pub struct Port {
    _socket: OwnedFd,
    address: SocketAddr,
}

impl Port {
    /// Reserves a port that the kernel chooses.
    ///
    /// # Errors
    /// Those of socket(2) and bind(2).
    pub fn reserve() -> anyhow::Result<Self> {
        let (family, kind) = (net::AddressFamily::INET, net::SocketType::STREAM);
        let socket = net::socket_with(family, kind, net::SocketFlags::CLOEXEC, None)?;
        net::sockopt::set_socket_reuseaddr(&socket, true)?;
        net::bind(&socket, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0))?;
        let address = SocketAddr::try_from(net::getsockname(&socket)?)?;
        Ok(Self { _socket: socket, address })
    }

    /// Returns the address with this port.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}
