//! The admin listener (`--admin`): a running server's figures over HTTP, for monitoring and for people.
//!
//! | path | answers |
//! |---|---|
//! | `/` | a page for people; it needs no JavaScript, and is live where there is some |
//! | `/metrics` | Prometheus text, or OpenMetrics for a client that accepts it |
//! | `/stats.json` | the statistics line that SIGUSR1 prints with `--json` |
//! | `/events` | the page's rows once a second, as server-sent events |
//! | `/healthz` | 200 while every worker runs, else 503 |
//! | `/readyz` | 200 while connections are accepted, 503 once a stop was requested |
//!
//! It only reads, and takes GET and HEAD alone. A thread of its own accepts, and each client has a thread for as
//! long as its one request takes: a client that sends slowly or reads nothing holds nothing that a worker needs.
//! Clients are bounded (`CLIENTS_MAX` in `listener`), and so is the time that each may take.

mod exposition;
mod families;
mod listener;
mod page;
mod process;
mod request;
mod response;
mod routes;
pub mod rows;
mod snapshot;

pub(crate) use listener::Web;
pub(crate) use snapshot::{Observed, ServerInfo};
