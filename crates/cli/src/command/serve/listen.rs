//! Flags about listening: addresses, the kernel's queue, accepting.

use super::value;
use clap::ArgAction;
use pollux_server::config::{Accepting, Config, Limit, Listen, Text};

#[derive(clap::Args)]
#[command(next_help_heading = "Listening")]
pub(super) struct ListenArgs {
    /// Address to listen on: ADDRESS:PORT, [IPV6]:PORT, :PORT (every address), unix:PATH, or
    /// systemd:NAME for a socket that systemd has opened; may be repeated. With port 0 the kernel
    /// chooses a free port [default: 127.0.0.1:8080]
    #[arg(long, short, value_name = "ADDRESS", action = ArgAction::Append)]
    listen: Vec<Text<Listen>>,

    /// Connections that the kernel queues for each listener before they are accepted (at most
    /// net.core.somaxconn) [default: 4096]
    #[arg(long, value_name = "N")]
    backlog: Option<u32>,

    /// Maximum number of connections accepted at one event: a number, or inf [default: 64]
    #[arg(long, value_name = "N")]
    accept_limit: Option<Limit>,

    /// How the members of a pool get their connections: blocking (all block in accept), exclusive
    /// (epoll with EPOLLEXCLUSIVE), reuseport (one listener each, SO_REUSEPORT) or mutex (one at a
    /// time waits, holding a lock) [default: blocking; exclusive with several listeners]
    #[arg(long, value_name = "WAY")]
    accept: Option<Text<Accepting>>,
}

impl ListenArgs {
    /// Writes the flags that were given into `config`.
    pub(super) fn apply(self, config: &mut Config) {
        value::replace(&mut config.listen, self.listen);
        value::set(&mut config.backlog, self.backlog);
        value::set(&mut config.accept_limit, self.accept_limit);
        value::set_some(&mut config.accept, self.accept);
    }
}
