//! The output of a connection: pieces in order, each owned, shared or a part of a file.

use std::{
    collections::VecDeque,
    ops::{Deref, Range},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    rc::Rc,
    sync::Arc,
};

/// When this many bytes are to be sent, no further pipelined request is answered until they were sent, and
/// streams must pause. This limits the memory of a connection that sends requests and does not read.
pub(crate) const OUTBOX_FULL: usize = 64 << 10;
/// The number of bytes to send at which a stream that paused because of [`OUTBOX_FULL`] receives an event.
pub(crate) const OUTBOX_LOW: usize = 16 << 10;
/// The number of pieces at which an outbox is full, regardless of their length.
const PIECES_MAX: usize = 64;

/// The maximum length of cached content that is copied behind its head, so that one send(2) sends both, and
/// several pipelined responses, too. Longer content is sent without a copy.
pub(crate) const COPY_MAX: u64 = 16 << 10;

/// Output in order: `bytes`, then `tail`, then the `later` pieces.
///
/// Each worker has one as scratch. Output that a send did not take moves into the connection's own outbox
/// ([`Outbox::take_rest`]).
///
/// The outbox does not know whether a response is complete: the result of the exchange says so
/// ([`crate::service::Flow`]).
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    bytes: Vec<u8>,
    sent: usize,
    tail: Option<Content>,
    later: VecDeque<Piece>,
}

/// Bytes that are sent without a copy into the outbox.
#[derive(Clone, Debug)]
pub(crate) enum Content {
    /// A range of memory that other workers may also reference: that of a file. This worker counts its own
    /// references, so that a request changes no counter that other workers change.
    Shared(Rc<SharedBytes>, Range<usize>),
    /// A range of memory that other workers also reference: that of the HTTP cache.
    Pooled(Arc<[u8]>, Range<usize>),
    /// A range of an open regular file.
    File(Rc<OwnedFd>, Range<u64>),
}

/// Bytes in memory that other threads may also reference.
#[derive(Debug)]
pub(crate) struct SharedBytes(Arc<[u8]>);

impl From<Arc<[u8]>> for SharedBytes {
    fn from(bytes: Arc<[u8]>) -> Self {
        Self(bytes)
    }
}

impl Deref for SharedBytes {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl Content {
    /// Returns the number of bytes.
    pub(crate) fn len(&self) -> u64 {
        match self {
            Self::Shared(_, range) | Self::Pooled(_, range) => range.len() as u64,
            Self::File(_, range) => range.end.saturating_sub(range.start),
        }
    }

    /// Keeps at most `count` bytes at the front.
    pub(crate) fn truncate(&mut self, count: u64) {
        match self {
            Self::Shared(_, range) | Self::Pooled(_, range) => {
                range.end = range.end.min(range.start.saturating_add(count as usize));
            }
            Self::File(_, range) => range.end = range.end.min(range.start.saturating_add(count)),
        }
    }

