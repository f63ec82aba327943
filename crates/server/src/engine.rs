//! The loops that drive connections: one file an engine.

pub(crate) mod blocking;
pub(crate) mod control;
mod dial;
pub(crate) mod event;
mod failed_wait;
mod links;
mod refusal;
mod resolver;
#[cfg(test)]
mod tests;
mod transmit;

pub(crate) use failed_wait::FailedWaits;
pub(crate) use refusal::Refusal;
