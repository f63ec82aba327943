//! Flags about limits: connections, requests, sizes, times.

use super::value;
use clap::ValueEnum;
use pollux_server::config::{Config, IdleEviction, Limit, Size, SizeLimit, Time};

#[derive(clap::Args)]
#[command(next_help_heading = "Limits")]
pub(super) struct LimitArgs {
    /// Maximum number of open connections; further connections wait in the kernel's queue [default:
    /// what RLIMIT_NOFILE allows; forking: 4096]
    #[arg(long, value_name = "N", value_parser = value::count)]
    max_connections: Option<usize>,

    /// At --max-connections, or when every thread or process of a pool has a connection, close one
    /// that is idle between two requests to let a new one in: of the client address that has most,
    /// the one that has been idle longest. on or off [default: on]
    #[arg(long, value_name = "WHETHER")]
    idle_eviction: Option<IdleEvictionArg>,

    /// Maximum number of requests on one connection, which is closed after them: a number, or inf
    /// [default: inf]
    #[arg(long, value_name = "N")]
    max_requests: Option<Limit>,

    /// Time to receive the head of a request, and again for each 16 KiB of its body [default: 20s]
    #[arg(long, value_name = "TIME")]
    header_timeout: Option<Time>,

    /// Time that a connection may be idle between two requests [default: 75s]
    #[arg(long, value_name = "TIME")]
    keep_alive: Option<Time>,

    /// Time that a client may take to receive each 16 KiB of a response [default: 30s]
    #[arg(long, value_name = "TIME")]
    send_timeout: Option<Time>,

    /// Time for requests in progress to finish after SIGTERM or SIGINT [default: 10s]
    #[arg(long, value_name = "TIME")]
    grace: Option<Time>,

    /// Time for requests in progress to finish after a new process has taken over (`pollux ctl
    /// upgrade`, SIGUSR2) [default: 10m]
    #[arg(long, value_name = "TIME")]
    drain: Option<Time>,

    /// Maximum size of a request's header section; a larger one is answered with 431 [default: 16K]
    #[arg(long, value_name = "SIZE")]
    max_header: Option<Size>,

    /// Maximum size of a request's body, or inf; a larger one is answered with 413. A guestbook takes
    /// at most 16K in any case [default: 1M]
    #[arg(long, value_name = "SIZE")]
    max_body: Option<SizeLimit>,
}

impl LimitArgs {
    /// Writes the flags that were given into `config`.
    pub(super) fn apply(self, config: &mut Config) {
        value::set_some(&mut config.max_connections, self.max_connections);
        value::set(&mut config.idle_eviction, self.idle_eviction.map(Into::into));
        value::set(&mut config.max_requests, self.max_requests);
        value::set(&mut config.header_timeout, self.header_timeout);
        value::set(&mut config.keep_alive, self.keep_alive);
        value::set(&mut config.send_timeout, self.send_timeout);
        value::set(&mut config.grace, self.grace);
        value::set(&mut config.drain, self.drain);
        value::set(&mut config.max_header, self.max_header);
        for site in &mut config.site {
            value::set(&mut site.max_body, self.max_body);
        }
    }
}

#[derive(Clone, Copy, ValueEnum)]
enum IdleEvictionArg {
    On,
    Off,
}

impl From<IdleEvictionArg> for IdleEviction {
    fn from(arg: IdleEvictionArg) -> Self {
        match arg {
            IdleEvictionArg::On => Self::On,
            IdleEvictionArg::Off => Self::Off,
        }
    }
}
