//! The loops that drive connections: one file an engine.

pub(crate) mod blocking;
mod dial;
mod handover;
pub(crate) mod readiness;
#[cfg(test)]
mod tests;
mod transmit;

pub(crate) use handover::Receivers;
