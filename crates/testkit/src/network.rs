//! Two networks of a test's own, joined by a link that the test can cut (network_namespaces(7), veth(4)).

use crate::sys;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::{
    fs::File,
    io,
    os::fd::{AsFd, AsRawFd},
    panic::resume_unwind,
    process::Command,
    thread,
};

/// The name of the link, at both of its ends.
const LINK: &str = "link0";

/// A network namespace, which exists as long as this value or a thread or a process in it.
#[derive(Debug)]
pub struct Network {
    namespace: File,
}

impl Network {
    /// Creates a namespace whose loopback interface works.
    fn new() -> io::Result<Self> {
        let create = || {
            sys::own_network()?;
            let namespace = File::open("/proc/thread-self/ns/net")?;
            ip(&["link", "set", "lo", "up"])?;
            Ok(Self { namespace })
        };
        // Only the thread that creates a namespace moves into it, and this one ends.
        thread::spawn(create).join().unwrap_or_else(|panic| resume_unwind(panic))
    }

    /// Runs `act` in the namespace. Threads and processes that it starts are in the namespace too.
    pub fn run<T: Send>(&self, act: impl FnOnce() -> T + Send) -> T {
        let inside = || {
            let namespace = self.namespace.as_fd();
            move_into_link_name_space(namespace, Some(LinkNameSpaceType::Network))
                .expect("a namespace of this process");
            act()
        };
        thread::scope(|scope| scope.spawn(inside).join())
            .unwrap_or_else(|panic| resume_unwind(panic))
    }
}

/// Two networks and the link between them.
#[derive(Debug)]
pub struct NetworkPair {
    /// The network of the test itself, usually.
    pub near: Network,
    /// The network on the other side of the link.
    pub far: Network,
}

impl NetworkPair {
    /// The address of the near network at the link.
    pub const NEAR: &str = "10.77.0.1";
    /// The address of the far network at the link.
    pub const FAR: &str = "10.77.0.2";

    /// Creates both networks. Returns `None`, and prints the reason, where that is not permitted.
    pub fn new() -> Option<Self> {
        match Self::create() {
            Ok(pair) => Some(pair),
            Err(error) => {
                println!(
                    "SKIPPED: no network namespaces here (root and ip(8) are needed): {error}"
                );
                None
            }
        }
    }

    fn create() -> io::Result<Self> {
        let pair = Self { near: Network::new()?, far: Network::new()? };
        let far = format!("/proc/{}/fd/{}", std::process::id(), pair.far.namespace.as_raw_fd());
        let veth = ["link", "add", LINK, "type", "veth", "peer", "name", LINK, "netns", &far];
        pair.near.run(|| ip(&veth))?;
        for (network, address) in [(&pair.near, Self::NEAR), (&pair.far, Self::FAR)] {
            network.run(|| {
                ip(&["address", "add", &format!("{address}/24"), "dev", LINK])?;
                ip(&["link", "set", LINK, "up"])
            })?;
        }
        Ok(pair)
    }

    /// Cuts the link, or joins the networks again. While it is cut, packets of either side are lost;
    /// connections stay open at both ends.
    pub fn cut(&self, is_cut: bool) {
        // Only at the near end: the far network keeps its own address.
        let state = if is_cut { "down" } else { "up" };
        self.near.run(|| ip(&["link", "set", LINK, state])).expect("the link can be changed");
    }
}

fn ip(arguments: &[&str]) -> io::Result<()> {
    let output = Command::new("ip").args(arguments).output()?;
    if output.status.success() {
        return Ok(());
    }
    let why = String::from_utf8_lossy(&output.stderr);
    Err(io::Error::other(format!("ip {}: {}", arguments.join(" "), why.trim())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};
    use std::time::Duration;

    #[test]
    fn a_link_that_is_cut_carries_nothing() {
        let Some(pair) = NetworkPair::new() else { return };
        let listener = pair.far.run(|| TcpListener::bind((NetworkPair::FAR, 0)).unwrap());
        let address = listener.local_addr().unwrap();
        let connect = |network: &Network| {
            network.run(|| TcpStream::connect_timeout(&address, Duration::from_millis(500)))
        };
        assert!(connect(&pair.near).is_ok());
        pair.cut(true);
        assert!(connect(&pair.near).is_err());
        assert!(connect(&pair.far).is_ok(), "the far network itself works");
        pair.cut(false);
        assert!((0..20).any(|_| connect(&pair.near).is_ok()), "the networks are joined again");
    }
}
