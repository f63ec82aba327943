//! What is to be sent: pieces in order, each owned, shared or a part of a file.

use std::{
    collections::VecDeque,
    ops::{Deref, Range},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    rc::Rc,
    sync::Arc,
};

/// Once this many bytes are to be sent, no further pipelined request is answered until they are
/// gone, and streams are to pause: this bounds the memory of a connection that sends requests and
/// does not read.
pub(crate) const OUTBOX_FULL: usize = 64 << 10;
/// A stream that paused because of [`OUTBOX_FULL`] receives an event when no more than this is
/// left.
pub(crate) const OUTBOX_LOW: usize = 16 << 10;
/// An outbox of so many pieces is full, however short they are.
const PIECES_MAX: usize = 64;

/// Cached content up to this length is copied behind its head, so that both leave in one send(2)
/// and several pipelined responses do too; longer content is sent from where it is.
pub(crate) const COPY_MAX: u64 = 16 << 10;

/// Output in order: `bytes`, then `tail`, then the `later` pieces.
///
/// Each worker has one as scratch. What a send did not take moves into one of the connection's own
/// ([`Outbox::take_rest`]).
///
/// Whether more is still to come is no affair of the outbox: an answer's end is known when its
/// exchange is over ([`crate::service::Flow`]).
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    bytes: Vec<u8>,
    sent: usize,
    tail: Option<Content>,
    later: VecDeque<Piece>,
}

/// Bytes that are sent from where they are.
#[derive(Clone, Debug)]
pub(crate) enum Content {
    /// A range of memory that other workers may hold too: a file's. This worker counts its own references,
    /// so that a request changes no count that others change.
    Shared(Rc<SharedBytes>, Range<usize>),
    /// A range of memory that other workers hold too: the HTTP cache's.
    Pooled(Arc<[u8]>, Range<usize>),
    /// A range of an open regular file.
    File(Rc<OwnedFd>, Range<u64>),
}

/// Bytes in memory that other threads may hold too.
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
    fn len(&self) -> u64 {
        match self {
            Self::Shared(_, range) | Self::Pooled(_, range) => range.len() as u64,
            Self::File(_, range) => range.end.saturating_sub(range.start),
        }
    }

    /// Takes `count` bytes off the front.
    fn advance(&mut self, count: u64) {
        match self {
            Self::Shared(_, range) | Self::Pooled(_, range) => range.start += count as usize,
            Self::File(_, range) => range.start += count,
        }
    }
}

/// A piece that waits for those before it.
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

/// What to send next.
#[derive(Debug)]
pub(crate) enum Next<'a> {
    /// Nothing is left.
    Nothing,
    /// These bytes.
    Bytes(&'a [u8]),
    /// These bytes and those, in one call if that can be.
    Two(&'a [u8], &'a [u8]),
    /// These bytes, and then a file's: the bytes may wait for the file's first.
    BytesBeforeFile(&'a [u8]),
    /// So many bytes of the file from the offset.
    File {
        /// An open regular file.
        file: BorrowedFd<'a>,
        /// Where to begin.
        offset: u64,
        /// How many; not 0.
        len: u64,
    },
}

impl Outbox {
    /// Appends here: what is put into it is sent after everything before.
    #[inline]
    pub(crate) fn bytes(&mut self) -> &mut Vec<u8> {
        if self.is_all_bytes() { &mut self.bytes } else { self.later_bytes() }
    }

    /// The position at which the next bytes will be appended. It changes only when bytes are appended.
    #[inline]
    pub(crate) fn end(&mut self) -> (usize, usize) {
        (self.bytes().len(), self.later.len())
    }

    /// What has been appended since [`Outbox::end`] returned `mark`: the bytes, and where they begin. Nothing if
    /// the first of it is content, or if there is nothing.
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

    /// Appends bytes that are sent from where they are.
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

    /// Whether another response may be appended.
    #[inline]
    pub(crate) fn takes_more(&self) -> bool {
        self.bytes.len() < OUTBOX_FULL && self.tail.is_none() && self.later.is_empty()
    }

    /// Bytes that are to be sent.
    #[inline]
    pub(crate) fn len(&self) -> u64 {
        (self.bytes.len() - self.sent) as u64
            + self.tail.as_ref().map_or(0, Content::len)
            + self.later.iter().map(Piece::len).sum::<u64>()
    }

    /// Whether a stream should pause. Nothing is lost if it does not, but memory use grows.
    pub(crate) fn is_full(&self) -> bool {
        self.later.len() >= PIECES_MAX || self.len() >= OUTBOX_FULL as u64
    }

    /// Whether so little is left that a paused stream may continue.
    pub(crate) fn is_low(&self) -> bool {
        self.later.len() <= PIECES_MAX / 2 && self.len() <= OUTBOX_LOW as u64
    }

    /// Whether there is nothing to send.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.sent == self.bytes.len() && self.is_all_bytes()
    }

    /// Whether there is nothing but bytes.
    #[inline]
    pub(crate) fn is_all_bytes(&self) -> bool {
        self.tail.is_none() && self.later.is_empty()
    }

    /// Whether bytes of an open file come after the bytes.
    pub(crate) fn has_file(&self) -> bool {
        matches!(self.tail, Some(Content::File(..)))
    }

    /// All that is to be sent, where that is bytes alone, and some.
    #[inline]
    pub(crate) fn only_bytes(&self) -> Option<&[u8]> {
        let bytes = &self.bytes[self.sent..];
        (self.is_all_bytes() && !bytes.is_empty()).then_some(bytes)
    }

    /// What to send next.
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

    /// So many bytes of [`Outbox::next`] have been sent.
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

    /// All before the next piece is sent: its turn.
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

    /// Moves what is left into an outbox of its own; this one is empty then and keeps its memory.
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

    /// Forgets the bytes, of an outbox that has nothing else: what is done once a request.
    #[inline]
    pub(crate) fn clear_bytes(&mut self) {
        debug_assert!(self.is_all_bytes());
        self.bytes.clear();
        self.sent = 0;
    }

    /// Forgets everything.
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
