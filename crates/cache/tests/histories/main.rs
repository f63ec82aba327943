//! Random histories: the cache beside a plain model written from the RFC, beside another
//! implementation, and under values that make no sense.

#[path = "../rfc/bench.rs"]
#[allow(dead_code, reason = "each binary uses its part")]
mod bench;
mod model;
mod nonsense;
mod second_opinion;
mod wire;
