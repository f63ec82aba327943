//! Support for the tests of all crates: waiting for a state, slow peers, pairs of descriptors, full buffers,
//! limits, forked children, scripts that stand in for programs, signals, system calls that fail, ports, an
//! HTTP client, with TLS too, the server as a process, networks with a link that can be cut, a corpus of
//! requests and their replies, the checks of a guestbook, a real Redis, a real ACME authority, counters of
//! allocations, tokens of a hub, and tests that run in their own process. All functions panic on an error
//! and name it: a test has no use for a `Result` here.

pub mod allocations;
pub mod alone;
pub mod child;
pub mod conformance;
pub mod faults;
pub mod guestbook;
pub mod http;
pub mod limits;
pub mod network;
pub mod origin;
mod pace;
pub mod pairs;
pub mod pebble;
pub mod ports;
mod program;
pub mod redis;
pub mod serve;
pub mod signals;
mod sys;
pub mod threads;
pub mod tls;
pub mod token;
mod wait;

pub use child::{KillOnDrop, in_child};
pub use faults::{denied, denied_where};
pub use limits::{raise_descriptor_limit, with_descriptors};
pub use pace::{growth_within, read_slowly, write_slowly};
pub use pairs::{Pair, drain, fill, poll_now};
pub use ports::Port;
pub use program::write_program;
pub use sys::own_file_tables;
pub use wait::{
    becomes_true, ended_within, find_within, stays_true, wait_for, wait_until, wait_until_stalled,
};
