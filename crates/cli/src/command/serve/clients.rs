//! Flags about which clients are served, and about the limits of each address.

use super::value;
use pollux_server::config::{Config, Limit, Network, ProxySource, Rate, Text};

#[derive(clap::Args)]
#[command(next_help_heading = "Clients")]
pub(super) struct ClientArgs {
    /// Serve clients of this network only, such as 192.0.2.0/24; may be repeated. The longest prefix of
    /// --allow and --deny decides
    #[arg(long, value_name = "NETWORK")]
    allow: Vec<Text<Network>>,

    /// Close connections of clients of this network; may be repeated
    #[arg(long, value_name = "NETWORK")]
    deny: Vec<Text<Network>>,

    /// Read a PROXY protocol header (version 1 or 2) at the beginning of each connection from this
    /// network, or unix for UNIX sockets; the client's address is what the header says. Only for load
    /// balancers that send it; may be repeated
    #[arg(long, value_name = "NETWORK")]
    proxy_protocol: Vec<Text<ProxySource>>,

    /// Maximum number of open connections of one client address (IPv4 address or IPv6 /64); further
    /// ones are closed. A number, or inf [default: inf]
    #[arg(long, value_name = "N")]
    limit_connections_per_address: Option<Limit>,

    /// New connections that one client address may make per second (N or N/s) or per minute (N/m), and
    /// how many at once [default: unlimited; BURST: N]
    #[arg(long, value_name = "N[/s|/m][:BURST]")]
    limit_accept_rate: Option<Text<Rate>>,

    /// Requests that one client address may send per second (N or N/s) or per minute (N/m), and how
    /// many at once; further ones are answered with 429 and Retry-After [default: unlimited; BURST: N]
    #[arg(long, value_name = "N[/s|/m][:BURST]")]
    limit_request_rate: Option<Text<Rate>>,
}

impl ClientArgs {
    /// Writes the flags that were given into `config`.
    pub(super) fn apply(self, config: &mut Config) {
        value::replace(&mut config.allow, self.allow);
        value::replace(&mut config.deny, self.deny);
        value::replace(&mut config.proxy_protocol, self.proxy_protocol);
        value::set(&mut config.limit_connections_per_address, self.limit_connections_per_address);
        value::set_some(&mut config.limit_accept_rate, self.limit_accept_rate);
        value::set_some(&mut config.limit_request_rate, self.limit_request_rate);
    }
}
