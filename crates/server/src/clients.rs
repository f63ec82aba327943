//! Access control and limits for clients: allow and deny lists, and limits for each client address.
//!
//! All workers share [`ClientLimits`], which decides; processes share the counts in it. Each worker has its own [`ClientTable`] with the
//! address of each connection. Both exist only if something is configured, so that a server without
//! these settings has no cost.

mod access;
mod guard;
mod network;
mod rate;
mod shared;
mod sources;
mod table;

pub use network::Network;
pub use rate::Rate;
pub use sources::ProxySource;

use guard::ADDRESSES_MAX;
pub(crate) use guard::{ClientLimits, RefusalReason};
pub(crate) use network::client_key;
pub(crate) use table::ClientTable;

use std::num::NonZeroU32;

/// The maximum number of networks in all lists of one server.
pub const NETWORKS_MAX: usize = 65_536;

/// The maximum number of sources of `--proxy-protocol`; the list is searched linearly.
pub const PROXY_SOURCES_MAX: usize = 256;

/// The settings about clients.
#[derive(Clone, Debug, Default)]
pub struct ClientConfig {
    /// Networks whose clients are served. If there is at least one, all other clients are refused.
    pub allow: Vec<Network>,
    /// Networks whose clients are refused. The longest prefix decides.
    pub deny: Vec<Network>,
    /// The maximum number of open connections of one address.
    pub connections: Option<NonZeroU32>,
    /// The maximum rate of new connections of one address.
    pub accept_rate: Option<Rate>,
    /// The maximum rate of requests of one address.
    pub request_rate: Option<Rate>,
    /// The sources whose connections begin with a PROXY protocol header.
    pub proxy_protocol: Vec<ProxySource>,
}

impl ClientConfig {
    /// Returns whether one of the limits for each address is set.
    pub fn has_limits(&self) -> bool {
        self.connections.is_some() || self.accept_rate.is_some() || self.request_rate.is_some()
    }

    /// Checks that the lists are valid together.
    ///
    /// # Errors
    /// The message names the network that is on both lists, or says that there are too many.
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
