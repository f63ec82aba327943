//! Random histories: the cache compared with a plain model of the RFC and with another
//! implementation, and with malformed values.

mod http_cache_semantics;
mod malformed_values;
mod model;
mod traffic;
mod wire;
