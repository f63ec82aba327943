//! An HTTP load generator whose schedule does not wait for the server.
//!
//! # Guide
//!
//! - [`Config`] configures a run; [`run()`] runs it; [`Report`] contains the results; [`output`] shows
//!   them.
//! - Open loop: a request is sent at its instant in a [`schedule`] drawn before the run, regardless of
//!   earlier requests, because independent users do not wait for each other. Latency counts from that
//!   *scheduled* instant, so that a stall counts for every request scheduled during it. (A generator
//!   that waits omits those requests: "coordinated omission".) Service time counts from the send, and
//!   both are reported.
//! - [`histogram`] and [`times`] are the forms of all times; [`outcome`] counts how requests end.
//! - The generator measures itself ([`generator`]): if it was the bottleneck, the run is marked
//!   invalid; latencies that are mostly its own lag are marked, too ([`validity`]).
//! - [`idle`] holds idle connections.
//! - [`tls`] is for `https` URLs; the time of TLS handshakes is not part of latency.
//! - [`push`] holds subscribers of a push server, and publishes.
//! - [`ranks`]: many processes on many hosts perform one run.
//!
//! One thread is one loop (`thread`) over its own connections (`pool`, `client`, `drive`), its own
//! epoll instance and its own [`record`]; threads share nothing while they run.

#![warn(missing_docs)]

/// The README's example is compiled, too.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

mod client;
pub mod config;
mod deadlines;
mod drive;
mod event_stream;
pub mod generator;
pub mod histogram;
mod host;
pub mod idle;
mod omission;
pub mod outcome;
pub mod output;
mod own_cpu;
mod plan;
mod pool;
mod progress;
pub mod push;
pub mod ranks;
pub mod record;
pub mod reply_rate;
pub mod report;
pub mod run;
pub mod schedule;
pub mod series;
pub mod session;
pub mod source;
pub mod target;
mod thread;
pub mod times;
pub mod tls;
pub mod validity;

pub use config::Config;
pub use pollux_sys::OwnFileTables;
pub use pollux_tls::ClientTrust;
pub use report::Report;
pub use run::{run, stop_on_signals};

/// The exit status of `pollux load` when the generator was the bottleneck.
pub const EXIT_INVALID: u8 = 3;

/// The exit status of `pollux load` when the run was valid and no request of it succeeded.
pub const EXIT_NOTHING: u8 = 4;
