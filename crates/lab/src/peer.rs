//! Other servers, configured as their documentation recommends: one worker, no access log, and connections
//! that persist for as many requests as the server allows.
//!
//! All these configurations are here, so that the laboratory's experiments and the bench (`pollux-bench`)
//! use the same ones. A peer that is not installed is reported as missing, and no other server replaces it.

mod apache;
mod h2o;
mod haproxy;
mod input;
mod lighttpd;
mod nginx;
mod port;
mod program;
mod squid;
#[cfg(test)]
mod tests;
mod traffic_server;
mod varnish;

pub use input::{PeerSetup, PeerTls, Role, TlsFiles};
pub use port::Port;
pub use program::{Peer, version_line};

use anyhow::bail;
use input::{CommandLine, ConfigInput};

/// A peer that is ready to be started: its configuration files exist.
#[derive(Debug)]
pub struct SetUp {
    /// The program with its arguments. It stays in the foreground and ends with its workers on SIGTERM.
    pub program: CommandLine,
    /// The port on which it will listen, reserved until then.
    pub port: Port,
    /// Whether it uses HTTPS on this port.
    pub is_tls: bool,
}

impl Peer {
    /// Writes the peer's configuration.
    ///
    /// # Errors
    /// When it is not installed, does not support the role, or its files cannot be written.
    pub fn set_up(self, role: Role, setup: PeerSetup<'_>) -> anyhow::Result<SetUp> {
        let executable = self.program()?;
        let can_have_tls = self.has_tls() && role == Role::Files;
        if setup.tls.is_some() && !can_have_tls {
            bail!("{} is not set up for https in this role here", self.name());
        }
        let port = Port::reserve()?;
        let input = ConfigInput { peer: self, executable, address: port.address(), role, setup };
        let program = match self {
            Self::Nginx => nginx::set_up(&input),
            Self::H2o => h2o::set_up(&input),
            Self::Lighttpd => lighttpd::set_up(&input),
            Self::ApachePrefork | Self::ApacheWorker | Self::ApacheEvent => apache::set_up(&input),
            Self::Varnish => varnish::set_up(&input),
            Self::Haproxy => haproxy::set_up(&input),
            Self::Squid => squid::set_up(&input),
            Self::TrafficServer => traffic_server::set_up(&input),
        }?;
        Ok(SetUp { program, port, is_tls: setup.tls.is_some() })
    }
}
