//! The admin listener (`--admin`): the statistics of a running server over HTTP, for monitoring and
//! for people.
//!
//! | path | answers |
//! |---|---|
//! | `/` | a page for people; it needs no JavaScript, and updates itself if JavaScript is on |
//! | `/metrics` | Prometheus text, or OpenMetrics for a client that accepts it |
//! | `/stats.json` | the statistics line that SIGUSR1 prints with `--json` |
//! | `/events` | the page's rows once a second, as server-sent events |
//! | `/healthz` | 503 if a worker has ended that no stop was requested of, else 200 |
//! | `/readyz` | 200 while connections are accepted, 503 once a stop was requested |
//!
//! It only reads, and accepts only GET and HEAD. A separate thread accepts connections, and each
//! client has a thread during its one request: a client that sends slowly or reads nothing occupies
//! no resource of a worker. The number of clients is bounded (`CLIENTS_MAX` in `listener`), and so
//! is the time of each client.

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
pub(crate) use snapshot::{ServerInfo, ServerView};
