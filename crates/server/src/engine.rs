//! The loops that drive connections: one file an engine.

pub(crate) mod readiness;
mod transmit;
