//! Flags about origins: which requests go to them, and how they are asked.

use super::value;
use crate::duration;
use clap::ArgAction;
use pollux_server::config::{
    ForwardedPolicy, FrontendConfig, HandoverConfig, HostPolicy, RouteConfig,
};
use std::{num::NonZeroUsize, time::Duration};

#[derive(clap::Args)]
#[command(next_help_heading = "Origins")]
pub(super) struct OriginArgs {
    /// Forward requests to http://HOST[:PORT] or unix:PATH: with a prefix (/PREFIX=URL) all requests
    /// at and below it, without one those that match no file in DIR. May be repeated: origins of one
    /// prefix take turns, and one that fails is left out for a while. Paths are forwarded unchanged
    #[arg(long, value_name = "[/PREFIX=]URL", action = ArgAction::Append)]
    origin: Vec<RouteConfig>,

    /// Hand the connection of a request to another process on this host: with a prefix for all
    /// requests at and below it, without one for those that match no file. The process listens on a
    /// SOCK_SEQPACKET socket at PATH; each message is a connection (SCM_RIGHTS) and the bytes read from
    /// it. See docs/handover.md
    #[arg(long, value_name = "[/PREFIX=]unix:PATH", action = ArgAction::Append)]
    handover: Vec<HandoverConfig>,

    /// Host field that is sent to an origin: client (as requested), origin (from its URL) or a name
    /// [default: client]
    #[arg(long, value_name = "HOST", requires = "origin")]
    origin_host: Option<HostPolicy>,

    /// What happens to Forwarded, X-Forwarded-* and X-Real-IP of a request: replace (by what is known
    /// of the client), append (to them; behind trusted proxies), keep or remove [default: replace]
    #[arg(long, value_name = "HOW", requires = "origin")]
    forwarded: Option<ForwardedPolicy>,

    /// Name of this proxy in Via and Proxy-Status; off leaves out Via [default: pollux]
    #[arg(long, value_name = "NAME", requires = "origin")]
    via: Option<String>,

    /// Time to connect to an origin, and to wait for a free connection [default: 5s]
    #[arg(long, value_name = "TIME", requires = "origin", value_parser = duration::parse)]
    origin_connect_timeout: Option<Duration>,

    /// Time that an origin may be silent: before its response, between two parts of it, or while it
    /// accepts nothing of a body [default: 60s]
    #[arg(long, value_name = "TIME", requires = "origin", value_parser = duration::parse)]
    origin_timeout: Option<Duration>,

    /// Maximum number of connections to origins, for each worker; further requests wait [default: 1024]
    #[arg(long, value_name = "N", requires = "origin", value_parser = value::nonzero)]
    origin_connections: Option<NonZeroUsize>,

    /// Idle connections kept to each origin, for each worker [default: 32]
    #[arg(long, value_name = "N", requires = "origin")]
    origin_keep: Option<usize>,

    /// Time that an idle connection to an origin is kept [default: 60s]
    #[arg(long, value_name = "TIME", requires = "origin", value_parser = duration::parse)]
    origin_keep_timeout: Option<Duration>,
}

impl OriginArgs {
    /// The front end that the flags ask for, without a cache; none without an origin.
    pub(super) fn frontend(self) -> Option<FrontendConfig> {
        if self.origin.is_empty() && self.handover.is_empty() {
            return None;
        }
        let mut config = FrontendConfig::new(self.origin);
        config.handovers = self.handover;
        value::set(&mut config.host, self.origin_host);
        value::set(&mut config.forwarded, self.forwarded);
        value::set(&mut config.via, self.via.map(|name| (name != "off").then_some(name)));
        value::set(&mut config.connect_timeout, self.origin_connect_timeout);
        value::set(&mut config.timeout, self.origin_timeout);
        value::set(&mut config.connections, self.origin_connections);
        value::set(&mut config.keep, self.origin_keep);
        value::set(&mut config.keep_timeout, self.origin_keep_timeout);
        Some(config)
    }
}
