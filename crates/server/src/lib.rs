//! The static front end of Pollux: an HTTP server that runs on any mechanism of `pollux-event`.
//!
//! # Guide
//!
//! A request's way, from the outside in:
//!
//! 1. [`worker`](Server): threads, each with its own listeners, file table, connections and cache,
//!    so that nothing on a request's way is shared.
//! 2. `engine::readiness`: the loop. Waits on the mechanism, receives, sends, accepts. It is the
//!    only part that does I/O on sockets, and is monomorphised per mechanism.
//! 3. `connection`: the protocol's state without I/O. Bytes in, output out, and what to wait for;
//!    any other engine or architecture can drive it. An idle connection is a 48-byte slot of
//!    `table`, in which `timers` run their lists too.
//! 4. `handler`: a request to a response, written into an `outbox`.
//! 5. `site`: a path to a file, through a bounded cache in which heads are laid out beforehand.
//!
//! ```no_run
//! use pollux_server::{Config, Server};
//!
//! let server = Server::start(Config::new("public"))?;
//! println!("listening on {}", server.addresses()[0]);
//! let statistics = server.stop(std::time::Duration::from_secs(5))?;
//! println!("{} requests", statistics.requests);
//! # Ok::<(), anyhow::Error>(())
//! ```

mod clock;
pub mod config;
mod connection;
mod engine;
mod handler;
mod limits;
mod listener;
mod log;
mod outbox;
mod run;
mod server;
mod service;
mod site;
pub mod statistics;
mod table;
mod timers;
mod worker;

pub use config::Config;
pub use run::{Report, run};
pub use server::Server;
pub use statistics::Statistics;
pub use worker::WorkerInfo;
