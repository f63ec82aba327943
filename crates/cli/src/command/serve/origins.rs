//! Flags about origins: which requests go to them, and how these are forwarded.

use super::value;
use clap::ArgAction;
use pollux_server::config::{
    Config, ForwardedPolicy, HandoverConfig, HostPolicy, ProxyVersion, RouteConfig, Text, Time,
};
use std::{num::NonZeroUsize, path::PathBuf};

#[derive(clap::Args)]
#[command(next_help_heading = "Origins")]
pub(super) struct OriginArgs {
    /// Forward requests to http://HOST[:PORT], https://HOST[:PORT] or unix:PATH: with a prefix
    /// (/PREFIX=URL) all requests at and below it, without one those that match no file in DIR. May
    /// be repeated: origins of one prefix take turns, and while one fails, the others are
    /// preferred. Paths are forwarded unchanged
    #[arg(long, value_name = "[/PREFIX=]URL", action = ArgAction::Append)]
    pub(super) origin: Vec<Text<RouteConfig>>,

    /// Hand the connection of a request to another process on this host: with a prefix for all
    /// requests at and below it, without one for those that match no file. The process listens on a
    /// SOCK_SEQPACKET socket at PATH; each message is a connection (SCM_RIGHTS) and the bytes read from
    /// it. See docs/handover.md
    #[arg(long, value_name = "[/PREFIX=]unix:PATH", action = ArgAction::Append)]
    pub(super) handover: Vec<Text<HandoverConfig>>,

    /// Host field that is sent to an origin: client (as requested), origin (from its URL) or a name
    /// [default: client]
    #[arg(long, value_name = "HOST")]
    origin_host: Option<Text<HostPolicy>>,

    /// What happens to Forwarded, X-Forwarded-* and X-Real-IP of a request: replace (write what
    /// this server knows of the client), append (add to them; only behind a trusted proxy), keep or
    /// remove [default: replace]
    #[arg(long, value_name = "HOW")]
    forwarded: Option<Text<ForwardedPolicy>>,

    /// Begin each connection to an origin with a PROXY protocol header of this version, which has the
    /// client's address: 1 or 2. No connection is kept for further requests then
    #[arg(long, value_name = "VERSION")]
    origin_proxy_protocol: Option<ProxyVersion>,

    /// Trust the authorities in FILE (PEM) for the certificates of https origins, and not those that the
    /// system trusts
    #[arg(long, value_name = "FILE")]
    origin_ca: Option<PathBuf>,

    /// Name of this proxy in Via and Proxy-Status; off leaves out Via [default: pollux]
    #[arg(long, value_name = "NAME")]
    via: Option<String>,

    /// Time to connect to an origin, and to wait for a free connection [default: 5s]
    #[arg(long, value_name = "TIME")]
    origin_connect_timeout: Option<Time>,

    /// Time that an origin may be silent: before its response, between two parts of it, or while it
    /// accepts nothing of a body [default: 60s]
    #[arg(long, value_name = "TIME")]
    origin_timeout: Option<Time>,

    /// Maximum number of connections to origins, for each worker; further requests wait [default: 1024]
    #[arg(long, value_name = "N", value_parser = value::nonzero)]
    origin_connections: Option<NonZeroUsize>,

    /// Idle connections kept to each origin, for each worker [default: 32]
    #[arg(long, value_name = "N")]
    origin_keep: Option<usize>,

    /// Time that an idle connection to an origin is kept [default: 60s]
    #[arg(long, value_name = "TIME")]
    origin_keep_timeout: Option<Time>,
}

impl OriginArgs {
    /// Writes the flags that were given into `config`.
    pub(super) fn apply(self, config: &mut Config) {
        for site in &mut config.site {
            value::replace(&mut site.origin, self.origin.clone());
            value::replace(&mut site.handover, self.handover.clone());
            value::set(&mut site.origin_host, self.origin_host.clone());
            value::set_some(&mut site.origin_proxy_protocol, self.origin_proxy_protocol);
            value::set_some(&mut site.origin_ca, self.origin_ca.clone());
            value::set(&mut site.forwarded, self.forwarded.clone());
            value::set(&mut site.via, self.via.clone());
            value::set(&mut site.origin_connect_timeout, self.origin_connect_timeout);
            value::set(&mut site.origin_timeout, self.origin_timeout);
            value::set(&mut site.origin_connections, self.origin_connections);
            value::set(&mut site.origin_keep, self.origin_keep);
            value::set(&mut site.origin_keep_timeout, self.origin_keep_timeout);
        }
    }
}
