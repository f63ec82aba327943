//! User memory per idle connection.

use crate::{generator::IdlePool, peer, peer::Peer, peer::Place};

/// Growth of a fresh server's anonymous memory, in bytes per connection, when `count` keep-alive
/// connections have each made one request and then stay idle.
pub(crate) fn bytes_per_idle(peer: Peer, place: &Place, count: usize) -> anyhow::Result<f64> {
    let server = peer::start(peer, place)?;
    let before = server.anonymous_bytes()?;
    let pool = IdlePool::open(place, server.address, count)?;
    let after = server.anonymous_bytes()?;
    drop(pool);
    Ok((after as f64 - before as f64) / count as f64)
}
