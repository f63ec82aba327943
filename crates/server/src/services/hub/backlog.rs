//! The memory of updates that wait for a store, or for the other process of a live upgrade.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

/// The maximum number of bytes of the updates that wait at one hub. One update may always wait, however large it is.
const WAITING_BYTES: usize = 64 << 20;

/// The bytes of the updates that wait.
#[derive(Debug, Default)]
pub(super) struct Backlog(Arc<AtomicUsize>);

/// The part of one update, which is given back when it is dropped.
#[derive(Debug)]
pub(super) struct Share {
    backlog: Arc<AtomicUsize>,
    bytes: usize,
}

impl Backlog {
    /// Returns `None` if the updates that wait already have too many bytes.
    pub(super) fn admit(&self, bytes: usize) -> Option<Share> {
        let share = Share { backlog: self.0.clone(), bytes };
        let before = self.0.fetch_add(bytes, Ordering::Relaxed);
        (before == 0 || before.saturating_add(bytes) <= WAITING_BYTES).then_some(share)
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.backlog.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_longer_waits_makes_room() {
        let backlog = Backlog::default();
        let large = backlog.admit(2 * WAITING_BYTES).expect("the first may be of any size");
        assert!(backlog.admit(1).is_none());
        drop(large);
        let all: Vec<_> = std::iter::from_fn(|| backlog.admit(WAITING_BYTES / 4)).collect();
        assert_eq!(all.len(), 4);
        drop(all);
        assert_eq!(backlog.0.load(Ordering::Relaxed), 0);
    }
}
