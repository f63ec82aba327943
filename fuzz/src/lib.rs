//! The checks of the fuzz targets. Each module takes bytes that an attacker could send, and compares the result of
//! the code with an independent one: with the result for the same bytes in other pieces, with the data that was
//! written before, or with the result of a few lines that are obviously right.
//!
//! # Positive controls
//! A check that cannot fail is worthless. With `POLLUX_FUZZ_PLANT` set, each target has a fault ([`planted`]) that
//! its kept corpus must reveal. [`canary`] has a fault that only a fuzzer finds that sees the branches of the
//! program.

pub mod cache_key;
pub mod canary;
pub mod chunked;
#[cfg(feature = "server")]
pub mod config;
// The independent end of a TLS connection, which the record layer's own tests use, too.
#[path = "../../crates/tls/tests/support/ends.rs"]
mod ends;
pub mod handover;
pub mod hub_form;
pub mod hub_matcher;
pub mod hub_sse;
pub mod hub_token;
pub mod proxy_protocol;
pub mod ranges;
pub mod redis;
pub mod request;
pub mod response;
// The only type of the server that the messages of an upgrade need.
#[path = "../../crates/server/src/transport/role.rs"]
mod role;
mod script;
pub mod tls_handshake;
pub mod tls_records;
pub mod upgrade;

/// The name under which the server has [`role`].
mod transport {
    pub(crate) use crate::role;
}

use std::sync::OnceLock;

/// Whether a fault is planted.
pub fn planted() -> bool {
    static PLANTED: OnceLock<bool> = OnceLock::new();
    *PLANTED.get_or_init(|| std::env::var_os("POLLUX_FUZZ_PLANT").is_some())
}

/// Divides the input: the first byte is the size of the pieces in which the rest arrives.
fn in_pieces(data: &[u8]) -> Option<(usize, &[u8])> {
    let (&size, rest) = data.split_first()?;
    Some((usize::from(size).max(1), rest))
}
