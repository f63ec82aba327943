//! The policy at a limit of connections.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Whether idle connections give way to new ones at a limit.
///
/// The limit is [`Settings::max_connections`] or what RLIMIT_NOFILE leaves of it, and in a pool the number of its threads
/// or processes. A connection is idle if its last response has been sent, no byte of another request has arrived, and no
/// service uses it (a tunnel or a stream is never idle). A connection that has not sent its first request does not give
/// way: [`Timeouts::header`] limits the time for that. Connections that give way count as [`Counter::Evicted`].
///
/// [`Settings::max_connections`]: crate::Settings::max_connections
/// [`Timeouts::header`]: super::Timeouts::header
/// [`Counter::Evicted`]: crate::stats::Counter::Evicted
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum IdleEviction {
    /// The client address that has most idle connections gives way with the one that has been idle longest. IPv6
    /// addresses of one /64 network are one client. Where many connections are open, the addresses of a random sample
    /// decide; where no address has many, the connection that has been idle longest of all is closed. A connection by a
    /// UNIX socket has no address, and its age alone counts.
    ///
    /// In architectures of threads and processes, the worker that is to give way is woken by SIGWINCH, whose default is to
    /// be ignored.
    #[default]
    On,
    /// New connections wait in the kernel's queue until one closes.
    Off,
}
