//! One connection's side of HTTP/1.1, without I/O and without any idea of what is answered.
//!
//! [`Connection`] is what is kept of a connection between two turns; a [`Round`] is one turn.
//! Octets go in, events come out at a [`Host`], answers go into an [`Outbox`](crate::transport::outbox::Outbox),
//! and [`Connection::need`] says what to do next. How it is used is written at [`Round`].

mod connection;
mod host;
mod round;
pub(crate) mod rules;
#[cfg(test)]
mod tests;

pub(crate) use connection::{Awaits, Connection, Need};
pub(crate) use host::{Flow, Host, Keep, Part, Terms};
#[cfg(test)]
pub(crate) use round::REPLIES_A_TURN;
pub(crate) use round::Round;
