//! Load balancers whose connections begin with a PROXY protocol header.

use super::Network;
use std::{fmt, net::IpAddr, str::FromStr};

/// A source of such connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProxySource {
    /// From a network.
    Network(Network),
    /// From a UNIX socket: the permissions of its file decide which processes may connect.
    Unix,
}

impl ProxySource {
    /// Returns whether this source includes connections from this address (`None`: from a UNIX
    /// socket).
    pub(crate) fn has(&self, address: Option<IpAddr>) -> bool {
        match (self, address) {
            (Self::Network(network), Some(address)) => network.contains(address),
            (Self::Unix, None) => true,
            _ => false,
        }
    }
}

impl FromStr for ProxySource {
    type Err = String;

    /// Parses a network, or `unix`.
    fn from_str(text: &str) -> Result<Self, String> {
        if text == "unix" { Ok(Self::Unix) } else { text.parse().map(Self::Network) }
    }
}

impl fmt::Display for ProxySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Network(network) => network.fmt(f),
            Self::Unix => f.write_str("unix"),
        }
    }
}
