//! The static front end of Pollux: an HTTP server that runs on any mechanism of `pollux-event`.
//!
//! # Guide
//!
//! The path of a request, from the socket to the response:
//!
//! 1. `architecture::worker`: threads. The main thread creates all listeners before any worker starts,
//!    and keeps them, so that another process can take them over; each worker accepts from its own
//!    copies. A worker has its own connections and index of files and, if the program allows it, its own
//!    file table. So a request changes no shared state.
//! 2. `engine::event`: the loop that waits on the mechanism, receives, sends and accepts. Only an
//!    engine does I/O on sockets. This one is monomorphised per mechanism. `engine::blocking` is the
//!    other engine: it serves one connection at a time, for the architectures (`architecture`) in which
//!    a thread or a process serves one connection.
//! 3. `protocol`: the state of a connection, without I/O. Bytes go in, and events come out; the
//!    connection says what it needs next. The protocol knows no service. An idle connection is a slot
//!    of the table in `engine::event`, which has at most 64 bytes together with the registration at the
//!    mechanism. The lists of `time::timers` link these slots.
//! 4. [`service`]: the interface of services. A service writes its response through a
//!    [`ResponseWriter`](service::ResponseWriter), at once or later. `services::site` serves static
//!    files: it maps a path to a file through a bounded cache, which also stores prepared response heads.
//!    Threads share the contents.
//!
//! # Example
//!
//! ```no_run
//! use pollux_server::{Settings, Server};
//!
//! let server = Server::start(Settings::new("public"))?;
//! println!("listening on {}", server.addresses()[0]);
//! let statistics = server.stop(std::time::Duration::from_secs(5))?;
//! println!("{} requests", statistics.count(pollux_server::stats::Counter::Requests));
//! # Ok::<(), anyhow::Error>(())
//! ```

/// The README's example is compiled, too.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

pub mod admin;
mod architecture;
mod auth;
mod clients;
pub mod config;
mod engine;
mod eviction;
mod log;
mod policy;
mod protocol;
mod reactor;
mod reload;
mod run;
pub mod sandbox;
mod server;
pub mod service;
mod services;
pub mod settings;
pub mod stats;
mod text_file;
mod time;
mod transport;
mod upgrade;

pub use architecture::worker::WorkerInfo;
pub use pollux_sys::OwnFileTables;
pub use reload::{Reload, ReloadedConfig};
pub use run::{Report, hold_signals, run, run_with};
pub use server::Server;
pub use service::Service;
pub use settings::Settings;
pub use stats::Statistics;
pub use upgrade::report_failure;
