//! The mechanisms that wait with epoll(7).

#[cfg(feature = "io_uring")]
mod ctlv;
mod instance;
mod plain;

#[cfg(feature = "io_uring")]
pub use ctlv::EpollCtlv;
pub use plain::{Epoll, Epoll2, EpollEdge, EpollLevel, Variant};
