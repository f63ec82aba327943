//! One connection's side of HTTP/1.1, without I/O and without any idea of what is answered.
//!
//! [`Connection`] is what is kept of a connection between two turns; a [`Iteration`] is one turn.
//! Bytes go in, events come out at a [`Handler`], answers go into an [`Outbox`](crate::transport::outbox::Outbox),
//! and [`Connection::need`] says what to do next. How it is used is written at [`Iteration`].

mod connection;
mod handler;
mod iteration;
pub(crate) mod rules;
#[cfg(test)]
mod tests;

pub(crate) use connection::{Awaits, Connection, Need};
pub(crate) use handler::{ExchangeTerms, Framing, Handler, KeepAlive};
pub use handler::{Flow, Part};
pub(crate) use iteration::Iteration;
#[cfg(test)]
pub(crate) use iteration::REPLIES_A_TURN;
