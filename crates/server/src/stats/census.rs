//! Counts the connections of this thread that have a request or a response in progress, and those
//! that are streams.
//!
//! A [`Member`] is a field of the data that such a connection owns, so that no transition can be
//! forgotten. It has size 0. A request that is answered in the iteration in which it arrives
//! creates none.

use std::cell::Cell;

const BUSY: usize = 0;
const STREAMS: usize = 1;

thread_local! {
    static COUNTS: [Cell<u64>; 2] = const { [const { Cell::new(0) }; 2] };
}

/// A marker that counts its owner in one state for as long as it exists.
#[derive(Debug)]
pub(crate) struct Member<const STATE: usize>(());

/// The marker of a connection with a request or a response in progress.
pub(crate) type Busy = Member<BUSY>;
/// The marker of a connection that is a stream.
pub(crate) type OpenStream = Member<STREAMS>;

/// Returns how many connections of this thread are busy, and how many are streams.
#[inline]
pub(crate) fn counts() -> (u64, u64) {
    COUNTS.with(|counts| (counts[BUSY].get(), counts[STREAMS].get()))
}

impl<const STATE: usize> Default for Member<STATE> {
    fn default() -> Self {
        COUNTS.with(|counts| counts[STATE].update(|count| count + 1));
        Self(())
    }
}

impl<const STATE: usize> Drop for Member<STATE> {
    fn drop(&mut self) {
        COUNTS.with(|counts| counts[STATE].update(|count| count - 1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_count_as_long_as_they_exist() {
        let (one, other) = (Busy::default(), Busy::default());
        let stream = OpenStream::default();
        assert_eq!((counts(), size_of::<Busy>()), ((2, 1), 0));
        drop(one);
        drop(stream);
        assert_eq!(counts(), (1, 0));
        drop(other);
        assert_eq!(counts(), (0, 0));
    }
}
