//! Ports of loopback that the kernel gives to no other process.

use socket2::{Domain, Socket, Type};
use std::net::{Ipv4Addr, SocketAddr};

/// A port of 127.0.0.1 without a listener.
///
/// While this value exists, the kernel does not choose the port for other sockets. A server that binds
/// to the port by number and with SO_REUSEADDR gets it: bind(2) allows that while no socket listens.
#[derive(Debug)]
pub struct Port {
    socket: Socket,
}

impl Port {
    /// Reserves a port that the kernel chooses.
    pub fn reserve() -> Self {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
        socket.set_reuse_address(true).expect("set SO_REUSEADDR");
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        socket.bind(&any.into()).expect("bind to a free port");
        Self { socket }
    }

    /// Returns the port with its IP address.
    pub fn address(&self) -> SocketAddr {
        let address = self.socket.local_addr().expect("the socket's address");
        address.as_socket().expect("an address of IPv4")
    }

    /// Returns the number of the port.
    pub fn number(&self) -> u16 {
        self.address().port()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        io::ErrorKind,
        net::{TcpListener, TcpStream},
        time::{Duration, Instant},
    };

    const PATIENCE: Duration = Duration::from_secs(10);

    /// Listens at `address`, and retries while it is in use. Another test of this process may fork at
    /// this moment: until its child has called exec(2), the child holds the listener of the previous
    /// iteration.
    fn listen(address: SocketAddr) -> TcpListener {
        let begun = Instant::now();
        loop {
            match TcpListener::bind(address) {
                Err(error)
                    if error.kind() == ErrorKind::AddrInUse && begun.elapsed() < PATIENCE =>
                {
                    std::thread::yield_now();
                }
                outcome => return outcome.unwrap(),
            }
        }
    }

    #[test]
    fn a_reserved_port_has_no_listener_until_a_test_listens() {
        let port = Port::reserve();
        let refused = TcpStream::connect(port.address()).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
        // Twice, because a test may restart its server.
        for _ in 0..2 {
            let _listener = listen(port.address());
            TcpStream::connect(port.address()).unwrap();
        }
    }
}
