//! Buffers the start of a head that arrives in pieces. Most heads arrive complete and are not
//! copied.

use super::ReplyError;
use crate::fields::TOO_LONG;

/// Stores the bytes of a head until it is complete.
#[derive(Clone, Debug, Default)]
pub(super) struct HeadBuffer {
    partial: Vec<u8>,
    /// The number of bytes of `partial` that do not contain the end of the head.
    searched: usize,
    /// Whether the bytes of the last [`HeadBuffer::offer`] are already in `partial`.
    is_appended: bool,
}

impl HeadBuffer {
    /// Creates an empty buffer that reuses the memory of an earlier one.
    pub(super) fn with_memory(mut partial: Vec<u8>) -> Self {
        partial.clear();
        Self { partial, searched: 0, is_appended: false }
    }

    /// The memory, for another buffer.
    pub(super) fn into_memory(self) -> Vec<u8> {
        self.partial
    }

    /// Discards the stored bytes; the memory is reused.
    #[inline]
    pub(super) fn clear(&mut self) {
        self.partial.clear();
        self.searched = 0;
        self.is_appended = false;
    }

    pub(super) fn is_empty(&self) -> bool {
        self.partial.is_empty()
    }

    /// The number of stored bytes.
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.partial.len()
    }

    /// Returns the stored bytes followed by `bytes`, if parsing them may succeed: nothing is stored
    /// yet, an empty line has arrived, or there are more than `max` bytes.
    #[inline]
    pub(super) fn offer<'a>(&'a mut self, bytes: &'a [u8], max: usize) -> Option<&'a [u8]> {
        if self.partial.is_empty() { Some(bytes) } else { self.offer_more(bytes, max) }
    }

    #[cold]
    fn offer_more(&mut self, bytes: &[u8], max: usize) -> Option<&[u8]> {
        // Store no more than a head may have: the rest is content, or exceeds the limit.
        let room = (max + 1).saturating_sub(self.partial.len()).min(bytes.len());
        self.partial.extend_from_slice(&bytes[..room]);
        self.is_appended = true;
        let should_parse = self.may_be_whole() || self.partial.len() > max;
        should_parse.then_some(&self.partial[..])
    }

    /// Looks for an empty line in the bytes that arrived since the last search.
    fn may_be_whole(&mut self) -> bool {
        let partial = &self.partial;
        let found = memchr::memchr_iter(b'\n', &partial[self.searched..]).any(|lf| {
            let before = &partial[..self.searched + lf];
            before.ends_with(b"\n") || before.ends_with(b"\n\r")
        });
        self.searched = partial.len();
        found
    }

    /// Returns the result of [`HeadBuffer::offer`] as mutable memory, copying it if necessary.
    #[cold]
    pub(super) fn make_mutable(&mut self, bytes: &[u8], max: usize) -> &mut [u8] {
        if !self.is_appended {
            self.partial.extend_from_slice(&bytes[..bytes.len().min(max + 1)]);
            self.is_appended = true;
        }
        &mut self.partial
    }

    /// Stores `bytes`, which were offered: the head is incomplete.
    ///
    /// # Errors
    /// More than `max` bytes are stored.
    pub(super) fn store(&mut self, bytes: &[u8], max: usize) -> Result<(), ReplyError> {
        if !self.is_appended {
            self.partial.extend_from_slice(&bytes[..bytes.len().min(max + 1)]);
        }
        self.is_appended = false;
        if self.partial.len() > max {
            return Err(ReplyError::of_head(TOO_LONG));
        }
        Ok(())
    }

    /// The first `len` stored bytes.
    pub(super) fn prefix(&self, len: usize) -> &[u8] {
        &self.partial[..len]
    }
}
