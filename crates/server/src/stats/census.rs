//! How many connections of this thread have something under way, and how many are streams.
//!
//! A value of a type of this file is a part of what such a connection owns, so that no transition can be
//! forgotten. It has no size. A request that is answered in the iteration in which it arrives creates none.

use std::cell::Cell;

thread_local! {
    static BUSY: Cell<u64> = const { Cell::new(0) };
    static STREAMS: Cell<u64> = const { Cell::new(0) };
}

/// Connections of this thread with a request or a response under way.
#[inline]
pub(crate) fn busy() -> u64 {
    BUSY.get()
}

/// Connections of this thread that are streams.
#[inline]
pub(crate) fn streams() -> u64 {
    STREAMS.get()
}

/// Counts its owner as busy for as long as it exists.
#[derive(Debug)]
pub(crate) struct Busy(());

impl Default for Busy {
    fn default() -> Self {
        BUSY.set(BUSY.get() + 1);
        Self(())
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        // A worker's table may be dropped while its thread ends.
        let _ = BUSY.try_with(|busy| busy.set(busy.get().saturating_sub(1)));
    }
}

/// Counts its owner as a stream for as long as it exists.
#[derive(Debug)]
pub(crate) struct OpenStream(());

impl Default for OpenStream {
    fn default() -> Self {
        STREAMS.set(STREAMS.get() + 1);
        Self(())
    }
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        let _ = STREAMS.try_with(|streams| streams.set(streams.get().saturating_sub(1)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_count_as_long_as_they_exist() {
        let (one, other) = (Busy::default(), Busy::default());
        let stream = OpenStream::default();
        assert_eq!((busy(), streams(), size_of::<Busy>()), (2, 1, 0));
        drop(one);
        drop(stream);
        assert_eq!((busy(), streams()), (1, 0));
        drop(other);
        assert_eq!(busy(), 0);
    }
}
