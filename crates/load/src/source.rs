//! Source addresses of the connections.
//!
//! Each connection needs a port of its own per pair of source and destination, and the range has about
//! 28,000 ports (ip_local_port_range). With several sources there are several times as many.

use anyhow::{Context, Error, Result, bail, ensure};
use pollux_sys::Address;
use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    str::FromStr,
};

/// A range of source addresses, used in rotation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sources {
    first: IpAddr,
    /// The number of addresses, at most 2^32.
    count: u64,
}

impl FromStr for Sources {
    type Err = Error;

    /// `127.0.1.5`, or a network `127.0.1.0/24`. A network's first and last IPv4 address are omitted,
    /// unless it is a /31 or /32 (RFC 3021).
    fn from_str(text: &str) -> Result<Self> {
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix)),
            None => (text, None),
        };
        let first: IpAddr = address
            .parse()
            .with_context(|| format!("--source {text}: {address:?} is not an IP address"))?;
        let bits = if first.is_ipv4() { 32 } else { 128 };
        let prefix = match prefix {
            None => bits,
            Some(prefix) => prefix
                .parse()
                .ok()
                .filter(|&prefix| prefix <= bits)
                .with_context(|| format!("--source {text}: the prefix goes from 0 to {bits}"))?,
        };
        let host_bits = bits - prefix;
        let count = 1u64 << host_bits.min(32);
        Ok(match first {
            IpAddr::V4(v4) => {
                let network = u32::from(v4) & u32::MAX.checked_shl(host_bits).unwrap_or(0);
                let edges = if host_bits >= 2 { 1 } else { 0 };
                let first = Ipv4Addr::from(network + edges).into();
                Self { first, count: count - 2 * u64::from(edges) }
            }
            IpAddr::V6(v6) => {
                let network = u128::from(v6) & u128::MAX.checked_shl(host_bits).unwrap_or(0);
                Self { first: Ipv6Addr::from(network).into(), count }
            }
        })
    }
}

impl Sources {
    /// The number of addresses.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The address at `index`, modulo their number.
    #[inline]
    pub fn get(&self, index: u64) -> IpAddr {
        let step = index % self.count;
        match self.first {
            IpAddr::V4(v4) => Ipv4Addr::from(u32::from(v4).wrapping_add(step as u32)).into(),
            IpAddr::V6(v6) => Ipv6Addr::from(u128::from(v6).wrapping_add(step.into())).into(),
        }
    }

    /// Whether `destination` has the family of these addresses.
    pub fn has_family_of(&self, destination: IpAddr) -> bool {
        self.first.is_ipv4() == destination.is_ipv4()
    }

    /// Tries to bind the first and the last address, so that a run does not begin with sources that
    /// this host does not have.
    ///
    /// # Errors
    /// The address cannot be bound (the error names it and how to add it); the family differs from that
    /// of `destination`.
    pub fn check(&self, destination: IpAddr) -> Result<()> {
        ensure!(
            self.has_family_of(destination),
            "--source {} and the server's address {destination} are of different families",
            self.first
        );
        for index in [0, self.count - 1] {
            let source = self.get(index);
            let socket = pollux_sys::tcp_socket(&Address::from(source))?;
            let bound = pollux_sys::bind_source(std::os::fd::AsFd::as_fd(&socket), &source.into());
            if let Err(error) = bound {
                bail!(
                    "--source: {source} is not an address of this host ({error}); \
                     `ip route add local NETWORK dev lo` adds a whole network, and all of \
                     127.0.0.0/8 is there already"
                );
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sources(text: &str) -> Sources {
        text.parse().unwrap()
    }

    #[test]
    fn a_network_gives_its_hosts_in_turn() {
        let net = sources("127.0.1.77/24");
        assert_eq!(net.count(), 254);
        assert_eq!(net.get(0).to_string(), "127.0.1.1");
        assert_eq!(net.get(253).to_string(), "127.0.1.254");
        assert_eq!(net.get(254).to_string(), "127.0.1.1");
        assert_eq!(sources("10.0.0.4/31").count(), 2);
        assert_eq!(sources("10.0.0.4/31").get(1).to_string(), "10.0.0.5");
        assert_eq!(sources("10.0.0.4").count(), 1);
        assert_eq!(sources("0.0.0.0/0").get(0).to_string(), "0.0.0.1");
        assert_eq!(sources("fd00::/64").get(3).to_string(), "fd00::3");
        assert_eq!(sources("::1").get(9).to_string(), "::1");
    }

    #[test]
    fn nonsense_is_named() {
        for text in ["", "localhost", "127.0.0.1/33", "127.0.0.1/x", "::1/129"] {
            let error = text.parse::<Sources>().unwrap_err().to_string();
            assert!(error.contains("--source"), "{error}");
        }
    }

    #[test]
    fn a_foreign_address_is_refused_before_the_run() {
        let loopback: IpAddr = "127.0.0.1".parse().unwrap();
        sources("127.0.9.0/24").check(loopback).unwrap();
        let error = sources("192.0.2.0/24").check(loopback).unwrap_err().to_string();
        assert!(error.contains("192.0.2.1") && error.contains("ip route"), "{error}");
        assert!(sources("::1").check(loopback).is_err());
    }
}
