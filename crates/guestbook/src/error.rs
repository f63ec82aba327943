//! What keeps a store from answering.

use std::time::Duration;

/// Why a store did not answer. Every one of them is temporary from a client's point of view: the
/// server says 503 and after which time it is worth another try.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// Nobody listens there, or the connection broke.
    #[error("the store cannot be reached: {0}")]
    Unreachable(String),
    /// It did not answer in time.
    #[error("the store did not answer in time")]
    TimedOut,
    /// It is still reading its data (Redis' `-LOADING`).
    #[error("the store is loading its data")]
    Loading,
    /// It takes no changes: a replica, or its disk is full (`-READONLY`, `-MISCONF`, `-NOREPLICAS`).
    #[error("the store takes no changes: {0}")]
    ReadOnly(String),
    /// It has no room (`-OOM`, or the file has reached its size).
    #[error("the store is full: {0}")]
    Full(String),
    /// It wants a password, or another one (`-NOAUTH`, `-WRONGPASS`, `-NOPERM`).
    #[error("the store refuses this user: {0}")]
    Refused(String),
    /// It is of a kind that is not spoken with: a Redis Cluster (`-MOVED`, `-ASK`).
    #[error("the store is part of a Redis Cluster, which is not spoken with: {0}")]
    Cluster(String),
    /// Too many requests wait for it already.
    #[error("too many requests wait for the store")]
    Busy,
    /// It said something that is no answer to what it was asked.
    #[error("the store does not make sense: {0}")]
    Protocol(String),
}

impl StoreError {
    /// For how long a client should wait before it tries again (`Retry-After`).
    pub fn retry_after(&self) -> Duration {
        Duration::from_secs(match self {
            Self::Busy | Self::TimedOut | Self::Unreachable(_) => 1,
            Self::Loading | Self::Protocol(_) => 5,
            Self::ReadOnly(_) | Self::Full(_) | Self::Refused(_) | Self::Cluster(_) => 30,
        })
    }
}
