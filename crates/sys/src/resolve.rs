//! Resolves names of hosts.

use std::{
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs},
};

/// The addresses of `host`, a name or an address, from the C library's resolver; blocks as long as the
/// resolver does. `localhost` is this host even if neither `/etc/hosts` nor a name server defines it,
/// as on a machine without configuration (RFC 6761 §6.3).
///
/// # Errors
/// The errors of the resolver: no such name, no name server.
pub fn resolve(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    let found = (host, port).to_socket_addrs().map(Iterator::collect);
    if found.is_err() && is_localhost(host) {
        let both = [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
        return Ok(both.map(|address| SocketAddr::new(address, port)).to_vec());
    }
    found
}

fn is_localhost(host: &str) -> bool {
    let host = host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase();
    host == "localhost" || host.ends_with(".localhost")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn localhost_is_this_host_whatever_the_machine_knows() {
        for name in ["localhost", "LocalHost.", "a.localhost"] {
            let found = resolve(name, 80).unwrap();
            assert!(!found.is_empty() && found.iter().all(|address| address.ip().is_loopback()));
        }
        assert_eq!(resolve("127.0.0.7", 80).unwrap(), ["127.0.0.7:80".parse().unwrap()]);
        assert!(!is_localhost("notlocalhost") && !is_localhost("localhost.example"));
        // Too long for a name (RFC 1035 §2.3.4): no query is sent.
        assert!(resolve(&format!("{}.invalid", "a".repeat(64)), 80).is_err());
    }
}
