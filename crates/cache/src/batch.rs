//! Batches: a walk over the whole store holds a lock only for a bounded time.

use std::{thread, time::Duration};

/// The number of URLs that are examined while a lock is held.
pub(crate) const BATCH: usize = 256;

/// Pauses between two batches, so that threads waiting for the lock get it. The lock is not fair.
pub(crate) fn yield_lock() {
    thread::sleep(Duration::from_micros(50));
}
