//! The loops that drive connections: one file an engine.

pub(crate) mod blocking;
mod dial;
mod failed_wait;
mod handover;
mod links;
pub(crate) mod readiness;
mod refusal;
mod resolver;
#[cfg(test)]
mod tests;
mod transmit;

pub(crate) use failed_wait::FailedWaits;
pub(crate) use handover::Receivers;
pub(crate) use refusal::Refusal;
