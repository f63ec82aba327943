//! The start of a head that comes in pieces. Nearly all come whole, and then nothing is kept.

use super::ReplyError;

/// Keeps the octets of a head until it is whole.
#[derive(Clone, Debug, Default)]
pub(super) struct HeadBuffer {
    partial: Vec<u8>,
    /// Octets of `partial` in which no end of the head was found.
    searched: usize,
    /// The octets that were offered last are in `partial`.
    is_appended: bool,
}

impl HeadBuffer {
    /// Forgets what was kept; its memory stays for the next one.
    #[inline]
    pub(super) fn clear(&mut self) {
        self.partial.clear();
        self.searched = 0;
        self.is_appended = false;
    }

    pub(super) fn is_empty(&self) -> bool {
        self.partial.is_empty()
    }

    /// How many octets are kept.
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.partial.len()
    }

    /// What there is of the head with `bytes` at its end, if it is worth a look: it begins in `bytes`,
    /// or an empty line has come, or more than `max` octets.
    #[inline]
    pub(super) fn offer<'a>(&'a mut self, bytes: &'a [u8], max: usize) -> Option<&'a [u8]> {
        if self.partial.is_empty() { Some(bytes) } else { self.offer_more(bytes, max) }
    }

    #[cold]
    fn offer_more(&mut self, bytes: &[u8], max: usize) -> Option<&[u8]> {
        // No more than a head may have: the rest is content, or too much.
        let room = (max + 1).saturating_sub(self.partial.len()).min(bytes.len());
        self.partial.extend_from_slice(&bytes[..room]);
        self.is_appended = true;
        let should_parse = self.may_be_whole() || self.partial.len() > max;
        should_parse.then_some(&self.partial[..])
    }

    /// Looks for an empty line in what has come since the last look.
    fn may_be_whole(&mut self) -> bool {
        let partial = &self.partial;
        let found = memchr::memchr_iter(b'\n', &partial[self.searched..]).any(|lf| {
            let before = &partial[..self.searched + lf];
            before.ends_with(b"\n") || before.ends_with(b"\n\r")
        });
        self.searched = partial.len();
        found
    }

    /// What [`HeadBuffer::offer`] gave, in memory that may be changed: a copy where it was none yet.
    #[cold]
    pub(super) fn make_mutable(&mut self, bytes: &[u8], max: usize) -> &mut [u8] {
        if !self.is_appended {
            self.partial.extend_from_slice(&bytes[..bytes.len().min(max + 1)]);
            self.is_appended = true;
        }
        &mut self.partial
    }

    /// The head is not whole: `bytes`, which were offered, are kept.
    ///
    /// # Errors
    /// There are more than `max` octets of it.
    pub(super) fn store(&mut self, bytes: &[u8], max: usize) -> Result<(), ReplyError> {
        if !self.is_appended {
            self.partial.extend_from_slice(&bytes[..bytes.len().min(max + 1)]);
        }
        self.is_appended = false;
        if self.partial.len() > max {
            return Err(ReplyError::Syntax("the header section is too long"));
        }
        Ok(())
    }

    /// The first `len` octets of what is kept.
    pub(super) fn prefix(&self, len: usize) -> &[u8] {
        &self.partial[..len]
    }
}
