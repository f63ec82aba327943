//! Which clients are served, and how much each address may have: allow and deny lists, limits per
//! client address.
//!
//! [`Guard`] is shared by all workers and decides. [`ClientTable`] is a worker's own: it remembers the
//! address of each connection. Both exist only where something is configured, so that a server without
//! these settings spends nothing on them.

mod access;
mod guard;
mod holders;
mod network;
mod rate;
mod sources;
mod table;

pub use network::Network;
pub use rate::Rate;
pub use sources::ProxySource;

pub(crate) use guard::{Guard, Refused};
pub(crate) use holders::{Held, most_held_first};
pub(crate) use network::client_key;
pub(crate) use table::ClientTable;

use std::num::NonZeroU32;

/// The most networks in all lists of one server.
pub const NETWORKS_MAX: usize = 65_536;

/// The most sources of `--proxy-protocol`: they are searched one by one.
pub const PROXY_SOURCES_MAX: usize = 256;

/// What is configured about clients.
#[derive(Clone, Debug, Default)]
pub struct ClientConfig {
    /// Networks whose clients are served; with one at least, all others are refused.
    pub allow: Vec<Network>,
    /// Networks whose clients are refused. The longest prefix decides.
    pub deny: Vec<Network>,
    /// The most open connections of one address.
    pub connections: Option<NonZeroU32>,
    /// New connections of one address.
    pub accept_rate: Option<Rate>,
    /// Requests of one address.
    pub request_rate: Option<Rate>,
    /// Whose connections begin with a PROXY protocol header.
    pub proxy_protocol: Vec<ProxySource>,
}

impl ClientConfig {
    /// Whether one of the limits per address is set.
    pub fn has_limits(&self) -> bool {
        self.connections.is_some() || self.accept_rate.is_some() || self.request_rate.is_some()
    }

    /// Whether the lists make sense together.
    ///
    /// # Errors
    /// Names the network that is on both lists, or says that there are too many.
    pub fn check(&self) -> anyhow::Result<()> {
        anyhow::ensure!(
            self.proxy_protocol.len() <= PROXY_SOURCES_MAX,
            "--proxy-protocol names {} sources: {PROXY_SOURCES_MAX} are the most",
            self.proxy_protocol.len()
        );
        let count = self.allow.len() + self.deny.len();
        anyhow::ensure!(
            count <= NETWORKS_MAX,
            "--allow and --deny have {count} networks together: {NETWORKS_MAX} are the most"
        );
        let denied: std::collections::HashSet<_> = self.deny.iter().collect();
        if let Some(both) = self.allow.iter().find(|network| denied.contains(network)) {
            anyhow::bail!("{both} is in --allow and in --deny: remove it from one of them");
        }
        Ok(())
    }
}
