//! Errors of a guestbook's store.

use std::time::Duration;

/// The reason why a store did not answer. From a client's point of view every such error is temporary:
/// the server responds with 503 and `Retry-After`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The store cannot be reached, or the connection broke.
    #[error("the store cannot be reached: {0}")]
    Unreachable(String),
    /// The store did not answer in time.
    #[error("the store did not answer in time")]
    TimedOut,
    /// The store is still loading its data (`-LOADING` of Redis).
    #[error("the store is loading its data")]
    Loading,
    /// The store accepts no changes: it is a replica, or its disk is full (`-READONLY`, `-MISCONF`,
    /// `-NOREPLICAS`).
    #[error("the store accepts no changes: {0}")]
    ReadOnly(String),
    /// The store has no room (`-OOM`, or the file has reached its maximum size).
    #[error("the store is full: {0}")]
    Full(String),
    /// The store requires a password, or another one (`-NOAUTH`, `-WRONGPASS`, `-NOPERM`).
    #[error("the store refuses this user: {0}")]
    Refused(String),
    /// The store is part of a Redis Cluster, which is not supported (`-MOVED`, `-ASK`).
    #[error(
        "the store is part of a Redis Cluster, which is not supported; use a single server: {0}"
    )]
    Cluster(String),
    /// Too many requests already wait for the store.
    #[error("too many requests wait for the store")]
    Busy,
    /// The store's reply is not a valid reply to the command.
    #[error("the store sent an invalid reply: {0}")]
    Protocol(String),
}

impl StoreError {
    /// How long a client should wait before it tries again (`Retry-After`).
    pub fn retry_after(&self) -> Duration {
        Duration::from_secs(match self {
            Self::Busy | Self::TimedOut | Self::Unreachable(_) => 1,
            Self::Loading | Self::Protocol(_) => 5,
            Self::ReadOnly(_) | Self::Full(_) | Self::Refused(_) | Self::Cluster(_) => 30,
        })
    }
}
