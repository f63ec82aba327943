//! Live upgrade: a new process of the program takes over the listeners and the idle connections.
//!
//! The running server (the predecessor) starts the program again, with the same arguments and one
//! end of a channel, and sends it all listening sockets ([`successor`]). The new process (the
//! successor) reads its configuration, starts its workers on the listeners that it still needs, and
//! reports that it is ready ([`predecessor`]). Then each worker of the predecessor stops accepting
//! and sends its idle connections, which the successor distributes over its workers. A message has up to 253
//! descriptors, each with the data that the successor needs for the connection. A busy connection
//! is sent when it becomes idle. A subscriber of the hub is sent with its position in the log.
//!
//! Until the predecessor confirms, every failure ends only the successor. The predecessor then
//! accepts again, and keeps each connection whose message was not answered. Connections whose
//! message was answered end with the successor: it may have read from them.
//!
//! | message | from | with |
//! |---|---|---|
//! | `Begin`, `Listener` … | predecessor | each listening socket |
//! | `Ready` or `Failed` | successor | |
//! | `Hub` | predecessor, if it has a hub | a socket on which the hub's log is sent |
//! | `Channel` … | predecessor | a channel for each of its workers |
//! | `Connections` | a worker of the predecessor, on its channel | the sockets |
//! | `Accepted` | the successor, on that channel | |
//! | `Confirm` | predecessor | |

pub(crate) mod channel;
pub(crate) mod distribution;
pub(crate) mod launcher;
pub(crate) mod message;
pub(crate) mod predecessor;
pub(crate) mod successor;

pub(crate) use predecessor::is_in_progress;
pub use predecessor::report_failure;
pub(crate) use successor::{count_failure, failures};

/// The environment variable with the descriptor number of the successor's end of the channel.
const VARIABLE: &str = "POLLUX_UPGRADE_FD";
