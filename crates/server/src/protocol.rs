//! The state machine of an HTTP/1.1 connection on a server, without I/O and without knowledge of the
//! service.
//!
//! [`Connection`] is the state between two iterations; an [`Iteration`] is one of them. Received bytes go
//! in, a [`Handler`] receives events, responses go into an [`Outbox`](crate::transport::outbox::Outbox),
//! and [`Connection::need`] says what to do next. [`Iteration`] describes the use.

mod connection;
mod handler;
mod iteration;
mod parked;
pub(crate) mod rules;
#[cfg(test)]
mod tests;

pub(crate) use connection::{Awaits, Connection, Need};
pub(crate) use handler::{ExchangeTerms, Framing, Handler, KeepAlive};
pub use handler::{Flow, Part};
pub(crate) use iteration::Iteration;
#[cfg(test)]
pub(crate) use iteration::REPLIES_A_TURN;
pub(crate) use parked::ParkedExchange;