    /// Removes `count` bytes from the front.
    fn advance(&mut self, count: u64) {
        match self {
            Self::Shared(_, range) | Self::Pooled(_, range) => range.start += count as usize,
            Self::File(_, range) => range.start += count,
        }
    }
}

/// A piece that waits until the earlier pieces were sent.
#[derive(Debug)]
enum Piece {
    Owned(Vec<u8>),
    Content(Content),
}

impl Piece {
    fn len(&self) -> u64 {
        match self {
            Self::Owned(bytes) => bytes.len() as u64,
            Self::Content(content) => content.len(),
        }
    }
}

/// The output to send next.
#[derive(Debug)]
pub(crate) enum Next<'a> {
    /// No output is left.
    Nothing,
    /// These bytes.
    Bytes(&'a [u8]),
    /// Two pieces of bytes, in one call if possible.
    Two(&'a [u8], &'a [u8]),
    /// These bytes, followed by bytes of a file: these may wait to be sent together with the file's first
    /// bytes.
    BytesBeforeFile(&'a [u8]),
    /// A range of a file.
    File {
        /// An open regular file.
        file: BorrowedFd<'a>,
        /// The offset of the first byte.
        offset: u64,
        /// The number of bytes; not 0.
        len: u64,
    },
}

impl Outbox {
    /// Returns the vector to append to: appended bytes are sent after all earlier output.
    #[inline]
    pub(crate) fn bytes(&mut self) -> &mut Vec<u8> {
        if self.is_all_bytes() { &mut self.bytes } else { self.later_bytes() }
    }

    /// Returns the position at which the next bytes will be appended. It changes only when bytes are
    /// appended.
    #[inline]
    pub(crate) fn end(&mut self) -> (usize, usize) {
        (self.bytes().len(), self.later.len())
    }

    /// Returns the bytes that were appended since [`Outbox::end`] returned `mark`, and the index where they
    /// begin. Returns `None` if the first appended piece is content, or if nothing was appended.
    pub(crate) fn bytes_since(&mut self, mark: (usize, usize)) -> Option<(&mut Vec<u8>, usize)> {
        let (start, pieces) = mark;
        let bytes = match pieces.checked_sub(1) {
            None => &mut self.bytes,
            Some(last) => match self.later.get_mut(last)? {
                Piece::Owned(bytes) => bytes,
                Piece::Content(_) => return None,
            },
        };
        (bytes.len() > start).then_some((bytes, start))
    }

    #[cold]
    fn later_bytes(&mut self) -> &mut Vec<u8> {
        if !matches!(self.later.back(), Some(Piece::Owned(_))) {
            self.later.push_back(Piece::Owned(Vec::new()));
        }
        match self.later.back_mut() {
            Some(Piece::Owned(bytes)) => bytes,
            _ => unreachable!("it has just been pushed"),
        }
    }

    /// Appends content that is sent without a copy.
    pub(crate) fn push(&mut self, content: Content) {
        if content.len() == 0 {
            return;
        }
        if self.is_all_bytes() {
            self.tail = Some(content);
        } else {
            self.later.push_back(Piece::Content(content));
        }
    }

    /// Returns whether another response may be appended.
    #[inline]
    pub(crate) fn takes_more(&self) -> bool {
        self.bytes.len() < OUTBOX_FULL && self.tail.is_none() && self.later.is_empty()
    }

    /// Returns the number of bytes to send.
    #[inline]
    pub(crate) fn len(&self) -> u64 {
        (self.bytes.len() - self.sent) as u64
            + self.tail.as_ref().map_or(0, Content::len)
            + self.later.iter().map(Piece::len).sum::<u64>()
    }

    /// Returns whether a stream should pause. If it does not pause, no output is lost, but memory use
    /// grows.
    pub(crate) fn is_full(&self) -> bool {
        self.later.len() >= PIECES_MAX || self.len() >= OUTBOX_FULL as u64
    }

    /// Returns whether so little is left that a paused stream may continue.
    pub(crate) fn is_low(&self) -> bool {
        self.later.len() <= PIECES_MAX / 2 && self.len() <= OUTBOX_LOW as u64
    }

    /// Returns whether there is nothing to send.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.sent == self.bytes.len() && self.is_all_bytes()
    }

    /// Returns whether the outbox contains only owned bytes.
    #[inline]
    pub(crate) fn is_all_bytes(&self) -> bool {
        self.tail.is_none() && self.later.is_empty()
    }

    /// Returns whether the owned bytes are followed by a part of an open file.
    pub(crate) fn has_file(&self) -> bool {
        matches!(self.tail, Some(Content::File(..)))
    }

    /// Returns all output, if it consists of owned bytes only and is not empty.
    #[inline]
    pub(crate) fn only_bytes(&self) -> Option<&[u8]> {
        let bytes = &self.bytes[self.sent..];
        (self.is_all_bytes() && !bytes.is_empty()).then_some(bytes)
    }

    /// Returns the output to send next.
    #[inline]
    pub(crate) fn next(&self) -> Next<'_> {
        let bytes = &self.bytes[self.sent..];
        match (&self.tail, bytes) {
            (None, []) => Next::Nothing,
            (None, _) => Next::Bytes(bytes),
            (Some(Content::Shared(memory, range)), []) => Next::Bytes(&memory[range.clone()]),
            (Some(Content::Shared(memory, range)), _) => Next::Two(bytes, &memory[range.clone()]),
            (Some(Content::Pooled(memory, range)), []) => Next::Bytes(&memory[range.clone()]),
            (Some(Content::Pooled(memory, range)), _) => Next::Two(bytes, &memory[range.clone()]),
            (Some(Content::File(..)), [_, ..]) => Next::BytesBeforeFile(bytes),
            (Some(Content::File(file, range)), []) => {
                Next::File { file: file.as_fd(), offset: range.start, len: range.end - range.start }
            }
        }
    }

