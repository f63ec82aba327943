//! The static front end of Pollux: an HTTP server that runs on any mechanism of `pollux-event`.
//!
//! # Guide
//!
//! The way of a request, from the socket to the response:
//!
//! 1. [`worker`](Server): threads, each with its own listeners, connections and index of files, and
//!    where the program allows it a file table, so that a request changes nothing that is shared.
//! 2. `engine::event`: the loop. Waits on the mechanism, receives, sends, accepts. It is the
//!    only part that does I/O on sockets, and is monomorphised per mechanism.
//!    `engine::blocking` is the other one: one connection at a time, for the architectures
//!    (`architecture`) in which a thread or a process serves one.
//! 3. `protocol`: a connection's state without I/O. Bytes in, events out, and what is needed next;
//!    it knows no application. An idle connection is a 48-byte slot of `table`, in which `timers`
//!    run their lists too.
//! 4. `service`: the service, into an `outbox` of pieces. `Done` at once, or later.
//!    `service::site` is the static one: a path to a file, through a bounded cache in which
//!    heads are written beforehand; threads share the contents.
//!
//! ```no_run
//! use pollux_server::{Config, Server};
//!
//! let server = Server::start(Config::new("public"))?;
//! println!("listening on {}", server.addresses()[0]);
//! let statistics = server.stop(std::time::Duration::from_secs(5))?;
//! println!("{} requests", statistics.count(pollux_server::stats::Counter::Requests));
//! # Ok::<(), anyhow::Error>(())
//! ```

pub mod admin;
mod architecture;
mod clients;
pub mod config;
mod engine;
mod log;
mod protocol;
mod reactor;
mod reload;
mod run;
pub mod sandbox;
mod server;
pub mod service;
mod services;
pub mod stats;
mod time;
mod transport;
mod upgrade;

pub use architecture::worker::WorkerInfo;
pub use config::Config;
pub use pollux_sys::OwnFileTables;
pub use reload::{Reload, Reloaded};
pub use run::{Report, hold_signals, run, run_with};
pub use server::Server;
pub use service::Service;
pub use stats::Statistics;
pub use upgrade::report_failure;
