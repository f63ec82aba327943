//! Random histories: the cache beside a plain model written from the RFC, beside another
//! implementation, and under values that make no sense.

#[path = "../rfc/harness.rs"]
#[allow(dead_code, reason = "each binary uses its part")]
mod harness;
mod http_cache_semantics;
mod malformed_values;
mod model;
mod wire;