    /// Removes `count` bytes of [`Outbox::next`], which were sent.
    #[inline]
    pub(crate) fn advance(&mut self, count: usize) {
        let of_bytes = count.min(self.bytes.len() - self.sent);
        self.sent += of_bytes;
        let of_tail = (count - of_bytes) as u64;
        if let Some(tail) = &mut self.tail {
            tail.advance(of_tail);
            if tail.len() == 0 {
                self.tail = None;
            }
        }
        if self.sent == self.bytes.len() && self.tail.is_none() {
            self.begin_next_piece();
        }
    }

    /// Begins the next piece after all earlier output was sent.
    #[inline]
    fn begin_next_piece(&mut self) {
        self.bytes.clear();
        self.sent = 0;
        if !self.later.is_empty() {
            self.take_later();
        }
    }

    #[cold]
    fn take_later(&mut self) {
        if let Some(Piece::Owned(bytes)) = self.later.front_mut() {
            self.bytes = std::mem::take(bytes);
            self.later.pop_front();
        }
        if let Some(Piece::Content(_)) = self.later.front()
            && let Some(Piece::Content(content)) = self.later.pop_front()
        {
            self.tail = Some(content);
        }
    }

    /// Moves unsent output into a new outbox. This outbox is then empty and keeps its memory.
    pub(crate) fn take_rest(&mut self) -> Outbox {
        let rest = Outbox {
            bytes: self.bytes[self.sent..].to_vec(),
            sent: 0,
            tail: self.tail.take(),
            later: std::mem::take(&mut self.later),
        };
        self.clear();
        rest
    }

    /// Clears an outbox that contains only owned bytes. This runs once for each request.
    #[inline]
    pub(crate) fn clear_bytes(&mut self) {
        debug_assert!(self.is_all_bytes());
        self.bytes.clear();
        self.sent = 0;
    }

    /// Clears the outbox.
    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.sent = 0;
        self.tail = None;
        self.later.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(bytes: &[u8]) -> Rc<SharedBytes> {
        Rc::new(SharedBytes(bytes.into()))
    }

    fn drain(outbox: &mut Outbox, step: usize) -> Vec<u8> {
        let mut sent = Vec::new();
        loop {
            let taken = match outbox.next() {
                Next::Nothing => return sent,
                Next::Bytes(bytes) => bytes[..step.min(bytes.len())].to_vec(),
                Next::Two(first, second) => {
                    let mut both = [first, second].concat();
                    both.truncate(step);
                    both
                }
                other => panic!("{other:?}"),
            };
            outbox.advance(taken.len());
            sent.extend_from_slice(&taken);
        }
    }

    #[test]
    fn any_split_of_the_sends_gives_the_same_bytes() {
        let memory = bytes(b"0123456789");
        for step in 1..30 {
            for parked in [false, true] {
                let mut outbox = Outbox::default();
                outbox.bytes().extend_from_slice(b"head");
                outbox.push(Content::Shared(memory.clone(), 2..7));
                assert!(!outbox.takes_more());
                outbox.bytes().extend_from_slice(b"-pa");
                outbox.bytes().extend_from_slice(b"rt-");
                outbox.push(Content::Shared(memory.clone(), 8..9));
                outbox.push(Content::Shared(memory.clone(), 3..3));
                outbox.push(Content::Shared(memory.clone(), 9..10));
                outbox.bytes().extend_from_slice(b"-end");
                assert_eq!(outbox.len(), 21);
                if parked {
                    outbox.advance(1);
                    let mut rest = outbox.take_rest();
                    assert!(outbox.is_empty() && outbox.takes_more());
                    assert_eq!(drain(&mut rest, step), b"ead23456-part-89-end");
                } else {
                    assert_eq!(drain(&mut outbox, step), b"head23456-part-89-end");
                    assert!(outbox.is_empty() && outbox.takes_more());
                }
            }
        }
    }

    #[test]
    fn it_is_full_by_octets_and_by_pieces_and_low_again_when_they_are_gone() {
        let mut outbox = Outbox::default();
        outbox.bytes().resize(OUTBOX_FULL, 0);
        assert!(outbox.is_full() && !outbox.is_low());
        outbox.advance(OUTBOX_FULL - OUTBOX_LOW);
        assert!(!outbox.is_full() && outbox.is_low());
        outbox.clear();
        let memory = bytes(b"x");
        for _ in 0..=PIECES_MAX {
            assert!(!outbox.is_full());
            outbox.push(Content::Shared(memory.clone(), 0..1));
        }
        assert!(outbox.is_full() && !outbox.is_low());
        drain(&mut outbox, 1);
        assert!(outbox.is_low());
    }
}
