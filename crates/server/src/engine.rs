//! The engines: the loops that drive connections, one file for each.

pub(crate) mod blocking;
pub(crate) mod control;
mod dial;
pub(crate) mod event;
mod failed_wait;
mod refusal;
mod resolver;
#[cfg(test)]
mod tests;
mod transmit;
mod upstreams;

pub(crate) use failed_wait::FailedWaits;
pub(crate) use refusal::Refusal;
