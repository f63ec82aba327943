//! Flags about how much and how long: connections, requests, sizes, times.

use super::value::{self, Limit};
use crate::duration;
use pollux_server::Config;
use std::time::Duration;

#[derive(clap::Args)]
#[command(next_help_heading = "Limits")]
pub(super) struct LimitArgs {
    /// Maximum number of open connections; further connections wait in the kernel's queue [default:
    /// what RLIMIT_NOFILE allows; forking: 4096]
    #[arg(long, value_name = "N", value_parser = value::count)]
    max_connections: Option<usize>,

    /// Maximum number of requests on one connection, which is closed after them: a number, or inf
    /// [default: inf]
    #[arg(long, value_name = "N", value_parser = value::limit)]
    max_requests: Option<Limit>,

    /// Time to receive the head of a request, and again for each 16 KiB of its body [default: 20s]
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    header_timeout: Option<Duration>,

    /// Time that a connection may be idle between two requests [default: 75s]
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    keep_alive: Option<Duration>,

    /// Time that a client may take to receive each 16 KiB of a response [default: 30s]
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    send_timeout: Option<Duration>,

    /// Time for requests in progress to finish after SIGTERM or SIGINT [default: 10s]
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    grace: Option<Duration>,

    /// Maximum size of a request's header section; a larger one is answered with 431 [default: 16K]
    #[arg(long, value_name = "SIZE", value_parser = value::header_size)]
    max_header: Option<usize>,

    /// Maximum size of a request's body, or inf; a larger one is answered with 413. A guestbook takes
    /// at most 16K in any case [default: 1M]
    #[arg(long, value_name = "SIZE", value_parser = value::body_size)]
    max_body: Option<u64>,
}

impl LimitArgs {
    /// Writes the flags that were given into `config`.
    pub(super) fn apply(self, config: &mut Config) {
        config.max_connections = self.max_connections.or(config.max_connections);
        value::set(&mut config.max_requests, self.max_requests.map(|limit| limit.0));
        value::set(&mut config.timeouts.header, self.header_timeout);
        value::set(&mut config.timeouts.keep_alive, self.keep_alive);
        value::set(&mut config.timeouts.send, self.send_timeout);
        value::set(&mut config.grace, self.grace);
        value::set(&mut config.limits.header_section, self.max_header);
        value::set(&mut config.limits.body, self.max_body);
    }
}
